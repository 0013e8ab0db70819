"""The engine against the model: random operations, every answer compared, also over clean restarts."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from everlog.errors import EverlogError, TopicNotEmpty, TopicNotFound
from everlog.topics import Engine, EngineSettings, TopicConfig
from everlog.topics.commits import Commit
from everlog.topics.config import Discard, Durability
from everlog.topics.results import Appended
from tests.support.effort import effort
from tests.support.engines import EngineOnDisk
from tests.support.files import UnsyncedFs
from tests.support.model_checks import (
    Query,
    ask_diff,
    ask_state,
    check_account,
    check_diff,
    check_state,
    look,
    model_of,
)
from tests.support.topics_model import Draft, Match, ModelTopic

# The window of idempotency keys is the same for all configurations of a name: a key that was forgotten
# under a short window does not come back under a longer one, and when it is forgotten is left open.
WINDOWS_MS = {"a": 0, "a:b": 10, "z": 120_000}
NAMES = tuple(WINDOWS_MS)

names = st.sampled_from(NAMES)
nodes = st.sampled_from((None, "", "n1", "n2", 'quo"te\\', "übung"))
tags = st.sampled_from((None, "", "a", "a:1", "a:2", "b", "ü", "a*", "*", 'b"\x01'))
scalars = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=20)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
metas = st.none() | st.dictionaries(st.text(max_size=4), values, max_size=3)
drafts = st.lists(st.builds(Draft, values, metas, tags, nodes, st.booleans()), min_size=1, max_size=6)
configs = st.builds(
    TopicConfig,
    durability=st.sampled_from(list(Durability)),
    ttl_ms=st.sampled_from((0, 0, 5, 1000)),
    cap_records=st.sampled_from((0, 0, 1, 5, 20)),
    cap_bytes=st.sampled_from((0, 0, 40, 400)),
    discard=st.sampled_from(list(Discard)),
    auto_create=st.booleans(),
    dedupe_node=st.booleans(),
    priority=st.sampled_from((None, -5, 5000)),
)
keys = st.sampled_from((None, None, "k1", "k2"))
matches: st.SearchStrategy[Match] = st.sampled_from(
    (
        None,
        ("Eq", "a"),
        ("Eq", "ü"),
        ("Eq", ""),
        ("Glob", "a*"),
        ("Glob", "a:*"),
        ("Glob", "*"),
        ("Glob", "a**"),
    )
)
queries = st.builds(
    Query,
    st.integers(0, 60),
    st.sampled_from((0, 1, 2, 10, 2000)),
    st.sampled_from(((), ("n1",), ("n1", "übung"), ('quo"te\\',))),
    st.booleans(),
    st.booleans(),
    st.sampled_from((0, 1, 30, 200, 1 << 30)),
)


def with_window(name: str, config: TopicConfig) -> TopicConfig:
    """The configuration with the window of this name."""
    return msgspec.structs.replace(config, idempotency_window_ms=WINDOWS_MS[name])


def told(answer: Appended) -> tuple[int, int, int, int, bool, bool]:
    """What a writer is told."""
    return (
        answer.first_seq,
        answer.last_seq,
        answer.count,
        answer.head_seq,
        answer.created,
        answer.deduped,
    )


class EngineMachine(EngineOnDisk):
    """All operations of topics; `topics` is the whole truth."""

    has_disk = True

    def __init__(self) -> None:
        super().__init__()
        self.topics: dict[str, ModelTopic] = {}
        self.epochs: dict[str, int] = {}
        self.floors: dict[str, tuple[int, int, int]] = {}

    @rule(name=names, config=configs)
    def put(self, name: str, config: TopicConfig) -> None:
        config = with_window(name, config)
        answer = self.engine.put_topic(name, config)
        self.engine.wait_for(answer.commit)
        now_ms = self.now_ms  # it takes effect when it is committed, and waiting for a sync takes time
        resolved = config.resolved(name)
        assert answer.config == resolved
        assert answer.created == (name not in self.topics)
        if answer.created:
            self.topics[name] = ModelTopic(resolved)
        else:
            self.topics[name].configure(resolved, now_ms, now_ms)

    @rule(
        name=names,
        drafts=drafts,
        node=nodes,
        key=keys,
        create=st.sampled_from((None, True, False)),
        config=st.none() | configs,
    )
    def append(
        self,
        name: str,
        drafts: list[Draft],
        node: str | None,
        key: str | None,
        create: bool | None,
        config: TopicConfig | None,
    ) -> None:
        config = with_window(name, config or TopicConfig())

        def call() -> Appended:
            return self.engine.append(
                name,
                [draft.sent() for draft in drafts],
                node=node,
                idempotency_key=key,
                create=create,
                config=config,
            )

        now_ms = self.now_ms
        topic = self.topics.get(name)
        created = topic is None
        if topic is None:
            if not (config.auto_create if create is None else create):
                self._refused(call, TopicNotFound)
                return
            topic = ModelTopic(config.resolved(name))
        known = topic.remembered(key, now_ms)
        if known is not None:
            answer = call()
            last_seq = known.first_seq + known.length - 1
            assert told(answer) == (known.first_seq, last_seq, known.length, last_seq, False, True)
            self.engine.wait_for(answer.commit)
            return
        topic.sweep(now_ms)
        batch = topic.stored(drafts, topic.head + 1, now_ms, node)
        try:
            topic.check_room(batch)
        except EverlogError as refusal:
            self._refused(call, type(refusal))
            return
        answer = call()
        assert told(answer) == (batch[0].seq, batch[-1].seq, len(batch), batch[-1].seq, created, False)
        if self.has_disk and topic.durability == "fsync" and not created:
            assert ask_state(self.engine, name).head_seq == topic.head, "visible before its sync"
        self.engine.wait_for(answer.commit)
        topic.append(batch, now_ms, key)
        self.topics[name] = topic

    @rule(name=names, before_seq=st.none() | st.integers(0, 40), match=matches)
    def delete(self, name: str, before_seq: int | None, match: Match) -> None:
        def call() -> Commit:
            tag_match = None if match is None else ("tag", *match)
            answer = self.engine.delete_records(name, before_seq=before_seq, match=tag_match)
            removed = topic.delete(before_seq, match, self.now_ms)
            found = (answer.deleted, answer.earliest_seq, answer.head_seq, answer.count, answer.bytes)
            assert found == (removed, topic.earliest, topic.head, len(topic.records), topic.bytes)
            return answer.commit

        topic = self.topics.get(name, ModelTopic(TopicConfig()))
        if before_seq is None and match is None:
            with pytest.raises(EverlogError):
                call()
        elif name not in self.topics:
            self._refused(call, TopicNotFound)
        else:
            self.engine.wait_for(call())

    @rule(name=names, query=queries)
    def diff(self, name: str, query: Query) -> None:
        if name in self.topics:
            answer = ask_diff(self.engine, name, query)
            check_diff(self.topics[name], self.now_ms, query, answer)
            json.loads(answer.records)
        else:
            self._refused(lambda: ask_diff(self.engine, name, query), TopicNotFound)

    @rule(duration_ms=st.sampled_from((1, 5, 9, 1000, 130_000)))
    def advance(self, duration_ms: int) -> None:
        self.clock.advance_ns(duration_ms * 1_000_000)
        self.engine.write()
        self.engine.poll()

    @rule(jump_ms=st.sampled_from((-2000, -3, 500)))
    def jump(self, jump_ms: int) -> None:
        self.clock.set_wall_ns(self.clock.wall_ns() + jump_ms * 1_000_000)

    @rule(name=names, if_empty=st.booleans())
    def delete_topic(self, name: str, if_empty: bool) -> None:
        topic = self.topics.get(name)
        if topic is not None:
            topic.sweep(self.now_ms)
            if if_empty and topic.records:
                self._refused(lambda: self.engine.delete_topic(name, if_empty=True), TopicNotEmpty)
                return
        answer = self.engine.delete_topic(name, if_empty=if_empty)
        self.engine.wait_for(answer.commit)
        assert answer.deleted == (topic is not None)
        self.topics.pop(name, None)
        self.floors.pop(name, None)

    @rule(prefix=st.sampled_from(("", "a", "a:", "q")), after=st.none() | names, limit=st.integers(1, 3))
    def list_topics(self, prefix: str, after: str | None, limit: int) -> None:
        found = self.engine.topics(prefix, after, limit)
        wanted = [
            name
            for name in sorted(self.topics)
            if name.startswith(prefix) and (after is None or name > after)
        ]
        assert [state.topic for state in found] == wanted[:limit]
        for state in found:
            check_state(self.topics[state.topic], self.now_ms, state)

    @rule()
    def checkpoint(self) -> None:
        self.engine.checkpoint()

    @rule()
    def relocate(self) -> None:
        self.engine.relocate()

    @precondition(lambda self: bool(self.topics))
    @rule(shards=st.integers(1, 3))
    def restart(self, shards: int) -> None:
        self.engine.close()
        self.engine = self._open(shards)
        for name, topic in self.topics.items():
            topic.sweep(self.now_ms)
            if topic.durability in ("ephemeral", "memory"):
                self._take_over(name, topic)

    def _take_over(self, name: str, topic: ModelTopic) -> None:
        """A class without a promise: what is there must have been there, in order; the head stays."""
        seen = look(self.engine, name)
        assert seen is not None
        assert set(seen.records) <= set(topic.records)
        assert seen.head == topic.head
        assert topic.durability == "memory" or not seen.records
        assert seen.config == topic.config
        last_ts = topic.last_ts
        self.topics[name] = model_of(seen)
        self.topics[name].last_ts = last_ts

    @invariant()
    def states_agree_and_floors_never_go_back(self) -> None:
        for name, topic in self.topics.items():
            state = ask_state(self.engine, name)
            check_state(topic, self.now_ms, state)
            check_account(topic, self.engine, name)
            floors = (state.head_seq, state.earliest_seq, state.evict_floor)
            before = self.floors.get(name, (0, 0, 0))
            assert all(new >= old for new, old in zip(floors, before, strict=True)), (before, floors)
            self.floors[name] = floors
            assert state.evict_floor <= state.earliest_seq <= state.head_seq + 1


class MemoryEngineMachine(EngineMachine):
    """The same without a data directory: nothing is kept, all else is the same."""

    has_disk = False

    def _open(self, shards: int) -> Engine:
        return Engine.open(None, EngineSettings(), clock=self.clock, fs=UnsyncedFs())

    @rule(shards=st.integers(1, 3))
    def restart(self, shards: int) -> None:
        self.engine.close()
        self.engine = self._open(shards)
        self.topics.clear()
        self.floors.clear()


EngineMachine.TestCase.settings = settings(max_examples=effort(120), stateful_step_count=40)
MemoryEngineMachine.TestCase.settings = settings(max_examples=effort(20), stateful_step_count=40)
TestEngineAgainstModel = EngineMachine.TestCase
TestEngineInMemoryAgainstModel = MemoryEngineMachine.TestCase
