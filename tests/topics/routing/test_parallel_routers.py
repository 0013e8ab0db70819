"""Two routers with the same ends behind another router: each copies everything once and in order.

How the copies of the two lie between each other is left open, and depends on how many records come at a time.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from everlog.clock import TestClock
from everlog.topics import Engine, NewRecord, TopicConfig
from everlog.topics.config import Durability
from everlog.topics.routing.definitions import Guarantee, RouterConfig
from tests.support.engines import open_engine

CLASSES = (Durability.MEMORY, Durability.DISK, Durability.FSYNC)
PARALLEL = {"left": None, "right": "odd"}
"""The routers from the middle to the end, and the tag that they want; None: they want everything."""
STEPS = 40


class ParallelRouters:
    """A chain of three topics with two routers between the last two."""

    def __init__(self, seed: int, path: Path) -> None:
        self.rng = random.Random(seed)
        self.path = str(path)
        self.clock = TestClock()
        self.sent: list[int] = []
        self.seen: list[tuple[int, int, str]] = []
        self.engine = self.open()
        for name in ("start", "middle", "end"):
            config = TopicConfig(durability=self.rng.choice(CLASSES))
            self.engine.wait_for(self.engine.put_topic(name, config).commit)
        self.put("first", "start", "middle", None)
        for name, tag in PARALLEL.items():
            self.put(name, "middle", "end", tag)

    def open(self) -> Engine:
        shards = self.rng.randint(1, 3)
        return open_engine(self.path, clock=self.clock, shards=shards, file_bytes=8192, segment_max_events=7)

    def put(self, name: str, source: str, dest: str, tag: str | None) -> None:
        router = RouterConfig(
            source=source,
            dest=dest,
            filter=None if tag is None else ["tag", "Eq", tag],
            guarantee=Guarantee.EXACTLY_ONCE,
        )
        self.engine.wait_for(self.engine.put_router(name, router).commit)

    def append(self) -> None:
        first = len(self.sent)
        numbers = list(range(first, first + self.rng.choice((1, 1, 2, 5))))
        name = self.rng.choice(("start", "start", "middle"))
        records = [NewRecord(str(number).encode(), "odd" if number % 2 else None) for number in numbers]
        self.sent += numbers
        self.engine.wait_for(self.engine.append(name, records).commit)

    def move_on(self) -> None:
        """Let something be copied, or everything, or nothing."""
        self.clock.advance_ns(self.rng.choice((0, 1, 60)) * 1_000_000)
        self.rng.choice((self.engine.poll, lambda: self.engine.forward_turn(1), lambda: None))()

    def checkpoint(self) -> None:
        self.engine.checkpoint()

    def restart(self) -> None:
        self.rng.choice((self.engine.close, self.engine.abandon))()
        self.engine = self.open()

    def check(self) -> None:
        """Hold each router's copies against its source, and all of them against what was seen before."""
        source = [record["data"] for record in self.read("middle")]
        assert sorted(source) == self.sent
        copies = [
            (record["$seq"], record["data"], record["meta"]["_topics_router"]["router"])
            for record in self.read("end")
        ]
        assert copies[: len(self.seen)] == self.seen, "what was seen stays where it was"
        self.seen = copies
        for name, tag in PARALLEL.items():
            wanted = [number for number in source if tag is None or number % 2]
            assert [number for _, number, router in copies if router == name] == wanted, name
            assert self.engine.router(name).forwarded_total == len(wanted)

    def read(self, name: str) -> list[dict[str, Any]]:
        """All records of a topic."""
        found: list[dict[str, Any]] = []
        from_seq, is_done = 0, False
        while not is_done:
            answer = self.engine.diff(name, from_seq, 1000)
            self.engine.wait_for(answer.commit)
            assert answer.tombstone is None
            found += json.loads(answer.records)
            from_seq, is_done = answer.next_from_seq, answer.caught_up
        return found


@pytest.mark.parametrize("seed", range(12))
def test_each_of_two_routers_with_the_same_ends_copies_all_in_order(tmp_path: Path, seed: int) -> None:
    routers = ParallelRouters(seed, tmp_path)
    steps = (routers.append, routers.move_on, routers.checkpoint, routers.restart, routers.check)
    for _ in range(STEPS):
        routers.rng.choices(steps, (10, 6, 1, 1, 2))[0]()
    routers.check()
    routers.engine.close()
