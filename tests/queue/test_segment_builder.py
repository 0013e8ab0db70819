"""Archives: segments of messages that have their numbers already read like any other queue."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.clock import SystemClock
from everlog.errors import InvalidConfig, PayloadTooLarge
from everlog.fs import OsFs
from everlog.queue import Queue
from everlog.queue.doctor import examine_queue
from everlog.queue.findings import Severity
from everlog.queue.segment_builder import BuiltSegment, SegmentBuilder, assemble
from tests.support.effort import effort
from tests.support.files import UnsyncedFs

SEGMENT_SIZE = 1024


class Sent(NamedTuple):
    """A message that goes into an archive."""

    type_id: int
    flags: int
    ts_ns: int
    payload: bytes


MESSAGES = st.lists(
    st.builds(
        Sent,
        type_id=st.integers(0, 0xFFFE),
        flags=st.integers(0, 0xFFFF),
        ts_ns=st.integers(0, 2**64 - 1),
        payload=st.binary(max_size=SEGMENT_SIZE - 128),
    ),
    min_size=1,
    max_size=30,
)


def build(folder: Path, name: str, first_seq: int, messages: list[Sent], step: int = 7) -> list[BuiltSegment]:
    """Write a run of messages, a few at a time."""
    folder.mkdir(exist_ok=True)
    builder = SegmentBuilder(UnsyncedFs(), str(folder / name), SEGMENT_SIZE, first_seq)
    for at in range(0, len(messages), step):
        some = messages[at : at + step]
        raw = np.frombuffer(b"".join(sent.payload for sent in some), np.uint8)
        builder.append_packed(
            np.array([sent.type_id for sent in some], np.uint16),
            raw,
            np.cumsum([len(sent.payload) for sent in some], dtype=np.uint64),
            np.array([sent.ts_ns for sent in some], np.uint64),
            flags=np.array([sent.flags for sent in some], np.uint16),
        )
    return builder.finish()


def read(path: Path) -> list[tuple[int, Sent]]:
    """Read a queue with an ordinary reader."""
    with Queue.open_subscriber(path, None, "earliest") as reader:
        return [
            (view.seq, Sent(view.type_id, view.flags, view.timestamp_ns, bytes(view.payload)))
            for view in reader
        ]


@settings(max_examples=effort(40), deadline=None)
@given(messages=MESSAGES, first_seq=st.integers(0, 2**40), cut=st.integers(0, 30))
def test_an_archive_is_a_queue_with_the_same_messages(
    tmp_path_factory: pytest.TempPathFactory, messages: list[Sent], first_seq: int, cut: int
) -> None:
    root = tmp_path_factory.mktemp("archive")
    folder, target = root / "parts", root / "queue"
    cut = min(cut, len(messages))
    # The later run first: the order of the files is that of the seqs.
    parts = build(folder, "b", first_seq + cut, messages[cut:]) + build(
        folder, "a", first_seq, messages[:cut]
    )
    assemble(UnsyncedFs(), str(folder), str(target), parts, SEGMENT_SIZE)
    assert read(target) == list(enumerate(messages, first_seq))
    assert not folder.exists()
    findings = examine_queue(OsFs(), SystemClock(), str(target)).findings
    assert not [finding for finding in findings if finding.severity is Severity.ERROR]
    with Queue.open_subscriber(target, None, "earliest") as reader:
        assert reader.seek_seq(first_seq + len(messages) - 1)
        assert bytes(reader.next().payload) == messages[-1].payload
    with Queue.open_publisher(target) as writer:
        assert writer.append(1, b"more", 5) == first_seq + len(messages)
    assert read(target)[-1] == (first_seq + len(messages), Sent(1, 0, 5, b"more"))


SOME = [Sent(1, 0, number, b"x" * 100) for number in range(20)]


@pytest.mark.parametrize(("first", "second"), [(0, 21), (0, 19), (5, 5)])
def test_seqs_that_are_missing_or_there_twice_are_refused(tmp_path: Path, first: int, second: int) -> None:
    parts = build(tmp_path / "parts", "a", first, SOME) + build(tmp_path / "parts", "b", second, SOME)
    with pytest.raises(InvalidConfig, match="exactly once"):
        assemble(UnsyncedFs(), str(tmp_path / "parts"), str(tmp_path / "queue"), parts, SEGMENT_SIZE)
    assert not (tmp_path / "queue").exists()


def test_an_archive_replaces_nothing(tmp_path: Path) -> None:
    with Queue.open_publisher(tmp_path / "queue", segment_size=SEGMENT_SIZE) as writer:
        writer.append(1, b"mine", 1)
    parts = build(tmp_path / "parts", "a", 0, SOME)
    with pytest.raises(InvalidConfig, match=r"something at .*queue already"):
        assemble(UnsyncedFs(), str(tmp_path / "parts"), str(tmp_path / "queue"), parts, SEGMENT_SIZE)
    assert read(tmp_path / "queue") == [(0, Sent(1, 0, 1, b"mine"))]


def test_files_of_attempts_that_do_not_count_are_gone(tmp_path: Path) -> None:
    build(tmp_path / "parts", "failed", 0, SOME)
    parts = build(tmp_path / "parts", "a", 0, SOME)
    assemble(UnsyncedFs(), str(tmp_path / "parts"), str(tmp_path / "queue"), parts, SEGMENT_SIZE)
    assert not list((tmp_path / "queue").glob("*.part"))
    assert [seq for seq, _ in read(tmp_path / "queue")] == list(range(20))


def test_an_archive_of_nothing_is_an_empty_queue(tmp_path: Path) -> None:
    assert build(tmp_path / "parts", "a", 0, []) == []
    assemble(UnsyncedFs(), str(tmp_path / "parts"), str(tmp_path / "queue"), [], SEGMENT_SIZE)
    assert read(tmp_path / "queue") == []


def test_a_segment_takes_no_more_disk_than_its_messages(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    builder = SegmentBuilder(UnsyncedFs(), str(tmp_path / "parts" / "a"), 64 << 20, 0)
    builder.append(1, b"small", 1)
    (segment,) = builder.finish()
    found = Path(segment.path).stat()
    assert found.st_size == 64 << 20
    assert found.st_blocks * 512 < 1 << 20


def test_a_message_that_fits_no_segment_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    builder = SegmentBuilder(UnsyncedFs(), str(tmp_path / "a"), SEGMENT_SIZE, 0)
    with pytest.raises(PayloadTooLarge, match="segment_size 1024"):
        builder.append(1, b"x" * SEGMENT_SIZE, 1)
    builder.discard()
    assert list(tmp_path.iterdir()) == []
