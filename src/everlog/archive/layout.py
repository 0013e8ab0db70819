r"""Names and bytes of an archive: the path contract, file names, the block index, `meta.json`, the stub.

Holds no logic beyond encoding and decoding, and touches no file. Paths below one archive root::

    v1/<venue>/<symbol>/<date>/<stream>/     one stream of one symbol and day
    v1/szse/<date>/<channel>/                SZSE: one stream per channel
    raw/v1/<venue>/<date>/raw/               sealed segments of a live queue, as they were

Files of one such directory, `NNNNNNNNN` being the segment's id::

    NNNNNNNNN.q                  a sealed segment                       (first choice of a reader)
    NNNNNNNNN.q.zst              the same, compressed: one zstd frame per block   (second)
    NNNNNNNNN.q.zst.idx          where each frame is
    NNNNNNNNN.q.zst.remote.json  a stub: both are in an object store                (third)
    NNNNNNNNN.idx                the seek index of the queue format; it stays here in every tier
    meta.json                    what the directory holds
    .access_log                  lines `segment_id,unix_seconds`: when segments were read

Block index, all integers little-endian: a header of 24 bytes, then one entry of 24 bytes a frame::

     0            8         10           12           16
     +------------+---------+------------+------------+-------------+
     | "QZSTIDX1" | version | header_len | block_size | frame_count |
     +------------+---------+------------+------------+-------------+
     0                     8                   16                20                  24
     +---------------------+-------------------+-----------------+-------------------+
     | uncompressed_offset | compressed_offset | compressed_size | uncompressed_size |
     +---------------------+-------------------+-----------------+-------------------+
"""

from __future__ import annotations

import os
import re
import struct
from datetime import UTC, date, datetime
from typing import Final, NamedTuple

import msgspec

from everlog.clock import NS_PER_S
from everlog.errors import CorruptMetadata, InvalidName, InvalidPartition
from everlog.queue.layout import segment_name
from everlog.queue.names import check_component

BLOCK_INDEX_MAGIC: Final = b"QZSTIDX1"
BLOCK_INDEX_VERSION: Final = 1
BLOCK_INDEX_HEADER: Final = struct.Struct("<8sHHIQ")
BLOCK_INDEX_ENTRY: Final = struct.Struct("<QQII")
assert BLOCK_INDEX_HEADER.size == 24
assert BLOCK_INDEX_ENTRY.size == 24

ZST_SUFFIX: Final = ".zst"
BLOCK_INDEX_SUFFIX: Final = ".zst.idx"
STUB_SUFFIX: Final = ".zst.remote.json"
META_FILE: Final = "meta.json"
ACCESS_LOG_FILE: Final = ".access_log"
LOCK_FILE: Final = ".archive.lock"
VERSION: Final = "v1"
RAW: Final = "raw"
LATE_STREAM: Final = "late"
_DAY_S: Final = 86_400
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_SEGMENT_FILE: Final = re.compile(r"(\d{9})\.q(\.zst|\.zst\.remote\.json)?")


class ArchiveMeta(msgspec.Struct, kw_only=True, frozen=True):
    """`meta.json`: what a directory of the archive holds. The range of times is inclusive at both ends."""

    venue: str
    symbol_code: str
    ingest_time_ns: int
    event_time_range: tuple[int, int] | None = None
    completeness: str = "sealed"
    symbol_id: int | None = None
    symbol_version_id: int | None = None
    exchange_symbol: str | None = None
    source: str | None = None
    late_policy: str | None = None


class RemoteStub(msgspec.Struct, kw_only=True, frozen=True):
    """What stays of a segment in an object store; sizes and digest are those of the objects."""

    remote_uri: str
    size_bytes: int
    idx_size_bytes: int
    sha256: str

    @property
    def is_compressed(self) -> bool:
        """Whether this names a compressed segment; every stub does, a listed address may have others."""
        return self.remote_uri.endswith(ZST_SUFFIX)

    @property
    def index_uri(self) -> str:
        """Where the block index is."""
        return self.remote_uri.removesuffix(ZST_SUFFIX) + BLOCK_INDEX_SUFFIX


class StreamKey(NamedTuple):
    """What the path of a directory says about its messages; parts that a path does not have are None."""

    venue: str
    symbol: str | None
    date: str
    stream: str
    is_raw: bool = False


def segment_file(directory: str, segment_id: int, suffix: str = "") -> str:
    """Return the path of one file of a segment."""
    return os.path.join(directory, segment_name(segment_id) + suffix)


def parse_file_name(name: str) -> tuple[int, str] | None:
    """Return the segment's id and the suffix behind `.q`, None for a file that holds no segment."""
    match = _SEGMENT_FILE.fullmatch(name)
    return (int(match[1]), match[2] or "") if match else None


def check_date(text: str) -> str:
    """Return a date of the form YYYY-MM-DD, or raise InvalidPartition."""
    if _DATE.fullmatch(text):
        try:
            date.fromisoformat(text)
        except ValueError:
            pass
        else:
            return text
    raise InvalidPartition(f"{text!r} is not a date; write it as YYYY-MM-DD")


def day_of(timestamp_ns: int) -> str:
    """Return the UTC day of a time."""
    return datetime.fromtimestamp(timestamp_ns // NS_PER_S, UTC).strftime("%Y-%m-%d")


def day_end_ns(day: str) -> int:
    """Return the first nanosecond after a UTC day."""
    begin = datetime.fromisoformat(check_date(day)).replace(tzinfo=UTC)
    return (int(begin.timestamp()) + _DAY_S) * NS_PER_S


def symbol_code(exchange_symbol: str) -> str:
    """Return a symbol as it appears in paths: lower case, `/`, `:` and spaces as `-`, no other signs."""
    text = re.sub(r"[/: ]", "-", exchange_symbol.lower())
    code = re.sub(r"-{2,}", "-", re.sub(r"[^a-z0-9._-]", "", text)).strip("-")
    if not code:
        raise InvalidName(f"nothing of the symbol {exchange_symbol!r} can be part of a path")
    return check_component(code, "symbol")


def stream_directory(root: str, venue: str, symbol: str, day: str, stream: str) -> str:
    """Return where a stream of one symbol and day is; no part of it can lead out of the root."""
    parts = (check_component(venue, "venue"), check_component(symbol, "symbol"), check_date(day))
    return os.path.join(root, VERSION, *parts, check_component(stream, "stream"))


def raw_directory(root: str, venue: str, day: str) -> str:
    """Return where the sealed segments of a venue's live queue are that begin on this day."""
    return os.path.join(root, RAW, VERSION, check_component(venue, "venue"), check_date(day), RAW)


def parse_directory(directory: str) -> StreamKey | None:
    """Return what the last parts of a path say, None if the path contract does not know it."""
    parts = os.path.abspath(directory).split(os.sep)[-5:]
    if len(parts) < 5 or not _DATE.fullmatch(parts[3]):
        return None
    if parts[:2] == [RAW, VERSION] and parts[4] == RAW:
        return StreamKey(parts[2], None, parts[3], RAW, is_raw=True)
    if parts[0] == VERSION:
        return StreamKey(parts[1], parts[2], parts[3], parts[4])
    return StreamKey(parts[2], None, parts[3], parts[4]) if parts[1] == VERSION else None


def decode_stub(path: str, data: bytes) -> RemoteStub:
    """Return what a stub says; CorruptMetadata for anything that no stub says."""
    try:
        stub = msgspec.json.decode(data, type=RemoteStub)
    except msgspec.DecodeError as error:
        raise CorruptMetadata(f"{path} is not a stub of a remote segment: {error}") from error
    if not stub.remote_uri.endswith(ZST_SUFFIX) or stub.size_bytes < 1 or len(stub.sha256) != 64:
        raise CorruptMetadata(f"{path} names no compressed segment: {stub}")
    return stub
