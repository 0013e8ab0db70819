"""Routers against the model: random topologies, deletes, caps, ages and restarts, every copy compared."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from everlog.clock import TestClock
from everlog.errors import EverlogError, InvalidRequest, RouterCycle, RouterIncompatible, TopicNotFound
from everlog.topics import TopicConfig
from everlog.topics.config import Discard, Durability
from everlog.topics.routing.definitions import Guarantee, RouterConfig
from everlog.topics.routing.table import find_cycle
from tests.support.effort import effort
from tests.support.engines import EngineOnDisk
from tests.support.model_checks import Query, ask_diff, ask_state, check_diff, check_state
from tests.support.topics_model import Draft, Match
from tests.topics.routing.router_model import ModelRouter, RoutedTopic, RouterModel

NAMES = ("a", "b", "c", "d", "e")  # e is ephemeral, the others never are
SEEDS = int(os.environ.get("ROUTER_SEEDS", effort(40)))
ROUTERS = ("r1", "r2", "r>3", "r4")

names = st.sampled_from(NAMES)
router_names = st.sampled_from(ROUTERS)
matches: st.SearchStrategy[Match] = st.sampled_from((None, ("Eq", "x"), ("Glob", "x*"), ("Glob", "*")))
drafts = st.lists(
    st.builds(
        Draft,
        st.integers(0, 99),
        st.none() | st.dictionaries(st.sampled_from(("k", "l")), st.integers(0, 9), max_size=2),
        st.sampled_from((None, "x", "x:1", "y")),
        st.sampled_from((None, "n1", "n2")),
    ),
    min_size=1,
    max_size=5,
)
configs = st.builds(
    TopicConfig,
    durability=st.sampled_from((Durability.MEMORY, Durability.DISK, Durability.FSYNC)),
    ttl_ms=st.sampled_from((0, 0, 0, 20)),
    cap_records=st.sampled_from((0, 0, 0, 2, 6)),
    cap_bytes=st.sampled_from((0, 0, 0, 9)),
    discard=st.sampled_from(list(Discard)),
)
router_configs = st.builds(
    RouterConfig,
    source=names,
    dest=names,
    preserve_node=st.booleans(),
    preserve_tag=st.booleans(),
    create_dest=st.booleans(),
    allow_cycle=st.booleans(),
    guarantee=st.sampled_from(list(Guarantee)),
)


class StillClock(TestClock):
    """A clock on which waiting for the disk takes no wall time: copies get the time of their operation."""

    def sleep_ns(self, duration_ns: int) -> None:
        """Wait, but not on the wall clock."""
        wall_ns = self.wall_ns()
        super().sleep_ns(duration_ns)
        self.set_wall_ns(wall_ns)


class RouterMachine(EngineOnDisk):
    """Operations that are passed on before the next."""

    clock_type = StillClock
    first_shards = 2

    def __init__(self) -> None:
        super().__init__()
        self.model = RouterModel()

    def _config(self, name: str, config: TopicConfig) -> TopicConfig:
        if name != "e":
            return config
        return TopicConfig(
            durability=Durability.EPHEMERAL, cap_records=config.cap_records, discard=config.discard
        )

    def _create(self, name: str, config: TopicConfig) -> RoutedTopic:
        resolved = config.resolved(name)
        topic = self.model.topics.get(name)
        if topic is None:
            state = self.engine.state(name, touch=False)
            topic = self.model.topics[name] = RoutedTopic(resolved, state.epoch)
            topic.topic_id = self.engine._core.topics[name].topic_id
        return topic

    @rule(name=names, config=configs)
    def put(self, name: str, config: TopicConfig) -> None:
        config = self._config(name, config)
        self.engine.wait_for(self.engine.put_topic(name, config).commit)
        topic = self._create(name, config)
        topic.configure(config.resolved(name), self.now_ms, self.now_ms)

    @rule(name=names, drafts=drafts)
    def append(self, name: str, drafts: list[Draft]) -> None:
        if name not in self.model.topics:
            self.put(name, TopicConfig())
        topic, now_ms = self.model.topics[name], self.now_ms
        topic.sweep(now_ms)
        batch = topic.stored(drafts, topic.head + 1, now_ms, None)
        records = [draft.sent() for draft in drafts]
        try:
            topic.check_room(batch)
        except EverlogError as refusal:
            self._refused(lambda: self.engine.append(name, records), type(refusal))
            return
        answer = self.engine.append(name, records)
        assert answer.first_seq == batch[0].seq
        self.engine.wait_for(answer.commit)
        topic.append(batch, now_ms)

    @rule(name=names, before_seq=st.none() | st.integers(0, 30), match=matches)
    def delete(self, name: str, before_seq: int | None, match: Match) -> None:
        topic = self.model.topics.get(name)
        if topic is not None and (before_seq is not None or match is not None):
            tag_match = None if match is None else ("tag", *match)
            answer = self.engine.delete_records(name, before_seq=before_seq, match=tag_match)
            self.engine.wait_for(answer.commit)
            assert answer.deleted == topic.delete(before_seq, match, self.now_ms)

    @rule(name=router_names, config=router_configs, match=matches)
    def put_router(self, name: str, config: RouterConfig, match: Match) -> None:
        guarantee = Guarantee.AT_LEAST_ONCE if config.source == "e" else config.guarantee
        config = RouterConfig(
            source=config.source,
            dest=config.dest,
            preserve_node=config.preserve_node,
            preserve_tag=config.preserve_tag,
            create_dest=config.create_dest,
            filter=None if match is None else ["tag", *match],
            allow_cycle=config.allow_cycle,
            guarantee=guarantee,
        )
        if self._leaves_order_open(name, config):
            return
        refusal = self._refusal(name, config)
        if refusal is not None:
            before = set(self.model.topics)
            self._refused(lambda: self.engine.put_router(name, config), refusal)
            assert {state.topic for state in self.engine.topics()} == before
            return
        answer = self.engine.put_router(name, config)
        self.engine.wait_for(answer.commit)
        existing = self.model.routers.get(name)
        assert answer.created == (existing is None)
        if existing is not None:
            existing.config, existing.match = config, match
            return
        source = self._create(config.source, TopicConfig())
        self._create(config.dest, TopicConfig())
        self.model.routers[name] = ModelRouter(name, config, match, source.head)

    def _leaves_order_open(self, name: str, config: RouterConfig) -> bool:
        """Whether two routers with the same ends would have a source that is fed by routers itself.

        Each of them copies in order, but nothing is promised about the two together: how their copies lie
        between each other depends on how many records come to their source at a time. What is promised
        then is in `test_parallel_routers`.
        """
        ends = {other.name: (other.config.source, other.config.dest) for other in self.model.routers.values()}
        ends.setdefault(name, (config.source, config.dest))
        dests = {dest for _, dest in ends.values()}
        pairs = list(ends.values())
        return any(pairs.count(pair) > 1 and pair[0] in dests for pair in pairs)

    def _refusal(self, name: str, config: RouterConfig) -> type[EverlogError] | None:
        if config.source == config.dest:
            return InvalidRequest
        existing = self.model.routers.get(name)
        others = [router for router in self.model.routers.values() if router is not existing]
        if existing is not None:
            if (existing.config.source, existing.config.dest) != (config.source, config.dest):
                return RouterIncompatible
        elif any(
            other.config.dest == config.dest and other.config.source != config.source for other in others
        ):
            return RouterIncompatible
        edges: dict[str, set[str]] = {}
        for other in others:
            edges.setdefault(other.config.source, set()).add(other.config.dest)
        if not config.allow_cycle and find_cycle(edges, config.source, config.dest) is not None:
            return RouterCycle
        if existing is None and not config.create_dest and config.dest not in self.model.topics:
            return TopicNotFound
        return None

    @rule(name=router_names)
    def delete_router(self, name: str) -> None:
        answer = self.engine.delete_router(name)
        self.engine.wait_for(answer.commit)
        assert answer.deleted == (self.model.routers.pop(name, None) is not None)

    @rule(name=names)
    def delete_topic(self, name: str) -> None:
        answer = self.engine.delete_topic(name)
        self.engine.wait_for(answer.commit)
        assert answer.deleted == (self.model.topics.pop(name, None) is not None)
        touching = sorted(
            router.name
            for router in self.model.routers.values()
            if name in (router.config.source, router.config.dest)
        )
        assert list(answer.routers_removed) == touching
        for router in touching:
            del self.model.routers[router]

    @rule(duration_ms=st.sampled_from((1, 15, 60)))
    def advance(self, duration_ms: int) -> None:
        self.clock.advance_ns(duration_ms * 1_000_000)

    @rule()
    def checkpoint(self) -> None:
        self.engine.checkpoint()

    @precondition(lambda self: bool(self.model.topics))
    @rule(shards=st.integers(1, 3), is_clean=st.booleans())
    def restart(self, shards: int, is_clean: bool) -> None:
        if is_clean:
            self.engine.close()
        else:
            self.engine.abandon()
        self.engine = self._open(shards)
        ephemeral = self.model.topics.get("e")
        if ephemeral is not None and ephemeral.durability == "ephemeral":
            self._take_over(ephemeral)

    def _take_over(self, topic: RoutedTopic) -> None:
        """Nothing of an ephemeral topic comes back but, perhaps, its head and its floors.

        Looked up inside, because a question would bring it up to date: there may be room for records now.
        """
        found = self.engine._core.topics["e"]
        assert found.count == 0
        assert found.visible <= topic.head
        topic.records, topic.trims, topic.hops, topic.last_ts = [], [], {}, 0
        topic.head = found.visible
        topic.cap_floor, topic.ttl_floor = found.floors.cap, found.floors.ttl
        topic.trim_floor = found.evict_floor if found.floors.trim > 1 else 1
        for router in self.model.routers.values():
            if router.config.source == "e":
                router.cursor = topic.head
            if "e" in (router.config.source, router.config.dest):
                router.total = self.engine._core.routers.by_name[router.name].total

    @rule(name=names, from_seq=st.integers(0, 40), limit=st.sampled_from((0, 1, 3)))
    def diff(self, name: str, from_seq: int, limit: int) -> None:
        if name in self.model.topics:
            self.model.forward(self.now_ms)
            query = Query(from_seq, limit)
            check_diff(self.model.topics[name], self.now_ms, query, ask_diff(self.engine, name, query))

    @invariant()
    def all_copies_are_there(self) -> None:
        self.model.forward(self.now_ms)
        for name, topic in self.model.topics.items():
            whole = Query(0, 1000)
            answer = ask_diff(self.engine, name, whole)
            check_diff(topic, self.now_ms, whole, answer)
            check_state(topic, self.now_ms, ask_state(self.engine, name))
        for name, router in self.model.routers.items():
            state = self.engine.router(name)
            source = self.model.topics[router.config.source]
            assert (name, state.forwarded_total) == (name, router.total)
            assert (name, state.lag) == (name, source.head - router.cursor), router


def some_rule(machine: RouterMachine, rng: random.Random) -> None:
    """One random step; faster than the state machine, and it likes routers that have something to do."""
    pick = rng.choice
    match: Match = pick((None, None, ("Eq", "x"), ("Glob", "x*"), ("Glob", "*")))
    name, router = pick(NAMES), pick(ROUTERS)
    kinds = ("append", "router", "restart", "checkpoint", "advance", "diff", "put", "delete", "drop")
    kind = rng.choices(kinds, (30, 12, 6, 6, 5, 5, 4, 4, 2))[0]
    if kind == "append":
        values = [rng.randrange(100) for _ in range(pick((1, 1, 2, 5)))]
        tags, nodes = (None, "x", "x:1", "y"), (None, "n1", "n2")
        drafts = [Draft(value, pick((None, {"k": 1})), pick(tags), pick(nodes)) for value in values]
        machine.append(name=name, drafts=drafts)
    elif kind == "router":
        config = RouterConfig(
            source=name,
            dest=pick(NAMES),
            preserve_node=rng.random() < 0.7,
            preserve_tag=rng.random() < 0.7,
            create_dest=rng.random() < 0.8,
            allow_cycle=rng.random() < 0.3,
            guarantee=pick(list(Guarantee)),
        )
        machine.put_router(name=router, config=config, match=match)
    elif kind == "restart":
        if machine.model.topics:
            machine.restart(shards=rng.randint(1, 3), is_clean=rng.random() < 0.3)
    elif kind == "checkpoint":
        machine.checkpoint()
    elif kind == "advance":
        machine.advance(duration_ms=pick((1, 15, 60)))
    elif kind == "diff":
        machine.diff(name=name, from_seq=rng.randrange(40), limit=pick((0, 1, 3)))
    elif kind == "put":
        config_of_topic = TopicConfig(
            durability=pick((Durability.MEMORY, Durability.DISK, Durability.FSYNC)),
            ttl_ms=pick((0, 0, 0, 20)),
            cap_records=pick((0, 0, 0, 2, 6)),
            cap_bytes=pick((0, 0, 0, 9)),
            discard=pick(list(Discard)),
        )
        machine.put(name=name, config=config_of_topic)
    elif kind == "delete":
        machine.delete(name=name, before_seq=pick((None, rng.randrange(30), 200)), match=match)
    else:
        pick((lambda: machine.delete_router(name=router), lambda: machine.delete_topic(name=name)))()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_copies_are_as_the_model_says_after_every_step(seed: int) -> None:
    rng = random.Random(seed)
    machine = RouterMachine()
    try:
        for _ in range(60):
            some_rule(machine, rng)
            machine.all_copies_are_there()
    finally:
        machine.teardown()


RouterMachine.TestCase.settings = settings(max_examples=12, stateful_step_count=25)
TestRoutersAgainstModel = RouterMachine.TestCase
