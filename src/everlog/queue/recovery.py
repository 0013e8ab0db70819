"""Finds the place where a writer may go on, and repairs what a crash left behind.

Runs in `open_publisher` under the writer lock, before anything is published. It trusts the
records themselves and `index.meta`, never the control block's offset: after a power loss that
page may be newer than the data.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field

from everlog.errors import Corrupt, CorruptMetadata, UnsupportedVersion
from everlog.fs import Fs
from everlog.native.queue import ring as native
from everlog.queue import index_meta, layout
from everlog.queue.control import ControlBlock
from everlog.queue.layout import HEADER_SIZE, SEG_DATA_OFFSET
from everlog.queue.reader_meta import ReaderPosition, list_readers
from everlog.queue.segment import (
    Segment,
    list_segments,
    open_or_create_segment,
    open_segment,
    remove_leftovers,
    segment_path,
)

READER_AHEAD_SEGMENTS_MAX = 1024
"""How far a reader may stand beyond what a power loss has left; more is a damaged meta file."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Records with a wrong checksum that sound records follow, or a sealed segment's lost end: left as is.

    The count is 0 for a lost end, the offset as well if the whole of an older segment cannot be read.
    """

    segment_id: int
    first_offset: int
    records: int


@dataclass(slots=True)
class RecoveryReport:
    """What recovery found and did; empty lists mean a clean queue."""

    records_scanned: int = 0
    torn_tails: list[tuple[int, int]] = field(default_factory=list)
    """(segment id, offset) of every half-written tail that was replaced by padding."""
    sealed_segments: list[int] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)


@dataclass(slots=True)
class Recovered:
    """Where the writer continues."""

    segment: Segment
    offset: int
    next_seq: int
    record_segment: int
    """Newest segment that holds a record (or the current one): retention must keep it."""
    inherited: list[int]
    """Older segments that earlier writers may have left without a sync."""
    report: RecoveryReport


class _Recovery:
    def __init__(self, fs: Fs, queue_path: str, control: ControlBlock, memlock: bool) -> None:
        self.fs = fs
        self.queue_path = queue_path
        self.size = control.segment_size
        self.memlock = memlock
        self.report = RecoveryReport()
        self.checkpoint = index_meta.load(fs, queue_path, self.size)
        self.first_id = self._first_segment(control)

    def _first_segment(self, control: ControlBlock) -> int:
        """The newest segment that control block or checkpoint know of, or the next that exists.

        After a power loss the control block may be old, and the segment it names may have been
        deleted since; what comes after it is still there.
        """
        known = control.head()[0]
        if self.fs.exists(segment_path(self.queue_path, self.checkpoint.segment_id)):
            known = max(known, self.checkpoint.segment_id)
        later = [i for i in self._known_ids() if i >= known]
        if not later and control.ready:
            raise Corrupt(
                f"{segment_path(self.queue_path, known)} is missing, and the head of the queue is in it; "
                "restore it, or move the queue away and start a new one"
            )
        return min(later, default=known)

    def run(self) -> Recovered:
        remove_leftovers(self.fs, self.queue_path)
        for segment_id in self._known_ids():
            if segment_id < self.first_id:
                try:
                    self._finish(segment_id)
                except (Corrupt, UnsupportedVersion):
                    # Readers of this segment get the error; all others can go on.
                    self.report.damage.append(Damage(segment_id, first_offset=0, records=0))
        segment_id = self.first_id
        while True:
            segment = open_or_create_segment(
                self.fs, self.queue_path, segment_id, self.size, memlock=self.memlock
            )
            try:
                offset = self._append_offset(segment)
                following = self._following(segment_id, offset)
                if offset is not None and following is None:
                    next_seq, record_segment = self._next_seq(segment_id)
                    self._drop_index(segment_id)
                    inherited = [i for i in self._known_ids() if self.checkpoint.segment_id <= i < segment_id]
                    return Recovered(segment, offset, next_seq, record_segment, inherited, self.report)
                if offset is not None:
                    native.pad_segment(segment.mapping, offset)
                self._seal(segment)
            except BaseException:
                segment.close(self.fs)
                raise
            segment.close(self.fs)
            segment_id = segment_id + 1 if following is None else following

    def _known_ids(self) -> list[int]:
        return list_segments(self.fs, self.queue_path)

    def _following(self, segment_id: int, offset: int | None) -> int | None:
        """Return the segment to go on with although this one has room; None: stay or just roll."""
        later = [i for i in self._known_ids() if i > segment_id]
        if any(self._holds_data(i) for i in later):
            return later[0]  # a stale control block hid them
        if offset is not None and self._reader_is_beyond(segment_id, offset):
            return segment_id + 1
        return None

    def _reader_is_beyond(self, segment_id: int, offset: int) -> bool:
        """Whether a reader has committed past the last record that survived.

        Commits are synced and appends are not. New records must not be put where such a reader
        has already been.
        """
        positions = {
            name: (position.segment_id, position.offset)
            for name, position in (list_readers(self.fs, self.queue_path) or {}).items()
            if isinstance(position, ReaderPosition)
        }
        for name, (reader_segment, _) in positions.items():
            if reader_segment > segment_id + READER_AHEAD_SEGMENTS_MAX:
                raise CorruptMetadata(
                    f"reader {name!r} of {self.queue_path} stands in segment {reader_segment}, far beyond "
                    f"the last one, {segment_id}; delete its meta file if it is wrong"
                )
        return any(position > (segment_id, offset) for position in positions.values())

    def _append_offset(self, segment: Segment) -> int | None:
        """Return where records may be added, None if the segment is full, sealed or torn."""
        if segment.sealed:
            return None
        scan = self._scan(segment)
        if scan["padded"] or scan["good_end"] + HEADER_SIZE > self.size:
            return None
        end = scan["good_end"]
        slot = bytes(memoryview(segment.mapping)[end : end + HEADER_SIZE])
        if not any(slot):
            return end
        self.report.torn_tails.append((segment.segment_id, end))
        native.pad_segment(segment.mapping, end)
        return None

    def _scan(self, segment: Segment) -> dict[str, int]:
        start = SEG_DATA_OFFSET
        if self.checkpoint.segment_id == segment.segment_id:
            start = self.checkpoint.offset
        scan = native.scan_segment(segment.mapping, start)
        self.report.records_scanned += scan["records"]
        if scan["foreign"]:
            version = memoryview(segment.mapping)[scan["foreign"] + layout.MSG_VERSION_OFFSET]
            raise UnsupportedVersion(
                f"{segment.path} holds a record of message version {version} at offset {scan['foreign']}; "
                f"this build knows {layout.MSG_VERSION}",
                version,
            )
        if scan["bad"]:
            self.report.damage.append(Damage(segment.segment_id, scan["first_bad"], scan["bad"]))
        return scan

    def _finish(self, segment_id: int) -> None:
        """Pad and seal an older segment whose seal a crash or a power loss has cost."""
        segment = open_segment(self.fs, self.queue_path, segment_id, self.size, writable=True)
        try:
            if segment.sealed:
                return
            offset = self._append_offset(segment)
            if offset is not None:
                native.pad_segment(segment.mapping, offset)
            self._seal(segment)
        finally:
            segment.close(self.fs)

    def _seal(self, segment: Segment) -> None:
        if segment.sealed:
            return
        native.seal_segment(segment.mapping)
        self.fs.fsync(segment.fd)
        self.report.sealed_segments.append(segment.segment_id)
        self._drop_index(segment.segment_id)

    def _drop_index(self, segment_id: int) -> None:
        """Delete a seek index that was flushed before the last records came."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.unlink(os.path.join(self.queue_path, layout.seek_index_name(segment_id)))

    def _holds_data(self, segment_id: int) -> bool:
        """Whether an existing segment holds records or is sealed."""
        try:
            segment = open_segment(self.fs, self.queue_path, segment_id, self.size, writable=False)
        except FileNotFoundError:
            return False
        segment.close(self.fs)
        return not segment.pristine

    def _next_seq(self, current_id: int) -> tuple[int, int]:
        """Return the seq after the last committed record, and the segment that record is in."""
        for segment_id in reversed(self._known_ids()):
            if segment_id > current_id:
                continue
            segment = open_segment(self.fs, self.queue_path, segment_id, self.size, writable=False)
            try:
                scan = native.scan_segment(segment.mapping, SEG_DATA_OFFSET)
                if segment.sealed:
                    self._check_sealed(segment_id, scan)
                if scan["records"]:
                    self.fs.fsync(segment.fd)  # retention relies on finding this record again
                    return scan["last_seq"] + 1, segment_id
            finally:
                segment.close(self.fs)
        return 0, current_id

    def _check_sealed(self, segment_id: int, scan: dict[str, int]) -> None:
        """Report what the last sealed segment has lost: its seal may be on disk although its records are not.

        Older ones were synced before the next one was begun, unless `defer_seal_sync` gave that up.
        """
        if any(damage.segment_id == segment_id for damage in self.report.damage):
            return
        is_whole = scan["padded"] or scan["good_end"] + HEADER_SIZE > self.size
        if scan["bad"]:
            self.report.damage.append(Damage(segment_id, scan["first_bad"], scan["bad"]))
        elif not is_whole:
            self.report.damage.append(Damage(segment_id, scan["good_end"], records=0))


def recover(fs: Fs, queue_path: str, control: ControlBlock, *, memlock: bool = False) -> Recovered:
    """Repair the tail of the queue and return where to append."""
    return _Recovery(fs, queue_path, control, memlock).run()
