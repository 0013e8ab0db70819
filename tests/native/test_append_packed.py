"""`append_packed`: payloads of varying length out of one buffer, like as many single appends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import InvalidTypeId, PayloadTooLarge, Unsupported
from everlog.queue import Queue
from tests.support.import_runs import messages_of

SEGMENT_SIZE = 4096


messages = st.tuples(st.binary(max_size=300), st.integers(0, 0xFFFE), st.integers(0, 0xFFFF))


@given(payloads=st.lists(messages, max_size=60))
def test_packed_payloads_arrive_as_single_appends_would(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[tuple[bytes, int, int]]
) -> None:
    path = tmp_path_factory.mktemp("packed") / "queue"
    data = np.frombuffer(b"".join(payload for payload, _, _ in payloads), dtype=np.uint8)
    ends = np.cumsum([len(payload) for payload, _, _ in payloads], dtype=np.uint64)
    stamps = np.arange(len(payloads), dtype=np.uint64) + np.uint64(7)
    types = np.array([kind for _, kind, _ in payloads], dtype=np.uint16)
    flags = np.array([flag for _, _, flag in payloads], dtype=np.uint16)
    with Queue.open_publisher(path, segment_size=SEGMENT_SIZE, retention=False) as writer:
        assert writer.append_packed(types, data, ends, stamps, flags) == 0
        assert writer.next_seq == len(payloads)
    found = [(bytes(m.payload), m.type_id, m.timestamp_ns, m.seq) for m in messages_of(path)]
    assert found == [(payload, kind, n + 7, n) for n, (payload, kind, _) in enumerate(payloads)]
    with Queue.open_subscriber(path, None, "earliest") as reader:
        assert [view.flags for view in reader] == [flag for _, _, flag in payloads]


def test_starts_choose_any_bytes_in_any_order(tmp_path: Path) -> None:
    data = np.frombuffer(b"abcdef", dtype=np.uint8)
    starts, ends = np.array([4, 0, 2], dtype=np.uint64), np.array([6, 3, 2], dtype=np.uint64)
    stamps = np.zeros(3, dtype=np.uint64)
    with Queue.open_publisher(tmp_path, segment_size=SEGMENT_SIZE) as writer:
        writer.append_packed(1, data, ends, stamps, starts=starts)
        writer.append(2, b"later")
    assert [bytes(m.payload) for m in messages_of(tmp_path)] == [b"ef", b"abc", b"", b"later"]
    with Queue.open_subscriber(tmp_path, None, "earliest") as reader:
        assert [view.flags for view in reader] == [0, 0, 0, 0], "flags never leak to other appends"


@pytest.mark.parametrize(
    ("ends", "error"),
    [
        ([3, 2], Unsupported),
        ([3, 7], Unsupported),
        ([3], Unsupported),
    ],
)
def test_impossible_ends_change_nothing(tmp_path: Path, ends: list[int], error: type[Exception]) -> None:
    data, stamps = np.zeros(6, dtype=np.uint8), np.zeros(2, dtype=np.uint64)
    with Queue.open_publisher(tmp_path, segment_size=SEGMENT_SIZE) as writer:
        with pytest.raises(error):
            writer.append_packed(1, data, np.array(ends, dtype=np.uint64), stamps)
        assert writer.next_seq == 0


def test_a_payload_that_fits_no_segment_is_refused_before_the_first_is_published(tmp_path: Path) -> None:
    data, stamps = np.zeros(SEGMENT_SIZE, dtype=np.uint8), np.zeros(2, dtype=np.uint64)
    with Queue.open_publisher(tmp_path, segment_size=SEGMENT_SIZE) as writer:
        with pytest.raises(PayloadTooLarge, match="payload 1"):
            writer.append_packed(1, data, np.array([8, SEGMENT_SIZE], dtype=np.uint64), stamps)
        assert writer.next_seq == 0


def test_the_type_of_padding_is_refused(tmp_path: Path) -> None:
    data, one = np.zeros(8, dtype=np.uint8), np.ones(1, dtype=np.uint64)
    with Queue.open_publisher(tmp_path, segment_size=SEGMENT_SIZE) as writer, pytest.raises(InvalidTypeId):
        writer.append_packed(np.array([0xFFFF], dtype=np.uint16), data, one, one)
