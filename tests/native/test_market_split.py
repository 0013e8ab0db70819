"""Book events by market, and gaps in the numbers of channels: the native pass against a plain one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.market.protocol import BookEventType, BookMode, new_headers
from everlog.native.market.events import split_markets
from tests.support.effort import effort

event = st.tuples(
    st.integers(1, 2),  # venue
    st.integers(0, 3),  # market
    st.integers(1, 2),  # channel
    st.sampled_from([BookMode.L2, BookMode.L3, BookMode.L3]),
    st.integers(0, 6),  # number
)


def headers_of(events: list[Any]) -> np.ndarray[Any, np.dtype[np.void]]:
    """Headers without bodies, which is what the pass looks at."""
    headers = new_headers(len(events), BookEventType.HEARTBEAT, BookMode.L2)
    headers["record_len"] = headers.itemsize
    for number, (venue, market, channel, mode, seq) in enumerate(events):
        row = headers[number]
        row["venue_id"], row["market_id"], row["stream_id"] = venue, market, channel
        row["book_mode"], row["seq"] = mode, seq
    return headers


def split(headers: np.ndarray[Any, np.dtype[np.void]], apart: int = 64) -> tuple[Any, ...]:
    """Split headers that lie so many bytes apart."""
    buffer = np.zeros(len(headers) * apart, np.uint8)
    for number, header in enumerate(headers):
        buffer[number * apart :][:64] = np.frombuffer(header.tobytes(), np.uint8)
    offsets = np.arange(len(headers), dtype=np.uint64) * np.uint64(apart)
    return split_markets(buffer, offsets, np.full(len(headers), 64, np.uint64))


@settings(max_examples=effort(200))
@given(st.lists(event, max_size=40), st.sampled_from([64, 72, 192]))
def test_every_market_has_its_events_in_their_order_and_every_gap_is_found(
    events: list[Any], apart: int
) -> None:
    markets: dict[int, list[int]] = {}
    channels: dict[int, list[tuple[int, int]]] = {}
    for number, (venue, market, channel, mode, seq) in enumerate(events):
        markets.setdefault(venue << 32 | market, []).append(number)
        if mode is BookMode.L3 and seq:
            channels.setdefault(venue << 32 | channel, []).append((number, seq))
    bad, keys, order, ends, names, first_events, firsts, lasts, gaps = split(headers_of(events), apart)
    assert bad == len(events)
    found = np.split(order, ends[:-1]) if len(keys) else []
    assert dict(zip(keys.tolist(), [part.tolist() for part in found], strict=True)) == markets
    assert names.tolist() == list(channels)
    for at, seen in enumerate(channels.values()):
        assert (first_events[at], firsts[at], lasts[at]) == (*seen[0], seen[-1][1])
    expected = [
        (after[0], at, before[1], after[1])
        for at, seen in enumerate(channels.values())
        for before, after in itertools.pairwise(seen)
        if after[1] != before[1] + 1
    ]
    assert [tuple(row) for row in gaps.tolist()] == sorted(expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("schema_version", 9),
        ("record_len", 63),
        ("endianness", 1),
        ("book_mode", 2),
        ("event_type", 0),
        ("event_type", 5),
    ],
)
def test_the_first_event_with_a_bad_header_is_named(name: str, value: int) -> None:
    headers = headers_of([(1, 1, 1, BookMode.L2, 0)] * 4)
    headers[name][2] = value
    assert split(headers)[0] == 2


def test_more_markets_than_a_small_table_holds_are_all_found() -> None:
    headers = headers_of([(1, 0, 1, BookMode.L3, 1)] * 20_000)
    headers["market_id"] = headers["stream_id"] = np.arange(20_000) // 2
    bad, keys, order, ends, names, *_ = split(headers)
    assert bad == 20_000 and len(keys) == len(names) == 10_000
    assert order.tolist() == list(range(20_000)) and ends.tolist() == list(range(2, 20_002, 2))


def test_records_that_do_not_lie_in_the_buffer_are_not_read() -> None:
    buffer, one = np.zeros(64, np.uint8), np.full(1, 64, np.uint64)
    assert split_markets(buffer, one, one)[0] == 0
    assert split_markets(buffer, np.full(1, 2**63, np.uint64), one)[0] == 0
    with pytest.raises(ValueError, match="2 offsets and 1 lengths"):
        split_markets(buffer, np.zeros(2, np.uint64), one)
