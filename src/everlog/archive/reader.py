"""Reads an archive as a queue is read: `ArchiveReader` over any mixture of tiers, in the order of time.

Owns the order of segments and the position among them. The native core of the queue steps through the
records, checks them and skips padding; `windows` supplies the bytes. Nothing is committed: an archive has no
readers' positions, and reading holds back nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from everlog.archive import layout
from everlog.archive.metadata import note_access
from everlog.archive.remote import RemoteTier, is_url
from everlog.archive.tiers import ArchivedSegment, find_directories, list_segments
from everlog.archive.windows import RemoteSegments, SegmentOpener, Window
from everlog.clock import Clock, SystemClock
from everlog.errors import Corrupt, InvalidConfig, Unsupported
from everlog.fs import Fs, OsFs
from everlog.native.queue import ring as native
from everlog.native.queue.ring import MessageView, RingReader
from everlog.queue.batch import Batch
from everlog.queue.damage import first_sound
from everlog.queue.faults import io_errors
from everlog.queue.layout import CTRL_SIZE, MSG_SEQ, MSG_TIMESTAMP_NS, SEG_DATA_OFFSET
from everlog.queue.reader import BATCH_MAX, Message, copy_message
from everlog.queue.wait import Sleep, native_arguments

_U64_MAX: Final = 2**64 - 1


class ArchiveReader(RingReader):
    """A reader of archived messages; opened by `open_archive`. Use it from one thread.

    The interface is that of `QueueReader`, without what concerns a writer. `segment_id` of its messages
    counts the segments that this reader knows of, from 0 on.
    """

    def __init__(
        self,
        segments: Callable[[], Sequence[ArchivedSegment]],
        *,
        is_continuous: bool = False,
        verify: bool = True,
        tracks_access: bool = False,
        remote: RemoteSegments | None = None,
        clock: Clock | None = None,
        fs: Fs | None = None,
    ) -> None:
        """Stand before the first message of the segments, which `segments` lists in their order.

        `is_continuous`: seq goes on from one directory to the next, as in a raw archive; a gap is damage
        then. `tracks_access`: record reads in `.access_log`, for the policy that compresses what is idle.
        """
        self._list = segments
        self._is_continuous = is_continuous
        self._verify = verify
        self._tracks_access = tracks_access
        self._clock = clock or SystemClock()
        self._fs = fs or OsFs()
        self._opener = SegmentOpener(self._fs, remote)
        self._segments: list[ArchivedSegment] = []
        self._window: Window | None = None
        fd = os.memfd_create("everlog-archive-reader")
        try:
            os.ftruncate(fd, CTRL_SIZE)
            self._control = native.Mapping(fd, CTRL_SIZE, True)
        finally:
            os.close(fd)
        self._attach(self._control, verify, False, *native_arguments(Sleep()))
        self._stand_empty()
        with io_errors("list the archive"):
            self._list_again()
        if self._segments:
            self._enter(0, SEG_DATA_OFFSET, None)

    # -- segments --------------------------------------------------------------------------

    def _list_again(self) -> bool:
        """Add the segments behind the last known one; whether there are any."""
        listed = list(self._list())
        known = len(self._segments)
        if known:
            last = self._segments[-1]
            places = [
                place
                for place, one in enumerate(listed)
                if (one.directory, one.segment_id) == (last.directory, last.segment_id)
            ]
            if not places:
                return False  # retention of the archive took it; what follows is found by a new reader
            listed = listed[places[0] + 1 :]
        self._segments += listed
        return bool(listed)

    @property
    def segments(self) -> tuple[ArchivedSegment, ...]:
        """The segments that this reader knows of, in order."""
        return tuple(self._segments)

    def _stand_empty(self) -> None:
        """Stand in a segment without records: that of an archive that has none yet."""
        fd = os.memfd_create("everlog-archive-empty")
        try:
            os.ftruncate(fd, SEG_DATA_OFFSET)
            self._stand(native.Mapping(fd, SEG_DATA_OFFSET, False), 0, SEG_DATA_OFFSET)
        finally:
            os.close(fd)

    def _enter(self, number: int, offset: int, next_seq: int | None, window: Window | None = None) -> None:
        segment = self._segments[number]
        if window is None:
            with io_errors(f"open segment {segment.segment_id} of {segment.directory}"):
                window = self._opener.window(segment, offset)
        if self._tracks_access and (self._window is None or self.position[0] != number):
            note_access(self._fs, segment.directory, segment.segment_id, self._clock.wall_ns())
        self._window = window
        # The head lies behind a segment that is complete, and at the start of one that is not: the native
        # reader takes the end of what is there for damage in the first case, for the end so far in the
        # second.
        native.publish_head(self._control, number + window.is_complete, SEG_DATA_OFFSET)
        self._stand(window.mapping, number, offset, next_seq)

    def _advance(self) -> bool:
        """Called when nothing more is in memory: bring in the next blocks, or find newer segments."""
        number, offset = self.position
        window = self._window
        if window is None:
            with io_errors("list the archive"):
                if not self._list_again():
                    return False
            self._enter(0, SEG_DATA_OFFSET, None)
            return True
        if window.is_complete:
            with io_errors("list the archive"):
                if not self._list_again():
                    return False
            native.publish_head(self._control, number + 1, SEG_DATA_OFFSET)
            return True
        fresh = None
        with io_errors(f"read segment {self._segments[number].segment_id}"):
            if window.is_full:
                fresh = self._opener.window(self._segments[number], offset)
            elif not window.advance(offset):
                return False
        self._enter(number, offset, self.expected_seq, fresh or window)
        return True

    # -- called by the native core -----------------------------------------------------------

    def _enter_next_segment(self) -> None:
        number, offset = self.position
        if number + 1 >= len(self._segments) and not self._list_again():
            native.publish_head(self._control, number, SEG_DATA_OFFSET)
            self._stand(self.segment, number, offset, self.expected_seq)
            return
        left, entered = self._segments[number], self._segments[number + 1]
        carries_on = self._is_continuous or left.directory == entered.directory
        self._enter(number + 1, SEG_DATA_OFFSET, self.expected_seq if carries_on else None)

    def _leave_hole(self) -> None:
        number, offset = self.position
        segment = self._segments[number]
        raise Corrupt(
            f"segment {segment.segment_id} of {segment.directory} ends at offset {offset} without padding: "
            "its last records are missing; restore it from a copy, or seek_seq() to a later one"
        )

    def _check_heartbeat(self) -> None:
        """There is no retention to hold back."""

    # -- reading -----------------------------------------------------------------------------

    def next(self) -> MessageView | None:
        """Return the next message, None if the archive has no more yet."""
        while (view := super().next()) is None:
            if not self._advance():
                return None
        return view

    def __next__(self) -> MessageView:
        view = self.next()
        if view is None:
            raise StopIteration
        return view

    def read_batch(self, max: int = BATCH_MAX, *, verify: bool | None = None) -> Batch:
        """Consume up to `max` messages of one segment and return them as arrays; empty at the end."""
        if max < 1:
            raise Unsupported(f"read_batch needs room for at least 1 message, got {max}")
        checks = self._verify if verify is None else verify
        while not len(batch := Batch(*self._take_run(max, checks))):
            if not self._advance():
                break
        return batch

    def drain_available(self, max: int) -> list[Message]:
        """Consume up to `max` messages and return owned copies."""
        messages: list[Message] = []
        while len(messages) < max and (view := self.next()) is not None:
            messages.append(copy_message(view))
        return messages

    drain = drain_available

    # -- seeking -----------------------------------------------------------------------------

    def seek_seq(self, seq: int) -> bool:
        """Stand before the first message with at least this seq; False: none, stand at the end.

        Where seq begins anew with each directory, that is the first directory that has such a message.
        """
        return self._seek(seq, by_timestamp=False)

    def seek_timestamp(self, timestamp_ns: int) -> bool:
        """Stand before the first message at or after this time; False: none, stand at the end."""
        return self._seek(timestamp_ns, by_timestamp=True)

    seek_time = seek_timestamp

    def _seek(self, target: int, *, by_timestamp: bool) -> bool:
        target = max(0, min(target, _U64_MAX))
        with io_errors("seek in the archive"):
            self._list_again()
            for number in range(self._seek_start(target, by_timestamp=by_timestamp), len(self._segments)):
                found = self._find(number, target, by_timestamp=by_timestamp)
                if found is not None:
                    self._enter(number, *found)
                    return True
            self._stand_at_end()
        return False

    def _seek_start(self, target: int, *, by_timestamp: bool) -> int:
        """Return the first segment that can have the target, by bisection where keys rise."""
        if not by_timestamp and not self._is_continuous and len({s.directory for s in self._segments}) > 1:
            return 0
        low, high = 0, len(self._segments)
        while high - low > 1:
            middle = (low + high) // 2
            key = self._first_key(middle, by_timestamp=by_timestamp)
            if key is not None and key < target:
                low = middle
            else:
                high = middle
        return low

    def _first_key(self, number: int, *, by_timestamp: bool) -> int | None:
        index = self._opener.seek_index(self._segments[number])
        if index is not None:
            return int(index.entries["timestamp_ns" if by_timestamp else "seq"][0])
        mapping = self._opener.window(self._segments[number]).mapping
        offset = first_sound(mapping)
        return mapping.load_u64(offset + (MSG_TIMESTAMP_NS if by_timestamp else MSG_SEQ)) if offset else None

    def _find(self, number: int, target: int, *, by_timestamp: bool) -> tuple[int, int | None, Window] | None:
        """Return where the target is in a segment, with the window that shows it."""
        segment = self._segments[number]
        start = SEG_DATA_OFFSET
        index = self._opener.seek_index(segment)
        if index is not None:
            if (index.max_ts_ns if by_timestamp else index.max_seq) < target:
                return None
            lookup = index.entry_before_timestamp if by_timestamp else index.entry_at_or_before_seq
            start = lookup(target) or SEG_DATA_OFFSET
        window = self._opener.window(segment, start)
        while True:
            offset = native.find_record(window.mapping, start, target, by_timestamp=by_timestamp)
            if offset:
                return offset, None, window
            start = max(start, native.scan_segment(window.mapping, start, verify=False)["end"])
            if window.is_full:
                window = self._opener.window(segment, start)
            elif not window.advance(start, reads_ahead=False):
                return None

    def _stand_at_end(self) -> None:
        if not self._segments:
            return
        number = len(self._segments) - 1
        window = self._opener.window(self._segments[number])
        native.publish_head(self._control, number, SEG_DATA_OFFSET)
        self._window = Window(window.mapping)
        self._stand(window.mapping, number, len(window.mapping) // 64 * 64)

    def seq_bounds(self) -> tuple[int, int]:
        """Return the seq of the first message and the one behind the last; an empty range if there is none.

        Where seq begins anew with each directory there is no such range: `Unsupported`.
        """
        directories = {segment.directory for segment in self._segments}
        if len(directories) > 1 and not self._is_continuous:
            raise Unsupported(
                f"seqs begin anew in each of {len(directories)} directories; choose one of them, such as "
                f"{min(directories)}"
            )
        with io_errors("look at the ends of the archive"):
            firsts = (self._first_key(n, by_timestamp=False) for n in range(len(self._segments)))
            first = next((seq for seq in firsts if seq is not None), None)
            for segment in reversed(self._segments):
                last = self._last_seq(segment)
                if first is not None and last is not None:
                    return first, last + 1
        return 0, 0

    def _last_seq(self, segment: ArchivedSegment) -> int | None:
        if (index := self._opener.seek_index(segment)) is not None:
            return index.max_seq
        window, start, last = self._opener.window(segment), SEG_DATA_OFFSET, None
        while True:
            scan = native.scan_segment(window.mapping, start, verify=False)
            start = scan["end"]
            last = scan["last_seq"] if scan["records"] else last
            if window.is_full:
                window = self._opener.window(segment, start)
            elif not window.advance(start):
                return last

    # -- the rest ----------------------------------------------------------------------------

    def close(self) -> None:
        """Release the memory; batches and views stay valid."""
        self._window = None
        self._detach()

    def __repr__(self) -> str:
        return f"<ArchiveReader of {len(self._segments)} segments>"


def open_archive(
    path: str | os.PathLike[str],
    *,
    venue: str | None = None,
    symbol: str | None = None,
    stream: str | None = None,
    first_date: str | None = None,
    last_date: str | None = None,
    verify: bool = True,
    tracks_access: bool = False,
    remote: RemoteTier | None = None,
    fs: Fs | None = None,
) -> ArchiveReader:
    """Open an archive for reading: a root, part of one, or one directory with segments.

    `path` may be an address such as `s3://bucket/prefix`: what `everlog archive move` has left there.
    `remote` says where blocks that are fetched are kept. The directories that match `venue`, `symbol`,
    `stream` and the days from `first_date` to `last_date` (both included) are read day by day. They must
    belong to one stream: others are read by other readers.
    """
    root = os.fspath(path)
    files = fs or OsFs()
    for day in (first_date, last_date):
        if day is not None:
            layout.check_date(day)
    remote = remote or RemoteTier(files)
    if not is_url(root) and not files.exists(root):
        raise InvalidConfig(f"there is no archive at {root}; check the path")

    def directories() -> Sequence[str]:
        found = archive_directories(files, root, remote)
        if root.rstrip("/") in found:
            return [root.rstrip("/")]
        return select_directories(found, venue, symbol, stream, first_date, last_date)

    chosen = directories()
    if is_url(root) and not chosen:
        raise InvalidConfig(f"there is no sealed segment at {root} that matches; check the address")
    keys = [layout.parse_directory(directory) for directory in chosen]
    kinds = {(key.venue, key.symbol, key.stream) for key in keys if key is not None}
    if len(kinds) > 1:
        shown = "; ".join(sorted("/".join(part or "-" for part in kind) for kind in kinds)[:8])
        raise InvalidConfig(
            f"{root} has more than one stream: {shown}; choose one by venue, symbol and stream"
        )
    is_raw = any(key is not None and key.is_raw for key in keys)
    return ArchiveReader(
        lambda: [one for directory in directories() for one in archive_segments(files, directory, remote)],
        is_continuous=is_raw,
        verify=verify,
        tracks_access=tracks_access and not is_url(root),
        remote=remote,
        fs=files,
    )


def archive_directories(fs: Fs, root: str, remote: RemoteTier | None) -> list[str]:
    """Return every directory with segments in and below a root, here or in an object store."""
    if is_url(root) and remote is not None:
        return remote.directories(root)
    return find_directories(fs, root)


def archive_segments(fs: Fs, directory: str, remote: RemoteTier | None) -> list[ArchivedSegment]:
    """Return the segments of one of the `archive_directories`."""
    if is_url(directory) and remote is not None:
        return remote.segments(directory)
    return list_segments(fs, directory)


def select_directories(
    found: Iterable[str],
    venue: str | None,
    symbol: str | None,
    stream: str | None,
    first_date: str | None,
    last_date: str | None,
) -> list[str]:
    """Return the directories that match, by date and path; other trees match only if nothing is asked."""
    chosen = []
    is_filtered = any(value is not None for value in (venue, symbol, stream, first_date, last_date))
    for directory in found:
        key = layout.parse_directory(directory)
        if key is None:
            if not is_filtered:
                chosen.append(("", directory))
        elif (
            venue in (None, key.venue)
            and symbol in (None, key.symbol)
            and stream in (None, key.stream)
            and (first_date or "") <= key.date <= (last_date or "9999-12-31")
        ):
            chosen.append((key.date, directory))
    return [directory for _, directory in sorted(chosen)]
