"""Spec 7, end to end: which segments a running writer deletes, and which it keeps."""

import errno
import gc
import os
import struct
import sys
import threading
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from everlog.clock import NS_PER_S, TestClock
from everlog.errors import WriterAlreadyActive
from everlog.fault_fs import FaultFs
from everlog.queue import Queue, QueueWriter
from tests.support.files import UnsyncedFs, hooked_fs
from tests.support.processes import eventually
from tests.support.queues import SMALL, kill_image, open_reader, open_writer, read_all, register, segment_ids

PER_SEGMENT = 7


class RetentionHarness:
    """A writer and the clock it runs by; the worker runs when time moves."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.path = path
        self.clock = TestClock()
        self.writer: QueueWriter = open_writer(path, clock=self.clock, **settings)

    def fill(self, segments: int) -> None:
        """Append so many segments full of records, and one record more."""
        for _ in range(segments * PER_SEGMENT + 1):
            self.writer.append(1, b"x")

    def passes(self, count: int = 3) -> None:
        """Let the worker run a few passes and wait until it has."""
        done = 0
        original = self.writer._retention._on_tick

        def tick() -> None:
            nonlocal done
            original()
            done += 1

        self.writer._retention._on_tick = tick
        for number in range(count + 1):
            # A pass is over when the next one begins.
            eventually("a pass", lambda number=number: self._nudge() or done > number)  # type: ignore[misc]
        self.writer._retention._on_tick = original

    def _nudge(self) -> None:
        self.writer._retention.wake()

    def kept(self) -> list[int]:
        """The segments up to the head that are there."""
        return [segment_id for segment_id in segment_ids(self.path) if segment_id <= self.writer.segment_id]


@pytest.fixture
def harness(tmp_path: Path) -> Any:
    made = RetentionHarness(tmp_path / "q")
    yield made
    made.writer.close()


def test_without_a_readers_directory_nothing_is_deleted(harness: RetentionHarness) -> None:
    harness.fill(5)
    harness.passes()
    assert harness.kept() == [0, 1, 2, 3, 4, 5]


def test_what_every_reader_has_committed_is_deleted(harness: RetentionHarness) -> None:
    with (
        open_reader(harness.path, "slow", clock=harness.clock) as slow,
        open_reader(harness.path, "fast", clock=harness.clock) as fast,
    ):
        harness.fill(5)
        fast.drain(1000)
        fast.commit()
        harness.passes()
        assert harness.kept() == [0, 1, 2, 3, 4, 5], "the slow one still needs it"
        slow.drain(2 * PER_SEGMENT + 1)
        harness.passes()
        assert harness.kept() == [0, 1, 2, 3, 4, 5], "reading is not committing"
        slow.commit()
        harness.passes()
        assert harness.kept() == [2, 3, 4, 5]
        assert [message.seq for message in slow.drain(1000)] == list(range(15, 36))


def test_the_index_is_deleted_with_its_segment(harness: RetentionHarness) -> None:
    with open_reader(harness.path, clock=harness.clock) as reader:
        harness.fill(3)
        assert (harness.path / "000000000.idx").exists()
        reader.drain(1000)
        reader.commit()
        harness.passes()
    assert sorted(path.name for path in harness.path.glob("*.idx")) == []
    assert harness.kept() == [3]


def test_the_head_is_never_deleted(harness: RetentionHarness) -> None:
    with open_reader(harness.path, clock=harness.clock) as reader:
        harness.fill(2)
        reader.drain(1000)
        reader.commit()
        harness.clock.advance_ns(3600 * NS_PER_S)
        harness.passes()
        assert harness.kept() == [2]


def test_a_dead_reader_holds_nothing_back_after_its_ttl(harness: RetentionHarness) -> None:
    open_reader(harness.path, clock=harness.clock).close()
    harness.fill(3)
    harness.passes()
    assert harness.kept() == [0, 1, 2, 3]
    harness.clock.advance_ns(30 * NS_PER_S)
    harness.passes()
    assert harness.kept() == [0, 1, 2, 3], "exactly the TTL still counts"
    harness.clock.advance_ns(NS_PER_S)
    harness.passes()
    assert harness.kept() == [3], "without a counting reader all below the head goes"


def test_a_reader_with_heartbeats_holds_its_segments_for_ever(harness: RetentionHarness) -> None:
    with open_reader(harness.path, clock=harness.clock) as reader:
        harness.fill(3)
        for _ in range(5):
            harness.clock.advance_ns(25 * NS_PER_S)
            reader.heartbeat()
            harness.passes()
        assert harness.kept() == [0, 1, 2, 3]
        assert len(reader.drain(1000)) == 3 * PER_SEGMENT + 1


@pytest.mark.parametrize("jump_s", [10**6, -(10**6)])
def test_a_jump_of_the_wall_clock_kills_no_reader(harness: RetentionHarness, jump_s: int) -> None:
    with open_reader(harness.path, clock=harness.clock):
        harness.fill(3)
        harness.passes()
        harness.clock.set_wall_ns(harness.clock.wall_ns() + jump_s * NS_PER_S)
        harness.passes()
        assert harness.kept() == [0, 1, 2, 3]


def test_a_legacy_reader_never_expires(harness: RetentionHarness) -> None:
    harness.fill(3)
    register(harness.path, "old", struct.pack("<QQ", 1, 64))
    harness.clock.advance_ns(10**6 * NS_PER_S)
    harness.passes()
    assert harness.kept() == [1, 2, 3]
    register(harness.path, "older", struct.pack("<Q", 64))
    (harness.path / "readers/old.meta").unlink()
    harness.passes()
    assert harness.kept() == [1, 2, 3]


def test_a_reader_too_far_behind_holds_nothing_back(tmp_path: Path) -> None:
    harness = RetentionHarness(tmp_path / "q", max_reader_lag_bytes=2 * SMALL)
    with harness.writer, open_reader(harness.path, clock=harness.clock) as reader:
        harness.fill(1)
        harness.passes()
        assert harness.kept() == [0, 1]
        harness.writer.append_many(1, [b"x"] * (PER_SEGMENT - 1))
        assert harness.writer.segment_id * SMALL + harness.writer.offset - 64 <= 2 * SMALL
        harness.passes()
        assert harness.kept() == [0, 1]
        harness.fill(1)
        harness.passes()
        assert harness.kept() == [3] or harness.kept() == [2, 3]
        assert reader.detect_disconnect() is not None


def test_a_corrupt_meta_aborts_the_pass_and_is_counted(harness: RetentionHarness) -> None:
    with open_reader(harness.path, clock=harness.clock) as reader:
        harness.fill(3)
        reader.drain(1000)
        (harness.path / "readers/hurt.meta").write_bytes(b"\xff" * 80)
        reader.commit()
        harness.passes()
        assert harness.writer.metrics.retention_errors > 0
        assert harness.kept() == [0, 1, 2, 3]
        (harness.path / "readers/hurt.meta").unlink()
        harness.passes()
        assert harness.kept() == [3]


def pass_with_failures(tmp_path: Path, operation: str, path: str, times: int) -> tuple[int, list[int]]:
    """Let calls fail while all of four segments but the head may go; return the errors, and what is kept."""
    fs = FaultFs(tmp_path, inner=UnsyncedFs())
    harness = RetentionHarness(tmp_path / "q", fs=fs)
    with harness.writer, open_reader(harness.path, clock=harness.clock) as reader:
        harness.fill(3)
        reader.drain(1000)
        fs.fail_when(operation, errno.EIO, path=path, times=times)
        reader.commit()
        harness.passes()
        return harness.writer.metrics.retention_errors, harness.kept()


def test_a_file_that_cannot_be_deleted_is_counted_and_tried_again(tmp_path: Path) -> None:
    assert pass_with_failures(tmp_path, "unlink", "000000001.q", times=1) == (1, [3])


def test_while_a_position_cannot_be_synced_nothing_is_deleted_for_it(tmp_path: Path) -> None:
    errors, kept = pass_with_failures(tmp_path, "fsync", "alpha.meta", times=1000)
    assert errors > 0
    assert kept == [0, 1, 2, 3]


def test_a_writer_that_looks_for_room_does_not_wait_for_the_disk_of_a_pass(tmp_path: Path) -> None:
    syncing, looked = threading.Event(), threading.Event()

    def before(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "fsync_dir" and arguments[0].endswith("readers") and not looked.is_set():
            syncing.set()
            assert looked.wait(30), "the writer waited for the pass"

    with open_writer(tmp_path / "q", fs=hooked_fs(before)) as writer, open_reader(tmp_path / "q") as reader:
        writer.append_many(1, [b"x"] * (2 * PER_SEGMENT))
        reader.drain(1000)
        reader.commit()
        eventually("the worker to sync the readers", lambda: writer._retention.wake() or syncing.is_set())
        assert writer._retention.refresh() is not None
        looked.set()
        eventually("the segment to go", lambda: segment_ids(tmp_path / "q")[0] > 0)
        assert writer.metrics.retention_errors == 0


def test_many_segments_go_in_small_batches(tmp_path: Path) -> None:
    fs = FaultFs(tmp_path, inner=UnsyncedFs())
    harness = RetentionHarness(tmp_path / "q", fs=fs)
    with harness.writer, open_reader(harness.path, clock=harness.clock) as reader:
        harness.fill(50)
        reader.drain(1000)
        reader.commit()
        eventually("all to go", lambda: harness.passes(1) or harness.kept() == [50])
    names = [call.name for call in fs.log if call.name == "listdir" or call.path.endswith(".q")]
    runs = "".join("u" if name == "unlink" else " " for name in names).split()
    assert max(len(run) for run in runs) <= 16


def test_with_retention_off_nothing_is_deleted(tmp_path: Path) -> None:
    harness = RetentionHarness(tmp_path / "q", retention=False)
    with harness.writer, open_reader(harness.path, clock=harness.clock) as reader:
        harness.fill(3)
        reader.drain(1000)
        reader.commit()
        harness.clock.advance_ns(1000 * NS_PER_S)
        harness.passes()
        assert harness.kept() == [0, 1, 2, 3]


def test_the_newest_record_stays_so_that_seq_can_continue(tmp_path: Path) -> None:
    """The head is empty and everything was read: the segment before it holds the last seq."""

    harness = RetentionHarness(tmp_path / "q")
    with harness.writer, open_reader(harness.path, clock=harness.clock) as reader:
        harness.writer.append_many(1, [b"x"] * 2 * PER_SEGMENT)
        harness.passes()
        with pytest.raises(LookupError):
            harness.writer.append_in_place(1, SMALL - 128, failing_builder)
        assert (harness.writer.segment_id, harness.writer.offset) == (2, 64)
        reader.drain(1000)
        reader.next()
        reader.commit()
        assert reader.committed_position == (2, 64)
        harness.passes()
        assert harness.kept() == [1, 2]
        image = kill_image(harness.path, tmp_path / "image")
    with open_writer(image) as writer:
        assert writer.next_seq == 2 * PER_SEGMENT
        writer.append(1, b"next")
    assert read_all(image)[-1].seq == 2 * PER_SEGMENT


def test_the_rule_holds_across_a_restart(tmp_path: Path) -> None:
    """A writer that was just opened and has appended nothing must not delete the last record either."""
    with open_writer(tmp_path / "q", retention=False) as writer:
        writer.append(1, bytes(SMALL - 128))
        writer.append(1, bytes(SMALL - 128))
    with open_reader(tmp_path / "q") as reader:
        reader.drain(10)
        reader.commit()
    for _ in range(3):
        harness = RetentionHarness(tmp_path / "q")
        with harness.writer:
            harness.clock.advance_ns(1000 * NS_PER_S)
            harness.passes()
            assert harness.writer.next_seq == 2
            assert 1 in harness.kept()


def test_segments_of_earlier_writers_are_deleted_too(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", retention=False) as writer:
        writer.append_many(1, [b"x"] * 30)
    with open_reader(tmp_path / "q") as reader:
        reader.drain(29)
        reader.commit()
    harness = RetentionHarness(tmp_path / "q")
    with harness.writer:
        harness.passes()
        assert harness.kept() == [4]


def test_a_position_that_was_never_stored_holds_back_everything(harness: RetentionHarness) -> None:
    harness.fill(3)
    register(harness.path, "new", bytes(80))
    harness.clock.advance_ns(1000 * NS_PER_S)
    harness.passes()
    assert harness.kept() == [0, 1, 2, 3]


def test_retention_runs_by_itself_in_real_time(tmp_path: Path) -> None:
    with (
        Queue.open_publisher(tmp_path / "q", segment_size=SMALL) as writer,
        Queue.open_subscriber(tmp_path / "q", "alpha") as reader,
    ):
        writer.append_many(1, [b"x"] * 50)
        reader.drain(1000)
        reader.commit()
        eventually("the old segments to go", lambda: min(segment_ids(tmp_path / "q")) == writer.segment_id)
        assert writer.metrics.retention_errors == 0


def test_reading_ahead_and_seeking_free_nothing(harness: RetentionHarness) -> None:
    """Heartbeats write the committed position, never one reached by seek or read-ahead."""
    with open_reader(harness.path, clock=harness.clock) as reader:
        harness.fill(3)
        reader.drain(1000)
        reader.seek_seq(20)
        for _ in range(3):
            harness.clock.advance_ns(2 * NS_PER_S)
            reader.heartbeat()
            harness.passes()
        assert harness.kept() == [0, 1, 2, 3]


def test_the_worker_never_uses_a_descriptor_that_a_roll_has_closed(tmp_path: Path) -> None:
    """It syncs the current segment now and then, while the writer may be leaving it."""
    syncing, rolled = threading.Event(), threading.Event()
    targets: list[str] = []

    def before(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "msync" and threading.current_thread().name == "everlog-retention" and not targets:
            expected = os.path.join(tmp_path, "q", f"{writer.segment_id:09d}.q")
            syncing.set()
            rolled.wait(0.3)  # the roll may have to wait for this sync: that is fine too
            try:
                targets.append(os.readlink(f"/proc/self/fd/{arguments[1]}"))
            except OSError:
                targets.append("closed")
            targets.append(expected)

    with open_writer(tmp_path / "q", fs=hooked_fs(before), retention=False) as writer:
        with pytest.raises(LookupError):
            writer.append_in_place(1, SMALL - 128, failing_builder)
        writer.append(1, bytes(SMALL - 192))
        writer.append(1, b"the first of segment 1")
        eventually("the worker to sync", lambda: writer._retention.wake() or syncing.is_set())
        writer.append(1, bytes(SMALL - 128))
        rolled.set()
        eventually("the worker to have synced", lambda: len(targets) == 2)
        assert targets[0] == targets[1]
        writer.flush_sync()


def failing_builder(view: memoryview) -> None:
    raise LookupError


def test_a_writer_forgotten_while_its_worker_runs_still_lets_go_of_the_queue(tmp_path: Path) -> None:
    """The worker may hold the last reference, so that the writer ends in the worker's own thread."""
    in_tick, forgotten = threading.Event(), threading.Event()

    class HoldingClock(TestClock):
        def monotonic_ns(self) -> int:
            if threading.current_thread().name == "everlog-retention" and called_by("_tick"):
                in_tick.set()
                forgotten.wait(30)
            return super().monotonic_ns()

    writer = open_writer(tmp_path / "q", clock=HoldingClock())
    writer.append(1, b"x")
    worker = writer._retention
    eventually("a tick", lambda: worker.wake() or in_tick.is_set())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del writer
        gc.collect()
        forgotten.set()
        eventually("the queue to be free", lambda: reopened(tmp_path / "q"), timeout_s=5)


def called_by(name: str) -> bool:
    """Whether a function is on the stack of this thread."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == name:
            return True
        frame = frame.f_back
    return False


def reopened(path: Path) -> bool:
    """Whether another writer can take over by now."""
    try:
        open_writer(path).close()
    except WriterAlreadyActive:
        return False
    return True
