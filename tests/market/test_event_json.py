"""Market messages that a bridge made JSON of, read back: the books and the trades are the same."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.bridge import market_json
from everlog.market import BookSet
from everlog.market.book_feed import BookFeed
from everlog.market.event_json import EventReader
from everlog.market.protocol import L3_RECORD, TRADE, TypeId
from everlog.queue import Queue
from tests.support.market_queues import simulated_queue

REST = st.one_of(st.none(), st.integers(), st.text(max_size=5), st.lists(st.integers(), max_size=3))


def record(data: Any, **meta: object) -> dict[str, Any]:
    return {"$seq": 1, "$ts": 1_700_000_000_000, "data": data, **({"meta": meta} if meta else {})}


def rendered(path: Path) -> list[dict[str, Any]]:
    """What a bridge makes of the messages of a queue."""
    with Queue.open_subscriber(path, None, "earliest") as reader:
        records = []
        for view in reader:
            text = market_json.render(view.type_id, view.flags, bytes(view))
            assert text is not None
            meta = {"ts_ns": view.timestamp_ns, "type": view.type_id, "flags": view.flags}
            records.append(record(json.loads(text), **meta))
        return records


def books_of(path: Path) -> list[tuple[int, list[Any], list[Any]]]:
    with Queue.open_subscriber(path, None, "earliest") as reader:
        feed = BookFeed(reader, BookSet())
        while feed.advance() is not None:
            pass
    return [
        (
            market.market_id,
            *(
                [
                    (book.render_price(int(level["price"])), book.render_size(int(level["size"])))
                    for level in side
                ]
                for side in book.depth(100)
            ),
        )
        for market, book in sorted(feed.books.books.items())
    ]


@pytest.mark.parametrize("kinds", ["l2,trades", "l3,trades"])
def test_books_of_rendered_messages_are_those_of_the_messages(tmp_path: Path, kinds: str) -> None:
    simulated_queue(tmp_path / "q", symbols=2, seconds=2, rate=2000, kinds=kinds)
    records = rendered(tmp_path / "q")
    messages = EventReader().read(json.dumps(records).encode())
    assert len(messages) == len(records) > 500
    with Queue.open_publisher(tmp_path / "copy") as writer:
        for message in messages:
            writer.append_packed(
                message.type_id,
                np.frombuffer(message.payload, dtype=np.uint8),
                np.array([len(message.payload)], dtype=np.uint64),
                np.array([message.timestamp_ns], dtype=np.uint64),
                np.array([message.flags], dtype=np.uint16),
            )
    assert books_of(tmp_path / "copy") == books_of(tmp_path / "q")
    with (
        Queue.open_subscriber(tmp_path / "q", None, "earliest") as first,
        Queue.open_subscriber(tmp_path / "copy", None, "earliest") as second,
    ):
        for one, other in zip(first, second, strict=True):
            assert (one.timestamp_ns, one.type_id, one.flags) == (
                other.timestamp_ns,
                other.type_id,
                other.flags,
            )
            if one.type_id == TypeId.TRADE:
                assert bytes(one) == bytes(other)
            elif kinds.startswith("l3"):
                ours, theirs = (np.frombuffer(bytes(each), L3_RECORD)[0] for each in (one, other))
                assert ours["event"]["order_id"] == theirs["event"]["order_id"]


def test_a_trade_that_went_as_base64_comes_back_byte_for_byte() -> None:
    payload = np.zeros(1, TRADE).tobytes()
    data = base64.b64encode(payload).decode()
    (message,) = EventReader().read(
        json.dumps([record(data, type=int(TypeId.TRADE), ts_ns=5, flags=1, encoding="base64")]).encode()
    )
    assert message == (5, TypeId.TRADE, 1, payload)


@given(st.lists(st.one_of(REST, st.dictionaries(st.sampled_from(["type", "event", "mode", "bids"]), REST))))
def test_records_of_other_programs_are_left_out(values: list[Any]) -> None:
    records = [record(value) for value in values] + [{"$ts": 0, "data": {"type": "trade"}, "meta": 3}]
    assert EventReader().read(json.dumps(records).encode()) == []
