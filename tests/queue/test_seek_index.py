"""Spec 1.8: the seek index."""

import dataclasses
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import Corrupt
from everlog.fault_fs import FaultFs, PowerLoss
from everlog.fs import OsFs
from everlog.queue import seek_index
from everlog.queue.seek_index import ENTRY_DTYPE, SeekIndex
from tests.support.files import tree

SEGMENT_SIZE = 64 * 1024
Record = tuple[int, int, int]


def golden(
    entries: Sequence[Record] = ((5, 100, 64), (7, 120, 256), (9, 140, 448)),
    **changes: int | bytes,
) -> bytes:
    """The bytes of an index of segment 3, field by field."""
    fields: dict[str, int | bytes] = {
        "magic": b"CHRIDX1\0",
        "version": 1,
        "header_len": 80,
        "flags": 0,
        "segment_id": 3,
        "segment_size": SEGMENT_SIZE,
        "data_offset": 64,
        "entry_stride": 2,
        "min_seq": 5,
        "max_seq": 9,
        "min_ts_ns": 100,
        "max_ts_ns": 140,
        "entry_count": len(entries),
        **changes,
    }
    formats = dict(zip(fields, ["8s", "<H", "<H", "<I", "<Q", "<Q", "<I", "<I", *["<Q"] * 5], strict=True))
    header = b"".join(struct.pack(formats[name], value) for name, value in fields.items())
    return header + b"".join(struct.pack("<QQQ", *entry) for entry in entries)


def index_over(records: list[Record], stride: int, partial: bool = False) -> SeekIndex:
    """The index that a writer keeps of `records` (seq, timestamp, offset)."""
    sequences, timestamps = [record[0] for record in records], [record[1] for record in records]
    return SeekIndex(
        segment_id=3,
        segment_size=SEGMENT_SIZE,
        entry_stride=stride,
        partial=partial,
        min_seq=min(sequences, default=0),
        max_seq=max(sequences, default=0),
        min_ts_ns=min(timestamps, default=0),
        max_ts_ns=max(timestamps, default=0),
        entries=np.array(records[::stride], dtype=ENTRY_DTYPE),
    )


def same(left: SeekIndex, right: SeekIndex) -> bool:
    plain = [
        {**{field.name: getattr(index, field.name) for field in dataclasses.fields(index)}, "entries": None}
        for index in (left, right)
    ]
    return plain[0] == plain[1] and left.entries.tolist() == right.entries.tolist()


@st.composite
def segments(draw: st.DrawFn, monotonic: bool = True) -> list[Record]:
    """The records of one segment; timestamps repeat often."""
    count = draw(st.integers(0, 40))
    first_seq = draw(st.integers(0, 1000))
    timestamps = draw(st.lists(st.integers(1, 30), min_size=count, max_size=count))
    if monotonic:
        timestamps.sort()
    sizes = draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))
    offsets = [64 * (1 + sum(sizes[:position])) for position in range(count)]
    return [(first_seq + i, timestamps[i], offsets[i]) for i in range(count)]


def test_the_bytes_are_those_of_the_format() -> None:
    records = [(5, 100, 64), (6, 110, 128), (7, 120, 256), (8, 130, 320), (9, 140, 448)]
    assert seek_index.encode(index_over(records, stride=2)) == golden()
    assert seek_index.encode(index_over(records, stride=2, partial=True)) == golden(flags=1)


@given(segments(monotonic=False), st.integers(1, 9), st.booleans())
def test_an_index_survives_encoding(records: list[Record], stride: int, partial: bool) -> None:
    index = index_over(records, stride, partial)
    assert same(seek_index.decode(seek_index.encode(index)), index)


def test_an_index_survives_the_disk_by_temp_and_rename(tmp_path: Path) -> None:
    index = seek_index.decode(golden())
    seek_index.store(OsFs(), str(tmp_path), index)
    assert tree(tmp_path) == {"000000003.idx": golden()}
    loaded = seek_index.load(OsFs(), str(tmp_path), 3, SEGMENT_SIZE)
    assert loaded is not None
    assert same(loaded, index)


@pytest.mark.parametrize(
    ("durable", "synced"), [(False, []), (True, ["fsync", "fsync_dir"])], ids=["default", "durable"]
)
def test_a_store_is_forced_to_disk_only_on_request(tmp_path: Path, durable: bool, synced: list[str]) -> None:
    fs = FaultFs(str(tmp_path))
    seek_index.store(fs, str(tmp_path), seek_index.decode(golden()), durable=durable)
    assert [call.name for call in fs.log if "fsync" in call.name] == synced


@pytest.mark.parametrize(
    "content",
    [
        b"",
        golden()[:79],
        golden()[:-1],
        golden() + b"\0",
        golden(magic=b"CHRIDX2\0"),
        golden(version=2),
        golden(header_len=64),
        golden(flags=2),
        golden(data_offset=128),
        golden(entry_stride=0),
        golden(entry_count=2),
        golden(entry_count=2**63),
        golden(min_seq=6),
        golden(max_seq=8),
        golden(min_ts_ns=101),
        golden(max_ts_ns=139),
        golden([(5, 100, 64), (5, 120, 256), (9, 140, 448)]),
        golden([(5, 100, 64), (7, 120, 64), (9, 140, 448)]),
        golden([(5, 100, 64), (7, 120, 512), (9, 140, 448)]),
        golden([(5, 100, 0), (7, 120, 256), (9, 140, 448)]),
        golden([(5, 100, 64), (7, 120, 257), (9, 140, 448)]),
        golden([(5, 100, 64), (7, 120, 256), (9, 140, SEGMENT_SIZE)]),
    ],
)
def test_a_short_or_corrupt_index_is_refused_by_decode_and_ignored_by_load(
    tmp_path: Path, content: bytes
) -> None:
    with pytest.raises(Corrupt):
        seek_index.decode(content)
    (tmp_path / "000000003.idx").write_bytes(content)
    assert seek_index.load(OsFs(), str(tmp_path), 3, SEGMENT_SIZE) is None


def test_a_missing_index_is_ignored(tmp_path: Path) -> None:
    assert seek_index.load(OsFs(), str(tmp_path), 3, SEGMENT_SIZE) is None


@pytest.mark.parametrize("content", [golden(segment_id=4), golden(segment_size=2 * SEGMENT_SIZE)])
def test_the_index_of_another_segment_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "000000003.idx").write_bytes(content)
    assert seek_index.load(OsFs(), str(tmp_path), 3, SEGMENT_SIZE) is None


@given(st.binary(max_size=400) | st.binary(max_size=200).map(lambda tail: golden()[:80] + tail))
def test_arbitrary_bytes_are_decoded_or_corrupt_and_nothing_else(data: bytes) -> None:
    try:
        index = seek_index.decode(data)
    except Corrupt:
        return
    assert seek_index.encode(index) == data


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_whatever_a_power_loss_leaves_is_a_whole_index_or_ignored(
    tmp_path_factory: pytest.TempPathFactory, seed: int, call: int
) -> None:
    root = tmp_path_factory.mktemp("queue")
    old, new = seek_index.decode(golden()), seek_index.decode(golden(flags=1))
    seek_index.store(OsFs(), str(root), old)
    fs = FaultFs(str(root), seed)
    fs.tear_at(call)
    with pytest.raises(PowerLoss):
        seek_index.store(fs, str(root), new)
    fs.restore()
    found = seek_index.load(OsFs(), str(root), 3, SEGMENT_SIZE)
    assert found is None or same(found, old) or same(found, new)


@given(segments(), st.integers(1, 9), st.integers(-3, 1100) | st.integers(2**64 - 1, 2**64 + 1))
def test_the_last_entry_at_or_before_a_seq_is_found(records: list[Record], stride: int, seq: int) -> None:
    candidates = [offset for entry_seq, _, offset in records[::stride] if entry_seq <= seq]
    expected = candidates[-1] if candidates else None
    assert index_over(records, stride).entry_at_or_before_seq(seq) == expected


@given(segments(), st.integers(1, 9), st.integers(-3, 33) | st.integers(2**64 - 1, 2**64 + 1))
def test_a_scan_from_the_entry_finds_the_first_record_at_or_after_a_timestamp(
    records: list[Record], stride: int, timestamp_ns: int
) -> None:
    start = index_over(records, stride).entry_before_timestamp(timestamp_ns) or 64
    wanted = [offset for _, ts, offset in records if ts >= timestamp_ns]
    found = [offset for _, ts, offset in records if ts >= timestamp_ns and offset >= start]
    assert found[:1] == wanted[:1]


@given(segments(), st.integers(1, 9), st.integers(1, 33))
def test_the_entry_before_a_timestamp_is_the_last_one_below_it(
    records: list[Record], stride: int, timestamp_ns: int
) -> None:
    candidates = [offset for _, ts, offset in records[::stride] if ts < timestamp_ns]
    expected = candidates[-1] if candidates else None
    assert index_over(records, stride).entry_before_timestamp(timestamp_ns) == expected


@given(segments(monotonic=False), st.integers(1, 33))
def test_where_timestamps_go_back_no_entry_after_the_first_hit_is_chosen(
    records: list[Record], timestamp_ns: int
) -> None:
    start = index_over(records, stride=1).entry_before_timestamp(timestamp_ns) or 64
    hits = [offset for _, ts, offset in records if ts >= timestamp_ns]
    assert not hits or start <= hits[0]
