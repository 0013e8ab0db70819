"""The page of markets in a real browser: live book, depth, spread and trades, and the same over a replay."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from everlog.bridge import QueueToTopic, QueueToTopicSettings
from everlog.client import Client
from everlog.market.packing import pack_l2_snapshots
from everlog.market.protocol import L2_SNAPSHOT, LEVEL, BookEventType, BookMode, TypeId, new_headers
from everlog.market.venues.simulated import SimulatedVenue
from everlog.queue import Queue
from tests.browser.devtools import Page
from tests.browser.test_console_shell import keep_picture, shown_width
from tests.support.market_queues import simulated_queue
from tests.support.server_processes import running_server

pytestmark = pytest.mark.browser

MARKET = "document.querySelector('ev-market')"
HEAT_MAP = "document.querySelector('ev-heatmap')"
PRICES = "[...document.querySelectorAll('.ladder-table td:nth-child(2)')].map((e) => Number(e.innerText))"
BEST_BID = "document.querySelector('.market .tiles dd').innerText"


def test_a_market_is_shown_live(page: Page, tmp_path: Path) -> None:
    queue = tmp_path / "bus" / "streams" / "raw" / "simulated" / "queue"
    simulated_queue(queue, symbols=3, seconds=60, rate=600, kinds="l2,trades", resting_orders=300)
    with Queue.open_publisher(tmp_path / "bus" / "signals") as writer:  # listed before it, and without a book
        writer.append(1, b"buy")
    with running_server(tmp_path, "--bus", tmp_path / "bus") as server:
        page.open(f"{server.url}/#/market")
        page.until_text("SIM0001 (simulated)", "select")
        page.until_text("basis points", ".tiles")
        page.until("document.querySelectorAll('[aria-label=\"Order book\"] tbody tr').length === 24")
        page.until(f"{HEAT_MAP}.columns.length > 100")
        page.until("document.querySelectorAll('[aria-label=Trades] tbody tr').length === 20")
        prices = page.evaluate(PRICES)
        assert prices == sorted(prices, reverse=True)
        assert f"best bid {prices[12]:g}" in page.evaluate(f"{HEAT_MAP}.canvas.ariaLabel")
        keep_picture(page, "market", tmp_path)
        last_ms = page.evaluate(f"{MARKET}.seen.last_ms")
        venue = SimulatedVenue(3, seed=5, kinds=("l2", "trades"), start_ns=(last_ms + 1) * 1_000_000)
        with Queue.open_publisher(queue) as writer:
            for block in venue.blocks(3000):
                block.append_to(writer)
        page.until(f"{MARKET}.seen.last_ms > {last_ms}")
        page.click(".choice button", "4 min")
        page.until(
            f"{HEAT_MAP}.columns.every(([time]) => time % 1000 === 0) && {HEAT_MAP}.columns.length > 30"
        )
        assert page.unnamed() == []
        page.size(390, 844)
        width, content = shown_width(page)
        assert content <= width


def test_a_replay_goes_forward_at_its_pace_and_back_when_asked(page: Page, tmp_path: Path) -> None:
    simulated_queue(tmp_path / "bus" / "sim", symbols=2, seconds=60, rate=500, kinds="l3,trades")
    with running_server(tmp_path, "--bus", tmp_path / "bus") as server:
        page.open(f"{server.url}/#/market/sim/SIM0001")
        page.until_text("basis points", ".tiles")
        live = page.evaluate(BEST_BID)
        page.click(".choice button", "Replay")
        page.until(f"{MARKET}.replay.at > {MARKET}.seen.first_ms")
        page.evaluate(
            "(() => {const s = document.querySelector('[aria-label=Speed]');"
            "s.value = '10'; s.dispatchEvent(new Event('change'))})()"
        )
        start_ms = page.evaluate(f"{MARKET}.replay.at")
        page.until(f"{MARKET}.seen.time_ms > {start_ms} + 5000")
        page.click("button", "Pause")
        page.until_text("Play", ".replay button")
        at_ms = page.evaluate(f"{MARKET}.replay.at")
        page.until(f"{MARKET}.seen.time_ms === Math.floor({at_ms})")
        assert page.evaluate(
            f"{HEAT_MAP}.columns.every(([time]) => time <= {at_ms})"
            f" && {MARKET}.seen.trades.every((one) => one.time_ms <= {at_ms})"
        )
        jump = (
            "(() => {{const s = document.querySelector('.replay input');"
            "s.value = {0}; s.dispatchEvent(new Event('input'))}})()"
        )
        first_ms, last_ms = page.evaluate(f"[{MARKET}.seen.first_ms, {MARKET}.seen.last_ms]")
        page.evaluate(jump.format(last_ms))
        page.until(f"{MARKET}.seen.time_ms === {last_ms} && {BEST_BID} === '{live}'")
        page.evaluate(jump.format(first_ms + 1000))
        page.until(f"{MARKET}.seen.time_ms === {first_ms + 1000} && {HEAT_MAP}.columns.length > 0")
        page.click(".choice button", "Live")
        page.until(f"{BEST_BID} === '{live}'")
        assert page.unnamed() == []


def test_a_topic_that_a_bridge_fills_shows_the_book_of_its_queue(page: Page, tmp_path: Path) -> None:
    queue = tmp_path / "bus" / "sim"
    simulated_queue(queue, symbols=2, seconds=20, rate=500, kinds="l2,trades")
    with (
        running_server(tmp_path, "--bus", tmp_path / "bus") as server,
        Client(server.url) as client,
    ):
        QueueToTopic(client, QueueToTopicSettings(str(queue), "events", name="b", once=True)).run()
        page.open(f"{server.url}/#/market/sim/SIM0001")
        page.until_text("basis points", ".tiles")
        prices = page.evaluate(PRICES)
        page.write("input[aria-label=Topic]", "events")
        page.press("Enter")
        page.until("location.hash === '#/market/topic%3Aevents'")
        page.until_text("SIM0000 (simulated)", "select")
        page.evaluate("location.hash = '#/market/topic%3Aevents/SIM0001'")
        page.until(f"JSON.stringify({PRICES}) === {json.dumps(json.dumps(prices, separators=(',', ':')))}")
        page.until(f"{HEAT_MAP}.columns.length > 20")
        page.click(".choice button", "Replay")
        page.until(f"{MARKET}.replay.at > {MARKET}.seen.first_ms")
        page.evaluate("location.hash = '#/market/topic%3Anothing'")
        page.until_text("The market cannot be shown")
        assert page.unnamed() == []


def test_a_spread_around_a_price_of_0_is_no_share_of_it(page: Page, tmp_path: Path) -> None:
    with Queue.open_publisher(tmp_path / "bus" / "power") as writer:
        head = new_headers(1, BookEventType.SNAPSHOT, BookMode.L2, venue_id=1, market_id=7)
        body = np.zeros(1, L2_SNAPSHOT)
        body["price_scale"], body["bid_count"], body["ask_count"] = 1, 1, 1
        levels = np.array([(-5, 3), (5, 2)], dtype=LEVEL)
        writer.append(TypeId.BOOK_EVENT, bytes(next(iter(pack_l2_snapshots(head, body, levels)))))
    with running_server(tmp_path, "--bus", tmp_path / "bus") as server:
        page.open(f"{server.url}/#/market/power")
        page.until_text("no share of a price at or below 0", ".tiles")
        assert "Infinity" not in page.text(".market") and "NaN" not in page.text(".market")


def test_a_queue_without_books_and_a_server_without_queues_say_so(page: Page, tmp_path: Path) -> None:
    with Queue.open_publisher(tmp_path / "bus" / "q") as writer:
        writer.append(1, b"no market data")
    with running_server(tmp_path, "--bus", tmp_path / "bus") as server:
        page.open(f"{server.url}/#/market")
        page.until_text("No order books")
    with running_server(tmp_path) as server:
        page.open(f"{server.url}/#/market")
        page.until_text("everlog serve --bus")
