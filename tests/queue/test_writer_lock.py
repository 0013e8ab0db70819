"""Spec 1.9: writer.lock."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.clock import SystemClock, TestClock
from everlog.errors import WriterAlreadyActive
from everlog.fault_fs import FaultFs
from everlog.fs import Fs, OsFs
from everlog.queue import writer_lock
from everlog.queue.writer_lock import LockOwner, WriterLock
from tests.support.command_lines import holding
from tests.support.files import descriptors_below, tree

DEAD_PID = 2**22 + 1
"""Above the largest pid that Linux gives out."""

HOLD_LOCK = """
import sys
from everlog.clock import SystemClock
from everlog.fs import OsFs
from everlog.queue.writer_lock import WriterLock
lock = WriterLock.acquire(OsFs(), SystemClock(), sys.argv[1])
lock.record_epoch(7)
print("held", flush=True)
sys.stdin.read()
"""

FORK_AND_DIE = HOLD_LOCK.replace(
    "sys.stdin.read()", "import os\nif os.fork():\n    os._exit(0)\nsys.stdin.read()"
)

EXEC_WHILE_HOLDING = HOLD_LOCK.replace(
    "sys.stdin.read()",
    "import os\nos.execv(sys.executable, [sys.executable, '-c', 'import sys; sys.stdin.read()'])",
)


def acquire(root: Path, clock: TestClock | None = None, fs: Fs | None = None) -> WriterLock:
    return WriterLock.acquire(fs or OsFs(), clock or TestClock(), str(root))


def start_ticks(pid: int) -> int:
    ticks = writer_lock.process_start_ticks(pid)
    assert ticks is not None
    return ticks


def hold_with_record(root: Path, record: bytes) -> int:
    """Hold the lock through a plain descriptor, as a forked child would, with any record in the file."""
    descriptor = os.open(root / "writer.lock", os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, record, 0)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


class InterruptedClock(TestClock):
    """A clock in which something happens during the n-th sleep."""

    def __init__(self, sleeps: int, action: Callable[[], object]) -> None:
        super().__init__()
        self.sleeps_left = sleeps
        self.action = action

    def sleep_ns(self, duration_ns: int) -> None:
        super().sleep_ns(duration_ns)
        self.sleeps_left -= 1
        if self.sleeps_left == 0:
            self.action()


# --- The record ------------------------------------------------------------------------------------------


@given(st.builds(LockOwner, *[st.integers(0, 2**64 - 1)] * 3))
def test_a_record_survives_encoding(owner: LockOwner) -> None:
    expected = None if owner == LockOwner(0, 0, 0) else owner
    assert writer_lock.decode_owner(writer_lock.encode_owner(owner)) == expected


@pytest.mark.parametrize(
    ("data", "owner"),
    [
        (b"12 345 6\n", LockOwner(12, 345, 6)),
        (b"12 345 6", LockOwner(12, 345, 6)),
        (b"12 345", LockOwner(12, 345, 0)),
        (b"12", LockOwner(12, 0, 0)),
        (b"12 345 6 7\n", LockOwner(12, 345, 6)),
        (b"12 345 6\n99 9\n", LockOwner(12, 345, 6)),
        (b"x 345 6\n", LockOwner(0, 345, 6)),
        (b"-1 345 6\n", LockOwner(0, 345, 6)),
        (b"+1 3_45 0x6\n7", None),
        (b"12 \xff 6\n", LockOwner(12, 0, 6)),
        (b"12 " + b"9" * 21 + b" 6\n", LockOwner(12, 0, 6)),
    ],
)
def test_unparsable_fields_read_as_zero(data: bytes, owner: LockOwner | None) -> None:
    assert writer_lock.decode_owner(data) == owner


@pytest.mark.parametrize("data", [b"", b"\n", b"0 0 0\n", b"a b c\n", b"\0" * 20, b"\n12 345 6\n"])
def test_all_zero_is_no_owner(data: bytes) -> None:
    assert writer_lock.decode_owner(data) is None


@given(st.binary(max_size=200))
def test_no_content_of_the_file_raises(data: bytes) -> None:
    writer_lock.decode_owner(data)


def test_a_missing_file_has_no_owner(tmp_path: Path) -> None:
    assert writer_lock.read_owner(OsFs(), str(tmp_path)) is None
    assert tree(tmp_path) == {}


# --- Alive or dead ---------------------------------------------------------------------------------------

STAT_TAIL = " 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21"


@pytest.mark.parametrize("command", ["python", "a b", "a) R 1 (b", ") Z (", "((", ""])
def test_the_start_time_is_field_22_after_the_last_parenthesis(command: str) -> None:
    assert writer_lock.parse_start_ticks(f"77 ({command}) S{STAT_TAIL}\n") == 4711


@pytest.mark.parametrize("state", ["Z", "X", "x"])
def test_a_zombie_counts_as_dead(state: str) -> None:
    assert writer_lock.parse_start_ticks(f"77 (python) {state}{STAT_TAIL}\n") is None


def test_a_process_that_ended_but_was_not_waited_for_is_dead() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        owner = LockOwner(process.pid, start_ticks(process.pid), 1)
        assert writer_lock.owner_alive(owner)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert os.path.exists(f"/proc/{process.pid}")
        assert not writer_lock.owner_alive(owner)
    assert not writer_lock.owner_alive(owner)


def test_a_reused_pid_is_told_apart_by_its_start_time() -> None:
    ticks = start_ticks(os.getpid())
    assert writer_lock.owner_alive(LockOwner(os.getpid(), ticks, 1))
    assert not writer_lock.owner_alive(LockOwner(os.getpid(), ticks - 1, 1))
    assert not writer_lock.owner_alive(LockOwner(os.getpid(), 0, 1))


@pytest.mark.parametrize("owner", [LockOwner(0, 0, 5), LockOwner(DEAD_PID, 1, 1), LockOwner(10**19, 1, 1)])
def test_an_owner_whose_process_does_not_exist_is_dead(owner: LockOwner) -> None:
    assert not writer_lock.owner_alive(owner)


# --- Taking the lock -------------------------------------------------------------------------------------


def test_the_record_is_written_with_epoch_zero_and_then_with_the_new_epoch(tmp_path: Path) -> None:
    lock = acquire(tmp_path)
    process = f"{os.getpid()} {start_ticks(os.getpid())}"
    assert tree(tmp_path) == {"writer.lock": f"{process} 0\n".encode()}
    lock.record_epoch(12)
    assert tree(tmp_path) == {"writer.lock": f"{process} 12\n".encode()}
    owner = writer_lock.read_owner(OsFs(), str(tmp_path))
    assert owner == LockOwner(os.getpid(), start_ticks(os.getpid()), 12)
    assert writer_lock.owner_alive(owner)


def test_the_epoch_is_forced_to_disk_after_it_was_written(tmp_path: Path) -> None:
    fs = FaultFs(str(tmp_path))
    lock = acquire(tmp_path, fs=fs)
    before = fs.calls
    lock.record_epoch(12)
    assert [call.name for call in fs.log if call.number > before] == ["pwrite", "truncate", "fsync"]


def test_the_epoch_of_the_previous_writer_is_known(tmp_path: Path) -> None:
    lock = acquire(tmp_path)
    assert lock.previous_epoch == 0
    lock.record_epoch(41)
    lock.close()
    assert acquire(tmp_path).previous_epoch == 41


def test_a_long_old_record_leaves_no_rest_behind(tmp_path: Path) -> None:
    (tmp_path / "writer.lock").write_bytes(b"9" * 18 + b" " + b"8" * 18 + b" 5\n" + b"rubbish\n" * 9)
    lock = acquire(tmp_path)
    assert lock.previous_epoch == 5
    assert (tmp_path / "writer.lock").read_bytes() == f"{os.getpid()} {start_ticks(os.getpid())} 0\n".encode()


def test_a_second_writer_in_the_same_process_is_refused_at_once(tmp_path: Path) -> None:
    lock = acquire(tmp_path)
    lock.record_epoch(3)
    clock = TestClock()
    with pytest.raises(WriterAlreadyActive, match=rf"process {os.getpid()} \(epoch 3\)"):
        acquire(tmp_path, clock)
    assert clock.monotonic_ns() == 0
    assert descriptors_below(tmp_path) == 1
    lock.close()
    lock.close()
    acquire(tmp_path).close()


def test_a_second_process_is_refused_while_the_owner_lives_and_not_after_it_is_killed(tmp_path: Path) -> None:
    with holding(HOLD_LOCK, str(tmp_path)) as holder:
        assert holder.read_line() == "held"
        before = tree(tmp_path)
        clock = TestClock()
        with pytest.raises(WriterAlreadyActive, match=rf"process {holder.process.pid} \(epoch 7\)"):
            acquire(tmp_path, clock)
        assert clock.monotonic_ns() == 0
        assert tree(tmp_path) == before
        holder.kill()
        assert acquire(tmp_path).previous_epoch == 7


def test_a_stale_record_of_a_reused_pid_does_not_block(tmp_path: Path) -> None:
    record = LockOwner(os.getppid(), start_ticks(os.getppid()) + 1, 4)
    (tmp_path / "writer.lock").write_bytes(writer_lock.encode_owner(record))
    assert acquire(tmp_path).previous_epoch == 4


@pytest.mark.parametrize(
    ("record", "named"),
    [
        (LockOwner(DEAD_PID, 1, 9), rf"process {DEAD_PID} \(epoch 9\)"),
        (LockOwner(os.getpid(), 1, 9), rf"process {os.getpid()} \(epoch 9\)"),
        (LockOwner(0, 0, 0), "names no process"),
    ],
    ids=["dead", "pid reused", "no record"],
)
def test_a_refused_lock_without_a_living_owner_is_retried_for_100_ms_and_no_longer(
    tmp_path: Path, record: LockOwner, named: str
) -> None:
    descriptor = hold_with_record(tmp_path, writer_lock.encode_owner(record))
    clock = TestClock()
    with pytest.raises(WriterAlreadyActive, match=named):
        acquire(tmp_path, clock)
    assert 100_000_000 <= clock.monotonic_ns() <= 101_000_000
    assert descriptors_below(tmp_path) == 1
    os.close(descriptor)
    acquire(tmp_path)


def test_a_lock_that_becomes_free_while_retrying_is_taken(tmp_path: Path) -> None:
    descriptor = hold_with_record(tmp_path, writer_lock.encode_owner(LockOwner(DEAD_PID, 1, 9)))
    lock = acquire(tmp_path, InterruptedClock(50, lambda: os.close(descriptor)))
    assert lock.previous_epoch == 9


def test_an_owner_that_turns_up_while_retrying_ends_the_retries(tmp_path: Path) -> None:
    descriptor = hold_with_record(tmp_path, b"")
    record = writer_lock.encode_owner(LockOwner(os.getpid(), start_ticks(os.getpid()), 0))
    clock = InterruptedClock(3, lambda: os.pwrite(descriptor, record, 0))
    with pytest.raises(WriterAlreadyActive, match="live process"):
        acquire(tmp_path, clock)
    assert clock.monotonic_ns() < 10_000_000
    os.close(descriptor)


def test_a_forked_child_that_outlives_the_owner_blocks_with_an_error_and_not_for_ever(tmp_path: Path) -> None:
    with holding(FORK_AND_DIE, str(tmp_path)) as holder:
        assert holder.read_line() == "held"
        holder.process.wait()
        with pytest.raises(WriterAlreadyActive, match=rf"{holder.process.pid} \(epoch 7\).*forked child"):
            WriterLock.acquire(OsFs(), SystemClock(), str(tmp_path))


def test_the_lock_does_not_survive_exec(tmp_path: Path) -> None:
    with holding(EXEC_WHILE_HOLDING, str(tmp_path)) as holder:
        assert holder.read_line() == "held"
        # The owner's process lives on with the same pid and start time, but the descriptor is closed.
        acquire_when_free(tmp_path)


def acquire_when_free(root: Path) -> None:
    while True:
        try:
            acquire(root).close()
        except WriterAlreadyActive:
            continue  # the exec has not happened yet; the test's timeout ends this if it never frees
        return


def test_an_acquisition_that_fails_at_any_call_releases_the_lock(tmp_path: Path) -> None:
    failed = []
    for number in range(1, 6):
        fs = FaultFs(str(tmp_path))
        fs.fail_at(number, errno.EIO)
        with pytest.raises(OSError, match="planned"):
            acquire(tmp_path, fs=fs)
        failed.append(fs.log[number - 1].name)
        assert descriptors_below(tmp_path) == 0
        acquire(tmp_path).close()
    assert failed == ["open", "try_lock", "pread", "pwrite", "truncate"]
