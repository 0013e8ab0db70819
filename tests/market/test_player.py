"""Recordings at their own speed, on a clock that a test moves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from everlog.clock import TestClock
from everlog.errors import InvalidConfig, SnapshotGap
from everlog.market.book_set import BookSet, BookSettings
from everlog.market.merge import MergedBatch
from everlog.market.pacing import AS_FAST_AS_POSSIBLE, parse_speed
from everlog.market.player import Player
from everlog.market.protocol import BookEventType, MessageFlags, TypeId
from everlog.market.replay import Replay
from everlog.market.venues.simulated import SimulatedVenue
from everlog.market.warm_start import books_at
from everlog.queue import Queue
from tests.support.book_twins import l2_record
from tests.support.market_queues import MARKETS, SECOND_NS, START_NS, write_market_queue


def numbered(path: Path, times_ns: list[int], market: int = 7) -> Replay:
    """A queue whose messages are levels with the price of their number."""
    with Queue.open_publisher(path) as writer:
        for number, time_ns in enumerate(times_ns):
            kind = BookEventType.DIFF if number else BookEventType.SNAPSHOT
            payload = l2_record(kind, [(100 + number, 1)], [], market=(1, market), times_ns=(time_ns, 0))
            writer.append(TypeId.BOOK_EVENT, payload, time_ns)
    return Replay(str(path))


def taken(player: Player) -> list[MergedBatch]:
    batches = []
    while (batch := player.take()) is not None:
        batches.append(batch)
    return batches


def times(batches: list[MergedBatch]) -> list[int]:
    return [time for batch in batches for time in batch.timestamp_ns.tolist()]


def apply(books: BookSet, batches: list[MergedBatch]) -> None:
    """What a live reader does with what was published."""
    for batch in batches:
        books.apply_packed(batch.packed.take(batch.type_id == TypeId.BOOK_EVENT))


def payloads(books: BookSet) -> dict[object, bytes]:
    return {market: book.snapshot_payload() for market, book in books.books.items()}


@pytest.mark.parametrize("speed", [0.5, 1.0, 1000.0])
def test_messages_come_with_their_spacing_divided_by_the_speed(tmp_path: Path, speed: float) -> None:
    begin = 1_700_000_000 * SECOND_NS
    stamps = [begin, begin + SECOND_NS, begin + SECOND_NS, begin + 5 * SECOND_NS]
    clock = TestClock()
    player = Player([numbered(tmp_path, stamps)], speed=speed, clock=clock)
    assert times(taken(player)) == stamps[:1]
    assert player.wait_s() == pytest.approx(1 / speed)
    clock.advance_ns(int(SECOND_NS / speed) - 1)
    assert taken(player) == []
    clock.advance_ns(1)
    assert times(taken(player)) == stamps[1:3]
    clock.advance_ns(int(9 * SECOND_NS / speed))
    assert times(taken(player)) == stamps[3:]
    assert player.is_done and player.wait_s() is None and player.status()["state"] == "done"


def test_several_sources_come_in_the_order_of_time_with_their_own_numbers_and_flags(tmp_path: Path) -> None:
    replays = [numbered(tmp_path / "a", [10, 30]), numbered(tmp_path / "b", [20, 40], market=9)]
    batches = taken(Player(replays, speed=AS_FAST_AS_POSSIBLE))
    found = [(s, q) for one in batches for s, q in zip(one.source.tolist(), one.seq.tolist(), strict=True)]
    assert found == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_pause_resume_and_another_speed_hold_from_the_moment_they_are_given(tmp_path: Path) -> None:
    clock = TestClock()
    begin = 1_700_000_000 * SECOND_NS
    stamps = [begin + second * SECOND_NS for second in range(10)]
    player = Player([numbered(tmp_path, stamps)], clock=clock)
    clock.advance_ns(2 * SECOND_NS)
    assert len(times(taken(player))) == 3
    assert player.command("pause")["state"] == "paused"
    clock.advance_ns(100 * SECOND_NS)
    assert taken(player) == [] and player.wait_s() is None
    assert player.command("resume")["state"] == "playing"
    assert taken(player) == [] and player.wait_s() == pytest.approx(1)
    player.command("speed 4")
    clock.advance_ns(SECOND_NS // 2)
    assert times(taken(player)) == stamps[3:5]
    assert player.command("speed max")["speed"] == "max"
    assert times(taken(player)) == stamps[5:]


def test_a_loop_begins_again_with_a_reset_of_what_was_published(tmp_path: Path) -> None:
    clock = TestClock()
    replay = numbered(tmp_path, [SECOND_NS, 2 * SECOND_NS])
    player = Player([replay], is_looping=True, clock=clock)
    books = BookSet()
    apply(books, taken(player))
    clock.advance_ns(SECOND_NS)
    apply(books, taken(player))
    assert (player.loops, player.is_done) == (1, False)
    assert [level["price"] for level in books.books[(1, 7)].bids()] == [100]  # type: ignore[index]
    clock.advance_ns(SECOND_NS)
    apply(books, taken(player))
    assert player.loops == 2
    player.command("loop off")
    clock.advance_ns(SECOND_NS)
    taken(player)
    assert player.is_done


@pytest.mark.parametrize("kind", ["l2", "l3"])
def test_a_start_and_a_seek_bring_the_books_of_that_time_to_any_reader(tmp_path: Path, kind: str) -> None:
    if kind == "l2":
        write_market_queue(str(tmp_path))
    else:
        venue = SimulatedVenue(3, seed=5, kinds=("l3",), resting_orders=20, block_events=300)
        with Queue.open_publisher(tmp_path, segment_size=1 << 20) as writer:
            for block in venue.blocks(2000):
                block.append_to(writer)
    replay = Replay(str(tmp_path))
    stamps = np.concatenate([some.timestamp_ns.copy() for some in replay.batches()])
    first, later, earlier = (int(stamps[len(stamps) * part // 10]) for part in (5, 8, 2))
    clock = TestClock()
    player = Player([replay], start_ns=first, clock=clock, speed=1000)
    reader = BookSet(BookSettings())  # strict: it stops at a gap
    clock.advance_ns((later - first) // 3000)
    apply(reader, taken(player))
    for sought in (later, earlier, 0):
        if sought >= first:
            player.seek(sought)
        else:
            player.close()
            player = Player([replay], start_ns=sought, clock=clock, speed=1000)
            reader = BookSet(BookSettings())
        begun = taken(player)
        apply(reader, begun)
        if sought:
            expected = books_at([replay], player.position_ns + 1, BookSettings())
            assert expected is not None
            assert payloads(reader) == payloads(expected)
    clock.advance_ns(int(stamps[-1]))
    apply(reader, taken(player))
    expected = books_at([replay], int(stamps[-1]) + 1, BookSettings())
    assert expected is not None and payloads(reader) == payloads(expected)


def test_a_seek_back_within_a_run_gives_the_books_again(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path))
    replay = Replay(str(tmp_path))
    player = Player([replay], speed=AS_FAST_AS_POSSIBLE)
    reader = BookSet()
    apply(reader, taken(player))
    at_end = payloads(reader)
    player.seek(START_NS)
    first = player.take()
    assert first is not None
    apply(reader, [first])
    apply(reader, taken(player))
    assert payloads(reader) == at_end
    flags = first.flags[: len(MARKETS)].tolist()
    assert all(flag & MessageFlags.LAST_OF_EVENT for flag in flags)


def test_a_start_without_known_books_is_refused_unless_it_may_be_cold(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path))
    (tmp_path / "000000000.q").unlink()
    replay, start_ns = Replay(str(tmp_path)), START_NS + 15 * SECOND_NS
    with pytest.raises(SnapshotGap, match="--cold"):
        Player([replay], start_ns=start_ns)
    cold = taken(Player([replay], start_ns=start_ns, is_cold=True, speed=AS_FAST_AS_POSSIBLE))
    assert times(cold)[0] >= start_ns


def test_only_what_is_chosen_is_played(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path))
    player = Player(
        [Replay(str(tmp_path)).symbols("9")],
        start_ns=START_NS,
        end_ns=START_NS + SECOND_NS,
        speed=AS_FAST_AS_POSSIBLE,
    )
    books = BookSet()
    batches = taken(player)
    apply(books, batches)
    assert {market[1] for market in books.books} == {9}
    assert min(times(batches)) >= START_NS and max(times(batches)) < START_NS + SECOND_NS


@pytest.mark.parametrize(
    ("line", "words"),
    [("stop", "there are pause"), ("speed 0", "above 0"), ("seek 1", "outside"), ("loop", "loop on")],
)
def test_a_line_that_is_no_command_is_refused(tmp_path: Path, line: str, words: str) -> None:
    player = Player([numbered(tmp_path, [5, 6])], start_ns=5)
    with pytest.raises(InvalidConfig, match=words):
        player.command(line)


@pytest.mark.parametrize("text", ["0", "-1", "1001", "fast", "nan"])
def test_speeds_are_above_0_and_up_to_1000(text: str) -> None:
    with pytest.raises(InvalidConfig):
        parse_speed(text)
    assert parse_speed("max") == AS_FAST_AS_POSSIBLE and parse_speed("2.5") == 2.5
