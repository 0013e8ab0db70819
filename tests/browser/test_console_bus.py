"""The page of queues in a real browser: writers, readers with their lag, and messages as hex and text."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from everlog.bus.feed_status import STATUS_FILE, FeedStatus, SymbolStatus
from everlog.fs import OsFs, replace_file
from everlog.queue import Queue
from tests.browser.devtools import Page
from tests.browser.test_console_shell import keep_picture, shown_width
from tests.support.server_processes import running_server

pytestmark = pytest.mark.browser


def put_feed(
    bus: Path, updated_ns: int, gaps: int = 2, name: str = "kraken-1", venue: str = "kraken"
) -> None:
    """Write what a connection of live capture says of itself."""
    symbols = {
        "XBT/USD": SymbolStatus(True, {"diffs": 1200, "trades": 80, "snapshots": 1}, updated_ns, 12.5),
        "<script>": SymbolStatus(False, {"diffs": 7, "gaps": gaps}, updated_ns, 0.0),
    }
    status = FeedStatus(
        name=name,
        venue=venue,
        pid=1,
        updated_ns=updated_ns,
        connection_id=3,
        is_connected=True,
        frames_per_s=41.0,
        clock_offset_ms=None,
        counts={"gaps_sequence": gaps - 1, "gaps_checksum": 1},
        refusals=[],
        symbols=symbols,
    )
    folder = bus / "streams" / "raw" / name
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(OsFs(), str(folder / STATUS_FILE), msgspec.json.encode(status), durable=False)


def test_queues_show_writers_readers_and_messages(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "bus" / "streams" / "raw" / "binance" / "queue"
    with (
        Queue.open_publisher(path) as writer,
        Queue.open_subscriber(path, "strategy", start="earliest") as reader,
        running_server(tmp_path, "--bus", tmp_path / "bus") as server,
    ):
        for number in range(50):
            writer.append(3, b'{"trade": %d, "text": "<script>"}' % number)
        for _ in range(20):
            reader.next()
        reader.commit()
        page.open(f"{server.url}/#/bus")
        page.until_text("streams/raw/binance/queue", "ev-rows")
        page.until_text("alive", "ev-rows")
        page.until_text("30 messages", "ev-rows")  # the reader that is most behind
        page.click("ev-rows .row", "binance")
        page.until_text("50 messages", ".detail")
        page.until_text("30 messages", ".detail table")
        page.click(".detail summary", '"trade": 49')
        page.until_text("7b 22 74 72 61 64 65", ".detail")
        page.evaluate(
            "document.querySelector('.page-head .mono').textContent = 'bus'"
        )  # not a path of this machine
        keep_picture(page, "queues", tmp_path)
        for number in range(5):
            writer.append(3, b"more %d" % number)
        page.until_text("35 messages", ".detail table")
        page.write(".jump", "3")
        page.click(".detail button", "Show")
        page.until_text('"trade": 2', ".messages")
        assert page.unnamed() == []
        page.size(390, 844)
        width, content = shown_width(page)
        assert content <= width


def test_feeds_show_their_gaps_by_reason_and_each_symbol(page: Page, tmp_path: Path) -> None:
    bus = tmp_path / "bus"
    put_feed(bus, time.time_ns() + 3_600_000_000_000)  # of a clock that is ahead: it stays "connected"
    put_feed(bus, time.time_ns() - 60_000_000_000, name="okx", venue="okex")
    Queue.open_publisher(bus / "streams" / "raw" / "kraken-1" / "queue").close()
    with running_server(tmp_path, "--bus", bus) as server:
        page.open(f"{server.url}/#/bus")
        page.until_text("2 gaps: 1 sequence, 1 checksum", ".feed")
        page.until_text("connected", "[data-feed=kraken-1] summary")
        page.until_text("not running, last heard of 1 min", "[data-feed=okx] summary")
        page.click("[data-feed=kraken-1] summary", "kraken-1")
        page.until_text("waiting", "[data-feed=kraken-1] table")
        assert "<script>" in page.text("[data-feed=kraken-1] table")
        put_feed(bus, time.time_ns() + 3_600_000_000_000, gaps=5)
        page.until_text("5 gaps: 4 sequence, 1 checksum", ".feed")
        page.until_text("waiting", "[data-feed=kraken-1] table")  # it stays open
        page.evaluate("document.querySelector('.page-head .mono').textContent = 'bus'")
        keep_picture(page, "feeds", tmp_path)


def test_a_server_without_a_bus_directory_says_how_to_name_one(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        page.open(f"{server.url}/#/bus")
        page.until_text("everlog serve --bus")
