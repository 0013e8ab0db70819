"""One shard's gathered entries: which are committed or fail, in which order, when writes and syncs fail."""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from everlog.clock import TestClock
from everlog.errors import ReadOnly, StorageFailed
from everlog.fault_fs import FaultFs
from everlog.fs import Fs, OsFs
from everlog.native.topics.log import Sources
from everlog.topics.commits import ShardCommits
from everlog.topics.storage.layout import FrameType
from everlog.topics.storage.syncs import InlineSyncs
from everlog.topics.storage.wal import WalShard
from tests.support.files import UnsyncedFs


class Noted:
    """An entry that records its outcome."""

    def __init__(self, name: str, notes: list[str], *, needs_sync: bool) -> None:
        self.name = name
        self.needs_sync = needs_sync
        self._notes = notes

    def on_commit(self) -> None:
        self._notes.append(f"{self.name} committed")

    def on_abort(self, error: StorageFailed, written: bool) -> None:
        self._notes.append(f"{self.name} failed, {'written' if written else 'not written'}")


class Bench:
    """A shard on a disk that can fail."""

    def __init__(self, root: Path, fs: Fs | None = None) -> None:
        self.disk = FaultFs(root, 0, UnsyncedFs())
        self.syncs = InlineSyncs()
        self.notes: list[str] = []
        numbers = count(1)
        next_number: Callable[[], int] = lambda: next(numbers)  # noqa: E731
        self.shard = WalShard(
            0,
            str(root / "wal"),
            next_number,
            fs=self.disk if fs is None else fs,
            clock=TestClock(),
            sources=Sources(),
            syncs=self.syncs,
            prepare_lane=1,
            file_bytes=4096,
        )
        self.log = ShardCommits(self.shard)

    def gather(self, name: str, *, needs_sync: bool, size: int = 10) -> None:
        self.log.reserve(size + 200)
        self.shard.buffer.append_control(FrameType.DELETE, 0, 1, 0, 0, b"x" * size)
        self.log.gather(Noted(name, self.notes, needs_sync=needs_sync), 1)

    def poll(self, times: int = 3) -> None:
        for _ in range(times):
            self.shard.poll()
            self.syncs.poll()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process grows, or is written, beyond this size; the kernel sees to it."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A fresh shard."""
    return Bench(tmp_path)


def test_an_entry_commits_when_written_or_when_synced_if_it_needs_that(bench: Bench) -> None:
    bench.gather("a", needs_sync=True)
    bench.gather("b", needs_sync=False)
    assert bench.notes == []
    bench.log.write()
    assert bench.notes == ["b committed"]
    bench.poll()
    assert bench.notes == ["b committed", "a committed"]


def test_many_writes_are_one_call_and_many_waiters_one_sync(bench: Bench) -> None:
    for name in "abc":
        bench.gather(name, needs_sync=True)
    calls = bench.disk.calls
    bench.log.write()
    assert [call.name for call in bench.disk.log[calls:]] == ["pwrite", "write_zeros"]
    bench.gather("d", needs_sync=True)
    bench.log.write()
    assert [call.name for call in bench.disk.log[calls + 2 :]] == ["pwrite"]
    bench.poll()
    assert bench.notes == ["a committed", "b committed", "c committed", "d committed"]
    assert bench.shard.metrics.fsyncs == 1


def test_a_failed_write_aborts_newest_first_and_the_log_continues(bench: Bench) -> None:
    bench.disk.fail_when("pwrite", errno.ENOSPC)
    bench.gather("a", needs_sync=True)
    bench.gather("b", needs_sync=False)
    bench.log.write()
    assert bench.notes == ["b failed, not written", "a failed, not written"]
    bench.gather("c", needs_sync=False)
    bench.log.write()
    assert bench.notes[2:] == ["c committed"]


@pytest.mark.parametrize("room", [0, 30], ids=["none of it", "a part of it"])
def test_a_short_write_aborts_the_entries_and_leaves_no_byte(tmp_path: Path, room: int) -> None:
    bench = Bench(tmp_path, OsFs())
    bench.gather("a", needs_sync=False)
    bench.log.write()
    start = bench.shard.position
    bench.gather("b", needs_sync=False, size=200)
    with largest_file(start.offset + room):
        bench.log.write()
    assert bench.notes == ["a committed", "b failed, not written"]
    assert bench.shard.position == start
    left = Path(bench.shard.files[0].path)
    assert left.stat().st_size == start.offset
    bench.gather("c", needs_sync=False)
    bench.log.write()
    assert bench.notes[2:] == ["c committed"]
    assert bench.shard.position.file_number == start.file_number + 1


def test_a_failed_sync_aborts_all_waiting_entries_and_the_shard_refuses_more(bench: Bench) -> None:
    bench.gather("a", needs_sync=True)
    bench.log.write()
    bench.gather("b", needs_sync=True)
    bench.log.write()
    bench.disk.fail_when("fdatasync", errno.EIO)
    bench.poll()
    assert bench.notes == ["a failed, written", "b failed, written"]
    with pytest.raises(ReadOnly):
        bench.gather("c", needs_sync=False)


def test_room_that_is_made_by_writing_commits_what_was_gathered(bench: Bench) -> None:
    bench.gather("a", needs_sync=False, size=2000)
    bench.gather("b", needs_sync=False, size=3000)
    assert bench.notes == ["a committed"]
    bench.log.write()
    assert bench.notes == ["a committed", "b committed"]
    assert bench.shard.metrics.rotations == 1


def test_room_that_cannot_be_made_leaves_what_was_gathered_in_place(bench: Bench) -> None:
    bench.gather("a", needs_sync=False, size=2000)
    bench.disk.fail_when("open", errno.ENOSPC, path="wal-")
    with pytest.raises(StorageFailed):
        bench.gather("b", needs_sync=False, size=3000)
    assert bench.notes == []
    bench.log.write()
    assert bench.notes == ["a committed"]


def test_the_oldest_position_is_that_of_the_first_uncommitted_entry(bench: Bench) -> None:
    start = bench.shard.position
    assert bench.log.oldest_position == start
    bench.gather("a", needs_sync=True)
    bench.log.write()
    bench.gather("b", needs_sync=False)
    bench.log.write()
    assert bench.log.oldest_position == start
    bench.gather("c", needs_sync=True)
    bench.poll()
    middle = bench.shard.position
    assert bench.log.oldest_position == middle
    bench.log.write()
    bench.poll()
    assert bench.log.oldest_position == bench.shard.position > middle


def test_writing_nothing_touches_no_file(bench: Bench) -> None:
    calls = bench.disk.calls
    bench.log.write()
    assert bench.disk.calls == calls


def test_the_depth_counts_what_is_gathered_and_what_waits(bench: Bench) -> None:
    for name in "ab":
        bench.gather(name, needs_sync=True)
    bench.gather("c", needs_sync=False)
    assert bench.log.depth == 3
    bench.log.write()
    assert bench.log.depth == 2
    bench.gather("d", needs_sync=False)
    bench.disk.fail_when("pwrite", errno.ENOSPC)
    bench.log.write()
    assert bench.log.depth == 2
    bench.poll()
    assert (bench.log.depth, bench.log.depth_peak) == (0, 3)
