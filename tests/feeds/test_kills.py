"""`everlog feed run` whose connection is killed at random instants: frames and books stay consistent."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from everlog.feeds.config import read_config
from everlog.feeds.encoding import FeedGap
from everlog.feeds.frames import FrameKind, decoded_again, read_raw
from everlog.feeds.session import FeedSession
from everlog.feeds.venues import VENUES
from everlog.market.protocol import TypeId
from everlog.queue import Queue
from tests.support.feed_runs import RECORDINGS, FedBooks, sides_of

KILLS = 4
PATIENCE_S = 60.0


@contextmanager
def everlog(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process of the command line, ended by SIGTERM."""
    process = subprocess.Popen(
        [sys.executable, "-m", "everlog", *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(30) == 0
        assert process.stdout is not None
        process.stdout.close()


def configuration(venue: subprocess.Popen[str]) -> str:
    """What `feed rehearse` prints: a feed of itself."""
    assert venue.stdout is not None
    lines = [venue.stdout.readline() for _ in range(5)]
    assert lines[0] == "[[feed]]\n"
    return "".join(lines)


def status_of(root: Path) -> dict[str, object]:
    found: list[dict[str, object]] = json.loads(
        subprocess.run(
            [sys.executable, "-m", "everlog", "feed", "status", str(root), "--json"],
            capture_output=True,
            check=True,
            text=True,
        ).stdout
    )
    return found[0]


def pid_of(path: Path, other_than: int) -> int:
    """The process of the connection, once it has received frames."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if path.exists():
            status = json.loads(path.read_bytes())
            if status["pid"] != other_than and status["counts"].get("frames", 0) > 0:
                return int(status["pid"])
        time.sleep(0.05)
    pytest.fail(f"no process wrote {path}")


@pytest.mark.timeout(240)
def test_a_killed_connection_leaves_a_gap_and_consistent_queues(tmp_path: Path) -> None:
    recording = RECORDINGS["coinbase"]
    choose = random.Random(7)
    status_path = tmp_path / "bus/streams/raw/coinbase/status.json"
    with everlog(
        "feed", "rehearse", str(recording.paths()[0]), "--venue", "coinbase", "--speed", "5"
    ) as venue:
        (tmp_path / "feeds.toml").write_text(
            f'root = "bus"\n{configuration(venue)}segment_mib = 1\nbackoff_max_s = 0.2\n'
        )
        with everlog("feed", "run", str(tmp_path / "feeds.toml")):
            pid = 0
            for _ in range(KILLS):
                pid = pid_of(status_path, pid)
                time.sleep(choose.uniform(0.0, 0.5))
                os.kill(pid, signal.SIGKILL)
            pid_of(status_path, pid)
            assert status_of(tmp_path / "bus")["is_connected"]
    (feed,) = read_config(tmp_path / "feeds.toml").connections()
    assert set(feed.symbols) == set(recording.symbols)
    check_queues(tmp_path / "bus/streams", feed.symbols)


def check_queues(streams: Path, symbols: list[str]) -> None:
    frames = [*read_raw(streams / "frames/coinbase/queue")]
    starts = [frame.received_ns for frame in frames if frame.kind is FrameKind.CONNECTED]
    assert len(starts) == KILLS + 1
    with Queue.open_subscriber(streams / "raw/coinbase/queue", None, "earliest") as reader:
        events = [(view.type_id, bytes(view.payload), view.flags) for view in reader]
    gaps = [
        msgspec.json.decode(payload, type=FeedGap) for kind, payload, _ in events if kind == TypeId.FEED_GAP
    ]
    told = {(gap.connection, gap.symbol) for gap in gaps if gap.reason == "connect"}
    assert told == {(start, symbol) for start in starts[1:] for symbol in symbols}
    # What was decoded is what the frames say, but for the events of the frame a kill fell upon.
    again = [messages for messages in decoded_again(iter(frames), VENUES["coinbase"](), symbols) if messages]
    place, missing = 0, 0
    for messages in again:
        found = events[place : place + len(messages)]
        if found == messages:
            place += len(messages)
            continue
        kept = next((n for n in range(len(messages)) if events[place + n] != messages[n]), 0)
        place += kept
        missing += 1
    assert place == len(events) and missing <= KILLS
    # And the books of the last connection are those of its frames.
    session, truth, books = (
        FeedSession(VENUES["coinbase"](), symbols),
        FedBooks("coinbase"),
        FedBooks("coinbase"),
    )
    session.connected(starts[-1], is_continued=False)
    for frame in frames:
        if frame.connection_id == starts[-1] and frame.kind is FrameKind.FRAME:
            truth.apply(session.frame(frame.body, frame.received_ns))
    stop = [n for n, event in enumerate(events) if event[0] == TypeId.FEED_GAP][-len(symbols)]
    books.apply(events[:stop])
    for symbol in symbols:
        assert sides_of(books.book(symbol)) == sides_of(truth.book(symbol))
