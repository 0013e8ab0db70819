"""Archives as tests see them: queues with known messages whose segments lie in any tier."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from everlog.archive import tap
from everlog.archive.policies import Immediate
from everlog.archive.raw_archiver import RawArchiver
from everlog.archive.remote import RemoteTier
from everlog.archive.segment_writer import ArchiveSegmentWriter
from everlog.archive.snapshotter import Snapshotter
from everlog.archive.tap import ArchiveTap
from everlog.archive.tiers import changing, compress_segment
from everlog.fs import OsFs
from everlog.market.snapshots import SnapshotPlanner
from everlog.queue import Message, Queue
from tests.support.files import UnsyncedFs

FIRST_NS = 1_700_000_000_000_000_000
DAY = "2023-11-14"


def known_messages(count: int, seed: int = 0, *, length_max: int = 200) -> list[Message]:
    """Messages whose lengths, types and times vary; times never go back and often repeat."""
    random_source = random.Random(seed)
    messages, now_ns = [], FIRST_NS
    for seq in range(count):
        now_ns += random_source.choice((0, 0, 1, 1000))
        payload = random_source.randbytes(random_source.randrange(length_max + 1))
        messages.append(Message(seq, now_ns, random_source.randrange(5), payload))
    return messages


def write_archive(directory: Path, messages: Sequence[Message], segment_size: int = 4096) -> list[int]:
    """Write messages as plain archive segments; return their ids."""
    writer = ArchiveSegmentWriter(str(directory), segment_size=segment_size, fs=UnsyncedFs())
    first = writer._first_id
    for message in messages:
        writer.append(message.type_id, message.payload, message.timestamp_ns)
    return list(range(first, first + len(writer.finish())))


def compress(directory: Path, segment_id: int, block_size: int = 1 << 20, **options: bool) -> None:
    """Compress one segment in place."""
    with changing(UnsyncedFs(), str(directory)):
        compress_segment(UnsyncedFs(), str(directory), segment_id, block_size=block_size, **options)


def market_array(count: int, seed: int = 0) -> np.ndarray:
    """Rows of 64 bytes that compress about as market data does."""
    source = np.random.default_rng(seed)
    rows = np.zeros(count, dtype=[("price", "<u8"), ("size", "<u8"), ("id", "<u8"), ("rest", "V40")])
    rows["price"] = 100_000 + np.cumsum(source.integers(-2, 3, count))
    rows["size"] = source.integers(1, 500, count)
    rows["id"] = np.arange(count)
    return rows


class DyingFs(OsFs):
    """Kills its process before the file operation of a number, counted over all such objects."""

    calls = 0
    dies_at = 0

    def __getattribute__(self, name: str) -> object:
        found = super().__getattribute__(name)
        if callable(found) and not name.startswith("_"):
            DyingFs.calls += 1
            if DyingFs.calls == DyingFs.dies_at:
                os.kill(os.getpid(), 9)
        return found


def compress_and_die(channel: Connection, directory: str, number: int) -> None:
    """Compress in a process that kills itself before its file operation `number`."""
    DyingFs.dies_at = number
    with changing(DyingFs(), directory):
        compress_segment(DyingFs(), directory, 0, block_size=6000)


def append_until_killed(channel: Connection, directory: str) -> None:
    """Append to an archive without end; report when some segments are published."""
    writer = ArchiveSegmentWriter(directory, segment_size=1024)
    for number in range(10**9):
        writer.append(1, b"%d" % number, FIRST_NS + number)
        if number == 30:
            channel.send("going")


def append_known(channel: Connection, path: str, count: int) -> None:
    """Append numbered messages to a live queue with small segments, in bursts, and say so."""
    with Queue.open_publisher(path, segment_size=4096) as writer:
        for number in range(count):
            writer.append(1 + number % 3, b"%d" % number, FIRST_NS + number)
    channel.send(count)


def tap_for_ever(channel: Connection, live: str, archive: str) -> None:
    """Tap a live queue until killed; commits often, so that kills meet every step."""
    tap.COMMIT_NS = 1_000_000
    with ArchiveTap(live, archive) as running:
        channel.send("running")
        while True:
            if not running.run_once(17):
                running.reader.wait(0.01)


def tap_and_die(channel: Connection, live: str, archive: str, number: int) -> None:
    """Tap everything that is there in a process that kills itself before its file operation `number`."""
    DyingFs.dies_at = number
    tap.COMMIT_BYTES = 1000
    with ArchiveTap(live, archive, fs=DyingFs()) as running:
        while running.run_once(7):
            pass


def archive_raw_and_die(channel: Connection, live: str, root: str, number: int, compresses: bool) -> None:
    """Archive sealed segments in a process that kills itself before its file operation `number`."""
    DyingFs.dies_at = number
    policy = Immediate() if compresses else None
    with RawArchiver(live, root, "binance", policy=policy, fs=DyingFs()) as running:
        running.run_once()


def move_and_die(channel: Connection, directory: str, url: str, number: int) -> None:
    """Move a compressed segment to a store in a process that kills itself before a file operation."""
    DyingFs.dies_at = number
    with changing(DyingFs(), directory):
        RemoteTier(DyingFs()).move(directory, 0, url, "v1/x")


def restore_and_die(channel: Connection, directory: str, number: int) -> None:
    """Bring a segment back in a process that kills itself before a file operation."""
    DyingFs.dies_at = number
    with changing(DyingFs(), directory):
        RemoteTier(DyingFs()).restore(directory, 0)


def snapshot_and_die(channel: Connection, queue: str, number: int) -> None:
    """Follow a queue of market data in a process that kills itself before a file operation."""
    DyingFs.dies_at = number
    planner = SnapshotPlanner(min_records=40, min_interval_ns=0)
    with Snapshotter(queue, planner=planner, fs=DyingFs()) as running:
        while running.run_once():
            pass
