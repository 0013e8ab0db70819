"""Counting topics for metrics: the right sums, in steps of bounded size."""

import pytest

from everlog.api_types import TopicType
from everlog.clock import TestClock
from everlog.topics.config import TopicConfig
from everlog.topics.counting import STATES_A_STEP, TOPICS_A_STEP, TopicCount
from everlog.topics.engine import Engine
from everlog.topics.records import NewRecord
from everlog.topics.topic import Topic

TOPICS = 2500


@pytest.fixture
def engine() -> Engine:
    """Topic `t<n>` has n % 3 records of one byte; the later a topic, the later it was written."""
    clock = TestClock(1_700_000_000_000_000_000)
    engine = Engine.open(None, clock=clock)
    for number in range(TOPICS):
        engine.put_topic(f"t{number:04}", TopicConfig())
        if number % 3:
            engine.append(f"t{number:04}", [NewRecord(b"1")] * (number % 3))
        clock.advance_ns(1_000_000)
    engine.write()
    engine.poll()
    return engine


def finish(count: TopicCount) -> TopicCount:
    while not count.step():
        pass
    return count


def test_a_count_has_every_topic_once(engine: Engine) -> None:
    count = finish(engine.count_topics(lambda name: name >= "t1000", 1000))
    assert (count.topics, sum(count.by_class.values())) == (TOPICS, TOPICS)
    assert count.records_live == count.bytes_live == sum(number % 3 for number in range(TOPICS))
    hidden = [number for number in range(1000, TOPICS) if f"t{number:04}" not in names(count)]
    assert (count.other.topics, count.other.count) == (500, sum(number % 3 for number in hidden))


def names(count: TopicCount) -> list[str]:
    return [state.topic for state in count.states]


def test_those_that_were_active_last_are_reported_by_themselves(engine: Engine) -> None:
    engine.diff("t0007")  # reading is activity too
    written = [f"t{number:04}" for number in range(TOPICS) if number % 3]
    assert names(finish(engine.count_topics(lambda _: True, 100))) == ["t0007", *written[-99:]]


def test_no_step_of_a_count_looks_at_many_topics(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    counted = TopicCount._count

    def look(count: TopicCount, topic: Topic) -> None:
        looked_at.append(topic.name)
        counted(count, topic)

    monkeypatch.setattr(TopicCount, "_count", look)
    count = engine.count_topics(lambda _: True, 1000)
    steps = 0
    done = False
    while not done:
        before, reported = len(looked_at), len(count.states)
        done = count.step()
        steps += 1
        assert len(looked_at) - before <= TOPICS_A_STEP
        assert len(count.states) - reported <= STATES_A_STEP
    assert steps >= TOPICS // TOPICS_A_STEP + 1000 // STATES_A_STEP


def test_topics_that_go_meanwhile_do_not_matter(engine: Engine) -> None:
    count = engine.count_topics(lambda _: True, TOPICS_A_STEP)
    count.step()
    for number in range(0, TOPICS, 2):
        engine.delete_topic(f"t{number:04}")
    finish(count)
    assert all(int(name[1:]) % 2 for name in names(count))


def test_jobs_of_topics_that_are_not_reported_by_themselves_are_summed_up() -> None:
    clock = TestClock(1_700_000_000_000_000_000)
    engine = Engine.open(None, clock=clock)
    for number in range(3):
        engine.put_topic(f"q{number}", TopicConfig(type=TopicType.QUEUE))
        engine.append(f"q{number}", [NewRecord(b"1")] * 4)
        engine.claim(f"q{number}", "w", 2)
        engine.ack(f"q{number}", "w", [1])
        clock.advance_ns(1_000_000)
    count = finish(engine.count_topics(lambda _: True, 1))
    assert [(each.topic, each.jobs["ready"], each.outcomes["acked"]) for each in count.jobs] == [("q2", 2, 1)]
    assert count.other.jobs == {"ready": 4, "delayed": 0, "leased": 2, "failed": 0}
    assert count.other.outcomes["acked"] == 2
