"""Spec 1.7, 1.8 and 2.2: when the seek index and index.meta are written, byte by byte."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everlog.clock import NS_PER_S, TestClock
from everlog.errors import Io
from everlog.fault_fs import FaultFs
from everlog.queue import QueueWriter
from tests.support.files import UnsyncedFs
from tests.support.processes import eventually
from tests.support.queues import SMALL, kill_image, open_writer, payloads

HEADER = struct.Struct("<8sHHIQQIIQQQQQ")


def stored_index(path: Path, segment_id: int) -> dict[str, Any]:
    """A seek index file, field by field, by plain struct."""
    data = (path / f"{segment_id:09d}.idx").read_bytes()
    names = (
        "magic version header_len flags segment_id segment_size data_offset entry_stride "
        "min_seq max_seq min_ts_ns max_ts_ns entry_count"
    )
    fields: dict[str, Any] = dict(zip(names.split(), HEADER.unpack_from(data), strict=True))
    assert len(data) == 80 + 24 * fields["entry_count"]
    fields["entries"] = list(struct.iter_unpack("<QQQ", data[80:]))
    return fields


def index_meta(path: Path) -> tuple[int, int]:
    """The content of index.meta."""
    segment_id, offset = struct.unpack("<QQ", (path / "index.meta").read_bytes())
    return segment_id, offset


def append_stamped(writer: QueueWriter, *stamps: int) -> None:
    """Append one record of 128 bytes for each timestamp."""
    for stamp in stamps:
        writer.append(1, b"x", stamp)


def test_five_records_at_stride_2_give_entries_0_2_4(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", index_stride=2) as writer:
        append_stamped(writer, 50, 40, 60, 30, 70)
        writer.flush_sync()
    assert (tmp_path / "q/000000000.idx").read_bytes() == HEADER.pack(
        b"CHRIDX1\0", 1, 80, 0, 0, SMALL, 64, 2, 0, 4, 30, 70, 3
    ) + struct.pack("<9Q", 0, 50, 64, 2, 60, 64 + 2 * 128, 4, 70, 64 + 4 * 128)


@pytest.mark.parametrize("stride", [1, 2, 3, 7, 4096])
def test_the_first_record_is_an_entry_and_then_every_strideth_in_every_segment(
    tmp_path: Path, stride: int
) -> None:
    with open_writer(tmp_path / "q", index_stride=stride, retention=False) as writer:
        append_stamped(writer, *range(100, 130))
        last_segment = writer.segment_id
    per_segment = (SMALL - 64) // 128
    for segment_id in range(last_segment + 1):
        seqs = list(range(segment_id * per_segment, min(30, (segment_id + 1) * per_segment)))
        index = stored_index(tmp_path / "q", segment_id)
        assert index["entry_stride"] == stride
        assert index["entries"] == [(seq, seq + 100, 64 + (seq - seqs[0]) * 128) for seq in seqs[::stride]]
        assert (index["min_seq"], index["max_seq"]) == (seqs[0], seqs[-1])
        assert (index["min_ts_ns"], index["max_ts_ns"]) == (seqs[0] + 100, seqs[-1] + 100)


def test_padding_is_not_counted(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", index_stride=1, retention=False) as writer:
        append_stamped(writer, 5)
        writer.append(1, bytes(SMALL - 128), 6)
        writer.append(1, bytes(SMALL - 128), 7)
    assert stored_index(tmp_path / "q", 0)["entries"] == [(0, 5, 64)]
    assert stored_index(tmp_path / "q", 1)["entries"] == [(1, 6, 64)]


def test_arrays_and_builders_are_indexed_like_single_records(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", index_stride=2) as writer:
        writer.append_array(1, np.zeros(3, "V1"), np.array([9, 8, 7], np.uint64))
        writer.append_in_place(1, 1, lambda view: None, 6)
        writer.append_many(1, [b"x"], 5)
    index = stored_index(tmp_path / "q", 0)
    assert index["entries"] == [(0, 9, 64), (2, 7, 64 + 256), (4, 5, 64 + 512)]
    assert (index["min_ts_ns"], index["max_ts_ns"]) == (5, 9)


def test_a_roll_writes_the_index_of_the_segment_it_leaves(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", retention=False) as writer:
        append_stamped(writer, *range(8))
        assert writer.segment_id == 1
        assert stored_index(tmp_path / "q", 0)["max_seq"] == 6
        assert not (tmp_path / "q/000000001.idx").exists()


def test_only_flush_sync_writes_index_meta(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", retention=False) as writer:
        append_stamped(writer, *range(8))
        writer.flush_async()
        assert not (tmp_path / "q/index.meta").exists()
        writer.flush_sync()
        assert index_meta(tmp_path / "q") == (1, 192)
        assert stored_index(tmp_path / "q", 1)["max_seq"] == 7
        append_stamped(writer, 9)
    assert index_meta(tmp_path / "q") == (1, 192), "closing writes no index.meta"
    assert stored_index(tmp_path / "q", 1)["max_seq"] == 8, "but the seek index"


def test_a_flush_of_an_empty_queue_writes_no_index(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer:
        writer.flush_sync()
        assert index_meta(tmp_path / "q") == (0, 64)
    assert not (tmp_path / "q/000000000.idx").exists()


def test_an_index_of_a_writer_that_was_reopened_in_mid_segment_is_partial(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", index_stride=1, retention=False) as writer:
        append_stamped(writer, 5, 6)
    assert stored_index(tmp_path / "q", 0)["flags"] == 0
    with open_writer(tmp_path / "q", index_stride=1, retention=False) as writer:
        append_stamped(writer, 7, 8)
        writer.flush_sync()
        index = stored_index(tmp_path / "q", 0)
        assert index["flags"] == 1
        assert index["entries"] == [(2, 7, 64 + 256), (3, 8, 64 + 384)]
        assert (index["min_seq"], index["max_seq"], index["min_ts_ns"], index["max_ts_ns"]) == (2, 3, 7, 8)
        append_stamped(writer, *range(9, 14))
    assert stored_index(tmp_path / "q", 1)["flags"] == 0, "the next segment is known from its first record"


def test_an_index_of_a_dead_writer_is_dropped_when_the_segment_is_written_again(tmp_path: Path) -> None:
    """It may be older than the last records; no index is better than one that hides them."""
    with open_writer(tmp_path / "q", index_stride=1) as writer:
        append_stamped(writer, 5, 6)
    with open_writer(tmp_path / "q"):
        assert not (tmp_path / "q/000000000.idx").exists()


def test_the_index_is_never_more_than_so_many_records_behind(tmp_path: Path) -> None:
    file = tmp_path / "q/000000000.idx"
    with open_writer(tmp_path / "q", index_stride=1, index_flush_records=3) as writer:
        flushed = []
        for stamp in range(7):
            append_stamped(writer, stamp)
            flushed.append(stored_index(tmp_path / "q", 0)["max_seq"] + 1 if file.exists() else 0)
    assert all(0 <= count - done < 3 for count, done in enumerate(flushed, start=1)), flushed
    assert flushed != list(range(1, 8)), "and not with every record"


def test_the_index_is_flushed_every_so_often(tmp_path: Path) -> None:
    clock = TestClock()
    file = tmp_path / "q/000000000.idx"

    def entries() -> int:
        return len(stored_index(tmp_path / "q", 0)["entries"]) if file.exists() else 0

    with open_writer(tmp_path / "q", clock=clock, index_stride=1, index_flush_interval_s=2.0) as writer:
        append_stamped(writer, 1)
        clock.advance_ns(2 * NS_PER_S)
        eventually("a flush", lambda: entries() == 1)
        append_stamped(writer, 2)
        clock.advance_ns(2 * NS_PER_S)
        eventually("the next flush", lambda: entries() == 2)


def test_index_files_are_replaced_as_a_whole(tmp_path: Path) -> None:
    """By temp file and rename; a failing write leaves the old file, and appending goes on."""
    fs = FaultFs(tmp_path, inner=UnsyncedFs())
    with open_writer(tmp_path / "q", fs=fs, index_stride=1, retention=False) as writer:
        append_stamped(writer, 1)
        writer.flush_sync()
        before = (tmp_path / "q/000000000.idx").read_bytes()
        for operation in ("pwrite", "rename"):
            fs.fail_when(operation, 28, path="000000000.idx.tmp")
            append_stamped(writer, 2)
            with pytest.raises(Io, match="No space left"):
                writer.flush_sync()
            assert (tmp_path / "q/000000000.idx").read_bytes() == before
        fs.fail_when("pwrite", 28, path="000000000.idx.tmp")
        append_stamped(writer, *range(10))
        assert writer.segment_id == 1, "an index that cannot be written does not hold up a roll"
    assert len(payloads(tmp_path / "q")) == 13


def test_a_stale_index_never_outlives_a_seal(tmp_path: Path) -> None:
    """The index is only as new as its last flush; a sealed segment must have all records in it or none."""
    image = tmp_path / "image"
    with open_writer(tmp_path / "q", index_stride=1, retention=False) as writer:
        append_stamped(writer, 10, 20)
        writer.flush_sync()
        append_stamped(writer, 30, 40)
        kill_image(tmp_path / "q", image)
    with open_writer(image, retention=False) as writer:
        writer.append(1, bytes(SMALL - 128), 50)
        assert writer.segment_id == 1
    if (image / "000000000.idx").exists():
        index = stored_index(image, 0)
        assert index["flags"] == 1 or index["max_ts_ns"] == 40
