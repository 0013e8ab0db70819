"""What a data directory holds, seen from outside and in bulk: which records lie where, and what is missing.

Owns the plan of a read of whole segments and log files; changes nothing and takes no lock. Everything that an
engine would find at a start counts: snapshot, segments of both tiers, deletion marks, floors, expiry, and the
log, with the deletes and the router copies in it. So a directory that an engine has open is seen as of this
moment, up to the last byte that was written to its log, and one that was closed in order or killed is seen
whole. Pieces travel to other processes, which open the files by themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from everlog.clock import Clock, SystemClock
from everlog.errors import Corrupt, Io, TopicNotFound
from everlog.fs import OsFs, read_file
from everlog.native.queue.ring import Mapping
from everlog.seq_ranges import Gap, SeqRange
from everlog.topics.config import EngineSettings
from everlog.topics.core import Core
from everlog.topics.reading import tombstone_for
from everlog.topics.retention import sweep
from everlog.topics.storage import layout
from everlog.topics.storage.recovery import recover_store
from everlog.topics.storage.segment_loading import index_entries
from everlog.topics.storage.segment_store import SegmentPart
from everlog.topics.storage.segments import SegmentInfo
from everlog.topics.storage.store import Store
from everlog.topics.storage.syncs import InlineSyncs
from everlog.topics.storage.tier import Tier
from everlog.topics.storage.wal_files import map_file
from everlog.topics.topic import Topic

RECREATED: Final = "recreated"
PIECE_RECORDS: Final = 65536
PIECE_BYTES: Final = 8 << 20
OPEN_ATTEMPTS_MAX: Final = 100
_FILES: Final = OsFs()
_SEQ: Final = np.dtype("<u8")
_Value = TypeVar("_Value")
Seqs = NDArray[np.uint64]


class SegmentPiece(NamedTuple):
    """Records from `first` up to before `end` of one segment; `dead` are deleted but not yet marked there.

    `folders` are where the segment is looked for, the first that has it counts.
    """

    folders: tuple[str, ...]
    segment_id: int
    data_bytes: int
    first: int
    end: int
    dead: bytes


class FramesPiece(NamedTuple):
    """Log frames at known places: of a log file, or in `frames` if they are in no file."""

    path: str
    frames: bytes
    first: int
    end: int
    seqs: bytes
    offsets: bytes


Piece = SegmentPiece | FramesPiece


class Frames(NamedTuple):
    """Frames that can be read now: the bytes they lie in, and which record is where."""

    name: str
    buffer: Mapping | bytes
    seqs: Seqs
    offsets: Seqs
    in_log: bool


class ReadOnlyFs(OsFs):
    """The operating system's files, read only; cuts and removals are remembered instead of done.

    Recovery relies on finding its own repairs. No lock is taken, so it works beside a running engine.
    """

    def __init__(self, boot_id: str) -> None:
        """Take `boot_id` for the run of the machine; see `Fs.boot_id`."""
        self._boot_id = boot_id
        self._lengths: dict[str, int] = {}
        self._gone: set[str] = set()
        self._paths: dict[int, str] = {}

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        """Open for reading, whatever was asked; a file that would be created is an empty one."""
        path = os.path.abspath(path)
        if path in self._gone:
            raise FileNotFoundError(2, "removed in this view", path)
        is_new = bool(flags & os.O_CREAT) and not os.path.exists(path)
        fd = super().open(os.devnull if is_new else path, os.O_RDONLY)
        self._paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        """Close a descriptor from `open`."""
        self._paths.pop(fd, None)
        super().close(fd)

    def size(self, fd: int) -> int:
        """The length of the file, or what it was cut to."""
        found = super().size(fd)
        return min(found, self._lengths.get(self._paths[fd], found))

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Read nothing behind a cut."""
        return super().pread(fd, max(0, min(length, self.size(fd) - offset)), offset)

    def truncate(self, fd: int, length: int) -> None:
        """Remember the cut."""
        self._lengths[self._paths[fd]] = length

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        """Write nothing; what is written behind a cut makes the file longer again, as far as it goes."""
        path = self._paths[fd]
        if path in self._lengths:
            self._lengths[path] = max(self._lengths[path], offset + len(data))

    def unlink(self, path: str) -> None:
        """Remember that the file is gone."""
        self._gone.add(os.path.abspath(path))

    def rename(self, source: str, target: str) -> None:
        """Remember that the source is gone; the target stays what it was."""
        self._gone.add(os.path.abspath(source))

    def rename_noreplace(self, source: str, target: str) -> None:
        """Remember that the source is gone, as `rename` does."""
        self.rename(source, target)

    def listdir(self, path: str) -> list[str]:
        """Leave out what is gone."""
        folder = os.path.abspath(path)
        if folder in self._gone:
            raise FileNotFoundError(2, "removed in this view", path)
        return [name for name in super().listdir(path) if os.path.join(folder, name) not in self._gone]

    def exists(self, path: str) -> bool:
        """Whether `path` exists and was not removed here."""
        return os.path.abspath(path) not in self._gone and super().exists(path)

    def rmdir(self, path: str) -> None:
        """Remember that the directory is gone."""
        self._gone.add(os.path.abspath(path))

    def _do_nothing(self, *_: object, **__: object) -> None:
        """Nothing is written, so nothing is to be synced, and nothing is locked."""

    makedirs = allocate = fsync = fdatasync = fsync_dir = sync_file_system = msync = unlock = _do_nothing

    def boot_id(self) -> str:
        """Name this run of the machine: as long as it stays the same, nothing written was lost."""
        return self._boot_id

    def try_lock(self, fd: int) -> bool:
        """Take no lock: reading needs none."""
        return True


class BulkView:
    """A data directory as of one moment."""

    def __init__(self, data_dir: str, cold_dir: str | None = None, clock: Clock | None = None) -> None:
        """Find out what `data_dir` holds; nothing of it stays open."""
        if not os.path.isdir(os.path.join(data_dir, layout.META_DIR)):
            raise Io(f"there is no data directory {data_dir}; check the path")
        self._data_dir = data_dir
        self._cold_dir = cold_dir
        self._clock = clock or SystemClock()
        self._core, self._store = self._again(self._open)
        self._log_paths = {file.source: file.path for file in self._store.old_files}
        for topic in self._core.topics.values():
            topic.floors.caps_due = True
            sweep(self._core, topic, self._core.now_ms())

    def _open(self) -> tuple[Core, Store]:
        settings = EngineSettings(shards=1, cold_dir=self._cold_dir)
        core = Core(settings, self._clock, ReadOnlyFs(self._boot_id()))
        store = Store(core, self._data_dir, InlineSyncs())
        try:
            recover_store(core, store)
        finally:
            store.abandon()
        return core, store

    def _boot_id(self) -> str:
        """The run of the machine that used the directory last.

        After a stop of the machine an engine assumes that the last writes may be lost, and hides seqs that
        may have been assigned. A reader need not: what is there counts.
        """
        try:
            return read_file(_FILES, os.path.join(self._data_dir, layout.BOOT_FILE)).decode()
        except FileNotFoundError:
            return ""

    def _again(self, attempt: Callable[[], _Value]) -> _Value:
        """Try again while an engine changes files meanwhile; what fails twice with the same files, fails."""
        failed_with: list[str] | None = None
        for _ in range(OPEN_ATTEMPTS_MAX):
            try:
                return attempt()
            except (Corrupt, Io, OSError) as error:
                found = self._names()
                if found == failed_with:
                    if isinstance(error, OSError):
                        raise Io(f"cannot read {self._data_dir}: {error}", error.errno) from error
                    raise
                failed_with = found
        return attempt()

    def _names(self) -> list[str]:
        """All files of the directory: checkpoints and removals change their names, appends do not matter."""
        found = []
        for root in (self._data_dir, *([self._cold_dir] if self._cold_dir else [])):
            for folder, _, names in os.walk(root):
                found += [os.path.join(folder, name) for name in names]
        return sorted(found)

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return sorted(self._core.topics)

    def bounds(self, name: str) -> SeqRange:
        """Return what a topic holds."""
        topic = self._topic(name)
        return SeqRange(topic.earliest_seq, topic.visible + 1)

    def instance(self, name: str) -> str | None:
        """Return the epoch of a topic, which no other of the same name has; None if there is no topic."""
        topic = self._core.topics.get(name)
        return None if topic is None else str(topic.epoch)

    def seq_at_time(self, name: str, ts_ms: int) -> int:
        """Return the seq of the first record at or after this time; the next one's if there is none."""
        topic = self._topic(name)
        return topic.log.find_ts(ts_ms, topic.visible + 1)

    def _topic(self, name: str) -> Topic:
        topic = self._core.topics.get(name)
        if topic is None:
            raise TopicNotFound(f"there is no topic {name!r} in {self._data_dir}")
        return topic

    # --- Planning ----------------------------------------------------------------------------------------

    def plan(self, name: str, first: int, end: int) -> list[Piece | Gap]:
        """Return where the live records from `first` up to before `end` lie, and the gaps, in order."""
        topic = self._topic(name)
        plan: list[Piece | Gap] = []
        at = max(1, first)
        while at < end:
            tombstone = tombstone_for(topic, at - 1)
            if tombstone is not None and tombstone.reason != RECREATED:
                gap_first, gap_end = max(at, tombstone.gap_from), min(tombstone.gap_to + 1, end)
                if gap_first < gap_end:
                    plan.append(Gap(gap_first, gap_end, tombstone.reason))
                at = tombstone.gap_to + 1
                continue
            if at > topic.visible:
                # Seqs beyond the head: the topic was deleted and created again.
                plan.append(Gap(at, end, RECREATED))
                break
            holes = [hole for hole, _, _ in topic.floors.gaps() if hole >= at]
            stop = min(end, topic.visible + 1, *holes)
            plan += self._pieces(topic, at, stop)
            at = stop
        return plan

    def _pieces(self, topic: Topic, first: int, end: int) -> Iterator[Piece]:
        log = topic.log
        first = max(first, log.first_live)
        for info in topic.storage.segments.infos if topic.storage.segments is not None else ():
            piece_first, piece_end = max(first, info.first_seq), min(end, info.last_seq + 1)
            if piece_first < piece_end and log.live_in(piece_first, piece_end)[0]:
                yield self._segment_piece(topic, info, piece_first, piece_end)
        first = max(first, topic.storage.saved_seq + 1, log.base_seq)
        for at in range(first, end, PIECE_RECORDS):
            yield from self._log_pieces(topic, at, min(at + PIECE_RECORDS, end))

    def _segment_piece(self, topic: Topic, info: SegmentInfo, first: int, end: int) -> SegmentPiece:
        dead = topic.log.dead_seqs(first, end - 1)
        if len(dead):
            dead = self._unmarked(topic, info, dead)
        name = layout.TOPIC_DIR.name(topic.topic_id)
        # A hot segment may move to the cold tier until it is read; the other way round never.
        roots = self._store.topic_roots if info.tier is Tier.HOT else self._store.topic_roots[1:]
        folders = tuple(os.path.join(root, name) for root in roots)
        return SegmentPiece(folders, info.first_seq, info.data_bytes, first, end, dead.tobytes())

    def _unmarked(self, topic: Topic, info: SegmentInfo, dead: Seqs) -> Seqs:
        """Return those of the dead that the segment's index does not show as deleted."""
        tier = self._store.tier_of(topic.topic_id)
        try:
            index = tier.read(info.first_seq, SegmentPart.INDEX, 0, info.index_bytes)
        except Corrupt:
            return dead  # an engine has just removed it; a reader of the piece will find out
        flags = index_entries(index)["flags"][(dead - np.uint64(info.first_seq)).astype(np.intp)]
        unmarked: Seqs = dead[flags & layout.INDEX_FLAG_DELETED == 0]
        return unmarked

    def _log_pieces(self, topic: Topic, first: int, end: int) -> Iterator[FramesPiece]:
        """Yield the records that are in no segment yet, a piece for each run that lies in one buffer."""
        dead = topic.log.dead_seqs(first, end - 1)
        seqs = np.setdiff1d(np.arange(first, end, dtype=_SEQ), dead, assume_unique=True)
        places = topic.log.places(seqs)
        runs = np.flatnonzero(np.diff(places["source"].astype(np.int64))) + 1
        for run in np.split(places, runs):
            if not len(run):
                continue
            source = int(run["source"][0])
            path = self._log_paths.get(source, "")
            if path:
                yield _frames_piece(path, b"", run, run["offset"])
                continue
            # Copies that a router made are in no frame of the log: their bytes go along.
            buffer = memoryview(self._core.sources.buffer(source) or b"")
            for part in _parts(run):
                ends = part["offset"].astype(np.int64) + part["size"]
                bytes_of = [bytes(buffer[at:to]) for at, to in zip(part["offset"], ends, strict=True)]
                offsets = np.concatenate(([0], np.cumsum(part["size"], dtype=np.uint64)[:-1]))
                yield _frames_piece("", b"".join(bytes_of), part, offsets)


def _parts(run: NDArray[np.void]) -> list[NDArray[np.void]]:
    """Cut a run of places where a piece would become too large to travel."""
    number = np.cumsum(run["size"], dtype=np.int64) // PIECE_BYTES
    return np.split(run, np.flatnonzero(np.diff(number)) + 1)


def _frames_piece(path: str, frames: bytes, run: NDArray[np.void], offsets: NDArray[np.void]) -> FramesPiece:
    seqs = run["seq"]
    first, end = int(seqs[0]), int(seqs[-1]) + 1
    return FramesPiece(path, frames, first, end, seqs.tobytes(), offsets.astype(_SEQ).tobytes())


# --- Reading, in any process -----------------------------------------------------------------------------


def open_piece(piece: Piece) -> Frames | None:
    """Return the frames of a piece; None if its files are gone since it was planned."""
    if isinstance(piece, SegmentPiece):
        for folder in piece.folders:
            found = _open_segment(piece, folder)
            if found is not None:
                return found
        return None
    seqs, offsets = (np.frombuffer(raw, dtype=_SEQ) for raw in (piece.seqs, piece.offsets))
    if not piece.path:
        return Frames("the log", piece.frames, seqs, offsets, in_log=True)
    mapping = _map(piece.path, 1)
    return None if mapping is None else Frames(piece.path, mapping, seqs, offsets, in_log=True)


def _open_segment(piece: SegmentPiece, folder: str) -> Frames | None:
    data_path = os.path.join(folder, layout.SEGMENT_DATA.name(piece.segment_id))
    index_path = os.path.join(folder, layout.SEGMENT_INDEX.name(piece.segment_id))
    data, index = _map(data_path, piece.data_bytes), _map(index_path, layout.INDEX_ENTRY_SIZE)
    if data is None or index is None:
        return None
    entries = index_entries(index)[piece.first - piece.segment_id : piece.end - piece.segment_id]
    if len(entries) < piece.end - piece.first:
        raise Corrupt(f"{index_path} ends before record {piece.end - 1}; restore it from a backup")
    alive = (entries["size"] > 0) & (entries["flags"] & layout.INDEX_FLAG_DELETED == 0)
    dead = np.frombuffer(piece.dead, dtype=_SEQ)
    alive[(dead - np.uint64(piece.first)).astype(np.intp)] = False
    rows = np.flatnonzero(alive)
    seqs = rows.astype(_SEQ) + np.uint64(piece.first)
    return Frames(data_path, data, seqs, entries["offset"][rows].astype(_SEQ), in_log=False)


def _map(path: str, least_bytes: int) -> Mapping | None:
    """Map a file; None if it is gone."""
    try:
        mapping = map_file(_FILES, path)
    except FileNotFoundError:
        return None
    size = 0 if mapping is None else len(mapping)
    if size < least_bytes:
        raise Corrupt(f"{path} has {size} bytes and should have {least_bytes}; restore it from a backup")
    return mapping
