"""Reading the pieces of a bulk view with plain Python, record by record: the oracle of the native columns."""

from __future__ import annotations

import struct

from everlog.native.topics import log as frames
from everlog.seq_ranges import Gap
from everlog.topics.storage import layout
from everlog.topics.storage.bulk_view import BulkView, Frames, open_piece
from tests.support.topics_model import ModelRecord


def records_of(found: Frames) -> list[ModelRecord]:
    """Return the records of some frames that are not marked as deleted."""
    records = []
    read = frames.read_log_frame if found.in_log else frames.read_segment_frame
    for seq, offset in zip(found.seqs.tolist(), found.offsets.tolist(), strict=True):
        frame = read(found.buffer, offset)
        assert frame.seq == seq
        if isinstance(frame, frames.SegmentFrame) and frame.deleted:
            continue
        meta, data = None, frame.data
        if frame.flags & layout.FLAG_HAS_META:
            (length,) = struct.unpack_from("<I", frame.data)
            meta, data = frame.data[4 : 4 + length], frame.data[4 + length :]
        records.append(
            ModelRecord(seq, frame.ts, frame.node.decode() or None, frame.tag.decode() or None, meta, data)
        )
    return records


def read_planned(view: BulkView, name: str, first: int, end: int) -> tuple[list[ModelRecord], list[Gap]]:
    """Return the records and the gaps of a range, as they are planned."""
    records: list[ModelRecord] = []
    gaps: list[Gap] = []
    for piece in view.plan(name, first, end):
        if isinstance(piece, Gap):
            gaps.append(piece)
            continue
        found = open_piece(piece)
        assert found is not None, piece
        assert piece.first <= int(found.seqs[0]) <= int(found.seqs[-1]) < piece.end
        records += records_of(found)
    return records, gaps


def read_whole(view: BulkView, name: str) -> list[ModelRecord]:
    """Return everything a topic holds; nothing of it may be lost."""
    records, gaps = read_planned(view, name, *view.bounds(name))
    assert not gaps
    return records
