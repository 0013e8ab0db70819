"""The write path: `QueueWriter` decides when to roll, wait or refuse; the native core appends.

An append passes four files: this one, `native/queue/writer.pxi` (`RingWriter.append`),
`native/queue/ring_core.c` (`ring_append`) and `native/queue/ring_wait.c` (`ring_notify`). When a segment is
full, `_make_room` and `_roll` here go on in the segment that `workers.PrepareWorker` has prepared.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from everlog.clock import AnchoredClock, Clock, SystemClock
from everlog.errors import Closed, Corrupt, CorruptMetadata, QueueFull, SegmentNotPrepared, Unsupported
from everlog.fs import Fs, sync_path
from everlog.native.queue.ring import RingWriter
from everlog.queue import identity, index_meta, layout, retention, seek_index
from everlog.queue.config import WriterConfig
from everlog.queue.control import ControlBlock
from everlog.queue.faults import io_errors
from everlog.queue.layout import SEG_DATA_OFFSET
from everlog.queue.recovery import Recovered, RecoveryReport, recover
from everlog.queue.seek_index import SeekIndex
from everlog.queue.segment import Segment, list_segments, open_or_create_segment, segment_path
from everlog.queue.workers import PrepareWorker, RetentionWorker, SyncWorker
from everlog.queue.writer_lock import WriterLock

BLOCK_POLL_NS = 100_000
"""How often a blocked writer looks whether readers have moved on."""

PREPARE_AT = 4
"""A freshly opened writer has its next segment prepared when a quarter of this one is used: most
queues of a bus stay small, and preparing costs a whole segment of disk and page cache."""

_NEVER = 2**64 - 1


@dataclass(frozen=True, slots=True)
class WriterMetrics:
    """Counters of one writer since it was opened."""

    rolls: int
    bytes_written: int
    prealloc_errors: int
    seal_errors: int
    retention_errors: int


class QueueWriter(RingWriter):
    """The one writer of a queue. Use it from one thread; opened by `Queue.open_publisher`."""

    def __init__(self, path: str, config: WriterConfig, clock: Clock, fs: Fs) -> None:
        """Lock the queue, recover its tail and start the workers."""
        self.path = path
        self._clock = clock
        self._fs = fs
        self._opened = False
        self._rolls = 0
        self._left: list[Segment] = []  # rolled away from, not yet handed to the sync worker
        self._flushed: tuple[int, int] = (0, 0)  # (segment id, offset) of the last flush
        self._index_lock = threading.Lock()  # the retention worker flushes the index too
        with contextlib.ExitStack() as undo, io_errors(f"open {path} for writing"):
            self._lock = WriterLock.acquire(fs, clock, path)
            undo.callback(self._lock.close)
            self._control = _open_control(fs, clock, path, config.segment_size)
            undo.callback(self._control.close)
            self.config = config.replace(segment_size=self._control.segment_size)
            recovered = recover(fs, path, self._control, memlock=config.memlock)
            undo.callback(recovered.segment.close, fs)
            self.recovery: RecoveryReport = recovered.report
            self._inherited = recovered.inherited
            self.epoch = max(self._control.writer_epoch, self._lock.previous_epoch) + 1
            self._lock.record_epoch(self.epoch)
            self._publish(recovered)
            self._start_workers(recovered.record_segment)
            undo.pop_all()
        self._opened = True

    def _publish(self, recovered: Recovered) -> None:
        """Publish the recovered position: the last step of recovery."""
        segment, offset = recovered.segment, recovered.offset
        self._control.begin_epoch(self.epoch)
        self._control.beat(self._clock.wall_ns())
        self._control.publish_head(segment.segment_id, offset)
        self._control.mark_ready()
        system = type(self._clock) in (SystemClock, AnchoredClock)
        self._attach(
            self._control.mapping,
            segment.mapping,
            segment,
            offset,
            recovered.next_seq,
            self.config.index_stride,
            None if system else self._clock.wall_ns,
            self.config.clock_mode == "anchored" or isinstance(self._clock, AnchoredClock),
        )

    def _start_workers(self, record_segment: int) -> None:
        config, size = self.config, self._control.segment_size
        self._prepare = PrepareWorker(
            self._fs, self._clock, self.path, size, memlock=config.memlock, large_blocks=config.large_blocks
        )
        self._sync = SyncWorker(self._fs, self._clock)
        self._retention = RetentionWorker(
            self._fs, self._clock, self.path, self._control, config, _tick_of(self)
        )
        self._retention.record_segment = record_segment
        self._bounded = config.max_bytes is not None or config.max_segments is not None
        self._index_flushed_ns = self._clock.monotonic_ns()
        self._prepare.start()
        if config.defer_seal_sync:
            self._sync.start()
        self._retention.start()
        self._prepare_requested = False
        self._apply_limit()
        self._on_due()

    # -- room: capacity and rolling ------------------------------------------------------

    def _make_room(self, record_size: int) -> None:
        """Called by the native core when a record does not fit below the limit."""
        rolls = self.offset + record_size > self.segment_size
        if self._bounded:
            self._await_capacity(record_size, rolls)
        if rolls:
            with io_errors(f"roll {self.path} to segment {self.segment_id + 1}"):
                self._roll()
        self._apply_limit(record_size)

    def roll(self) -> bool:
        """Seal the current segment and begin the next; False if it has no message.

        Only sealed segments are archived: this makes the last one of a day that is over one of them.
        """
        with self._exclusive(), io_errors(f"roll {self.path} to segment {self.segment_id + 1}"):
            if self.offset <= SEG_DATA_OFFSET:
                return False
            if self._bounded:
                self._await_capacity(0, rolls=True)
            self._roll()
            self._apply_limit()
        return True

    def _await_capacity(self, record_size: int, rolls: bool) -> None:
        segment_after = self.segment_id + 1 if rolls else self.segment_id
        offset_after = SEG_DATA_OFFSET + record_size if rolls else self.offset + record_size
        config = self.config
        deadline_ns = self._clock.monotonic_ns() + int(config.block_timeout_s * 1e9)
        while not retention.capacity_allows(
            segment_after,
            offset_after,
            self._minimum(),
            self.segment_size,
            config.max_bytes,
            config.max_segments,
        ):
            if config.backpressure == "fail-fast" or self._clock.monotonic_ns() >= deadline_ns:
                raise QueueFull(
                    f"{self.path} is full: a record of {record_size} bytes would put its head more than "
                    f"{_limits(config)} ahead of the slowest reader; let readers commit, or raise the limit"
                )
            self._clock.sleep_ns(BLOCK_POLL_NS)

    def _minimum(self) -> int | None:
        with io_errors(f"read the reader positions of {self.path}"):
            return self._retention.refresh()

    def _apply_limit(self, record_size: int = 0) -> None:
        """Let the native core append freely up to where capacity must be looked at again."""
        limit = self.segment_size
        if self.config.max_bytes is not None:
            if self._retention.min_position is None:
                # No reader yet. The first one may start here, so look again after max_bytes.
                limit = self.offset + max(record_size, self.config.max_bytes)
            else:
                limit = retention.offset_limit(
                    self.segment_id, self._retention.min_position, self.segment_size, self.config.max_bytes
                )
        self._set_limit(max(limit, self.offset + record_size))

    def _roll(self) -> None:
        """Leave the full segment for the next one. Nothing changes until that one is open."""
        next_id = self.segment_id + 1
        if next_id > layout.SEGMENT_ID_MAX:
            raise Unsupported(
                f"{self.path} has used up its {layout.SEGMENT_ID_MAX} segments; start a new queue"
            )
        following = self._next_segment(next_id)
        with self._index_lock:
            with contextlib.suppress(OSError):  # a missing index only makes seeks scan
                self._store_index(durable=False)
            self._left.append(self.current)  # before the roll: an interrupt must not lose its sync
            self._roll_to(following.mapping, following, next_id)
        self._rolls += 1
        self._sync_left()
        self._control.beat(self._clock.wall_ns())
        self._prepare.request(next_id + 1)
        self._prepare_requested = True
        self._retention.wake()

    def _next_segment(self, segment_id: int) -> Segment:
        wait_s = self.config.prealloc_wait_s
        segment = self._prepare.prepared(segment_id, wait_s)
        if segment is None and self.config.require_prealloc:
            self._prepare.request(segment_id)
            raise SegmentNotPrepared(
                f"segment {segment_id} of {self.path} was not prepared within {wait_s} s and "
                "require_prealloc is set; nothing was written, retry"
            )
        if segment is None:
            segment = self._prepare.suspend(segment_id) or open_or_create_segment(
                self._fs, self.path, segment_id, self.segment_size, memlock=self.config.memlock
            )
        if not segment.pristine:
            segment.close(self._fs)
            raise Corrupt(
                f"{segment.path} already holds records; was it copied there? Move it away and retry"
            )
        return segment

    def _sync_left(self) -> None:
        """Hand segments that the writer has left to the sync worker, or sync them here."""
        for segment in [segment for segment in self._left if segment is not self.current]:
            self._sync.submit(segment)
            self._left.remove(segment)
        if not self.config.defer_seal_sync:
            self._sync.drain()

    # -- what is due now and then --------------------------------------------------------

    def _schedule_due(self) -> None:
        config = self.config
        next_bytes = self.bytes_written + config.retention_check_bytes
        if not self._prepare_requested:
            next_bytes = min(next_bytes, self.bytes_written + self.segment_size // PREPARE_AT)
        next_seq = self.next_seq + config.index_flush_records if config.index_flush_records else _NEVER
        self._set_due(next_bytes, next_seq)

    def _on_due(self) -> None:
        """Called by the native core after an append that passed a mark of `_schedule_due`."""
        if self.config.index_flush_records:
            self._flush_index()
        if not self._prepare_requested and (
            self.config.require_prealloc or self.offset >= self.segment_size // PREPARE_AT
        ):
            self._prepare.request(self.segment_id + 1)
            self._prepare_requested = True
        if self._retention.has_work:
            self._retention.wake()
        self._schedule_due()

    def _tick(self) -> None:
        """Called by the retention worker, in its thread, every check interval."""
        self._anchor_seq()
        interval_s = self.config.index_flush_interval_s
        now_ns = self._clock.monotonic_ns()
        if interval_s is not None and now_ns - self._index_flushed_ns >= interval_s * 1e9:
            self._index_flushed_ns = now_ns
            self._flush_index()

    def _anchor_seq(self) -> None:
        """Allow retention to delete all older segments once a record of the current one is on disk.

        After a restart seq continues after the last record found, so that record must not be
        deleted before a later one is on disk.
        """
        state = self._index_state()
        if state is None or state[5] == 0 or state[6].segment_id == self._retention.record_segment:
            return
        segment: Segment = state[6]
        if self._sync.sync_start(segment, min(self.offset, self.segment_size)):
            self._retention.record_segment = segment.segment_id

    def _flush_index(self) -> None:
        # A missing or old index only makes seeks scan.
        with self._index_lock, contextlib.suppress(OSError):
            self._store_index(durable=False)

    def _store_index(self, *, durable: bool) -> None:
        state = self._index_state()
        if state is None or state[5] == 0:
            return
        entries, first_seq, last_seq, min_ts_ns, max_ts_ns, _, segment, partial = state
        index = SeekIndex(
            segment_id=segment.segment_id,
            segment_size=self.segment_size,
            entry_stride=self.config.index_stride,
            partial=partial,
            min_seq=first_seq,
            max_seq=last_seq,
            min_ts_ns=min_ts_ns,
            max_ts_ns=max_ts_ns,
            entries=np.frombuffer(entries, dtype=seek_index.ENTRY_DTYPE),
        )
        seek_index.store(self._fs, self.path, index, durable=durable)

    # -- durability ----------------------------------------------------------------------

    def flush_async(self) -> None:
        """Ask the kernel to write back what was appended since the last flush; does not wait."""
        with self._exclusive(), io_errors(f"flush {self.path}"):
            self._msync(wait=False)

    def flush_sync(self) -> None:
        """Return when everything appended so far survives a power loss.

        After a sync has failed every call raises: the kernel does not report which data is
        missing on disk. Reopening the writer recovers what is there.
        """
        with self._exclusive(), io_errors(f"flush {self.path} to disk"):
            self._sync_left()
            self._sync.drain()
            if self._sync.failure is not None:
                raise self._sync.failure
            try:
                while self._inherited:
                    sync_path(self._fs, segment_path(self.path, self._inherited[0]))
                    self._inherited.pop(0)
                self._msync(wait=True)
                self._control.sync()
            except OSError as error:
                self._sync.failure = error
                raise
            self._flushed = (self.segment_id, self.offset)
            with self._index_lock:
                self._store_index(durable=True)
            index_meta.store(self._fs, self.path, self.segment_id, self.offset)

    def _msync(self, *, wait: bool) -> None:
        segment: Segment = self.current
        start = self._flushed[1] if self._flushed[0] == segment.segment_id else 0
        if self.offset > start:
            self._fs.msync(segment.mapping, segment.fd, start, self.offset - start, wait)

    def heartbeat(self) -> None:
        """Store a heartbeat now; the retention worker stores one every second."""
        with self._exclusive():
            self._control.beat(self._clock.wall_ns())

    # -- the rest ------------------------------------------------------------------------

    @property
    def segment_id(self) -> int:
        """The segment that records go to."""
        segment: Segment = self.current
        return segment.segment_id

    @property
    def segment_size(self) -> int:
        """Bytes per segment, as the control block says."""
        return self._control.segment_size

    @property
    def metrics(self) -> WriterMetrics:
        """Counters since this writer was opened."""
        return WriterMetrics(
            rolls=self._rolls,
            bytes_written=self.bytes_written,
            prealloc_errors=self._prepare.errors,
            seal_errors=self._sync.errors,
            retention_errors=self._retention.errors,
        )

    def __repr__(self) -> str:
        return f"<QueueWriter of {self.path}{'' if self._opened else ', closed'}>"

    def close(self) -> None:
        """Stop the workers, flush the seek index and release the lock. Closing twice is fine."""
        if not self._opened:
            return
        self._begin_exclusive()  # and stay so until there is nothing left to use
        self._opened = False
        with io_errors(f"close {self.path}"), contextlib.ExitStack() as steps:
            # Last in, first out; if a step fails, the others still run and the lock is released.
            steps.callback(self._lock.close)
            steps.callback(self._control.close)
            steps.callback(self.current.close, self._fs)
            steps.callback(self._detach)
            steps.callback(self._flush_index)
            for worker in (self._sync, self._retention, self._prepare):
                steps.callback(worker.close)
            self._sync_left()

    def __del__(self) -> None:
        """Close a writer that was forgotten, and say so."""
        if getattr(self, "_opened", False):
            warnings.warn(f"writer of {self.path} was not closed", ResourceWarning, stacklevel=1)
            with contextlib.suppress(Closed):
                self.close()


def _tick_of(writer: QueueWriter) -> Callable[[], None]:
    """The writer's tick, without keeping a forgotten writer alive."""
    reference = weakref.ref(writer)

    def tick() -> None:
        target = reference()
        if target is not None:
            target._tick()

    return tick


def _open_control(fs: Fs, clock: Clock, path: str, segment_size: int) -> ControlBlock:
    if not ControlBlock.exists(fs, path):
        segments = list_segments(fs, path)
        if segments:
            raise CorruptMetadata(
                f"{path} has {len(segments)} segments but no {layout.CONTROL_FILE}; restore it from a backup "
                "or move the segments away"
            )
        ControlBlock.create(fs, path, segment_size)
    elif identity.load(fs, path) is None:
        identity.create(fs, path)  # a queue of an earlier version
    return ControlBlock.open(fs, clock, path, wait_ready=False)


def _limits(config: WriterConfig) -> str:
    """The limits that are set, as they are called."""
    limits = {"max_bytes": config.max_bytes, "max_segments": config.max_segments}
    return " or ".join(f"{name}={value}" for name, value in limits.items() if value is not None)
