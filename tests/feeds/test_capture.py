"""A connection over real sockets to a venue on loopback that loses, repeats, delays, cuts and refuses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from everlog.bus.feed_status import read_statuses
from everlog.errors import InvalidConfig, InvalidSource
from everlog.feeds.config import read_config
from everlog.feeds.connection import FeedRunner
from everlog.feeds.frames import FrameKind, decoded_again, read_raw
from everlog.feeds.recordings import read_frames
from everlog.feeds.rehearsal import Faults, Rehearsal, parse_faults
from everlog.feeds.venue import BookDiff
from everlog.market.protocol import MessageFlags, TypeId
from everlog.market.symbols import load_symbols
from everlog.queue import Queue
from tests.support.feed_runs import RECORDINGS, FedBooks, running, sides_of, true_sides, until_live

Message = tuple[int, bytes, int]
CUTS = Faults(cut=0.004)
ALL = Faults(drop=0.01, duplicate=0.01, reorder=0.01, cut=0.003, refuse=0.3)


def events_of(root: Path) -> list[Message]:
    with Queue.open_subscriber(root / "streams/raw/feed/queue", None, "earliest") as reader:
        return [(view.type_id, bytes(view.payload), view.flags) for view in reader]


CALM_FROM = 0.6
"""From this part of a recording on nothing goes wrong, so that what went wrong before is seen and mended."""
CHECKED_LEVELS = {"kraken": 10, "okex": 25}
"""How far a checksum reaches: what is lost behind it shows when it comes nearer."""


async def captured(server: Rehearsal, root: Path, symbols: Sequence[str]) -> FeedRunner:
    """Run until everything was played and the books of the queue are those of the venue."""
    depth = CHECKED_LEVELS.get(server.venue.name, 10**6)
    async with running(server, root) as runner:
        while server.position < CALM_FROM * len(server.frames):
            await asyncio.sleep(0.01)
        server.faults = Faults()
        await until_live(server, runner)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            books = FedBooks(server.venue.name)
            books.apply(events_of(root))
            wrong = [
                symbol
                for symbol in symbols
                if sides_of(books.book(symbol), depth)
                != tuple(side[:depth] for side in true_sides(server.books[symbol]))
            ]
            if not wrong:
                return runner
            await asyncio.sleep(0.05)
        pytest.fail(f"the books of {wrong} are not those of the venue")


def busy_symbols(server: Rehearsal) -> list[str]:
    """The symbols whose books change when nothing goes wrong any more."""
    later = server.frames[int(CALM_FROM * len(server.frames)) + 60 :]
    items = [item for one in later if one.kind == "frame" for item in server.venue.decode(one.body)]
    found = {item.symbol for item in items if isinstance(item, BookDiff)}
    assert len(found) >= 2
    return sorted(found)


@pytest.mark.parametrize(
    ("name", "faults"),
    # Coinbase numbers no change of its books: what is lost inside a connection cannot be seen there.
    [("kraken", Faults()), ("kraken", ALL), ("okx", ALL), ("four", ALL), ("coinbase", CUTS)],
)
def test_books_are_those_of_the_venue_whatever_goes_wrong(tmp_path: Path, name: str, faults: Faults) -> None:
    recording = RECORDINGS[name]

    async def run() -> None:
        server = Rehearsal(recording.venue, recording.paths(), speed=0, faults=faults, seed=3)
        runner = await captured(server, tmp_path, busy_symbols(server))
        breaks = runner.session.counts
        if faults == Faults():
            assert not any(name.startswith("gaps_") and name != "gaps_stop" for name in breaks)
        if server.played["cut"]:
            assert runner.counts["connects"] == server.played["cut"] + 1
            assert breaks["gaps_disconnect"] == server.played["cut"] * len(server.symbols)
        if server.played["refuse"]:
            assert runner.counts["rest_418"] + runner.counts["rest_429"] + runner.counts["rest_failures"] > 0
        events = events_of(tmp_path)
        gaps = sum(kind == TypeId.FEED_GAP for kind, _, _ in events)
        assert gaps == sum(state.counts["gaps"] for state in runner.session.symbols.values())
        resets = sum(bool(flags & MessageFlags.GAP_BEFORE) for _, _, flags in events)
        assert resets >= len(server.symbols), "the end of the capture is a gap too"
        again = decoded_again(read_raw(tmp_path / "streams/frames/feed/queue"), server.venue, server.symbols)
        assert [message for messages in again for message in messages] == events

    asyncio.run(run())


def test_raw_frames_are_the_venue_s_own_bytes(tmp_path: Path) -> None:
    recording = RECORDINGS["okx"]

    async def run() -> None:
        server = Rehearsal(recording.venue, recording.paths(), speed=0)
        await captured(server, tmp_path, server.symbols)

    asyncio.run(run())
    frames = [*read_raw(tmp_path / "streams/frames/feed/queue")]
    assert len({frame.connection_id for frame in frames}) == 1
    sent = [line.body for line in recording.lines()]
    assert [frame.body for frame in frames if frame.kind is FrameKind.FRAME] == sent
    stamps = [frame.received_ns for frame in frames]
    assert stamps == sorted(stamps)


def test_a_feed_tells_the_catalogue_what_the_venue_says_of_its_symbols(tmp_path: Path) -> None:
    recording = RECORDINGS["four"]

    async def run() -> list[str]:
        server = Rehearsal(recording.venue, recording.paths(), speed=0)
        async with running(server, tmp_path) as runner:
            await until_live(server, runner)
            path = tmp_path / "streams/raw/feed/queue"
            async with asyncio.timeout(30):
                while any(row.tick_size is None for row in load_symbols(path).versions):
                    await asyncio.sleep(0.02)
        return server.symbols

    symbols = asyncio.run(run())
    found = load_symbols(tmp_path / "streams/raw/feed/queue").versions
    assert sorted({row.exchange_symbol for row in found}) == sorted(symbols)
    assert all(row.exchange == recording.venue and row.is_current for row in found)
    assert all(row.tick_size is not None and row.tick_size < 1 for row in found)


def test_a_silent_venue_is_a_gap_and_a_new_connection(tmp_path: Path) -> None:
    recording = RECORDINGS["okx"]

    async def run() -> FeedRunner:
        server = Rehearsal(recording.venue, recording.paths(), speed=0)
        async with running(server, tmp_path, stale_s=0.2) as runner:
            async with asyncio.timeout(30):
                while runner.session.counts["disconnects_stale"] < 2:
                    await asyncio.sleep(0.02)
                await until_live(server, runner)
        return runner

    runner = asyncio.run(run())
    assert runner.session.counts["gaps_stale"] >= 2 * len(recording.symbols)


def test_a_connection_is_replaced_at_its_age(tmp_path: Path) -> None:
    recording = RECORDINGS["okx"]

    async def run() -> FeedRunner:
        server = Rehearsal(recording.venue, recording.paths(), speed=10)
        async with running(server, tmp_path, max_age_s=0.3) as runner:
            await until_live(server, runner)
        return runner

    runner = asyncio.run(run())
    assert runner.session.counts["disconnects_age"] >= 1
    assert runner.counts["connects"] >= 2


def test_nothing_listens_and_the_feed_goes_on_trying(tmp_path: Path) -> None:
    recording = RECORDINGS["okx"]

    async def run() -> None:
        server = Rehearsal(recording.venue, recording.paths(), speed=0)
        async with running(server, tmp_path) as runner:
            await until_live(server, runner)
            await server.close()
            async with asyncio.timeout(30):
                while runner.counts["connect_failures"] < 3:
                    await asyncio.sleep(0.02)
        (status,) = read_statuses(tmp_path)
        assert (status.name, status.is_connected) == ("feed", False)
        assert status.counts["connect_failures"] >= 3
        assert status.clock_offset_ms is not None
        assert set(status.symbols) == set(recording.symbols)

    asyncio.run(run())


def test_a_configuration_names_its_faults(tmp_path: Path) -> None:
    path = tmp_path / "feeds.toml"
    good = 'root = "bus"\n[[feed]]\nvenue = "kraken"\nsymbols = ["XBT/USD"]\n'
    path.write_text(good)
    assert read_config(path).root == str(tmp_path / "bus")
    for wrong, words in (
        (good.replace("kraken", "krakow"), "unknown venue 'krakow'"),
        (good + "speed = 3\n", "unknown field"),
        (good + 'channels = ["books"]\n', "channels are some of book"),
        (good.replace('["XBT/USD"]', "[]"), "empty or named twice"),
        (good + good.partition("\n")[2], "two feeds are named 'kraken'"),
        (good + 'name = "../x"\n', "must not contain a slash"),
        ("root", "feed run -h"),
    ):
        path.write_text(wrong)
        with pytest.raises(Exception, match=words):
            read_config(path)


def test_symbols_beyond_the_venue_s_limit_become_connections_of_their_own(tmp_path: Path) -> None:
    symbols = [f"S{number}" for number in range(101)]
    path = tmp_path / "feeds.toml"
    path.write_text(f'root = "bus"\n[[feed]]\nvenue = "kraken"\nsymbols = {symbols}\n')
    parts = read_config(path).connections()
    assert [(part.name, len(part.symbols)) for part in parts] == [
        ("kraken-1", 50),
        ("kraken-2", 50),
        ("kraken-3", 1),
    ]
    assert [symbol for part in parts for symbol in part.symbols] == symbols


def test_faults_and_recordings_that_cannot_be_are_refused(tmp_path: Path) -> None:
    assert parse_faults(["drop=0.5", "delay_s=1"]) == Faults(drop=0.5, delay_s=1.0)
    for text in ("drop", "drop=2", "drip=0.1", "cut=x", "delay_s=-1"):
        with pytest.raises(InvalidConfig):
            parse_faults([text])
    path = tmp_path / "frames"
    path.write_text('1618678132.8: {"a": 1}\nnonsense\n')
    with pytest.raises(InvalidSource, match=":2: the line is neither a frame"):
        list(read_frames(path))


def test_a_recording_with_damaged_frames_is_played_and_one_of_another_venue_refused(tmp_path: Path) -> None:
    recording = RECORDINGS["okx"]
    path = tmp_path / "okx.frames"
    lines = [b"%d.0: %s" % (one.received_ns // 10**9, one.body) for one in recording.lines()]
    lines[100], lines[200] = lines[100][:-30], lines[200].replace(b'"bids":[["', b'"bids":[["x', 1)
    path.write_bytes(b"\n".join(lines))

    async def run() -> FeedRunner:
        server = Rehearsal(recording.venue, [path], speed=0)
        async with running(server, tmp_path) as runner:
            await until_live(server, runner)
        return runner

    assert asyncio.run(run()).session.counts["gaps_bad_frame"] >= len(recording.symbols)
    with pytest.raises(InvalidSource, match="no frame holds a book of kraken"):
        Rehearsal("kraken", [path])
    cut = tmp_path / "cut.gz"
    cut.write_bytes(recording.paths()[0].read_bytes()[:-20])
    with pytest.raises(InvalidSource, match="cut off"):
        Rehearsal(recording.venue, [cut])
