"""A chain of routed topics whose classes change: what was read in one of them stays as its class says.

Owns these topics on the simulated machine and what was promised about them. The model is the plain list of
what was read: after a crash an `fsync` topic has all of it, and a `disk` topic all of it unless the power
went, under the same seqs. Numbers are sent once, so that a copy made twice shows.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from everlog.topics import Engine, NewRecord, TopicConfig
from everlog.topics.config import Durability
from everlog.topics.routing.definitions import Guarantee, RouterConfig
from tests.simulation.routed import PREFIX
from tests.support.model_checks import require

CHAIN: Final = tuple(f"{PREFIX}class.{name}" for name in "abc")
WEAKEST_FIRST: Final = (Durability.EPHEMERAL, Durability.MEMORY, Durability.DISK, Durability.FSYNC)
Record = tuple[int, int]  # time, number; negative numbers were not sent to the first topic

APPENDS, DIRECT, CHANGES, LOOKS = 0.7, 0.3, 0.35, 0.5  # how likely each part of a step is


class ClassedTruth:
    """The classes of the topics, as far as they were answered, and which records were read."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._sent = 0
        self._classes: dict[str, Durability] = {}
        self._asked: dict[str, set[Durability]] = {name: set() for name in CHAIN}
        self._seen: dict[str, dict[int, Record]] = {name: {} for name in CHAIN}
        self._arriving: set[int] = set()  # sent and acknowledged in this life
        self._is_ordered = dict.fromkeys(CHAIN, True)
        self._has_lost_power = False
        self._has_logged_copies = False  # of an ephemeral topic, for a class that a power loss takes
        self._is_built = False

    def step(self, engine: Engine, is_faulty: Callable[[], bool]) -> None:
        """Send, change classes and look at some of the topics. Raises what the engine fails with."""
        if not self._is_built:
            self._build(engine)
        for _ in range(self._rng.randint(1, 4)):
            self._act(engine, is_faulty)

    def _act(self, engine: Engine, is_faulty: Callable[[], bool]) -> None:
        rng = self._rng
        if rng.random() < APPENDS:
            self._append(engine, CHAIN[0], 1)
        if rng.random() < DIRECT:
            self._append(engine, rng.choice(CHAIN[1:]), -1)
        if rng.random() < LOOKS:
            self._look(engine, rng.choice(CHAIN), is_faulty)
        if rng.random() < CHANGES:
            self._change(engine, rng.choice(CHAIN))
        if rng.random() < LOOKS:
            self._look(engine, rng.choice(CHAIN), is_faulty)

    def _build(self, engine: Engine) -> None:
        for name in CHAIN:
            self._change(engine, name)
        for source, dest in pairwise(CHAIN):
            config = RouterConfig(source=source, dest=dest, guarantee=self._rng.choice(list(Guarantee)))
            engine.wait_for(engine.put_router(dest, config).commit)
        self._is_built = True

    def _change(self, engine: Engine, name: str) -> None:
        durability = self._rng.choice(WEAKEST_FIRST)
        self._asked[name].add(durability)
        engine.wait_for(engine.put_topic(name, TopicConfig(durability=durability)).commit)
        self._asked[name].discard(durability)
        before = self._classes.get(name)
        self._has_logged_copies |= before is Durability.EPHEMERAL and durability is Durability.MEMORY
        self._classes[name] = durability

    def _append(self, engine: Engine, name: str, sign: int) -> None:
        first = self._sent + 1
        self._sent += self._rng.choice((1, 2, 5))
        numbers = [sign * number for number in range(first, self._sent + 1)]
        answer = engine.append(name, [NewRecord(str(number).encode()) for number in numbers])
        if self._rng.random() < 0.8:
            engine.wait_for(answer.commit)
            if sign > 0:
                self._arriving.update(numbers)

    def _look(self, engine: Engine, name: str, is_faulty: Callable[[], bool]) -> None:
        """Read a topic: within a life nothing goes, and all that was sent has arrived."""
        found = self._read(engine, name)
        self._check_kept(name, found, "nothing", may_be_gone=False)
        self._check_order(name, found, "nothing")
        missing = self._arriving - {number for _, number in found.values()}
        require(not missing or is_faulty(), f"{name}: {sorted(missing)} did not arrive")
        self._seen[name] = found

    def check(self, engine: Engine, how: str, *, is_faulty: Callable[[], bool]) -> None:
        """Hold what a new life finds against what was promised."""
        if not self._is_built:
            return
        self._has_lost_power |= how == "power"
        self._arriving.clear()
        # What passed through an ephemeral topic may be copied again, if its cursor went with the power.
        is_weak = Durability.EPHEMERAL in self._classes.values() or self._has_logged_copies
        may_repeat = any(self._asked.values()) or (how == "power" and is_weak)
        self._has_logged_copies = False
        for name in CHAIN:
            durability = engine.durability_of(name)
            acked = self._classes[name]
            possible = self._asked[name] | {acked}
            require(durability in possible, f"{name} after {how}: is {durability}, not one of {possible}")
            assert durability is not None
            found = self._read(engine, name)
            # A change that was not answered promises nothing of what came before it.
            weaker = min(durability, acked, key=WEAKEST_FIRST.index)
            if weaker is Durability.FSYNC or (weaker is Durability.DISK and how != "power"):
                self._check_kept(name, found, how, may_be_gone=False)
            elif weaker is Durability.DISK:
                self._check_kept(name, found, how, may_be_gone=True)
            numbers = [number for _, number in found.values() if number > 0]
            if may_repeat:
                self._is_ordered[name] &= numbers == sorted(set(numbers))
            self._check_order(name, found, how)
            self._seen[name] = found
            self._classes[name] = durability
        for asked in self._asked.values():
            asked.clear()

    def _check_kept(self, name: str, found: dict[int, Record], how: str, *, may_be_gone: bool) -> None:
        for seq, record in self._seen[name].items():
            is_kept = found.get(seq) == record or (may_be_gone and seq not in found)
            require(is_kept, f"{name} after {how}: record {seq} was {record} and is {found.get(seq)}")

    def _check_order(self, name: str, found: dict[int, Record], how: str) -> None:
        numbers = [number for _, number in found.values() if number > 0]
        if self._is_ordered[name]:
            require(numbers == sorted(set(numbers)), f"{name} after {how}: twice or out of order: {numbers}")

    def _read(self, engine: Engine, name: str) -> dict[int, Record]:
        """All records of a topic by their seqs, everything brought up to date."""
        found: dict[int, Record] = {}
        from_seq, is_done = 0, False
        while not is_done:
            answer = engine.diff(name, from_seq, 1000)
            engine.wait_for(answer.commit)
            is_whole = answer.tombstone is None or self._has_lost_power
            require(is_whole, f"{name} lost something: {answer.tombstone}")
            records: list[dict[str, Any]] = json.loads(answer.records)
            found |= {record["$seq"]: (record["$ts"], record["data"]) for record in records}
            from_seq, is_done = answer.next_from_seq, answer.caught_up
        return found
