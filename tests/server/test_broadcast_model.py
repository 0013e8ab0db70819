"""A broadcast against plain rules: who shares a batch, who reads alone, and when a slice of time is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import example, given, settings
from hypothesis import strategies as st

from everlog.api_types import ConsumerAtRisk
from everlog.server.app import App
from everlog.server.fan_out import WATCHERS_PER_CLOCK, Batch, FanOut, ReadOptions, WatchCursor, Watcher
from everlog.server.sse import record_lines
from everlog.topics import Engine, NewRecord, TopicConfig
from tests.support.effort import effort

HEAD = 5
PLAIN, BARE = ReadOptions(), ReadOptions(include_data=False)
OF_NODE = ReadOptions(nodes=("n",))  # the node that wrote the last record: gets one record less
PARTIAL = ReadOptions(limit=1)


@dataclass(frozen=True)
class Spec:
    """A watcher as the rules see it."""

    seq: int = HEAD - 2
    is_current: bool = True
    """Its cursor belongs to the topic as it is now, not to one of the same name that was deleted."""
    options: ReadOptions = PLAIN
    name: str = "t"
    is_at_head: bool = True
    reaction: str = "takes"
    """What its connection does with a shared batch: takes, refuses, raises."""
    delivers: bool = True
    """Whether it wants to be delivered to at once when it is told of the change."""

    @property
    def shares(self) -> bool:
        """Whether it is offered the shared batch: records up to the head, and nothing else."""
        has_batch = self.is_current and self.seq < HEAD and self.options != PARTIAL
        return self.is_at_head and self.name == "t" and has_batch

    @property
    def outcome(self) -> list[str]:
        """What happens to it, in order."""
        if self.shares and self.reaction == "takes":
            return ["shared"]
        if self.shares and self.reaction == "raises":
            return ["failed"]
        return ["changed", "delivered"] if self.delivers else ["changed"]


SPECS = st.lists(
    st.one_of(
        st.just(Spec()),
        st.builds(
            Spec,
            seq=st.sampled_from([HEAD - 2, HEAD - 2, HEAD - 3, HEAD]),
            is_current=st.sampled_from([True, True, False]),
            options=st.sampled_from([PLAIN, BARE, OF_NODE, PARTIAL]),
            name=st.sampled_from(["t", "t", "u"]),
            is_at_head=st.sampled_from([True, True, False]),
            reaction=st.sampled_from(["takes", "takes", "refuses", "raises"]),
            delivers=st.booleans(),
        ),
    ),
    max_size=40,
)


class RecordingWatcher(Watcher):
    """Notes what is done with it."""

    def __init__(self, spec: Spec, epoch: int) -> None:
        super().__init__(spec.options, 0.0)
        self.spec = spec
        self.events: list[str] = []
        self.batch: Batch | None = None
        if spec.is_at_head:
            epoch = epoch if spec.is_current else epoch - 1
            self.at_head = WatchCursor(spec.name, spec.seq, epoch, HEAD, spec.options)

    def topic_changed(self, name: str) -> bool:
        assert name == "t"
        self.events.append("changed")
        return self.spec.delivers

    def topic_created(self, name: str) -> None:
        raise AssertionError("no pattern is followed")

    def deliver(self) -> None:
        self.events.append("delivered")

    def send_shared(self, batch: Batch) -> bool:
        self.batch = batch
        if self.spec.reaction == "raises":
            raise LookupError("on purpose")
        if self.spec.reaction == "refuses":
            return False
        self.events.append("shared")
        return True

    def warn(self, risk: ConsumerAtRisk) -> None:
        raise AssertionError("no consumer is followed")

    def advise(self, names: list[str], retry_after_ms: int) -> None:
        raise AssertionError("nothing is paused")

    def fail(self, error: Exception) -> None:
        assert isinstance(error, LookupError)
        self.events.append("failed")


def opened() -> Engine:
    """An engine with topic `t` of this test, the second of that name, and a topic `u` beside it."""
    engine = Engine.open(None)
    config = TopicConfig(durability="ephemeral")  # type: ignore[arg-type]
    for name in ("t", "u"):
        engine.put_topic(name, config)
    engine.delete_topic("t")
    engine.put_topic("t", config)
    nodes = [None] * (HEAD - 1) + ["n"]
    engine.append("t", [NewRecord(b"1", None, node) for node in nodes])
    return engine


def expected_lines(engine: Engine, spec: Spec) -> bytes:
    """What a watcher with this cursor and these options gets when it reads alone."""
    options = spec.options
    diff = engine.diff(
        "t",
        spec.seq,
        options.limit,
        node=options.nodes,
        include_tags=False,
        include_data=options.include_data,
    )
    return record_lines(b'"t"', diff.records, spec.seq, diff.next_from_seq, diff.head_seq)


def fan_out_of(engine: Engine, looks_in_time: int) -> tuple[FanOut, Callable[[], bool]]:
    """A fan-out, and a call that drains it for a slice of time: so many looks at the clock."""
    looks = 0

    def now_ns() -> int:
        nonlocal looks
        looks += 1
        return int(looks > looks_in_time)

    def drain() -> bool:
        nonlocal looks
        looks = 0
        return fan_out.drain(1)

    app: Any = SimpleNamespace(
        engine=engine,
        ready_engine=lambda: engine,
        loop=SimpleNamespace(call_soon=lambda step: None),
        now_ns=now_ns,
        drains=[],
        advisers=[],
        turn_soon=lambda: None,
    )
    fan_out = FanOut(cast(App, app))
    return fan_out, drain


@settings(max_examples=effort(300))
@given(specs=SPECS, looks_in_time=st.integers(0, 3))
@example(specs=[Spec(reaction="raises")] * 20, looks_in_time=0)
def test_each_watcher_is_served_once_by_a_shared_batch_or_on_its_own(
    specs: list[Spec], looks_in_time: int
) -> None:
    with opened() as engine:
        fan_out, drain = fan_out_of(engine, looks_in_time)
        watchers = [RecordingWatcher(spec, engine.state("t").epoch) for spec in specs]
        for watcher in watchers:
            fan_out.join("t", watcher)
        if watchers:
            fan_out.topic_changed(fan_out._topics["t"])
        per_slice = (looks_in_time + 1) * WATCHERS_PER_CLOCK
        for turn in range(1, len(specs) // per_slice + 2):
            is_last = drain()
            served = [bool(watcher.events) for watcher in watchers]
            assert sum(served) == min(turn * per_slice, len(specs))
            assert served == sorted(served, reverse=True), "in the order in which they came"
        assert is_last
        assert [watcher.events for watcher in watchers] == [spec.outcome for spec in specs]
        shared: dict[tuple[int, ReadOptions], Batch] = {}
        for watcher, spec in zip(watchers, specs, strict=True):
            assert (watcher.batch is not None) == spec.shares
            if watcher.batch is not None:
                assert watcher.batch.lines == expected_lines(engine, spec)
                assert watcher.batch is shared.setdefault((spec.seq, spec.options), watcher.batch)
