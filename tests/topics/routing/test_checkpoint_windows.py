"""Copying while a checkpoint is under way: whenever the process dies, no copy that was seen is lost.

The engine checkpoints all the time, and its jobs run only when the test lets them, so that records are
written, copied and deleted in every window between two steps of a checkpoint.
"""

from __future__ import annotations

import json
import os
import random
from contextlib import suppress
from pathlib import Path

import pytest

from everlog.clock import TestClock
from everlog.errors import TopicFull
from everlog.topics import Engine, NewRecord, TopicConfig
from everlog.topics.config import Discard, Durability
from everlog.topics.routing.definitions import Guarantee, RouterConfig
from tests.support.effort import effort
from tests.support.engines import EngineHarness, open_engine, parse

SEEDS = int(os.environ.get("ROUTER_SEEDS", effort(40)))
Copy = tuple[int, int, int]  # seq, time, number


class Windows:
    """One data directory over several lives."""

    def __init__(self, path: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.path = str(path)
        self.number = 0
        self.seen: dict[str, dict[int, Copy]] = {"b": {}, "c": {}}
        self.sent: list[int] = []
        self.clock = TestClock()
        self.engine = self._open()
        self._build()

    def _open(self) -> Engine:
        return open_engine(
            self.path,
            clock=self.clock,
            shards=self.rng.randint(1, 3),
            file_bytes=4096,
            segment_max_events=5,
            snapshot_log_bytes=self.rng.choice((1, 300, 3000)),
        )

    def _build(self) -> None:
        engine, rng = self.engine, self.rng
        classes = (Durability.MEMORY, Durability.DISK, Durability.FSYNC)
        engine.wait_for(engine.put_topic("a", TopicConfig(durability=rng.choice(classes))).commit)
        self._set_cap("b", rng.choice(classes))
        for name, source, dest, guarantee in (
            ("ab", "a", "b", rng.choice(list(Guarantee))),
            ("bc", "b", "c", Guarantee.AT_LEAST_ONCE),
        ):
            router = RouterConfig(source=source, dest=dest, guarantee=guarantee)
            engine.wait_for(engine.put_router(name, router).commit)

    def _set_cap(self, name: str, durability: Durability | None = None, cap_records: int = 0) -> None:
        durability = durability or self.engine.durability_of(name)
        config = TopicConfig(durability=durability, cap_records=cap_records, discard=Discard.REJECT)
        self.engine.wait_for(self.engine.put_topic(name, config).commit)

    def append(self) -> None:
        """Write to the source, and wait or not."""
        count = self.rng.choice((1, 3))
        records = [NewRecord(str(self.number + i).encode()) for i in range(count)]
        answer = self.engine.append("a", records)
        self.number += count
        if self.rng.random() < 0.7:
            self.engine.wait_for(answer.commit)

    def append_directly(self) -> None:
        """Write to a destination, if it has room."""
        with suppress(TopicFull):
            self.engine.append(self.rng.choice("bc"), [NewRecord(b'"direct"')])

    def trim_source(self) -> None:
        """Delete what is in the source; the copies that were seen must stay."""
        if self.rng.random() < 0.5:
            self.look()
            self.engine.wait_for(self.engine.delete_records("a", before_seq=1 << 40).commit)

    def hold_back(self) -> None:
        """Let the destination be full, or have room again."""
        state = self.engine.state("b")
        self._set_cap("b", cap_records=self.rng.choice((0, state.count + 1)))

    def step(self) -> None:
        """Let the checkpoint come a step further."""
        self.clock.advance_ns(self.rng.choice((0, 0, 1, 20)) * 1_000_000)
        self.rng.choice((self.engine.write, self.engine.poll, self.engine.poll))()

    def look(self) -> None:
        """Read the destinations; what was seen once has to be there."""
        for name, seen in self.seen.items():
            found = self._copies(name, block=self.rng.random() < 0.5)
            assert {seq: found.get(seq) for seq in seen} == seen, name
            numbers = [copy[2] for copy in found.values()]
            assert numbers == sorted(set(numbers)), f"{name}: out of order or twice"
            seen.update(found)

    def _copies(self, name: str, *, block: bool = True) -> dict[int, Copy]:
        found: dict[int, Copy] = {}
        from_seq = 0
        while True:
            answer = self.engine.diff(name, from_seq, 1000, block=block)
            assert answer.tombstone is None, answer.tombstone
            for record in json.loads(answer.records):
                if isinstance(record["data"], int):
                    found[record["$seq"]] = (record["$seq"], record["$ts"], record["data"])
            if answer.caught_up:
                return found
            block = block or answer.next_from_seq == from_seq
            from_seq = answer.next_from_seq

    def die(self) -> None:
        """End this life in the middle of whatever is under way, or in order."""
        self.look()
        if self.rng.random() < 0.15:
            self.engine.close()
        else:
            self.engine.abandon()
        self.engine = self._open()
        self.look()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_copy_is_lost_whatever_a_checkpoint_has_come_to(tmp_path: Path, seed: int) -> None:
    windows = Windows(tmp_path, seed)
    steps = (
        windows.append,
        windows.append_directly,
        windows.trim_source,
        windows.hold_back,
        windows.step,
        windows.look,
        windows.die,
    )
    for _ in range(80):
        windows.rng.choices(steps, (12, 3, 4, 2, 30, 5, 2))[0]()
    windows.die()
    windows.engine.abandon()


def test_a_record_from_before_a_checkpoint_is_not_copied_while_that_is_made(tmp_path: Path) -> None:
    """The snapshot would have neither the copy nor the record, if that is deleted meanwhile."""
    harness = EngineHarness(tmp_path)
    harness.put("a", durability="disk")
    harness.put("b", durability="disk", cap_records=1, discard=Discard.REJECT)
    harness.wait_for(harness.engine.put_router("ab", RouterConfig(source="a", dest="b")).commit)
    harness.append("b", "full")
    harness.append("a", 1)
    engine, checkpointer = harness.engine, harness.engine._checkpointer
    assert checkpointer is not None
    assert checkpointer._is_prepared()
    checkpointer.start()
    engine.delete_records("b", before_seq=2)
    engine.write()
    engine.forward_turn()
    engine.write()
    shown = parse(engine.diff("b", block=False))
    engine.delete_records("a", before_seq=2)
    engine.write()
    checkpointer.wait_idle()
    harness.crash()
    assert harness.items("b")[: len(shown)] == shown
