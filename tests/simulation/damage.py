"""Bit flips in files of a stopped engine: where they may be, and what lies there. Knows files, no engine."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from everlog.native.topics import log as frames
from everlog.topics.storage import layout


class StoredRecord(NamedTuple):
    """A record in a segment file."""

    path: str
    offset: int
    size: int
    seq: int
    ts: int
    data: bytes  # without meta


def stored_records(roots: list[str]) -> list[StoredRecord]:
    """All records in segments below `roots` that are not marked as deleted."""
    found: list[StoredRecord] = []
    for root in roots:
        for folder, _, names in sorted(os.walk(root)):
            for name in sorted(names):
                if layout.SEGMENT_DATA.number(name) is not None:
                    found += _records(os.path.join(folder, name))
    return found


def _records(path: str) -> Iterator[StoredRecord]:
    with open(path, "rb") as file:
        content = file.read()
    offset = 0
    while offset < len(content):
        frame = frames.read_segment_frame(content, offset)
        meta_size = 0
        if frame.flags & layout.FLAG_HAS_META:
            meta_size = layout.META_LEN_SIZE + layout.META_LEN.unpack_from(frame.data)[0]
        if not frame.deleted:
            yield StoredRecord(path, offset, frame.size, frame.seq, frame.ts, frame.data[meta_size:])
        offset += frame.size


@contextmanager
def flipped(path: str, offset: int, bit: int) -> Iterator[None]:
    """One bit of a file is wrong for as long as the block lasts."""
    _flip(path, offset, bit)
    try:
        yield
    finally:
        if os.path.exists(path):
            _flip(path, offset, bit)


def _flip(path: str, offset: int, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        old = file.read(1)
        file.seek(offset)
        file.write(bytes((old[0] ^ 1 << bit,)))


def place_in(record: StoredRecord, rng: random.Random) -> tuple[int, int]:
    """An offset and a bit within a record; the last byte of a frame, the mark, is under no checksum."""
    return record.offset + rng.randrange(record.size - 1), rng.randrange(8)
