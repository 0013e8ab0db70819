"""The kernel that turns frames into columns, against a plain loop over the same frames."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from everlog.native.columns.frame_columns import FrameColumns, TextColumn
from everlog.native.topics.log import FrameBuffer
from everlog.topics.storage import layout
from tests.native.frame_twin import Parts, segment_frame

U64_MAX = 2**64 - 1
ALL = (0, U64_MAX, None, False)


class Row(NamedTuple):
    """A record as the twin has it."""

    ts: int
    node: str
    tag: str
    meta: bytes | None
    data: bytes
    deleted: bool


ROWS = st.lists(
    st.builds(
        Row,
        ts=st.integers(0, 5),
        node=st.sampled_from(("", "n", "né")),
        tag=st.sampled_from(("", "a", "ab", "abc", "b")),
        meta=st.sampled_from((None, b"", b'{"m":1}')),
        data=st.binary(max_size=20),
        deleted=st.booleans(),
    ),
    max_size=40,
)


def write(rows: list[Row], in_log: bool) -> tuple[FrameBuffer, NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the frames of some rows, numbered from 1, and where each is."""
    frames, offsets = FrameBuffer(), []
    for seq, row in enumerate(rows, 1):
        blob, flags = row.data, 0
        if row.meta is not None:
            blob, flags = layout.META_LEN.pack(len(row.meta)) + row.meta + row.data, layout.FLAG_HAS_META
        flags |= (layout.FLAG_HAS_TAG if row.tag else 0) | (layout.FLAG_HAS_NODE if row.node else 0)
        texts = (row.node.encode(), row.tag.encode(), blob)
        offsets.append(len(frames))
        if in_log:
            frames.append_log(layout.TYPE_APPEND, flags, 7, seq, row.ts, *texts)
        else:
            frames.append_bytes(
                segment_frame(Parts(layout.TYPE_APPEND, flags, 0, seq, row.ts, *texts, row.deleted))
            )
    return frames, np.array(offsets, np.uint64), np.arange(1, len(rows) + 1, dtype=np.uint64)


def texts_of(column: TextColumn, count: int) -> list[bytes | None]:
    """Return a column as plain values."""
    bits = None if column.valid is None else np.unpackbits(column.valid, bitorder="little")
    ends = column.ends.tolist()
    raw = column.bytes.tobytes()
    assert (len(ends), ends[0], ends[-1]) == (count + 1, 0, len(raw))
    values = [raw[ends[i] : ends[i + 1]] if bits is None or bits[i] else None for i in range(count)]
    assert values.count(None) == column.absent
    return values


def is_wanted(row: Row, from_ts: int, to_ts: int, tag: str | None, is_prefix: bool) -> bool:
    """Whether the twin lets a row pass."""
    if not from_ts <= row.ts <= to_ts or (tag is not None and not row.tag):
        return False
    return tag is None or (row.tag.startswith(tag) if is_prefix else row.tag == tag)


@given(
    rows=ROWS,
    in_log=st.booleans(),
    times=st.tuples(st.integers(0, 5), st.integers(0, 6)),
    tag=st.sampled_from((None, "a", "ab", "")),
    is_prefix=st.booleans(),
    parts=st.integers(1, 3),
)
def test_columns_hold_what_a_loop_over_the_frames_finds(
    rows: list[Row], in_log: bool, times: tuple[int, int], tag: str | None, is_prefix: bool, parts: int
) -> None:
    columns = FrameColumns(*times, None if tag is None else tag.encode(), is_prefix)
    wanted: list[tuple[int, Row]] = []
    for _ in range(parts):
        frames, offsets, seqs = write(rows, in_log)
        assert columns.pick(frames, offsets, seqs, in_log) == len(rows)
        wanted += [
            (seq, row)
            for seq, row in enumerate(rows, 1)
            if is_wanted(row, *times, tag, is_prefix) and (in_log or not row.deleted)
        ]
        del frames  # the columns keep what they point into
    assert len(columns) == len(wanted)
    found_seqs, found_times = columns.numbers()
    assert found_seqs.tolist() == [seq for seq, _ in wanted]
    assert found_times.tolist() == [row.ts * 1000 for _, row in wanted]
    assert texts_of(columns.text("data"), len(wanted)) == [row.data for _, row in wanted]
    assert texts_of(columns.text("meta"), len(wanted)) == [row.meta for _, row in wanted]
    assert texts_of(columns.text("tag"), len(wanted)) == [row.tag.encode() or None for _, row in wanted]
    assert texts_of(columns.text("node"), len(wanted)) == [row.node.encode() or None for _, row in wanted]
    longest = max(sum(len(row.data) for _, row in wanted), sum(len(row.meta or b"") for _, row in wanted))
    assert columns.largest_bytes >= longest
    columns.clear()
    assert len(columns) == 0
    assert columns.largest_bytes == 0


@pytest.mark.parametrize("in_log", [True, False])
def test_a_damaged_frame_ends_the_picking_before_it(in_log: bool) -> None:
    rows = [Row(1, "n", "t", None, b"[1]", False)] * 5
    frames, offsets, seqs = write(rows, in_log)
    damaged = bytearray(frames.tobytes())
    damaged[int(offsets[3]) + 40] ^= 1
    columns = FrameColumns(*ALL)
    assert columns.pick(damaged, offsets, seqs, in_log) == 3
    assert columns.numbers()[0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("in_log", [True, False])
def test_a_place_that_is_not_the_records_is_damage(in_log: bool) -> None:
    frames, offsets, seqs = write([Row(1, "", "", None, b"1", False)] * 3, in_log)
    columns = FrameColumns(*ALL)
    assert columns.pick(frames, offsets, seqs + np.uint64(1), in_log) == 0
    assert columns.pick(frames, offsets + np.uint64(len(frames)), seqs, in_log) == 0
    assert columns.pick(b"", offsets, seqs, in_log) == 0
    assert len(columns) == 0


def test_a_control_frame_of_the_log_is_no_record() -> None:
    frames = FrameBuffer()
    frames.append_control(layout.FrameType.DELETE, 0, 7, 1, 5, b"x")
    columns = FrameColumns(*ALL)
    assert columns.pick(frames, np.zeros(1, np.uint64), np.ones(1, np.uint64), True) == 0


def test_offsets_and_seqs_belong_together() -> None:
    with pytest.raises(ValueError, match="2 offsets are given and 1 seqs"):
        FrameColumns(*ALL).pick(b"", np.zeros(2, np.uint64), np.zeros(1, np.uint64), True)
