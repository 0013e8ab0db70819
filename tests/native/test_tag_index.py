"""Tags of live records: exact and by prefix, any bytes, memory that follows the living, no pauses."""

import random
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.native.topics.log import FrameBuffer, TopicLog
from tests.native.topic_log_twin import NewRecord, TwinLog, TwinRecord, index_entry
from tests.support.effort import effort

TOPIC = 3
FOREVER = 1 << 62
SWEEP_SLACK = 64  # as in tag_index.c: so many dead tags are never swept

# Few letters and many lengths: tags that are beginnings of each other, and nodes that fill up.
CLOSE_TAGS = st.text("ab", min_size=1, max_size=7)
WIDE_TAGS = st.builds(
    lambda start, rest: start + rest, st.sampled_from(["", "k/"]), st.characters(exclude_categories=["Cs"])
)
TAGS = CLOSE_TAGS | WIDE_TAGS | st.text(min_size=1, max_size=3)


class TaggedLog:
    """A log and its twin that are told the same."""

    def __init__(self) -> None:
        self.log = TopicLog(TOPIC)
        self.twin = TwinLog(TOPIC)
        self.buffer = FrameBuffer(1 << 16)

    def append(self, *tags: str) -> None:
        records = [NewRecord(b"0", tag) for tag in tags]
        self.log.append(self.buffer, 1, 0, list(records), 1, 0, None, False)
        for record in records:
            self.twin.append(record, 1, None)

    def kill(self, seqs: list[int]) -> None:
        assert self.log.kill(np.array(seqs, np.uint64)) == self.twin.kill(seqs)

    def check(self, tag: str, before_seq: int = FOREVER) -> None:
        for prefix in (False, True):
            found = self.log.find_tag(tag.encode(), prefix, before_seq)
            assert found.dtype == np.uint64
            assert found.tolist() == self.twin.find_tag(tag.encode(), prefix, before_seq)


def sweep_tags(log: TopicLog) -> int:
    """Drop all dead tags by deletes of nothing, each of which sweeps some; return how many it took."""
    calls = 0
    while log.tag_count > log.live_count + SWEEP_SLACK:
        log.kill(np.empty(0, np.uint64))
        calls += 1
    return calls


@settings(max_examples=effort(150))
@given(
    st.lists(TAGS, min_size=1, max_size=60),
    st.lists(st.integers(1, 60), max_size=40),
    st.lists(TAGS, max_size=5),
    st.integers(0, 70),
)
def test_exact_and_prefix_questions_find_what_the_twin_finds(
    tags: list[str], killed: list[int], others: list[str], before_seq: int
) -> None:
    both = TaggedLog()
    both.append(*tags)
    for tag in {*tags, *others, ""}:
        both.check(tag)
        both.check(tag[:1], before_seq)
    for seq in killed:
        both.kill([seq])
        both.check(tags[seq % len(tags)])
    both.append(*others)
    sweep_tags(both.log)
    for tag in {*tags, *others, ""}:
        both.check(tag)
        both.check(tag[:1], before_seq)


@given(st.lists(TAGS, min_size=1, max_size=40), st.data())
def test_taking_records_back_leaves_the_tags_as_they_were(tags: list[str], data: st.DataObject) -> None:
    both = TaggedLog()
    both.append(*tags)
    held = both.log.tag_count
    more = data.draw(st.lists(TAGS | st.sampled_from(tags), min_size=1, max_size=20))
    both.log.append(both.buffer, 1, 0, [NewRecord(b"1", tag) for tag in more], 1, 0, None, False)
    if data.draw(st.booleans()):
        newest = both.log.next_seq - 1
        both.log.kill(np.array([newest], np.uint64))
        both.log.find_tag(more[-1].encode(), True, FOREVER)
    both.log.pop(both.buffer, 0, len(more))
    assert both.log.tag_count == held
    for tag in {*tags, *more}:
        both.check(tag)


def test_a_node_that_grows_to_every_byte_and_shrinks_again_keeps_its_tags() -> None:
    both = TaggedLog()
    tags = ["p" + chr(code) for code in range(1, 128)] + ["p" + chr(code) for code in range(0x80, 0x4000, 61)]
    both.append("p", *tags)
    both.check("p")
    for start in range(0, len(tags), 7):
        both.kill(list(range(start + 2, start + 9)))
        both.check("p")
        both.check(tags[start])
        both.check(tags[-1])
    assert both.log.find_tag(b"p", True, FOREVER).tolist() == [1]
    assert both.log.tag_count == 1


def test_few_tags_left_of_many_do_not_keep_the_memory_of_many() -> None:
    both = TaggedLog()
    both.append(*("p" + chr(code) for code in range(1, 128)))
    many = both.log.tag_memory_bytes
    both.kill(list(range(4, 128)))
    both.check("p")
    assert both.log.tag_count == 3
    assert both.log.tag_memory_bytes < 400 < many / 10


def test_the_longest_tags_that_share_all_but_the_last_byte_are_told_apart() -> None:
    both = TaggedLog()
    stem = "x" * 255
    both.append(stem + "a", stem + "b", stem, *("x" * length for length in range(1, 256)))
    for tag in (stem, stem + "a", stem + "b", "x", "x" * 100):
        both.check(tag)
    both.kill(list(range(1, 259, 2)))
    for tag in (stem, stem + "a", stem + "b", "x", "x" * 100):
        both.check(tag)


def test_deleted_records_are_met_once_and_never_again() -> None:
    """Repeated deletes by tag must not walk over all that was deleted before."""
    log = TopicLog(TOPIC)
    buffer = FrameBuffer()
    batch = [NewRecord(b"0", "t")] * 1000
    for _ in range(200):
        log.append(buffer, 1, 0, batch, 1, 0, None, False)
        buffer.clear()
    log.kill(np.arange(2, 200_000, dtype=np.uint64))  # 1 stays, so the dead ones keep their entries
    first = time.perf_counter()
    assert log.find_tag(b"t", False, FOREVER).tolist() == [1, 200_000]
    second = time.perf_counter()
    for _ in range(10):
        assert log.find_tag(b"t", False, FOREVER).tolist() == [1, 200_000]
    assert (time.perf_counter() - second) / 10 < (second - first)


def test_a_million_tags_pushed_and_evicted_stay_small() -> None:
    log = TopicLog(TOPIC)
    buffer = FrameBuffer()
    kept = 1000
    worst = 0
    for first in range(0, 1_000_000, 500):
        batch = [NewRecord(b"0", f"order-{number}") for number in range(first, first + 500)]
        log.append(buffer, 1, 0, batch, 1, 0, None, False)
        buffer.clear()
        log.kill_below(max(log.next_seq - kept, 1))
        log.drop_front(log.first_live)
        worst = max(worst, log.tag_memory_bytes)
    assert log.live_count == kept
    assert log.tag_count < 3 * kept
    assert worst < 200 * 4 * kept
    assert log.find_tag(b"order-99999", True, FOREVER).tolist() == list(range(999_991, 1_000_001))


def test_tags_of_a_topic_that_was_emptied_are_swept_in_small_steps() -> None:
    log = TopicLog(TOPIC)
    buffer = FrameBuffer()
    log.append(buffer, 1, 0, [NewRecord(b"0", f"t{number}") for number in range(10_000)], 1, 0, None, False)
    full = log.tag_memory_bytes
    log.kill_below(FOREVER)
    assert log.tag_count > 5_000
    assert 20 < sweep_tags(log) < 60
    assert log.tag_memory_bytes < full / 50


def test_half_of_the_tags_dying_out_of_order_gives_their_memory_back() -> None:
    log = TopicLog(TOPIC)
    buffer = FrameBuffer()
    log.append(buffer, 1, 0, [NewRecord(b"0", f"t{number}") for number in range(20_000)], 1, 0, None, False)
    full = log.tag_memory_bytes
    log.kill(np.arange(2, 20_001, 2, dtype=np.uint64))
    sweep_tags(log)
    assert log.tag_memory_bytes < full * 0.7
    assert log.find_tag(b"t", True, FOREVER).tolist() == list(range(1, 20_001, 2))


def test_tags_loaded_twice_or_out_of_order_are_chained_once() -> None:
    records = [TwinRecord(seq, 5, b"0", b"t" if seq % 3 else b"u", b"", None) for seq in range(1, 13)]
    frames = [record.segment_frame() for record in records]
    places = np.cumsum([0, *map(len, frames)]).tolist()
    entries = [index_entry(places[n], len(frame), 5, records[n].flags) for n, frame in enumerate(frames)]
    log = TopicLog(TOPIC)
    assert log.load_index(1, b"".join(entries), 1) == 12
    assert log.live_bytes == 0
    data = b"".join(frames)
    for first, count in ((7, 3), (1, 4), (10, 3), (5, 2), (1, 12)):
        assert log.load_frames(first, count, data) == 0
        assert log.load_frames(first, count, data) == 0
    assert log.find_tag(b"t", False, FOREVER).tolist() == [1, 2, 4, 5, 7, 8, 10, 11]
    assert log.find_tag(b"u", False, FOREVER).tolist() == [3, 6, 9, 12]
    assert log.live_bytes == 12


def test_an_exact_question_among_many_tags_is_quick() -> None:
    log = TopicLog(TOPIC)
    buffer = FrameBuffer()
    for first in range(0, 300_000, 1000):
        batch = [NewRecord(b"0", f"order-{number}") for number in range(first, first + 1000)]
        log.append(buffer, 1, 0, batch, 1, 0, None, False)
        buffer.clear()
    best = 1.0
    for number in range(0, 300_000, 3001):
        tag = b"order-%d" % number
        start = time.perf_counter()
        found = log.find_tag(tag, False, FOREVER)
        best = min(best, time.perf_counter() - start)
        assert found.tolist() == [number + 1]
    assert best < 50e-6


@pytest.mark.parametrize("steps", [2, 3, 10, 1000])
def test_a_search_in_steps_finds_what_a_search_at_once_does_whatever_dies_meanwhile(steps: int) -> None:
    both = TaggedLog()
    rng = random.Random(steps)
    tags = [f"{'ab'[number % 2]}{'-' * 20}{number % 7}{'x' * (number % 3)}" for number in range(300)]
    both.append(*tags, "a", "b")
    both.kill(rng.sample(range(1, 300), 60))
    for tag, prefix in (
        ("a", True),
        ("", True),
        ("a" + "-" * 20 + "2", True),
        (tags[0], False),
        ("zz", True),
    ):
        wanted = set(both.twin.find_tag(tag.encode(), prefix, 280))
        found: list[int] = []
        todo = [(tag.encode(), prefix, 0)]
        while todo:
            text, is_prefix, from_seq = todo.pop()
            seqs, rest = both.log.search_tag(text, is_prefix, 280, steps, from_seq)
            found += seqs.tolist()
            if rest is not None and is_prefix:
                todo += [(text, False, 0), *((text + bytes((byte,)), True, 0) for byte in range(256))]
            elif rest is not None:
                todo.append((text, False, rest))
            both.kill([rng.randint(1, 300)] if rng.random() < 0.05 else [])
        still = set(both.twin.find_tag(tag.encode(), prefix, 280))
        assert len(found) == len(set(found))
        assert still <= set(found) <= wanted
