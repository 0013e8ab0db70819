"""From the objects of a backup to a data directory: `restore`, and a copy that follows (standby, promote).

Owns which base and which shipments are taken, and the order in which files appear: the snapshot comes last.
Until then `.topics.restoring` marks the directory, so that no server opens it and a restore can go on with
it, after a kill or from the copy of a standby: segments that are there already are not fetched again. What is
restored is what a crash would have left; recovery does the rest. A copy that follows keeps the mark. It may
be read all the time: no file changes but log files, which grow, until `prune` removes what is not needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, NamedTuple

from xxhash import xxh3_128_hexdigest

from everlog.errors import Corrupt, DataDirInUse, InvalidRequest, Io, ObjectNotFound
from everlog.fs import Fs, close_locked, create_directory, name_holder, opened, read_file, replace_file
from everlog.objects import ObjectStore
from everlog.topics.storage import control, layout, snapshot
from everlog.topics.storage.log_survey import damage_frame
from everlog.topics.storage.remote import with_marks
from everlog.topics.storage.shipping import (
    BASE,
    LOG,
    Base,
    SegmentCopy,
    Shipment,
    check_number,
    last_number,
    load_base,
    log_key,
    unsealed,
)
from everlog.topics.storage.synced_ends import SyncedEnd, write_ends
from everlog.topics.storage.wal_files import END_FRAME_SIZE, end_frame, list_wal_files, read_end_frame

COPY_BOOT_ID: Final = "standby"
"""Stands in a copy for the run of the machine: what was shipped is not lost with any machine."""
SKIPPED_SEQS: Final = 65_536
"""How many seqs of each topic a takeover skips that may have lost records, ..."""
SKIPPED_SEQS_ALL: Final = 4_000_000
"""... and of all topics together; each takes some 33 bytes of memory."""
_THREADS: Final = 8
_KEPT: Final = (layout.LOCK_FILE, layout.RESTORING_FILE, layout.TOPICS_DIR, layout.REMOTE_DIR)


class Restored(NamedTuple):
    """What a restore has taken: its base, and the last shipment."""

    base: int
    shipment: int
    time_ms: int
    """When the last shipment was made."""
    segments: int
    log_bytes: int


class Restorer:
    """Fills one empty directory, then follows the chain of shipments as far as it is asked to."""

    def __init__(
        self,
        store: ObjectStore,
        data_dir: str,
        fs: Fs,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._store = store
        self._data_dir = data_dir
        self._fs = fs
        self._progress = progress or (lambda done, total: None)
        self._roots = {
            False: os.path.join(data_dir, layout.TOPICS_DIR),
            True: os.path.join(data_dir, layout.REMOTE_DIR, layout.TOPICS_DIR),
        }
        self._base: Base | None = None
        self._ends: dict[int, int] = {}
        self._next = 0
        self._time_ms = 0
        self._is_whole = False
        self._lock_fd: int | None = None
        self._log_bytes = 0

    def restore(
        self,
        *,
        at_ms: int | None = None,
        at_shipment: int | None = None,
        is_final: bool = True,
        has_losses: bool = False,
    ) -> Restored:
        """Restore the newest state, or that of a time or a shipment; the directory must be empty.

        Unless `is_final` it stays a copy that no server opens, to be followed or restored again, and locked
        until `close`. With `has_losses` records may have been acknowledged that were not shipped: readers get
        a tombstone behind the last record of each topic, and seqs that these may have had are not used again.
        """
        try:
            base = self.check(at_ms=at_ms, at_shipment=at_shipment)
            self._begin()
            self._restore(base, at_ms, at_shipment)
            if has_losses:
                self._mark_losses()
            if is_final:
                self._finish()
            else:
                self._finish_copy()
        except BaseException:
            self.close()
            raise
        if is_final:
            self.close()
        return self.restored

    def check(self, *, at_ms: int | None = None, at_shipment: int | None = None) -> Base:
        """Return the base to begin with; refuse a directory that cannot be filled, and a missing backup.

        Changes nothing, but holds the lock of a directory that is there until `close`.
        """
        if self._fs.exists(self._data_dir):
            names = self._fs.listdir(self._data_dir)
            if layout.RESTORING_FILE not in names and set(names) - {layout.LOCK_FILE}:
                raise InvalidRequest(f"{self._data_dir} is not empty; restore into a new directory")
        base = self._choose_base(at_ms, at_shipment)
        if self._fs.exists(self._data_dir):
            self._take_lock()
        return base

    def _restore(self, base: Base, at_ms: int | None = None, at_shipment: int | None = None) -> None:
        """Take the segments of a base and the log from its beginning on."""
        self._base = base
        self._next, self._time_ms = base.log_from, base.time_ms
        self._ends, self._log_bytes = {}, 0
        self._copy_segments(base.segments)
        # Shipments before the base belong to it, those behind it count up to the moment that is asked for.
        last = None if at_shipment is None else max(at_shipment, base.number - 1)
        newest = last_number(self._store, LOG)
        while last is None or self._next <= last:
            shipment = self._next_shipment(newest)
            is_early = self._next < base.number or at_ms is None
            if shipment is None or not (is_early or shipment.time_ms <= (at_ms or 0)):
                break
            if shipment.epoch != base.epoch:
                break  # a later epoch has a base of its own; until that is there, this one is the newest
            self._apply(shipment)

    @property
    def restored(self) -> Restored:
        """What the directory holds."""
        assert self._base is not None
        return Restored(
            self._base.number, self._next - 1, self._time_ms, len(self._base.segments), self._log_bytes
        )

    def follow(self) -> None:
        """Take what has been shipped since."""
        assert self._base is not None
        if not self._is_whole:
            self._change_owner()
        while (shipment := self._next_shipment()) is not None:
            # A base is there before the shipment that has its number.
            self._take_base(self._base_at(self._next))
            if shipment.epoch != self._base.epoch:
                self._change_owner()
                break
            self._apply(shipment)
        else:
            self._take_base(self._base_at(self._next))

    def _take_base(self, base: Base | None) -> None:
        """Go over to a newer base of the same owner; its log is here already."""
        assert self._base is not None
        if base is not None and base.number > self._base.number and base.epoch == self._base.epoch:
            self._copy_segments(base.segments)
            self._write_snapshot(base)
            self._base = base

    def _change_owner(self) -> None:
        """Begin again with the base of the owner that ships now; until there is one, nothing changes."""
        number = last_number(self._store, BASE)
        if number <= self._next and self._is_whole:
            return
        base = load_base(self._store, number)
        self._is_whole = False  # until all of it is here
        # Another directory may number its files in another way.
        _remove(self._fs, os.path.join(self._data_dir, layout.WAL_DIR))
        self._fs.makedirs(os.path.join(self._data_dir, layout.WAL_DIR))
        self._restore(base)
        self._finish_copy()

    def prune(self) -> None:
        """Remove what earlier bases needed and this one does not; nothing may read it any more."""
        assert self._base is not None
        self._remove_others(self._base.segments)
        meta_dir = os.path.join(self._data_dir, layout.META_DIR)
        payload = snapshot.newest(self._fs, meta_dir).payload
        if payload is None:
            return
        body = control.decode(payload, control.SnapshotBody)
        needed = {number for number, _ in body.starts}
        for file in list_wal_files(self._fs, os.path.join(self._data_dir, layout.WAL_DIR)):
            if file.number < body.next_file_number and file.number not in needed:
                self._fs.unlink(file.path)
                self._ends.pop(file.number, None)

    def close(self) -> None:
        """Unlock the directory."""
        if self._lock_fd is not None:
            close_locked(self._fs, self._lock_fd)
            self._lock_fd = None

    # --- Which ---------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Mark the directory, and remove what an earlier restore has left that is of no use."""
        create_directory(self._fs, self._data_dir)
        self._take_lock()
        names = self._fs.listdir(self._data_dir)
        replace_file(self._fs, os.path.join(self._data_dir, layout.RESTORING_FILE), self._store.url.encode())
        for name in names:
            if name not in _KEPT:
                _remove(self._fs, os.path.join(self._data_dir, name))

    def _take_lock(self) -> None:
        if self._lock_fd is not None:
            return
        fd = self._fs.open(os.path.join(self._data_dir, layout.LOCK_FILE), os.O_RDWR | os.O_CREAT)
        if not self._fs.try_lock(fd):
            holder = name_holder(fd)
            self._fs.close(fd)
            raise DataDirInUse(f"{holder} has {self._data_dir} open; stop it, or name another directory")
        self._lock_fd = fd

    def _remove_others(self, copies: Iterable[SegmentCopy]) -> None:
        """Remove the segments of an earlier copy that the base does not have."""
        kept = {
            os.path.join(self._directory(copy), naming.name(copy.first_seq))
            for copy in copies
            for naming in (layout.SEGMENT_DATA, layout.SEGMENT_INDEX)
        }
        for root in self._roots.values():
            for parent, _, names in os.walk(root):
                for path in (os.path.join(parent, name) for name in names):
                    if path not in kept:
                        self._fs.unlink(path)

    def _directory(self, copy: SegmentCopy) -> str:
        return os.path.join(self._roots[copy.is_stub], layout.TOPIC_DIR.name(copy.topic_id))

    def _choose_base(self, at_ms: int | None, at_shipment: int | None) -> Base:
        numbers = sorted(
            int(name) for item in self._store.list(BASE) if (name := item.key.rpartition("/")[2]).isdecimal()
        )
        for number in reversed(numbers):
            if at_shipment is not None and number > at_shipment + 1:
                continue
            base = load_base(self._store, number)
            if at_ms is None or base.time_ms <= at_ms:
                return base
        if not numbers:
            raise Io(f"{self._store.url} holds no backup; check the URL")
        raise InvalidRequest(f"{self._store.url} reaches back to base {numbers[0]} only; choose a later time")

    def _next_shipment(self, newest: int | None = None) -> Shipment | None:
        """The next shipment, None if there is none yet; `Corrupt` if it is lost, as a later one is there.

        `newest` is a number that is known to be there; without it only the one behind the next is looked for.
        """
        number = self._next
        found = self._shipment(number)
        if found is not None:
            return found
        assert self._base is not None
        is_lost = number < max(self._base.number, newest or 0)
        if newest is None and not is_lost:
            is_lost = self._shipment(number + 1) is not None
        if is_lost and (found := self._shipment(number)) is None:
            raise Corrupt(
                f"{self._store.describe(log_key(number))} is missing, and there are later ones; restore it, "
                f"or only what was shipped before: --at {number - 1}"
            )
        return found

    def _shipment(self, number: int) -> Shipment | None:
        key = log_key(number)
        try:
            data = self._store.get(key).data
        except ObjectNotFound:
            return None
        found = unsealed(data, Shipment, self._store.describe(key))
        check_number(self._store.describe(key), number, found.number)
        return found

    def _base_at(self, number: int) -> Base | None:
        try:
            return load_base(self._store, number)
        except ObjectNotFound:
            return None

    # --- Files ---------------------------------------------------------------------------------------------

    def _copy_segments(self, copies: Iterable[SegmentCopy]) -> None:
        copies = list(copies)
        for directory in (*self._roots.values(), *sorted(set(map(self._directory, copies)))):
            self._fs.makedirs(directory)
        with ThreadPoolExecutor(_THREADS) as pool:
            for done, _ in enumerate(pool.map(self._copy_segment, copies), 1):
                self._progress(done, len(copies))

    def _copy_segment(self, copy: SegmentCopy) -> None:
        directory = self._directory(copy)
        if self._is_there(copy, directory):
            return
        index = self._content(copy.index_key)
        data = b"".join(self._content(part.key) for part in copy.parts)
        if not copy.is_stub:
            if len(data) != copy.data_bytes:
                name = self._store.describe(copy.parts[0].key if copy.parts else copy.index_key)
                raise Corrupt(f"{name} and its parts have {len(data)} bytes, not {copy.data_bytes}")
            data = with_marks(data, index)
        for naming, content in ((layout.SEGMENT_DATA, data), (layout.SEGMENT_INDEX, index)):
            path = os.path.join(directory, naming.name(copy.first_seq))
            # An earlier, shorter one may be mapped by a reader: it is replaced, not changed.
            self._write(path + layout.TEMPORARY_SUFFIX, 0, content)
            self._fs.rename(path + layout.TEMPORARY_SUFFIX, path)

    def _content(self, key: str) -> bytes:
        """Fetch an object that is named by the checksum of its content."""
        data = self._store.get(key).data
        if not key.endswith("-" + xxh3_128_hexdigest(data)):
            raise Corrupt(f"{self._store.describe(key)} does not match its checksum; it was cut or changed")
        return data

    def _is_there(self, copy: SegmentCopy, directory: str) -> bool:
        """Whether an earlier copy has this segment: the index is written last and named by its content."""
        index_path = os.path.join(directory, layout.SEGMENT_INDEX.name(copy.first_seq))
        data_path = os.path.join(directory, layout.SEGMENT_DATA.name(copy.first_seq))
        if not self._fs.exists(index_path) or not self._fs.exists(data_path):
            return False
        with opened(self._fs, data_path) as fd:
            if self._fs.size(fd) != sum(part.size for part in copy.parts):
                return False
        return copy.index_key.endswith("-" + xxh3_128_hexdigest(read_file(self._fs, index_path)))

    def _apply(self, shipment: Shipment) -> None:
        """Write the pieces of the next shipment to their places."""
        for piece in shipment.pieces:
            directory = os.path.join(self._data_dir, layout.WAL_DIR, piece.shard).rstrip("/")
            self._fs.makedirs(directory)
            path = os.path.join(directory, layout.WAL_FILE.name(piece.file_number))
            self._write(path, piece.offset, piece.data)
            self._ends[piece.file_number] = max(self._ends.get(piece.file_number, 0), piece.end)
            self._log_bytes += len(piece.data)
        self._time_ms = shipment.time_ms
        self._next += 1

    def _write(self, path: str, offset: int, content: bytes) -> None:
        with opened(self._fs, path, os.O_RDWR | os.O_CREAT) as fd:
            if not offset:
                self._fs.truncate(fd, 0)
            self._fs.pwrite(fd, content, offset)

    def _mark_losses(self) -> None:
        """Let the log end with what damage at this place would leave: records may be missing here."""
        assert self._base is not None
        found = self._store.get(self._base.snapshot_key).data
        body = control.decode(
            found[layout.SNAPSHOT_HEADER_SIZE : -layout.SNAPSHOT_TRAILER_SIZE], control.SnapshotBody
        )
        records = max(1, min(SKIPPED_SEQS, SKIPPED_SEQS_ALL // max(1, len(body.topics))))
        wal_dir = os.path.join(self._data_dir, layout.WAL_DIR)
        self._fs.makedirs(wal_dir)
        last = {file.shard_dir: file.number for file in list_wal_files(self._fs, wal_dir)}
        next_number = max([body.next_file_number, *(number + 1 for number in self._ends)])
        last = dict(sorted(last.items(), key=lambda item: item[1])) or {wal_dir: 0}
        for left, (shard_dir, at_number) in enumerate(last.items(), 1 - len(last)):
            number, offset = at_number, self._ends.get(at_number, 0)
            if not offset or self._is_ended(shard_dir, number, offset):
                number, offset, next_number = next_number, 0, next_number + 1
            # Counted once, behind all of the log, and noted where the log of each shard goes on.
            content = damage_frame(0, 0 if left else records) + end_frame(number)
            self._write(os.path.join(shard_dir, layout.WAL_FILE.name(number)), offset, content)
            self._ends[number] = offset + len(content)

    def _is_ended(self, shard_dir: str, number: int, end: int) -> bool:
        with opened(self._fs, os.path.join(shard_dir, layout.WAL_FILE.name(number))) as fd:
            tail = self._fs.pread(fd, END_FRAME_SIZE, end - END_FRAME_SIZE)
            return read_end_frame(tail, len(tail)) is not None

    def _write_ends(self) -> None:
        ends = [SyncedEnd(number, end) for number, end in sorted(self._ends.items())]
        write_ends(self._fs, os.path.join(self._data_dir, layout.SYNCED_FILE), ends)

    def _finish(self) -> None:
        """Everything is there: make it durable, then the snapshot, then it is a data directory."""
        assert self._base is not None
        self._remove_others(self._base.segments)
        self._fs.makedirs(os.path.join(self._data_dir, layout.WAL_DIR))
        self._write_ends()
        self._fs.sync_file_system(self._data_dir)
        self._write_snapshot(self._base)
        with suppress(FileNotFoundError):
            self._fs.unlink(os.path.join(self._data_dir, layout.RESTORING_FILE))
        self._fs.fsync_dir(self._data_dir)

    def _finish_copy(self) -> None:
        """Everything is there to be read, and the mark stays."""
        assert self._base is not None
        self._fs.makedirs(os.path.join(self._data_dir, layout.WAL_DIR))
        boot_path = os.path.join(self._data_dir, layout.BOOT_FILE)
        replace_file(self._fs, boot_path, COPY_BOOT_ID.encode())
        self._write_snapshot(self._base)
        self._is_whole = True

    def _write_snapshot(self, base: Base) -> None:
        """Put the snapshot of a base in the place of any other."""
        meta_dir = os.path.join(self._data_dir, layout.META_DIR)
        self._fs.makedirs(meta_dir)
        number = base.snapshot_number
        content = self._store.get(base.snapshot_key).data
        replace_file(self._fs, os.path.join(meta_dir, layout.SNAPSHOT_FILE.name(number)), content)
        for other in snapshot.numbers(self._fs, meta_dir):
            if other != number:
                self._fs.unlink(os.path.join(meta_dir, layout.SNAPSHOT_FILE.name(other)))


def _remove(fs: Fs, path: str) -> None:
    """Remove a file or a directory with all it holds."""
    if os.path.isdir(path) and not os.path.islink(path):
        for name in fs.listdir(path):
            _remove(fs, os.path.join(path, name))
        fs.rmdir(path)
    else:
        fs.unlink(path)
