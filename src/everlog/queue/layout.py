r"""Every byte of a queue directory: names, sizes, offsets. Holds no logic and touches no file.

Files of one queue (all integers little-endian)::

    control.meta         the control block, shared by writer and readers
    writer.lock          flock + "pid start_ticks epoch"
    queue.id             32 hex digits that no other queue has, also not one made anew at the same path
    index.meta           where flush_sync last stood
    NNNNNNNNN.q          a segment          (NNNNNNNNN.q.tmp while it is prepared)
    NNNNNNNNN.idx        its seek index
    readers/<name>.meta  a reader's committed position and heartbeat
    READY, LEASE         markers of the bus (optional)

Message header, 64 bytes, followed by the payload, then up to 63 bytes of padding::

     0               4 5       8              16              24  26  28      32              64
     +---------------+-+-------+---------------+---------------+---+---+-------+---------------+
     | commit_len    |v| zero  | seq           | timestamp_ns  |typ|flg| crc32 | zero          |
     +---------------+-+-------+---------------+---------------+---+---+-------+---------------+
     commit_len: 0 = not committed, else payload length + 1. Written last, with Release.
     crc32: of header and payload, with commit_len and crc32 taken as 0 (version 1: of the payload only).

Segment header, 64 bytes, then records from offset 64 to the end of the file::

     0       4         8            12      16                                               64
     +-------+---------+------------+-------+------------------------------------------------+
     | magic | version | segment_id | flags | zero                                           |
     +-------+---------+------------+-------+------------------------------------------------+

Control block, 512 bytes: constants | reader-hot line | writer-hot line | futex line::

     0 magic   4 version   8 init_state   16 writer_epoch   24 segment_size
     128 segment_gen (seqlock)   132 current_segment
     256 write_offset   264 writer_heartbeat_ns
     384 notify_seq (futex word)   388 waiters_pending

Reader meta, 80 bytes: two slots of 40; the valid one with the higher generation counts::

     0            8        16                  24           32      36     40
     +------------+--------+-------------------+------------+-------+------+
     | segment_id | offset | last_heartbeat_ns | generation | crc32 | zero |
     +------------+--------+-------------------+------------+-------+------+

Seek index: header 80 bytes, then entries of 24 bytes (seq, timestamp_ns, offset)::

     0 "CHRIDX1\0"   8 u16 version   10 u16 header_len   12 u32 flags   16 u64 segment_id
     24 u64 segment_size   32 u32 data_offset   36 u32 entry_stride   40 u64 min_seq
     48 u64 max_seq   56 u64 min_ts_ns   64 u64 max_ts_ns   72 u64 entry_count

The C core repeats the hot offsets in `native/queue/ring_core.h`; tests compare the bytes.
"""

from __future__ import annotations

import re
import struct

HEADER_SIZE = 64
RECORD_ALIGN = 64
MAX_PAYLOAD_LEN = 2**32 - 2
PAD_TYPE_ID = 0xFFFF
MSG_VERSION = 2
"""Of new records: the checksum covers header (commit word and checksum taken as zero) and payload."""
MSG_VERSION_PAYLOAD = 1
"""Of records of earlier builds: the checksum covers the payload only."""

MSG_COMMIT_LEN = 0
MSG_VERSION_OFFSET = 4
MSG_SEQ = 8
MSG_TIMESTAMP_NS = 16
MSG_TYPE_ID = 24
MSG_FLAGS = 26
MSG_CHECKSUM = 28
MESSAGE_HEADER = struct.Struct("<IB3xQQHHI32x")

SEG_MAGIC = 0x53454730
SEG_VERSION = 2
SEG_FLAG_SEALED = 1
SEG_DATA_OFFSET = 64
SEG_FLAGS = 12
SEGMENT_HEADER = struct.Struct("<IIII48x")
SEGMENT_SIZE_MIN = 128
SEGMENT_ID_MAX = 999_999_999
"""Nine digits is all a file name has room for."""

CTRL_MAGIC = 0x4348524E
CTRL_VERSION = 3
CTRL_SIZE = 512
CTRL_PREFIX = struct.Struct("<III4xQQ")
"""Magic, version, init_state, writer_epoch, segment_size."""
CTRL_MAGIC_OFFSET = 0
CTRL_VERSION_OFFSET = 4
CTRL_INIT_STATE = 8
CTRL_WRITER_EPOCH = 16
CTRL_SEGMENT_SIZE = 24
CTRL_SEGMENT_GEN = 128
CTRL_CURRENT_SEGMENT = 132
CTRL_WRITE_OFFSET = 256
CTRL_WRITER_HEARTBEAT_NS = 264
CTRL_NOTIFY_SEQ = 384
CTRL_WAITERS_PENDING = 388
INIT_STATE_INITIALIZING = 1
INIT_STATE_READY = 2

READER_SLOT = struct.Struct("<QQQQI4x")
READER_META_SIZE = 80

INDEX_META = struct.Struct("<QQ")

SEEK_INDEX_MAGIC = b"CHRIDX1\0"
SEEK_INDEX_VERSION = 1
SEEK_INDEX_FLAG_PARTIAL = 1
SEEK_INDEX_HEADER = struct.Struct("<8sHHIQQIIQQQQQ")
SEEK_INDEX_ENTRY = struct.Struct("<QQQ")

CONTROL_FILE = "control.meta"
LOCK_FILE = "writer.lock"
IDENTITY_FILE = "queue.id"
INDEX_META_FILE = "index.meta"
READERS_DIR = "readers"
READER_META_SUFFIX = ".meta"
READY_FILE = "READY"
LEASE_FILE = "LEASE"

assert MESSAGE_HEADER.size == HEADER_SIZE
assert SEGMENT_HEADER.size == SEG_DATA_OFFSET
assert READER_SLOT.size * 2 == READER_META_SIZE
assert INDEX_META.size == 16
assert SEEK_INDEX_HEADER.size == 80
assert SEEK_INDEX_ENTRY.size == 24
assert CTRL_WAITERS_PENDING + 4 <= CTRL_SIZE

_SEGMENT_NAME = re.compile(r"([0-9]{9})\.q")
_SEEK_INDEX_NAME = re.compile(r"([0-9]{9})\.idx")


def align64(length: int) -> int:
    """Round `length` up to a multiple of 64."""
    return (length + RECORD_ALIGN - 1) & -RECORD_ALIGN


def segment_name(segment_id: int) -> str:
    """Return the file name of a segment."""
    return f"{segment_id:09d}.q"


def seek_index_name(segment_id: int) -> str:
    """Return the file name of a segment's seek index."""
    return f"{segment_id:09d}.idx"


def parse_segment_name(name: str) -> int | None:
    """Return the id in a segment's file name, None for any other name."""
    match = _SEGMENT_NAME.fullmatch(name)
    return int(match[1]) if match else None


def parse_seek_index_name(name: str) -> int | None:
    """Return the id in a seek index's file name, None for any other name."""
    match = _SEEK_INDEX_NAME.fullmatch(name)
    return int(match[1]) if match else None
