"""Mappings of memory files, and the native halves of writer and reader on them, without a queue or a disk."""

import os
from collections.abc import Callable

from everlog.native.queue.ring import Mapping, RingReader, RingWriter


def map_bytes(content: bytes | bytearray, *, writable: bool = True) -> Mapping:
    """A shared mapping of a file in memory with this content."""
    fd = os.memfd_create("everlog-test")
    try:
        os.pwrite(fd, content, 0)
        return Mapping(fd, len(content), writable)
    finally:
        os.close(fd)


def bytes_of(mapping: Mapping) -> bytes:
    """What the mapping holds now."""
    return bytes(memoryview(mapping))


class LoneWriter(RingWriter):
    """The native half of a writer: it can neither roll nor flush."""

    def _make_room(self, record_size: int) -> None:
        raise EOFError(record_size)

    def _on_due(self) -> None:
        raise AssertionError("nothing is ever due")


class LoneReader(RingReader):
    """The native half of a reader: it stays in its segment and has no heart."""

    def _enter_next_segment(self) -> None:
        raise EOFError("no next segment")

    def _leave_hole(self) -> None:
        raise EOFError("a hole")

    def _check_heartbeat(self) -> None:
        """Nothing beats."""


def attach_writer(
    control: Mapping,
    segment: Mapping,
    offset: int = 64,
    next_seq: int = 0,
    index_stride: int = 1,
    wall_ns: Callable[[], int] = lambda: 0,
) -> LoneWriter:
    """A writer at `offset` of a segment."""
    writer = LoneWriter()
    writer._attach(control, segment, None, offset, next_seq, index_stride, wall_ns, False)
    writer._set_limit(len(segment))
    return writer


def attach_reader(control: Mapping, segment: Mapping, offset: int = 64) -> LoneReader:
    """A reader at `offset` of segment 0 that parks as soon as it waits."""
    reader = LoneReader()
    reader._attach(control, True, True, 1, 0, 0)
    reader._stand(segment, 0, offset)
    return reader
