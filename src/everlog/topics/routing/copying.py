"""Records out of one log into another, the new frames in memory; the same when that is done again.

Owns what a copy looks like. Asks no clock and logs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from everlog.native.forwarding import Copied, copy_records, meta_of

if TYPE_CHECKING:
    from everlog.native.topic_log import Sources, TopicLog
    from everlog.topics.core import Core
    from everlog.topics.memory import MemoryChunks
    from everlog.topics.routing.exactly_once import Origin
    from everlog.topics.routing.hops import HopRun

DROP_NODE: Final = 1
DROP_TAG: Final = 2
_FRAME_BYTES: Final = 512  # of a copy with a mark, besides its text


class Copying(NamedTuple):
    """How copies differ from their records; with an `origin` they carry it in their meta."""

    ts: int
    flags: int
    drops: int
    origin: Origin | None


def drops_of(preserve_node: bool, preserve_tag: bool) -> int:
    """The bits for what copies do not carry."""
    return (0 if preserve_node else DROP_NODE) | (0 if preserve_tag else DROP_TAG)


def metas_of(sources: Sources, log: TopicLog, origin: Origin, runs: list[HopRun]) -> list[bytes]:
    """The meta texts of the copies of these records."""
    return [
        origin.meta(seq, meta_of(sources, log, seq))
        for first_seq, length, _ in runs
        for seq in range(first_seq, first_seq + length)
    ]


def copy_to_memory(
    core: Core,
    log: TopicLog,
    runs: list[HopRun],
    dest: TopicLog,
    chunks: MemoryChunks,
    copying: Copying,
    frame_bytes: int,
) -> Copied:
    """Copy records to the end of `dest`, with their frames in `chunks`; stops at one that cannot be read.

    `frame_bytes` is as much as the frames can take without what an origin adds.
    """
    metas = None
    if copying.origin is not None:
        metas = metas_of(core.sources, log, copying.origin, runs)
        frame_bytes += sum(map(len, metas)) + _FRAME_BYTES * len(metas)
    chunk = chunks.chunk_for(frame_bytes)
    copied = copy_records(
        core.sources,
        log,
        [(seq, length) for seq, length, _ in runs],
        dest,
        chunk.buffer,
        chunk.source,
        0,
        copying.ts,
        copying.flags,
        not copying.drops & DROP_NODE,
        not copying.drops & DROP_TAG,
        metas,
    )
    chunks.keep(chunk, dest.next_seq - 1)
    return copied
