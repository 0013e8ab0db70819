"""The answer to an append as text: what a JSON library makes of the same values."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.native.append_answer import render_fields, render_seqs

U64 = st.integers(0, 2**64 - 1)
TIMES_NS = st.integers(0, 10**15)


def twin(
    topic: str, numbers: list[int], flags: list[bool], times_ns: list[int], more: dict[str, float]
) -> str:
    """The same with a JSON library; times are cut to whole microseconds."""
    first_seq, last_seq, head_seq, count = numbers
    waited_ns, synced_ns = max(times_ns), min(times_ns)
    in_ms = [
        f"{time_ns // 1_000_000}.{time_ns // 1000 % 1000:03}"
        for time_ns in (waited_ns, waited_ns - synced_ns, synced_ns)
    ]
    fields = {
        "topic": topic,
        "first_seq": first_seq,
        "last_seq": last_seq,
        "seqs": [first_seq],
        "head_seq": head_seq,
        "count": count,
        "created": flags[0],
        "deduped": flags[1],
    }
    names = ("server_total_ms", "wal_append_ms", "fsync_ms")
    parts = [f'"{name}":{text}' for name, text in zip(names, in_ms, strict=True)]
    parts += [f'"{name}":{value}' for name, value in more.items()]
    head = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
    return head.removesuffix("}")[1:] + ',"performance":{' + ",".join(parts) + "}"


@given(
    st.text(max_size=300),
    st.lists(U64, min_size=4, max_size=4),
    st.lists(st.booleans(), min_size=2, max_size=2),
    st.lists(TIMES_NS, min_size=2, max_size=2),
    st.sampled_from([{}, {"throttle_wait_ms": 1.5}]),
)
def test_the_fields_are_those_of_a_json_library(
    topic: str, numbers: list[int], flags: list[bool], times_ns: list[int], more: dict[str, float]
) -> None:
    first_seq, last_seq, head_seq, count = numbers
    extra = b"".join(b',"%b":%b' % (name.encode(), b"%g" % value) for name, value in more.items())
    text = render_fields(
        json.dumps(topic, ensure_ascii=False).encode("utf-8", "surrogatepass"),
        first_seq,
        last_seq,
        b'"seqs":[%d],' % first_seq,
        head_seq,
        count,
        flags[0],
        flags[1],
        max(times_ns),
        min(times_ns),
        extra,
    )
    assert text == twin(topic, numbers, flags, times_ns, more).encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("last", [0, 9, 10, 999, 10**19, 2**64 - 1])
@pytest.mark.parametrize("count", [1, 2, 10])
def test_seqs_are_all_numbers_from_the_first_to_the_last(last: int, count: int) -> None:
    first = max(0, last - count + 1)
    assert json.loads(render_seqs(first, last)) == list(range(first, last + 1))


def test_no_seqs_are_an_error() -> None:
    with pytest.raises(ValueError, match="5 to 4"):
        render_seqs(5, 4)
