"""READY and LEASE: section 5.4."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.bus import Lease, clear_ready, is_ready, mark_ready, read_lease, write_lease
from everlog.errors import CorruptMetadata, Io
from everlog.fs import OsFs


class RecordingFs(OsFs):
    """The real file system; remembers renames, and refuses them on demand."""

    def __init__(self, refuse: bool = False) -> None:
        self.refuse = refuse
        self.renames: list[tuple[str, str]] = []

    def rename(self, source: str, target: str) -> None:
        self.renames.append((os.path.basename(source), os.path.basename(target)))
        if self.refuse:
            raise OSError(errno.EIO, "Input/output error")
        super().rename(source, target)


def test_ready_is_an_empty_regular_file(tmp_path: Path) -> None:
    mark_ready(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["READY"]
    assert (tmp_path / "READY").is_file()
    assert (tmp_path / "READY").read_bytes() == b""
    assert is_ready(tmp_path)


def test_ready_is_written_as_ready_tmp_and_then_renamed(tmp_path: Path) -> None:
    fs = RecordingFs()
    mark_ready(tmp_path, fs=fs)
    assert fs.renames == [("READY.tmp", "READY")]


def test_marking_twice_changes_nothing(tmp_path: Path) -> None:
    mark_ready(tmp_path)
    mark_ready(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["READY"]


def test_a_missing_directory_is_not_ready(tmp_path: Path) -> None:
    assert not is_ready(tmp_path / "absent")


def test_a_ready_tmp_alone_is_not_ready(tmp_path: Path) -> None:
    (tmp_path / "READY.tmp").touch()
    assert not is_ready(tmp_path)


def test_a_directory_named_ready_is_not_ready(tmp_path: Path) -> None:
    (tmp_path / "READY").mkdir()
    assert not is_ready(tmp_path)


def test_a_link_named_ready_is_not_ready(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "READY").symlink_to("file")
    assert not is_ready(tmp_path)


def test_a_file_in_place_of_the_directory_is_not_ready(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not is_ready(tmp_path / "file")


def test_marking_a_directory_that_does_not_exist_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(Io, match="absent/READY") as caught:
        mark_ready(tmp_path / "absent")
    assert caught.value.errno == errno.ENOENT


def test_a_refused_rename_leaves_the_directory_not_ready(tmp_path: Path) -> None:
    with pytest.raises(Io) as caught:
        mark_ready(tmp_path, fs=RecordingFs(refuse=True))
    assert caught.value.errno == errno.EIO
    assert not is_ready(tmp_path)


def test_clearing_ready_tells_whether_it_was_there(tmp_path: Path) -> None:
    mark_ready(tmp_path)
    assert clear_ready(tmp_path) is True
    assert not is_ready(tmp_path)
    assert clear_ready(tmp_path) is False
    assert clear_ready(tmp_path / "absent") is False


def test_a_ready_that_cannot_be_removed_is_reported(tmp_path: Path) -> None:
    (tmp_path / "READY").mkdir()
    with pytest.raises(Io, match="READY"):
        clear_ready(tmp_path)


def test_a_lease_is_one_json_line_of_pid_epoch_and_timestamp(tmp_path: Path) -> None:
    write_lease(tmp_path, 4711, 3, 1_700_000_000_000_000_000)
    text = (tmp_path / "LEASE").read_text()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert json.loads(text) == {"pid": 4711, "epoch": 3, "timestamp_ns": 1_700_000_000_000_000_000}


def test_a_lease_is_written_by_temp_file_and_rename(tmp_path: Path) -> None:
    fs = RecordingFs()
    write_lease(tmp_path, 1, 1, 1, fs=fs)
    assert fs.renames == [("LEASE.tmp", "LEASE")]


def test_a_failed_renewal_leaves_the_old_lease(tmp_path: Path) -> None:
    write_lease(tmp_path, 1, 2, 3)
    with pytest.raises(Io):
        write_lease(tmp_path, 4, 5, 6, fs=RecordingFs(refuse=True))
    assert read_lease(tmp_path) == Lease(1, 2, 3)


def test_no_lease_reads_as_none(tmp_path: Path) -> None:
    assert read_lease(tmp_path) is None
    assert read_lease(tmp_path / "absent") is None


COUNTS = st.integers(min_value=0, max_value=2**64 - 1)


@given(pid=COUNTS, epoch=COUNTS, timestamp_ns=COUNTS)
def test_a_lease_reads_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, pid: int, epoch: int, timestamp_ns: int
) -> None:
    directory = tmp_path_factory.getbasetemp()
    write_lease(directory, pid, epoch, timestamp_ns)
    assert read_lease(directory) == Lease(pid, epoch, timestamp_ns)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"{",
        b"[1,2,3]\n",
        b"null\n",
        b'"pid"\n',
        b'{"pid":1,"epoch":2}\n',
        b'{"pid":"1","epoch":2,"timestamp_ns":3}\n',
        b'{"pid":true,"epoch":2,"timestamp_ns":3}\n',
        b'{"pid":1,"epoch":-2,"timestamp_ns":3}\n',
        b'{"pid":1,"epoch":2.5,"timestamp_ns":3}\n',
        b"\xff\xfe\x00",
        b"[" * 4096,
    ],
)
def test_garbage_in_place_of_a_lease_is_corrupt_metadata(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "LEASE").write_bytes(content)
    with pytest.raises(CorruptMetadata, match="LEASE"):
        read_lease(tmp_path)


@pytest.mark.parametrize(("pid", "epoch", "timestamp_ns"), [(-1, 0, 0), (0, -1, 0), (0, 0, -1), (True, 0, 0)])
def test_a_lease_that_could_not_be_read_back_is_refused(
    tmp_path: Path, pid: int, epoch: int, timestamp_ns: int
) -> None:
    with pytest.raises(ValueError, match="must be an integer of at least 0"):
        write_lease(tmp_path, pid, epoch, timestamp_ns)
    assert read_lease(tmp_path) is None


def test_a_read_while_a_lease_is_renewed_sees_a_whole_one(tmp_path: Path) -> None:
    renewals = 500
    write_lease(tmp_path, 0, 0, 0)

    def renew() -> None:
        for number in range(1, renewals + 1):
            write_lease(tmp_path, number, number, number)

    writer = threading.Thread(target=renew)
    writer.start()
    last = 0
    while last < renewals:
        lease = read_lease(tmp_path)
        assert lease is not None
        assert lease.pid == lease.epoch == lease.timestamp_ns >= last
        last = lease.pid
        if not writer.is_alive():
            assert read_lease(tmp_path) == Lease(renewals, renewals, renewals)
            break
    writer.join()
