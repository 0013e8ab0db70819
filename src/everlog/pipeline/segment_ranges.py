"""Reading topics from the files of a data directory, as Arrow columns; does not depend on Spark.

Which files there are, and what is deleted, lost or expired in them, is in `everlog.topics.storage.bulk_view`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np

from everlog.errors import Corrupt
from everlog.native.columns.frame_columns import FrameColumns
from everlog.pipeline.columns_from_frames import Columns, RecordFilter, take_columns
from everlog.seq_ranges import Gap
from everlog.topics.storage.bulk_view import Frames, Piece, open_piece

BATCH_RECORDS: Final = 65536
BATCH_BYTES: Final = 32 << 20
"""Frames that are scanned at once; a column of text holds 2 GiB at most."""

REPLANS_MAX: Final = 100
RETENTION: Final = "retention"
Replan = Callable[[int, int], list[Piece | Gap]]


def read(
    topic: str, pieces: Iterable[Piece | Gap], wanted: RecordFilter, names: tuple[str, ...], replan: Replan
) -> Iterator[Columns | Gap]:
    """Yield the columns `names` of the records, and the gaps between them.

    A piece whose files are gone since it was planned is planned again by `replan`: a running engine moves
    records from its log to segments, and deletes what retention does not keep.
    """
    collected = wanted.collector()
    left = deque(pieces)
    replans = 0
    while left:
        piece = left.popleft()
        if not isinstance(piece, Gap):
            frames = open_piece(piece)
            if frames is not None:
                for _ in _collect(topic, frames, collected):
                    if len(collected) >= BATCH_RECORDS or collected.largest_bytes >= BATCH_BYTES:
                        yield take_columns(collected, names)
                continue
            if replans < REPLANS_MAX:
                replans += 1
                left.extendleft(reversed(replan(piece.first, piece.end)))
                continue
            piece = Gap(piece.first, piece.end, RETENTION)
        if len(collected):  # records before a gap come before it
            yield take_columns(collected, names)
        yield piece
    if len(collected):
        yield take_columns(collected, names)


def _collect(topic: str, frames: Frames, collected: FrameColumns) -> Iterator[None]:
    """Collect the records of some frames in parts; the caller may take the columns after each."""
    seqs, offsets = frames.seqs, frames.offsets
    at = 0
    while at < len(seqs):
        room = max(1, BATCH_RECORDS - len(collected))
        by_bytes = int(np.searchsorted(offsets, offsets[at] + np.uint64(BATCH_BYTES)))
        end = min(len(seqs), at + room, max(at + 1, by_bytes))
        sound = collected.pick(frames.buffer, offsets[at:end], seqs[at:end], frames.in_log)
        if sound < end - at:
            raise Corrupt(
                f"record {int(seqs[at + sound])} of topic {topic!r} in {frames.name} does not match its "
                "checksum; run `everlog verify` on the stopped data directory"
            )
        at = end
        yield
