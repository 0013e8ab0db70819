"""Check every byte of a stopped data directory: log frames, segments, indexes, snapshots, names.

Owns the checks and changes nothing, so it finds what a start would only run into later: a damaged record
that was not read yet, an index that is wrong, a file that does not belong here. It holds the lock while it
looks, so that no engine opens the directory meanwhile.

    corrupt_frame     a frame of the log or of a segment does not match its lengths or its checksum
    bad_entry         a frame is whole, but what it says cannot be read
    wrong_name        a log file, snapshot or segment is another one by its content
    unfinished_file   a log file ends before what was synced, or without the end frame that it needs
    missing_file      a log file that was synced is not there
    bad_synced_file   the file that says up to where the log was synced is damaged or missing
    bad_index         an index entry and its frame, or two segments, contradict each other
    orphan            a damaged log file that an earlier start has copied before it saved what is sound
    missing_part      a segment without its index, or an index without its segment
    bad_snapshot      a snapshot cannot be read
    unknown_file      a name that means nothing here
    unreadable        the operating system refuses to read
    torn_tail         note: the end of the newest file was not written whole; the next start cuts it off
    leftover          note: something unfinished that the next start removes
    given_up          note: a damaged record that a repair gave up; readers get a tombstone
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from xxhash import xxh3_64_hexdigest, xxh3_128_hexdigest

from everlog.errors import Corrupt, CorruptMetadata, DataDirInUse, Io, ObjectNotFound, UnsupportedVersion
from everlog.fs import Fs, close_locked, name_holder, read_file
from everlog.native.topics import log as frames
from everlog.objects import ObjectStore, open_store
from everlog.topics.storage import control, layout, snapshot
from everlog.topics.storage.log_survey import survey
from everlog.topics.storage.remote import stub_and_heads, unmarked, with_marks
from everlog.topics.storage.segment_loading import identity_of, index_entries
from everlog.topics.storage.segment_store import DELETED_TOPIC_SUFFIX
from everlog.topics.storage.synced_ends import SyncedEnd, read_ends
from everlog.topics.storage.wal_files import check_number

NOTES: Final = frozenset(("torn_tail", "leftover", "given_up"))
"""Kinds that a crash leaves and a start repairs, or that no read meets: nothing that was promised is lost."""

_FRAME_TYPES: Final = frozenset(map(int, layout.FrameType))
_RECORD_FLAGS: Final = layout.FLAG_HAS_TAG | layout.FLAG_HAS_NODE | layout.FLAG_HAS_META


class Finding(NamedTuple):
    """Something that is not as it should be: where, which kind, what it is and what to do."""

    path: str
    offset: int
    kind: str
    message: str

    @property
    def is_note(self) -> bool:
        """Whether the next start puts it right by itself."""
        return self.kind in NOTES


class Progress(NamedTuple):
    """How far a check is; the file is the one that was just looked at."""

    files_done: int
    files_total: int
    path: str


@dataclass(slots=True)
class Verification:
    """What was looked at and what was found."""

    findings: list[Finding] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    log_frames: int = 0
    records: int = 0

    @property
    def errors(self) -> list[Finding]:
        """The findings that no start repairs."""
        return [finding for finding in self.findings if not finding.is_note]

    def add(self, path: str, offset: int, kind: str, message: str) -> None:
        """Report a finding."""
        self.findings.append(Finding(path, offset, kind, message))


def verify(
    path: str,
    fs: Fs,
    cold_dir: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Verification:
    """Check a data directory that no engine has open, and its cold directory if it has one.

    Raises `DataDirInUse` if an engine has it open, `Io` if there is no such directory.
    """
    with _locked(path, fs):
        return _Verifier(fs, path, cold_dir, progress).run()


@contextmanager
def _locked(path: str, fs: Fs) -> Iterator[None]:
    """Hold the lock of the directory; without a lock file no engine can have it open."""
    lock_path = os.path.join(path, layout.LOCK_FILE)
    try:
        fs.listdir(path)
        fd = fs.open(lock_path, os.O_RDONLY)
    except FileNotFoundError as error:
        if not fs.exists(path):
            raise Io(f"there is no data directory {path}; check the path", error.errno) from error
        yield
        return
    except OSError as error:
        raise Io(f"cannot look into {path}: {error.strerror or error}", error.errno) from error
    if not fs.try_lock(fd):
        holder = name_holder(fd)
        fs.close(fd)
        raise DataDirInUse(f"{holder} has {path} open; stop it before checking")
    try:
        yield
    finally:
        close_locked(fs, fd)


class _LogFile(NamedTuple):
    """A log file of one shard."""

    number: int
    path: str


class _Segment(NamedTuple):
    """A complete segment in one tier; only the newest one of a topic may have a torn tail."""

    first_seq: int
    directory: str
    is_cold: bool
    may_be_torn: bool

    @property
    def data_path(self) -> str:
        return os.path.join(self.directory, layout.SEGMENT_DATA.name(self.first_seq))

    @property
    def index_path(self) -> str:
        return os.path.join(self.directory, layout.SEGMENT_INDEX.name(self.first_seq))


class _Verifier:
    """One run over a directory."""

    def __init__(
        self, fs: Fs, path: str, cold_dir: str | None, progress: Callable[[Progress], None] | None
    ) -> None:
        self._fs = fs
        self._path = path
        self._cold_dir = cold_dir
        self._progress = progress
        self._remote_dir = os.path.join(path, layout.REMOTE_DIR, layout.TOPICS_DIR)
        self._stores: dict[str, ObjectStore] = {}
        self._total = 0
        # What the newest readable snapshot says: seqs that must be in segments, where the log is needed.
        self._saved_through: dict[str, int] = {}
        self._listed: dict[str, set[int]] | None = None
        self._topics: dict[str, control.TopicRecord] = {}
        self._replay_starts: dict[int, int] = {}
        self._replayed_whole_from = 0
        self._has_synced_file = False
        self._ends: dict[int, SyncedEnd] = {}
        self._is_same_boot = False
        self._result = Verification()

    def run(self) -> Verification:
        files = (
            layout.LOCK_FILE,
            layout.BOOT_FILE,
            layout.SYNCED_FILE,
            layout.OWNER_FILE,
            layout.RESERVE_FILE,
        )
        known = {*files, layout.META_DIR, layout.WAL_DIR, layout.TOPICS_DIR, layout.REMOTE_DIR}
        for name in self._names(self._path):
            base = name.removesuffix(layout.TEMPORARY_SUFFIX)
            if layout.SNAPSHOT_COPY.number(name) is not None:
                continue
            if name != base and (base in files or layout.SNAPSHOT_COPY.number(base) is not None):
                self._leftover(os.path.join(self._path, name), "a file that was not finished")
            elif name not in known:
                self._unknown(os.path.join(self._path, name))
        # Snapshots first: they say which segments and log files count.
        for path in self._snapshot_files():
            self._check_snapshot(path)
        self._read_ends()
        logs = self._log_files()
        segments = self._segments()
        self._total = self._result.files + sum(map(len, logs)) + 2 * len(segments)
        for shard in logs:
            self._check_shard(shard)
        numbers = sorted(file.number for shard in logs for file in shard)
        is_whole = bool(numbers) and numbers == list(range(1, len(numbers) + 1))
        if self._listed is None and not is_whole and (segments or self._result.log_frames):
            message = "no snapshot can be read, and the log does not reach back to the beginning"
            advice = "restore the directory from a backup"
            path = os.path.join(self._path, layout.META_DIR)
            self._result.add(path, 0, "no_snapshot", f"{message}; {advice}")
        self._check_missing(set(numbers))
        self._check_segments(segments)
        return self._result

    # --- Files -------------------------------------------------------------------------------------------

    def _names(self, directory: str) -> list[str]:
        try:
            return self._fs.listdir(directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            self._unreadable(directory, error)
            return []

    def _read(self, path: str) -> bytes | None:
        """Read a whole file; None, with a finding, if that cannot be done."""
        try:
            content = read_file(self._fs, path)
        except OSError as error:
            self._unreadable(path, error)
            return None
        self._result.files += 1
        self._result.bytes += len(content)
        if self._progress is not None:
            self._progress(Progress(self._result.files, max(self._total, self._result.files), path))
        return content

    def _unreadable(self, path: str, error: OSError) -> None:
        reason = error.strerror or str(error)
        self._result.add(path, 0, "unreadable", f"{reason}; check the permissions and the disk")

    def _unknown(self, path: str) -> None:
        self._result.add(path, 0, "unknown_file", "nothing of everlog has this name; move it elsewhere")

    def _leftover(self, path: str, what: str) -> None:
        self._result.add(path, 0, "leftover", f"{what}; the next start removes it")

    # --- Snapshots ---------------------------------------------------------------------------------------

    def _snapshot_files(self) -> list[str]:
        directory = os.path.join(self._path, layout.META_DIR)
        found: list[str] = []
        for name in self._names(directory):
            path = os.path.join(directory, name)
            if layout.SNAPSHOT_FILE.number(name) is not None:
                found.append(path)
            elif name.endswith(layout.TEMPORARY_SUFFIX):
                self._leftover(path, "a snapshot that was not finished")
            else:
                self._unknown(path)
        newest = max(found, default="")
        for name in self._names(self._path):
            number = layout.SNAPSHOT_COPY.number(name)
            if number is None:
                continue
            path = os.path.join(directory, layout.SNAPSHOT_FILE.name(number))
            if path not in found and path < newest:
                self._leftover(os.path.join(self._path, name), "a copy of a snapshot that was removed")
            elif path not in found:
                self._result.add(path, 0, "bad_snapshot", "it is missing; its copy is used instead")
            found.append(os.path.join(self._path, name))
        # What counts is the newest one, so a copy comes right before the snapshot of its number.
        return sorted(found, key=_snapshot_order)

    def _check_snapshot(self, path: str) -> None:
        content = self._read(path)
        if content is None:
            return
        try:
            reason = snapshot.damage(path, content)
            if reason is None:
                payload = content[layout.SNAPSHOT_HEADER_SIZE : -layout.SNAPSHOT_TRAILER_SIZE]
                body = control.decode(payload, control.SnapshotBody)
                snapshot.check_number(
                    os.path.join(self._path, layout.META_DIR), _snapshot_order(path)[0], body.number
                )
                topics = [control.decode(topic, control.TopicRecord) for topic in body.topics]
                # Ascending order: what counts is what the newest readable snapshot says.
                self._saved_through = {
                    layout.TOPIC_DIR.name(each.topic_id): each.saved_seq for each in topics
                }
                self._listed = {
                    layout.TOPIC_DIR.name(each.topic_id): {first_seq for first_seq, _, _ in each.segments}
                    for each in topics
                }
                self._topics = {layout.TOPIC_DIR.name(each.topic_id): each for each in topics}
                self._replay_starts = dict(body.starts)
                self._replayed_whole_from = body.next_file_number
                self._has_synced_file = body.has_synced_file
        except CorruptMetadata as error:
            self._result.add(path, 0, "wrong_name", str(error))
        except (UnsupportedVersion, Corrupt) as error:
            reason = str(error)
        if reason is not None:
            advice = "an older snapshot and the log are used instead if they are there"
            self._result.add(path, 0, "bad_snapshot", f"{reason}; {advice}")

    # --- The log -----------------------------------------------------------------------------------------

    def _log_files(self) -> list[list[_LogFile]]:
        """The log files of each shard, in the order of their numbers."""
        directory = os.path.join(self._path, layout.WAL_DIR)
        flat: list[_LogFile] = []
        shards: list[list[_LogFile]] = [flat]
        for name in self._names(directory):
            if layout.SHARD_DIR.number(name) is None:
                flat += self._log_file(directory, name)
                continue
            inner = os.path.join(directory, name)
            shards.append([file for each in self._names(inner) for file in self._log_file(inner, each)])
        return [sorted(shard) for shard in shards]

    def _log_file(self, directory: str, name: str) -> list[_LogFile]:
        path = os.path.join(directory, name)
        number = layout.WAL_FILE.number(name)
        if number is not None:
            return [_LogFile(number, path)]
        if name.endswith(layout.TEMPORARY_SUFFIX):
            self._leftover(path, "a log file that was not finished")
        elif name.endswith((layout.DAMAGED_SUFFIX, layout.ORPHAN_SUFFIX)):
            message = "a start found damage in this log file and made this copy of it; records are missing"
            self._result.add(path, 0, "orphan", message)
        else:
            self._unknown(path)
        return []

    def _check_shard(self, files: list[_LogFile]) -> None:
        # Newest first: only the newest file with frames may end anyhow. Files behind it were made ahead.
        is_newest = True
        for file in reversed(files):
            content = self._read(file.path)
            if content is None:
                continue
            start = 0
            if not content and file.number not in self._ends:
                self._leftover(file.path, "a log file that was being created")
                continue
            if file.number < self._replayed_whole_from:
                if file.number not in self._replay_starts:
                    self._leftover(file.path, "a log file that a snapshot has made unnecessary")
                    continue
                start = self._replay_starts[file.number]
            end = self._ends.get(file.number)
            if is_newest and not any(content[start : start + 4]) and (end is None or end.offset <= start):
                continue
            self._check_log(file, content.ljust(start, b"\0"), start, is_newest=is_newest)
            is_newest = False

    def _check_log(self, file: _LogFile, content: bytes, start: int, *, is_newest: bool) -> None:
        """Check the frames from `start` on; what lies before it is in segments and never read again."""
        scan = frames.scan_log_frames(content, start)
        self._result.log_frames += scan.frames
        batch_start = self._check_entries(file.path, content, start, scan.end)
        found = survey(
            content,
            start,
            self._ends.get(file.number),
            is_last=is_newest,
            is_trusted=self._is_same_boot,
        )
        try:
            check_number(file.path, file.number, found.ends_as)
        except CorruptMetadata as error:
            self._result.add(file.path, 0, "wrong_name", str(error))
            return
        for lost in found.lost:
            is_blank = _is_blank(content[lost.offset : lost.offset + lost.size])
            what = f"{lost.size} bytes with up to {lost.records} records are " + (
                "missing" if is_blank else "damaged"
            )
            advice = "restore the file from a backup, or accept the loss with `everlog repair`"
            kind = "unfinished_file" if is_blank else "corrupt_frame"
            self._result.add(file.path, lost.offset, kind, f"{what}; {advice}")
        if not found.lost and not found.is_ended:
            end = scan.end if batch_start is None else batch_start
            is_clean = batch_start is None and _is_blank(content[end:])
            what = (
                "no end frame, as after a crash" if is_clean else f"{len(content) - end} bytes are not whole"
            )
            self._result.add(file.path, end, "torn_tail", f"{what}; the next start ends the file here")

    def _read_ends(self) -> None:
        """Read up to where the log was synced, and whether the machine has run on since."""
        path = os.path.join(self._path, layout.SYNCED_FILE)
        boot_path = os.path.join(self._path, layout.BOOT_FILE)
        try:
            found = read_ends(self._fs, path)
            boot_id = read_file(self._fs, boot_path) if self._fs.exists(boot_path) else b""
        except OSError as error:
            self._unreadable(path, error)
            return
        self._ends = found.ends
        self._is_same_boot = boot_id == self._fs.boot_id().encode()
        if found.is_missing and self._has_synced_file:
            self._result.add(path, 0, "bad_synced_file", "it is missing; the next start makes it again")
        if found.damaged_slots and self._is_same_boot:
            message = f"{found.damaged_slots} slots are damaged; the next start makes them again"
            self._result.add(path, 0, "bad_synced_file", message)

    def _check_missing(self, found: set[int]) -> None:
        for end in self._ends.values():
            is_whole = end.file_number >= self._replayed_whole_from
            needed_from = self._replay_starts.get(end.file_number, 0 if is_whole else end.offset)
            if end.file_number not in found and end.offset > needed_from:
                path = os.path.join(self._path, layout.WAL_DIR, layout.WAL_FILE.name(end.file_number))
                message = f"{end.offset} bytes of it were synced, and it is gone; restore it from a backup"
                self._result.add(path, 0, "missing_file", message)

    def _check_entries(self, path: str, content: bytes, offset: int, end: int) -> int | None:
        """Look into the whole frames; return where a batch begins that has no end, None if there is none."""
        batch_start: int | None = None
        while offset < end:
            frame_len, kind, flags = layout.LOG_HEADER.unpack_from(content, offset)[:3]
            if kind != layout.FrameType.APPEND:
                self._check_control(path, content, offset, kind)
            if flags & layout.FLAG_BATCH_CONTINUES:
                batch_start = offset if batch_start is None else batch_start
            else:
                batch_start = None
            offset += frame_len + 4
        return batch_start

    def _check_control(self, path: str, content: bytes, offset: int, kind: int) -> None:
        if kind not in _FRAME_TYPES:
            self._result.add(path, offset, "bad_entry", f"the frame has the type {kind}, which is unknown")
        elif kind in control.ENTRY_TYPES:
            try:
                control.decode(frames.read_log_frame(content, offset).data, control.ENTRY_TYPES[kind])
            except Corrupt as error:
                self._result.add(path, offset, "bad_entry", str(error))

    # --- Segments ----------------------------------------------------------------------------------------

    def _segments(self) -> list[_Segment]:
        """Find all complete segments, those of one topic in a row and ascending, hot before cold."""
        roots = [(os.path.join(self._path, layout.TOPICS_DIR), False)]
        if self._cold_dir is not None:
            roots.append((os.path.join(self._cold_dir, layout.TOPICS_DIR), True))
        roots.append((self._remote_dir, True))
        by_topic: dict[str, list[tuple[int, str, bool]]] = {}
        for root, is_cold in roots:
            for name in self._names(root):
                path = os.path.join(root, name)
                if name.endswith(DELETED_TOPIC_SUFFIX):
                    self._leftover(path, "a topic whose removal was not finished")
                elif layout.TOPIC_DIR.number(name) is None:
                    self._unknown(path)
                else:
                    found = by_topic.setdefault(name, [])
                    hot = {first_seq for first_seq, _, _ in found}
                    found += [(first_seq, path, is_cold) for first_seq in self._complete(path, hot)]
        segments: list[_Segment] = []
        for found in by_topic.values():
            newest = max((first_seq for first_seq, _, _ in found), default=0)
            copied = {first_seq for first_seq, _, is_cold in found if is_cold}
            segments += [
                _Segment(first_seq, path, is_cold, first_seq == newest and newest not in copied)
                for first_seq, path, is_cold in sorted(found, key=lambda item: (item[0], item[2]))
            ]
        return segments

    def _complete(self, directory: str, elsewhere: set[int]) -> list[int]:
        """The segments of a topic in one tier that have both parts; anything else is reported.

        Those in `elsewhere` are complete in the tier that is in force: what is here was being copied.
        """
        data: set[int] = set()
        index: set[int] = set()
        names = self._names(directory)
        for name in names:
            path = os.path.join(directory, name)
            if (first_seq := layout.SEGMENT_DATA.number(name)) is not None:
                data.add(first_seq)
            elif (first_seq := layout.SEGMENT_INDEX.number(name)) is not None:
                index.add(first_seq)
            elif name.endswith(layout.TEMPORARY_SUFFIX):
                self._leftover(path, "a file that was not finished or not wholly removed")
            elif name.endswith(layout.DAMAGED_SUFFIX):
                self._result.add(path, 0, "orphan", "a repair has given this segment up; move it elsewhere")
            else:
                self._unknown(path)
        newest = max(data & index, default=0)
        for first_seq in sorted(data - index):
            path = os.path.join(directory, layout.SEGMENT_DATA.name(first_seq))
            is_new = self._listed is None and first_seq > newest
            if first_seq in elsewhere or is_new or not self._is_listed(directory, first_seq):
                self._leftover(path, "a segment that was being created, copied or removed")
            else:
                self._result.add(path, 0, "missing_part", "its index is missing; a start makes it again")
        for first_seq in sorted(index - data):
            path = os.path.join(directory, layout.SEGMENT_INDEX.name(first_seq))
            if not self._is_listed(directory, first_seq):
                self._leftover(path, "a segment that was being removed")
            elif layout.SEGMENT_DATA.name(first_seq) + layout.TEMPORARY_SUFFIX not in names:
                self._result.add(path, 0, "missing_part", "its data is missing; restore it from a backup")
        return sorted(data & index)

    def _check_segments(self, segments: list[_Segment]) -> None:
        self._check_listed(segments)
        topic, last_seq = "", 0
        for segment in segments:
            name = os.path.basename(segment.directory)
            if name != topic:
                topic, last_seq = name, 0
            if not self._is_listed(segment.directory, segment.first_seq):
                self._leftover(segment.data_path, "a segment that the snapshot does not know")
                continue
            index = self._read(segment.index_path)
            data = self._read(segment.data_path)
            if data is not None and index is not None and segment.directory.startswith(self._remote_dir):
                data = self._read_object(segment, data, index)
            if data is None or index is None:
                continue
            # The cold copy of a segment that is still hot begins where the hot one does.
            if segment.first_seq <= last_seq and not segment.is_cold:
                message = f"the segment begins inside the one before it, which ends with seq {last_seq}"
                self._result.add(segment.data_path, 0, "bad_index", message)
            count = self._check_segment(segment, data, index)
            last_seq = max(last_seq, segment.first_seq + count - 1)

    def _read_object(self, segment: _Segment, content: bytes, index: bytes) -> bytes | None:
        """Fetch the data that a stub stands for, with the marks of the index; None if it is not sound."""
        path = segment.data_path
        try:
            stub, heads = stub_and_heads(content, path)
            if stub.url not in self._stores:
                self._stores[stub.url] = open_store(stub.url, fs=self._fs)
            data = self._stores[stub.url].get(stub.key).data
        except (Corrupt, ObjectNotFound) as error:
            self._result.add(path, 0, "missing_part", f"{error}; restore it from a backup")
            return None
        if len(data) != stub.size or xxh3_128_hexdigest(data) != stub.checksum:
            message = f"{stub.url}/{stub.key} does not match its checksum; restore it from a backup"
            self._result.add(path, 0, "bad_checksum", message)
            return None
        if len(index) != stub.index_size or unmarked(index) != stub.index_checksum:
            message = "the index does not match its checksum; restore it from a backup"
            self._result.add(segment.index_path, 0, "bad_index", message)
            return None
        if stub.version > 1 and xxh3_64_hexdigest(heads) != stub.heads_checksum:
            message = "the heads of frames do not match their checksum; the next start makes them anew"
            self._result.add(path, 0, "bad_checksum", message)
        return with_marks(data, index)

    def _is_listed(self, directory: str, first_seq: int) -> bool:
        """Whether the snapshot relies on this segment; without a snapshot any may be needed."""
        return self._listed is None or first_seq in self._listed.get(os.path.basename(directory), ())

    def _check_listed(self, segments: list[_Segment]) -> None:
        """Report segments that the snapshot lists and that are nowhere."""
        advice = "restore it from a backup"
        if not self._knows_both_tiers():
            advice = f"name the cold directory if there is one, or {advice}"
        found = {(os.path.basename(segment.directory), segment.first_seq) for segment in segments}
        for name, listed in (self._listed or {}).items():
            directory = os.path.join(self._path, layout.TOPICS_DIR, name)
            names = set(self._names(directory))
            for first_seq in sorted(listed):
                data_name, index_name = (
                    layout.SEGMENT_DATA.name(first_seq),
                    layout.SEGMENT_INDEX.name(first_seq),
                )
                if (name, first_seq) not in found and names.isdisjoint((data_name, index_name)):
                    message = f"the snapshot lists this segment, but it is not here; {advice}"
                    self._result.add(os.path.join(directory, data_name), 0, "missing_part", message)

    def _knows_both_tiers(self) -> bool:
        return self._cold_dir is not None or self._fs.exists(self._remote_dir)

    def _check_segment(self, segment: _Segment, data: bytes, index: bytes) -> int:
        """Compare the index with the frames; return the number of whole entries."""
        entries = index_entries(index)
        end = 0
        for place, (offset, size, ts, flags) in enumerate(
            zip(*(entries[name].tolist() for name in ("offset", "size", "ts", "flags")), strict=True)
        ):
            index_offset = place * layout.INDEX_ENTRY_SIZE
            if size == 0:
                if flags != layout.INDEX_FLAG_DELETED or entries["zero"][place].any():
                    message = "the entry of a seq without a record is not marked as deleted"
                    self._report(segment, place, segment.index_path, index_offset, "bad_index", message)
                continue
            if offset != end:
                message = f"the entry points to byte {offset}, the frame before it ends at {end}"
                self._report(segment, place, segment.index_path, index_offset, "bad_index", message)
                return place
            end += size
            try:
                frame = frames.read_segment_frame(data, offset)
            except Corrupt as error:
                topic = self._topics.get(os.path.basename(segment.directory))
                name = None if topic is None else topic.name
                message = f"seq {segment.first_seq + place} of topic {name!r}: {error}"
                if self._is_given_up(segment, place, flags):
                    self._result.add(segment.data_path, offset, "given_up", message)
                elif self._report(segment, place, segment.data_path, offset, "corrupt_frame", message):
                    return place
                continue
            problem = _contradiction(frame, segment.first_seq + place, size, ts, flags)
            if problem is not None and self._is_given_up(segment, place, flags):
                self._result.add(segment.data_path, offset, "given_up", problem)
                problem = None
            if problem is None and entries["zero"][place].any():
                problem = "the unused bytes of the entry are not zero"
            if problem is not None:
                self._report(segment, place, segment.index_path, index_offset, "bad_index", problem)
            self._result.records += 1
        self._check_ends(segment, len(entries), len(index), end, len(data))
        self._check_identity(segment, index)
        return len(entries)

    def _check_identity(self, segment: _Segment, index: bytes) -> None:
        """Compare what a sound segment holds with what the snapshot says of it."""
        topic = self._topics.get(os.path.basename(segment.directory))
        identities = zip(topic.segments, topic.index_identities, strict=False) if topic is not None else ()
        for (first_seq, last_seq, _), identity in identities:
            listed = index[: (last_seq - first_seq + 1) * layout.INDEX_ENTRY_SIZE]
            if first_seq == segment.first_seq and identity not in (0, identity_of(listed)):
                message = "it has the records of another topic or time; give each segment its name back"
                self._result.add(segment.data_path, 0, "wrong_name", message)

    def _is_given_up(self, segment: _Segment, place: int, flags: int) -> bool:
        """Whether a repair has given this record up: the newest snapshot says so, or it was evicted since."""
        topic, seq = self._topics.get(os.path.basename(segment.directory)), segment.first_seq + place
        if topic is None:
            return False
        is_evicted = seq < max(topic.cap_floor, topic.ttl_floor, topic.delete_below)
        is_marked = bool(flags & layout.INDEX_FLAG_DELETED)
        return (is_evicted and is_marked) or any(first <= seq <= last for first, last in topic.corrupt)

    def _check_ends(
        self, segment: _Segment, count: int, index_length: int, end: int, data_length: int
    ) -> None:
        whole = count * layout.INDEX_ENTRY_SIZE
        if index_length != whole or count == 0:
            message = f"the index has {index_length} bytes, no positive multiple of {layout.INDEX_ENTRY_SIZE}"
            self._report(segment, count, segment.index_path, whole, "bad_index", message)
        if end != data_length:
            message = f"{data_length - end} bytes behind the last record have no entry"
            self._report(segment, count, segment.data_path, end, "bad_index", message)

    def _report(self, segment: _Segment, place: int, path: str, offset: int, kind: str, message: str) -> bool:
        """Report damage at an entry; True if a crash may leave it: it is behind what a snapshot promised."""
        promised = self._saved_through.get(os.path.basename(segment.directory), 0)
        is_torn = segment.may_be_torn and segment.first_seq + place > promised
        if is_torn:
            self._result.add(path, offset, "torn_tail", f"{message}; the next start cuts it off")
        else:
            self._result.add(path, offset, kind, f"{message}; restore the segment from a backup")
        return is_torn


def _snapshot_order(path: str) -> tuple[int, bool]:
    name = os.path.basename(path)
    number = layout.SNAPSHOT_FILE.number(name)
    return (layout.SNAPSHOT_COPY.number(name) or 0, False) if number is None else (number, True)


def _is_blank(content: bytes) -> bool:
    return content.count(0) == len(content)


def _contradiction(frame: frames.SegmentFrame, seq: int, size: int, ts: int, flags: int) -> str | None:
    """What an index entry and its whole frame disagree about, None if nothing."""
    found = (frame.seq, frame.size, frame.ts, frame.flags & _RECORD_FLAGS)
    wanted = (seq, size, ts, flags & ~layout.INDEX_FLAG_DELETED)
    if found != wanted:
        return f"the entry says seq, size, time, flags {wanted}, the frame {found}"
    if flags & layout.INDEX_FLAG_DELETED and not frame.deleted:
        return f"seq {seq} is deleted in the index but not in the data"
    return None
