"""One topic's segments as pairs of files: written, read, mapped, marked and removed by first seq.

Owns names, order of writes and syncs. Moves opaque bytes: what a frame or an index entry means is
decided in `segments`. Keeps no state besides a path, so every method may run on any thread; two
threads must not change the same segment at the same time.

What a crash can leave behind, and what it means::

    .data and .idx                a segment; if it is the newest one, its tail may be torn
    .data alone                   a segment that was being created (or copied) and holds nothing yet
    .idx with .data.tmp           a removal that began: finish it
    .tmp of any kind              left over: remove it
    .idx without either           damage, because .data is created first and renamed before .idx goes
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, cast

from everlog.errors import Corrupt, CorruptMetadata, Io
from everlog.fs import Fs, replace_file
from everlog.native.queue.ring import Mapping
from everlog.topics.storage import layout

if TYPE_CHECKING:
    from typing_extensions import Buffer

DELETED_TOPIC_SUFFIX = ".deleted"


class SegmentPart(Enum):
    """The two files of a segment."""

    DATA = "data"
    INDEX = "index"


class Mark(NamedTuple):
    """Where one record is marked as deleted: the last byte of its frame, the flags of its entry."""

    data_offset: int
    index_offset: int
    index_flags: int


class Listing(NamedTuple):
    """What a store holds, ids ascending. Only `complete` ones are segments; see the module."""

    complete: tuple[int, ...] = ()
    data_only: tuple[int, ...] = ()
    index_only: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()
    temporary: tuple[str, ...] = ()


_NAMES = {SegmentPart.DATA: layout.SEGMENT_DATA.name, SegmentPart.INDEX: layout.SEGMENT_INDEX.name}


class SegmentStore:
    """The segments of one topic as files in one directory, which is created with the first segment.

    The directory above must exist durably (`fs.create_directory`). All calls block.
    """

    __slots__ = ("_fs", "directory")
    is_remote = False
    """Whether the data is in an object store; then deletion marks are in the index alone."""

    def __init__(self, directory: str, fs: Fs) -> None:
        self.directory = directory
        self._fs = fs

    def describe(self, segment_id: int, part: SegmentPart) -> str:
        """Name a part for an error message."""
        return os.path.join(self.directory, _NAMES[part](segment_id))

    def put(self, segment_id: int, data: Buffer, index: Buffer) -> None:
        """Store a whole segment durably; it appears complete or not at all. Replaces an older copy.

        The index comes last, because only with it there is a segment.
        """
        with _reported("store a segment in", self.directory):
            self._fs.makedirs(self.directory)
        for part, content in ((SegmentPart.DATA, data), (SegmentPart.INDEX, index)):
            path = self.describe(segment_id, part)
            temporary = path + layout.TEMPORARY_SUFFIX
            with self._opened(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, "write") as fd:
                self._fs.pwrite(fd, _writable(content), 0)
                self._fs.fsync(fd)
            with _reported("rename to", path):
                self._fs.rename(temporary, path)
        self._sync_names()

    def put_index(self, segment_id: int, index: Buffer) -> None:
        """Durably replace the index of a segment; the old one is there until then."""
        path = self.describe(segment_id, SegmentPart.INDEX)
        with _reported("write", path):
            replace_file(self._fs, path, bytes(index))

    def append(
        self, segment_id: int, data_offset: int, data: Buffer, index_offset: int, index: Buffer
    ) -> None:
        """Write at the known ends, data first; what a failed append left behind them is cut off.

        An index offset of 0 creates the segment. Nothing is durable before `sync`.
        """
        flags = os.O_RDWR
        if index_offset == 0:
            flags |= os.O_CREAT
            with _reported("create the directory", self.directory):
                self._fs.makedirs(self.directory)
        data_path = self.describe(segment_id, SegmentPart.DATA)
        index_path = self.describe(segment_id, SegmentPart.INDEX)
        with (
            self._opened(data_path, flags, "append to") as data_fd,
            self._opened(index_path, flags, "append to") as index_fd,
        ):
            # The index first: none of its entries may ever refer to bytes of another append.
            self._cut(index_fd, index_path, index_offset)
            self._cut(data_fd, data_path, data_offset)
            # Both files are open, so each write says for itself which one failed.
            with _reported("append to", data_path):
                self._fs.pwrite(data_fd, _writable(data), data_offset)
            with _reported("append to", index_path):
                self._fs.pwrite(index_fd, _writable(index), index_offset)

    def sync(self, segment_id: int, *, created: bool) -> None:
        """Make what was appended durable, data before index; the names too if it was `created`."""
        for part in (SegmentPart.DATA, SegmentPart.INDEX):
            with self._opened(self.describe(segment_id, part), os.O_RDWR, "sync") as fd:
                self._fs.fdatasync(fd)
        if created:
            self._sync_names()

    def trim(self, segment_id: int, data_length: int, index_length: int) -> None:
        """Durably cut both parts to these lengths; `Corrupt` if one is shorter.

        The index goes first, so that it never refers to nothing.
        """
        for part, length in ((SegmentPart.INDEX, index_length), (SegmentPart.DATA, data_length)):
            path = self.describe(segment_id, part)
            with self._opened(path, os.O_RDWR, "cut") as fd:
                if self._cut(fd, path, length):
                    self._fs.fsync(fd)

    def read(self, segment_id: int, part: SegmentPart, offset: int, length: int | None = None) -> bytes:
        """Return exactly `length` bytes (None: all to the end); `Corrupt` if there are fewer."""
        path = self.describe(segment_id, part)
        with self._opened(path, os.O_RDONLY, "read") as fd:
            if length is None:
                length = max(0, self._fs.size(fd) - offset)
            return self._read_all(fd, path, offset, length)

    def map(self, segment_id: int, part: SegmentPart, length: int) -> Buffer:
        """Return the first `length` bytes as a mapping."""
        path = self.describe(segment_id, part)
        with self._opened(path, os.O_RDONLY, "map") as fd:
            # Memory behind the end of a file faults when it is read, so check before mapping.
            self._check_length(fd, path, length)
            return cast("Buffer", Mapping(fd, length, False)) if length else b""

    def map_heads(self, segment_id: int, index: bytes, length: int, *, is_alone: bool) -> Buffer:
        """Return the data, of which only headers, nodes, tags and deletion marks have to be right.

        `is_alone`: files may be changed.
        """
        return self.map(segment_id, SegmentPart.DATA, length)

    def mark_deleted(self, segment_id: int, marks: Sequence[Mark]) -> None:
        """Durably mark records as deleted in both parts.

        Single bytes, so no crash can tear one.
        """
        places = [(mark.data_offset, layout.SEGMENT_DELETED) for mark in marks]
        self._write_bytes(segment_id, SegmentPart.DATA, places)
        places = [(mark.index_offset, mark.index_flags) for mark in marks]
        self._write_bytes(segment_id, SegmentPart.INDEX, places)

    def _write_bytes(self, segment_id: int, part: SegmentPart, places: Sequence[tuple[int, int]]) -> None:
        """Durably write single bytes, each given by its offset and value."""
        path = self.describe(segment_id, part)
        with self._opened(path, os.O_RDWR, "mark records in") as fd:
            self._check_length(fd, path, max((offset + 1 for offset, _ in places), default=0))
            for offset, value in places:
                self._fs.pwrite(fd, bytes((value,)), offset)
            self._fs.fdatasync(fd)

    def keep_damaged(self, segment_id: int) -> None:
        """Durably rename what is left of a segment that is given up; it is not read any more."""
        for part in SegmentPart:
            path = self.describe(segment_id, part)
            with _reported("rename", path), suppress(FileNotFoundError):
                self._fs.rename(path, path + layout.DAMAGED_SUFFIX)
        with _reported("sync the directory", self.directory), suppress(FileNotFoundError):
            self._fs.fsync_dir(self.directory)

    def delete(self, segment_ids: Sequence[int]) -> None:
        """Durably remove segments; those that are not there are fine.

        The data file gets a temporary name first: an index beside `.data.tmp` is a removal that
        began, which is never mistaken for a segment whose data file was lost.
        """
        for segment_id in segment_ids:
            path = self.describe(segment_id, SegmentPart.DATA)
            with _reported("remove", path), suppress(FileNotFoundError):
                self._fs.rename(path, path + layout.TEMPORARY_SUFFIX)
            self._finish_delete(segment_id)
        with _reported("sync the directory", self.directory), suppress(FileNotFoundError):
            self._fs.fsync_dir(self.directory)

    def _finish_delete(self, segment_id: int) -> None:
        index_path = self.describe(segment_id, SegmentPart.INDEX)
        data_path = self.describe(segment_id, SegmentPart.DATA)
        for path in (index_path, data_path + layout.TEMPORARY_SUFFIX):
            self._unlink(path)

    def _unlink(self, path: str) -> None:
        with _reported("remove", path), suppress(FileNotFoundError):
            self._fs.unlink(path)

    def list(self) -> list[int]:
        """Return the ids of all complete segments, ascending."""
        return [*self.listing().complete]

    def listing(self) -> Listing:
        """Return everything that is there, leftovers of crashes included.

        One look at the directory, `CorruptMetadata` for a foreign name.
        """
        with _reported("list the directory", self.directory):
            try:
                names = self._fs.listdir(self.directory)
            except FileNotFoundError:
                return Listing()
        data: set[int] = set()
        index: set[int] = set()
        temporary: list[str] = []
        for name in names:
            if name.endswith(layout.TEMPORARY_SUFFIX):
                temporary.append(name)
            elif (segment_id := layout.SEGMENT_DATA.number(name)) is not None:
                data.add(segment_id)
            elif (segment_id := layout.SEGMENT_INDEX.number(name)) is not None:
                index.add(segment_id)
            elif not name.endswith(layout.DAMAGED_SUFFIX):
                raise CorruptMetadata(
                    f"{os.path.join(self.directory, name)} is no file of a topic; move it elsewhere"
                )
        leaving = {
            segment_id
            for segment_id in index - data
            if layout.SEGMENT_DATA.name(segment_id) + layout.TEMPORARY_SUFFIX in temporary
        }
        return Listing(
            complete=tuple(sorted(data & index)),
            data_only=tuple(sorted(data - index)),
            index_only=tuple(sorted(index - data - leaving)),
            leaving=tuple(sorted(leaving)),
            temporary=tuple(temporary),
        )

    def holds_just(self, segment_ids: Sequence[int]) -> bool:
        """Whether there are these segments, complete, and nothing else at all."""
        with _reported("list", self.directory):
            try:
                names = self._fs.listdir(self.directory)
            except FileNotFoundError:
                names = []
        expected = {naming(segment_id) for segment_id in segment_ids for naming in _NAMES.values()}
        return len(names) == len(expected) and expected.issuperset(names)

    def read_index(self, segment_id: int, index_length: int, data_length: int) -> bytes | None:
        """Return the index if both parts have exactly these lengths, else None."""
        if self.length(segment_id, SegmentPart.DATA) != data_length:
            return None
        with self._opened(self.describe(segment_id, SegmentPart.INDEX), os.O_RDONLY, "read") as fd:
            content = self._fs.pread(fd, index_length + 1, 0)
        return content if len(content) == index_length else None

    def remove_leftovers(self, listing: Listing) -> None:
        """Remove temporary files and lone data files, and finish removals that had begun."""
        for segment_id in listing.leaving:
            self._finish_delete(segment_id)
        for segment_id in listing.data_only:
            self._unlink(self.describe(segment_id, SegmentPart.DATA))
        for name in listing.temporary:
            self._unlink(os.path.join(self.directory, name))
        if listing.leaving or listing.data_only or listing.temporary:
            # Else one may come back with the next power loss, when its seqs are long past.
            with _reported("sync the directory", self.directory):
                self._fs.fsync_dir(self.directory)

    def exists(self, segment_id: int, part: SegmentPart) -> bool:
        """Whether a part is there."""
        path = self.describe(segment_id, part)
        with _reported("look for", path):
            return self._fs.exists(path)

    def length(self, segment_id: int, part: SegmentPart) -> int:
        """Return the length of a part."""
        with self._opened(self.describe(segment_id, part), os.O_RDONLY, "read") as fd:
            return self._fs.size(fd)

    @contextmanager
    def _opened(self, path: str, flags: int, action: str) -> Iterator[int]:
        """Open a part for a block; whatever the operating system refuses in it becomes an `Io`."""
        with _reported(action, path):
            try:
                fd = self._fs.open(path, flags)
            except FileNotFoundError as error:
                raise Corrupt(f"{path} is missing; restore it from a backup") from error
            try:
                yield fd
            finally:
                self._fs.close(fd)

    def _read_all(self, fd: int, path: str, offset: int, length: int) -> bytes:
        content = self._fs.pread(fd, length, offset)
        while len(content) < length:
            # A read may be short for other reasons than the end (a signal, the 2 GiB limit).
            more = self._fs.pread(fd, length - len(content), offset + len(content))
            if not more:
                raise _too_short(path, offset + len(content), offset + length)
            content += more
        return content

    def _check_length(self, fd: int, path: str, length: int) -> None:
        if (found := self._fs.size(fd)) < length:
            raise _too_short(path, found, length)

    def _cut(self, fd: int, path: str, length: int) -> bool:
        """Set the length of an open part, which must not be shorter; whether it was longer."""
        with _reported("cut", path):
            found = self._fs.size(fd)
            if found < length:
                raise _too_short(path, found, length)
            if found > length:
                self._fs.truncate(fd, length)
            return found > length

    def _sync_names(self) -> None:
        # The directory above as well, whether or not this call created ours: an earlier one may have
        # created it and failed before it was synced.
        for directory in (self.directory, os.path.dirname(self.directory)):
            with _reported("sync the directory", directory):
                self._fs.fsync_dir(directory)


def list_topics(fs: Fs, root: str) -> list[int]:
    """Return the ids of all topics with a directory below `root`, ascending; finishes deletions.

    Runs at start, before anything else uses `root`. A foreign name is `CorruptMetadata`.
    """
    with _reported("list the directory", root):
        try:
            names = fs.listdir(root)
        except FileNotFoundError:
            return []
    topic_ids = []
    for name in names:
        topic_id = layout.TOPIC_DIR.number(name.removesuffix(DELETED_TOPIC_SUFFIX))
        if topic_id is None:
            raise CorruptMetadata(f"{os.path.join(root, name)} is no directory of a topic; move it elsewhere")
        if name.endswith(DELETED_TOPIC_SUFFIX):
            _remove_directory(fs, os.path.join(root, name))
        else:
            topic_ids.append(topic_id)
    return sorted(topic_ids)


def delete_topic(fs: Fs, root: str, topic_id: int) -> None:
    """Remove everything a topic has below `root`, by one durable rename first; may be repeated."""
    path = os.path.join(root, layout.TOPIC_DIR.name(topic_id))
    gone = path + DELETED_TOPIC_SUFFIX
    with _reported("remove the directory", path), suppress(FileNotFoundError):
        fs.rename(path, gone)
        fs.fsync_dir(root)
    _remove_directory(fs, gone)


def _remove_directory(fs: Fs, path: str) -> None:
    with _reported("remove the directory", path), suppress(FileNotFoundError):
        for name in fs.listdir(path):
            fs.unlink(os.path.join(path, name))
        fs.rmdir(path)


@contextmanager
def _reported(action: str, path: str) -> Iterator[None]:
    """Turn an `OSError` of a block into an `Io` that names the file."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise Io(f"cannot {action} {path}: {reason}; check the disk and try again", error.errno) from error


def _too_short(path: str, found: int, wanted: int) -> Corrupt:
    return Corrupt(
        f"{path} ends at byte {found} but must reach byte {wanted}; bytes were lost, restore it from a backup"
    )


def _writable(content: Buffer) -> bytes:
    # `Fs.pwrite` takes whatever `os.pwrite` takes; a view saves the copy of a whole segment.
    return cast(bytes, memoryview(content))
