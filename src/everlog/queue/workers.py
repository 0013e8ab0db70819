"""The writer's threads off the hot path: one each for preparing segments, syncing and retention.

Each owns its thread and its counters and uses the queue's files; none of them refers to the
writer. Every wait goes through `Clock` and is ended by `close`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

from everlog.clock import Clock
from everlog.errors import EverlogError
from everlog.fs import Fs
from everlog.queue import retention
from everlog.queue.config import WriterConfig
from everlog.queue.control import ControlBlock
from everlog.queue.reader_meta import ReaderPosition, list_readers, sync_readers
from everlog.queue.segment import Segment, create_segment, list_segments, remove_segment

HEARTBEAT_INTERVAL_NS: Final = 1_000_000_000
DELETE_BATCH_MAX: Final = 16
"""Unlinking contends with the renames of a roll, so a pass deletes only a few segments."""

_ERROR_PAUSE_NS = 10_000_000
_IDLE_WAIT_NS = 1_000_000_000


class _Worker:
    """A thread that runs `_turn` until closed."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.errors = 0
        self._clock = clock
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"everlog-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and wait for its present turn to end."""
        self._stopping = True
        # A forgotten writer may be closed by the collector in this very thread, perhaps in the
        # middle of using the event; the thread sees the flag by itself.
        if self._thread is not threading.current_thread():
            self._wake.set()
            if self._thread.is_alive():
                self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._turn()

    def _wait(self, timeout_ns: int) -> None:
        self._clock.wait(self._wake, timeout_ns)
        self._wake.clear()
        if self._stopping:
            self._wake.set()

    def _turn(self) -> None:
        raise AssertionError("a worker defines its turn")


class PrepareWorker(_Worker):
    """Builds the next segment ahead of time: allocated, page-faulted, published, tagged with its id."""

    def __init__(
        self,
        fs: Fs,
        clock: Clock,
        queue_path: str,
        segment_size: int,
        *,
        memlock: bool = False,
        large_blocks: bool = False,
    ) -> None:
        super().__init__("prepare", clock)
        self._fs = fs
        self._queue_path = queue_path
        self._segment_size = segment_size
        self._memlock = memlock
        self._large_blocks = large_blocks
        self._lock = threading.Condition()
        self._wanted: int | None = None
        self._building = False
        self._suspended = False
        self._ready: Segment | None = None

    def request(self, segment_id: int) -> None:
        """Ask for a segment; a later request replaces one that has not begun."""
        with self._lock:
            self._wanted = segment_id
            self._suspended = False
        self._wake.set()

    def prepared(self, segment_id: int, wait_s: float) -> Segment | None:
        """Return the prepared segment with this id, waiting up to `wait_s`; another one is dropped."""
        with self._lock:
            if self._ready is None and wait_s > 0:
                self._lock.wait_for(lambda: self._ready is not None, wait_s)
            return self._take_ready(segment_id)

    def suspend(self, segment_id: int) -> Segment | None:
        """Stop preparing, so that the caller may create the segment itself.

        Two builders of one temp file would cut it under each other's mapping. A build that is
        under way is therefore awaited, and its result returned.
        """
        with self._lock:
            self._wanted = None
            self._suspended = True
            self._lock.wait_for(lambda: not self._building)
            return self._take_ready(segment_id)

    def _take_ready(self, segment_id: int) -> Segment | None:
        segment, self._ready = self._ready, None
        if segment is not None and segment.segment_id != segment_id:
            segment.close(self._fs)
            return None
        return segment

    def close(self) -> None:
        """Stop; a prepared segment stays on disk for the next writer."""
        super().close()
        if self._ready is not None:
            self._ready.close(self._fs)
            self._ready = None

    def _turn(self) -> None:
        with self._lock:
            wanted, self._wanted = self._wanted, None
            self._building = wanted is not None
        if wanted is None:
            self._wait(_IDLE_WAIT_NS)
            return
        segment = None
        try:
            segment = self._build(wanted)
        finally:  # even if the thread dies here, the writer must not wait for it
            with self._lock:
                stale, self._ready = self._ready, segment
                self._building = False
                if segment is None:
                    self._want_again(wanted)
                self._lock.notify_all()
        if stale is not None:
            stale.close(self._fs)
        if segment is None:
            self._wait(_ERROR_PAUSE_NS)

    def _want_again(self, segment_id: int) -> None:
        # Unless something newer is wanted, or the writer creates the segment itself.
        if self._wanted is None and not self._suspended:
            self._wanted = segment_id

    def _build(self, segment_id: int) -> Segment | None:
        try:
            return create_segment(
                self._fs,
                self._queue_path,
                segment_id,
                self._segment_size,
                prefault=True,
                large_blocks=self._large_blocks,
                memlock=self._memlock,
            )
        except Exception:  # the roll then creates the segment itself and raises what is wrong
            self.errors += 1
            return None


class SyncWorker(_Worker):
    """Syncs sealed segments, so that a roll need not wait for the disk.

    A sync that failed is not tried again: the kernel has forgotten which pages are missing, and
    a second attempt would succeed without having written them. `failure` stays set.
    """

    def __init__(self, fs: Fs, clock: Clock) -> None:
        super().__init__("sync", clock)
        self.failure: OSError | None = None
        self._fs = fs
        # Reentrant: the collector may close a forgotten writer in the middle of `drain`.
        self._lock = threading.RLock()
        self._pending: list[Segment] = []

    def submit(self, segment: Segment) -> None:
        """Sync a sealed segment later, then close it; the worker owns it from now on."""
        with self._lock:
            self._pending.append(segment)
        self._wake.set()

    def drain(self) -> None:
        """Sync everything submitted so far."""
        with self._lock:
            while self._pending:
                segment = self._pending[0]
                self._sync(segment)
                # An interrupt before this line repeats the turn, which finds it closed.
                if self._pending and self._pending[0] is segment:
                    self._pending.pop(0)

    def _sync(self, segment: Segment) -> None:
        if segment.fd < 0:
            return
        try:
            self._fs.fsync(segment.fd)
            segment.close(self._fs)
        except OSError as error:
            self.errors += 1
            self.failure = error
            segment.fd = -1

    def sync_start(self, segment: Segment, length: int) -> bool:
        """Sync the first bytes of a segment that is still open; False if it is not, or on failure."""
        with self._lock:  # segments are closed under it
            if segment.fd < 0:
                return False
            try:
                self._fs.msync(segment.mapping, segment.fd, 0, length, True)
            except OSError as error:
                self.errors += 1
                self.failure = error
                return False
            return True

    def close(self) -> None:
        """Stop when everything pending was synced."""
        super().close()
        self.drain()

    def _turn(self) -> None:
        self.drain()
        self._wait(_IDLE_WAIT_NS)


class RetentionWorker(_Worker):
    """Deletes segments that no counting reader needs, and keeps the writer's heartbeat going.

    `refresh` may also be called by the writer's thread, which must know the slowest reader
    before it refuses a record.
    """

    def __init__(
        self,
        fs: Fs,
        clock: Clock,
        queue_path: str,
        control: ControlBlock,
        config: WriterConfig,
        on_tick: Callable[[], None],
    ) -> None:
        super().__init__("retention", clock)
        self.min_position: int | None = None
        self.record_segment = 0
        self._fs = fs
        self._queue_path = queue_path
        self._control = control
        self._config = config
        self._on_tick = on_tick
        self._liveness = retention.ReaderLiveness(clock, int(config.reader_ttl_s * 1e9))
        self._passing = threading.Lock()
        self._looking = threading.Lock()
        self._oldest = min(list_segments(fs, queue_path), default=0)
        self._beaten_ns = clock.monotonic_ns()
        self._interval_ns = int(config.retention_check_interval_s * 1e9)
        self._idle_ns = HEARTBEAT_INTERVAL_NS
        if config.index_flush_interval_s is not None:
            self._idle_ns = min(self._idle_ns, int(config.index_flush_interval_s * 1e9))

    @property
    def has_work(self) -> bool:
        """Whether a pass could delete anything; most of the time there is only the head."""
        return self._config.retention and self._oldest < self._control.head()[0]

    def wake(self) -> None:
        """Run a pass soon."""
        self._wake.set()

    def refresh(self) -> int | None:
        """Look at the readers now; return the byte position of the slowest counting one."""
        self._look()
        return self.min_position

    def run_pass(self) -> None:
        """One pass: look at the readers, delete what may go (a few segments at a time)."""
        with self._passing:
            counting, end = self._deletable()
            if end <= self._oldest:
                return
            # Readers may have committed without a sync, or be syncing now. A power loss must not
            # take them back to a segment that is gone.
            sync_readers(self._fs, self._queue_path, counting)
            for segment_id in range(self._oldest, min(end, self._oldest + DELETE_BATCH_MAX)):
                # Looked at before every deletion: a reader may just be opening at the oldest.
                if segment_id >= self._deletable()[1]:
                    return
                remove_segment(self._fs, self._queue_path, segment_id)
                self._oldest = segment_id + 1
            if self._oldest < end:
                self._wake.set()

    def _deletable(self) -> tuple[Iterable[str], int]:
        """Return the counting readers, and the id below which none of them needs a segment."""
        counting = self._look()
        if counting is None or not self._config.retention:
            return [], 0
        head_segment, _ = self._control.head()
        return counting, retention.deletable_end(
            counting, head_segment=head_segment, keep_from=self.record_segment
        )

    def _look(self) -> dict[str, ReaderPosition] | None:
        # Not the lock of a pass, which waits for the disk: the writer's thread must not.
        with self._looking:
            readers = list_readers(self._fs, self._queue_path)
            if readers is None:
                self.min_position = None
                return None
            head_segment, head_offset = self._control.head()
            counting = retention.counting_readers(
                readers,
                self._liveness,
                head_segment=head_segment,
                head_offset=head_offset,
                segment_size=self._control.segment_size,
                max_reader_lag_bytes=self._config.max_reader_lag_bytes,
            )
            self.min_position = retention.minimum_position(counting, self._control.segment_size)
            return counting

    def _turn(self) -> None:
        # An idle queue is left alone but for the heartbeat: every turn takes the writer's GIL.
        self._wait(self._interval_ns if self.has_work else self._idle_ns)
        if self._stopping:
            return
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._beaten_ns >= HEARTBEAT_INTERVAL_NS:
            self._beaten_ns = now_ns
            self._control.beat(self._clock.wall_ns())
        self._on_tick()
        if not self.has_work:
            return
        try:
            self.run_pass()
        except (OSError, EverlogError):
            # With a damaged reader meta nothing may be deleted; `doctor` names the file.
            self.errors += 1
