"""The index of a topic against its plain-Python twin: every operation, in any order, and its memory."""

import json
import random
import struct
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from everlog.errors import Corrupt
from everlog.native.topics.log import FrameBuffer, LogReplay, Sources, TopicLog, next_live
from tests.native.topic_log_twin import CONTINUES, DEAD, DURABLE, INDEX_ENTRY, NewRecord, TwinLog, index_entry
from tests.support.effort import effort

TOPIC = 0xABCDEF0123
BLOCK = 4096
FOREVER = 1 << 62

TEXTS = st.sampled_from(["", "a", "ab", "abc", "abd", "b", 'q"\\\n', "ä€😀", "x" * 200])
NODES = st.sampled_from([None, "", "n1", "n2", "ö"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


@st.composite
def new_records(draw: st.DrawFn) -> NewRecord:
    """A record with JSON texts in which white space may stand between tokens."""
    indent = draw(st.sampled_from([None, 0, 3]))
    meta = draw(st.none() | st.dictionaries(st.text(max_size=4), VALUES, max_size=3))
    data = json.dumps(draw(VALUES), indent=indent, ensure_ascii=False).encode()
    meta_text = None if meta is None else json.dumps(meta, indent=indent, ensure_ascii=False).encode()
    return NewRecord(data, draw(st.none() | TEXTS), draw(NODES), meta_text)


def seqs_of(*seqs: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.array(seqs, np.uint64)


class TopicLogMachine(RuleBasedStateMachine):
    """Drives a log and its twin; frames lie in one log buffer and in segments made from it."""

    @initialize(first=st.sampled_from([1, 5, 1 << 40]))
    def start(self, first: int) -> None:
        self.clock = 1000
        self.offset = 64
        self.buffer = FrameBuffer(4 << 20)
        self.sources = Sources()
        self.log_source = 0
        self.log = TopicLog(TOPIC, first)
        self.twin = TwinLog(TOPIC, first, first, first)
        self.in_log: dict[int, int] = {}
        self.segments: list[tuple[int, bytes, bytes, int]] = []
        self.sealed = first
        self.refresh()

    def refresh(self) -> None:
        """Show the log buffer as it is now, behind what a file would have before it."""
        raw = bytes(self.offset) + self.buffer.tobytes()
        if self.log_source == 0:
            self.log_source = self.sources.add(raw)
        else:
            self.sources.set(self.log_source, raw)

    @rule(
        batch=st.lists(new_records(), min_size=1, max_size=5),
        node=NODES,
        later=st.integers(0, 3),
        continues=st.booleans(),
    )
    def append(self, batch: list[NewRecord], node: str | None, later: int, continues: bool) -> None:
        self.clock += later
        start = len(self.buffer)
        flags = DURABLE if later else 0
        source = self.log_source
        size = self.log.append(
            self.buffer, source, self.offset, list(batch), self.clock, flags, node, continues
        )
        pushed = [self.twin.append(new, self.clock, node) for new in batch]
        frames: list[bytes] = []
        for record in pushed:
            goes_on = CONTINUES if continues or record is not pushed[-1] else 0
            self.in_log[record.seq] = start + sum(map(len, frames))
            frames.append(record.log_frame(TOPIC, flags | goes_on))
        assert self.buffer.tobytes()[start:] == b"".join(frames)
        assert size == sum(record.payload for record in pushed)
        self.refresh()

    @rule(count=st.integers(1, 6))
    def pop(self, count: int) -> None:
        newest = self.twin.next_seq - 1
        possible = 0
        while newest - possible in self.in_log and newest - possible >= max(self.twin.base_seq, self.sealed):
            possible += 1
        count = min(count, possible)
        self.log.pop(self.buffer, self.offset, count)
        self.twin.pop(count)
        if count:
            self.buffer.truncate(self.in_log[self.twin.next_seq])
        self.in_log = {seq: place for seq, place in self.in_log.items() if seq < self.twin.next_seq}
        self.refresh()

    @rule(count=st.sampled_from([0, 1, 2, 30, BLOCK - 1, BLOCK, 2 * BLOCK + 3]), later=st.integers(0, 3))
    def push_holes(self, count: int, later: int) -> None:
        if len(self.twin.timestamps) > 6 * BLOCK:
            return
        self.clock += later
        self.log.push_holes(count, self.clock)
        self.twin.push_holes(count, self.clock)

    def some_seq(self, data: st.DataObject) -> int:
        records = list(self.twin.records)
        near = st.integers(max(self.twin.first_seq - 1, 0), self.twin.next_seq + 1)
        return int(data.draw(st.sampled_from(records) | near if records else near))

    @rule(data=st.data(), count=st.integers(0, 4))
    def kill(self, data: st.DataObject, count: int) -> None:
        seqs = [self.some_seq(data) for _ in range(count)]
        assert self.log.kill(seqs_of(*seqs)) == self.twin.kill(seqs)

    @rule(data=st.data())
    def kill_below(self, data: st.DataObject) -> None:
        before = self.some_seq(data)
        expected = self.twin.kill([seq for seq in self.twin.records if seq < before])
        assert self.log.kill_below(before) == expected

    @rule(data=st.data())
    def kill_range(self, data: st.DataObject) -> None:
        first, end = self.some_seq(data), self.some_seq(data)
        expected = self.twin.kill([seq for seq in self.twin.records if first <= seq < end])
        assert self.log.kill_range(first, end) == expected

    @rule(data=st.data())
    def look_around(self, data: st.DataObject) -> None:
        first, last = self.some_seq(data), self.some_seq(data)
        live = [record.seq for record in self.twin.live()]
        held = range(max(first, self.twin.base_seq), min(last + 1, self.twin.next_seq))
        assert self.log.dead_seqs(first, last).tolist() == [seq for seq in held if seq not in live]
        between = [record.payload for record in self.twin.live() if first <= record.seq < last]
        assert self.log.live_in(first, last) == (len(between), sum(between))
        assert self.log.last_live_below(first) == max((seq for seq in live if seq < first), default=0)

    @rule(tag=TEXTS, prefix=st.booleans(), data=st.data(), delete=st.booleans())
    def find_tag(self, tag: str, prefix: bool, data: st.DataObject, delete: bool) -> None:
        before = data.draw(st.just(FOREVER) | st.just(self.some_seq(data)))
        found = self.log.find_tag(tag.encode(), prefix, before)
        assert found.tolist() == self.twin.find_tag(tag.encode(), prefix, before)
        if delete:
            assert self.log.kill(found) == self.twin.kill(found.tolist())
            assert self.log.find_tag(tag.encode(), prefix, before).size == 0

    @rule(data=st.data(), max_records=st.integers(0, 5), max_bytes=st.integers(0, 60))
    def plan_caps(self, data: st.DataObject, max_records: int, max_bytes: int) -> None:
        floor = max(self.some_seq(data), self.twin.first_live)
        left = [record for record in self.twin.live() if record.seq >= floor]
        totals = len(left), sum(record.payload for record in left)
        plan = self.log.plan_caps(floor, *totals, max_records, max_bytes)
        assert plan == self.twin.plan_caps(floor, *totals, max_records, max_bytes)

    @rule(data=st.data(), back=st.integers(-2, 12))
    def find_ts(self, data: st.DataObject, back: int) -> None:
        end = data.draw(st.just(FOREVER) | st.just(self.some_seq(data)))
        assert self.log.find_ts(self.clock - back, end) == self.twin.find_ts(self.clock - back, end)

    @rule(data=st.data())
    def drop_front(self, data: st.DataObject) -> None:
        seq = self.some_seq(data)
        self.log.drop_front(seq)
        self.twin.drop_front(seq)

    @rule(
        data=st.data(),
        limit=st.sampled_from([0, 1, 2, 5, 1000]),
        max_bytes=st.sampled_from([0, 1, 10, 40, 1 << 20]),
        nodes=st.sets(st.sampled_from([b"n1", b"n2", "ö".encode(), b""])),
        parts=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    )
    def render(
        self,
        data: st.DataObject,
        limit: int,
        max_bytes: int,
        nodes: set[bytes],
        parts: tuple[bool, bool, bool],
    ) -> None:
        from_seq, end_seq = self.some_seq(data), data.draw(st.just(FOREVER) | st.just(self.some_seq(data)))
        read = self.log.render(self.sources, from_seq, end_seq, limit, max_bytes, tuple(nodes), *parts)
        expected = self.twin.render(from_seq, end_seq, limit, max_bytes, tuple(nodes), parts)
        assert json.loads(read.json) == expected.records
        assert (read.next_from_seq, read.delivered, read.scanned) == expected[1:]
        assert (read.missing_source, read.corrupt_seq) == (0, 0)
        assert not parts[2] or read.json == self.as_json(expected.records)

    @staticmethod
    def as_json(records: list[dict[str, Any]]) -> bytes:
        """The exact text, as the order and the spelling of what is rendered are promised too.

        Data and meta keep the escapes they came with; those of a tag are the log's own.
        """

        def spelled(part: str, value: Any) -> str:
            text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
            return f'"{part}":' + (text.replace("\\n", "\\u000a") if part == "$tag" else text)

        texts = [",".join(spelled(*part) for part in record.items()) for record in records]
        return ("[" + ",".join("{" + text + "}" for text in texts) + "]").encode()

    @precondition(lambda self: max(self.sealed, self.twin.base_seq) < self.twin.next_seq)
    @rule(data=st.data(), before=st.integers(0, 100))
    def seal(self, data: st.DataObject, before: int) -> None:
        """Move a run of records to a segment of their own."""
        first = max(self.sealed, self.twin.base_seq)
        # A copy that was planned before the front was dropped.
        first = max(first - data.draw(st.integers(0, 2)), self.sealed)
        last = data.draw(st.integers(first, self.twin.next_seq - 1))
        data_out, index_out = FrameBuffer(), FrameBuffer()
        self.log.copy_to_segment(self.sources, first, last, before, data_out, index_out)
        frames, entries, offset = [], [], before
        for seq in range(first, last + 1):
            record = self.twin.records.get(seq)
            ts = self.twin.timestamps[max(seq, self.twin.base_seq) - self.twin.first_seq]
            if record is None or not record.live:
                entries.append(index_entry(offset, 0, ts, DEAD))
                continue
            frame = self.segment_frame(seq)
            entries.append(index_entry(offset, len(frame), ts, record.flags))
            frames.append(frame)
            offset += len(frame)
        assert data_out.tobytes() == b"".join(frames)
        assert index_out.tobytes() == b"".join(entries)
        raw = bytes(before) + data_out.tobytes()
        source = self.sources.add(raw)
        self.log.set_segment(first, index_out, source)
        self.segments.append((first, raw, index_out.tobytes(), source))
        self.sealed = last + 1

    def segment_frame(self, seq: int) -> bytes:
        """The expected frame; the durable flag comes from the log frame."""
        flags = self.buffer.tobytes()[self.in_log[seq] + 5]
        return self.twin.records[seq].segment_frame(flags & DURABLE)

    @rule()
    def restart(self) -> None:
        """Build the log anew from its segments and the log buffer, then bring the deaths over."""
        log = TopicLog(TOPIC, self.twin.base_seq)
        for segment_first, raw, all_entries, source in self.segments:
            first = max(self.twin.base_seq, segment_first)
            entries = all_entries[(first - segment_first) * INDEX_ENTRY.size :]
            if not entries:
                continue
            need = log.load_index(first, entries, source)
            count = len(entries) // INDEX_ENTRY.size
            assert log.load_frames(first, count, raw) == 0
            assert need <= count
        log_bytes = bytes(self.offset) + self.buffer.tobytes() + log_end()
        replay = LogReplay(log_bytes, self.offset, self.log_source, {TOPIC: log})
        while replay.run() is not None:
            pass
        if log.next_seq < self.twin.next_seq:
            log.push_holes(self.twin.next_seq - log.next_seq, self.clock)
        dead = [seq for seq, record in self.twin.records.items() if not record.live]
        log.kill(seqs_of(*dead))
        log.drop_front(self.twin.base_seq)
        if log.base_seq == self.twin.base_seq:  # not if it has only holes: those are never written
            self.log = log
            for seq in range(log.base_seq, log.next_seq):
                if seq not in self.twin.records:  # a hole takes the time of what was before it
                    self.twin.timestamps[seq - self.twin.first_seq] = log.timestamp(seq)
        assert self.twin.timestamps == sorted(self.twin.timestamps)
        assert (log.live_count, log.live_bytes) == (self.log.live_count, self.log.live_bytes)

    @invariant()
    def totals_agree(self) -> None:
        log, twin = self.log, self.twin
        live = twin.live()
        assert (log.base_seq, log.next_seq, log.first_live) == (twin.base_seq, twin.next_seq, twin.first_live)
        assert (log.live_count, log.live_bytes) == (len(live), sum(record.payload for record in live))
        for record in list(twin.records.values())[-3:]:
            assert log.is_live(record.seq) == record.live
            assert log.timestamp(record.seq) == record.ts
            if record.seq >= self.sealed:
                place = (self.log_source, self.offset + self.in_log[record.seq])
                assert log.place(record.seq)[:2] == place
                assert log.place(record.seq)[3]


def log_end() -> bytes:
    """A batch of a control frame, so that a log that ends inside a batch is still whole."""
    control = FrameBuffer()
    control.append_control(13, 0, 0, 0, 0, b"")
    return control.tobytes()


TestTopicLog = TopicLogMachine.TestCase
TestTopicLog.settings = settings(max_examples=effort(80), stateful_step_count=40, deadline=None)


# --- Blocks and memory -------------------------------------------------------------------------------------


def plain_entries(count: int, first_ts: int = 1000) -> bytes:
    """Index entries of records without tag and node: payload 10, one millisecond apart."""
    rows = np.zeros(count, np.dtype([("offset", "<u4"), ("size", "<u4"), ("ts", "<u8"), ("flags", "V4")]))
    rows["size"] = 48
    rows["ts"] = first_ts + np.arange(count)
    return rows.tobytes()


def test_a_million_records_take_at_most_forty_bytes_each() -> None:
    log = TopicLog(TOPIC)
    assert log.load_index(1, plain_entries(1_000_000), 1) == 0
    assert log.live_bytes == 10_000_000
    assert 33 <= log.index_memory_bytes / 1_000_000 <= 40


def test_a_topic_that_keeps_few_records_stays_small() -> None:
    log = TopicLog(TOPIC)
    worst = 0
    for first in range(1, 60_000, 10):
        log.load_index(first, plain_entries(10, first), 1)
        log.kill_below(max(first - 90, 1))
        log.drop_front(log.first_live)
        if log.next_seq % 1000 == 1:
            worst = max(worst, log.index_memory_bytes)
        assert log.timestamp(log.first_live) == log.first_live
    assert log.live_count == 100
    assert log.index_memory_bytes < 20_000
    assert worst < 2 * BLOCK * 40
    empty = TopicLog(TOPIC)
    assert empty.index_memory_bytes == 0
    empty.load_index(1, plain_entries(3), 1)
    assert empty.index_memory_bytes < 1000


def test_dropping_the_front_gives_memory_back() -> None:
    log = TopicLog(TOPIC)
    log.load_index(1, plain_entries(50 * BLOCK), 1)
    full = log.index_memory_bytes
    log.kill_below(40 * BLOCK + 1)
    assert log.index_memory_bytes == full
    log.drop_front(40 * BLOCK + 1)
    assert log.index_memory_bytes < full * 0.25
    assert (log.base_seq, log.timestamp(40 * BLOCK + 1)) == (40 * BLOCK + 1, 1000 + 40 * BLOCK)
    log.kill_below(FOREVER)
    log.drop_front(FOREVER)
    assert log.index_memory_bytes == 0
    assert log.base_seq == log.next_seq == 50 * BLOCK + 1


def test_random_deaths_over_many_blocks_agree_with_an_array() -> None:
    rng = random.Random(3)
    count = 5 * BLOCK + 77
    log = TopicLog(TOPIC)
    log.load_index(1, plain_entries(count), 1)
    live = np.ones(count + 1, bool)
    live[0] = False
    for _ in range(300):
        if rng.random() < 0.6:
            seqs = np.array([rng.randrange(0, count + 5) for _ in range(rng.randrange(200))], np.uint64)
            inside = np.unique(seqs[(seqs > 0) & (seqs <= count)])
            expected = int(live[inside].sum())
            live[inside] = False
            assert log.kill(seqs) == (expected, expected * 10)
        elif rng.random() < 0.5:
            before = min(log.first_live + rng.randrange(150), count)
            expected = int(live[:before].sum())
            live[:before] = False
            assert log.kill_below(before) == (expected, expected * 10)
        else:
            log.drop_front(rng.randrange(log.first_live + 2))
        alive = np.flatnonzero(live)
        assert log.first_live == (int(alive[0]) if alive.size else count + 1)
        assert log.live_count == alive.size
        cutoff = 1000 + rng.randrange(count)
        assert log.find_ts(cutoff, FOREVER) == max(cutoff - 999, log.first_live)
        cap = rng.randrange(1, alive.size + 1)
        floor, left, size = log.plan_caps(log.first_live, alive.size, alive.size * 10, cap, 0)
        assert (left, size) == (cap, cap * 10)
        assert floor == (int(alive[-cap - 1]) + 1 if cap < alive.size else log.first_live)


def test_a_row_of_holes_takes_no_memory_for_each_seq() -> None:
    holes = 1 << 30
    log = TopicLog(TOPIC)
    log.load_index(1, plain_entries(10), 1)
    log.push_holes(holes, 1020)
    assert log.index_memory_bytes < 8 << 20
    log.load_index(holes + 11, plain_entries(2 * BLOCK), 1)
    assert log.live_count == 10 + 2 * BLOCK
    assert next_live(log, 11) == holes + 11
    assert log.last_live_below(holes + 11) == 10
    assert log.live_in(5, holes + 13) == (8, 80)
    assert log.find_ts(1015, FOREVER) == 11
    assert log.kill_below(holes + 12) == (11, 110)
    assert log.first_live == holes + 12
    while log.base_seq < log.first_live:
        log.drop_front(log.first_live)
    assert log.place(holes + 13)[0] == 1


@pytest.mark.parametrize("seed", range(12))
def test_rows_of_holes_are_as_holes_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    logs = TopicLog(TOPIC), TopicLog(TOPIC)

    def push_holes(count: int, ts: int) -> None:
        logs[0].push_holes(count, ts)
        for _ in range(count):
            logs[1].push_holes(1, ts)

    for ts in range(1000, 1030):
        step = rng.randrange(6)
        end = logs[0].next_seq
        if step < 2:
            push_holes(rng.choice((1, BLOCK - 1, 2 * BLOCK, rng.randrange(6 * BLOCK))), ts)
        for log in logs:
            random.seed(ts)
            if step == 2:
                log.load_index(end, plain_entries(random.randrange(1, 2 * BLOCK)), 1)
            elif step == 3:
                log.kill_range(random.randrange(end + 1), random.randrange(end + 1))
            elif step == 4:
                log.drop_front(random.randrange(end + 1))
            elif log.next_seq > log.base_seq:
                log.pop(None, 0, random.randrange(min(3 * BLOCK, log.next_seq - log.base_seq)))
        found, wanted = (
            (log.base_seq, log.next_seq, log.first_live, log.live_count, log.live_bytes) for log in logs
        )
        assert found == wanted
        for _ in range(20):
            first, last = sorted(rng.randrange(logs[0].base_seq, logs[0].next_seq + 1) for _ in range(2))
            found, wanted = (
                (
                    next_live(log, first),
                    log.last_live_below(last),
                    log.live_in(first, last),
                    log.find_ts(ts, last),
                    log.sizes(first, last - first).tolist(),
                )
                for log in logs
            )
            assert found == wanted


def test_sizes_of_entries_in_a_row_come_from_every_block() -> None:
    log = TopicLog(TOPIC)
    sizes = [48 + n % 7 for n in range(10_000)]
    ends = list(accumulate(sizes, initial=0))
    log.load_index(5, b"".join(index_entry(ends[n], size, 1, 0) for n, size in enumerate(sizes)), 9)
    log.push_holes(3, 1)
    sizes += [0, 0, 0]
    for first, count in ((5, len(sizes)), (5, 1), (4096, 4097), (4100, 0), (10_004, 4), (8191, 2)):
        assert log.sizes(first, count).tolist() == sizes[first - 5 : first - 5 + count]
    for first, count in ((4, 1), (5, len(sizes) + 1), (5, 2**64 - 5)):
        with pytest.raises(IndexError, match="there are those from 5 to 10007"):
            log.sizes(first, count)


def test_places_of_many_records_come_as_rows() -> None:
    log = TopicLog(TOPIC)
    log.load_index(5, b"".join(index_entry(100 * n, 48, 1, 0) for n in range(4)), 9)
    rows = log.places(seqs_of(8, 5))
    assert rows["seq"].tolist() == [8, 5]
    assert rows["offset"].tolist() == [300, 0]
    assert rows["source"].tolist() == [9, 9]
    assert rows["size"].tolist() == [48, 48]
    assert rows["in_log"].tolist() == [False, False]
    assert log.place(6) == (9, 100, 48, False)
    assert log.places(seqs_of()).size == 0
    with pytest.raises(IndexError, match="seq 9 has no entry; there are those from 5 to 8"):
        log.places(seqs_of(5, 9))
    with pytest.raises(IndexError):
        log.place(4)


# --- Loading what is not as it should be --------------------------------------------------------------------


def test_an_index_must_be_whole_entries_behind_the_log() -> None:
    log = TopicLog(TOPIC, 5)
    with pytest.raises(Corrupt, match="21 bytes of a segment index"):
        log.load_index(5, bytes(21), 1)
    with pytest.raises(ValueError, match="already goes to seq 4"):
        log.load_index(4, plain_entries(1), 1)
    assert log.load_index(5, b"", 1) == 0
    log.load_index(5, plain_entries(1), 1)
    with pytest.raises(Corrupt, match="cannot follow seq 5"):
        log.load_index(1 << 40, plain_entries(1), 1)
    assert (log.next_seq, log.live_count) == (6, 1)


def test_a_gap_between_segments_becomes_holes() -> None:
    log = TopicLog(TOPIC)
    log.load_index(10, plain_entries(2), 1)
    log.load_index(14, plain_entries(1, 2000), 1)
    assert (log.base_seq, log.next_seq, log.live_count) == (10, 15, 3)
    assert log.place(12) == (0, 0, 0, False)
    assert log.timestamp(13) == 1001
    assert not log.is_live(12)


def test_deleted_and_missing_records_of_a_segment_are_dead() -> None:
    entries = index_entry(0, 48, 1, DEAD) + index_entry(48, 0, 2, 0) + index_entry(48, 48, 3, 0)
    log = TopicLog(TOPIC)
    assert log.load_index(1, entries, 1) == 0
    assert [log.is_live(seq) for seq in (1, 2, 3)] == [False, False, True]
    assert (log.live_count, log.live_bytes, log.first_live) == (1, 10, 3)
    assert log.place(1) == (1, 0, 48, False)


def test_only_records_that_are_not_written_can_be_taken_back() -> None:
    log = TopicLog(TOPIC)
    buffer = FrameBuffer()
    log.append(buffer, 1, 100, [NewRecord(b"1", "t"), NewRecord(b"2")], 5, 0, None, False)
    with pytest.raises(ValueError, match="3 records cannot be taken back"):
        log.pop(buffer, 100, 3)
    for wrong_buffer, offset in ((None, 100), (buffer, 99), (FrameBuffer(), 100)):
        with pytest.raises(ValueError, match="the frame of seq 1 is not in the buffer"):
            log.pop(wrong_buffer, offset, 2)
    assert log.find_tag(b"t", False, 9).tolist() == [1]
    log.pop(None, 0, 1)
    log.pop(buffer, 100, 1)
    assert (log.next_seq, log.live_count, log.live_bytes, log.index_memory_bytes) == (1, 0, 0, 0)
    assert log.find_tag(b"t", False, 9).size == 0


def test_a_segment_must_describe_the_live_records_it_takes_over() -> None:
    log = TopicLog(TOPIC)
    buffer = FrameBuffer()
    log.append(buffer, 1, 0, [NewRecord(b"1"), NewRecord(b"2")], 5, 0, None, False)
    size = len(buffer) // 2 - 8
    for bad in (index_entry(0, size + 1, 5, 0), index_entry(0, 0, 5, DEAD), index_entry(0, size, 5, DEAD)):
        with pytest.raises(Corrupt, match="does not describe the live record 2"):
            log.set_segment(1, index_entry(0, size, 5, 0) + bad, 2)
        assert log.place(1)[3]
    with pytest.raises(ValueError, match="goes beyond seq 2"):
        log.set_segment(1, index_entry(0, size, 5, 0) * 3, 2)
    log.set_segment(1, b"", 2)
    log.set_segment(2, index_entry(7, size, 5, 0), 2)
    assert log.place(2) == (2, 7, size, False)


def test_copying_names_the_record_whose_frame_is_not_there() -> None:
    log = TopicLog(TOPIC)
    buffer, data, index = FrameBuffer(), FrameBuffer(), FrameBuffer()
    sources = Sources()
    source = sources.add(None)
    log.append(buffer, source, 0, [NewRecord(b"1"), NewRecord(b"2")], 5, 0, None, False)
    with pytest.raises(Corrupt, match=f"seq 1 lies in source {source}, which is not loaded"):
        log.copy_to_segment(sources, 1, 2, 0, data, index)
    sources.set(source, buffer.tobytes()[:-1])
    with pytest.raises(Corrupt, match="the frame of seq 2 is not where the index says"):
        log.copy_to_segment(sources, 1, 2, 0, data, index)
    sources.set(source, buffer.tobytes())
    with pytest.raises(ValueError, match="do not fit into one segment"):
        log.copy_to_segment(sources, 1, 2, (1 << 32) - 50, data, index)
    for first, last in ((2, 1), (2, 3), (1, (1 << 64) - 1), (5, 6)):
        with pytest.raises(ValueError, match="are no range below 3"):
            log.copy_to_segment(sources, first, last, 0, data, index)
    assert (len(data), len(index)) == (0, 0)
    log.copy_to_segment(sources, 1, 2, 0, data, index)
    assert len(index) == 2 * INDEX_ENTRY.size


def test_numbers_that_cannot_be_are_refused() -> None:
    for next_seq in (0, 1 << 63):
        with pytest.raises(ValueError, match="next_seq"):
            TopicLog(TOPIC, next_seq)
    log = TopicLog(TOPIC)
    with pytest.raises(ValueError, match="are too many"):
        log.push_holes(1 << 40, 0)
    with pytest.raises(ValueError, match="use smaller files"):
        log.append(FrameBuffer(), 1, (1 << 32) - 40, [NewRecord(b"1")], 0, 0, None, False)
    assert log.next_seq == 1
    assert struct.calcsize("<IIQB3x") == INDEX_ENTRY.size
