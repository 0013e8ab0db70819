r"""Every byte of a topics data directory: names, sizes, offsets. Holds no logic and touches no file.

Files of one data directory (all integers little-endian)::

    .topics.lock                                    exclusive flock of the one process
    .topics.boot                                    the run of the machine that used it last, as text
    .topics.synced                                  up to where each log file is on disk
    .topics.reserve                                 room for deletes and checkpoints on a full disk
    .topics.owner                                   owner of the backup that it is shipped to
    meta/snapshot-NNNNNNNNNNNNNNNN.bin              the newest valid one counts
    .topics.snapshot-NNNNNNNNNNNNNNNN.copy          the same bytes again, after a clean stop
    wal/wal-NNNNNNNNNNNNNNNN.log                    the log; with several shards wal/shard-NN/...
    topics/<topic id>/seg-NNNNNNNNNNNNNNNN.data     records of a topic, named by their first seq
    topics/<topic id>/seg-NNNNNNNNNNNNNNNN.idx      where each of them is
    remote/topics/<topic id>/seg-....data, .idx     stub and index of a segment in an object store
    remote/garbage/...                              keys of objects that may have to be removed
    N: decimal, at least 16 digits (shard: 2); topic id: upper-case hexadecimal, at least 8 digits

Log frame: header of 38 bytes, body, checksum; a frame_len of 0 ends the file::

     0           4      5       6          14    22   30         32        34         38
     +-----------+------+-------+----------+-----+----+----------+---------+----------+- - -
     | frame_len | type | flags | topic_id | seq | ts | node_len | tag_len | data_len | body
     +-----------+------+-------+----------+-----+----+----------+---------+----------+- - -
     frame_len: bytes of the frame without this field

     38     38 + node_len   + tag_len             + data_len                      + 8
      +------+---------------+---------------------+-------------------------------+
      | node | tag           | data                | xxh3 of [4, here)             |
      +------+---------------+---------------------+-------------------------------+
     data with FLAG_HAS_META: meta_len u32, meta text, data text; else the data text alone

Segment frame: header of 29 bytes, the same body, checksum, mark::

     0           4       5     13   21         23        25         29
     +-----------+-------+-----+----+----------+---------+----------+- - - -+------+------+
     | frame_len | flags | seq | ts | node_len | tag_len | data_len | body  | xxh3 | mark |
     +-----------+-------+-----+----+----------+---------+----------+- - - -+------+------+
     mark: one byte outside the checksum, 0xD5 = the record was deleted, any other value = it was not

Segment index: one entry of 20 bytes per seq, the first one that of the file name::

     0        4      8    16      17     20
     +--------+------+----+-------+------+
     | offset | size | ts | flags | zero |
     +--------+------+----+-------+------+
     size: of the whole frame, 0 for a seq without a record (flags then has INDEX_FLAG_DELETED)

Snapshot file: header of 20 bytes, payload, checksum::

     0            8         12            20          20 + payload_len     + 8
     +------------+---------+-------------+-----------+--------------------+
     | "EVLGSNAP" | version | payload_len | payload   | xxh3 of payload    |
     +------------+---------+-------------+-----------+--------------------+

Synced ends: one slot of 32 bytes per log file, all zero or::

     0             8        16      20       24     32
     +-------------+--------+-------+--------+------+
     | file number | offset | shard | shards | xxh3 |
     +-------------+--------+-------+--------+------+
     offset: up to there the file was synced; xxh3 of [0, 24)

The C core repeats the frames in `native/topics/frames.h`; a test compares the two.
"""

from __future__ import annotations

import struct
from enum import IntEnum

CHECKSUM = struct.Struct("<Q")
META_LEN = struct.Struct("<I")
META_LEN_SIZE = 4

LOG_FRAME_LEN = 0
LOG_TYPE = 4
LOG_FLAGS = 5
LOG_TOPIC_ID = 6
LOG_SEQ = 14
LOG_TS = 22
LOG_NODE_LEN = 30
LOG_TAG_LEN = 32
LOG_DATA_LEN = 34
LOG_HEADER = struct.Struct("<IBBQQQHHI")
LOG_HEADER_SIZE = 38
LOG_TRAILER_SIZE = 8

SEGMENT_FRAME_LEN = 0
SEGMENT_FLAGS = 4
SEGMENT_SEQ = 5
SEGMENT_TS = 13
SEGMENT_NODE_LEN = 21
SEGMENT_TAG_LEN = 23
SEGMENT_DATA_LEN = 25
SEGMENT_HEADER = struct.Struct("<IBQQHHI")
SEGMENT_HEADER_SIZE = 29
SEGMENT_TRAILER_SIZE = 9
SEGMENT_DELETED = 0xD5
"""The mark, the last byte of the frame."""

INDEX_ENTRY = struct.Struct("<IIQB3x")
INDEX_ENTRY_SIZE = 20
INDEX_OFFSET = 0
INDEX_SIZE = 4
INDEX_TS = 8
INDEX_FLAGS = 16
INDEX_FLAG_DELETED = 64
"""In an index entry only; the other flags there are has_tag, has_node and has_meta of the frame."""

SYNCED_END = struct.Struct("<QQII")
SYNCED_SLOT_SIZE = 32

SNAPSHOT_MAGIC = b"EVLGSNAP"
SNAPSHOT_VERSION = 1
SNAPSHOT_HEADER = struct.Struct("<8sIQ")
SNAPSHOT_HEADER_SIZE = 20
SNAPSHOT_TRAILER_SIZE = 8

FLAG_HAS_TAG = 1
FLAG_HAS_NODE = 2
FLAG_DURABLE = 4
FLAG_HAS_META = 8
FLAG_BATCH_CONTINUES = 16
"""The next frame of the log belongs to the same all-or-nothing batch."""

TYPE_APPEND = 1


class FrameType(IntEnum):
    """What a log frame says; the first eleven are the contract's, the others additions."""

    APPEND = TYPE_APPEND
    TOPIC_CREATE = 2
    TOPIC_DELETE = 3
    ROUTER_CREATE = 4
    ROUTER_DELETE = 5
    DELETE = 6
    EVICT_WATERMARK = 7
    CHECKPOINT_MARK = 8
    CONFIG_UPDATE = 9
    LEASE = 10
    HEAD_WATERMARK = 11
    IDEMPOTENCY_KEY = 12
    FILE_END = 13
    FORWARD = 14
    DELETE_SEQS = 16
    DAMAGE = 17
    CONSUMER = 18
    CONSUMER_COMMIT = 19
    CONSUMER_DELETE = 20
    JOBS = 21
    REDRIVEN = 22
    SCHEDULE = 23
    SCHEDULE_FIRED = 24


LOCK_FILE = ".topics.lock"
BOOT_FILE = ".topics.boot"
"""Names the run of the machine in which the directory was last open; see `Fs.boot_id`."""
SYNCED_FILE = ".topics.synced"
RESERVE_FILE = ".topics.reserve"
OWNER_FILE = ".topics.owner"
"""Names the last owners of the backup that this directory is shipped to."""
RESTORING_FILE = ".topics.restoring"
"""Marks a directory that is being filled from a backup, or follows one: it is no data directory yet."""
META_DIR = "meta"
WAL_DIR = "wal"
TOPICS_DIR = "topics"
REMOTE_DIR = "remote"
"""Stubs and indexes of segments whose data is in an object store."""
TEMPORARY_SUFFIX = ".tmp"
DAMAGED_SUFFIX = ".damaged"
"""A damaged log file as it was before what is sound in it was saved; it is never read."""
ORPHAN_SUFFIX = ".orphan"
"""The same, left by version 0.1."""

assert LOG_HEADER.size == LOG_HEADER_SIZE == LOG_DATA_LEN + 4
assert CHECKSUM.size == LOG_TRAILER_SIZE
assert SEGMENT_HEADER.size == SEGMENT_HEADER_SIZE == SEGMENT_DATA_LEN + 4
assert CHECKSUM.size + 1 == SEGMENT_TRAILER_SIZE
assert META_LEN.size == META_LEN_SIZE
assert INDEX_ENTRY.size == INDEX_ENTRY_SIZE == INDEX_FLAGS + 4
assert SNAPSHOT_HEADER.size == SNAPSHOT_HEADER_SIZE
assert CHECKSUM.size == SNAPSHOT_TRAILER_SIZE
assert SYNCED_END.size + CHECKSUM.size == SYNCED_SLOT_SIZE
assert len(SNAPSHOT_MAGIC) == 8


class NumberedName:
    """The name of a file or directory: a prefix, a number with leading zeros, a suffix."""

    __slots__ = ("_base", "_digits", "_prefix", "_suffix")

    def __init__(self, prefix: str, digits: str, suffix: str = "") -> None:
        self._prefix = prefix
        self._digits = digits
        self._suffix = suffix
        self._base = 16 if digits.endswith("X") else 10

    def name(self, number: int) -> str:
        """Return the name with this number."""
        return f"{self._prefix}{number:{self._digits}}{self._suffix}"

    def number(self, name: str) -> int | None:
        """Return the number in a name, None for any other name."""
        try:
            number = int(name.removeprefix(self._prefix).removesuffix(self._suffix), self._base)
        except ValueError:
            return None
        return number if number >= 0 and self.name(number) == name else None


WAL_FILE = NumberedName("wal-", "016d", ".log")
SHARD_DIR = NumberedName("shard-", "02d")
SNAPSHOT_FILE = NumberedName("snapshot-", "016d", ".bin")
SNAPSHOT_COPY = NumberedName(".topics.snapshot-", "016d", ".copy")
"""In the data directory: a clean stop leaves one snapshot, so a second file stands in for it."""
SEGMENT_DATA = NumberedName("seg-", "016d", ".data")
SEGMENT_INDEX = NumberedName("seg-", "016d", ".idx")
TOPIC_DIR = NumberedName("", "08X")
