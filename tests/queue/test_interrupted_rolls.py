"""Rolls and syncs that are interrupted or fail: all or nothing, and no promise that the disk did not keep."""

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from everlog.clock import SystemClock
from everlog.errors import Io, QueueFull
from everlog.fault_fs import FaultFs
from everlog.fs import OsFs, Syncable
from everlog.queue import QueueReader, QueueWriter
from everlog.queue.segment import create_segment
from everlog.queue.workers import PrepareWorker
from tests.queue.interrupts import interrupt_at
from tests.support.files import UnsyncedFs
from tests.support.processes import eventually
from tests.support.queues import SMALL, open_reader, open_writer, payloads, read_all, segment_ids

# -- a roll that is interrupted --------------------------------------------------------------


class UnsyncedFs(UnsyncedFs):
    """Waits for the disk in no way at all; what would be on it is simulated by `FaultFs`."""

    def msync(self, mapping: Syncable, fd: int, offset: int, length: int, wait: bool) -> None:
        """Do not wait."""


PREPARED = ([bytes([number]) * 60 for number in range(6)], b"r" * 200)
"""Payloads that fill a segment so far that the next is asked for, and one that needs it."""
CREATED = ([b"a"], b"r" * 850)
"""The same, but the next segment has not been asked for: the roll makes it itself."""
LATER = [bytes([0x40 + number]) * 200 for number in range(5)]
"""Appended after the interrupt; they need at least one more roll."""
POINTS_MIN = 40
"""A roll has more points than that; fewer would mean that nothing is traced."""


def await_prepared(writer: QueueWriter) -> None:
    eventually("the next segment to be prepared", lambda: writer._prepare._ready is not None)


def append_on(writer: QueueWriter, reader: QueueReader, appended: list[bytes]) -> None:
    """Append more; the reader sees everything once, and a flush succeeds."""
    seen = [bytes(view) for view in reader]
    for payload in LATER:
        writer.append(1, payload)
        seen += [bytes(view) for view in reader]
    assert seen == [*appended, *LATER]
    assert reader.position == (writer.segment_id, writer.offset)
    writer.flush_sync()
    assert writer.metrics.seal_errors == 0


def interrupt_a_roll(root: Path, point: int, case: tuple[list[bytes], bytes], deferred: bool) -> str | None:
    """Interrupt one roll, append on, and lose power; returns where, None if there is no such point."""
    before, rolling = case
    fs = FaultFs(root, inner=UnsyncedFs(), page_size=64)
    settings = {"retention": False, "defer_seal_sync": deferred, "index_stride": 1}
    where: str | None = "not at all"
    try:
        with open_writer(root / "q", fs=fs, **settings) as writer, open_reader(root / "q", None) as reader:
            for payload in before:
                writer.append(1, payload)
            if case is PREPARED:
                await_prepared(writer)
            where = interrupt_at(point, lambda: writer.append(1, rolling))
            appended = [*before, rolling][: writer.next_seq]
            append_on(writer, reader, appended)
        fs.restore()
        assert payloads(root / "q") == [*appended, *LATER], "after a power loss"
    except Exception as error:
        raise AssertionError(f"interrupted at point {point}, {where}: {error}") from error
    return where


@pytest.mark.parametrize(
    ("case", "deferred"),
    [(PREPARED, True), (CREATED, False)],
    ids=["prepared, synced later", "created, synced at once"],
)
def test_a_roll_interrupted_at_any_point_happens_as_a_whole_or_not_at_all_and_its_sync_is_not_lost(
    tmp_path: Path, case: tuple[list[bytes], bytes], deferred: bool
) -> None:
    failures = []
    where: str | None = ""
    point = 0
    while where is not None:
        root = tmp_path / str(point)
        root.mkdir()
        try:
            where = interrupt_a_roll(root, point, case, deferred)
        except AssertionError as error:
            failures.append(str(error))
        point += 1
    assert failures == [], "\n".join(failures)
    assert point > POINTS_MIN


def test_a_roll_interrupted_at_any_point_lifts_no_capacity_limit(tmp_path: Path) -> None:
    before, rolling = PREPARED
    max_bytes = 1400
    failures = []
    where: str | None = ""
    point = 0
    while where is not None:
        path = tmp_path / str(point)
        settings = {"max_bytes": max_bytes, "retention": False, "fs": UnsyncedFs()}
        with open_writer(path, **settings) as writer, open_reader(path):
            for payload in before:
                writer.append(1, payload)
            await_prepared(writer)
            where = interrupt_at(point, lambda writer=writer: writer.append(1, rolling))  # type: ignore[misc]
            with pytest.raises(QueueFull):
                for _ in range(100):
                    writer.append(1, b"small")
            ahead = writer.segment_id * SMALL + writer.offset - 64
            if ahead > max_bytes:
                failures.append(f"interrupted at {where}: {ahead} bytes ahead of the reader")
        point += 1
    assert failures == [], "\n".join(failures)
    assert point > POINTS_MIN


def test_a_segment_left_while_the_retention_thread_looks_at_it_spoils_no_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention syncs the current segment to keep its seq; a roll may take it away in between."""
    looking, go_on, looked = threading.Event(), threading.Event(), threading.Event()
    state_of, anchor = QueueWriter._index_state, QueueWriter._anchor_seq

    def slow_state(writer: QueueWriter) -> Any:
        state = state_of(writer)
        in_worker = threading.current_thread().name == "everlog-retention"
        if in_worker and state is not None and state[6].segment_id == 1 and not looking.is_set():
            looking.set()
            go_on.wait()
        return state

    def watched_anchor(writer: QueueWriter) -> None:
        anchor(writer)
        if go_on.is_set():
            looked.set()

    monkeypatch.setattr(QueueWriter, "_index_state", slow_state, raising=False)
    monkeypatch.setattr(QueueWriter, "_anchor_seq", watched_anchor)
    fs = FaultFs(tmp_path, inner=UnsyncedFs())
    settings = {"retention_check_interval_s": 0.001, "retention": False}
    with open_writer(tmp_path / "q", fs=fs, **settings) as writer:
        for _ in range(2):
            writer.append(1, bytes(800))
        writer._retention.wake()
        assert looking.wait(30)
        writer.append(1, bytes(800))
        go_on.set()
        writer._retention.wake()
        assert looked.wait(30)
        writer.flush_sync()


def test_a_full_disk_at_a_roll_changes_nothing_and_the_append_can_be_repeated(tmp_path: Path) -> None:
    """The plain failure beside the interrupts: a roll that cannot get its segment."""
    fs = FaultFs(tmp_path, inner=UnsyncedFs())
    with open_writer(tmp_path / "q", fs=fs, retention=False) as writer, open_reader(tmp_path / "q") as reader:
        writer.append(1, b"a")
        fs.fail_when("allocate", errno.ENOSPC)
        with pytest.raises(Io, match="disk is full"):
            writer.append(1, bytes(850))
        assert (writer.segment_id, writer.next_seq, segment_ids(tmp_path / "q")) == (0, 1, [0])
        assert writer.append(1, bytes(850)) == 1
        assert [view.seq for view in reader] == [0, 1]


# -- preparing -------------------------------------------------------------------------------


class PatientClock(SystemClock):
    """A clock that lets pauses after an error pass at once and tells when the worker has nothing to do."""

    def __init__(self) -> None:
        self.idle = threading.Event()

    def wait(self, event: threading.Event, timeout_ns: int) -> bool:
        if timeout_ns < 1_000_000_000:
            return event.is_set()
        self.idle.set()
        return super().wait(event, timeout_ns)


class FailingBuild(OsFs):
    """Every allocation waits for `go_on`; the first one then fails."""

    def __init__(self) -> None:
        self.builds: list[str] = []
        self.inside, self.go_on = threading.Event(), threading.Event()

    def allocate(self, fd: int, length: int) -> None:
        self.builds.append(threading.current_thread().name)
        if len(self.builds) == 1:
            self.inside.set()
            self.go_on.wait()
            raise OSError(errno.ENOSPC, "full")
        super().allocate(fd, length)


def test_suspending_while_a_build_fails_starts_no_second_build(tmp_path: Path) -> None:
    fs, clock = FailingBuild(), PatientClock()
    worker = PrepareWorker(fs, clock, str(tmp_path), SMALL, memlock=False)
    worker.start()
    try:
        worker.request(1)
        assert fs.inside.wait(30)
        clock.idle.clear()
        taken: list[object] = []
        taker = threading.Thread(target=lambda: taken.append(worker.suspend(1)))
        taker.start()
        eventually("the taker to announce itself", lambda: worker._suspended)
        fs.go_on.set()
        taker.join()
        assert taken == [None]
        assert clock.idle.wait(30)
        assert (fs.builds, worker.errors) == (["everlog-prepare"], 1)
        create_segment(fs, str(tmp_path), 1, SMALL).close(fs)
        worker.request(2)
        eventually("the worker to go on with the next segment", lambda: segment_ids(tmp_path) == [1, 2])
    finally:
        fs.go_on.set()
        worker.close()
    assert fs.builds == ["everlog-prepare", threading.current_thread().name, "everlog-prepare"]


def test_a_failed_build_is_retried_until_suspended(tmp_path: Path) -> None:
    fs = FailingBuild()
    fs.go_on.set()
    worker = PrepareWorker(fs, PatientClock(), str(tmp_path), SMALL, memlock=False)
    worker.start()
    try:
        worker.request(1)
        segment = worker.prepared(1, 30)
        assert segment is not None
        segment.close(fs)
    finally:
        worker.close()
    assert (len(fs.builds), worker.errors) == (2, 1)


# -- a sync that fails -----------------------------------------------------------------------


@contextmanager
def failing_disk(root: Path, **settings: object) -> Iterator[tuple[FaultFs, QueueWriter, QueueReader]]:
    """A queue with one record in its segment, on a disk that can be told to fail."""
    fs = FaultFs(root, inner=UnsyncedFs())
    with (
        open_writer(root / "q", fs=fs, retention=False, **settings) as writer,
        open_reader(root / "q", None) as reader,
    ):
        writer.append(1, bytes(800))
        yield fs, writer, reader


def fail_a_roll(fs: FaultFs, writer: QueueWriter) -> None:
    fs.fail_when("fsync", errno.EIO, path="000000000.q")
    writer.append(1, bytes(800))


def fail_a_flush(fs: FaultFs, writer: QueueWriter) -> None:
    fs.fail_when("msync", errno.EIO, path="000000000.q")
    with pytest.raises(Io, match="Input/output error"):
        writer.flush_sync()


def fail_the_control_block(fs: FaultFs, writer: QueueWriter) -> None:
    fs.fail_when("msync", errno.EIO, path="control.meta")
    with pytest.raises(Io, match="Input/output error"):
        writer.flush_sync()


@pytest.mark.parametrize("deferred", [False, True], ids=["inline", "deferred"])
@pytest.mark.parametrize("fail", [fail_a_roll, fail_a_flush, fail_the_control_block])
def test_after_a_sync_that_failed_once_flush_sync_raises_every_time(
    tmp_path: Path, fail: Callable[[FaultFs, QueueWriter], None], deferred: bool
) -> None:
    """A second sync would succeed without having written what the first one lost."""
    with failing_disk(tmp_path, defer_seal_sync=deferred) as (fs, writer, reader):
        fail(fs, writer)
        for _ in range(3):
            with pytest.raises(Io, match="Input/output error") as raised:
                writer.flush_sync()
            assert raised.value.errno == errno.EIO
            writer.append(1, bytes(800))  # rolls, and that sync succeeds
        assert not (tmp_path / "q/index.meta").exists(), "nothing may vouch for what is not on disk"
        assert [view.seq for view in reader] == list(range(writer.next_seq))
        count = writer.next_seq
    with open_writer(tmp_path / "q", retention=False) as writer:
        assert writer.next_seq == count
        writer.append(1, b"after")
        writer.flush_sync()
    assert [message.seq for message in read_all(tmp_path / "q")] == list(range(count + 1))


def test_a_sync_that_failed_in_the_background_is_raised_by_the_next_flush_sync(tmp_path: Path) -> None:
    with failing_disk(tmp_path, defer_seal_sync=True) as (fs, writer, _):
        fail_a_roll(fs, writer)
        eventually("the worker to meet the error", lambda: writer.metrics.seal_errors == 1)
        with pytest.raises(Io, match="Input/output error"):
            writer.flush_sync()
        syncs = [call for call in fs.log if call.name == "fsync" and call.path.endswith("000000000.q")]
        writer.append(1, bytes(800))
        with pytest.raises(Io):
            writer.flush_sync()
        again = [call for call in fs.log if call.name == "fsync" and call.path.endswith("000000000.q")]
        assert syncs == again, "a sync that failed is not repeated"
        assert writer.metrics.seal_errors == 1


def test_an_index_that_could_not_be_flushed_is_no_lost_data(tmp_path: Path) -> None:
    """Only syncs of records and control block are beyond repair; the next flush writes a new index."""
    with failing_disk(tmp_path) as (fs, writer, _):
        fs.fail_when("fsync", errno.EIO, path=".idx")
        with pytest.raises(Io):
            writer.flush_sync()
        writer.flush_sync()
