"""Routers on the simulated machine: what is sent to one topic has to be in three others, once and in order.

Owns the topics and routers of that and what was promised about them; faults are `machine`'s business, lives
those of `lives`. Numbers are sent and never sent again, so that a gap, a double or a wrong order shows.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Final

from everlog.topics import Engine, NewRecord, TopicConfig
from everlog.topics.config import Durability
from everlog.topics.routing.definitions import Guarantee, RouterConfig
from tests.support.model_checks import require, require_equal

PREFIX: Final = "route."
SOURCE: Final = PREFIX + "source"
DESTS: Final = {
    PREFIX + "synced": Durability.FSYNC,
    PREFIX + "written": Durability.DISK,
    PREFIX + "far": Durability.DISK,
}
ROUTERS: Final = {
    "synced": RouterConfig(source=SOURCE, dest=PREFIX + "synced"),
    "written": RouterConfig(source=SOURCE, dest=PREFIX + "written", guarantee=Guarantee.EXACTLY_ONCE),
    "far": RouterConfig(source=PREFIX + "synced", dest=PREFIX + "far", guarantee=Guarantee.EXACTLY_ONCE),
}
Copy = tuple[int, int]  # time, number


class RoutedTruth:
    """What was sent, what was acknowledged, and which copies were read."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._sent = 0
        self._acked: set[int] = set()
        self._seen: dict[str, dict[int, Copy]] = {name: {} for name in DESTS}
        self._is_built = False

    def step(self, engine: Engine) -> None:
        """Send something, and look at some of the copies. Raises what the engine fails with."""
        if not self._is_built:
            self._build(engine)
        rng = self._rng
        numbers = range(self._sent, self._sent + rng.choice((1, 2, 12)))
        self._sent = numbers.stop
        answer = engine.append(SOURCE, [NewRecord(str(number).encode()) for number in numbers])
        if rng.random() < 0.8:
            engine.wait_for(answer.commit)
            self._acked.update(numbers)
        for name in DESTS:
            if rng.random() < 0.4:
                self._seen[name] |= _copies(engine, name)
        if rng.random() < 0.15:
            dest = rng.choice(tuple(DESTS))
            engine.wait_for(engine.append(dest, [NewRecord(b'"direct"')]).commit)

    def _build(self, engine: Engine) -> None:
        for name, durability in ((SOURCE, Durability.FSYNC), *DESTS.items()):
            engine.wait_for(engine.put_topic(name, TopicConfig(durability=durability)).commit)
        for name, config in ROUTERS.items():
            engine.wait_for(engine.put_router(name, config).commit)
        self._is_built = True

    def check(self, engine: Engine, how: str, *, is_faulty: Callable[[], bool]) -> None:
        """Hold what a new life finds against what was promised; while calls fail, copies may be late."""
        if not self._is_built:
            return
        found = [state.router for state in engine.routers() if not state.router.startswith(PREFIX)]
        require_equal("routers", found, sorted(ROUTERS))
        source = [number for _, number in _copies(engine, SOURCE).values()]
        require(source == sorted(set(source)), f"{SOURCE} after {how}: twice or out of order: {source}")
        lost = self._acked.difference(source)
        require(not lost, f"{SOURCE} after {how}: acknowledged and gone: {sorted(lost)}")
        for name, durability in DESTS.items():
            copies = _copies(engine, name)
            numbers = [number for _, number in copies.values()]
            wanted = source[: len(numbers)] if is_faulty() else source
            require_equal(f"copies in {name} after {how}", numbers, wanted)
            may_be_gone = how == "power" and durability is not Durability.FSYNC
            for seq, copy in self._seen[name].items():
                is_kept = copies.get(seq) == copy or (may_be_gone and seq not in copies)
                require(is_kept, f"{name} after {how}: copy {seq} was {copy} and is {copies.get(seq)}")
            self._seen[name] = copies
        # What is there after a start is there for good.
        self._acked.update(source)


def _copies(engine: Engine, name: str) -> dict[int, Copy]:
    """The numbered records of a topic by their seqs, everything brought up to date."""
    found: dict[int, Copy] = {}
    from_seq, is_done = 0, False
    while not is_done:
        answer = engine.diff(name, from_seq, 1000)
        engine.wait_for(answer.commit)
        require(answer.tombstone is None, f"{name} lost something: {answer.tombstone}")
        records: list[dict[str, Any]] = json.loads(answer.records)
        for record in records:
            if isinstance(record["data"], int):
                found[record["$seq"]] = (record["$ts"], record["data"])
        from_seq, is_done = answer.next_from_seq, answer.caught_up
    return found
