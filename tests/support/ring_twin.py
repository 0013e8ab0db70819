"""The native kernels once more, in plain Python over a bytearray: the judge that hypothesis compares with.

Written from the layout tables, byte by byte and without a thought for speed. Memory order has no twin: what
these functions define is which bytes there are afterwards.
"""

import struct
import zlib
from typing import NamedTuple

ALIGN = 64
MESSAGE_VERSION = 2
PAYLOAD_VERSION = 1
"""Of records whose checksum covers the payload only."""
PAD_TYPE = 0xFFFF
SEALED = 1


class Header(NamedTuple):
    """The fields of a message header that mean something."""

    commit_len: int
    version: int
    seq: int
    timestamp_ns: int
    type_id: int
    flags: int
    checksum: int


def record_size(payload_length: int) -> int:
    """Header plus payload, rounded up to whole cells."""
    return -(-(64 + payload_length) // ALIGN) * ALIGN


def header_at(data: bytes | bytearray, offset: int) -> Header:
    """Read a header, field by field."""
    return Header(
        commit_len=int.from_bytes(data[offset : offset + 4], "little"),
        version=data[offset + 4],
        seq=int.from_bytes(data[offset + 8 : offset + 16], "little"),
        timestamp_ns=int.from_bytes(data[offset + 16 : offset + 24], "little"),
        type_id=int.from_bytes(data[offset + 24 : offset + 26], "little"),
        flags=int.from_bytes(data[offset + 26 : offset + 28], "little"),
        checksum=int.from_bytes(data[offset + 28 : offset + 32], "little"),
    )


def checksum_of(record: bytes | bytearray) -> int:
    """The checksum of a header and its payload, whatever stands in the commit word and in the checksum."""
    return zlib.crc32(bytes(4) + bytes(record[4:28]) + bytes(4) + bytes(record[32:]))


def sound(data: bytes | bytearray, offset: int) -> bool:
    """Whether the record at `offset` has the checksum of its version; an unknown one may have either."""
    header = header_at(data, offset)
    record = data[offset : offset + 63 + header.commit_len]
    of_payload = zlib.crc32(record[64:]) == header.checksum
    of_record = checksum_of(record) == header.checksum and not any(record[32:64])
    return {MESSAGE_VERSION: of_record, PAYLOAD_VERSION: of_payload}.get(
        header.version, of_record or of_payload
    )


def is_padding(data: bytes | bytearray, offset: int) -> bool:
    """Whether the record at `offset` is padding as a writer writes it; its checksum does not matter."""
    header = header_at(data, offset)
    reaches_end = end_of(data, offset) == len(data)
    return reaches_end and header.seq == header.timestamp_ns == header.flags == 0


def append(
    data: bytearray,
    offset: int,
    seq: int,
    timestamp_ns: int,
    type_id: int,
    payload: bytes,
    version: int = MESSAGE_VERSION,
) -> int:
    """Write a committed record and return where it ends."""
    end = offset + record_size(len(payload))
    if end + 64 <= len(data):
        data[end : end + 4] = bytes(4)
    data[offset + 64 : offset + 64 + len(payload)] = payload
    fields = (len(payload) + 1, version, seq, timestamp_ns, type_id, 0)
    header = struct.pack("<IB3xQQHHI32x", *fields, 0)
    checksum = zlib.crc32(payload) if version == PAYLOAD_VERSION else checksum_of(header + payload)
    data[offset : offset + 64] = struct.pack("<IB3xQQHHI32x", *fields, checksum)
    return end


def pad(data: bytearray, offset: int) -> None:
    """Fill the rest of the segment with one padding record, if a header fits."""
    rest = len(data) - offset
    if rest < 64:
        return
    data[offset:] = struct.pack("<IB3xQQHHI32x", rest - 63, MESSAGE_VERSION, 0, 0, PAD_TYPE, 0, 0) + bytes(
        rest - 64
    )


def seal(data: bytearray) -> None:
    """Set the flag."""
    data[12] |= SEALED


def publish_head(control: bytearray, segment_id: int, offset: int) -> None:
    """What the control block holds after the pair was published."""
    (generation,) = struct.unpack_from("<I", control, 128)
    odd = generation | 1
    struct.pack_into("<II", control, 128, (odd + 1) & 0xFFFFFFFF, segment_id)
    struct.pack_into("<Q", control, 256, offset)


def read_head(control: bytes | bytearray) -> tuple[int, int]:
    """The published pair; with an odd generation only the segment can be believed."""
    generation, segment_id = struct.unpack_from("<II", control, 128)
    (offset,) = struct.unpack_from("<Q", control, 256)
    return segment_id, 64 if generation % 2 else offset


def walk(data: bytes | bytearray, start: int) -> list[int]:
    """Offsets of the committed records from `start` whose length stays inside the segment."""
    offsets = []
    offset = start
    while offset + 64 <= len(data):
        commit_len = header_at(data, offset).commit_len
        if commit_len == 0 or offset + record_size(commit_len - 1) > len(data):
            break
        offsets.append(offset)
        offset += record_size(commit_len - 1)
    return offsets


def end_of(data: bytes | bytearray, offset: int) -> int:
    """Where the committed record at `offset` ends."""
    return offset + record_size(header_at(data, offset).commit_len - 1)


def scan(data: bytes | bytearray, start: int, verify: bool) -> dict[str, int]:
    """What recovery wants to know: how far the records go and how far they are sound."""
    result = dict.fromkeys(
        (
            "records",
            "first_seq",
            "last_seq",
            "min_ts_ns",
            "max_ts_ns",
            "last",
            "bad",
            "first_bad",
            "foreign",
            "padded",
        ),
        0,
    )
    result["end"] = result["good_end"] = start
    waiting: list[int] = []  # unsound records, until a sound one follows
    good: list[Header] = []
    for offset in walk(data, start):
        header = header_at(data, offset)
        result["end"] = end_of(data, offset)
        is_pad = header.type_id == PAD_TYPE
        if not (is_padding(data, offset) if is_pad else not verify or sound(data, offset)):
            waiting.append(offset)
            continue
        if header.version not in (MESSAGE_VERSION, PAYLOAD_VERSION) and not result["foreign"]:
            result["foreign"] = offset
        if waiting and not result["bad"]:
            result["first_bad"] = waiting[0]
        result["bad"] += len(waiting)
        waiting = []
        result["good_end"] = end_of(data, offset)
        if is_pad:
            result["padded"] = 1
            break
        good.append(header)
        result["last"] = offset
    if good:
        timestamps = [header.timestamp_ns for header in good]
        result |= {
            "records": len(good),
            "first_seq": good[0].seq,
            "last_seq": good[-1].seq,
            "min_ts_ns": min(timestamps),
            "max_ts_ns": max(timestamps),
        }
    return result


def find(data: bytes | bytearray, start: int, target: int, by_timestamp: bool) -> int:
    """Offset of the first record (no padding) that reaches `target`, 0 if there is none."""
    for offset in walk(data, start):
        header = header_at(data, offset)
        key = header.timestamp_ns if by_timestamp else header.seq
        if header.type_id != PAD_TYPE and key >= target:
            return offset
    return 0
