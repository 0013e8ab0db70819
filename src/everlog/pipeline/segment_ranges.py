"""Reading topics from the files of a data directory, as Arrow columns; knows nothing of Spark.

Owns the way from planned pieces to columns. Which files there are, and what is deleted, lost or expired in
them, is in `everlog.topics.storage.bulk_view`; frames become columns in `everlog.native.columns`, without a
loop over records here. Filters are applied before a byte of a record's text is copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from everlog.errors import Corrupt, TopicNotFound
from everlog.native.columns.frame_columns import FrameColumns
from everlog.pipeline.picking import Filter, take_columns
from everlog.pipeline.topic_ranges import Lost
from everlog.topics.storage.bulk_view import BulkView, Frames, Gap, Piece, open_piece

BATCH_RECORDS: Final = 65536
PICK_BYTES: Final = 32 << 20
"""Frames that are looked at in one go; a column of text holds 2 GiB at most."""

REPLANS_MAX: Final = 100
RETENTION: Final = "retention"
Replan = Callable[[int, int], list[Piece | Gap]]


def find_topics(view: BulkView, wanted: tuple[str, ...], place: str) -> list[str]:
    """Return the names that are meant: each as it is, one that ends in `*` as a prefix; sorted."""
    found: set[str] = set()
    for name in wanted:
        if name.endswith("*"):
            found.update(topic for topic in view.topics() if topic.startswith(name[:-1]))
        else:
            found.add(name)
    if not found:
        raise TopicNotFound(f"no topic in {place} matches {', '.join(wanted)}")
    return sorted(found)


def read(
    topic: str, pieces: Iterable[Piece | Gap], wanted: Filter, names: tuple[str, ...], again: Replan
) -> Iterator[dict[str, pa.Array] | Lost]:
    """Yield the columns `names` (of seq, ts, node, tag, meta, data) of the records, and what is lost.

    A piece whose files are gone since it was planned is planned `again`: a running engine moves records from
    its log to segments, and removes what retention lets go.
    """
    picked = wanted.columns()
    left = deque(pieces)
    replans = 0
    while left:
        piece = left.popleft()
        frames = None if isinstance(piece, Gap) else open_piece(piece)
        if frames is not None:
            for _ in _pick(topic, frames, picked):
                if len(picked) >= BATCH_RECORDS or picked.largest_bytes >= PICK_BYTES:
                    yield take_columns(picked, names)
        elif not isinstance(piece, Gap) and replans < REPLANS_MAX:
            replans += 1
            left.extendleft(reversed(again(piece.first, piece.end)))
        else:
            if len(picked):  # what lies before a gap comes before it
                yield take_columns(picked, names)
            yield Lost(piece.first, piece.end, piece.reason if isinstance(piece, Gap) else RETENTION)
    if len(picked):
        yield take_columns(picked, names)


def _pick(topic: str, frames: Frames, picked: FrameColumns) -> Iterator[None]:
    """Pick the records of some frames, in parts; the caller may take what was picked after each."""
    seqs, offsets = frames.seqs, frames.offsets
    at = 0
    while at < len(seqs):
        room = max(1, BATCH_RECORDS - len(picked))
        by_bytes = int(np.searchsorted(offsets, offsets[at] + np.uint64(PICK_BYTES)))
        end = min(len(seqs), at + room, max(at + 1, by_bytes))
        sound = picked.pick(frames.buffer, offsets[at:end], seqs[at:end], frames.in_log)
        if sound < end - at:
            raise Corrupt(
                f"record {int(seqs[at + sound])} of topic {topic!r} in {frames.name} does not match its "
                "checksum; run `everlog verify` on the stopped data directory"
            )
        at = end
        yield
