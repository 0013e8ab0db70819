"""Newest records of tags and counts by time, against a plain list of what is live."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everlog.clock import TestClock
from everlog.topics import Engine, EngineSettings, TopicConfig, record_of
from everlog.topics.summaries import Histogram

TAGS = ("a", "ab", "b")


def counted(histogram: Histogram) -> list[tuple[int, int]]:
    while not histogram.step():
        pass
    return [(bucket.records, bucket.bytes) for bucket in histogram.buckets]


@given(
    steps=st.lists(st.tuples(st.sampled_from(TAGS), st.integers(0, 50)), min_size=1, max_size=40),
    cap=st.integers(1, 30),
    deleted=st.sampled_from(TAGS),
    below=st.integers(0, 30),
    buckets=st.integers(1, 12),
)
def test_summaries_are_those_of_the_live_records(
    steps: list[tuple[str, int]], cap: int, deleted: str, below: int, buckets: int
) -> None:
    clock = TestClock()
    live: list[tuple[int, int, str]] = []
    with Engine.open(None, EngineSettings(), clock=clock) as engine:
        engine.put_topic("t", TopicConfig(cap_records=cap))
        for seq, (tag, pause_ms) in enumerate(steps, start=1):
            clock.advance_ns(pause_ms * 1_000_000)
            engine.append("t", [record_of(1, tag=tag)])
            live.append((seq, clock.wall_ns() // 1_000_000, tag))
        engine.delete_records("t", before_seq=below, match=deleted)
        live = [each for each in live[-cap:] if not (each[0] < below and each[2] == deleted)]
        for tag in TAGS:
            assert engine.summaries.newest_of_tag("t", tag) == max(
                (seq for seq, _, known in live if known == tag), default=0
            )
        histogram = engine.summaries.histogram("t", buckets=buckets)
        found = counted(histogram)
        assert sum(records for records, _ in found) == len(live)
        bounds = [bucket.from_ms for bucket in histogram.buckets] + [histogram.to_ms]
        for number, (records, size) in enumerate(found):
            wanted = sum(bounds[number] <= ts < bounds[number + 1] for _, ts, _ in live)
            assert (records, size) == (wanted, wanted)
