"""Mappings of memory files, so that tests of the native code wait for no disk."""

import os

from everlog.native.mapping import Mapping


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
