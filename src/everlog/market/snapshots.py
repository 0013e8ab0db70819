"""Snapshots of books beside a queue, and books brought up to date from them.

Owns the files `<queue>/snapshots/<venue_id>/<market_id>/snapshot_<seq>.bin`: format, choice and retention.
A snapshot is the book after record `seq`; replay goes on with the next record. The payload of an L2
snapshot is the protocol's, that of an L3 snapshot is defined in `everlog.market.books`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np

from everlog.clock import Clock, SystemClock
from everlog.errors import Corrupt, Io, SnapshotGap, Unsupported, UnsupportedVersion
from everlog.fs import Fs, OsFs, create_directory, replace_file
from everlog.market.book_set import Book, Market
from everlog.market.books import BOOK_HASH_BYTES, L2Book, L3Book
from everlog.market.protocol import (
    HEADER_BYTES,
    LITTLE_ENDIAN,
    OLDEST_VERSION,
    SCHEMA_VERSION,
    BookMode,
    TypeId,
    layout,
)
from everlog.market.views import BookEventView
from everlog.queue import MessageView, QueueReader

SNAPSHOT_HEADER: Final = layout(
    128,
    {
        "magic": ("S8", 0),
        "schema_version": ("<u2", 8),
        "header_len": ("<u2", 10),
        "endianness": ("<u2", 12),
        "book_mode": ("<u2", 14),
        "venue_id": ("<u4", 16),
        "market_id": ("<u4", 20),
        "seq_num": ("<u8", 24),
        "ingest_ts_start": ("<u8", 32),
        "ingest_ts_end": ("<u8", 40),
        "exchange_ts_start": ("<u8", 48),
        "exchange_ts_end": ("<u8", 56),
        "book_hash": ("V16", 64),
        "payload_len": ("<u8", 80),
        "flags": ("<u8", 88),
    },
)
MAGIC: Final = b"CHRSNAP1"
SNAPSHOT_VERSION: Final = 2
UNSIGNED_VERSION: Final = 1
"""Prices are unsigned. Books without a price below 0 are written so, which older releases read too."""
DEFAULT_INTERVAL_NS: Final = 10_000_000_000
_PREFIX: Final = "snapshot_"
_SUFFIX: Final = ".bin"


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """What a snapshot's header says, and where the file is."""

    path: str
    market: Market
    mode: BookMode
    seq: int
    ingest_ts_ns: tuple[int, int]
    exchange_ts_ns: tuple[int, int]
    payload_len: int
    book_hash: bytes
    version: int


@dataclass(frozen=True, slots=True)
class SnapshotRetention:
    """What to keep; None means no limit. Applied in this order."""

    max_age_ns: int | None = None
    max_snapshots: int | None = None
    max_bytes: int | None = None


@dataclass(slots=True)
class SnapshotPlanner:
    """Says when the next snapshot is due: any of the three is enough; 0 switches a condition off."""

    min_records: int = 0
    min_bytes: int = 0
    min_interval_ns: int = DEFAULT_INTERVAL_NS
    _records: int = 0
    _bytes: int = 0
    _last_ns: int | None = None

    def note(self, payload_len: int, records: int = 1) -> None:
        """Count what went into the book: bytes of payload, and records."""
        self._records += records
        self._bytes += payload_len

    def is_due(self, now_ns: int) -> bool:
        """Whether to take a snapshot now."""
        if self.min_records and self._records >= self.min_records:
            return True
        if self.min_bytes and self._bytes >= self.min_bytes:
            return True
        if not self.min_interval_ns:
            return False
        return self._last_ns is None or now_ns - self._last_ns >= self.min_interval_ns

    def taken(self, now_ns: int) -> None:
        """Start counting anew: a snapshot was taken."""
        self._records = self._bytes = 0
        self._last_ns = now_ns


class SnapshotStore:
    """The snapshots of one queue."""

    def __init__(
        self,
        queue_path: str | os.PathLike[str],
        retention: SnapshotRetention | None = None,
        *,
        fs: Fs | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.root = os.path.join(os.fspath(queue_path), "snapshots")
        self._retention = retention or SnapshotRetention()
        self._fs = fs or OsFs()
        self._clock = clock or SystemClock()

    def directory(self, market: Market) -> str:
        """Return where the snapshots of a market are."""
        return os.path.join(self.root, str(market.venue_id), str(market.market_id))

    def write(
        self,
        book: Book,
        market: Market,
        seq: int,
        *,
        ingest_ts_start_ns: int = 0,
        exchange_ts_start_ns: int = 0,
    ) -> SnapshotInfo:
        """Save the book as it is after record `seq`, durably, and drop what retention no longer keeps.

        The start times are those of the first event that went into the book, if known.
        """
        payload = book.snapshot_payload()
        mode = BookMode.L2 if isinstance(book, L2Book) else BookMode.L3
        digest = hashlib.blake2b(payload, digest_size=BOOK_HASH_BYTES).digest()
        header = np.zeros((), dtype=SNAPSHOT_HEADER)
        header["magic"], header["schema_version"], header["header_len"] = MAGIC, _version_for(book), 128
        header["endianness"], header["book_mode"] = LITTLE_ENDIAN, mode
        header["venue_id"], header["market_id"], header["seq_num"] = *market, seq
        header["ingest_ts_start"], header["ingest_ts_end"] = ingest_ts_start_ns, book.last_ingest_ts_ns
        header["exchange_ts_start"] = exchange_ts_start_ns
        header["exchange_ts_end"] = book.last_exchange_ts_ns
        header["book_hash"], header["payload_len"] = np.void(digest), len(payload)
        directory = self.directory(market)
        path = self._path(market, seq)
        try:
            create_directory(self._fs, directory)
            replace_file(self._fs, path, header.tobytes() + payload)
        except OSError as error:
            raise Io(f"cannot write the snapshot {path}: {error.strerror}", error.errno) from error
        self._drop_old(market)
        return _info(path, header.tobytes())

    def markets(self) -> list[Market]:
        """Return the markets that have snapshots, in order."""
        found = [
            Market(int(venue), int(market))
            for venue in self._names(self.root)
            for market in self._names(os.path.join(self.root, venue))
        ]
        return sorted(found)

    def _names(self, directory: str) -> list[str]:
        try:
            names = self._fs.listdir(directory)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [name for name in names if name.isascii() and name.isdigit()]

    def of_market(self, market: Market) -> list[SnapshotInfo]:
        """Return the headers of a market's snapshots by rising seq; damaged files are left out."""
        found = []
        for seq in self._seqs(market):
            with suppress(Corrupt, Unsupported, UnsupportedVersion, Io):
                found.append(self.info(market, seq))
        return found

    def info(self, market: Market, seq: int) -> SnapshotInfo:
        """Return what the header of one snapshot says."""
        path = self._path(market, seq)
        return _info(path, self._read(path, 128))

    def has(self, market: Market, seq: int) -> bool:
        """Whether there is a snapshot of a market at a seq."""
        return self._fs.exists(self._path(market, seq))

    def newest_at_seq(self, market: Market, seq: int | None = None) -> SnapshotInfo | None:
        """Return the snapshot with the largest seq not above the given one (None = of all)."""
        usable = [found for found in self.of_market(market) if seq is None or found.seq <= seq]
        return usable[-1] if usable else None

    def newest_at_time(
        self, market: Market, timestamp_ns: int, *, exchange: bool = False
    ) -> SnapshotInfo | None:
        """Return the snapshot with the latest end time not after the given one."""
        ends = [
            (found.exchange_ts_ns[1] if exchange else found.ingest_ts_ns[1], found.seq, found)
            for found in self.of_market(market)
        ]
        usable = [row for row in ends if row[0] <= timestamp_ns]
        return max(usable, key=lambda row: row[:2])[2] if usable else None

    def load(self, info: SnapshotInfo, book: Book | None = None) -> Book:
        """Return the book of a snapshot; `book` is filled if given, so that its settings hold."""
        data = self._read(info.path, None)
        checked = _info(info.path, data)
        payload = data[128:]
        if len(payload) != checked.payload_len:
            raise Corrupt(
                f"{info.path} has {len(payload)} bytes of payload, its header says {checked.payload_len}"
            )
        digest = hashlib.blake2b(payload, digest_size=BOOK_HASH_BYTES).digest()
        if any(checked.book_hash) and digest != checked.book_hash:
            raise Corrupt(f"{info.path} does not match its hash; remove it and use an older snapshot")
        target: Book = book if book is not None else (L2Book() if checked.mode is BookMode.L2 else L3Book())
        if isinstance(target, L2Book) != (checked.mode is BookMode.L2):
            raise Unsupported(f"{info.path} is a snapshot of an {checked.mode.name} book")
        if isinstance(target, L2Book):
            is_unsigned = checked.version == UNSIGNED_VERSION
            target.load_payload(payload, schema_version=OLDEST_VERSION if is_unsigned else SCHEMA_VERSION)
            target._restore_numbers(checked.seq, 0, checked.exchange_ts_ns[1], checked.ingest_ts_ns[1])
        else:
            target.load_payload(payload)
            target._restore_numbers(0, checked.exchange_ts_ns[1], checked.ingest_ts_ns[1])
        return target

    def _path(self, market: Market, seq: int) -> str:
        return os.path.join(self.directory(market), f"{_PREFIX}{seq}{_SUFFIX}")

    def _seqs(self, market: Market) -> list[int]:
        return numbered_files(self._fs, self.directory(market), _PREFIX, _SUFFIX)

    def _read(self, path: str, length: int | None) -> bytes:
        try:
            fd = self._fs.open(path, os.O_RDONLY)
            try:
                return self._fs.pread(fd, self._fs.size(fd) if length is None else length, 0)
            finally:
                self._fs.close(fd)
        except OSError as error:
            raise Io(f"cannot read the snapshot {path}: {error.strerror}", error.errno) from error

    def _drop_old(self, market: Market) -> None:
        keep = self._retention
        files = [(seq, os.stat(self._path(market, seq))) for seq in self._seqs(market)]
        if keep.max_age_ns is not None:
            oldest_ns = self._clock.wall_ns() - keep.max_age_ns
            self._drop(market, [seq for seq, stat in files[:-1] if stat.st_mtime_ns < oldest_ns])
            files = [row for row in files[:-1] if row[1].st_mtime_ns >= oldest_ns] + files[-1:]
        if keep.max_snapshots is not None:
            surplus = max(0, len(files) - max(1, keep.max_snapshots))
            self._drop(market, [seq for seq, _ in files[:surplus]])
            files = files[surplus:]
        if keep.max_bytes is not None:
            total = sum(stat.st_size for _, stat in files)
            while len(files) > 1 and total > keep.max_bytes:
                total -= files[0][1].st_size
                self._drop(market, [files.pop(0)[0]])

    def _drop(self, market: Market, seqs: list[int]) -> None:
        for seq in seqs:
            with suppress(FileNotFoundError):
                self._fs.unlink(self._path(market, seq))


def join_late(
    store: SnapshotStore, reader: QueueReader, market: Market, book: Book | None = None
) -> Book | None:
    """Return the market's book at the queue's head: the newest usable snapshot, and all records after it.

    None without a snapshot. The reader ends at the head. Raises SnapshotGap if the record after the
    snapshot is no longer in the queue.
    """
    for info in reversed(store.of_market(market)):
        try:
            loaded = store.load(info, book)
        except Corrupt:
            continue
        _seek_behind(reader, info)
        _replay(reader, loaded, market, lambda header: False)
        return loaded
    return None


def warm_start(
    store: SnapshotStore,
    reader: QueueReader,
    market: Market,
    timestamp_ns: int,
    book: Book,
    *,
    exchange: bool = False,
) -> bool:
    """Bring a book to just before the first event of its market at or after a time.

    Starts from the newest snapshot that ends at or before the time. True if such an event was found (it is
    the next one that the reader returns); False if the queue ended before, or without a snapshot.
    """
    info = store.newest_at_time(market, timestamp_ns, exchange=exchange)
    if info is None:
        return False
    store.load(info, book)
    _seek_behind(reader, info)

    def is_late(header: BookEventView) -> bool:
        found: int = header.exchange_ts_ns if exchange else header.ingest_ts_ns
        return found >= timestamp_ns

    return _replay(reader, book, market, is_late)


def _seek_behind(reader: QueueReader, info: SnapshotInfo) -> None:
    """Stand on the record after the snapshot; nothing there is fine as long as nothing was lost."""
    if not reader.seek_seq(info.seq + 1):
        return
    message = reader.next()
    if message is not None and message.seq != info.seq + 1:
        raise SnapshotGap(
            f"{info.path} is valid at record {info.seq}, but the oldest record after it is {message.seq}; "
            "take snapshots more often, or keep more of the queue"
        )
    reader.seek_seq(info.seq + 1)


def _replay(reader: QueueReader, book: Book, market: Market, stop: Callable[[BookEventView], bool]) -> bool:
    """Apply the market's events up to the head; True if `stop` said so, with that event still to read."""
    while (message := reader.next()) is not None:
        header = _event_of(message, market)
        if header is None:
            continue
        if stop(header):
            reader.seek_seq(message.seq)
            return True
        book.apply(message.payload)
    return False


def _event_of(message: MessageView, market: Market) -> BookEventView | None:
    if message.type_id != TypeId.BOOK_EVENT or len(message.payload) < HEADER_BYTES:
        return None
    header = BookEventView(message.payload)
    return header if (header.venue_id, header.market_id) == market else None


def numbered_files(fs: Fs, directory: str, prefix: str, suffix: str) -> list[int]:
    """Return the numbers between prefix and suffix of the names in a directory, rising."""
    try:
        names = fs.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    numbers = [
        name[len(prefix) : -len(suffix)]
        for name in names
        if name.startswith(prefix) and name.endswith(suffix)
    ]
    return sorted(int(number) for number in numbers if number.isascii() and number.isdigit())


def _version_for(book: Book) -> int:
    has_negative = any((side["price"] < 0).any() for side in book.depth(max(book.bid_count, book.ask_count)))
    return SNAPSHOT_VERSION if has_negative else UNSIGNED_VERSION


def _info(path: str, data: bytes) -> SnapshotInfo:
    """Return what a header says, after checking all of it that needs no payload."""
    if len(data) < SNAPSHOT_HEADER.itemsize:
        raise Corrupt(f"{path} has {len(data)} bytes, a snapshot's header alone has 128")
    header = np.frombuffer(data[:128], dtype=SNAPSHOT_HEADER)[0]
    if header["magic"] != MAGIC or header["header_len"] != 128:
        raise Corrupt(f"{path} is not a snapshot of a book: it does not begin with {MAGIC.decode()}")
    version = int(header["schema_version"])
    if not UNSIGNED_VERSION <= version <= SNAPSHOT_VERSION:
        raise UnsupportedVersion(f"{path} has snapshot version {version}, this build reads 1 and 2", version)
    if header["endianness"] != LITTLE_ENDIAN or header["book_mode"] > BookMode.L3:
        raise Unsupported(f"{path} has a byte order or a book mode that is not known")
    return SnapshotInfo(
        path,
        Market(int(header["venue_id"]), int(header["market_id"])),
        BookMode(int(header["book_mode"])),
        int(header["seq_num"]),
        (int(header["ingest_ts_start"]), int(header["ingest_ts_end"])),
        (int(header["exchange_ts_start"]), int(header["exchange_ts_end"])),
        int(header["payload_len"]),
        header["book_hash"].tobytes(),
        version,
    )
