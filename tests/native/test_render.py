"""Reading: the exact JSON, where a read stops, and buffers that are damaged, cut, missing or hostile."""

import contextlib
import json
import random
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import Corrupt
from everlog.native.queue.ring import Mapping
from everlog.native.topics.log import FrameBuffer, Rendered, Sources, TopicLog
from tests.native.topic_log_twin import (
    APPEND,
    DEAD,
    HAS_META,
    HAS_NODE,
    HAS_TAG,
    NewRecord,
    TwinRecord,
    blob,
    index_entry,
    log_frame,
    segment_frame,
)

TOPIC = 11
FOREVER = 1 << 62


def read(log: TopicLog, sources: Sources, from_seq: int = 0, limit: int = 1000) -> Rendered:
    """Read everything that comes behind `from_seq`."""
    return log.render(sources, from_seq, FOREVER, limit, 0, (), True, True, True)


def load_segment(records: list[TwinRecord], sources: Sources) -> tuple[TopicLog, int, bytes]:
    """A log of the records in one segment: the log, the segment's source and its data."""
    frames = [record.segment_frame() for record in records]
    entries, offset = [], 0
    for record, frame in zip(records, frames, strict=True):
        entries.append(index_entry(offset, len(frame), record.ts, record.flags))
        offset += len(frame)
    data = b"".join(frames)
    source = sources.add(data)
    log = TopicLog(TOPIC)
    log.load_index(records[0].seq, b"".join(entries), source)
    assert log.load_frames(records[0].seq, len(records), data) == 0
    return log, source, data


def some_records(count: int, first: int = 1) -> list[TwinRecord]:
    return [
        TwinRecord(
            seq, 1000 + seq, b'{"n":%d}' % seq, b"t%d" % (seq % 3), b"node", b'{"m":[]}' if seq % 2 else None
        )
        for seq in range(first, first + count)
    ]


# --- What is written ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seq", [1, 9, 10, 99, 100, 12345, (1 << 32) - 1, 10**18, (1 << 62)])
def test_numbers_of_every_width_are_written_in_full(seq: int) -> None:
    for ts in (0, 7, 1_700_000_000_000, (1 << 64) - 1):
        raw = log_frame(APPEND, 0, TOPIC, seq, ts, data=b"null")
        log, sources = TopicLog(TOPIC, seq), Sources()
        buffer = FrameBuffer()
        source = sources.add(None)
        log.append(buffer, source, 0, [NewRecord(b"null")], ts, 0, None, False)
        assert buffer.tobytes() == raw
        sources.set(source, raw)
        result = log.render(sources, seq - 1, seq, 1, 0, (), True, True, True)
        assert result.json == b'[{"$seq":%d,"$ts":%d,"data":null}]' % (seq, ts)


@given(st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30))
def test_node_and_tag_are_escaped_so_that_json_gives_them_back(node: str, tag: str) -> None:
    log, sources, buffer = TopicLog(TOPIC), Sources(), FrameBuffer()
    log.append(buffer, 1, 0, [NewRecord(b"1", tag, node)], 5, 0, None, False)
    sources.add(buffer)
    assert json.loads(read(log, sources).json) == [
        {"$seq": 1, "$ts": 5, "$node": node, "$tag": tag, "data": 1}
    ]


def test_a_page_larger_than_the_kept_text_is_whole() -> None:
    log, sources, buffer = TopicLog(TOPIC), Sources(), FrameBuffer()
    text = b'"' + b"x" * 500_000 + b'"'
    log.append(buffer, 1, 0, [NewRecord(text)] * 12, 5, 0, None, False)
    sources.add(buffer)
    for _ in range(2):
        result = read(log, sources)
        assert [len(record["data"]) for record in json.loads(result.json)] == [500_000] * 12


def test_an_empty_log_reads_as_an_empty_array() -> None:
    assert read(TopicLog(TOPIC), Sources()) == (b"[]", 0, 0, 0, 0, 0)
    assert read(TopicLog(TOPIC), Sources(), from_seq=77).next_from_seq == 77
    assert read(TopicLog(TOPIC), Sources(), from_seq=(1 << 64) - 1).next_from_seq == (1 << 64) - 1


def test_nodes_must_be_bytes() -> None:
    with pytest.raises(TypeError):
        TopicLog(TOPIC).render(Sources(), 0, 1, 1, 0, ("a",), True, True, True)  # type: ignore[arg-type]


# --- Where a read stops ------------------------------------------------------------------------------------


def test_a_source_that_is_not_loaded_stops_the_read_before_its_first_record() -> None:
    log, sources, buffer = TopicLog(TOPIC), Sources(), FrameBuffer()
    first, second = sources.add(None), sources.add(None)
    log.append(buffer, first, 0, [NewRecord(b"1"), NewRecord(b"2")], 5, 0, None, False)
    place = len(buffer)
    log.append(buffer, second, 0, [NewRecord(b"3")], 5, 0, None, False)
    assert read(log, sources) == (b"[]", 0, 0, 0, first, 0)
    sources.set(first, buffer.tobytes()[:place])
    half = read(log, sources)
    assert (half.next_from_seq, half.delivered, half.missing_source) == (2, 2, second)
    sources.set(second, buffer.tobytes())
    assert read(log, sources, from_seq=2).delivered == 1
    sources.remove(second)
    assert read(log, sources).missing_source == second


def test_a_damaged_byte_anywhere_in_a_segment_stops_the_read_at_its_record() -> None:
    records = some_records(4)
    sources = Sources()
    log, source, data = load_segment(records, sources)
    whole = read(log, sources)
    assert json.loads(whole.json) == [record.rendered() for record in records]
    starts = np.cumsum([len(record.segment_frame()) for record in records])
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        sources.set(source, bytes(damaged))
        hit = int(np.searchsorted(starts, place, side="right")) + 1
        result = read(log, sources)
        if place + 1 in starts:  # the mark: whatever does not say "deleted" says nothing
            assert result == whole
            continue
        assert (result.corrupt_seq, result.next_from_seq, result.delivered) == (hit, hit - 1, hit - 1)
        assert json.loads(result.json) == [record.rendered() for record in records[: hit - 1]]


def test_a_segment_cut_at_any_byte_gives_the_records_before() -> None:
    records = some_records(3)
    sources = Sources()
    log, source, data = load_segment(records, sources)
    for length in range(len(data)):
        sources.set(source, data[:length])
        result = read(log, sources)
        assert result.corrupt_seq == result.delivered + 1
        assert json.loads(result.json) == [record.rendered() for record in records[: result.delivered]]


def test_a_record_marked_deleted_in_its_segment_is_not_delivered() -> None:
    records = some_records(3)
    sources = Sources()
    log, source, data = load_segment(records, sources)
    marked = bytearray(data)
    marked[len(records[0].segment_frame()) + len(records[1].segment_frame()) - 1] = 0xD5
    sources.set(source, bytes(marked))
    result = read(log, sources)
    assert [record["$seq"] for record in json.loads(result.json)] == [1, 3]
    assert (result.scanned, result.next_from_seq) == (3, 3)


@pytest.mark.parametrize(
    "other",
    [
        log_frame(APPEND, 0, TOPIC, 2, 5, data=b"1"),
        log_frame(APPEND, 0, TOPIC + 1, 1, 5, data=b"1"),
        log_frame(APPEND + 1, 0, TOPIC, 1, 5, data=b"1"),
        log_frame(APPEND, HAS_NODE, TOPIC, 1, 5, node=b"1"),
        log_frame(APPEND, 0, TOPIC, 1, 5, data=b"12"),
        log_frame(APPEND, 0, TOPIC, 1, 5),
        bytes(47),
    ],
)
def test_a_log_frame_that_is_not_the_one_of_its_entry_is_corrupt(other: bytes) -> None:
    log, sources, buffer = TopicLog(TOPIC), Sources(), FrameBuffer()
    log.append(buffer, 1, 0, [NewRecord(b"1")], 5, 0, None, False)
    sources.add(other)
    assert read(log, sources) == (b"[]", 0, 0, 0, 0, 1)


def test_a_meta_length_beyond_the_data_is_corrupt() -> None:
    lying = segment_frame(HAS_META, 1, 5, b"", b"", b"\xff\xff\0\0{}1")
    log, sources = TopicLog(TOPIC), Sources()
    log.load_index(1, index_entry(0, len(lying), 5, HAS_META), sources.add(lying))
    assert read(log, sources).corrupt_seq == 1


def test_frames_that_do_not_fit_their_index_are_reported_when_loaded() -> None:
    records = some_records(3)
    frames = [record.segment_frame() for record in records]
    good = [
        index_entry(0, len(frames[0]), 5, HAS_TAG),
        index_entry(len(frames[0]), len(frames[1]), 5, HAS_TAG),
    ]
    data = b"".join(frames)
    for bad in (
        index_entry(1, len(frames[1]), 5, HAS_TAG),
        index_entry(len(frames[0]), len(frames[1]) - 1, 5, HAS_TAG),
        index_entry(len(frames[0]), len(frames[1]) + 1, 5, HAS_TAG),
        index_entry((1 << 32) - 1, 50, 5, HAS_NODE),
        index_entry(0, len(frames[0]), 5, HAS_TAG),
    ):
        log = TopicLog(TOPIC)
        assert log.load_index(1, good[0] + bad, 1) == 2
        assert log.load_frames(1, 2, data) == 2
        assert log.live_bytes == records[0].payload
        assert log.find_tag(b"t", True, FOREVER).tolist() == [1]
    log = TopicLog(TOPIC)
    log.load_index(1, b"".join(good), 1)
    assert log.load_frames(1, 2, b"") == 1
    assert log.load_frames(1, 1 << 63, data) == 0
    assert log.live_bytes == records[0].payload + records[1].payload


ENTRIES = st.builds(
    index_entry,
    st.integers(0, 300) | st.integers(0, (1 << 32) - 1),
    st.integers(0, 200) | st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 64) - 1),
    st.integers(0, 255),
)
SEGMENTS = st.lists(
    st.builds(
        segment_frame,
        st.integers(0, 255),
        st.integers(1, 4),
        st.integers(0, 9),
        st.binary(max_size=3),
        st.binary(max_size=3),
        st.binary(max_size=9) | st.just(blob(b"1", b"{}")),
    ),
    max_size=4,
).map(b"".join)


@given(st.lists(ENTRIES, max_size=8), st.binary(max_size=120) | SEGMENTS)
def test_hostile_indexes_and_segments_do_no_harm(entries: list[bytes], data: bytes) -> None:
    log, sources = TopicLog(TOPIC), Sources()
    source = sources.add(data)
    log.load_index(1, b"".join(entries), source)
    log.load_frames(1, len(entries), data)
    passed = 0
    while passed < len(entries):
        result = read(log, sources, passed, limit=1)
        assert passed <= result.next_from_seq <= len(entries)
        passed = result.corrupt_seq or max(result.next_from_seq, passed + 1)
    log.find_tag(b"", True, FOREVER)
    log.find_ts(5, FOREVER)
    if entries:
        out, index = FrameBuffer(), FrameBuffer()
        try:
            log.copy_to_segment(sources, 1, len(entries), 0, out, index)
        except (Corrupt, ValueError):
            assert len(out) == len(index) == 0
    assert log.kill_below(FOREVER)[0] == sum(1 for entry in entries if not is_dead(entry))
    assert (log.live_count, log.live_bytes) == (0, 0)


def is_dead(entry: bytes) -> bool:
    """Whether an index entry is a hole or deleted."""
    return entry[4:8] == bytes(4) or bool(entry[16] & DEAD)


# --- Sources -----------------------------------------------------------------------------------------------


def test_ids_of_removed_sources_are_used_again() -> None:
    sources = Sources()
    ids = [sources.add(b"x") for _ in range(40)]
    assert ids == list(range(1, 41))
    sources.remove(7)
    for use in (sources.is_loaded, sources.buffer, sources.remove, lambda source: sources.set(source, b"")):
        with pytest.raises(KeyError, match="there is no source 7"):
            use(7)
    with pytest.raises(KeyError):
        sources.buffer(0)
    assert sources.add(None) == 7
    assert not sources.is_loaded(7)
    sources.set(7, b"abc")
    assert sources.is_loaded(7)
    assert sources.buffer(7) == b"abc"
    sources.set(7, None)
    assert sources.buffer(7) is None
    assert sources.add(b"") == 41
    assert sources.is_loaded(41)


def test_a_loaded_buffer_is_held_in_place_until_it_is_replaced() -> None:
    sources = Sources()
    buffer = bytearray(b"abc")
    source = sources.add(buffer)
    with pytest.raises(BufferError):
        buffer.append(1)
    with pytest.raises(TypeError):
        sources.set(source, 5)  # type: ignore[arg-type]
    assert sources.buffer(source) is buffer
    with pytest.raises(TypeError):
        sources.add("text")  # type: ignore[arg-type]
    assert sources.add(b"next") == source + 1
    sources.set(source, b"other")
    buffer.append(1)
    del sources


def test_records_are_read_from_a_mapped_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log, sources, buffer = TopicLog(TOPIC), Sources(), FrameBuffer()
    with path.open("w+b") as file:
        file.truncate(1 << 16)
        source = sources.add(Mapping(file.fileno(), 1 << 16, False))
        log.append(buffer, source, 100, [NewRecord(b'{"a": 1}', "t")], 5, 0, "n", False)
        assert read(log, sources).corrupt_seq == 1
        file.seek(100)
        file.write(buffer)
    assert read(log, sources).json == b'[{"$seq":1,"$ts":5,"$node":"n","$tag":"t","data":{"a":1}}]'


# --- Copying while the owner goes on -----------------------------------------------------------------------


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_worker_copies_while_the_owner_appends_kills_and_unloads() -> None:
    log, sources = TopicLog(TOPIC), Sources()
    buffer = FrameBuffer()
    rng = random.Random(1)
    batch = [NewRecord(b'"%s"' % (b"d" * rng.randrange(500)), f"tag{n % 7}") for n in range(2000)]
    source = sources.add(None)
    for _ in range(10):
        log.append(buffer, source, 0, list(batch), 5, 0, None, False)
    raw = buffer.tobytes()
    sources.set(source, raw)
    expected_data, expected_index = FrameBuffer(), FrameBuffer()
    log.copy_to_segment(sources, 1, 20_000, 0, expected_data, expected_index)
    copies = [(FrameBuffer(), FrameBuffer()) for _ in range(8)]
    started = threading.Event()

    def work() -> None:
        for data, index in copies:
            with contextlib.suppress(Corrupt):  # at a moment when the owner had unloaded the source
                log.copy_to_segment(sources, 1, 10_000, 0, data, index)
            started.set()

    thread = in_thread(work)
    started.wait()
    for _ in range(30):
        log.append(buffer, source, 0, list(batch), 6, 0, None, False)
        sources.set(source, None)
        sources.set(source, bytes(bytearray(raw)))
    thread.join()
    data_start = expected_data.tobytes()
    done = [(data, index) for data, index in copies if len(index)]
    assert done
    for data, index in done:
        assert data_start.startswith(data.tobytes())
        assert expected_index.tobytes().startswith(index.tobytes())
        assert len(index) == 10_000 * 20
