"""The files of the log: which are found, which names are refused, how one is ended and made."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import CorruptMetadata
from everlog.fault_fs import FaultFs
from everlog.fs import OsFs
from everlog.native.topics.log import read_log_frame
from everlog.topics.storage import layout
from everlog.topics.storage.wal_files import (
    END_FRAME_SIZE,
    PAGE_SIZE,
    capacity_for,
    create_log_file,
    cut_tail,
    discard_log_file,
    end_frame,
    list_wal_files,
    read_end_frame,
)
from tests.support.fault_files import contents, write
from tests.topics.storage.wal_samples import frame, frames_of

places = st.dictionaries(st.integers(0, 10**18), st.none() | st.integers(0, 120), max_size=12)


def fill(wal_dir: Path, places: dict[int, int | None]) -> None:
    """Empty log files: number -> shard, None for the flat layout."""
    for number, shard in places.items():
        directory = wal_dir if shard is None else wal_dir / layout.SHARD_DIR.name(shard)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / layout.WAL_FILE.name(number)).touch()


@given(places=places)
def test_files_of_all_shards_and_of_the_flat_layout_are_found_in_number_order(
    places: dict[int, int | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    wal_dir = tmp_path_factory.mktemp("log") / "wal"
    fill(wal_dir, places)
    found = list_wal_files(OsFs(), str(wal_dir))
    assert [file.number for file in found] == sorted(places)
    for file in found:
        shard = places[file.number]
        assert file.shard_dir == str(wal_dir if shard is None else wal_dir / layout.SHARD_DIR.name(shard))
        assert file.path == os.path.join(file.shard_dir, layout.WAL_FILE.name(file.number))
        assert os.path.exists(file.path)


def test_a_log_that_was_never_written_has_no_files(tmp_path: Path) -> None:
    assert list_wal_files(OsFs(), str(tmp_path / "wal")) == []


@pytest.mark.parametrize(
    "name",
    [
        "wal-1.log",
        "wal-00000000000000001.log",
        "wal-0000000000000001.log.bak",
        "wal-0000000000000001",
        "notes.txt",
        "shard-1",
        "shard-00/wal-2.log",
        "shard-00/shard-01",
    ],
)
def test_a_name_that_means_nothing_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(CorruptMetadata, match=name):
        list_wal_files(OsFs(), str(tmp_path))


def test_a_file_in_place_of_a_shard_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shard-00").touch()
    with pytest.raises(CorruptMetadata, match="shard-00 is a file"):
        list_wal_files(OsFs(), str(tmp_path))


@pytest.mark.parametrize("suffix", [".tmp", ".orphan"])
def test_temporary_files_and_those_set_aside_are_passed_over(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"wal-0000000000000001.log{suffix}").touch()
    assert list_wal_files(OsFs(), str(tmp_path)) == []


def test_two_files_with_one_number_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, {7: None})
    fill(tmp_path, {7: 3})
    with pytest.raises(CorruptMetadata, match="same number"):
        list_wal_files(OsFs(), str(tmp_path))


def test_the_end_frame_says_that_the_file_ends_and_which_number_it_has() -> None:
    read = read_log_frame(end_frame(7), 0)
    assert (read.size, read.type, read.seq) == (END_FRAME_SIZE, layout.FrameType.FILE_END, 7)
    content = frame(b"before") + end_frame(7)
    assert read_end_frame(content, len(content)) == 7
    assert read_end_frame(content, len(frame(b"before"))) is None
    assert read_end_frame(content, END_FRAME_SIZE - 1) is None


def test_a_cut_file_ends_with_the_end_frame_whenever_the_power_goes(tmp_path: Path) -> None:
    fs = FaultFs(tmp_path)
    good = frame(b"good") + frame(b"better")
    path = tmp_path / layout.WAL_FILE.name(1)
    write(fs, path, good + frame(b"torn")[:-3] + bytes(500), sync=True)
    cut_tail(fs, str(path), 1, len(good))
    assert contents(fs, path.name) == {good + end_frame(1)}


def test_a_file_can_be_cut_again_after_a_power_loss_during_the_cut(tmp_path: Path) -> None:
    good = frame(b"good")
    path = tmp_path / layout.WAL_FILE.name(1)
    for failing_call in range(1, 5):
        fs = FaultFs(tmp_path)
        write(fs, path, good + b"\x40" + bytes(300), sync=True)
        fs.fail_at(fs.calls + failing_call, errno.EIO)
        with pytest.raises(OSError, match="planned"):
            cut_tail(fs, str(path), 1, len(good))
        fs.restore()
        assert frames_of(path.read_bytes())[:1] == [good]
        cut_tail(fs, str(path), 1, len(good))
        assert path.read_bytes() == good + end_frame(1)
        path.unlink()


@given(size=st.integers(0, 10**7), file_bytes=st.integers(256, 10**6))
def test_a_file_is_larger_only_if_one_batch_needs_it(size: int, file_bytes: int) -> None:
    capacity = capacity_for(size, file_bytes)
    if size + END_FRAME_SIZE <= file_bytes:
        assert capacity == file_bytes
    else:
        assert size + END_FRAME_SIZE <= capacity < size + END_FRAME_SIZE + PAGE_SIZE


def test_a_new_file_is_all_zero_allocated_and_mapped(tmp_path: Path) -> None:
    file = create_log_file(OsFs(), str(tmp_path), 5, 4096)
    assert Path(file.path).read_bytes() == bytes(4096) == bytes(memoryview(file.mapping))
    assert os.stat(file.path).st_blocks * 512 >= 4096
    OsFs().pwrite(file.fd, b"seen", 100)
    assert bytes(memoryview(file.mapping)[100:104]) == b"seen"
    discard_log_file(OsFs(), file)
    assert os.listdir(tmp_path) == []


def test_a_file_of_an_earlier_life_is_never_opened_again(tmp_path: Path) -> None:
    create_log_file(OsFs(), str(tmp_path), 5, 4096).close(OsFs())
    with pytest.raises(FileExistsError):
        create_log_file(OsFs(), str(tmp_path), 5, 4096)
    assert len(os.listdir(tmp_path)) == 1


def test_a_file_that_cannot_be_allocated_leaves_nothing(tmp_path: Path) -> None:
    fs = FaultFs(tmp_path)
    fs.fail_when("allocate", errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        create_log_file(fs, str(tmp_path), 5, 4096)
    assert os.listdir(tmp_path) == []
    create_log_file(fs, str(tmp_path), 5, 4096).close(fs)
