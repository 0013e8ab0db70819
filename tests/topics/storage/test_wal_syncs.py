"""When a shard's frames are on disk and who is told: group commits, failed syncs, real threads."""

from __future__ import annotations

import errno
import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from everlog.clock import SystemClock
from everlog.errors import ReadOnly, StorageFailed
from everlog.fault_fs import PowerLoss
from everlog.fs import OsFs
from everlog.native.topics.log import Sources
from everlog.topics.storage.syncs import WINDOW_MIN_NS, ThreadSyncs
from everlog.topics.storage.wal import BACKGROUND_SYNC_NS, Position, WalShard
from everlog.topics.storage.wal_files import end_frame, list_wal_files
from tests.topics.storage.wal_samples import FILE_BYTES, OVERHEAD, LogBench, frame, frames_of

# --- Syncing ---------------------------------------------------------------------------------------------


def test_a_waiter_is_told_when_its_frames_are_on_disk_and_not_before(bench: LogBench) -> None:
    position = bench.append(10)
    bench.sync()
    assert bench.shard.due_ns() == bench.clock.monotonic_ns()
    bench.shard.poll()
    assert bench.told == []
    assert bench.shard.due_ns() is None
    bench.syncs.poll()
    assert bench.told == [None]
    assert bench.shard.synced == position
    assert bench.shard.metrics.fsyncs == 1
    bench.lose_power()


def test_what_is_written_before_the_sync_runs_is_covered_and_what_comes_later_is_not(bench: LogBench) -> None:
    order: list[str] = []
    bench.append(10)
    bench.shard.sync(lambda error: order.append("first"))
    bench.shard.poll()
    covered = bench.append(10)
    bench.shard.sync(lambda error: order.append("second"))
    bench.syncs.poll()
    assert order == ["first", "second"]
    assert bench.shard.synced == covered
    bench.append(10)
    assert bench.shard.synced < bench.shard.position


def test_writers_under_load_share_one_sync(bench: LogBench) -> None:
    bench.append(4)
    bench.sync()
    bench.shard.poll()
    bench.syncs.poll()
    bench.clock.advance_ns(100_000)
    for _ in range(3):
        bench.append(4)
        bench.sync()
    bench.poll()
    bench.syncs.poll()
    assert len(bench.told) == 1
    assert bench.shard.due_ns() == WINDOW_MIN_NS
    bench.settle()
    assert bench.told == [None] * 4
    assert bench.shard.metrics.fsyncs == 2


def test_a_waiter_with_nothing_to_wait_for_is_told_by_the_next_poll(bench: LogBench) -> None:
    bench.append_synced(10)
    before = bench.fs.calls
    bench.sync()
    assert bench.told == []
    assert bench.shard.due_ns() == bench.clock.monotonic_ns()
    bench.shard.poll()
    assert bench.told == [None]
    assert bench.fs.calls == before


def test_a_waiter_may_write_and_wait_again_from_within_its_call(bench: LogBench) -> None:
    rounds: list[int] = []
    depth = 0

    def again(error: StorageFailed | None) -> None:
        nonlocal depth
        depth += 1
        assert depth == 1, "a waiter was called from within another"
        rounds.append(len(rounds))
        if len(rounds) < 10:
            bench.append(200)
            bench.shard.sync(again)
            bench.shard.poll()
        depth -= 1

    bench.shard.sync(again)
    bench.settle()
    assert rounds == list(range(10))
    bench.lose_power()


def test_a_waiter_that_polls_does_not_call_the_next_one_from_within(bench: LogBench) -> None:
    order: list[str] = []

    def first(error: StorageFailed | None) -> None:
        bench.shard.poll()
        order.append("first")

    bench.append(10)
    bench.shard.sync(first)
    bench.shard.sync(lambda error: order.append("second"))
    bench.settle()
    assert order == ["first", "second"]


def test_a_second_sync_does_not_start_while_one_is_running(bench: LogBench) -> None:
    bench.append(10)
    bench.sync()
    bench.shard.poll()
    bench.append(10)
    bench.sync()
    assert bench.shard.due_ns() is None
    bench.shard.poll()
    bench.syncs.poll()
    assert bench.shard.metrics.fsyncs == 1


def test_a_waiter_that_raises_does_not_take_the_others_with_it(bench: LogBench) -> None:
    def broken(error: StorageFailed | None) -> None:
        raise KeyError("broken")

    bench.append(10)
    bench.shard.sync(broken)
    bench.sync()
    bench.shard.poll()
    with pytest.raises(KeyError):
        bench.syncs.poll()
    bench.poll()
    assert bench.told == [None]


def test_a_requested_sync_comes_ten_milliseconds_after_the_request(bench: LogBench) -> None:
    bench.shard.request_sync()
    assert bench.shard.due_ns() is None
    bench.append(10)
    assert bench.shard.due_ns() is None
    bench.shard.request_sync()
    bench.clock.advance_ns(BACKGROUND_SYNC_NS // 2)
    bench.append(10)
    bench.shard.request_sync()
    assert bench.shard.due_ns() == BACKGROUND_SYNC_NS
    bench.poll()
    assert bench.calls("fdatasync") == []
    bench.clock.advance_ns(BACKGROUND_SYNC_NS // 2)
    bench.settle()
    assert bench.shard.synced == bench.shard.position
    assert bench.calls("fdatasync") == ["fdatasync"]
    bench.shard.request_sync()
    assert bench.shard.due_ns() is None


def test_a_sync_for_a_waiter_also_serves_the_request(bench: LogBench) -> None:
    bench.append(10)
    bench.shard.request_sync()
    bench.sync()
    bench.settle()
    assert bench.shard.metrics.fsyncs == 1
    bench.append(10)
    assert bench.shard.due_ns() is None


def test_what_is_not_waited_for_is_synced_long_before_the_file_is_left(bench: LogBench) -> None:
    for _ in range(5):
        bench.append(100)
        bench.settle()
    assert bench.shard.synced > Position(1, FILE_BYTES // 4)


def test_a_request_is_served_by_leaving_the_file(bench: LogBench) -> None:
    bench.append(10)
    bench.shard.request_sync()
    bench.rotate()
    bench.append(10)
    assert bench.shard.due_ns() is None, "nothing was requested for the new file"


def test_waiters_of_a_left_file_are_told_by_its_last_sync(bench: LogBench) -> None:
    bench.append(10)
    bench.sync()
    bench.rotate()
    bench.sync()
    bench.syncs.poll()
    assert bench.told == [None, None]
    assert bench.shard.metrics.fsyncs == 1
    assert bench.shard.synced == bench.shard.position == Position(2, 0)


def test_the_name_of_a_new_file_is_durable_before_its_frames_count_as_synced(bench: LogBench) -> None:
    for _ in range(3):
        bench.append(900)
        bench.sync()
        bench.settle()
        names = bench.calls("fsync_dir", "fdatasync")
        assert names.index("fsync_dir") < names.index("fdatasync")
        for image in (bench.fs.power_loss_image() for _ in range(5)):
            assert {f"wal/wal-{file.number:016d}.log" for file in bench.shard.files} <= set(image)


# --- Failing syncs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["fdatasync", "fsync_dir"])
def test_a_failed_sync_makes_the_shard_read_only_for_good(bench: LogBench, operation: str) -> None:
    bench.append(10)
    bench.sync()
    bench.fs.fail_when(operation, errno.EIO)
    bench.shard.poll()
    bench.append(10)
    bench.sync()
    bench.settle()
    assert [type(error) for error in bench.told] == [ReadOnly, ReadOnly]
    assert bench.told[0] is not None
    assert bench.told[0].errno == errno.EIO
    assert bench.shard.synced == Position(1, 0)
    syncs = bench.calls("fdatasync")
    bench.expect_read_only()
    bench.shard.request_sync()
    bench.clock.advance_ns(BACKGROUND_SYNC_NS)
    bench.settle()
    bench.shard.close()
    assert bench.calls("fdatasync") == syncs, "a failed sync was repeated"
    assert bench.shard.metrics.fsyncs == 0


def test_what_was_synced_before_the_failure_is_told_as_synced(bench: LogBench) -> None:
    bench.append_synced(10)
    bench.sync()
    bench.append(10)
    bench.sync()
    bench.fs.fail_when("fdatasync", errno.EIO)
    bench.settle()
    assert bench.told[0] is None
    assert isinstance(bench.told[1], ReadOnly)


def test_a_failed_last_sync_stops_the_next_file_before_its_first_byte(bench: LogBench) -> None:
    bench.append(10)
    bench.rotate()
    bench.sync()
    bench.gather(10)
    bench.fs.fail_when("fdatasync", errno.EIO, path="0001")
    with pytest.raises(ReadOnly):
        bench.write()
    assert frames_of(bench.contents()[2]) == []
    bench.settle()
    assert [type(error) for error in bench.told] == [ReadOnly]
    bench.expect_read_only()


def test_what_is_gathered_when_a_sync_fails_must_be_discarded(bench: LogBench) -> None:
    bench.append(10)
    bench.sync()
    bench.shard.poll()
    bench.gather(10)
    needed = [bench.shard.needs_discard]
    bench.fs.fail_when("fdatasync", errno.EIO)
    bench.syncs.poll()
    needed.append(bench.shard.needs_discard)
    assert needed == [False, True]
    with pytest.raises(ReadOnly):
        bench.shard.write()
    bench.note()
    bench.expect_read_only()


def test_a_later_sync_that_works_does_not_heal_a_failed_one(bench: LogBench) -> None:
    bench.append(10)
    bench.shard.request_sync()
    bench.clock.advance_ns(BACKGROUND_SYNC_NS)
    bench.shard.poll()
    bench.fs.fail_when("fdatasync", errno.EIO)
    bench.rotate()
    bench.syncs.poll()
    assert bench.calls("fdatasync") == ["fdatasync"] * 2
    assert bench.shard.synced == Position(1, 0)
    bench.expect_read_only()


def test_a_failed_sync_of_the_directory_makes_the_shard_read_only(bench: LogBench) -> None:
    bench.append_synced(10)
    bench.rotate()
    bench.append_synced(10)
    bench.fs.fail_when("fsync_dir", errno.EIO)
    bench.append(800)
    bench.settle()
    bench.expect_read_only()


def test_a_sync_does_not_wait_until_the_next_file_is_prepared(bench: LogBench) -> None:
    bench.append(800)
    bench.sync()
    bench.shard.sync_now()
    bench.syncs.drain(bench.shard.number)
    assert bench.calls("fdatasync") == ["fdatasync"]
    assert sorted(bench.contents()) == [1], "the preparation has not begun"
    bench.settle()
    assert sorted(bench.contents()) == [1, 2]


def test_a_power_loss_in_the_lane_stops_the_owner(bench: LogBench) -> None:
    bench.append(10)
    bench.sync()
    bench.shard.poll()
    bench.fs.lose_power_at(bench.fs.calls + 1)
    with pytest.raises(PowerLoss):
        bench.syncs.poll()
    assert bench.told == []
    bench.lose_power()


# --- Threads ---------------------------------------------------------------------------------------------


class HeldFs(OsFs):
    """A disk whose syncs wait for a permit."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.permits = threading.Semaphore(0)
        self.error: OSError | None = None

    def fdatasync(self, fd: int) -> None:
        """Tell that it has begun, and wait for the permit."""
        self.entered.release()
        assert self.permits.acquire(timeout=60)
        if self.error is not None:
            raise self.error


def threaded_shard(tmp_path: Path, fs: OsFs, wake: Callable[[], None]) -> tuple[WalShard, ThreadSyncs]:
    syncs = ThreadSyncs(2, wake)
    numbers = itertools.count(1)
    shard = WalShard(
        0,
        str(tmp_path / "wal"),
        lambda: next(numbers),
        fs=fs,
        clock=SystemClock(),
        sources=Sources(),
        syncs=syncs,
        prepare_lane=1,
        file_bytes=FILE_BYTES,
    )
    return shard, syncs


def append(shard: WalShard, data: bytes) -> None:
    shard.reserve(len(data) + OVERHEAD)
    shard.buffer.append_bytes(frame(data))
    shard.write()


def test_the_owner_goes_on_writing_while_a_sync_runs_in_its_thread(tmp_path: Path) -> None:
    fs = HeldFs()
    woken = threading.Event()
    shard, syncs = threaded_shard(tmp_path, fs, woken.set)
    told: list[object] = []
    append(shard, b"first")
    shard.sync(lambda error: told.append(("first", error)))
    shard.poll()
    assert fs.entered.acquire(timeout=60)
    covered = shard.position
    append(shard, b"second")
    shard.sync(lambda error: told.append(("second", error)))
    fs.permits.release()
    assert woken.wait(60)
    syncs.poll()
    assert told == [("first", None)]
    assert shard.synced == covered
    fs.permits.release()
    while len(told) < 2:
        shard.poll()
        syncs.wait(1_000_000)
        syncs.poll()
    assert told[1] == ("second", None)
    fs.permits.release()
    shard.close()
    syncs.close()


def test_a_rotation_in_a_thread_gates_the_next_file_and_a_failure_stops_it(tmp_path: Path) -> None:
    fs = HeldFs()
    shard, syncs = threaded_shard(tmp_path, fs, lambda: None)
    append(shard, b"x" * 500)
    shard.rotate()
    assert fs.entered.acquire(timeout=60)
    shard.reserve(OVERHEAD + 1)
    shard.buffer.append_bytes(frame(b"y"))
    fs.error = OSError(errno.EIO, "gone")
    fs.permits.release()
    with pytest.raises(ReadOnly):
        shard.write()
    told: list[StorageFailed | None] = []
    shard.sync(told.append)
    shard.poll()
    assert [type(error) for error in told] == [ReadOnly]
    shard.close()
    syncs.close()


def test_many_turns_with_real_threads_keep_every_frame(tmp_path: Path) -> None:
    shard, syncs = threaded_shard(tmp_path, OsFs(), lambda: None)
    told: list[StorageFailed | None] = []
    sent = [frame(number.to_bytes(4, "little") + b"." * (number % 90)) for number in range(600)]
    for content in sent:
        shard.reserve(len(content))
        shard.buffer.append_bytes(content)
        shard.write()
        shard.sync(told.append)
        shard.poll()
        syncs.poll()
    shard.close()
    assert told == [None] * len(sent)
    files = list_wal_files(OsFs(), str(tmp_path / "wal"))
    assert len(files) > 10
    found = [content for file in files for content in frames_of(Path(file.path).read_bytes())]
    ends = [end_frame(file.number) for file in files]
    assert [content for content in found if content not in ends] == sent
    assert [content for content in found if content in ends] == ends
    syncs.close()


def test_a_power_loss_in_a_thread_reaches_the_owner(tmp_path: Path) -> None:
    syncs = ThreadSyncs(2)
    bench = LogBench(tmp_path, syncs=syncs)
    bench.append(10)
    bench.sync()
    bench.fs.lose_power_at(bench.fs.calls + 1)
    bench.shard.poll()
    syncs.drain(0)
    with pytest.raises(PowerLoss):
        syncs.poll()
    assert bench.told == []
    bench.shard.abandon()
    bench.fs.restore()
    bench.check_disk(bench.contents())
    syncs.close()
