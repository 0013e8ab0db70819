"""Damaged log files, segments, indexes and snapshots: read, or refused with an error of ours.

Checksums are made to match in half of the cases, so that what lies behind them is reached as well.
"""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from xxhash import xxh3_64_intdigest

from everlog.errors import Corrupt, EverlogError
from everlog.fs import OsFs
from everlog.native.columns.frame_columns import FrameColumns
from everlog.native.topics.log import (
    FrameBuffer,
    LogReplay,
    Sources,
    TopicLog,
    copy_records,
    find_frames,
    meta_of,
    read_log_frame,
    read_segment_frame,
    render_jobs,
    scan_log_frames,
    scan_segment_frames,
    select_records,
)
from everlog.topics import NewRecord
from everlog.topics.storage import layout
from everlog.topics.storage.segment_loading import index_entries, sound_count, well_formed_count
from everlog.topics.storage.verify import verify
from tests.support.engines import crashed_directory, open_small, stopped_directory
from tests.support.files import tree
from tests.support.fuzzing import fuzz, mutated, resealed_log, resealed_segment

TOPICS = (3, 4)
EVERYTHING = 2**62
RECORDS = [
    NewRecord(b'{"a":1}', "tag", "node", b'{"m":[1,2]}'),
    NewRecord(b"null"),
    NewRecord(b'"' + b"x" * 300 + b'"', "tag:1"),
    NewRecord(b"[1,2]", None, "n", b"{}"),
]


def log_sample() -> bytes:
    """Batches of two topics, and control frames between them."""
    buffer = FrameBuffer()
    logs = [TopicLog(topic) for topic in TOPICS]
    for number in range(6):
        logs[number % 2].append(buffer, 1, 0, RECORDS[: 1 + number % 4], number, 0, "batch", number == 3)
        buffer.append_control(layout.FrameType.LEASE, 0, TOPICS[0], 0, number, b"lease")
    return bytes(buffer)


def segment_sample() -> tuple[bytes, bytes]:
    """Data and index of a segment with a hole."""
    buffer, data, index = FrameBuffer(), FrameBuffer(), FrameBuffer()
    sources, log = Sources(), TopicLog(TOPICS[0])
    for number in range(4):
        log.append(buffer, 1, 0, RECORDS, number, 0, None, False)
    log.kill(np.array([3], np.uint64))
    sources.add(buffer)
    log.copy_to_segment(sources, 1, log.next_seq - 1, 0, data, index)
    return bytes(data), bytes(index)


LOG = log_sample()
DATA, INDEX = segment_sample()


def use(log: TopicLog, sources: Sources) -> None:
    """Read, copy and delete the records of a log, wherever its index says they are."""
    end = log.next_seq
    log.render(sources, 0, EVERYTHING, 1000, 0, (b"node",), True, True, True)
    live = [seq for seq in range(log.base_seq, min(end, log.base_seq + 50)) if log.is_live(seq)]
    if live:
        render_jobs(log, sources, live, [1] * len(live), 0, 1, 1, 1 << 20)
        meta_of(sources, log, live[-1])
    found = select_records(sources, log, log.base_seq, end, b"tag", True, 100, 1 << 20)
    copy = TopicLog(99)
    copy_records(sources, log, found.runs, copy, FrameBuffer(), 1, 0, 5, 0, True, True, None)
    log.find_tag(b"t", True, EVERYTHING)
    if log.base_seq < end:
        with suppress(Corrupt, ValueError, MemoryError):  # an entry may claim gigabytes
            log.copy_to_segment(sources, log.base_seq, end - 1, 0, FrameBuffer(), FrameBuffer())
    log.kill_below(EVERYTHING)
    log.drop_front(end)


def test_a_damaged_log_is_replayed_up_to_the_damage() -> None:
    def check(rng: random.Random) -> None:
        content = mutated(rng, [LOG])
        if rng.random() < 0.5:
            content = resealed_log(content)
        scan = scan_log_frames(content, rng.randrange(len(content) + 1))
        assert scan.end <= len(content)
        with suppress(Corrupt):
            read_log_frame(content, rng.randrange(len(content) + 2))
        find_frames(content, 0, layout.FrameType.LEASE)
        sources = Sources()
        logs = {topic: TopicLog(topic) for topic in TOPICS}
        replay = LogReplay(content, 0, sources.add(content), logs)
        while replay.run() is not None:
            pass
        assert replay.position <= len(content)
        assert replay.outcome in ("end", "torn", "corrupt")
        if scan_log_frames(content).outcome == "end" and replay.outcome == "end":
            assert replay.position == scan_log_frames(content).end
        for log in logs.values():
            use(log, sources)

    fuzz(check)


def test_a_damaged_segment_and_its_index_are_read_or_refused() -> None:
    def check(rng: random.Random) -> None:
        data, index = DATA, INDEX
        if rng.random() < 0.6:
            data = mutated(rng, [DATA])
            data = resealed_segment(data) if rng.random() < 0.5 else data
        if rng.random() < 0.6:
            index = mutated(rng, [INDEX])
        scan_segment_frames(data, rng.randrange(len(data) + 1))
        with suppress(Corrupt):
            read_segment_frame(data, rng.randrange(len(data) + 2))
        sources, log = Sources(), TopicLog(TOPICS[0])
        source = sources.add(data)
        try:
            log.load_index(1, index, source)
        except Corrupt:
            index = index[: len(index) // layout.INDEX_ENTRY_SIZE * layout.INDEX_ENTRY_SIZE]
            log.load_index(1, index, source)
        entries = index_entries(index)
        sound_count(1, entries[: well_formed_count(entries, len(data))], data)
        log.load_frames(1, len(entries), data)
        columns = FrameColumns(0, 2**63, None, False)
        offsets = np.ascontiguousarray(entries["offset"], np.uint64)
        columns.pick(data, offsets, np.arange(1, len(entries) + 1, dtype=np.uint64), rng.random() < 0.1)
        for name in ("node", "tag", "meta", "data"):
            columns.text(name)
        with suppress(Corrupt, ValueError):  # it goes beyond the end of a log with fewer records
            log.set_segment(1, INDEX, source)
        use(log, sources)

    fuzz(check)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A directory that was closed in good order, and one whose process was killed."""
    folders = [tmp_path_factory.mktemp(name) for name in ("stopped", "crashed")]
    stopped_directory(folders[0])
    crashed_directory(folders[1])
    return folders


def resealed_snapshot(content: bytes) -> bytes:
    """A snapshot whose header and checksum match its payload again."""
    payload = content[layout.SNAPSHOT_HEADER_SIZE : -layout.SNAPSHOT_TRAILER_SIZE]
    header = layout.SNAPSHOT_HEADER.pack(layout.SNAPSHOT_MAGIC, layout.SNAPSHOT_VERSION, len(payload))
    return header + payload + layout.CHECKSUM.pack(xxh3_64_intdigest(payload))


RESEALED = {".log": resealed_log, ".data": resealed_segment, ".bin": resealed_snapshot}


def damage_files(rng: random.Random, root: Path) -> None:
    """Damage one file below `root`, sometimes two."""
    files = {name: content for name, content in tree(root).items() if content is not None}
    for _ in range(rng.choice((1, 1, 1, 2))):
        name = rng.choice(list(files))
        path = root / name
        content = mutated(rng, [files[name]])
        if rng.random() < 0.5:
            content = RESEALED.get(path.suffix, bytes)(content)
        path.write_bytes(content)


def test_a_damaged_directory_opens_or_is_refused(samples: list[Path], tmp_path: Path) -> None:
    def check(rng: random.Random) -> None:
        root = tmp_path / "copy"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(rng.choice(samples), root)
        damage_files(rng, root)
        with suppress(EverlogError):
            verify(str(root / "data"), OsFs(), str(root / "cold"))
        try:
            engine = open_small(root)
        except EverlogError:
            return
        try:
            for name in [state.topic for state in engine.topics()]:
                with suppress(EverlogError):
                    engine.wait_for(engine.diff(name, from_seq=0, limit=100).commit)
                with suppress(EverlogError):
                    engine.wait_for(engine.append(name, RECORDS[:1]).commit)
            with suppress(EverlogError):
                engine.checkpoint()
        finally:
            engine.abandon()

    fuzz(check)
