"""Books of markets in queues below the bus directory: live, at a time, bounded, no reader registered."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from everlog.bridge import QueueToTopic, QueueToTopicSettings
from everlog.client import Client
from everlog.market import BookSet
from everlog.market.book_feed import BookFeed
from everlog.market.venues.simulated import SimulatedVenue
from everlog.queue import Queue
from everlog.server import market_views
from everlog.server.market_topics import COPIES_MAX
from everlog.server.market_views import VIEWS_MAX, BookRequest, MarketViews
from tests.support.http_cases import Api, running
from tests.support.market_queues import simulated_queue
from tests.support.processes import eventually

SYMBOL = "SIM0001"


def make_bus(root: Path) -> Path:
    simulated_queue(root / "sim", symbols=3, seconds=4, rate=3000, kinds="l2,trades")
    return root


def ask(api: Api, **parameters: object) -> dict[str, Any]:
    """Ask until the server is where it was asked to go."""
    query = urlencode({"queue": "sim", "symbol": SYMBOL, **parameters})
    for _ in range(200):
        answer: dict[str, Any] = api.request("GET", f"/v0/markets/book?{query}").json
        if answer["is_there"]:
            return answer
    raise AssertionError(f"still on its way: {answer['progress']}")


def test_a_page_follows_a_book_live_and_sees_each_column_once(tmp_path: Path) -> None:
    bus = make_bus(tmp_path / "bus")
    with running(bus_root=str(bus)) as server:
        api = server.api()
        assert [
            (one["venue"], one["symbol"])
            for one in api.request("GET", "/v0/markets?queue=sim").json["markets"]
        ] == [("simulated", f"SIM000{number}") for number in range(3)]
        first = ask(api, levels=5)
        assert first["mode"] == "l2" and len(first["bids"]) == len(first["asks"]) == 5
        assert float(first["bids"][0][0]) < float(first["asks"][0][0])
        assert first["columns"][-1][1][0] == float(first["bids"][0][0])
        assert first["trades"][-1]["side"] in ("buy", "sell")
        assert (first["gaps"], first["error"]) == (0, None)
        known_ms = first["columns"][-1][0]
        assert [column[0] for column in ask(api, after_ms=known_ms)["columns"]] == [known_ms]
        venue = SimulatedVenue(3, seed=9, kinds=("l2", "trades"), start_ns=(first["last_ms"] + 1) * 1_000_000)
        with Queue.open_publisher(bus / "sim") as writer:
            for block in venue.blocks(2000):
                block.append_to(writer)
        later = ask(api, after_ms=known_ms)
        assert later["last_ms"] > first["last_ms"]
        assert later["columns"][0][0] >= known_ms
        readers = bus / "sim" / "readers"
        assert not readers.exists() or list(readers.iterdir()) == []


def test_the_book_at_a_time_is_the_same_from_either_direction(tmp_path: Path) -> None:
    bus = make_bus(tmp_path / "bus")
    with running(bus_root=str(bus)) as server:
        api = server.api()
        end = ask(api)
        span_ms = end["last_ms"] - end["first_ms"]
        early, late = (end["first_ms"] + span_ms * share // 4 for share in (1, 3))
        forward = [ask(api, at_ms=early), ask(api, at_ms=late)]
        back = [ask(api, at_ms=late), ask(api, at_ms=early)]
        for one, other, at_ms in zip(forward, reversed(back), (early, late), strict=True):
            assert one["time_ms"] == other["time_ms"] == at_ms
            for part in ("bids", "asks", "columns", "trades"):
                assert one[part] == other[part], part
            assert one["columns"][-1][0] <= at_ms
            assert one["trades"][-1]["time_ms"] <= at_ms
        assert forward[0]["bids"] != forward[1]["bids"]


def test_the_book_is_that_of_the_queue(tmp_path: Path) -> None:
    bus = make_bus(tmp_path / "bus")
    with Queue.open_subscriber(bus / "sim", None, "earliest") as reader:
        feed = BookFeed(reader, BookSet())
        while feed.advance() is not None:
            pass
    with running(bus_root=str(bus)) as server:
        found = ask(server.api(), levels=100)
    book = next(book for market, book in feed.books.books.items() if market.market_id == found["market_id"])
    for side, levels in zip(("bids", "asks"), book.depth(100), strict=True):
        assert found[side] == [
            [book.render_price(price), book.render_size(size)]
            for price, size in zip(levels["price"].tolist(), levels["size"].tolist(), strict=True)
        ]


def test_a_request_works_for_a_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = make_bus(tmp_path / "bus")
    monkeypatch.setattr(market_views, "WORK_S", 0.0)
    with running(bus_root=str(bus)) as server:
        api = server.api()
        first = api.request("GET", f"/v0/markets/book?queue=sim&symbol={SYMBOL}").json
        assert not first["is_there"] and 0 < first["progress"] <= 1
        assert ask(api)["progress"] == 1


def test_followers_are_few_and_are_closed_when_no_page_asks(tmp_path: Path) -> None:
    bus = make_bus(tmp_path / "bus")
    views = MarketViews()

    def look(step_ms: int, at_ms: int | None = None) -> None:
        views.look(BookRequest(str(bus / "sim"), SYMBOL, None, at_ms, 0, step_ms, 5))

    for step_ms in range(100, 100 + 2 * VIEWS_MAX):
        look(step_ms)
    assert len(views._views) == VIEWS_MAX
    assert views.close_idle()
    views.IDLE_S = 0.0  # type: ignore[misc]
    assert not views.close_idle()
    assert views._views == []


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    bus = make_bus(tmp_path / "bus")
    with running(bus_root=str(bus), keys="all,some:read:own.") as server:
        api = server.api("all")
        for query, status in (
            ("queue=sim", 400),
            ("queue=sim&symbol=" + "x" * 101, 400),
            ("queue=sim&symbol=A&step_ms=1", 400),
            ("queue=sim&symbol=A&at_ms=yesterday", 400),
            ("queue=../bus/nothing&symbol=A", 404),
            ("symbol=A", 404),
        ):
            assert api.request("GET", f"/v0/markets/book?{query}").status == status, query
        assert api.request("GET", "/v0/markets?queue=nothing").status == 404
        unknown = ask(api, symbol="NOTHING")
        assert (unknown["mode"], unknown["bids"], unknown["columns"]) == (None, [], [])
        for path in ("/v0/markets?queue=sim", "/v0/markets/book?queue=sim&symbol=A"):
            assert server.api("some").request("GET", path).status == 403


def test_the_book_of_a_topic_that_a_bridge_fills_is_that_of_the_queue(tmp_path: Path) -> None:
    bus = make_bus(tmp_path / "bus")
    with running(bus_root=str(bus)) as server:
        api = server.api()
        url = f"http://127.0.0.1:{server.server.address[1]}"

        def forward() -> None:
            with Client(url) as client:
                QueueToTopic(
                    client, QueueToTopicSettings(str(bus / "sim"), "events", name="b", once=True)
                ).run()

        def markets(topic: str) -> list[str]:
            for _ in range(200):
                answer = api.request("GET", f"/v0/markets?topic={topic}").json
                if answer["is_whole"]:
                    return [one["symbol"] for one in answer["markets"]]
            raise AssertionError("the topic is never read to its end")

        forward()
        assert markets("events") == ["SIM0000", "SIM0001", "SIM0002"]
        found, wanted = ask(api, queue="", topic="events"), ask(api)
        for part in ("bids", "asks", "columns", "trades", "gaps", "mode", "last_ms"):
            if part == "trades":  # a topic has no other seqs than its own
                found[part], wanted[part] = (
                    [{**one, "seq": 0} for one in each[part]] for each in (found, wanted)
                )
            assert found[part] == wanted[part], part
        at_ms = (wanted["first_ms"] + wanted["last_ms"]) // 2
        assert ask(api, queue="", topic="events", at_ms=at_ms)["bids"] == ask(api, at_ms=at_ms)["bids"]
        venue = SimulatedVenue(
            3, seed=9, kinds=("l2", "trades"), start_ns=(wanted["last_ms"] + 1) * 1_000_000
        )
        with Queue.open_publisher(bus / "sim") as writer:
            for block in venue.blocks(2000):
                block.append_to(writer)
        forward()
        assert ask(api, queue="", topic="events")["bids"] == ask(api)["bids"]
        api.append("notes", [{"data": {"text": "no market data"}}])
        assert markets("notes") == []
        assert api.request("GET", "/v0/markets?topic=nothing").status == 404
        api.request("DELETE", "/v0/topics/events")
        assert api.request("GET", f"/v0/markets/book?topic=events&symbol={SYMBOL}").status == 404


def test_copies_of_topics_are_few_and_a_key_sees_its_own_topics_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with running(keys="all,some:read:own.") as server:
        api, some = server.api("all"), server.api("some")

        def copies() -> list[Path]:
            return list(tmp_path.glob("everlog-market-*"))

        for number in range(2 * COPIES_MAX):
            api.append(f"own.{number}", [{"data": number}])
            assert some.request("GET", f"/v0/markets?topic=own.{number}").json["is_whole"]
        eventually("the oldest copies are gone", lambda: len(copies()) <= COPIES_MAX)
        api.append("other", [{"data": 1}])
        assert some.request("GET", "/v0/markets?topic=other").status == 403
        assert some.request("GET", f"/v0/markets/book?topic=other&symbol={SYMBOL}").status == 403
