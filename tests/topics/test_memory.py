"""Memory: chunks of ephemeral topics go from the front, payloads of logged topics stay on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlog.native.topics.log import FrameBuffer, RecordBatch, Sources, TopicLog
from everlog.topics.memory import CHUNK_BYTES_MAX, MemoryChunks, SpareChunks
from tests.support.engines import EngineHarness, sized


def store(log: TopicLog, chunks: MemoryChunks, *sizes: int) -> int:
    """Append a batch of records with so many bytes each to the chunks; return its source."""
    records = [sized(size) for size in sizes]
    chunk = chunks.chunk_for(RecordBatch(records).frame_bytes)
    log.append(chunk.buffer, chunk.source, 0, records, 1, 0, None, False)
    chunks.publish(chunk, log.next_seq - 1)
    return chunk.source


def is_held(sources: Sources, source: int) -> bool:
    """Whether the source still has memory."""
    try:
        return sources.is_loaded(source)
    except KeyError:
        return False


def test_chunks_are_freed_from_the_front_and_the_newest_stays() -> None:
    sources, log = Sources(), TopicLog(1)
    chunks = MemoryChunks(sources, SpareChunks())
    first, *_, last = [store(log, chunks, 3000) for _ in range(8)]
    assert first != last
    chunks.drop_below(1)
    assert is_held(sources, first)
    chunks.drop_below(9)
    assert (is_held(sources, first), is_held(sources, last)) == (False, True)
    chunks.clear()
    assert not is_held(sources, last)


def test_a_batch_larger_than_a_chunk_gets_one_of_its_own() -> None:
    sources, log = Sources(), TopicLog(1)
    chunks = MemoryChunks(sources, SpareChunks())
    small = store(log, chunks, 10)
    large = store(log, chunks, *[1 << 20] * 3)
    assert small != large
    assert log.render(sources, 0, 4, 10, 0, (), False, True, True).delivered == 4


def test_a_released_chunk_is_used_again_unless_it_is_being_read() -> None:
    sources, spare = Sources(), SpareChunks()
    chunks = [MemoryChunks(sources, spare) for _ in range(2)]
    first, second = (own.chunk_for(CHUNK_BYTES_MAX) for own in chunks)
    with memoryview(first.buffer):
        chunks[0].clear()
    second.buffer.append_bytes(b"left behind")
    chunks[1].clear()
    third, fourth = (chunks[0].chunk_for(CHUNK_BYTES_MAX) for _ in range(2))
    assert third.buffer is fourth.buffer is second.buffer
    assert len(third.buffer) == 0
    assert chunks[1].chunk_for(CHUNK_BYTES_MAX).buffer is not first.buffer


def test_only_a_few_chunks_of_the_usual_size_are_held_for_later() -> None:
    spare = SpareChunks()
    given = [FrameBuffer(CHUNK_BYTES_MAX) for _ in range(20)]
    for buffer in given:
        spare.release(CHUNK_BYTES_MAX, buffer)
    spare.release(2048, FrameBuffer(2048))
    assert all(spare.acquire(CHUNK_BYTES_MAX) in given for _ in range(8))
    assert spare.acquire(CHUNK_BYTES_MAX) not in given


@pytest.mark.parametrize("way", ["cap", "ttl", "delete"])
def test_an_ephemeral_topic_gives_back_what_it_no_longer_holds(way: str) -> None:
    harness = EngineHarness(None)
    limits = {"cap": {"cap_records": 10}, "ttl": {"ttl_ms": 5}}.get(way, {})
    harness.put("t", durability="ephemeral", **limits)
    chunk_counts = []
    for _ in range(40):
        harness.append("t", *[sized(50_000)] * 10)
        harness.advance_ms(10)
        if way == "delete":
            harness.delete("t", before_seq=harness.state("t").head_seq)
        chunks = harness.engine._core.topics["t"].storage.chunks
        assert chunks is not None
        chunk_counts.append(len(chunks._chunks))
    assert max(chunk_counts) <= 3


def test_a_deleted_topic_gives_its_memory_back() -> None:
    harness = EngineHarness(None)
    sources = harness.engine._core.sources
    next_source = sources.add(None)
    sources.remove(next_source)
    for _ in range(5):
        harness.append("t", sized(100_000))
        harness.delete_topic("t")
    assert sources.add(None) == next_source


def test_the_memory_of_a_logged_topic_is_its_index_and_not_its_payload(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path, segment_max_events=20, mapped_bytes_max=1 << 18)
    for _ in range(5):
        harness.append("t", *[sized(10_000)] * 40)
        harness.checkpoint()
    topic = harness.engine._core.topics["t"]
    assert harness.state("t").bytes == 2_000_000
    assert topic.log.index_memory_bytes <= 64 * 1024
    assert topic.storage.chunks is None
    assert len(harness.items("t")) == 200
    store = harness.engine._store
    assert store is not None
    assert store.loaded.mapped_bytes <= 1 << 18


def test_records_of_a_topic_that_became_persistent_leave_memory_with_the_next_checkpoint(
    tmp_path: Path,
) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="ephemeral")
    harness.append("t", *[sized(10_000)] * 100)
    harness.put("t", durability="disk")
    harness.checkpoint(2)
    assert harness.engine._core.topics["t"].storage.chunks is None
    assert harness.state("t").count == len(harness.items("t")) == 100
