"""What it costs to serve a topic that has news: jobs for one pinned process.

Timed is the processor time from the mark of a commit to the call of who waits, without the append before and
without what the one who waits does.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.engine.samples import WrongRecord
from benchmarks.queue.stats import NS_PER_S, NS_PER_US
from everlog.topics import Durability, Engine, NewRecord, TopicConfig
from everlog.topics.delivery.governor import SAMPLE_NS
from everlog.topics.delivery.scheduler import WEIGHTS
from everlog.topics.topic import Topic

Numbers = dict[str, float]

PRIORITIES = (-1000, 0, 250, 500, 750)
"""One for each band, far enough from the next one that no topic reaches it by age while a burst is served."""
LONE_SERVICES = 20_000


@contextmanager
def deliveries(count: int) -> Iterator[Callable[[], Numbers]]:
    """Serve `count` topics of all bands that have news at once, and then one topic again and again."""
    with Engine.open(None) as engine:
        topics = [_topic(engine, number) for number in range(count)]
        _burst(engine, topics)  # the first time some objects are made that stay
        yield lambda: {
            "deliver_burst_us": _burst(engine, topics),
            "deliver_lone_us": _lone(engine, topics[0]),
        }


def _topic(engine: Engine, number: int) -> Topic:
    name = f"topic-{number}"
    config = TopicConfig(durability=Durability.EPHEMERAL, priority=PRIORITIES[number % len(PRIORITIES)])
    engine.append(name, [NewRecord(b"1")], config=config)
    return engine._core.topics[name]


def _burst(engine: Engine, topics: list[Topic]) -> float:
    """Processor time for each topic of a burst; raises if the shares are not those of the weights."""
    _calm_down(engine)
    order: list[int] = []
    for number, topic in enumerate(topics):
        band = number % len(PRIORITIES)
        topic.schedule.waiters[lambda band=band: order.append(band)] = None  # type: ignore[misc]
    started_ns = time.thread_time_ns()
    for topic in topics:
        topic.schedule.mark_dirty(0)
    while engine.delivery.has_ready:
        engine.deliver()
    elapsed_ns = time.thread_time_ns() - started_ns
    if len(order) != len(topics):
        raise WrongRecord(f"{len(order)} topics were served, not {len(topics)}")
    rounds = min(10, len(topics) // len(PRIORITIES) // max(WEIGHTS))
    shares = Counter(order[: rounds * sum(WEIGHTS)])
    if shares != {band: rounds * weight for band, weight in enumerate(WEIGHTS)}:
        raise WrongRecord(f"in {rounds} rounds the bands were served {dict(shares)} times")
    return elapsed_ns / len(topics) / NS_PER_US


def _calm_down(engine: Engine) -> None:
    """Wait until the burst before is forgotten: under pressure topics are held back to gather more."""
    while not engine.delivery.governor.is_calm:
        time.sleep(SAMPLE_NS / NS_PER_S)
        engine.deliver()


def _lone(engine: Engine, topic: Topic) -> float:
    """The same when no other topic is dirty, with the turn around it."""

    def called() -> None:
        topic.schedule.waiters[called] = None

    called()
    _calm_down(engine)
    started_ns = time.thread_time_ns()
    for _ in range(LONE_SERVICES):
        topic.schedule.mark_dirty(0)
        engine.deliver()
    elapsed_ns = time.thread_time_ns() - started_ns
    topic.schedule.waiters.clear()
    return elapsed_ns / LONE_SERVICES / NS_PER_US
