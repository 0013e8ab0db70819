"""What a log file holds after a stop: frames to its end, a tail that a crash has torn, or damage.

Owns the rule that distinguishes the two and the search for sound frames behind damage. Looks at bytes only;
what the frames mean is decided in `recovery`, and `verify` reports by the same rule.

A crash can tear only what was not synced, and a process that is killed on a machine that runs on leaves a
beginning of its last write. Anything else that is not sound is damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everlog.errors import Corrupt
from everlog.native.topics import log as frames
from everlog.topics.storage import control, layout
from everlog.topics.storage.synced_ends import SyncedEnd
from everlog.topics.storage.wal_files import END_FRAME_SIZE, end_frame, read_end_frame

if TYPE_CHECKING:
    from typing_extensions import Buffer

_WINDOW: Final = 1 << 20
_FRAME_LEN_MIN: Final = layout.LOG_HEADER_SIZE + layout.LOG_TRAILER_SIZE - 4
_RECORD_SIZE_MIN: Final = _FRAME_LEN_MIN + 4 + 1
"""A record has at least one byte of data, so this bounds how many can be lost in so many bytes."""
_FRAME_TYPES: Final = frozenset(map(int, layout.FrameType))


class LostRange(NamedTuple):
    """Bytes of a log file that hold no sound frame, and how many records can have been in them at most."""

    offset: int
    size: int
    records: int


class Survey(NamedTuple):
    """The frames of a log file from its start on.

    Without `lost` they go on to the end frame, or a crash has torn what is behind `end`. With `lost` there is
    damage, and `salvaged` is the file with a Damage frame in place of each lost range, and an end frame.
    """

    end: int
    is_ended: bool
    lost: tuple[LostRange, ...] = ()
    salvaged: bytes = b""
    ends_as: int = 0
    """The number of the file in its end frame, 0 if there is none."""


def survey(
    content: Buffer, start: int, synced: SyncedEnd | None, *, is_last: bool, is_trusted: bool
) -> Survey:
    """Look through a log file.

    `is_last`: no later file of its shard has frames. `is_trusted`: nothing that was written can be missing,
    because the machine has not stopped since.
    """
    end = frames.scan_log_frames(content, start).end
    raw = np.frombuffer(memoryview(content), np.uint8)
    if (number := _end_number(content, start, end)) is not None:
        return Survey(end, True, ends_as=number)
    # Another file under this name may have its end before `start`, or `start` within a frame.
    number = read_end_frame(content, frames.scan_log_frames(content, 0).end) if start else None
    synced_to = 0 if synced is None else synced.offset
    written_end = _written_end(raw, end)
    if is_last and end >= synced_to and not (is_trusted and _is_damaged(content, raw, end, written_end)):
        return Survey(end, False, ends_as=number or 0)
    if not is_last and synced is None:
        synced_to = len(raw)  # a rotated file was synced as a whole
    promised = (synced or SyncedEnd(0, 0))._replace(offset=synced_to)
    found = _salvage(content, raw, end, promised, written_end, is_trusted)
    return found._replace(ends_as=found.ends_as or number or 0)


def missing_file(synced: SyncedEnd) -> Survey:
    """The survey of a log file that is gone although it was synced."""
    lost = LostRange(0, synced.offset, synced.offset // _RECORD_SIZE_MIN + 1)
    frame = damage_frame(lost.size, lost.records, synced.shard, synced.shards)
    return Survey(0, True, (lost,), frame + end_frame(synced.file_number))


def _salvage(
    content: Buffer,
    raw: NDArray[np.uint8],
    end: int,
    synced: SyncedEnd,
    written_end: int,
    is_trusted: bool,
) -> Survey:
    """Collect what is sound behind the first damage."""
    pieces = [bytes(raw[:end])]
    lost: list[LostRange] = []
    at = end
    number: int | None = None
    while number is None and (not lost or at < max(synced.offset, written_end)):
        if lost and at >= synced.offset and not is_trusted:
            break  # from here on a power loss may have taken anything
        found = next_frame(content, at, written_end)
        lost_end = max(at, synced.offset, written_end) if found is None else found
        lost.append(LostRange(at, lost_end - at, _records_within(raw, at, lost_end)))
        pieces.append(damage_frame(lost[-1].size, lost[-1].records, synced.shard, synced.shards))
        if found is None:
            break
        at = frames.scan_log_frames(content, found).end
        pieces.append(bytes(raw[found:at]))
        number = _end_number(content, found, at)
    if number is None:
        pieces.append(end_frame(synced.file_number))
    return Survey(end, number is not None, tuple(lost), b"".join(pieces), number or 0)


def damage_frame(lost_bytes: int, records: int, shard: int = 0, shards: int = 0) -> bytes:
    """A frame in place of others that are lost, with up to so many records; see `control.Damage`."""
    buffer = frames.FrameBuffer()
    entry = control.Damage(lost_bytes, records, shard, shards)
    buffer.append_control(layout.FrameType.DAMAGE, 0, 0, 0, 0, control.encode(entry))
    return buffer.tobytes()


def next_frame(content: Buffer, start: int, stop: int) -> int | None:
    """Return where the first sound frame behind `start` begins, None if there is none before `stop`."""
    raw = np.frombuffer(memoryview(content), np.uint8)
    for low in range(start, stop, _WINDOW):
        for offset in _possible_frames(raw, low, min(low + _WINDOW, stop)):
            try:
                frame = frames.read_log_frame(content, offset)
            except Corrupt:
                continue
            if frame.type in _FRAME_TYPES:
                return offset
    return None


def _possible_frames(raw: NDArray[np.uint8], low: int, high: int) -> Iterator[int]:
    """Yield the offsets at which the lengths of a header agree with each other."""
    high = min(high, len(raw) - _FRAME_LEN_MIN - 3)
    if high <= low:
        return
    frame_lens = np.zeros(high - low, np.int64)
    for byte in range(4):
        frame_lens |= raw[low + byte : high + byte].astype(np.int64) << (8 * byte)
    offsets = np.arange(low, high)
    offsets = offsets[(frame_lens >= _FRAME_LEN_MIN) & (frame_lens <= len(raw) - 4 - offsets)]
    texts = sum(
        _words(raw, offsets, field, size)
        for field, size in ((layout.LOG_NODE_LEN, 2), (layout.LOG_TAG_LEN, 2), (layout.LOG_DATA_LEN, 4))
    )
    yield from offsets[frame_lens[offsets - low] == texts + _FRAME_LEN_MIN].tolist()


def _words(raw: NDArray[np.uint8], offsets: NDArray[np.int64], field: int, size: int) -> NDArray[np.int64]:
    """Read a little-endian field of many headers."""
    value = np.zeros(len(offsets), np.int64)
    for byte in range(size):
        value |= raw[offsets + (field + byte)].astype(np.int64) << (8 * byte)
    return value


def _end_number(content: Buffer, start: int, end: int) -> int | None:
    return read_end_frame(content, end) if end - END_FRAME_SIZE >= start else None


def _written_end(raw: NDArray[np.uint8], start: int) -> int:
    """Return where the last byte behind `start` ends that is not zero."""
    high = len(raw)
    while high > start:
        low = max(start, high - _WINDOW)
        written = np.flatnonzero(raw[low:high])
        if len(written):
            return low + int(written[-1]) + 1
        high = low
    return start


def _is_damaged(content: Buffer, raw: NDArray[np.uint8], at: int, written_end: int) -> bool:
    """Whether what begins at `at` cannot be the beginning of a write that was cut short."""
    if next_frame(content, at, written_end) is not None:
        return True
    if written_end - at < layout.LOG_HEADER_SIZE:
        return False
    size = _size_by_header(raw, at)
    return size is None or at + size <= written_end


def _size_by_header(raw: NDArray[np.uint8], at: int) -> int | None:
    """The size of a frame whose header is intact, None if its lengths contradict each other."""
    if at + layout.LOG_HEADER_SIZE > len(raw):
        return None
    header = layout.LOG_HEADER.unpack(bytes(raw[at : at + layout.LOG_HEADER_SIZE]))
    frame_len, texts = int(header[0]), sum(header[-3:])
    return frame_len + 4 if frame_len == _FRAME_LEN_MIN + texts else None


def _records_within(raw: NDArray[np.uint8], at: int, end: int) -> int:
    """At most so many records were in a lost range; exact where the headers are intact."""
    count = 0
    while at < end:
        size = _size_by_header(raw, at)
        if size is None or at + size > end:
            return count + (end - at) // _RECORD_SIZE_MIN + 1
        count += 1
        at += size
    return max(count, 1)
