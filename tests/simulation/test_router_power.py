"""Power loss while routers copy: what was synced stays, and every record is copied once, in order.

The source and one destination are of class `fsync`, the other destination is `disk`: its newest copies may be
lost with the power, but then they are made again, and no seq that was read gets another record.
"""

from __future__ import annotations

import json
import os
import random
from contextlib import suppress
from pathlib import Path

import pytest

from everlog.fault_fs import PowerLoss
from everlog.topics import Engine, EngineSettings, NewRecord, TopicConfig
from everlog.topics.config import Durability
from everlog.topics.routing.definitions import Guarantee, RouterConfig
from everlog.topics.storage.syncs import InlineSyncs
from tests.simulation.machine import Machine
from tests.support.effort import effort

SEEDS = int(os.environ.get("ROUTER_SEEDS", effort(40)))
LIVES = 6
DESTS = {"synced": Durability.FSYNC, "written": Durability.DISK}
Copy = tuple[int, int]  # time, number


class PoweredRouters:
    """One machine whose power goes away, and what was promised on it."""

    def __init__(self, seed: int, root: Path) -> None:
        self.rng = random.Random(seed)
        self.machine = Machine(self.rng, str(root))
        self.path = str(root / "data")
        self.begun = -1
        self.acked = -1
        self.seen: dict[str, dict[int, Copy]] = {name: {} for name in DESTS}

    def open(self) -> Engine:
        """Start the engine."""
        settings = EngineSettings(
            shards=self.rng.randint(1, 3),
            file_bytes=self.rng.choice((2048, 16384)),
            segment_max_events=7,
            snapshot_log_bytes=self.rng.choice((500, 5000, 1 << 26)),
        )
        machine = self.machine
        return Engine.open(self.path, settings, clock=machine.clock, fs=machine.fs, syncs=InlineSyncs())

    def build(self, engine: Engine) -> None:
        """The topics and routers, if they are not there yet."""
        for name, durability in (*DESTS.items(), ("source", Durability.FSYNC)):
            if not engine.has_topic(name):
                engine.wait_for(engine.put_topic(name, TopicConfig(durability=durability)).commit)
        for name, guarantee in zip(DESTS, Guarantee, strict=True):
            router = RouterConfig(source="source", dest=name, guarantee=guarantee)
            engine.wait_for(engine.put_router(name, router).commit)

    def live(self) -> None:
        """Write, read and checkpoint until the power goes."""
        engine = None
        try:
            engine = self.open()
            self.build(engine)
            self.check(engine)
            self.machine.plan_power_loss(120)
            while True:
                self.step(engine)
        except PowerLoss:
            if engine is not None:
                with suppress(PowerLoss):
                    engine.abandon()
            self.machine.fs.restore(self.rng)

    def step(self, engine: Engine) -> None:
        """Append, and look at a destination now and then."""
        rng, count = self.rng, self.rng.choice((1, 2, 30))
        records = [NewRecord(str(self.begun + 1 + i).encode()) for i in range(count)]
        self.begun += count
        engine.wait_for(engine.append("source", records).commit)
        self.acked = self.begun
        self.machine.advance_ms(rng.choice((0, 1, 60)))
        for name in DESTS:
            if rng.random() < 0.4:
                self.seen[name] |= copies_of(engine, name)
        if rng.random() < 0.1:
            engine.wait_for(engine.append("written", [NewRecord(b'"direct"')]).commit)
        if rng.random() < 0.1:
            engine.checkpoint()

    def check(self, engine: Engine) -> None:
        """Hold what is there against what was promised."""
        for name, seen in self.seen.items():
            found = copies_of(engine, name)
            numbers = [number for _, number in found.values()]
            assert numbers == list(range(len(numbers))), f"{name}: lost, twice or out of order"
            assert self.acked <= len(numbers) - 1 <= self.begun, name
            for seq, copy in seen.items():
                may_be_gone = DESTS[name] is not Durability.FSYNC
                assert found.get(seq) == copy or (may_be_gone and seq not in found), (name, seq)
            self.seen[name] = found
        self.acked = self.begun = len(self.seen["synced"]) - 1


def copies_of(engine: Engine, name: str) -> dict[int, Copy]:
    """The copies that a reader finds by their seqs."""
    found: dict[int, Copy] = {}
    from_seq = 0
    while True:
        answer = engine.diff(name, from_seq, 1000)
        engine.wait_for(answer.commit)
        assert answer.tombstone is None, answer.tombstone
        for record in json.loads(answer.records):
            if isinstance(record["data"], int):
                found[record["$seq"]] = (record["$ts"], record["data"])
        from_seq = answer.next_from_seq
        if answer.caught_up:
            return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_record_is_copied_once_whenever_the_power_goes(tmp_path: Path, seed: int) -> None:
    routers = PoweredRouters(seed, tmp_path)
    for _ in range(LIVES):
        routers.live()
    with suppress(PowerLoss):
        engine = routers.open()
        routers.build(engine)
        routers.check(engine)
        engine.abandon()
