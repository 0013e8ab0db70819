"""Checks every byte of a queue that can be checked: records, seqs, seek indexes, `index.meta`, reader metas.

Owns what `doctor --deep` finds beyond `doctor`. Records are read by a reader without a name, so it finds what
readers find. Reads everything, changes nothing and never waits.

    record_damaged        records fail their checksum, are missing, or do not follow each other
    index_damaged         a seek index does not describe its segment: seeks scan
    index_meta_damaged    `index.meta` cannot be a position of this queue
    index_meta_ahead      `index.meta` says that more was flushed than was published
    reader_slot_damaged   one of the two slots of a reader meta has a wrong checksum
    reserved_bytes        bytes that must be zero are not
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from everlog.clock import Clock
from everlog.errors import Corrupt, EverlogError, SegmentMissing, UnsupportedVersion
from everlog.fs import Fs, read_file
from everlog.queue import layout, seek_index
from everlog.queue.findings import Finding, Severity
from everlog.queue.inspect import ControlInfo, QueueInfo
from everlog.queue.layout import CONTROL_FILE, INDEX_META_FILE, READER_SLOT, READERS_DIR
from everlog.queue.reader import QueueReader, StartMode
from everlog.queue.reader_meta import decode_slot
from everlog.queue.seek import is_record
from everlog.queue.segment import map_segment
from everlog.queue.wait import Sleep

FINDINGS_MAX = 1000
"""Of damaged records in one queue; more than that say nothing new."""

_CONTROL_FIELDS = ((0, 12), (16, 32), (128, 136), (256, 272), (384, 392))


def check_deeply(fs: Fs, clock: Clock, info: QueueInfo) -> Iterator[Finding]:
    """Yield what is wrong with the content of a queue whose control block is sound."""
    if info.control is None:
        return
    yield from _check_records(fs, clock, info.path)
    yield from _check_index_meta(info, info.control)
    for name in info.names:
        segment_id = layout.parse_seek_index_name(name)
        if segment_id is not None:
            yield from _check_seek_index(fs, info, name, segment_id, info.control.segment_size)
        if name.startswith(f"{READERS_DIR}/") and name.endswith(layout.READER_META_SUFFIX):
            yield from _check_reader_meta(fs, info.path, name)
        if name == CONTROL_FILE or layout.parse_segment_name(name) is not None:
            yield from _check_reserved(fs, info.path, name)


def _check_records(fs: Fs, clock: Clock, path: str) -> Iterator[Finding]:
    try:
        with QueueReader(path, None, StartMode.LATEST, Sleep(), True, clock, fs) as reader:
            end = max(reader.position, reader.published_head)
        reader = QueueReader(path, None, StartMode.EARLIEST, Sleep(), True, clock, fs)
    except EverlogError as error:
        yield Finding("record_damaged", Severity.ERROR, CONTROL_FILE, f"no reader can be opened: {error}")
        return
    with reader:
        for _ in range(FINDINGS_MAX):
            try:
                while reader.position < end and len(reader.read_batch()):
                    pass
                return
            except SegmentMissing:
                # Reported as a missing segment already.
                if not reader.seek_seq(reader.expected_seq or 0):
                    return
            except (Corrupt, UnsupportedVersion) as error:
                segment_id, offset = reader.position
                subject = f"{layout.segment_name(segment_id)}:{offset}"
                yield Finding("record_damaged", Severity.ERROR, subject, str(error))
                if not reader.skip_damage():
                    return


def _check_index_meta(info: QueueInfo, control: ControlInfo) -> Iterator[Finding]:
    if INDEX_META_FILE not in info.names or INDEX_META_FILE in info.unreadable:
        return
    if info.index is None:
        message = f"{INDEX_META_FILE} is no position in this queue; remove it, a flush writes a new one"
        yield Finding("index_meta_damaged", Severity.WARNING, INDEX_META_FILE, message)
    elif info.index > (control.head_segment, control.head_offset) and not control.torn:
        yield Finding(
            "index_meta_ahead",
            Severity.ERROR,
            INDEX_META_FILE,
            f"segment {info.index.segment_id} was flushed up to offset {info.index.offset}, but the head is "
            f"at segment {control.head_segment}, offset {control.head_offset}: one of the two files is "
            "damaged; open the writer, which compares both with the records",
        )


def _check_seek_index(
    fs: Fs, info: QueueInfo, name: str, segment_id: int, segment_size: int
) -> Iterator[Finding]:
    try:
        index = seek_index.decode(read_file(fs, os.path.join(info.path, name)))
        if (index.segment_id, index.segment_size) != (segment_id, segment_size):
            raise Corrupt(f"it describes segment {index.segment_id} of {index.segment_size} bytes")
        mapping = map_segment(fs, info.path, segment_id, segment_size)
        for seq, timestamp_ns, offset in index.entries.tolist():
            if not is_record(mapping, offset, seq, timestamp_ns):
                raise Corrupt(f"there is no record {seq} at offset {offset}")
    except FileNotFoundError:
        return  # retention deleted it meanwhile, or reported as an orphan
    except (Corrupt, UnsupportedVersion) as error:
        message = f"{name} does not describe its segment ({error}); remove it, seeks scan without it"
        yield Finding("index_damaged", Severity.WARNING, name, message)


def _check_reader_meta(fs: Fs, path: str, name: str) -> Iterator[Finding]:
    try:
        data = read_file(fs, os.path.join(path, name))
    except OSError:
        return  # the reader left, or reported as unreadable
    if len(data) != layout.READER_META_SIZE:
        return  # legacy, or reported as unreadable
    slots = (data[: READER_SLOT.size], data[READER_SLOT.size :])
    if any(any(slot) and decode_slot(slot) is None for slot in slots):
        message = (
            f"a slot of {name} has a wrong checksum: the reader resumes at an older position; let it commit"
        )
        yield Finding("reader_slot_damaged", Severity.WARNING, name, message)


def _check_reserved(fs: Fs, path: str, name: str) -> Iterator[Finding]:
    length = layout.CTRL_SIZE if name == CONTROL_FILE else layout.SEG_DATA_OFFSET
    try:
        fd = fs.open(os.path.join(path, name), os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        data = bytearray(fs.pread(fd, length, 0))
    finally:
        fs.close(fd)
    for start, stop in _CONTROL_FIELDS if name == CONTROL_FILE else ((0, 16),):
        data[start:stop] = bytes(stop - start)
    if any(data):
        message = f"bytes of {name} that must be zero are not; the disk or a program has damaged it"
        yield Finding("reserved_bytes", Severity.WARNING, name, message)
