"""Spec 1.7: index.meta."""

import errno
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.fault_fs import FaultFs, PowerLoss
from everlog.fs import OsFs
from everlog.queue import index_meta
from everlog.queue.index_meta import START, IndexPosition
from tests.support.files import tree

SEGMENT_SIZE = 4096
GOLDEN = struct.pack("<QQ", 3, 640)

positions = st.builds(
    IndexPosition, st.integers(0, 999_999_999), st.integers(1, SEGMENT_SIZE // 64).map(lambda n: n * 64)
)


def test_the_file_holds_the_segment_and_the_offset_in_sixteen_bytes(tmp_path: Path) -> None:
    index_meta.store(OsFs(), str(tmp_path), 3, 640)
    assert tree(tmp_path) == {"index.meta": GOLDEN}


@given(positions)
def test_a_position_survives_encoding(position: IndexPosition) -> None:
    assert index_meta.decode(index_meta.encode(position), SEGMENT_SIZE) == position


@given(
    st.binary(max_size=24)
    | st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 8192)).map(lambda pair: struct.pack("<QQ", *pair))
)
def test_content_is_accepted_exactly_if_it_is_a_place_in_the_queue(data: bytes) -> None:
    expected = None
    if len(data) == 16:
        segment, offset = struct.unpack("<QQ", data)
        if segment <= 999_999_999 and 64 <= offset <= SEGMENT_SIZE and offset % 64 == 0:
            expected = (segment, offset)
    assert index_meta.decode(data, SEGMENT_SIZE) == expected


def test_a_missing_file_means_segment_zero_offset_sixty_four(tmp_path: Path) -> None:
    assert index_meta.load(OsFs(), str(tmp_path), SEGMENT_SIZE) == (0, 64) == START
    assert index_meta.load_if_present(OsFs(), str(tmp_path), SEGMENT_SIZE) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        GOLDEN[:15],
        GOLDEN + b"\0",
        struct.pack("<QQ", 3, 0),
        struct.pack("<QQ", 3, 63),
        struct.pack("<QQ", 3, 65),
        struct.pack("<QQ", 3, SEGMENT_SIZE + 64),
        struct.pack("<QQ", 1_000_000_000, 64),
        b"\xff" * 16,
    ],
)
def test_out_of_range_or_short_content_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "index.meta").write_bytes(content)
    assert index_meta.load(OsFs(), str(tmp_path), SEGMENT_SIZE) == START


def test_the_end_of_the_last_possible_segment_is_in_range(tmp_path: Path) -> None:
    index_meta.store(OsFs(), str(tmp_path), 999_999_999, SEGMENT_SIZE)
    assert index_meta.load(OsFs(), str(tmp_path), SEGMENT_SIZE) == (999_999_999, SEGMENT_SIZE)


def test_a_store_that_fails_at_any_call_leaves_the_old_or_the_new_content(tmp_path: Path) -> None:
    index_meta.store(OsFs(), str(tmp_path), 1, 64)
    fs = FaultFs(str(tmp_path))
    failures = 0
    while True:
        first = fs.calls + 1
        fs.fail_at(first + failures, errno.EIO)
        try:
            index_meta.store(fs, str(tmp_path), 2, 128)
        except OSError:
            failures += 1
            assert index_meta.load(OsFs(), str(tmp_path), SEGMENT_SIZE) in {(1, 64), (2, 128)}
            index_meta.store(OsFs(), str(tmp_path), 1, 64)
        else:
            break
    assert failures == 6  # open, pwrite, fsync, close, rename, fsync_dir


@given(st.integers(0, 2**32), st.integers(1, 6))
def test_a_power_loss_at_any_call_leaves_the_old_or_the_new_position(
    tmp_path_factory: pytest.TempPathFactory, seed: int, call: int
) -> None:
    root = tmp_path_factory.mktemp("queue")
    index_meta.store(OsFs(), str(root), 1, 64)
    fs = FaultFs(str(root), seed, page_size=8)
    fs.tear_at(call)
    with pytest.raises(PowerLoss):
        index_meta.store(fs, str(root), 2, 128)
    fs.restore()
    assert index_meta.load(OsFs(), str(root), SEGMENT_SIZE) in {(1, 64), (2, 128)}
