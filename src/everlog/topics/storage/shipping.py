"""The data directory of a running engine, shipped to an object store: backup and standby read what is there.

Owns the objects below a backup URL and the order in which they appear. One `Shipper` writes them, in the
server or beside it; it only reads the directory. What it ships is what a crash at that moment would leave: a
snapshot, the segments it lists, and the log behind it. So restoring is copying back, and recovery::

    manifest.json                     who may ship: epoch, owner, address; replaced by compare and swap
    log/<number>                      a Shipment: pieces of log files; created once, numbers without a gap
    base/<number>                     a Base: a snapshot, its segments, and where in `log` to begin
    snapshots/, indexes/, data/       immutable objects that bases refer to, named by content

The chain `log/` is the fence. A shipment exists when its object has been created, and one number can be
created once: a server that takes over creates the next one itself, so the earlier owner's next one fails.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest, xxh3_128_hexdigest

from everlog.clock import NS_PER_S, Clock
from everlog.errors import (
    Corrupt,
    InvalidRequest,
    Io,
    ObjectExists,
    ObjectNotFound,
    Superseded,
    Unsupported,
)
from everlog.fs import Fs, opened, read_file, replace_file
from everlog.native.topics import log as frames
from everlog.objects import ObjectStore
from everlog.topics.storage import control, layout, snapshot
from everlog.topics.storage.remote import unmarked
from everlog.topics.storage.wal_files import list_wal_files

MANIFEST: Final = "manifest.json"
LOG: Final = "log"
BASE: Final = "base"
VERSION: Final = 1
SHIPMENT_BYTES_MAX: Final = 16 << 20
"""More than this goes into several shipments, except for a single longer frame."""
_READ_BYTES: Final = 4 << 20
_PART_BYTES_MAX: Final = 64 << 20
_NS_PER_MS: Final = 1_000_000
_T = TypeVar("_T")


class Manifest(msgspec.Struct, frozen=True):
    """Who may ship; the highest epoch counts."""

    epoch: int
    owner: str
    address: str = ""
    is_primary: bool = False
    """Whether a server ships by itself, and takes no writes once it is superseded."""
    acks_shipped: bool = False
    """Whether it acknowledges nothing that is not shipped: then a takeover loses nothing."""
    version: int = VERSION


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of one log file, whole frames, at their place."""

    shard: str
    """Directory of the file below `wal`; empty if the log has one shard."""
    file_number: int
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        """Where the bytes end in the file."""
        return self.offset + len(self.data)


class Shipment(msgspec.Struct, frozen=True, array_like=True):
    """What was logged since the shipment before; without pieces it marks that a later epoch has begun."""

    epoch: int
    owner: str
    time_ms: int
    pieces: list[Piece]
    version: int = VERSION
    number: int = 0
    """Its place in the chain; 0 in those of version 0.2."""


class DataPart(msgspec.Struct, frozen=True, array_like=True):
    """An object with the next bytes of a segment's data, and what the index says up to their end."""

    key: str
    size: int
    index_size: int
    index_checksum: str
    """Of the index up to there, without deletion marks."""


class SegmentCopy(msgspec.Struct, frozen=True, array_like=True):
    """A segment of a base. Of one in an object store the stub is copied (`is_stub`)."""

    topic_id: int
    first_seq: int
    data_bytes: int
    index_checksum: int
    """As in the snapshot."""
    index_key: str
    parts: list[DataPart]
    is_stub: bool = False


class Base(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot with its segments; the log from shipment `log_from` on continues it."""

    number: int
    epoch: int
    time_ms: int
    log_from: int
    snapshot_number: int
    snapshot_key: str
    segments: list[SegmentCopy]
    version: int = VERSION


class ShipReport(NamedTuple):
    """What one round has done."""

    shipments: int = 0
    log_bytes: int = 0
    objects: int = 0
    object_bytes: int = 0
    has_base: bool = False


def log_key(number: int) -> str:
    """The key of a shipment."""
    return f"{LOG}/{number:016d}"


def base_key(number: int) -> str:
    """The key of a base."""
    return f"{BASE}/{number:016d}"


def decode(data: bytes, kind: type[_T], name: str) -> _T:
    """Decode an object; `Corrupt` names it."""
    try:
        found = msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{name} is damaged ({error}); restore from an earlier base (--at)") from error
    if getattr(found, "version", VERSION) != VERSION:
        raise Unsupported(f"{name} has version {found.version}, this build reads {VERSION}")  # type: ignore[attr-defined]
    return found


def sealed(value: msgspec.Struct) -> bytes:
    """Encode an object with a checksum behind it."""
    body = msgspec.msgpack.encode(value)
    return body + layout.CHECKSUM.pack(xxh3_64_intdigest(body))


def unsealed(data: bytes, kind: type[_T], name: str) -> _T:
    """Check and decode what `sealed` made."""
    body = data[: -layout.CHECKSUM.size]
    if data[-layout.CHECKSUM.size :] != layout.CHECKSUM.pack(xxh3_64_intdigest(body)):
        raise Corrupt(f"{name} does not match its checksum; restore from an earlier base (--at)")
    return decode(body, kind, name)


def read_manifest(store: ObjectStore) -> tuple[Manifest, str] | None:
    """Return the manifest and its tag; None if nothing was ever shipped here."""
    try:
        found = store.get(MANIFEST)
    except ObjectNotFound:
        return None
    try:
        return msgspec.json.decode(found.data, type=Manifest), found.tag
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{store.describe(MANIFEST)} is damaged: {error}") from error


def new_owner() -> str:
    """A name that no other shipper has."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(8)}"


def note_owners(fs: Fs, data_dir: str, owners: list[str]) -> None:
    """Durably note that the directory is the one that these owners ship."""
    replace_file(fs, os.path.join(data_dir, layout.OWNER_FILE), msgspec.json.encode(owners))


def check_lineage(store: ObjectStore, fs: Fs, data_dir: str, owner: str) -> None:
    """Refuse a directory that another one has taken over from, and note the next owner in it.

    Before the epoch is taken: whether or not that succeeds, the owner in the manifest is one of those noted.
    """
    found = read_manifest(store)
    path = os.path.join(data_dir, layout.OWNER_FILE)
    known = msgspec.json.decode(read_file(fs, path), type=list[str]) if fs.exists(path) else []
    if found is not None and found[0].owner not in known:
        where = f" at {found[0].address}" if found[0].address else ""
        raise Superseded(
            f"{store.url} belongs to another server{where} (epoch {found[0].epoch}), and {data_dir} is not "
            "its data; start that one, take over with `everlog promote`, or ship to another URL",
            found[0].address,
        )
    note_owners(fs, data_dir, [*([] if found is None else [found[0].owner]), owner])


def check_topics(store: ObjectStore, data_dir: str, payload: bytes) -> None:
    """Refuse the backup of another directory: it has topics, and none of them is in this snapshot."""
    number = last_number(store, BASE)
    if not number:
        return
    content = store.get(load_base(store, number).snapshot_key).data
    kept = _topics_in(content[layout.SNAPSHOT_HEADER_SIZE : -layout.SNAPSHOT_TRAILER_SIZE])
    if kept and kept.keys().isdisjoint(_topics_in(payload)):
        raise InvalidRequest(
            f"{store.url} is the backup of another data directory (it has topic {min(kept.values())!r}, "
            f"which {data_dir} does not have); give each directory a URL of its own"
        )


def _topics_in(payload: bytes) -> dict[tuple[int, int], str]:
    """The names of the topics of a snapshot, by what no other topic has."""
    body = control.decode(payload, control.SnapshotBody)
    records = (control.decode(raw, control.TopicRecord) for raw in body.topics)
    return {(record.topic_id, record.epoch): record.name for record in records}


def take_epoch(
    store: ObjectStore,
    address: str,
    *,
    is_primary: bool = True,
    acks_shipped: bool = False,
    owner: str | None = None,
) -> Manifest:
    """Become the one who may ship, by compare and swap; `ObjectChanged` if another was quicker."""
    found = read_manifest(store)
    owner = owner or new_owner()
    if found is None:
        mine = Manifest(1, owner, address, is_primary, acks_shipped)
        store.put_new(MANIFEST, msgspec.json.encode(mine))
    else:
        mine = Manifest(found[0].epoch + 1, owner, address, is_primary, acks_shipped)
        store.swap(MANIFEST, msgspec.json.encode(mine), found[1])
    return mine


def last_number(store: ObjectStore, folder: str) -> int:
    """The highest number in a folder, 0 if it is empty."""
    last = 0
    for item in store.list(folder):
        name = item.key.rpartition("/")[2]
        last = max(last, int(name)) if name.isdecimal() else last
    return last


def without_marks(data: bytes, index: bytes, from_offset: int) -> bytes:
    """Bytes of a segment's data from an offset on without deletion marks: the same at every copy."""
    content = np.frombuffer(bytearray(data), dtype=np.uint8)
    fields = np.frombuffer(index, dtype="<u4").reshape(-1, layout.INDEX_ENTRY_SIZE // 4)
    sizes = fields[:, 1].astype(np.int64)
    marks = fields[:, 0].astype(np.int64) + sizes - 1 - from_offset
    content[marks[(sizes > 0) & (marks >= 0) & (marks < len(content))]] = 0
    return content.tobytes()


class Shipper:
    """Ships one data directory. Blocks; belongs to one thread. Changes nothing in the directory."""

    def __init__(
        self,
        data_dir: str,
        store: ObjectStore,
        fs: Fs,
        clock: Clock,
        *,
        cold_dir: str | None = None,
        address: str = "",
        is_primary: bool = False,
        acks_shipped: bool = False,
        rate_bytes_s: int = 0,
    ) -> None:
        self._data_dir = data_dir
        self._store = store
        self._fs = fs
        self._clock = clock
        self._roots = [(os.path.join(data_dir, layout.TOPICS_DIR), False)]
        if cold_dir is not None:
            self._roots.append((os.path.join(cold_dir, layout.TOPICS_DIR), False))
        self._roots.append((os.path.join(data_dir, layout.REMOTE_DIR, layout.TOPICS_DIR), True))
        self._address = address
        self._is_primary = is_primary
        self._acks_shipped = acks_shipped
        self._rate_bytes_s = rate_bytes_s
        self._starts: dict[int, int] = {}
        self._whole_from = 0
        self.manifest: Manifest | None = None
        self._next_log = 0
        self._base: Base | None = None
        self._known: dict[tuple[int, int], SegmentCopy] = {}
        self.shipped: dict[int, int] = {}
        """Up to where each log file is in the store."""
        self._sent: list[tuple[int, dict[int, int]]] = []  # shipments since the last base, with their ends

    def begin(self) -> None:
        """Take an epoch, fence the one before, and find out what is in the store already."""
        _, payload = self._newest_snapshot()  # without one there is nothing to ship
        self._store.check_conditional_puts()
        owner = new_owner()
        if self._is_primary:
            check_lineage(self._store, self._fs, self._data_dir, owner)
        else:
            check_topics(self._store, self._data_dir, payload)
        manifest = take_epoch(
            self._store,
            self._address,
            is_primary=self._is_primary,
            acks_shipped=self._acks_shipped,
            owner=owner,
        )
        self._next_log = fence(self._store, manifest, self._clock)
        number = last_number(self._store, BASE)
        if number:
            base = load_base(self._store, number)
            self._known = {(copy.topic_id, copy.first_seq): copy for copy in base.segments}
        self.manifest = manifest  # what has failed before is begun again

    def round(self) -> ShipReport:
        """Ship what is new: a base if there is a new snapshot, then the log; `Superseded` if fenced."""
        if self.manifest is None:
            self.begin()
        report = ShipReport()
        for _ in range(10):
            try:
                report = self._ship_base(report)
                return self._ship_log(report)
            except (FileNotFoundError, _Moved):
                continue  # a checkpoint has removed or moved a file: a newer snapshot is there
            except OSError as error:
                raise Io(f"cannot read {self._data_dir}: {error.strerror or error}", error.errno) from error
        raise Io(f"{self._data_dir} changes faster than it can be copied; try again")

    def _newest_snapshot(self) -> tuple[int, bytes]:
        found = snapshot.newest(self._fs, os.path.join(self._data_dir, layout.META_DIR))
        if found.payload is None:
            raise Io(f"{self._data_dir} has no snapshot yet; start the server on it first")
        return found.number, found.payload

    # --- Bases -------------------------------------------------------------------------------------------

    def _ship_base(self, report: ShipReport) -> ShipReport:
        newest, payload = self._newest_snapshot()
        if self._base is not None and self._base.snapshot_number == newest:
            return report
        assert self.manifest is not None
        body = control.decode(payload, control.SnapshotBody)
        copies: list[SegmentCopy] = []
        for raw in body.topics:
            record = control.decode(raw, control.TopicRecord)
            for place, checksum in zip(record.segments, record.index_checksums, strict=False):
                copy, report = self._copy_segment(record.topic_id, place, checksum, report)
                copies.append(copy)
        path = os.path.join(self._data_dir, layout.META_DIR, layout.SNAPSHOT_FILE.name(newest))
        content = read_file(self._fs, path)
        key = f"snapshots/{newest:016d}-{xxh3_64_hexdigest(content)}"
        report = self._put(key, content, report)
        starts = dict(body.starts)
        if self._base is None:
            self.shipped = {}
        log_from = self._first_needed(starts, body.next_file_number)
        base = Base(
            number=self._next_log,
            epoch=self.manifest.epoch,
            time_ms=self._now_ms(),
            log_from=log_from,
            snapshot_number=newest,
            snapshot_key=key,
            segments=copies,
        )
        self._starts, self._whole_from = starts, body.next_file_number
        # The log first: a base that can be found can be restored.
        report = self._ship_log(report, force=True)
        base = msgspec.structs.replace(base, number=self._next_log)
        self._store.put_new(base_key(base.number), sealed(base))
        self._base = base
        self._known = {(copy.topic_id, copy.first_seq): copy for copy in copies}
        self._sent = [sent for sent in self._sent if sent[0] >= log_from]
        return report._replace(has_base=True)

    def _first_needed(self, starts: dict[int, int], whole_from: int) -> int:
        """The first shipment of which a restore of this snapshot needs something."""
        for number, ends in self._sent:
            for file_number, end in ends.items():
                start = starts.get(file_number, 0 if file_number >= whole_from else end)
                if end > start:
                    return number
        return self._next_log

    def _copy_segment(
        self, topic_id: int, place: tuple[int, int, int], checksum: int, report: ShipReport
    ) -> tuple[SegmentCopy, ShipReport]:
        """Store what is new of a segment."""
        first_seq, last_seq, data_bytes = place
        known = self._known.get((topic_id, first_seq))
        directory, is_stub = self._find(topic_id, first_seq)
        if known is not None and (known.data_bytes, known.index_checksum, known.is_stub) == (
            data_bytes,
            checksum,
            is_stub,
        ):
            return known, report
        index_size = (last_seq - first_seq + 1) * layout.INDEX_ENTRY_SIZE
        index = self._read(os.path.join(directory, layout.SEGMENT_INDEX.name(first_seq)), 0, index_size)
        name = f"{layout.TOPIC_DIR.name(topic_id)}/{first_seq:016d}"
        index_key = f"indexes/{name}-{xxh3_128_hexdigest(index)}"
        report = self._put(index_key, index, report)
        data_path = os.path.join(directory, layout.SEGMENT_DATA.name(first_seq))
        parts: list[DataPart] = []
        if is_stub:
            stub = read_file(self._fs, data_path)
            key = f"data/{name}-{xxh3_128_hexdigest(stub)}"
            report = self._put(key, stub, report)
            parts.append(DataPart(key, len(stub), index_size, unmarked(index)))
        else:
            parts, report = self._copy_data(data_path, name, data_bytes, index, known, report)
        copy = SegmentCopy(topic_id, first_seq, data_bytes, checksum, index_key, parts, is_stub)
        return copy, report

    def _copy_data(
        self,
        path: str,
        name: str,
        data_bytes: int,
        index: bytes,
        known: SegmentCopy | None,
        report: ShipReport,
    ) -> tuple[list[DataPart], ShipReport]:
        """Store the bytes of a data file that are behind the parts that are stored already."""
        parts: list[DataPart] = []
        if known is not None and not known.is_stub and known.parts:
            last = known.parts[-1]
            if last.index_size <= len(index) and unmarked(index[: last.index_size]) == last.index_checksum:
                parts = list(known.parts)
        done = sum(part.size for part in parts)
        while done < data_bytes:
            size = min(data_bytes - done, _PART_BYTES_MAX)
            data = without_marks(self._read(path, done, size), index, done)
            key = f"data/{name}-{done:010d}-{xxh3_128_hexdigest(data)}"
            report = self._put(key, data, report)
            is_last = done + size == data_bytes
            parts.append(
                DataPart(key, size, len(index) if is_last else 0, unmarked(index) if is_last else "")
            )
            done += size
        if len(parts) > 64:  # many small parts of a segment that grew slowly: one again
            return self._copy_data(path, name, data_bytes, index, None, report)
        return parts, report

    def _find(self, topic_id: int, first_seq: int) -> tuple[str, bool]:
        """The directory of a segment that both parts are in, and whether its data is a stub."""
        for root, is_stub in self._roots:
            directory = os.path.join(root, layout.TOPIC_DIR.name(topic_id))
            names = (layout.SEGMENT_DATA.name(first_seq), layout.SEGMENT_INDEX.name(first_seq))
            if all(self._fs.exists(os.path.join(directory, name)) for name in names):
                return directory, is_stub
        raise _Moved(f"segment {first_seq} of topic {topic_id} is not there")

    def _read(self, path: str, offset: int, length: int) -> bytes:
        with opened(self._fs, path) as fd:
            content = self._fs.pread(fd, length, offset)
            while len(content) < length:
                more = self._fs.pread(fd, length - len(content), offset + len(content))
                if not more:
                    raise _Moved(f"{path} is shorter than its snapshot says")
                content += more
        return content

    def _put(self, key: str, data: bytes, report: ShipReport) -> ShipReport:
        self._store.put_new(key, data)
        if self._rate_bytes_s:
            self._clock.sleep_ns(len(data) * NS_PER_S // self._rate_bytes_s)
        return report._replace(objects=report.objects + 1, object_bytes=report.object_bytes + len(data))

    # --- The log -----------------------------------------------------------------------------------------

    def _ship_log(self, report: ShipReport, *, force: bool = False) -> ShipReport:
        """Ship the frames that are written and not in the store; with `force` at least an empty shipment."""
        pieces: list[Piece] = []
        size = 0
        for piece in self._new_pieces():
            pieces.append(piece)
            size += len(piece.data)
            if size >= SHIPMENT_BYTES_MAX:
                report = self._send(pieces, size, report)
                pieces, size = [], 0
        if pieces or force:
            report = self._send(pieces, size, report)
        return report

    def _new_pieces(self) -> Iterator[Piece]:
        wal_dir = os.path.join(self._data_dir, layout.WAL_DIR)
        files = list_wal_files(self._fs, wal_dir)
        present = {file.number for file in files}
        self.shipped = {number: end for number, end in self.shipped.items() if number in present}
        for file in files:
            if file.number < self._whole_from and file.number not in self._starts:
                continue
            shard = os.path.relpath(file.shard_dir, wal_dir)
            start = self.shipped.get(file.number, self._starts.get(file.number, 0))
            for offset, data in self._frames(file.path, start):
                yield Piece("" if shard == "." else shard, file.number, offset, data)

    def _frames(self, path: str, start: int) -> Iterator[tuple[int, bytes]]:
        """Yield whole frames from an offset of a log file on, until none is there."""
        wanted = _READ_BYTES
        with opened(self._fs, path) as fd:
            while True:
                content = self._fs.pread(fd, wanted, start)
                end = frames.scan_log_frames(content, 0).end
                if end:
                    yield start, content[:end]
                    start += end
                    wanted = _READ_BYTES
                elif len(content) < wanted or not any(content[:4]):
                    return
                else:
                    wanted *= 2  # a frame longer than what was read

    def _send(self, pieces: list[Piece], size: int, report: ShipReport) -> ShipReport:
        """Create the next shipment of the chain; `Superseded` if another owner has."""
        assert self.manifest is not None
        number = self._next_log
        shipment = Shipment(self.manifest.epoch, self.manifest.owner, self._now_ms(), pieces, number=number)
        try:
            self._store.put_new(log_key(number), sealed(shipment))
        except ObjectExists:
            raise superseded(self._store, self.manifest) from None
        self._next_log = number + 1
        ends = {piece.file_number: piece.end for piece in pieces}
        self.shipped.update(ends)
        self._sent.append((number, ends))
        return report._replace(shipments=report.shipments + 1, log_bytes=report.log_bytes + size)

    def _now_ms(self) -> int:
        return self._clock.wall_ns() // _NS_PER_MS


class _Moved(Exception):
    """A file is not as a snapshot says any more: a checkpoint has gone on."""


def superseded(store: ObjectStore, mine: Manifest) -> Superseded:
    """The error for an owner whose chain another one continues."""
    with suppress(Corrupt):
        found = read_manifest(store)
        if found is not None:
            where = f" at {found[0].address}" if found[0].address else ""
            return Superseded(
                f"{store.url} belongs to a later server{where} (epoch {found[0].epoch}, ours is "
                f"{mine.epoch}); this one takes no more writes",
                found[0].address,
            )
    return Superseded(f"{store.url} belongs to a later server; this one takes no more writes")


def fence(store: ObjectStore, mine: Manifest, clock: Clock) -> int:
    """Create the next shipment, so that an earlier owner cannot; return the number behind it."""
    number = last_number(store, LOG) + 1
    marker = Shipment(mine.epoch, mine.owner, clock.wall_ns() // _NS_PER_MS, [])
    while True:
        try:
            store.put_new(log_key(number), sealed(msgspec.structs.replace(marker, number=number)))
            return number + 1
        except ObjectExists:
            number += 1  # the earlier owner was quicker; what it has shipped counts


def load_base(store: ObjectStore, number: int) -> Base:
    """Read a base."""
    key = base_key(number)
    base = unsealed(store.get(key).data, Base, store.describe(key))
    check_number(store.describe(key), number, base.number)
    return base


def check_number(name: str, number: int, own_number: int) -> None:
    """Refuse an object that is another one under this number; 0 is that of an older one, which has none."""
    if own_number not in (0, number):
        raise Corrupt(f"{name} is number {own_number} under another name; give each object its name back")
