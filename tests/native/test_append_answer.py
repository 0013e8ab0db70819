"""The answer to an append as text: what a JSON library makes of the same values."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.native.topics.log import SEQS_LISTED, SEQS_NULL, SEQS_OMITTED, render_fields

U64 = st.integers(0, 2**64 - 1)
TIMES_NS = st.integers(0, 10**15)


NAMES = st.text("abcxyzABCXYZ0189._:-", min_size=1, max_size=255)


def twin(
    topic: str, seqs: tuple[int, int], kind: int, flags: list[bool], times_ns: list[int], more: bytes
) -> str:
    """The same with a JSON library; times are cut to whole microseconds."""
    first_seq, last_seq = seqs
    in_ms = [f"{time_ns // 1_000_000}.{time_ns // 1000 % 1000:03}" for time_ns in times_ns]
    fields: dict[str, object] = {"topic": topic, "first_seq": first_seq, "last_seq": last_seq}
    if kind != SEQS_OMITTED:
        fields["seqs"] = list(range(first_seq, last_seq + 1)) if kind == SEQS_LISTED else None
    fields |= {"head_seq": 7, "count": last_seq - first_seq + 1, "created": flags[0], "deduped": flags[1]}
    names = ("server_total_ms", "wal_append_ms", "fsync_ms")
    parts = [f'"{name}":{text}' for name, text in zip(names, in_ms, strict=True)]
    head = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
    return head.removesuffix("}")[1:] + ',"performance":{' + ",".join(parts) + more.decode() + "}"


@given(
    NAMES,
    U64,
    st.integers(0, 20),
    st.sampled_from([SEQS_OMITTED, SEQS_LISTED, SEQS_NULL]),
    st.lists(st.booleans(), min_size=2, max_size=2),
    st.lists(TIMES_NS, min_size=3, max_size=3),
    st.sampled_from([b"", b',"throttle_wait_ms":1.5']),
)
def test_the_fields_are_those_of_a_json_library(
    topic: str,
    last_seq: int,
    more_seqs: int,
    kind: int,
    flags: list[bool],
    times_ns: list[int],
    more: bytes,
) -> None:
    first_seq = max(0, last_seq - more_seqs)
    text = render_fields(topic, first_seq, last_seq, kind, 7, flags[0], flags[1], *times_ns, more)
    assert text.decode() == twin(topic, (first_seq, last_seq), kind, flags, times_ns, more)


@pytest.mark.parametrize("last", [0, 9, 10, 999, 10**19, 2**64 - 1])
@pytest.mark.parametrize("count", [1, 2, 10, 1000])
def test_seqs_are_all_numbers_from_the_first_to_the_last(last: int, count: int) -> None:
    first = max(0, last - count + 1)
    text = render_fields("t", first, last, SEQS_LISTED, last, False, False, 0, 0, 0, b"")
    assert json.loads(b"{%b}" % text)["seqs"] == list(range(first, last + 1))


def test_no_seqs_are_an_error() -> None:
    with pytest.raises(ValueError, match="5 to 4"):
        render_fields("t", 5, 4, SEQS_LISTED, 4, False, False, 0, 0, 0, b"")
