"""Writes segments straight into an archive, without a live queue: for imports and other makers of history.

Owns the steps from the first record to a published, sealed segment. There is no control block and no lock:
a directory has one writer at a time. A segment that is begun is `NNNNNNNNN.q.tmp` and appears under its name
when it is full or finished; a writer that was killed leaves the published ones, and the next one goes on with
the seq behind them.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from everlog.archive import layout
from everlog.archive.layout import ArchiveMeta
from everlog.archive.metadata import widen_meta
from everlog.archive.tiers import ArchivedSegment, list_segments
from everlog.archive.windows import SegmentOpener
from everlog.clock import NS_PER_S, Clock, SystemClock
from everlog.errors import LateData
from everlog.fs import Fs, OsFs, create_directory
from everlog.queue.config import MIB
from everlog.queue.faults import io_errors
from everlog.queue.segment import TEMP_SUFFIX, remove_leftovers
from everlog.queue.segment_builder import BuiltSegment, SegmentBuilder, adopt

SEGMENT_SIZE: Final = 128 * MIB
LATE_NS: Final = 3600 * NS_PER_S
"""How long a day stays open after its end."""
LatePolicy = Literal["reject", "late"]


class ArchiveSegmentWriter(SegmentBuilder):
    """Appends messages to one directory of an archive; `finish` publishes the last segment.

    Append with `append` or `append_packed`, always with the time of the message. `meta` describes the
    directory if it has no `meta.json` yet.
    """

    def __init__(
        self,
        directory: str,
        meta: ArchiveMeta | None = None,
        *,
        segment_size: int = SEGMENT_SIZE,
        fs: Fs | None = None,
    ) -> None:
        """Find the next segment id and seq; nothing is published before the first segment is full."""
        self._directory = directory
        self._meta = meta
        files = fs or OsFs()
        with io_errors(f"write to the archive directory {directory}"):
            create_directory(files, directory)
            remove_leftovers(files, directory)
            self._first_id, next_seq = _next_place(files, directory)
            super().__init__(files, directory, segment_size, next_seq)

    @property
    def _path(self) -> str:
        return layout.segment_file(self._directory, self._first_id + len(self._built)) + TEMP_SUFFIX

    def _make_room(self, record_size: int) -> None:
        """Called by the native core when a record does not fit: publish what is full, go on in the next."""
        with io_errors(f"publish a segment of {self._directory}"):
            super()._make_room(record_size)
            self._publish(self._built[-1])

    def finish(self) -> list[BuiltSegment]:
        """Seal and publish the last segment; one without records is discarded. Return all of them."""
        published = len(self._built)
        with io_errors(f"publish a segment of {self._directory}"):
            built = super().finish()
            for segment in built[published:]:
                self._publish(segment)
        return built

    def _publish(self, segment: BuiltSegment) -> None:
        segment_id = self._first_id + self._built.index(segment)
        adopt(self._fs, self._directory, segment_id, segment, self._segment_size)
        self._fs.fsync_dir(self._directory)
        if self._meta is not None:
            widen_meta(self._fs, self._directory, self._meta, (segment.min_ts_ns, segment.max_ts_ns))


def _next_place(fs: Fs, directory: str) -> tuple[int, int]:
    """Return the id and the seq that follow everything in a directory, whatever tier it is in."""
    segments = list_segments(fs, directory)
    for segment in reversed(segments):
        last_seq = _last_seq(fs, segment)
        if last_seq is not None:
            return segments[-1].segment_id + 1, last_seq + 1
    return (segments[-1].segment_id + 1 if segments else 0), 0


def _last_seq(fs: Fs, segment: ArchivedSegment) -> int | None:
    opener = SegmentOpener(fs)
    index = opener.seek_index(segment)
    if index is not None and not index.partial:
        return index.max_seq
    return opener.last_seq(segment)


class DayWriter:
    """Routes the messages of one stream to the directories of their days.

    A day stays open one hour after its end. What comes later is refused with LateData, or goes to the stream
    `late` of its day if `late_policy` says so.
    """

    def __init__(
        self,
        root: str,
        meta: ArchiveMeta,
        stream: str,
        *,
        late_policy: LatePolicy = "reject",
        segment_size: int = SEGMENT_SIZE,
        clock: Clock | None = None,
        fs: Fs | None = None,
    ) -> None:
        self._root = root
        self._meta = msgspec.structs.replace(meta, late_policy=late_policy)
        self._stream = stream
        self._late_policy = late_policy
        self._segment_size = segment_size
        self._clock = clock or SystemClock()
        self._fs = fs or OsFs()
        self._writers: dict[str, ArchiveSegmentWriter] = {}

    def append(self, type_id: int, payload: bytes | memoryview, timestamp_ns: int) -> int:
        """Write one message to the directory of its day and return its seq there."""
        return self._writer(timestamp_ns).append(type_id, payload, timestamp_ns)

    def _writer(self, timestamp_ns: int) -> ArchiveSegmentWriter:
        day = layout.day_of(timestamp_ns)
        stream = self._stream
        if self._clock.wall_ns() >= layout.day_end_ns(day) + LATE_NS:
            if self._late_policy == "reject":
                raise LateData(
                    f"a message of {day} came more than an hour after the end of that day; "
                    f"late_policy='late' writes such messages to the stream {layout.LATE_STREAM!r}"
                )
            stream = layout.LATE_STREAM
        directory = layout.stream_directory(self._root, self._meta.venue, self._meta.symbol_code, day, stream)
        writer = self._writers.get(directory)
        if writer is None:
            # Two days are open at once at most, and the late stream of any: an older one is finished first.
            while len(self._writers) >= 3:
                self._writers.pop(next(iter(self._writers))).finish()
            writer = ArchiveSegmentWriter(directory, self._meta, segment_size=self._segment_size, fs=self._fs)
            self._writers[directory] = writer
        return writer

    def finish(self) -> None:
        """Publish what was begun."""
        while self._writers:
            self._writers.pop(next(iter(self._writers))).finish()
