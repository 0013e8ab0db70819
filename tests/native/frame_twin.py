"""The frame kernels once more, in plain Python: the judge that hypothesis compares with.

Written from the layout tables, field by field and without a thought for speed; it shares no code with the
product, `xxhash` included only as the hash itself.
"""

import struct
from typing import NamedTuple

import xxhash

APPEND = 1
HAS_META = 8
DELETED = 0xD5
WHITE = b" \t\r\n"


class Parts(NamedTuple):
    """What a frame is made of; a segment frame has neither type nor topic id."""

    type: int
    flags: int
    topic_id: int
    seq: int
    ts: int
    node: bytes
    tag: bytes
    data: bytes
    deleted: bool


def close_frame(body: bytes, mark: bytes) -> bytes:
    """Put the length before and the checksum (and the mark of a segment frame) behind."""
    frame = body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body)) + mark
    return struct.pack("<I", len(frame)) + frame


def log_frame(parts: Parts) -> bytes:
    """The bytes of a log frame."""
    fields = struct.pack("<BBQQQ", parts.type, parts.flags, parts.topic_id, parts.seq, parts.ts)
    lengths = struct.pack("<HHI", len(parts.node), len(parts.tag), len(parts.data))
    return close_frame(fields + lengths + parts.node + parts.tag + parts.data, b"")


def segment_frame(parts: Parts) -> bytes:
    """The bytes of a segment frame."""
    fields = struct.pack("<BQQ", parts.flags, parts.seq, parts.ts)
    lengths = struct.pack("<HHI", len(parts.node), len(parts.tag), len(parts.data))
    mark = bytes([DELETED if parts.deleted else 0])
    return close_frame(fields + lengths + parts.node + parts.tag + parts.data, mark)


def read_frame(data: bytes, offset: int, *, segment: bool, verify: bool) -> tuple[str, int, Parts | None]:
    """What reading one frame says ("ok", "end", "torn", "corrupt"), its size and its parts if sound."""
    rest = data[offset:]
    frame_len = int.from_bytes(rest[:4], "little")
    if len(rest) < 4 or frame_len == 0:
        return "end", 0, None
    frame, body_start, tail = rest[4 : 4 + frame_len], 25 if segment else 34, 9 if segment else 8
    if len(frame) < frame_len:
        return "torn", 0, None
    if frame_len < body_start + tail:
        return "corrupt", 0, None
    if segment:
        flags, seq, ts, node_len, tag_len, data_len = struct.unpack_from("<BQQHHI", frame)
        kind, topic_id = APPEND, 0
    else:
        kind, flags, topic_id, seq, ts, node_len, tag_len, data_len = struct.unpack_from("<BBQQQHHI", frame)
    body = frame[body_start:-tail]
    if node_len + tag_len + data_len != len(body) or (flags & HAS_META and data_len < 4):
        return "corrupt", 0, None
    stored = int.from_bytes(frame[-tail:][:8], "little")
    if verify and stored != xxhash.xxh3_64_intdigest(frame[:-tail]):
        return "corrupt", 0, None
    node, tag, blob = body[:node_len], body[node_len:][:tag_len], body[node_len + tag_len :]
    deleted = segment and frame[-1] == DELETED
    return "ok", 4 + frame_len, Parts(kind, flags, topic_id, seq, ts, node, tag, blob, deleted)


def scan_frames(data: bytes, start: int, *, segment: bool, verify: bool) -> tuple[int, int, str]:
    """How many sound frames there are from `start` on, where they end and why."""
    frames, offset = 0, start
    while True:
        outcome, size, _ = read_frame(data, offset, segment=segment, verify=verify)
        if outcome != "ok":
            return frames, offset, outcome
        frames += 1
        offset += size


def compact_json(text: bytes) -> bytes:
    """White space outside strings left out, one byte after the other."""
    kept = bytearray()
    inside = escaped = False
    for byte in text:
        if inside:
            kept.append(byte)
            if escaped:
                escaped = False
            elif byte == ord("\\"):
                escaped = True
            elif byte == ord('"'):
                inside = False
        elif byte not in WHITE:
            kept.append(byte)
            inside = byte == ord('"')
    return bytes(kept)


def is_utf8(text: bytes) -> bool:
    """Whether Python's own strict decoder takes it."""
    try:
        text.decode("utf-8", "strict")
    except UnicodeDecodeError:
        return False
    return True
