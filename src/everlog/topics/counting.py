"""Counting all topics, for metrics, in steps that are short however many topics there are.

Owns the rule which topics are reported by themselves: those that were written or read last. The others are
one sum.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, get_args

import msgspec

from everlog.api_types import Durability, TopicType
from everlog.topics.jobs.job_states import StateName, counts_of
from everlog.topics.jobs.lease_table import OUTCOMES
from everlog.topics.topic import Topic, TopicState

if TYPE_CHECKING:
    from everlog.topics.core import Core

OTHER_TOPICS: Final = "_other"
"""What the sum of all others is called; no topic can have this name."""
TOPICS_A_STEP: Final = 1000
"""Topics that are counted in one step, some 2 ms."""
STATES_A_STEP: Final = 200
"""Topics that are reported by themselves in one step; each is brought up to date first."""


class OtherTopics(msgspec.Struct):
    """The topics that are not reported by themselves."""

    topics: int = 0
    count: int = 0
    bytes: int = 0
    jobs: Counter[str] = msgspec.field(default_factory=Counter)
    outcomes: Counter[str] = msgspec.field(default_factory=Counter)


class JobsOfTopic(NamedTuple):
    """The jobs of one job queue by state, and its attempts by outcome."""

    topic: str
    jobs: dict[str, int]
    outcomes: dict[str, int]


class TopicCount:
    """One count. Topics that come or go meanwhile may or may not be in it.

    `report` gives the state of a topic. Of those that `is_shown` the `limit` most active ones are in
    `states`, by name, and the rest in `other`.
    """

    def __init__(
        self, core: Core, report: Callable[[Topic], TopicState], is_shown: Callable[[str], bool], limit: int
    ) -> None:
        self._now_ms = core.now_ms()
        self._report = report
        self._is_shown = is_shown
        self._limit = limit
        self._left = list(core.topics.values())
        self._shown: list[tuple[int, int, Topic]] = []  # a heap, the least active one first
        self._is_counted = False
        self.topics = len(self._left)
        self.by_class: Counter[Durability] = Counter()
        self.records_live = 0
        self.bytes_live = 0
        self.queue_topics = 0
        self.queue_leases_in_flight = 0
        self.states: list[TopicState] = []
        self.jobs: list[JobsOfTopic] = []
        self.other = OtherTopics()

    def step(self) -> bool:
        """Count some more topics; whether that was all."""
        if not self._is_counted:
            for _ in range(min(TOPICS_A_STEP, len(self._left))):
                self._count(self._left.pop())
            if self._left:
                return False
            self._is_counted = True
            shown = (topic for _, _, topic in self._shown)
            self._left = sorted(shown, key=lambda topic: topic.name, reverse=True)
            if len(self._left) > STATES_A_STEP:
                return False
        for _ in range(min(STATES_A_STEP, len(self._left))):
            topic = self._left.pop()
            if not topic.deleted:
                self.states.append(self._report(topic))
                if topic.config.type is TopicType.QUEUE:
                    self.jobs.append(_jobs_of(topic))
        return not self._left

    def _count(self, topic: Topic) -> None:
        count, size = topic.count, topic.bytes
        self.by_class[topic.durability] += 1
        self.records_live += count
        self.bytes_live += size
        if topic.config.type is TopicType.QUEUE:
            self.queue_topics += 1
            self.queue_leases_in_flight += topic.queue_counts(self._now_ms).in_flight
        if self._limit and self._is_shown(topic.name):
            self._show(topic)

    def _show(self, topic: Topic) -> None:
        active_ts = max(topic.last_write_ts or 0, topic.schedule.last_read_ts or 0)
        entry = (active_ts, -topic.topic_id, topic)
        if len(self._shown) < self._limit:
            heapq.heappush(self._shown, entry)
            return
        hidden = heapq.heappushpop(self._shown, entry)[2]
        self.other.topics += 1
        self.other.count += hidden.count
        self.other.bytes += hidden.bytes
        if hidden.config.type is TopicType.QUEUE:
            of_hidden = _jobs_of(hidden)
            self.other.jobs.update(of_hidden.jobs)
            self.other.outcomes.update(of_hidden.outcomes)


def _jobs_of(topic: Topic) -> JobsOfTopic:
    """What the lease table counts anyway; it costs the same however many jobs there are."""
    table = topic.leases
    if table is None:
        jobs = {"ready": topic.count, "delayed": 0, "leased": 0, "failed": 0}
        return JobsOfTopic(topic.name, jobs, dict.fromkeys(OUTCOMES, 0))
    counts = counts_of(topic)
    jobs = {state: getattr(counts, state) for state in get_args(StateName)}
    return JobsOfTopic(topic.name, jobs, {name: table.outcomes.get(name, 0) for name in OUTCOMES})
