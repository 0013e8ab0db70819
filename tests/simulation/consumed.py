"""Consumers on the simulated machine: cursors, owners and holds are where they were promised to be.

Owns two capped topics with consumers and what was promised about them. The model is the list of states that
a consumer may be found in: after an answer one of them, otherwise also what was asked for. An `fsync` topic
keeps all answers, a `disk` topic all of them unless the power went, and then a state that it once had.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, NamedTuple

from everlog.errors import ConsumerNotFound, CursorBackwards, Fenced, TopicFull
from everlog.topics import Engine, NewRecord, TopicConfig
from everlog.topics.commits import Commit
from everlog.topics.config import Durability
from everlog.topics.delivery.consumers import Start
from tests.simulation.routed import PREFIX
from tests.support.model_checks import require, require_equal

TOPICS: Final = {
    f"{PREFIX}consumed.synced": Durability.FSYNC,
    f"{PREFIX}consumed.written": Durability.DISK,
}
NAMES: Final = ("one", "two")
CAP_RECORDS: Final = 15


class Seen(NamedTuple):
    """What is promised of a consumer."""

    cursor: int
    hold: bool
    owner_epoch: int


class ConsumedTruth:
    """Which states each consumer may be found in; None stands for a consumer that does not exist."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._is_built = False
        self._is_unsure = False
        self._possible: dict[tuple[str, str], list[Seen | None]] = {}
        self._history: dict[tuple[str, str], list[Seen | None]] = {}
        self._heads = dict.fromkeys(TOPICS, 0)
        for key in ((topic, name) for topic in TOPICS for name in NAMES):
            self._possible[key] = [None]
            self._history[key] = [None]

    def step(self, engine: Engine) -> None:
        """Append, and do something with a consumer or two. Raises what the engine fails with."""
        if not self._is_built:
            for topic, durability in TOPICS.items():
                config = TopicConfig(durability=durability, cap_records=CAP_RECORDS)
                engine.wait_for(engine.put_topic(topic, config).commit)
            self._is_built = True
        for _ in range(self._rng.randint(1, 4)):
            topic = self._rng.choice(tuple(TOPICS))
            if self._rng.random() < 0.5:
                self._append(engine, topic)
            if self._is_unsure:
                return  # what failed is decided by the next start
            self._act(engine, topic, self._rng.choice(NAMES))

    def _append(self, engine: Engine, topic: str) -> None:
        numbers = range(self._rng.choice((1, 2, 6)))
        before = {name: self._kept_from(engine, topic, name) for name in NAMES}
        try:
            answer = engine.append(topic, [NewRecord(str(number).encode()) for number in numbers])
            engine.wait_for(answer.commit)
        except TopicFull as full:
            states = {name: self._possible[topic, name][-1] for name in NAMES}
            wanted = [name for name, state in states.items() if state is not None and state.hold]
            require(set(full.held_by) <= set(wanted), f"{topic} is held by {full.held_by}, not {wanted}")
            require(bool(full.held_by), f"{topic} is full although no consumer holds anything")
        self._heads[topic] = engine.state(topic).head_seq
        for name, cursor in before.items():
            if cursor is not None:
                gap = engine.diff(topic, cursor).tombstone
                require(gap is None, f"{topic} lost {gap} that {name} holds behind {cursor}")

    def _kept_from(self, engine: Engine, topic: str, name: str) -> int | None:
        """The cursor behind which a consumer holds everything, None if it holds nothing or too late."""
        states = self._possible[topic, name]
        state = states[0]
        if len(states) != 1 or state is None or not state.hold:
            return None
        return state.cursor if engine.diff(topic, state.cursor).tombstone is None else None

    def _act(self, engine: Engine, topic: str, name: str) -> None:
        (state,) = self._possible[topic, name]
        consumers, rng = engine.consumers, self._rng
        head = engine.state(topic).head_seq
        if state is None:
            try:
                consumers.commit(topic, name, 0)
            except ConsumerNotFound:
                hold = rng.random() < 0.5
                put = consumers.put(topic, name, Start("latest"), hold=hold)
                self._wait(engine, topic, name, Seen(head, hold, 0), put.commit)
                return
            raise AssertionError(f"consumer {name} of {topic} should not exist")
        self._check_life(engine, topic, name, state)
        chance = rng.random()
        epoch = state.owner_epoch or None
        if chance < 0.5:
            seq = rng.randint(state.cursor, max(head, state.cursor))
            changed = consumers.commit(topic, name, seq, epoch)
            self._wait(engine, topic, name, state._replace(cursor=seq), changed.commit)
        elif chance < 0.65:
            acquired = consumers.acquire(topic, name, "me")
            require_equal(f"epoch of {name}", acquired.owner_epoch, state.owner_epoch + 1)
            self._wait(engine, topic, name, state._replace(owner_epoch=acquired.owner_epoch), acquired.commit)
        elif chance < 0.8:
            seq = rng.randint(1, head + 1)
            reset = consumers.reset(topic, name, Start(seq=seq))
            self._wait(engine, topic, name, state._replace(cursor=seq - 1), reset.commit)
        elif chance < 0.9:
            put = consumers.put(topic, name, hold=not state.hold)
            self._wait(engine, topic, name, state._replace(hold=not state.hold), put.commit)
        else:
            self._wait(engine, topic, name, None, consumers.delete(topic, name).commit)

    def _wait(self, engine: Engine, topic: str, name: str, wanted: Seen | None, commit: Commit) -> None:
        """A change is under way: until it is answered both states are possible."""
        self._possible[topic, name].append(wanted)
        self._history[topic, name].append(wanted)
        self._is_unsure = True
        engine.wait_for(commit)
        self._is_unsure = False
        self._possible[topic, name] = [wanted]

    def _check_life(self, engine: Engine, topic: str, name: str, state: Seen) -> None:
        """Within a life the answer is the state; the lag is exact, and rules hold."""
        shown = engine.consumers.show(topic, name)
        engine.wait_for(shown.commit)
        found = Seen(shown.state.cursor, shown.state.hold, shown.state.owner_epoch)
        require_equal(f"consumer {name} of {topic}", found, state)
        account = engine.account(topic, state.cursor)
        require_equal(f"lag of {name} of {topic}", shown.state.lag_records, account.live)
        for epoch in (state.owner_epoch + 1, state.owner_epoch - 1):
            _refused(Fenced, lambda epoch=epoch: engine.consumers.commit(topic, name, state.cursor, epoch))
        if state.cursor:
            epoch = state.owner_epoch
            _refused(
                CursorBackwards, lambda: engine.consumers.commit(topic, name, state.cursor - 1, epoch or None)
            )

    def check(self, engine: Engine, how: str) -> None:
        """Hold what a new life finds against what was promised."""
        if not self._is_built:
            return
        self._is_unsure = False
        for topic, name in self._possible:
            head = engine.state(topic).head_seq
            may_be_old = how == "power" and TOPICS[topic] is not Durability.FSYNC
            states = self._history[topic, name] if may_be_old else self._possible[topic, name]
            found: Seen | None = None
            if engine.consumers.has(topic, name):
                state = engine.consumers.show(topic, name).state
                found = Seen(state.cursor, state.hold, state.owner_epoch)
            allowed = {_within(head, each) for each in states}
            require(found in allowed, f"consumer {name} of {topic} after {how}: {found} is not in {allowed}")
            self._possible[topic, name] = [found]
            # A kill syncs nothing: a later power cut may still find an earlier state.
            self._history[topic, name] = [found] if how == "power" else [*self._history[topic, name], found]


def _within(head_seq: int, state: Seen | None) -> Seen | None:
    """A cursor is never behind the head, whatever was lost."""
    return None if state is None else state._replace(cursor=min(state.cursor, head_seq))


def _refused(kind: type[Exception], action: Callable[[], object]) -> None:
    try:
        action()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was expected")
