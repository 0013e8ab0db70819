"""What a snapshot stores of a topic with very many keys, leases and consumers: it is collected in turns."""

import time
from pathlib import Path
from typing import Any

import pytest

from everlog.api_types import TopicType
from everlog.job_types import JobMembers
from everlog.topics import record_of
from everlog.topics.config import Durability
from everlog.topics.storage import checkpoint
from everlog.topics.storage.control import ConsumerDelete, Jobs, Rows, decode, encode, encode_in_pieces
from tests.support.engines import EngineHarness
from tests.support.timings import assert_short, repeated_if_slow

BATCH = 500


def filled(root: Path, count: int, durability: Durability = Durability.DISK) -> EngineHarness:
    """An engine with a topic of `count` keys and consumers, and as many leased jobs with options."""
    harness = EngineHarness(root, snapshot_log_bytes=1 << 30, file_bytes=1 << 26)
    harness.put("keyed", durability=durability)
    harness.put("jobs", durability=durability, type=TopicType.QUEUE, leases_durable=True)
    for first in range(0, count, BATCH):
        add(harness, first)
    return harness


def add(harness: EngineHarness, first: int) -> None:
    """Add some keys, consumers and leased jobs."""
    engine, jobs = harness.engine, {}
    for place in range(BATCH):
        name = f"k{first + place}"
        engine.append("keyed", [record_of(1)], idempotency_key=name)
        engine.consumers.put("keyed", name)
        jobs[place] = JobMembers(concurrency_key=name, unique_key=name)
        engine.write()
    engine.append("jobs", [record_of(1)] * BATCH, jobs=jobs)
    engine.claim("jobs", "node", BATCH)
    harness.wait_for(engine.append("keyed", [record_of(0)]).commit)


def known(harness: EngineHarness) -> list[Any]:
    """What must be there again after a restart."""
    topics = harness.engine._core.topics
    keyed, jobs = topics["keyed"], topics["jobs"]
    assert keyed.consumers is not None and jobs.leases is not None and jobs.leases.board is not None
    return [
        [(key.key, key.first_seq, key.count) for _, keys in keyed.keys.slices() for key in keys],
        list(keyed.consumers.by_name),
        sorted(jobs.leases.stored()),
        sorted(jobs.leases.board.options),
        sorted(jobs.leases.board.unique),
    ]


@repeated_if_slow
def test_no_turn_of_a_checkpoint_is_long_however_many_keys_and_leases_a_topic_has(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    harness = filled(tmp_path_factory.mktemp("many"), 20_000)
    checkpointer = harness.engine._checkpointer
    assert checkpointer is not None
    topics = [harness.engine._core.topics[name] for name in ("keyed", "jobs")]
    turns: list[float] = []
    checkpointer.start()
    while not all(topic.snapshot_record is not None and topic.snapshot_record.pieces for topic in topics):
        started_ns = time.thread_time_ns()
        harness.engine.poll()
        if any(topic.snapshot_record is not None for topic in topics):  # otherwise segments are written
            turns.append((time.thread_time_ns() - started_ns) / 1e6)
    assert len(turns) > 30
    assert_short(turns)
    while checkpointer._busy:
        harness.engine.poll()
    assert checkpointer.last_error is None


@pytest.mark.parametrize("killed_at", [1, 5, 9, 13, 18, 25, 40])
def test_what_happens_while_a_topic_is_collected_is_there_after_a_kill(
    tmp_path: Path, killed_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_RECORDS_A_TURN", 1)
    harness = filled(tmp_path, 2 * BATCH)
    harness.checkpoint()
    add(harness, 2 * BATCH)
    checkpointer = harness.engine._checkpointer
    assert checkpointer is not None
    checkpointer.start()
    turn = 0
    while checkpointer._busy and turn < killed_at:
        harness.engine.poll()
        turn += 1
        claimed = harness.engine.claim("jobs", "node", 1)
        harness.wait_for(harness.engine.append("jobs", [record_of(turn)]).commit)
        harness.wait_for(harness.engine.ack("jobs", "node", [turn]).commit)
        harness.wait_for(harness.engine.append("keyed", [record_of(1)], idempotency_key=f"t{turn}").commit)
        harness.wait_for(harness.engine.consumers.delete("keyed", f"k{turn}").commit)
        del claimed
    before = known(harness)
    harness.crash()
    assert known(harness) == before
    harness.checkpoint(2)
    harness.crash()
    assert known(harness) == before


def test_a_snapshot_of_pieces_is_read_as_one_of_a_whole() -> None:
    for count in (0, 1, 15, 16, 17, 70_000):
        whole = Jobs([], list(range(count)))
        rows = Rows()
        for first in range(0, count, 66_000):
            rows.add(whole.cancelled[first : first + 66_000])
        pieces = encode_in_pieces(Jobs([]), {"cancelled": rows} if count else {})
        assert decode(b"".join(pieces), Jobs) == whole
    assert encode_in_pieces(ConsumerDelete("c"), {}) == [encode(ConsumerDelete("c"))]
