"""What a topic keeps: caps by records and bytes, refusing, age, and floors over restarts."""

from __future__ import annotations

import errno
import random
import time
from pathlib import Path

import pytest

from everlog.errors import RecordTooLarge, TopicFull
from everlog.topics import TopicConfig
from tests.support.effort import effort
from tests.support.engines import NS_PER_MS, EngineHarness, records, sized
from tests.support.timings import assert_short, repeated_if_slow

CLASSES = ("ephemeral", "memory", "disk", "fsync")
LOGGED = ("memory", "disk", "fsync")


@pytest.fixture
def harness(tmp_path: Path) -> EngineHarness:
    """An empty engine on a disk."""
    return EngineHarness(tmp_path)


# --- Caps that evict -------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", CLASSES)
def test_a_topic_keeps_exactly_its_cap_of_records(harness: EngineHarness, durability: str) -> None:
    harness.put("t", cap_records=3, durability=durability)
    harness.append("t", 1, 2, 3)
    assert harness.gap("t") is None
    harness.append("t", 4)
    assert (harness.values("t"), harness.gap("t")) == ([2, 3, 4], (1, 1, "cap"))
    state = harness.state("t")
    assert (state.count, state.earliest_seq, state.evict_floor, state.head_seq) == (3, 2, 2, 4)


@pytest.mark.parametrize("durability", CLASSES)
def test_a_topic_keeps_at_most_its_cap_of_bytes(harness: EngineHarness, durability: str) -> None:
    harness.put("t", cap_bytes=100, durability=durability)
    harness.append("t", sized(40), sized(30), sized(30))
    assert (harness.state("t").bytes, harness.gap("t")) == (100, None)
    harness.append("t", sized(41))
    assert (harness.seqs("t"), harness.state("t").bytes, harness.gap("t")) == ([3, 4], 71, (1, 2, "cap"))


@pytest.mark.parametrize(
    ("cap_records", "cap_bytes", "kept"), [(3, 100, [8, 9, 10]), (8, 25, [9, 10]), (5, 50, [6, 7, 8, 9, 10])]
)
def test_whichever_cap_is_hit_first_acts(
    harness: EngineHarness, cap_records: int, cap_bytes: int, kept: list[int]
) -> None:
    harness.put("t", cap_records=cap_records, cap_bytes=cap_bytes)
    harness.append_each("t", [sized(10)] * 10)
    assert harness.seqs("t") == kept


def test_a_batch_larger_than_the_cap_is_stored_and_its_oldest_records_are_evicted(
    harness: EngineHarness,
) -> None:
    harness.put("t", cap_records=2)
    answer = harness.append("t", 1, 2, 3, 4, 5)
    assert (answer.first_seq, answer.last_seq) == (1, 5)
    assert (harness.values("t"), harness.gap("t")) == ([4, 5], (1, 3, "cap"))


def test_batches_that_are_pending_together_evict_as_if_they_had_come_one_by_one(
    harness: EngineHarness,
) -> None:
    harness.put("t", cap_records=4, durability="fsync")
    answers = [harness.engine.append("t", records([number])) for number in range(1, 10)]
    assert harness.state("t").head_seq in (0, 9)
    for answer in answers:
        harness.wait_for(answer.commit)
    assert (harness.values("t"), harness.gap("t")) == ([6, 7, 8, 9], (1, 5, "cap"))


@pytest.mark.parametrize("tighter", [{"cap_records": 2}, {"cap_bytes": 20}, {"ttl_ms": 500}])
def test_a_tighter_limit_is_applied_at_once(harness: EngineHarness, tighter: dict[str, int]) -> None:
    harness.append("t", sized(10), sized(10))
    harness.advance_ms(600)
    harness.append("t", sized(10), sized(10))
    harness.put("t", **tighter)
    reason = "ttl" if "ttl_ms" in tighter else "cap"
    assert (harness.seqs("t"), harness.gap("t")) == ([3, 4], (1, 2, reason))


@repeated_if_slow
@pytest.mark.parametrize("caps", [{"cap_records": 10}, {"cap_bytes": 10_000}, {"cap_records": 2_000_000}])
def test_a_tight_cap_on_a_topic_of_millions_takes_a_few_milliseconds(caps: dict[str, int]) -> None:
    harness = EngineHarness(None)
    harness.put("t")
    batch = [sized(20)] * 10_000
    for _ in range(400):
        harness.append("t", *batch)
    began_ns = time.thread_time_ns()
    harness.engine.put_topic("t", TopicConfig(**caps))
    took_ms = (time.thread_time_ns() - began_ns) / 1e6
    left = min(caps.get("cap_records", 1 << 40), caps.get("cap_bytes", 1 << 40) // 20)
    state = harness.state("t")
    assert (state.count, state.earliest_seq) == (left, 4_000_001 - left)
    assert_short([took_ms])


@pytest.mark.parametrize("seed", range(effort(20)))
def test_a_tight_cap_leaves_the_newest_records_that_fit(seed: int) -> None:
    """Against a plain sum over all records, with deleted ones among them."""
    rng = random.Random(seed)
    harness = EngineHarness(None)
    harness.put("t")
    sizes = [rng.choice((2, 3, 50, 400)) for _ in range(rng.choice((1000, 200_000)))]
    for first in range(0, len(sizes), 10_000):
        batch = [
            sized(size, tag=f"{number % 7}") for number, size in enumerate(sizes[first : first + 10_000])
        ]
        harness.append("t", *batch)
    gone = {seq for seq in range(1, len(sizes) + 1) if (seq - 1) % 10_000 % 7 == 3}
    harness.delete("t", match="3")
    cap_records, cap_bytes = rng.choice((0, 5, 70_000)), rng.choice((0, 999, 3_000_000))
    kept: list[int] = []
    held = 0
    for seq in range(len(sizes), 0, -1):
        if seq in gone:
            continue
        held += sizes[seq - 1]
        if (cap_records and len(kept) == cap_records) or (cap_bytes and held > cap_bytes):
            break
        kept.append(seq)
    harness.put("t", cap_records=cap_records, cap_bytes=cap_bytes)
    state = harness.state("t")
    assert (state.count, state.earliest_seq) == (len(kept), kept[-1])


def test_a_looser_limit_brings_nothing_back(harness: EngineHarness) -> None:
    harness.put("t", cap_records=1, ttl_ms=100)
    harness.append("t", 1, 2)
    harness.advance_ms(101)
    harness.put("t")
    assert (harness.values("t"), harness.gap("t")) == ([], (1, 2, "mixed"))


# --- Caps that refuse ------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", CLASSES)
def test_a_full_topic_refuses_and_uses_no_seq(harness: EngineHarness, durability: str) -> None:
    harness.put("t", cap_records=3, discard="reject", durability=durability)
    harness.append("t", 1, 2)
    with pytest.raises(TopicFull):
        harness.engine.append("t", records([3, 4]))
    assert harness.append("t", 3).first_seq == 3
    with pytest.raises(TopicFull):
        harness.engine.append("t", records([4]))
    assert (harness.values("t"), harness.gap("t")) == ([1, 2, 3], None)
    harness.delete("t", before_seq=3)
    assert harness.append("t", 4, 5).first_seq == 4


@pytest.mark.parametrize("durability", CLASSES)
def test_a_refused_batch_leaves_no_trace_in_the_time_of_the_next_record(
    harness: EngineHarness, durability: str
) -> None:
    harness.put("t", cap_records=1, discard="reject", durability=durability)
    harness.append("t", 1)
    begin_ms = harness.now_ms()
    harness.advance_ms(2000)
    with pytest.raises(TopicFull):
        harness.engine.append("t", records([2]))
    harness.clock.set_wall_ns((begin_ms + 500) * NS_PER_MS)
    harness.delete("t", before_seq=2)
    harness.append("t", 3)
    assert [item["$ts"] for item in harness.items("t")] == [begin_ms + 500]


@pytest.mark.parametrize("durability", CLASSES)
def test_a_topic_full_of_bytes_refuses_one_byte_too_many(harness: EngineHarness, durability: str) -> None:
    harness.put("t", cap_bytes=100, discard="reject", durability=durability)
    harness.append("t", sized(60))
    with pytest.raises(TopicFull):
        harness.engine.append("t", [sized(20), sized(21)])
    assert harness.append("t", sized(20), sized(20)).first_seq == 2
    assert harness.state("t").bytes == 100


def test_a_batch_that_can_never_fit_is_too_large_even_if_the_topic_is_full(harness: EngineHarness) -> None:
    harness.put("t", cap_records=3, cap_bytes=100, discard="reject")
    harness.append("t", sized(10), sized(10), sized(10))
    for batch in ([sized(2)] * 4, [sized(101)], [sized(60), sized(60)]):
        with pytest.raises(RecordTooLarge):
            harness.engine.append("t", batch)
    for batch in ([sized(2)] * 3, [sized(100)]):
        with pytest.raises(TopicFull):
            harness.engine.append("t", batch)
    assert harness.state("t").head_seq == 3


def test_records_that_are_not_visible_yet_count_as_room_taken(harness: EngineHarness) -> None:
    harness.put("t", cap_records=3, discard="reject", durability="fsync")
    pending = harness.engine.append("t", records([1, 2, 3]))
    with pytest.raises(TopicFull):
        harness.engine.append("t", records([4]))
    harness.wait_for(pending.commit)
    assert harness.values("t") == [1, 2, 3]


def test_expired_records_make_room_in_a_refusing_topic(harness: EngineHarness) -> None:
    harness.put("t", cap_records=1, discard="reject", ttl_ms=100)
    harness.append("t", 1)
    harness.advance_ms(100)
    with pytest.raises(TopicFull):
        harness.engine.append("t", records([2]))
    harness.advance_ms(1)
    assert harness.append("t", 2).first_seq == 2


# --- Age -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", CLASSES)
def test_a_record_expires_one_millisecond_after_its_ttl(harness: EngineHarness, durability: str) -> None:
    harness.put("t", ttl_ms=1000, durability=durability)
    harness.append("t", 1)
    harness.advance_ms(1000)
    assert (harness.values("t"), harness.gap("t")) == ([1], None)
    harness.advance_ms(1)
    state = harness.state("t")
    assert (state.count, state.bytes, state.earliest_seq, state.evict_floor) == (0, 0, 2, 2)
    assert (harness.values("t"), harness.gap("t")) == ([], (1, 1, "ttl"))


def test_records_deleted_before_they_expired_are_not_part_of_the_floor(harness: EngineHarness) -> None:
    harness.put("t", ttl_ms=100)
    harness.append("t", 1, 2, 3)
    harness.delete("t", before_seq=4)
    harness.advance_ms(200)
    assert (harness.state("t").evict_floor, harness.gap("t")) == (1, None)


def test_a_floor_of_age_is_shown_only_when_it_is_synced(harness: EngineHarness) -> None:
    harness.put("t", ttl_ms=100, durability="fsync")
    harness.append("t", 1)
    harness.advance_ms(101)
    answer = harness.engine.diff("t")
    assert not answer.commit.done
    assert not harness.engine.floor_commit("t").done
    harness.wait_for(answer.commit)
    assert harness.engine.floor_commit("t").done
    harness.lose_power()
    assert harness.gap("t") == (1, 1, "ttl")


def test_reads_go_on_with_a_floor_that_cannot_be_synced_and_a_restart_comes_to_the_same(
    harness: EngineHarness,
) -> None:
    harness.put("t", ttl_ms=100, durability="fsync")
    harness.append("t", 1)
    harness.advance_ms(101)
    harness.disk.fail_when("fdatasync", errno.EIO)
    for _ in range(2):
        assert harness.gap("t") == (1, 1, "ttl")
    harness.lose_power()
    assert harness.gap("t") == (1, 1, "ttl")


def test_a_floor_of_the_cap_is_shown_only_when_it_or_a_reserve_ahead_of_it_is_synced(
    harness: EngineHarness,
) -> None:
    harness.put("t", cap_records=32, durability="disk")
    harness.append("t", *range(32))
    waited = []
    for number in range(8):
        answer = harness.engine.append("t", records([number]))
        harness.engine.write()
        waited.append(not answer.commit.done)
        harness.wait_for(answer.commit)
    assert waited[0], "nothing was reserved before the first eviction"
    assert 1 <= sum(waited) <= 3


# --- Restarts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", LOGGED)
@pytest.mark.parametrize("again", ["restart", "crash", "checkpoint and crash"])
def test_floors_and_reasons_survive(harness: EngineHarness, durability: str, again: str) -> None:
    harness.put("t", durability=durability, cap_records=4, ttl_ms=1000)
    harness.append("t", 1, 2)
    harness.advance_ms(600)
    harness.append("t", 3, 4, 5)  # evicts 1
    harness.advance_ms(600)  # expires 2
    harness.append("t", 6)
    gaps = [(1, 2, "mixed"), (2, 2, "ttl"), None]
    assert [harness.gap("t", cursor) for cursor in range(3)] == gaps
    if again == "checkpoint and crash":
        harness.checkpoint(2)
        again = "crash"
    for _ in range(2):
        getattr(harness, again)()
        assert harness.values("t") == [3, 4, 5, 6]
        assert [harness.gap("t", cursor) for cursor in range(3)] == gaps


@pytest.mark.parametrize("seed", range(8))
def test_no_power_loss_takes_a_floor_back_that_a_reader_was_shown(tmp_path: Path, seed: int) -> None:
    harness = EngineHarness(tmp_path, seed)
    for durability in ("disk", "fsync"):
        harness.put(durability, durability=durability, cap_records=40)
        harness.append_each(durability, range(seed, 60))
    shown = {durability: harness.state(durability) for durability in ("disk", "fsync")}
    harness.lose_power()
    for durability, before in shown.items():
        after = harness.state(durability)
        assert after.evict_floor >= before.evict_floor
        assert after.earliest_seq >= before.earliest_seq
        assert after.head_seq >= before.head_seq
    assert harness.state("fsync").count == 40


def test_expired_records_do_not_come_back_when_the_clock_of_the_next_start_is_wrong(
    harness: EngineHarness,
) -> None:
    harness.put("t", ttl_ms=1000, durability="fsync")
    harness.append("t", 1)
    harness.advance_ms(1001)
    assert harness.values("t") == []
    harness.clock.set_wall_ns(harness.clock.wall_ns() - 10_000_000_000)
    harness.crash()
    assert (harness.values("t"), harness.gap("t")) == ([], (1, 1, "ttl"))


def test_records_that_expire_while_nothing_runs_are_gone_with_a_floor(harness: EngineHarness) -> None:
    harness.put("t", ttl_ms=1000)
    harness.append("t", 1, 2)
    harness.engine.close()
    harness.advance_ms(1001)
    harness.open_with()
    assert (harness.values("t"), harness.gap("t"), harness.state("t").head_seq) == ([], (1, 2, "ttl"), 2)
