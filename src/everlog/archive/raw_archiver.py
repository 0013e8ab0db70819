"""The raw archiver: copies sealed segments of a live queue; retention waits for it as for any reader.

Owns the order of steps for one segment: copy, sync, publish, compress if wanted, `meta.json`, and only then
the reader's position moves behind it. Killed anywhere, the next run does the segment again and finds it
there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from everlog.archive import layout
from everlog.archive.layout import ArchiveMeta, segment_file
from everlog.archive.metadata import widen_meta
from everlog.archive.policies import Immediate, Never
from everlog.archive.tiers import ArchivedSegment, changing, compress_segment, resolve, store_seek_index
from everlog.archive.windows import RemoteSegments, SegmentOpener
from everlog.clock import Clock, SystemClock
from everlog.errors import Unsupported
from everlog.fs import Fs, OsFs, create_directory, opened
from everlog.native.queue import ring as native
from everlog.queue import Queue
from everlog.queue.faults import io_errors
from everlog.queue.layout import SEG_DATA_OFFSET, SEG_FLAG_SEALED, SEG_FLAGS
from everlog.queue.names import check_component
from everlog.queue.segment import TEMP_SUFFIX, map_segment

READER: Final = "raw-archiver"
POLL_S: Final = 1.0
_COPY_BYTES: Final = 4 << 20


class RawArchiver:
    """Archives the sealed segments of one live queue under `raw/v1/<venue>/<date>/raw`."""

    def __init__(
        self,
        live: str | os.PathLike[str],
        root: str | os.PathLike[str],
        venue: str,
        *,
        reader: str = READER,
        policy: Never | Immediate | None = None,
        remote: RemoteSegments | None = None,
        clock: Clock | None = None,
        fs: Fs | None = None,
    ) -> None:
        """Register as a reader of the live queue; from now on retention waits for the archive."""
        self.live, self.root = os.fspath(live), os.fspath(root)
        self.venue = check_component(venue, "venue")
        self._compresses = isinstance(policy, Immediate)
        self._clock = clock or SystemClock()
        self._fs = fs or OsFs()
        self._opener = SegmentOpener(self._fs, remote)
        self._reader = Queue.open_subscriber(self.live, reader, clock=self._clock, fs=self._fs)

    def run_once(self, advance: Callable[[int], None] = lambda size: None) -> list[ArchivedSegment]:
        """Archive every segment that is sealed now, in order, and return where they are."""
        done = []
        self._reader.heartbeat()
        while (mapping := self._sealed(self._reader.committed_position[0])) is not None:
            segment_id = self._reader.committed_position[0]
            with io_errors(f"archive segment {segment_id} of {self.live}"):
                done.append(self._archive(segment_id, mapping))
            self._reader.commit_at(segment_id + 1, SEG_DATA_OFFSET)
            advance(len(mapping))
        return done

    def _sealed(self, segment_id: int) -> native.Mapping | None:
        if segment_id >= self._reader.published_head[0]:
            return None
        with io_errors(f"open segment {segment_id} of {self.live}"):
            mapping = map_segment(self._fs, self.live, segment_id, self._reader.segment_size)
        return mapping if mapping.load_u32(SEG_FLAGS) & SEG_FLAG_SEALED else None

    def _archive(self, segment_id: int, mapping: native.Mapping) -> ArchivedSegment:
        scan = native.scan_segment(mapping, SEG_DATA_OFFSET)
        times_ns = (scan["min_ts_ns"], scan["max_ts_ns"]) if scan["records"] else None
        began_ns = times_ns[0] if times_ns else os.stat(segment_file(self.live, segment_id)).st_mtime_ns
        directory = layout.raw_directory(self.root, self.venue, layout.day_of(began_ns))
        create_directory(self._fs, directory)
        with changing(self._fs, directory):
            found = resolve(self._fs, directory, segment_id)
            if found is None:
                self._copy(segment_id, mapping, directory)
            else:
                self._compare(found, mapping)
            plain = self._fs.exists(segment_file(directory, segment_id))
            if plain:
                store_seek_index(self._fs, directory, segment_id, mapping)
            if plain and self._compresses:
                compress_segment(self._fs, directory, segment_id)
        meta = ArchiveMeta(
            venue=self.venue,
            symbol_code="MULTI",
            ingest_time_ns=self._clock.wall_ns(),
            source=os.path.abspath(self.live),
        )
        widen_meta(self._fs, directory, meta, times_ns)
        stored = resolve(self._fs, directory, segment_id)
        assert stored is not None, "it was published above"
        return stored

    def _copy(self, segment_id: int, mapping: native.Mapping, directory: str) -> None:
        target = segment_file(directory, segment_id)
        data = memoryview(mapping)
        with opened(self._fs, target + TEMP_SUFFIX, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
            for begin in range(0, len(data), _COPY_BYTES):
                self._fs.pwrite(fd, data[begin : begin + _COPY_BYTES], begin)
                self._reader.heartbeat()
            self._fs.fsync(fd)
        self._fs.rename(target + TEMP_SUFFIX, target)
        self._fs.fsync_dir(directory)

    def _compare(self, found: ArchivedSegment, mapping: native.Mapping) -> None:
        """Raise unless the segment in the archive is the one of the live queue."""
        window = self._opener.window(found)
        while window.advance(native.scan_segment(window.mapping, SEG_DATA_OFFSET, verify=False)["end"]):
            pass
        if not window.is_complete or memoryview(window.mapping) != memoryview(mapping):
            raise Unsupported(
                f"{found.path} is archived already and is not segment {found.segment_id} of {self.live}; "
                "was the queue made anew? Archive it under another venue or root"
            )

    def close(self) -> None:
        """Release the reader's name; its position stays and keeps holding back retention until its TTL."""
        self._reader.close()

    def __enter__(self) -> RawArchiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
