"""The read path: `QueueReader` owns files and positions; the native core steps through records.

A read passes four files: this one, `native/queue/reader.pxi` (`RingReader.next`), `native/queue/ring_core.c`
(`ring_step`) and, to wait for a message, `native/queue/ring_wait.c` (`ring_wait`). At the end of a segment
`_enter_next_segment` here maps the next one. A position becomes durable only by `commit`.
"""

from __future__ import annotations

import contextlib
import errno
import operator
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from everlog.clock import Clock, SystemClock
from everlog.errors import (
    Corrupt,
    CorruptMetadata,
    EverlogError,
    SegmentMissing,
    Unsupported,
    UnsupportedVersion,
)
from everlog.fs import Fs
from everlog.native.queue import ring as native
from everlog.native.queue.ring import MessageView, RingReader
from everlog.queue import liveness
from everlog.queue.batch import Batch
from everlog.queue.control import ControlBlock
from everlog.queue.damage import first_seq, first_sound, next_sound
from everlog.queue.faults import io_errors
from everlog.queue.layout import HEADER_SIZE, MSG_SEQ, RECORD_ALIGN, SEG_DATA_OFFSET, align64
from everlog.queue.liveness import DisconnectReason, WriterStatus
from everlog.queue.reader_meta import ReaderMetaFile, ReaderPosition
from everlog.queue.seek import Seeker, SegmentPosition
from everlog.queue.segment import list_segments, map_segment, segment_path
from everlog.queue.wait import Sleep, WaitStrategy, native_arguments

HEARTBEAT_INTERVAL_NS = 1_000_000_000
WRITER_TTL_S = 5.0
BATCH_MAX = 65536

_OPEN_ATTEMPTS_MAX = 16
"""Retention may delete the oldest segment between listing and opening it."""


class Message(NamedTuple):
    """A message copied out of the queue; it does not keep the mapping alive."""

    seq: int
    timestamp_ns: int
    type_id: int
    payload: bytes


def copy_message(view: MessageView) -> Message:
    """Copy what a view shows."""
    return Message(view.seq, view.timestamp_ns, view.type_id, bytes(view))


class StartMode(StrEnum):
    """Where a reader starts."""

    RESUME_STRICT = "resume-strict"
    RESUME_SNAPSHOT = "resume-snapshot"
    RESUME_LATEST = "resume-latest"
    LATEST = "latest"
    EARLIEST = "earliest"


class QueueReader(RingReader):
    """A reader of a queue. Use it from one thread; opened by `Queue.open_subscriber`."""

    def __init__(
        self,
        path: str,
        name: str | None,
        start: StartMode,
        wait_strategy: WaitStrategy,
        verify: bool,
        clock: Clock,
        fs: Fs,
    ) -> None:
        """Find the start position and register. If anything fails, nothing has been written."""
        self.path = path
        self.name = name
        self._clock = clock
        self._fs = fs
        self._opened = False
        self._verify = verify
        self._meta: ReaderMetaFile | None = None
        with contextlib.ExitStack() as undo, io_errors(f"open {path} for reading"):
            self._control, polls = _open_control(fs, clock, path, anonymous=name is None)
            undo.callback(self._control.close)
            if name is not None:
                self._meta = ReaderMetaFile.open(fs, path, name)
                undo.callback(self._meta.close)
            strategy = Sleep() if polls else wait_strategy
            own_clock = type(clock) is not SystemClock
            self._attach(self._control.mapping, verify, own_clock, *native_arguments(strategy))
            self._move_to_start(start)
            undo.pop_all()
        self._beaten_ns = clock.monotonic_ns()
        self._opened = True

    # -- where to start ------------------------------------------------------------------

    def _move_to_start(self, start: StartMode) -> None:
        saved = self._meta.position if self._meta is not None else None
        for _ in range(_OPEN_ATTEMPTS_MAX):
            try:
                position = self._start_position(start, saved)
            except FileNotFoundError:
                continue  # deleted between listing and opening: list again
            self._stand(*position)
            self._register(position, saved)
            if self._fs.exists(segment_path(self.path, position.segment_id)):
                return
        if saved is None and self._meta is not None:
            self._meta.remove()
        raise SegmentMissing(
            f"segments of {self.path} are deleted faster than a reader can open them; "
            "is retention running with no live reader?"
        )

    def _start_position(self, start: StartMode, saved: ReaderPosition | None) -> SegmentPosition:
        resumes = start in (StartMode.RESUME_STRICT, StartMode.RESUME_SNAPSHOT, StartMode.RESUME_LATEST)
        if resumes and saved is not None:
            with contextlib.suppress(FileNotFoundError):
                return self._position_in(saved.segment_id, self._checked_offset(saved))
            if start is StartMode.RESUME_STRICT:
                raise SegmentMissing(
                    f"reader segment missing: {self.name!r} stands at segment {saved.segment_id} of "
                    f"{self.path}, which was deleted; start with 'resume-snapshot' (oldest segment) or "
                    "'resume-latest' (head) to go on with a gap"
                )
        if start is StartMode.LATEST or (start is StartMode.RESUME_LATEST and saved is not None):
            return self._head_position()
        return self._oldest_position()

    def _position_in(self, segment_id: int, offset: int) -> SegmentPosition:
        mapping = map_segment(self._fs, self.path, segment_id, self.segment_size)
        return SegmentPosition(mapping, segment_id, offset)

    def _head_position(self) -> SegmentPosition:
        segment_id, _ = self._control.head()
        position = self._position_in(segment_id, SEG_DATA_OFFSET)
        # The published offset may lag behind (a crash) or run ahead (a power loss) of the
        # records; the records decide.
        scan = native.scan_segment(position.mapping, SEG_DATA_OFFSET, verify=False)
        return position._replace(offset=scan["end"])

    def _oldest_position(self) -> SegmentPosition:
        head_segment, _ = self._control.head()
        ids = list_segments(self._fs, self.path)
        return self._position_in(min(ids, default=head_segment), SEG_DATA_OFFSET)

    def _checked_offset(self, saved: ReaderPosition) -> int:
        if saved.generation == 0 and saved.offset < SEG_DATA_OFFSET:
            return SEG_DATA_OFFSET  # legacy files count from the first record
        if saved.offset % RECORD_ALIGN or not SEG_DATA_OFFSET <= saved.offset <= self.segment_size:
            raise CorruptMetadata(
                f"reader {self.name!r} of {self.path} has saved offset {saved.offset}, which no record of a "
                f"{self.segment_size}-byte segment can have; delete its meta file to start anew"
            )
        return saved.offset

    def _register(self, position: SegmentPosition, saved: ReaderPosition | None) -> None:
        """Store the reader's meta file. A saved position stays committed while its segment exists."""
        segment_id, offset = position.segment_id, position.offset
        if saved is not None and self._fs.exists(segment_path(self.path, saved.segment_id)):
            segment_id, offset = saved.segment_id, self._checked_offset(saved)
        if self._meta is not None:
            self._meta.store(segment_id, offset, self._clock.wall_ns(), durable=True)
        self._committed = (segment_id, offset)

    # -- called by the native core -------------------------------------------------------

    def _enter_next_segment(self) -> None:
        segment_id = self.position[0] + 1
        try:
            mapping = map_segment(self._fs, self.path, segment_id, self.segment_size)
        except FileNotFoundError as error:
            raise SegmentMissing(
                f"reader segment missing: segment {segment_id} of {self.path} was deleted before "
                f"{self.name or 'this reader'} could read it"
            ) from error
        except OSError as error:
            with io_errors(f"open segment {segment_id} of {self.path}"):
                raise error
        self._stand(mapping, segment_id, SEG_DATA_OFFSET, self.expected_seq)

    def _leave_hole(self) -> None:
        """Nothing is committed here, but the head is further on: records were lost, or this reader read them.

        A reader that had read what a power loss took resumes inside the padding, or behind the last record,
        of a segment that was left since. It goes on with the next segment. Everything else is damage.
        """
        segment_id, offset = self.position
        scan = native.scan_segment(self.segment, SEG_DATA_OFFSET, verify=False)
        # The records of a hole are counted by their seqs: those before it and those behind it.
        expected = self.expected_seq
        if expected is None and scan["end"] == offset:
            expected = scan["last_seq"] + 1 if scan["records"] else None
        is_left = self._control.head()[0] > segment_id
        behind = next_sound(self.segment, offset, None if expected is None else expected - 1)
        found = self.segment.load_u64(behind + MSG_SEQ) if behind else self._first_seq_after(segment_id)
        has_read = self.expected_seq is None and scan["end"] != offset and not behind
        if is_left and (has_read or (expected is not None and found == expected)):
            self._stand(self.segment, segment_id, self.segment_size, self.expected_seq)
            return
        where = f"segment {segment_id} of {self.path} ends at offset {offset} without padding"
        raise Corrupt(f"{where}: {_missing(expected, found, is_left)}")

    def _first_seq_after(self, segment_id: int) -> int | None:
        """The seq of the first record of a later segment, None if there is none yet."""
        for later in list_segments(self._fs, self.path):
            if later > segment_id:
                with contextlib.suppress(FileNotFoundError, Corrupt):
                    found = first_seq(map_segment(self._fs, self.path, later, self.segment_size))
                    if found is not None:
                        return found
        return None

    def _check_heartbeat(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._beaten_ns >= HEARTBEAT_INTERVAL_NS:
            self._beat(now_ns)

    def _beat(self, now_ns: int) -> None:
        self._beaten_ns = now_ns
        if self._meta is not None:
            # Not synced: a heartbeat means nothing after a power loss, and the position is the
            # committed one in any case.
            with io_errors(f"store the heartbeat of reader {self.name!r}"):
                self._meta.store(*self._committed, self._clock.wall_ns(), durable=False)

    # -- reading -------------------------------------------------------------------------

    def read_batch(self, max: int = BATCH_MAX, *, verify: bool | None = None) -> Batch:
        """Consume up to `max` messages of one segment and return them as arrays.

        An empty batch means that nothing is committed yet. `verify=False` leaves the checksums
        to the caller.
        """
        if max < 1:
            raise Unsupported(f"read_batch needs room for at least 1 message, got {max}")
        return Batch(*self._take_run(max, self._verify if verify is None else verify))

    def drain_available(self, max: int) -> list[Message]:
        """Consume up to `max` messages that are there now and return owned copies."""
        messages: list[Message] = []
        try:
            while len(messages) < max and (view := self.next()) is not None:
                messages.append(copy_message(view))
        except EverlogError:
            # What was consumed must reach the caller; the next call meets the same trouble again.
            if not messages:
                raise
        return messages

    drain = drain_available

    def for_each_available(self, max: int, handle: Callable[[MessageView], object]) -> int:
        """Call `handle` for up to `max` messages that are there now; return how many it took.

        Stops when `handle` returns False; that message is consumed but not counted.
        """
        count = 0
        while count < max and (view := self.next()) is not None:
            if handle(view) is False:
                break
            count += 1
        return count

    def skip_corrupt(self) -> None:
        """Step over the damaged record, or accept the gap, that the last read raised Corrupt for."""
        segment_id, offset = self.position
        expected = self.expected_seq
        damage = self._damage()
        if damage == "seq":
            self._stand(self.segment, segment_id, offset)
        elif damage in ("checksum", "version"):
            size = align64(HEADER_SIZE + self.segment.load_u32(offset) - 1)
            self._stand(self.segment, segment_id, offset + size, None if expected is None else expected + 1)
        else:
            raise Unsupported(
                f"no damaged record of usable length stands at offset {offset} of segment {segment_id}; "
                "if the last read raised Corrupt for its length or a hole, seek_seq() to a later one instead"
            )

    def skip_damage(self) -> bool:
        """Go on behind whatever the last read raised Corrupt for: at the next sound record.

        Unlike `skip_corrupt` it also leaves holes and records without a usable length. False if no sound
        record follows yet; the reader then stands at the end.
        """
        segment_id, offset = self.position
        damage = self._damage()
        with self._exclusive(), io_errors(f"look for sound records in {self.path}"):
            if damage == "seq":
                self._stand(self.segment, segment_id, offset)
                return True
            if not damage:
                return True
            known = None if self.expected_seq is None else self.expected_seq - 1
            behind = next_sound(self.segment, offset, known)
            if behind:
                self._stand(self.segment, segment_id, behind)
                return True
            for later in list_segments(self._fs, self.path):
                # What cannot be opened is damage too.
                with contextlib.suppress(FileNotFoundError, Corrupt, UnsupportedVersion):
                    if later > segment_id:
                        mapping = map_segment(self._fs, self.path, later, self.segment_size)
                        if (first := first_sound(mapping)) != 0:
                            self._stand(mapping, later, first)
                            return True
            end = Seeker(self._fs, self.path, self.segment_size, self._control.head()).end()
            if end is not None:
                self._stand(*end)
            return False

    # -- position ------------------------------------------------------------------------

    def commit(self, durable: bool = True) -> None:
        """Make the present position the one a restart resumes at.

        `durable=False` survives a crash of this process but perhaps not a power loss.
        """
        self._commit_at(self.position, durable)

    def commit_at(self, segment_id: int, offset: int, durable: bool = True) -> None:
        """Make a position that the caller vouches for the one a restart resumes at."""
        self._commit_at((segment_id, offset), durable)

    def _commit_at(self, position: tuple[int, int], durable: bool) -> None:
        with self._exclusive():
            if self._meta is None:
                raise Unsupported("an anonymous reader has no position to commit; open it with a name")
            with io_errors(f"commit reader {self.name!r} of {self.path}"):
                self._meta.store(*position, self._clock.wall_ns(), durable=durable)
            self._committed = position
            self._beaten_ns = self._clock.monotonic_ns()

    @property
    def committed_position(self) -> tuple[int, int]:
        """(segment id, offset) that a restart would resume at."""
        return self._committed

    def heartbeat(self) -> None:
        """Store a heartbeat now; reading and waiting store one every second."""
        with self._exclusive():
            self._beat(self._clock.monotonic_ns())

    def seek_seq(self, seq: int) -> bool:
        """Stand before the first message with at least this seq; False: none, stand at the end."""
        return self._seek(lambda seeker: seeker.by_seq(_as_u64(seq, "messages")))

    def seek_timestamp(self, timestamp_ns: int) -> bool:
        """Stand before the first message at or after this time; False: none, stand at the end."""
        return self._seek(lambda seeker: seeker.by_timestamp(_as_u64(timestamp_ns, "nanoseconds")))

    seek_time = seek_timestamp

    def _seek(self, search: Callable[[Seeker], SegmentPosition | None]) -> bool:
        with self._exclusive(), io_errors(f"seek in {self.path}"):
            seeker = Seeker(self._fs, self.path, self.segment_size, self._control.head())
            found = position = search(seeker)
            if found is None:
                end = seeker.end()
                # Records may have been appended before that end was found: search once more.
                found = search(seeker)
                position = found or end
            if position is None:
                raise SegmentMissing(f"{self.path} has no segment to seek in")
            self._stand(*position)
            return found is not None

    # -- the writer ----------------------------------------------------------------------

    def writer_status(self, ttl_s: float = WRITER_TTL_S) -> WriterStatus:
        """Return whether the writer is alive, and its last heartbeat."""
        with self._exclusive(), io_errors(f"look at the writer of {self.path}"):
            return liveness.writer_status(self._fs, self._clock, self._control, int(ttl_s * 1e9))

    def detect_disconnect(self, ttl_s: float = WRITER_TTL_S) -> DisconnectReason | None:
        """Return why this reader should consider itself cut off; None if it is not."""
        with self._exclusive(), io_errors(f"look at the writer of {self.path}"):
            return liveness.detect_disconnect(
                self._fs, self._clock, self._control, self.position[0], int(ttl_s * 1e9)
            )

    @property
    def published_head(self) -> tuple[int, int]:
        """(segment id, offset) that the writer has published: records go up to there at least."""
        return self._control.head()

    @property
    def writer_epoch(self) -> int:
        """Rises by one whenever a writer opens the queue."""
        return self._control.writer_epoch

    @property
    def segment_size(self) -> int:
        """Bytes per segment, as the control block says."""
        return self._control.segment_size

    # -- the rest ------------------------------------------------------------------------

    def __repr__(self) -> str:
        name = "anonymous" if self.name is None else repr(self.name)
        return f"<QueueReader {name} of {self.path}{'' if self._opened else ', closed'}>"

    def close(self) -> None:
        """Release the name and the mappings. Commits nothing; views and arrays stay valid."""
        if not self._opened:
            return
        self._begin_exclusive()
        self._opened = False
        with io_errors(f"close reader {self.name!r} of {self.path}"), contextlib.ExitStack() as steps:
            if self._meta is not None:
                steps.callback(self._meta.close)
            steps.callback(self._control.close)
            self._detach()

    def __del__(self) -> None:
        """Free the name of a reader that was forgotten."""
        if getattr(self, "_opened", False):
            with contextlib.suppress(Exception):
                self.close()


def _missing(expected: int | None, found: int | None, is_left: bool) -> str:
    """Which records a hole has taken, and how to go on."""
    if found is None:
        advice = (
            "seek_seq() to a later one stands behind them"
            if is_left
            else "the next writer goes on behind them"
        )
        return f"its last records are missing; {advice}"
    first = "the records" if expected is None else f"records {expected} to {found - 1}"
    before = f" before {found}" if expected is None else ""
    return f"{first}{before} are missing; seek_seq({found}) goes on behind the gap"


def _as_u64(value: int, unit: str) -> int:
    try:
        whole = operator.index(value)
    except TypeError:
        # A float is most often time.time(), which would be found before everything else.
        raise TypeError(f"a place to seek is a whole number of {unit}, got {value!r}") from None
    return max(0, min(whole, 2**64 - 1))


def _open_control(fs: Fs, clock: Clock, path: str, *, anonymous: bool) -> tuple[ControlBlock, bool]:
    """Return the control block, and whether the reader must poll because it cannot write to it."""
    try:
        return ControlBlock.open(fs, clock, path), False
    except OSError as error:
        if not anonymous or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
    return ControlBlock.open(fs, clock, path, writable=False), True
