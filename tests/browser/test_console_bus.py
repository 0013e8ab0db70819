"""The page of queues in a real browser: writers, readers with their lag, and messages as hex and text."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlog.queue import Queue
from tests.browser.devtools import Page
from tests.browser.test_console_shell import keep_picture, shown_width
from tests.support.server_processes import running_server

pytestmark = pytest.mark.browser


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


def test_a_server_without_a_bus_directory_says_how_to_name_one(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        page.open(f"{server.url}/#/bus")
        page.until_text("everlog serve --bus")
