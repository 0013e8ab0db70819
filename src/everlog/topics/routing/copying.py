"""Copies of records from one log in another, and how often each was copied (its hops).

Owns what a copy looks like: repeated after a crash, the copies are the same. Reads no clock and logs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from everlog.native.topics.log import Copied, copy_records, meta_of

if TYPE_CHECKING:
    from everlog.native.topics.log import Sources, TopicLog
    from everlog.topics.core import Core
    from everlog.topics.memory import MemoryChunks
    from everlog.topics.routing.exactly_once import Origin

HopRun = tuple[int, int, int]  # first seq, last seq, hops; records in no run have none
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
    chunks.publish(chunk, dest.next_seq - 1)
    return copied


def note_hops(runs: list[HopRun], first_seq: int, last_seq: int, hops: int) -> None:
    """Remember the hops of copies; those at or before the last known seq are known already."""
    first_seq = max(first_seq, runs[-1][1] + 1 if runs else 0)
    if last_seq < first_seq:
        return
    if runs and runs[-1][1] + 1 == first_seq and runs[-1][2] == hops:
        first_seq = runs.pop()[0]
    runs.append((first_seq, last_seq, hops))


def forget_hops_below(runs: list[HopRun], seq: int) -> None:
    """Drop the runs whose records are all below `seq`."""
    gone = 0
    while gone < len(runs) and runs[gone][1] < seq:
        gone += 1
    del runs[:gone]


def split_by_hops(runs: list[HopRun], first_seq: int, end_seq: int) -> Iterator[HopRun]:
    """Cut the seqs from `first_seq` to before `end_seq` into pieces (first seq, end seq, hops)."""
    if first_seq >= end_seq:
        return
    for run_first, run_last, hops in runs:
        if run_last < first_seq:
            continue
        if run_first >= end_seq:
            break
        if first_seq < run_first:
            yield first_seq, run_first, 0
            first_seq = run_first
        run_end = min(run_last + 1, end_seq)
        yield first_seq, run_end, hops
        first_seq = run_end
    if first_seq < end_seq:
        yield first_seq, end_seq, 0
