"""`kill -9` of a process whose routers are copying: no copy is lost, none is made twice, none moves.

A kill is no power loss, so everything that was acknowledged or shown must be there afterwards: each record of
the source once in each destination, in order, and every copy that was read under the seq it had.
"""

from __future__ import annotations

import json
import os
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from everlog.fs import OsFs
from everlog.topics import Engine, EngineSettings, NewRecord, TopicConfig
from everlog.topics.config import Durability
from everlog.topics.routing.definitions import Guarantee, RouterConfig
from everlog.topics.storage.syncs import InlineSyncs
from everlog.topics.storage.verify import verify
from tests.support.processes import Child, fresh_seed

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("CRASH_ROUNDS", "300")) // 3
LIFE_S = 0.12
DESTS = ("synced", "once", "chained", "wide")
Seen = dict[int, tuple[int, int]]  # by seq: time and number


def settings(rng: random.Random) -> EngineSettings:
    """Small files, so that checkpoints and rotations happen all the time."""
    return EngineSettings(
        shards=rng.randint(1, 3),
        file_bytes=rng.choice((4096, 65536)),
        segment_max_events=rng.choice((7, 100)),
        snapshot_log_bytes=rng.choice((2000, 20_000, 1 << 26)),
    )


def build(engine: Engine) -> None:
    """The topics and routers, if they are not there yet."""
    if engine.router_count:
        return
    engine.wait_for(engine.put_topic("synced", TopicConfig(durability=Durability.FSYNC)).commit)
    engine.wait_for(engine.put_topic("wide", TopicConfig(durability=Durability.MEMORY)).commit)
    for name, source, dest, guarantee in (
        ("r1", "source", "synced", Guarantee.AT_LEAST_ONCE),
        ("r2", "source", "once", Guarantee.EXACTLY_ONCE),
        ("r3", "once", "chained", Guarantee.AT_LEAST_ONCE),
        ("r4", "source", "wide", Guarantee.AT_LEAST_ONCE),
    ):
        config = RouterConfig(source=source, dest=dest, guarantee=guarantee)
        engine.wait_for(engine.put_router(name, config).commit)


def copies_of(engine: Engine, name: str, from_seq: int = 0) -> Seen:
    """The copies that a reader finds, and nothing that was written there directly."""
    found: Seen = {}
    while True:
        answer = engine.diff(name, from_seq, 1000)
        assert answer.tombstone is None
        for record in json.loads(answer.records):
            if isinstance(record["data"], int):
                found[record["$seq"]] = (record["$ts"], record["data"])
        from_seq = answer.next_from_seq
        if answer.caught_up:
            return found


def forward_until_killed(channel: Connection, path: str, seed: int, number: int) -> None:
    """Write numbered records to the source, and tell which were acknowledged and which copies were seen."""
    rng = random.Random(seed)
    engine = Engine.open(path, settings(rng))
    build(engine)
    channel.send(("open", "", {}))
    places = dict.fromkeys(DESTS, 0)
    while True:
        count = rng.choice((1, 2, 20))
        records = [NewRecord(str(number + i).encode()) for i in range(count)]
        channel.send(("begun", "", {number + count - 1: (0, 0)}))
        engine.wait_for(engine.append("source", records).commit)
        number += count
        channel.send(("acked", "", {number - 1: (0, 0)}))
        if rng.random() < 0.2:
            engine.wait_for(engine.append(rng.choice(DESTS), [NewRecord(b'"direct"')]).commit)
        if rng.random() < 0.5:
            name = rng.choice(DESTS)
            seen = copies_of(engine, name, places[name])
            places[name] = max(seen, default=places[name])
            channel.send(("seen", name, seen))
        if rng.random() < 0.05:
            # Deleting the source never takes its copies away. What has no copy yet is skipped for good, so
            # that everything has one first.
            for name in DESTS:
                while not (commit := engine.forward(name)).done:
                    engine.wait_for(commit)
            engine.wait_for(engine.delete_records("source", before_seq=rng.randrange(1, number + 2)).commit)


class Witness:
    """What the processes have said so far."""

    def __init__(self) -> None:
        self.begun = -1
        self.acked = -1
        self.seen: dict[str, Seen] = {name: {} for name in DESTS}

    def hear(self, line: tuple[str, str, Seen]) -> None:
        """Take in a line of a process."""
        kind, name, numbers = line
        if kind == "begun":
            self.begun = max(self.begun, *numbers)
        elif kind == "acked":
            self.acked = max(self.acked, *numbers)
        elif kind == "seen":
            self.seen[name] |= numbers

    def check(self, engine: Engine) -> None:
        """Hold what is there against what was said."""
        for name in DESTS:
            found = copies_of(engine, name)
            numbers = [number for _, number in found.values()]
            assert numbers == sorted(set(numbers)), f"{name}: copies are out of order or twice"
            assert numbers == list(range(len(numbers))), f"{name}: copies are missing"
            assert self.acked <= len(numbers) - 1 <= self.begun, name
            assert {seq: found.get(seq) for seq in self.seen[name]} == self.seen[name], name
            self.seen[name] = found
        self.acked = self.begun = len(self.seen["once"]) - 1


def live_and_die(witness: Witness, path: str, rng: random.Random) -> None:
    """Let a process live for a moment."""
    with Child(forward_until_killed, path, rng.getrandbits(32), witness.begun + 1) as child:
        witness.hear(child.receive())
        until_s = time.monotonic() + rng.random() * LIFE_S
        while time.monotonic() < until_s:
            if child.has_answered():
                witness.hear(child.receive())
        child.kill()
        for line in rest_of(child):
            witness.hear(line)


def rest_of(child: Child) -> list[Any]:
    """What a dead process has left in its pipe; a line that its death cut off was never said."""
    lines: list[Any] = []
    try:
        while child.has_answered():
            lines.append(child.receive())
    except (AssertionError, EOFError, OSError):
        pass
    return lines


def test_no_copy_is_lost_made_twice_or_moved_by_a_kill(tmp_path: Path) -> None:
    rng = random.Random(fresh_seed("router kills"))
    path = str(tmp_path / "data")
    witness = Witness()
    for _ in range(ROUNDS):
        live_and_die(witness, path, rng)
        assert [finding for finding in verify(path, OsFs()).findings if not finding.is_note] == []
        engine = Engine.open(path, settings(rng), syncs=InlineSyncs())
        witness.check(engine)
        if rng.random() < 0.3:
            engine.close()
        else:
            engine.abandon()
    assert witness.acked > ROUNDS
