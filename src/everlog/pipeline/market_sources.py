"""Where jobs read market data: a live queue, or the archive of one, here or in an object store.

Owns the difference. The messages of an archive need one numbering: it is a raw archive, or one directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing

from everlog.archive import ArchiveReader, replays
from everlog.archive.remote import is_url
from everlog.errors import InvalidConfig
from everlog.market.replay import Replay
from everlog.pipeline import queue_ranges
from everlog.pipeline.sources.archive import is_archive
from everlog.queue.batch import Batch
from everlog.queue.reader import QueueReader
from everlog.seq_ranges import Gap, SeqRange

Reader = QueueReader | ArchiveReader
ReadNext = Callable[[Reader, int], Batch]


def source_path(path: str) -> str:
    """Return an address as it is, without a slash at its end, and a directory as an absolute path."""
    return path.rstrip("/") if is_url(path) else os.path.abspath(path)


def replay_from(path: str, first_seq: int) -> Replay:
    """Return a replay of the messages from a seq on."""
    if not is_archive(path):
        return Replay(path, from_seq=first_seq)
    found = replays(path)
    if len(found) > 1:
        raise InvalidConfig(f"{path} has {len(found)} streams, each with seqs of its own; name one directory")
    return Replay(path, from_seq=first_seq, reader=found[0].reader)


def bounds(path: str) -> SeqRange:
    """Return the range of all messages that are there now."""
    if not is_archive(path):
        return queue_ranges.bounds(path)
    with closing(_open(path)) as reader:
        return SeqRange(*reader.seq_bounds())


def instance_of(path: str) -> str | None:
    """Return the identity of a queue; an archive has none."""
    return None if is_archive(path) else queue_ranges.instance_of(path)


def read(path: str, wanted: SeqRange, *, read_next: ReadNext) -> Iterator[Batch | Gap]:
    """Yield the messages of a range in order and the gaps in it; an archive with a gap is damaged."""
    if not is_archive(path):
        yield from queue_ranges.read(path, wanted, read_next=read_next)
        return
    with closing(_open(path)) as reader:
        reader.seek_seq(wanted.first)
        at = wanted.first
        while at < wanted.end and len(batch := read_next(reader, wanted.end - at)):
            at = int(batch.seq[-1]) + 1
            yield batch


def _open(path: str) -> ArchiveReader:
    reader = replay_from(path, 0).open()
    assert isinstance(reader, ArchiveReader), "a queue is not an archive"
    return reader
