"""`router.toml`: required feeds, and a router that refuses to start without them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from everlog.bus import IpcLayout, StaticFeeds
from everlog.clock import TestClock
from everlog.errors import EverlogError, InvalidConfig, QueueNotFound
from everlog.queue import Queue


def write(path: Path, text: str) -> Path:
    file = path / "router.toml"
    file.write_text(text)
    return file


def make(layout: IpcLayout, venue: str) -> None:
    Queue.open_publisher(layout.streams().raw_queue_dir(venue), segment_size=1024).close()


def test_every_missing_feed_is_named_at_once(tmp_path: Path) -> None:
    layout = IpcLayout(tmp_path)
    make(layout, "binance_spot")
    feeds = StaticFeeds.load(write(tmp_path, '[feeds]\nrequired = ["binance_spot", "okx", "coinbase"]'))
    with pytest.raises(QueueNotFound, match=r"2 of 3 required feeds are missing: okx .*, coinbase "):
        feeds.require(layout)
    make(layout, "okx")
    make(layout, "coinbase")
    assert list(feeds.require(layout)) == ["binance_spot", "okx", "coinbase"]
    assert feeds.require(layout)["okx"] == tmp_path / "streams/raw/okx/queue"


def test_a_wait_ends_when_the_feed_appears_or_the_time_is_over(tmp_path: Path) -> None:
    layout = IpcLayout(tmp_path)
    feeds = StaticFeeds.load(write(tmp_path, '[feeds]\nrequired = ["late"]\nwait_s = 60'))
    clock = TestClock()
    begun_ns = clock.monotonic_ns()
    with pytest.raises(QueueNotFound):
        feeds.require(layout, clock=clock)
    assert clock.monotonic_ns() - begun_ns >= 60 * 10**9
    timer = threading.Timer(0.05, make, (layout, "late"))
    timer.start()
    assert list(feeds.require(layout)) == ["late"]
    timer.join()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[feeds]",
        "feeds = 7",
        "[feeds]\nrequired = []",
        "[feeds]\nrequired = 'x'",
        "[feeds]\nrequired = [1]",
        "[feeds]\nrequired = ['x']\nwait_s = -1",
        "[feeds]\nrequired = ['x']\nwait_s = true",
        "[feeds]\nrequired = ['x']\nwiat_s = 1",
        "[feed]\nrequired = ['x']",
        "[feeds]\nrequired = ['../x']",
        "not toml",
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(EverlogError):
        StaticFeeds.load(write(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"router\.toml"):
        StaticFeeds.load(tmp_path / "router.toml")
