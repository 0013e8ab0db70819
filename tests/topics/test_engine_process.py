"""The engine with real processes, threads, signals and disks: lock, commits, stop, refusal, full disk."""

import contextlib
import errno
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from everlog.errors import DataDirInUse, EverlogError, StorageFailed
from everlog.fs import Fs, OsFs
from everlog.topics import Engine, EngineSettings, NewRecord, TopicConfig
from everlog.topics.commits import Commit
from everlog.topics.config import Durability
from everlog.topics.storage import layout
from tests.support.engines import crashed_directory, open_small, stopped_directory
from tests.support.files import tree
from tests.support.model_checks import all_records, look
from tests.support.processes import Child
from tests.support.small_disks import CannotMount, small_tmpfs
from tests.support.topics_worker import STOPPABLE_TOPICS, hold_topics, write_until_told

LOGGED = (Durability.MEMORY, Durability.DISK, Durability.FSYNC)


# --- One process at a time -------------------------------------------------------------------------------


def test_a_second_process_is_refused_and_the_first_does_not_notice(tmp_path: Path) -> None:
    with Child(hold_topics, str(tmp_path / "data")) as holder:
        assert holder.receive() == 0
        before = tree(tmp_path)
        for _ in range(2):
            with pytest.raises(DataDirInUse, match=f"process {holder.pid} has {tmp_path}/data open"):
                Engine.open(tmp_path / "data")
        assert tree(tmp_path) == before
        for head_seq in range(1, 4):
            holder.send(b'"from the holder"')
            assert holder.receive() == head_seq
        holder.send(None)
        holder.finish()
    with Engine.open(tmp_path / "data") as engine:
        assert [record.data for record in all_records(engine, "held")] == [b'"from the holder"'] * 3


def test_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    with Child(hold_topics, str(tmp_path / "data")) as holder:
        assert holder.receive() == 0
        holder.send(b"1")
        assert holder.receive() == 1
        holder.kill()
    with Engine.open(tmp_path / "data") as engine:
        assert [record.data for record in all_records(engine, "held")] == [b"1"]


def test_one_process_cannot_open_a_directory_twice(tmp_path: Path) -> None:
    with Engine.open(tmp_path / "data") as engine:
        with pytest.raises(DataDirInUse):
            Engine.open(tmp_path / "data")
        engine.wait_for(engine.append("x", [NewRecord(b"1")]).commit)
        assert engine.state("x").head_seq == 1


# --- Group commit with real threads ----------------------------------------------------------------------


class GatedFs(OsFs):
    """The real file system, whose syncs wait at a gate and are counted."""

    def __init__(self) -> None:
        self.open_gate = threading.Event()
        self.open_gate.set()
        self.waiting = threading.Event()
        self.syncs = 0

    def fdatasync(self, fd: int) -> None:
        """Wait for the gate, then sync."""
        self.waiting.set()
        self.open_gate.wait()
        self.syncs += 1
        super().fdatasync(fd)


def telling(told: list[int], number: int) -> Callable[[Commit], None]:
    """A callback that notes the number."""
    return lambda _: told.append(number)


def test_one_sync_serves_all_who_wait_and_tells_them_in_order(tmp_path: Path) -> None:
    fs = GatedFs()
    appends = 300
    with Engine.open(tmp_path / "data", EngineSettings(shards=1), fs=fs) as engine:
        engine.wait_for(engine.put_topic("x", TopicConfig(durability=Durability.FSYNC)).commit)
        fs.open_gate.clear()
        fs.waiting.clear()
        syncs_before = fs.syncs
        told: list[int] = []
        commits = []
        for number in range(1, appends + 1):
            commits.append(engine.append("x", [NewRecord(b"%d" % number)]).commit)
            commits[-1].on_done(telling(told, number))
            engine.write()
            if number == 1:
                engine.poll()
                assert fs.waiting.wait(60)
        engine.poll()
        # The sync of the first is still running: no caller has been told anything, nothing can be read.
        assert told == []
        assert engine.state("x").head_seq == 0
        fs.open_gate.set()
        engine.wait_for(commits[-1])
        assert told == list(range(1, appends + 1))
        assert fs.syncs - syncs_before <= 3
        assert engine.state("x").head_seq == appends


def test_every_shard_commits_in_order_under_load(tmp_path: Path) -> None:
    fs = GatedFs()
    names = [f"topic-{number}" for number in range(8)]
    with Engine.open(tmp_path / "data", EngineSettings(shards=3, file_bytes=1 << 16), fs=fs) as engine:
        for name in names:
            engine.wait_for(engine.put_topic(name, TopicConfig(durability=Durability.FSYNC)).commit)
        syncs_before = fs.syncs
        told: dict[str, list[int]] = {name: [] for name in names}
        commits = []
        turns = 100
        for number in range(1, turns + 1):
            for name in names:
                commit = engine.append(name, [NewRecord(b'"%s"' % (b"x" * 300))]).commit
                commit.on_done(telling(told[name], number))
                commits.append(commit)
            engine.write()
            engine.poll()
        for commit in commits:
            engine.wait_for(commit)
        assert told == {name: list(range(1, turns + 1)) for name in names}
        # Every turn asks three shards for a sync on behalf of eight topics; files are rotated meanwhile.
        assert fs.syncs - syncs_before < len(commits) // 2


# --- A stop in good order --------------------------------------------------------------------------------


def test_a_stop_by_signal_leaves_one_snapshot_no_log_and_everything_else(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with Child(write_until_told, str(data_dir)) as writer:
        assert writer.receive() == "writing"
        os.kill(writer.pid, signal.SIGTERM)
        left = writer.receive()
        writer.finish()
    assert len(list((data_dir / "meta").iterdir())) == 1
    assert [path for path in (data_dir / "wal").rglob("*") if path.is_file()] == []
    with Engine.open(data_dir) as engine:
        found = {name: look(engine, name) for name in STOPPABLE_TOPICS}
        assert engine.recovery is not None
        assert engine.recovery.records_from_log == 0
    assert {name: seen for name, seen in found.items() if name != "ephemeral"} == {
        name: seen for name, seen in left.items() if name != "ephemeral"
    }
    assert found["ephemeral"] is not None
    assert found["ephemeral"].records == ()
    assert found["ephemeral"].head == left["ephemeral"].head
    assert found["ephemeral"].config == left["ephemeral"].config


# --- A directory that cannot be read ---------------------------------------------------------------------


def _only(root: Path, pattern: str) -> Path:
    return sorted(root.glob(pattern))[-1]


def _by_directory(path: Path) -> Path:
    path.unlink()
    path.mkdir()
    return path


def _cut_snapshot(data_dir: Path) -> Path:
    for path in (*data_dir.glob("meta/snapshot-*"), *data_dir.glob("*.copy")):
        os.truncate(path, path.stat().st_size // 2)
    return _only(data_dir, "meta/snapshot-*.bin")


def _by_file(path: Path) -> Path:
    shutil.rmtree(path)
    path.write_bytes(b"")
    return path


DAMAGE: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Path]]] = {
    "a cut snapshot without a log": (stopped_directory, _cut_snapshot),
    "a directory in place of the snapshot": (
        stopped_directory,
        lambda data: _by_directory(_only(data, "meta/*.bin")),
    ),
    "a directory in place of a log file": (
        crashed_directory,
        lambda data: _by_directory(_only(data, "wal/*.log")),
    ),
    "a directory in place of a segment": (
        stopped_directory,
        lambda data: _by_directory(_only(data, "topics/*/*.idx")),
    ),
    "a file in place of the log directory": (stopped_directory, lambda data: _by_file(data / "wal")),
    "a file in place of the snapshots": (stopped_directory, lambda data: _by_file(data / "meta")),
    "a file in place of the segments": (stopped_directory, lambda data: _by_file(data / "topics")),
    "a directory in place of the lock": (
        stopped_directory,
        lambda data: _by_directory(data / layout.LOCK_FILE),
    ),
    "a file in place of everything": (stopped_directory, _by_file),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_what_cannot_be_read_stops_the_start_and_stays_as_it_is(tmp_path: Path, what: str) -> None:
    make, damage = DAMAGE[what]
    path = damage(make(tmp_path))
    before = tree(tmp_path)
    messages = []
    for _ in range(2):
        with pytest.raises(EverlogError) as refusal:
            open_small(tmp_path)
        assert not isinstance(refusal.value, DataDirInUse)
        messages.append(str(refusal.value))
    # The operator learns where to look, twice the same, and nothing was touched.
    assert messages[0] == messages[1]
    assert str(path) in messages[0]
    assert tree(tmp_path) == before


# --- A full disk -----------------------------------------------------------------------------------------


class FullFs(OsFs):
    """The real file system with a switch that makes it full."""

    def __init__(self) -> None:
        self.is_full = False

    def allocate(self, fd: int, length: int) -> None:
        """Fail if full."""
        self._check()
        super().allocate(fd, length)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        """Fail if full."""
        self._check()
        super().pwrite(fd, data, offset)

    def _check(self) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def write_until_full(path: Path) -> None:
    """Let a file have all that is left of its disk."""
    with open(path, "ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


@contextlib.contextmanager
def disk_to_fill(root: Path) -> Iterator[tuple[Path, Fs, Callable[[bool], None]]]:
    """A directory, its file system and a switch: full or not. A real small disk if this user may mount."""
    try:
        with small_tmpfs(root / "disk", 1024) as disk:
            ballast = disk / "ballast"

            def fill(full: bool) -> None:
                if not full:
                    ballast.unlink()
                    return
                write_until_full(ballast)

            yield disk / "data", OsFs(), fill
    except CannotMount as reason:
        print(f"no real file system to fill ({reason}); a simulated one must do")
        fs = FullFs()
        yield root / "data", fs, lambda full: setattr(fs, "is_full", full)


@pytest.mark.parametrize("durability", LOGGED)
def test_a_full_disk_refuses_appends_loses_nothing_and_goes_on_once_there_is_room(
    tmp_path: Path, durability: Durability
) -> None:
    settings = EngineSettings(shards=1, file_bytes=1 << 14, snapshot_log_bytes=1 << 15)
    with disk_to_fill(tmp_path) as (data_dir, fs, fill):
        kept: list[bytes] = []

        def append(engine: Engine) -> None:
            data = b'{"number":%d,"pad":"%s"}' % (len(kept), b"x" * 900)
            engine.wait_for(engine.append("x", [NewRecord(data)]).commit)
            kept.append(data)

        def check(engine: Engine) -> None:
            assert [record.data for record in all_records(engine, "x")] == kept

        with Engine.open(data_dir, settings, fs=fs) as engine:
            engine.wait_for(engine.put_topic("x", TopicConfig(durability=durability)).commit)
            for _ in range(20):
                append(engine)
            for _ in range(2):
                fill(True)
                with pytest.raises(StorageFailed) as failure:
                    for _ in range(100):
                        append(engine)
                assert failure.value.errno == errno.ENOSPC
                for _ in range(3):
                    with pytest.raises(StorageFailed):
                        append(engine)
                check(engine)
                fill(False)
                for _ in range(20):
                    append(engine)
                check(engine)
            fill(True)
            with pytest.raises(StorageFailed):
                for _ in range(100):
                    append(engine)
            engine.abandon()
        fill(False)
        with Engine.open(data_dir, settings, fs=fs) as engine:
            check(engine)
            append(engine)
            check(engine)


def fill_with_appends(engine: Engine, topic: str) -> None:
    """Append large records, then small ones, until the disk takes neither."""
    for size in (200_000, 20_000, 500, 1):
        with pytest.raises(StorageFailed) as failure:
            for _ in range(10_000):
                engine.wait_for(engine.append(topic, [NewRecord(b'"%s"' % (b"x" * size), tag="old")]).commit)
        assert failure.value.errno == errno.ENOSPC


@pytest.mark.parametrize("by", ["before_seq", "match", "topic"])
def test_on_a_full_disk_deletes_work_and_what_they_free_is_usable_within_seconds(
    tmp_path: Path, by: str
) -> None:
    # Checkpoints by time or size come far later than this test ends.
    settings = EngineSettings(
        shards=2, file_bytes=1 << 20, snapshot_log_bytes=1 << 30, snapshot_interval_ms=600_000
    )
    try:
        with small_tmpfs(tmp_path / "disk", 8192) as disk:
            with Engine.open(disk / "data", settings) as engine:
                engine.wait_for(engine.put_topic("kept", TopicConfig(durability=Durability.FSYNC)).commit)
                engine.wait_for(engine.append("kept", [NewRecord(b'"kept"')]).commit)
                for is_first in (True, False):
                    engine.wait_for(engine.put_topic("x", TopicConfig(durability=Durability.FSYNC)).commit)
                    fill_with_appends(engine, "x")
                    if is_first:  # later it could take what was freed before the engine does
                        write_until_full(disk / "of-another-program")
                    for seq in range(1, 101):  # more than what is left of the log file has room for
                        engine.wait_for(engine.delete_records("x", before_seq=seq).commit)
                    if by == "topic":
                        engine.wait_for(engine.delete_topic("x").commit)
                    elif by == "match":
                        engine.wait_for(engine.delete_records("x", match="old").commit)
                    else:
                        engine.wait_for(engine.delete_records("x", before_seq=2**63).commit)
                    assert append_until_it_fits(engine, "x", 200_000, timeout_s=20) < 10
                assert [record.data for record in all_records(engine, "kept")] == [b'"kept"']
                head_seq = engine.state("x").head_seq
                engine.abandon()
            with Engine.open(disk / "data", settings) as engine:
                assert engine.state("x").head_seq == head_seq
                assert [record.data for record in all_records(engine, "kept")] == [b'"kept"']
            assert not (disk / "data" / layout.RESERVE_FILE).exists()
    except CannotMount as reason:
        pytest.skip(f"no real file system to fill: {reason}")


def test_a_checkpoint_that_a_full_disk_stops_takes_no_room_from_deletes(tmp_path: Path) -> None:
    settings = EngineSettings(
        shards=1, file_bytes=1 << 20, snapshot_log_bytes=1 << 30, snapshot_interval_ms=600_000
    )
    try:
        with small_tmpfs(tmp_path / "disk", 8192) as disk, Engine.open(disk / "data", settings) as engine:
            fill_with_appends(engine, "x")
            free = free_bytes(disk)
            for _ in range(3):  # without the reserve, with it, and without it again
                with pytest.raises(EverlogError, match="No space left"):
                    engine.checkpoint()
                assert free_bytes(disk) >= free
            for seq in range(1, 101):
                engine.wait_for(engine.delete_records("x", before_seq=seq).commit)
            engine.wait_for(engine.delete_records("x", match="old").commit)
            assert append_until_it_fits(engine, "x", 200_000, timeout_s=20) < 10
    except CannotMount as reason:
        pytest.skip(f"no real file system to fill: {reason}")


def free_bytes(disk: Path) -> int:
    """What is left of a disk."""
    state = os.statvfs(disk)
    return state.f_bavail * state.f_frsize


def append_until_it_fits(engine: Engine, topic: str, size: int, *, timeout_s: float) -> float:
    """Repeat a large append until the disk takes it; returns after how many seconds it did."""
    start = time.monotonic()
    while True:
        try:
            engine.wait_for(engine.append(topic, [NewRecord(b'"%s"' % (b"x" * size))]).commit)
            return time.monotonic() - start
        except StorageFailed as failure:
            assert failure.errno == errno.ENOSPC
            assert time.monotonic() - start < timeout_s
            engine.poll()
            time.sleep(0.01)
