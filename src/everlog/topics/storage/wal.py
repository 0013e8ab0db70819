"""One shard of the log: frames are gathered, written in one piece, and synced for many at once.

Owns the shard's files of this run, from the first byte to their deletion, and knows what of them is
written and what is synced. Which frames there are, and what waits for them, is decided in `commits`.
Everything but the jobs of the sync runner happens on the owner's thread.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

from everlog.clock import Clock
from everlog.errors import (
    BatchTooLarge,
    Closed,
    InvalidConfig,
    OutcomeUnknown,
    ReadOnly,
    StorageFailed,
    Superseded,
)
from everlog.fs import Fs, create_directory
from everlog.native.queue.ring import Mapping
from everlog.native.topics.log import FrameBuffer, Sources
from everlog.topics.storage.disk_reserve import DiskReserve
from everlog.topics.storage.failures import StorageFailures
from everlog.topics.storage.log_shipping import LogShipping
from everlog.topics.storage.synced_ends import SyncedEnds
from everlog.topics.storage.syncs import CommitWindow, SyncRunner
from everlog.topics.storage.wal_files import (
    AHEAD_BYTES,
    END_FRAME_SIZE,
    LogFile,
    capacity_for,
    create_log_file,
    discard_log_file,
    end_frame,
)

FILE_BYTES: Final = 64 << 20
FILE_BYTES_MIN: Final = 256
FILE_BYTES_MAX: Final = (1 << 32) - 1
"""Offsets in the index have 32 bits."""

BACKGROUND_SYNC_NS: Final = 10_000_000
"""How long frames without a waiter may stay without a sync once one is requested."""

SYNC_MICROS_BOUNDS: Final = (50, 100, 250, 500, 1_000, 5_000, 10_000, 50_000, 100_000)

SyncDone = Callable[[StorageFailed | None], None]


class Position(NamedTuple):
    """A place in the log of one shard."""

    file_number: int
    offset: int


class HeldFile(NamedTuple):
    """A log file of this run that was not trimmed yet."""

    number: int
    path: str
    source: int


@dataclass(slots=True)
class WalMetrics:
    """What one shard has done; frames, batches and bytes are those of its callers."""

    frames: int = 0
    batches: int = 0
    bytes_written: int = 0
    rotations: int = 0
    fsyncs: int = 0
    fsync_micros_total: int = 0
    fsync_micros_counts: list[int] = field(default_factory=lambda: [0] * (len(SYNC_MICROS_BOUNDS) + 1))
    """Syncs that took at most the bound of the same index, and more than the bound before; the last
    has no bound."""
    write_ns_last: int = 0
    fsync_ns_last: int = 0
    """How long the last write and the last sync took."""

    def count_sync(self, micros: int) -> None:
        """Count one successful sync."""
        self.fsyncs += 1
        self.fsync_ns_last = micros * 1000
        self.fsync_micros_total += micros
        self.fsync_micros_counts[bisect_left(SYNC_MICROS_BOUNDS, micros)] += 1

    def add(self, other: WalMetrics) -> None:
        """Count what another shard has done as well."""
        for name in ("frames", "batches", "bytes_written", "rotations", "fsyncs", "fsync_micros_total"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        pairs = zip(self.fsync_micros_counts, other.fsync_micros_counts, strict=True)
        self.fsync_micros_counts = [own + others for own, others in pairs]

    def cumulative_buckets(self) -> list[tuple[str, float]]:
        """The histogram as Prometheus counts: syncs up to each bound in microseconds, and all."""
        bounds = [*map(str, SYNC_MICROS_BOUNDS), "+Inf"]
        return list(zip(bounds, accumulate(map(float, self.fsync_micros_counts)), strict=True))


class _Job:
    """Something for the shard's lane. `run` may happen on another thread, all else on the owner's."""

    def __init__(self, work: Callable[[], None], finish: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work
        self._finish: Callable[[], None] | None = finish
        self.has_run = False
        self.error: BaseException | None = None

    def run(self) -> None:
        """Do the work; what it raises is also stored, for an owner that cannot wait for `poll`."""
        work = self._work
        try:
            if work is not None:
                work()
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.has_run = True

    def finish(self) -> None:
        """Use the result; called once the job has run, whether or not it has failed.

        Nothing of the job stays referenced: a log file that is trimmed gives back its room at once, not when
        the garbage collector finds the cycle.
        """
        finish, self._finish, self._work = self._finish, None, None
        if finish is not None:
            finish()

    def cancel(self) -> None:
        """Do nothing when it is the job's turn."""
        self._work = None


class WalShard:
    """One ordered stream of frames in numbered files.

    The caller reserves room for a whole batch, appends its frames to `buffer` (the frame at buffer
    position p will lie at `source_offset + p` of `source`), counts them in `frames_gathered`, and calls
    `write` once for many batches. `reserve` may write and rotate on its own.

    After a failed `write` there is `needs_discard`: the gathered frames are in `buffer`, but not in the
    log, and nothing else is accepted before `discard`. A failed sync sets `read_only` for good: the kernel
    has forgotten which pages are missing, so a second attempt would prove nothing.
    """

    def __init__(  # noqa: PLR0913
        self,
        number: int,
        directory: str,
        next_file_number: Callable[[], int],
        *,
        fs: Fs,
        clock: Clock,
        sources: Sources,
        syncs: SyncRunner,
        prepare_lane: int,
        file_bytes: int = FILE_BYTES,
        ends: SyncedEnds | None = None,
        disk_reserve: DiskReserve | None = None,
    ) -> None:
        if not FILE_BYTES_MIN <= file_bytes <= FILE_BYTES_MAX:
            raise InvalidConfig(
                f"log files of {file_bytes} bytes cannot work; use {FILE_BYTES_MIN} to {FILE_BYTES_MAX}"
            )
        self.number = number
        self.directory = directory
        self.fs = fs
        self.clock = clock
        self.metrics = WalMetrics()
        self.window = CommitWindow()
        self.buffer = FrameBuffer()
        self.frames_gathered = 0
        self.read_only: StorageFailed | None = None
        self.shipping: LogShipping | None = None
        """Ships the log; its end is the end of this shard as well."""
        self.acks_shipped = False
        """Whether everything waits until it is shipped, not only synced."""
        self._next_file_number = next_file_number
        self._sources = sources
        self._syncs = syncs
        self._prepare_lane = prepare_lane
        """Not that of syncs: a new file needs the journal of the file system, which may take a while."""
        self._file_bytes = file_bytes
        self._ends = ends
        self._disk_reserve = disk_reserve
        self.failures = StorageFailures(clock)
        self._write_error: StorageFailed | None = None
        self._closed = False
        self.source = 0
        self.file_number = 0
        self.source_offset = 0
        """Up to where the active file is written."""
        self.limit = -1
        """Up to where the active file may be filled; -1 while it may not be."""
        self._mark = self._quarter = 0
        self._jobs: deque[_Job] = deque()
        """Those in the lane of this shard, in their order."""
        self._group: _Job | None = None
        """The sync that the commit window has started, until it is over."""
        self._gate: _Job | None = None
        """The last sync of the file before; no byte may be written before it is over."""
        self._preparing: _Job | None = None
        self._prepared: LogFile | None = None
        self.prepared_number = 0
        """The number of the next file if it is prepared or about to be, otherwise 0."""
        self._waiters: deque[tuple[Position, SyncDone]] = deque()
        self._releasing = False
        self.requested_ns: int | None = None
        self._files: list[LogFile] = []
        self._create_directory()
        self._activate(self._next_file(0, frees_space=True))
        self.synced = self._started = self.position

    def _create_directory(self) -> None:
        try:
            create_directory(self.fs, self.directory)
        except OSError as error:
            raise StorageFailed(
                f"cannot create the log directory {self.directory}: {error}", error.errno
            ) from None

    def __repr__(self) -> str:
        return f"WalShard({self.number}, {self.directory!r}, written {self.position}, synced {self.synced})"

    # --- Gathering and writing ---------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """Up to where the log is written."""
        return Position(self.file_number, self.source_offset)

    @property
    def needs_discard(self) -> bool:
        """Whether what is gathered will never be written, so that it must be withdrawn and discarded."""
        return self._write_error is not None or (self.read_only is not None and len(self.buffer) > 0)

    @property
    def files(self) -> list[HeldFile]:
        """The files of this run that are still there, oldest first; the last one is being written."""
        return [HeldFile(file.number, file.path, file.source) for file in self._files]

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes fit behind what is gathered."""
        return self.source_offset + len(self.buffer) + size <= self.limit

    def reserve(self, size: int, *, frees_space: bool = False) -> None:
        """Make sure that `size` more bytes, one whole batch, fit behind what is gathered.

        If they do not, what is gathered is written and the next file begins, so `source` and
        `source_offset` may change. Raises StorageFailed if there is no next file (`needs_discard` is
        false: what is gathered is untouched and still fits) or as `write` does. What `frees_space` may use
        the reserve of a full disk.
        """
        if not self.has_room(size):
            self._rotate(size, frees_space)

    def write(self) -> None:
        """Write everything gathered with one call. On StorageFailed see `needs_discard`."""
        length = len(self.buffer)
        if length == 0:
            return
        self._check_usable()
        self._await_gate()
        file = self.active
        end = file.end + length
        if end > self.limit:
            raise ValueError(f"{length} bytes were gathered in {file.path} without a reservation of so many")
        failure = None
        start_ns = self.clock.monotonic_ns()
        try:
            with memoryview(self.buffer) as view:
                self.fs.pwrite(file.fd, view, file.end)
        except OSError as error:
            # Its traceback refers to views of the buffer, which could not grow while it is referenced.
            failure = error.with_traceback(None)
        if failure is not None:
            self._write_error = self._cut_back(failure)
            raise self._write_error
        file.end = self.source_offset = end
        self.failures.succeeded("write")
        metrics = self.metrics
        metrics.write_ns_last = self.clock.monotonic_ns() - start_ns
        metrics.frames += self.frames_gathered
        metrics.batches += 1
        metrics.bytes_written += length
        self.frames_gathered = 0
        self.buffer.clear()
        if end >= self._mark:
            self._pass_mark(length)

    def discard(self) -> None:
        """Forget what is gathered, after the caller has withdrawn it."""
        self.buffer.clear()
        self.frames_gathered = 0
        self._write_error = None

    def rotate(self) -> None:
        """Write what is gathered and begin the next file; an empty file stays. Raises as `reserve`."""
        self._check_usable()
        if self.active.end or len(self.buffer):
            self._rotate(0, False)

    def shorten(self) -> None:
        """On a full disk: go on in a small file if much of this one is used, so that it can be trimmed."""
        reserve, file = self._disk_reserve, self.active
        if reserve is not None and file.capacity > reserve.small_file_bytes and file.end * 2 >= file.capacity:
            self._check_usable()
            self._rotate(0, True)

    def _await_gate(self) -> None:
        """Wait until the file before this one is whole on disk.

        After a power loss a file with frames would otherwise follow one without its tail.
        """
        if self._gate is not None:
            if not self._gate.has_run:
                self._syncs.drain(self.number)
            self._finish_jobs()
            self._gate = None
        if self.read_only is not None:
            raise self.refusal(self.read_only)

    def _check_usable(self) -> None:
        if self._closed:
            raise Closed(f"log shard {self.number} is closed")
        if self.read_only is not None:
            raise self.refusal(self.read_only)
        if self._write_error is not None:
            raise StorageFailed(
                f"{self._write_error}; discard what is gathered before going on", self._write_error.errno
            )

    @staticmethod
    def refusal(reason: StorageFailed) -> ReadOnly:
        """The error for a write to a shard that takes none for this reason."""
        # A new object each time: one that is raised again and again collects tracebacks.
        if isinstance(reason, Superseded):
            return Superseded(str(reason), reason.address)
        return ReadOnly(str(reason), reason.errno)

    def _cut_back(self, error: OSError) -> StorageFailed:
        """Leave no byte of a failed write in the active file and let no other batch into it."""
        file = self.active
        self.limit = -1
        self.failures.report("write", error, file.path)
        if self._disk_reserve is not None:
            self._disk_reserve.note(error)
        try:
            self.fs.truncate(file.fd, file.end)
            # A read of the old mapping behind the cut would be a bus error.
            self._sources.set(file.source, Mapping(file.fd, file.end, False) if file.end else b"")
        except OSError as second:
            self.failures.report("write", second, file.path)
            closed = self._turn_read_only(
                f"writing to {file.path} failed ({error}), and so did cutting it back to {file.end}",
                second,
            )
            return OutcomeUnknown.of(closed)
        return StorageFailed(
            f"writing to {file.path} failed: {error}; nothing of it stays, the log continues in a new file",
            error.errno,
        )

    def _turn_read_only(self, what: str, error: Exception) -> StorageFailed:
        if self.read_only is None:
            self.read_only = ReadOnly(
                f"{what}: {error}; log shard {self.number} takes no more writes until a restart",
                getattr(error, "errno", None),
            )
        self.limit = -1
        return self.read_only

    # --- Files -------------------------------------------------------------------------------------------

    def _rotate(self, size: int, frees_space: bool) -> None:
        self._check_usable()
        next_file = self._next_file(size, frees_space=frees_space)
        self.write()
        self._end_active()
        self._gate = self._start_sync(self.active, next_file.number)
        self.requested_ns = None
        self.metrics.rotations += 1
        self._activate(next_file)

    def _end_active(self) -> None:
        """Write the end frame into the room reserved for it."""
        self._await_gate()
        file = self.active
        try:
            self.fs.pwrite(file.fd, end_frame(file.number), file.end)
        except OSError as error:
            raise self._cut_back(error) from None
        file.end += END_FRAME_SIZE
        self.source_offset = file.end

    def _activate(self, file: LogFile) -> None:
        file.source = self._sources.add(file.mapping)
        if self._ends is not None:
            self._ends.add(file.number, self.number)
        self.active = file
        self.file_number = file.number
        self._prepared = None
        self.prepared_number = 0
        self._files.append(file)
        self.source = file.source
        self.source_offset = 0
        self.limit = file.limit
        self._mark = 0
        self._quarter = file.capacity // 4

    def _pass_mark(self, length: int) -> None:
        """The active file is to be written ahead, or another quarter of its capacity is passed."""
        file = self.active
        if file.end >= self._quarter:
            self._pass_quarter()
        # Large pieces gain nothing by it: their blocks would just be written twice.
        if length <= AHEAD_BYTES // 4:
            file.write_ahead(self.fs)
        self._mark = min(self._quarter, max(file.written, file.end + 1))

    def _pass_quarter(self) -> None:
        """Sync what has no waiter, so that a rotation has little left to sync."""
        file = self.active
        quarter = file.capacity // 4
        passed = file.end // quarter
        self._quarter = (passed + 1) * quarter
        self.request_sync()
        if passed >= 3 and self._preparing is None and self._prepared is None:
            self.prepared_number = self._next_file_number()
            self._preparing = self._preparation(self.prepared_number)
            self._syncs.start(self._prepare_lane, self._preparing.run, self._job_done)

    def _preparation(self, number: int) -> _Job:
        """A job that makes the next file ahead of time; only a failed sync is an error of it."""
        made: list[LogFile] = []

        def work() -> None:
            try:
                made.append(self._make_file(number, 0, frees_space=False))
            except OSError as error:  # the rotation tries again
                self.failures.report("log_file", error, self.directory)
            for file in made:
                self.fs.fsync_dir(self.directory)
                file.entry_durable = True

        def finish() -> None:
            self._preparing = None
            self._prepared = made[0] if made else None

        return _Job(work, finish)

    def _make_file(self, number: int, size: int, *, frees_space: bool) -> LogFile:
        """Make a log file; one that `frees_space` is small if the disk is full and uses the reserve."""
        capacity = capacity_for(size, self._file_bytes)
        reserve = self._disk_reserve
        if reserve is None:
            return create_log_file(self.fs, self.directory, number, capacity)
        try:
            if not frees_space:
                reserve.take()
            file = create_log_file(self.fs, self.directory, number, capacity)
        except OSError as error:
            if not reserve.note(error) or not frees_space:
                raise
            self.failures.report("log_file", error, self.directory)
            reserve.release()
            capacity = capacity_for(size, max(reserve.small_file_bytes, FILE_BYTES_MIN))
            return create_log_file(self.fs, self.directory, number, capacity)
        reserve.is_short = False
        return file

    def _next_file(self, size: int, *, frees_space: bool) -> LogFile:
        """Return the file to go on with; it stays prepared until it is in use."""
        if size > FILE_BYTES_MAX - END_FRAME_SIZE:
            raise BatchTooLarge(f"a batch of {size} bytes cannot be in one log file; split it")
        capacity = capacity_for(size, self._file_bytes)
        if self._preparing is not None:
            if not self._preparing.has_run:
                self._syncs.drain(self._prepare_lane)
            self._finish_jobs()
            self._check_usable()
        try:
            if self._prepared is None:
                number = self._next_file_number()
                self._prepared = self._make_file(number, size, frees_space=frees_space)
                self.prepared_number = number
            elif self._prepared.capacity < capacity:
                self._prepared.grow(self.fs, capacity)
        except OSError as error:
            self.failures.report("log_file", error, self.directory)
            raise StorageFailed(
                f"cannot make a log file of {capacity} bytes in {self.directory}: {error}; "
                "free some space, then the write can be repeated",
                error.errno,
            ) from None
        if self._prepared.capacity >= self._file_bytes:
            self.failures.succeeded("log_file")
        return self._prepared

    def has_files_before(self, before: Position) -> bool:
        """Whether there are files wholly before a position; the active one does not count."""
        if len(self._files) <= (0 if self._closed else 1):
            return False
        return Position(self._files[0].number, self._files[0].end) <= before

    def release_files(self, before: Position) -> list[str]:
        """Release the files wholly before a position and return their paths; the caller deletes them.

        The active file stays whatever the position. Nothing depends on when they are deleted.
        """
        paths: list[str] = []
        while self.has_files_before(before):
            file = self._files[0]
            del self._files[0]
            self._sources.remove(file.source)
            if self._ends is not None:
                self._ends.release(file.number)
            paths.append(file.path)
        return paths

    # --- Syncing -----------------------------------------------------------------------------------------

    def sync(self, done: SyncDone) -> None:
        """Let a `poll` call `done` once everything written so far is synced, or cannot be."""
        if self._closed:
            raise Closed(f"log shard {self.number} is closed")
        self._waiters.append((self.position, done))

    def request_sync(self) -> None:
        """Sync soon what is written, although nothing waits for it."""
        if self.requested_ns is None and self.position > self._started:
            self.requested_ns = self.clock.monotonic_ns()

    def due_ns(self) -> int | None:
        """Return when `poll` should be called again (monotonic time); None: not before a job is done."""
        if self.requested_ns is None and not self._waiters:
            return None
        now_ns = self.clock.monotonic_ns()
        if self._waiters and (self.read_only is not None or self._is_certain(self._waiters[0][0])):
            return now_ns
        return self._next_sync_ns(now_ns)

    def poll(self) -> None:
        """Call the waiters whose sync is over, start the sync that is due."""
        waiters = self._waiters
        if self.shipping is not None and self.read_only is None and (failure := self.shipping.failure):
            is_waiting = bool(waiters) and not self._is_certain(waiters[0][0])
            if is_waiting or isinstance(failure, Superseded):
                self.read_only = failure
                self.limit = -1
        if waiters and (self.read_only is not None or self._is_certain(waiters[0][0])):
            self._release()
        # Nearly every turn of a busy loop ends here: nothing is requested, or a sync is running.
        if self._group is not None or (self.requested_ns is None and not waiters):
            return
        now_ns = self.clock.monotonic_ns()
        due_ns = self._next_sync_ns(now_ns)
        if due_ns is not None and due_ns <= now_ns:
            self.requested_ns = None
            self.window.started(now_ns, len(waiters))
            self._group = self._start_sync(self.active)

    @property
    def wants_sync(self) -> bool:
        """Whether a waiter needs a sync that is not started; `poll` starts it."""
        return self._group is None and bool(self._waiters)

    def sync_now(self) -> None:
        """Start the requested sync now, without waiting for the commit window."""
        self.poll()
        if self._waiters and self._group is None and self.position > self._started:
            self.requested_ns = None
            self.window.started(self.clock.monotonic_ns(), len(self._waiters))
            self._group = self._start_sync(self.active)

    def _next_sync_ns(self, now_ns: int) -> int | None:
        """Return when the next sync is due; None if one is running, or would have nothing to do."""
        if self._group is not None or self.position <= self._started or self.read_only is not None:
            return None
        due_ns = None if self.requested_ns is None else self.requested_ns + BACKGROUND_SYNC_NS
        if self._waiters:
            start_ns = self.window.next_start_ns(now_ns, len(self._waiters))
            due_ns = start_ns if due_ns is None else min(due_ns, start_ns)
        return due_ns

    def _start_sync(self, file: LogFile, next_number: int | None = None) -> _Job:
        """Sync a file in the lane, and its name if that was not done yet; `next_number`: it is complete."""
        fs, clock = self.fs, self.clock
        self._started = self.position if next_number is None else Position(next_number, 0)
        synced: list[tuple[Position, int]] = []  # what is certainly on disk, and the microseconds it took

        def work() -> None:
            # Looked at before the sync: what is written while it runs may not be covered.
            offset = file.end
            end = Position(file.number, offset) if next_number is None else Position(next_number, 0)
            if not file.entry_durable:
                fs.fsync_dir(self.directory)
                file.entry_durable = True
            start_ns = clock.monotonic_ns()
            fs.fdatasync(file.fd)
            synced.append((end, (clock.monotonic_ns() - start_ns) // 1000))
            if self._ends is not None:
                try:
                    self._ends.record(file.number, offset)
                except OSError as error:
                    self.failures.report("synced_end", error, self.directory)
            if self.acks_shipped and self.shipping is not None:
                self.shipping.request()

        def finish() -> None:
            if job is self._group:
                self._group = None
                self.window.finished(clock.monotonic_ns())
            for end, micros in synced:
                self.metrics.count_sync(micros)
                # After a failed sync nothing counts as synced any more, even if a later one worked.
                if self.read_only is None:
                    self.synced = max(self.synced, end)
            if next_number is not None:
                file.close(fs)

        job = _Job(work, finish)
        self._syncs.start(self.number, job.run, self._job_done)
        self._jobs.append(job)
        return job

    def _job_done(self, _: BaseException | None) -> None:
        self._finish_jobs()
        self._release()

    def _finish_jobs(self) -> None:
        """Use the results of all jobs that have run, in their order."""
        while self._jobs and self._jobs[0].has_run:
            self._check(self._jobs[0])
            self._jobs.popleft().finish()
        if self._preparing is not None and self._preparing.has_run:
            self._check(self._preparing)
            self._preparing.finish()

    def _check(self, job: _Job) -> None:
        if isinstance(job.error, Exception):
            if self.read_only is None:
                self.failures.report("sync", job.error, self.active.path)
            self._turn_read_only(f"a sync in {self.directory} failed", job.error)
        elif job.error is not None:
            raise job.error  # the end of the process or of the simulated machine: nothing to handle

    def _is_certain(self, position: Position) -> bool:
        """Whether everything before a position is synced, and shipped if that is waited for."""
        if position > self.synced or not self.acks_shipped or self.shipping is None:
            return position <= self.synced
        if position.offset:
            return self.shipping.end_of(position.file_number) >= position.offset
        before = [file for file in self._files if file.number < position.file_number]
        return not before or self.shipping.end_of(before[-1].number) >= before[-1].end

    def _release(self) -> None:
        """Call the waiters whose outcome is known, in order; never from within one of them."""
        if self._releasing:
            return
        self._releasing = True
        try:
            waiters = self._waiters
            while waiters and (self.read_only is not None or self._is_certain(waiters[0][0])):
                position, done = waiters.popleft()
                done(None if self._is_certain(position) else self.read_only)
        finally:
            self._releasing = False

    # --- The end -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what is gathered, end the file, sync, call all waiters, close.

        Raises StorageFailed if that did not work, but is closed then too. A shard that was read-only
        before is just closed.
        """
        if self._closed:
            return
        failure: StorageFailed | None = None
        try:
            if self.read_only is None:
                failure = self._flush()
        finally:
            self._drop_files()
        self._release()
        if failure is not None:
            raise failure

    def _flush(self) -> StorageFailed | None:
        """Write and sync everything; return what went wrong."""
        failure: StorageFailed | None = None
        try:
            if not self.needs_discard:
                self.write()
        except StorageFailed as error:
            failure = error
        # Without its end frame the last file looks as after a crash, from which nothing is lost either.
        with contextlib.suppress(StorageFailed):
            if self.active.end:
                self._end_active()
        if self.read_only is None and self.position > self._started:
            self._start_sync(self.active)
        self._drain()
        self._finish_jobs()
        for file in (self._prepared, self.active):
            if file is not None and file.end == 0:
                discard_log_file(self.fs, file)
        return failure or self.read_only

    def abandon(self) -> None:
        """Close the descriptors and do nothing else, as if the process had ended here."""
        if self._closed:
            return
        self._waiters.clear()
        self._drop_files()

    def _drop_files(self) -> None:
        self._closed = True
        self.limit = -1
        for job in (*self._jobs, *filter(None, [self._preparing])):
            job.cancel()
        # A job that is just running uses a descriptor, whose number must not mean another file meanwhile.
        self._drain()
        while self._jobs:
            self._jobs.popleft().finish()
        if self._preparing is not None:
            self._preparing.finish()
        for file in (self._prepared, self.active):
            if file is not None:
                file.close(self.fs)

    def _drain(self) -> None:
        for lane in (self.number, self._prepare_lane):
            self._syncs.drain(lane)
