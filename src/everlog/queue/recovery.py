"""Finds the place where a writer may go on, and repairs what a crash left behind.

Runs in `open_publisher` under the writer lock, before anything is published. The records say what there is;
the control block, `index.meta` and the positions of readers say what there was. Records before any of these
positions have been published, perhaps read, and before `index.meta` also flushed. If they are missing, the
segment is sealed as it is, the loss is reported, and seqs go on behind every one that they can have had.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass, field
from itertools import pairwise

from everlog.errors import Corrupt, CorruptMetadata, UnsupportedVersion
from everlog.fs import Fs
from everlog.native.queue import ring as native
from everlog.queue import index_meta, layout
from everlog.queue.control import ControlBlock
from everlog.queue.damage import first_seq, next_sound
from everlog.queue.layout import HEADER_SIZE, RECORD_ALIGN, SEG_DATA_OFFSET
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

log = logging.getLogger("everlog.queue")


@dataclass(frozen=True, slots=True)
class Damage:
    """Records that cannot be read any more; the bytes are left as they are.

    `records` counts those with a wrong checksum that sound ones follow; it is 0 if an unknown number is
    missing from `first_offset` on, which is 0 if none of the segment can be read.
    """

    segment_id: int
    first_offset: int
    records: int
    reason: str = ""

    def __str__(self) -> str:
        return f"segment {self.segment_id}, offset {self.first_offset}: {self.reason}"


@dataclass(slots=True)
class RecoveryReport:
    """What recovery found and did; empty lists mean a clean queue."""

    records_scanned: int = 0
    torn_tails: list[tuple[int, int]] = field(default_factory=list)
    """(segment id, offset) of every half-written tail, never published, that was replaced by padding."""
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


@dataclass(slots=True)
class _Records:
    """The records of one segment: where the last sound one ends, and the seq after it (None: no record)."""

    end: int
    next_seq: int | None
    is_complete: bool
    """Whether they, or padding, reach the end of the segment."""


class _Recovery:
    def __init__(self, fs: Fs, queue_path: str, control: ControlBlock, memlock: bool) -> None:
        self.fs = fs
        self.queue_path = queue_path
        self.size = control.segment_size
        self.memlock = memlock
        self.report = RecoveryReport()
        self.examined: dict[int, _Records] = {}
        self.ids = list_segments(fs, queue_path)
        self.newest_data = next((i for i in reversed(self.ids) if self._holds_data(i)), 0)
        self.checkpoint = self._load_checkpoint()
        self.first_id = self._first_segment(control)
        self.published = self._published(control)

    def _load_checkpoint(self) -> index_meta.IndexPosition:
        stored = index_meta.load(self.fs, self.queue_path, self.size)
        if stored.segment_id > max(self.ids, default=0):
            reason = f"{layout.INDEX_META_FILE} says that it was flushed, but there is no such segment"
            self._report(stored.segment_id, 0, 0, reason)
            return index_meta.START
        return stored

    def _first_segment(self, control: ControlBlock) -> int:
        """The newest segment that control block or checkpoint know of, or the next that exists.

        After a power loss the control block may be old, and the segment it names may have been
        deleted since; what comes after it is still there.
        """
        known = control.head()[0]
        if self.checkpoint.segment_id in self.ids:
            known = max(known, self.checkpoint.segment_id)
        later = [i for i in self.ids if i >= known]
        if not later and control.ready:
            raise Corrupt(
                f"{segment_path(self.queue_path, known)} is missing, and the head of the queue is in it; "
                "restore it, or move the queue away and start a new one"
            )
        return min(later, default=known)

    def _published(self, control: ControlBlock) -> tuple[int, int]:
        """The last position up to which there were records, as far as any file says."""
        positions = [control.head(), self.checkpoint, (self.newest_data, SEG_DATA_OFFSET)]
        for name, stored in (list_readers(self.fs, self.queue_path) or {}).items():
            if not isinstance(stored, ReaderPosition):
                continue
            last = max(self.newest_data, self.first_id)
            if stored.segment_id > last + READER_AHEAD_SEGMENTS_MAX:
                raise CorruptMetadata(
                    f"reader {name!r} of {self.queue_path} stands in segment {stored.segment_id}, far beyond "
                    f"the last one, {last}; delete its meta file if it is wrong"
                )
            positions.append((stored.segment_id, stored.offset))
        return max(position for position in positions if position[1] <= self.size)

    def run(self) -> Recovered:
        remove_leftovers(self.fs, self.queue_path)
        for before, after in pairwise(self.ids):
            if after - before > 1:
                self._report(before + 1, 0, 0, f"segments {before + 1} to {after - 1} are missing")
        for segment_id in [i for i in self.ids if i < self.first_id]:
            try:
                self._finish(segment_id)
            except (Corrupt, UnsupportedVersion) as error:
                # Readers of this segment get the error; all others can go on.
                self._report(segment_id, 0, 0, str(error))
        segment_id = self.first_id
        while True:
            segment = open_or_create_segment(
                self.fs, self.queue_path, segment_id, self.size, memlock=self.memlock
            )
            try:
                offset = self._append_offset(segment)
                if offset is not None:
                    next_seq, record_segment = self._next_seq(segment_id)
                    self._drop_index(segment_id)
                    inherited = [i for i in self.ids if self.checkpoint.segment_id <= i < segment_id]
                    return Recovered(segment, offset, next_seq, record_segment, inherited, self.report)
                self._seal(segment)
            except BaseException:
                segment.close(self.fs)
                raise
            segment.close(self.fs)
            later = [i for i in self.ids if segment_id < i <= self.newest_data]
            segment_id = min(later, default=segment_id + 1)

    def _report(self, segment_id: int, offset: int, records: int, reason: str) -> None:
        if all(
            (known.segment_id, known.first_offset) != (segment_id, offset) for known in self.report.damage
        ):
            damage = Damage(segment_id, offset, records, reason)
            self.report.damage.append(damage)
            log.error("%s is damaged: %s", self.queue_path, damage)

    def _append_offset(self, segment: Segment) -> int | None:
        """Return where records may be added, None if the segment is full, sealed, torn or cut."""
        if segment.sealed:
            return None
        records = self._examine(segment)
        if records.is_complete:
            return None
        if records.end < self._published_end(segment.segment_id):
            # Only what was never published may be overwritten.
            if not self._is_followed(segment.segment_id, records):
                self._report_lost_end(segment.segment_id, records)
                return None
            self._pad(segment, records)
            return None
        slot = bytes(memoryview(segment.mapping)[records.end : records.end + HEADER_SIZE])
        if not any(slot):
            return records.end
        self.report.torn_tails.append((segment.segment_id, records.end))
        self._pad(segment, records)
        return None

    def _pad(self, segment: Segment, records: _Records) -> None:
        native.pad_segment(segment.mapping, records.end)
        records.is_complete = True

    def _published_end(self, segment_id: int) -> int:
        head_segment, head_offset = self.published
        if segment_id > head_segment:
            return SEG_DATA_OFFSET
        return self.size if segment_id < head_segment else head_offset

    def _is_followed(self, segment_id: int, records: _Records) -> bool:
        """Whether the next record of a later segment is the one that comes next: only padding is missing."""
        for later in [i for i in self.ids if i > segment_id]:
            segment = open_segment(self.fs, self.queue_path, later, self.size, writable=False)
            segment.close(self.fs)
            found = first_seq(segment.mapping)
            if found is not None:
                return found == records.next_seq
        return False

    def _report_lost_end(self, segment_id: int, records: _Records) -> None:
        was = "flushed" if self.checkpoint > (segment_id, records.end) else "published"
        reason = f"the records from here on, which were {was}, are missing"
        self._report(segment_id, records.end, 0, reason)

    def _examine(self, segment: Segment) -> _Records:
        """Look at every record of a segment, also behind damage, and report what is damaged."""
        known = self.examined.get(segment.segment_id)
        if known is not None:
            return known
        start, next_seq = SEG_DATA_OFFSET, None
        while True:
            scan = self._scan(segment, start)
            end, is_complete = (
                scan["good_end"],
                bool(scan["padded"]) or scan["good_end"] + HEADER_SIZE > self.size,
            )
            if scan["records"]:
                next_seq = self._seq_after(segment, scan)
            if scan["bad"] and scan["padded"]:
                # The last records may be among the bad ones: padding follows them, and no record.
                last_end = _end_of(segment.mapping, scan["last"]) if scan["records"] else start
                if native.scan_segment(segment.mapping, last_end)["bad"]:
                    end, is_complete = last_end, False
            if is_complete or end >= self._published_end(segment.segment_id):
                break
            start = next_sound(segment.mapping, end, None if next_seq is None else next_seq - 1)
            if not start:
                break
            self._report(segment.segment_id, end, 0, f"records are missing up to offset {start}")
        found = self.examined[segment.segment_id] = _Records(end, next_seq, is_complete)
        return found

    def _seq_after(self, segment: Segment, scan: dict[str, int]) -> int:
        """Return the seq after every one that the records of a scan can have."""
        expected = scan["first_seq"] + scan["records"]
        if not expected <= scan["last_seq"] + 1 <= expected + scan["bad"]:
            self._report(segment.segment_id, scan["last"], 1, "seqs do not rise by one up to this record")
        return max(scan["last_seq"] + 1, expected)

    def _scan(self, segment: Segment, start: int) -> dict[str, int]:
        scan = native.scan_segment(segment.mapping, start)
        self.report.records_scanned += scan["records"]
        if scan["foreign"]:
            version = memoryview(segment.mapping)[scan["foreign"] + layout.MSG_VERSION_OFFSET]
            raise UnsupportedVersion(
                f"{segment.path} holds a record of message version {version} at offset {scan['foreign']}; "
                f"this build knows {layout.MSG_VERSION_PAYLOAD} and {layout.MSG_VERSION}",
                version,
            )
        if scan["bad"]:
            reason = f"{scan['bad']} records from here on fail their checksum"
            self._report(segment.segment_id, scan["first_bad"], scan["bad"], reason)
        return scan

    def _finish(self, segment_id: int) -> None:
        """Pad and seal an older segment whose seal a crash or a power loss has cost."""
        segment = open_segment(self.fs, self.queue_path, segment_id, self.size, writable=True)
        try:
            if not segment.sealed:
                if self._append_offset(segment) is not None:
                    self._pad(segment, self._examine(segment))
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
        """Whether an existing segment holds records or is sealed; if it cannot be read, it may."""
        try:
            segment = open_segment(self.fs, self.queue_path, segment_id, self.size, writable=False)
        except FileNotFoundError:
            return False
        except (Corrupt, UnsupportedVersion):
            return True
        segment.close(self.fs)
        return not segment.pristine

    def _next_seq(self, current_id: int) -> tuple[int, int]:
        """Return the seq after every one that was given out, and the segment of the last record.

        Where the end of a segment is missing, every cell of it may have been a record.
        """
        lost = 0
        after = current_id
        for segment_id in reversed([i for i in list_segments(self.fs, self.queue_path) if i <= current_id]):
            lost += (after - segment_id - 1 if after > segment_id else 0) * (self.size // RECORD_ALIGN - 1)
            after = segment_id
            segment = open_segment(self.fs, self.queue_path, segment_id, self.size, writable=False)
            try:
                records = self._examine(segment)
                if segment_id != current_id and not records.is_complete:
                    self._report_lost_end(segment_id, records)
                    lost += (self.size - records.end) // RECORD_ALIGN
                if records.next_seq is not None:
                    self.fs.fsync(segment.fd)  # retention relies on finding this record again
                    return records.next_seq + lost, segment_id
            finally:
                segment.close(self.fs)
        if after:
            # Retention keeps the newest record, so a segment that had it was here.
            self._report(0, 0, 0, f"segments 0 to {after - 1} are missing, and no other has a record")
            lost += after * (self.size // RECORD_ALIGN - 1)
        return lost, current_id


def _end_of(mapping: native.Mapping, offset: int) -> int:
    """Where the record at `offset` ends."""
    return offset + layout.align64(HEADER_SIZE + mapping.load_u32(offset + layout.MSG_COMMIT_LEN) - 1)


def recover(fs: Fs, queue_path: str, control: ControlBlock, *, memlock: bool = False) -> Recovered:
    """Repair the tail of the queue and return where to append."""
    return _Recovery(fs, queue_path, control, memlock).run()
