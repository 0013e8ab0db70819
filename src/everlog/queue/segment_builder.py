"""Sealed segments from messages that have their numbers already, and a queue directory made of such segments.

Owns archives: queues that are written once, as a whole, by programs that do not share a writer. Messages
keep seq, time, type and flags. A builder makes files of one run of messages under names of its own, and
`assemble` puts the files of all builders in the order of their seqs and makes a queue of them that appears
complete or not at all. No process reads the files before that, so there are no commit words to order and no
readers to wake.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from everlog.clock import SystemClock
from everlog.errors import InvalidConfig, Io
from everlog.fs import Fs
from everlog.native.queue import ring as native
from everlog.native.queue.ring import RingWriter
from everlog.queue import layout, seek_index
from everlog.queue.config import WriterConfig
from everlog.queue.control import ControlBlock
from everlog.queue.layout import SEG_DATA_OFFSET
from everlog.queue.seek_index import SeekIndex
from everlog.queue.segment import create_segment

INDEX_STRIDE: Final = WriterConfig().index_stride


class BuiltSegment(NamedTuple):
    """A finished file of a builder, and what its index will say."""

    path: str
    first_seq: int
    last_seq: int
    min_ts_ns: int
    max_ts_ns: int
    end_offset: int
    entries: bytes


class SegmentBuilder(RingWriter):
    """Writes one run of messages, numbered from `first_seq` on, into as many segment files as it takes.

    Files are called `<prefix>-<number>.part`. Append with `append_packed`, then `finish`.
    """

    def __init__(self, fs: Fs, prefix: str, segment_size: int, first_seq: int) -> None:
        WriterConfig(segment_size=segment_size)  # refuses what no queue can have
        self._fs = fs
        self._prefix = prefix
        self._segment_size = segment_size
        self._fd = -1
        self._built: list[BuiltSegment] = []
        with contextlib.closing(_Scratch()) as scratch:
            self._attach(
                scratch.control,
                self._create(),
                self._path,
                SEG_DATA_OFFSET,
                first_seq,
                INDEX_STRIDE,
                None,
                False,
            )
        self._set_limit(segment_size)

    @property
    def _path(self) -> str:
        return f"{self._prefix}-{len(self._built)}.part"

    def _create(self) -> native.Mapping:
        """Create the next file; all of it is allocated, so that no store into it can fault."""
        self._fd = self._fs.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._fs.allocate(self._fd, self._segment_size)
        return native.Mapping(self._fd, self._segment_size, True)

    def _make_room(self, record_size: int) -> None:
        """Called by the native core when a record does not fit: go on in the next file."""
        left, left_fd = self._described(), self._fd
        self._built.append(left)
        following = self._create()
        self._roll_to(following, self._path, 0)  # pads the rest of the file that is left
        self._set_limit(self._segment_size)
        self._fs.fsync(left_fd)
        self._fs.close(left_fd)

    def _on_due(self) -> None:
        """Nothing is ever due."""

    def _described(self) -> BuiltSegment:
        state = self._index_state()
        assert state is not None, "no other thread appends"
        entries, first_seq, last_seq, min_ts_ns, max_ts_ns, _, path, _ = state
        return BuiltSegment(path, first_seq, last_seq, min_ts_ns, max_ts_ns, self.offset, entries)

    def finish(self) -> list[BuiltSegment]:
        """End the last file and return all of them; a builder of nothing leaves none."""
        last = self._described()
        if last.end_offset > SEG_DATA_OFFSET:
            end, size = last.end_offset, self._segment_size
            # Padding is a header and zeros, and zeros need no blocks: they are given back.
            self._fs.truncate(self._fd, end)
            self._fs.truncate(self._fd, size)
            if end + layout.HEADER_SIZE <= size:
                length = size - end - layout.HEADER_SIZE
                self._fs.pwrite(self._fd, _padding(length), end)
            self._fs.fsync(self._fd)
            self._fs.close(self._fd)
            self._fd = -1
            self._built.append(last)
        self.discard()
        return self._built

    def discard(self) -> None:
        """Release the mapping and remove the file that was begun and not sealed."""
        self._detach()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._fs.close(fd)
            with contextlib.suppress(FileNotFoundError):
                self._fs.unlink(self._path)


def _padding(length: int) -> bytes:
    """The header of the record that fills the rest of a segment."""
    return layout.MESSAGE_HEADER.pack(length + 1, layout.MSG_VERSION, 0, 0, layout.PAD_TYPE_ID, 0, 0)


class _Scratch:
    """A private control block: the native writer needs one."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("everlog-archive")
        os.ftruncate(self._fd, layout.CTRL_SIZE)
        self.control = native.Mapping(self._fd, layout.CTRL_SIZE, True)

    def close(self) -> None:
        """Close the descriptor; the mapping lives as long as the writer."""
        os.close(self._fd)


def assemble(fs: Fs, folder: str, target: str, segments: Sequence[BuiltSegment], segment_size: int) -> None:
    """Make the queue `target` of the files that lie in `folder`, which becomes its directory.

    Raises InvalidConfig unless the seqs of all files follow each other without a gap, and if there is
    something at `target` already; nothing appears there then. Files of `folder` that are not among `segments`
    are removed.
    """
    ordered = sorted(segments, key=lambda segment: segment.first_seq)
    for before, after in pairwise(ordered):
        if after.first_seq != before.last_seq + 1:
            raise InvalidConfig(
                f"seqs {after.first_seq} to {after.last_seq} come after {before.first_seq} to "
                f"{before.last_seq}; an archive has every seq from its first to its last exactly once"
            )
    for segment_id, segment in enumerate(ordered):
        adopt(fs, folder, segment_id, segment, segment_size)
    for name in fs.listdir(folder):
        if layout.parse_segment_name(name) is None and layout.parse_seek_index_name(name) is None:
            fs.unlink(os.path.join(folder, name))
    end_offset = ordered[-1].end_offset if ordered else SEG_DATA_OFFSET
    if not ordered:
        create_segment(fs, folder, 0, segment_size).close(fs)
    ControlBlock.create(fs, folder, segment_size)
    control = ControlBlock.open(fs, SystemClock(), folder, wait_ready=False)
    try:
        control.publish_head(max(0, len(ordered) - 1), end_offset)
        control.mark_ready()
        control.sync()
    finally:
        control.close()
    try:
        fs.rename(folder, target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise InvalidConfig(
                f"there is something at {target} already; an archive is written once, to a new directory"
            ) from error
        raise Io(f"cannot move {folder} to {target}: {error.strerror}", error.errno) from error
    fs.fsync_dir(os.path.dirname(os.path.abspath(target)))


def adopt(fs: Fs, folder: str, segment_id: int, segment: BuiltSegment, segment_size: int) -> None:
    """Give a file its place in the queue: header, name and seek index."""
    header = layout.SEGMENT_HEADER.pack(
        layout.SEG_MAGIC, layout.SEG_VERSION, segment_id, layout.SEG_FLAG_SEALED
    )
    fd = fs.open(segment.path, os.O_RDWR)
    try:
        fs.pwrite(fd, header, 0)
        fs.fsync(fd)
    finally:
        fs.close(fd)
    fs.rename(segment.path, os.path.join(folder, layout.segment_name(segment_id)))
    index = SeekIndex(
        segment_id=segment_id,
        segment_size=segment_size,
        entry_stride=INDEX_STRIDE,
        partial=False,
        min_seq=segment.first_seq,
        max_seq=segment.last_seq,
        min_ts_ns=segment.min_ts_ns,
        max_ts_ns=segment.max_ts_ns,
        entries=np.frombuffer(segment.entries, dtype=seek_index.ENTRY_DTYPE),
    )
    seek_index.store(fs, folder, index)
