"""Snapshot files: the newest valid one counts, and no damage is taken for a state."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import CorruptMetadata, Io, UnsupportedVersion
from everlog.fault_fs import FaultFs
from everlog.topics.storage import layout, snapshot
from tests.support.files import UnsyncedFs
from tests.topics.storage.segment_samples import every_failure, every_power_loss, fault_fs


def path_of(meta: Path, number: int) -> Path:
    return meta / layout.SNAPSHOT_FILE.name(number)


def with_two(meta: Path) -> None:
    for number in (1, 2):
        snapshot.write(UnsyncedFs(), str(meta), number, [b"state %d" % number * 20])


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5))
def test_the_newest_payload_comes_back(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes]
) -> None:
    meta = str(tmp_path_factory.mktemp("meta"))
    for number, payload in enumerate(payloads, start=1):
        snapshot.write(UnsyncedFs(), meta, number, [payload])
    assert snapshot.newest(UnsyncedFs(), meta) == (len(payloads), payloads[-1], [])
    assert snapshot.numbers(UnsyncedFs(), meta) == list(range(1, len(payloads) + 1))


def test_without_a_snapshot_there_is_no_payload(tmp_path: Path) -> None:
    nothing = snapshot.NewestSnapshot(0, None, [])
    assert snapshot.newest(UnsyncedFs(), str(tmp_path)) == nothing
    assert snapshot.newest(UnsyncedFs(), str(tmp_path / "nowhere")) == nothing


@given(st.integers(min_value=0))
def test_a_flipped_bit_means_the_older_snapshot_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, bit: int
) -> None:
    meta = tmp_path_factory.mktemp("meta")
    with_two(meta)
    flip(path_of(meta, 2), bit)
    version = range(len(layout.SNAPSHOT_MAGIC), len(layout.SNAPSHOT_MAGIC) + 4)
    if bit // 8 % path_of(meta, 2).stat().st_size in version:
        with pytest.raises(UnsupportedVersion, match="move the file elsewhere"):
            snapshot.newest(UnsyncedFs(), str(meta))
        return
    found = snapshot.newest(UnsyncedFs(), str(meta))
    assert (found.number, found.payload) == (1, b"state 1" * 20)
    assert [rejected.path for rejected in found.rejected] == [str(path_of(meta, 2))]


@given(st.integers(0, 167))
def test_a_short_file_means_the_older_snapshot(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    meta = tmp_path_factory.mktemp("meta")
    with_two(meta)
    content = path_of(meta, 2).read_bytes()
    assert len(content) == 168
    path_of(meta, 2).write_bytes(content[:length])
    assert snapshot.newest(UnsyncedFs(), str(meta)).number == 1


def test_if_all_are_damaged_all_are_reported(tmp_path: Path) -> None:
    with_two(tmp_path)
    for number in (1, 2):
        flip(path_of(tmp_path, number), 8 * 30)
    found = snapshot.newest(UnsyncedFs(), str(tmp_path))
    assert (found.number, found.payload) == (0, None)
    assert [(rejected.path, rejected.reason) for rejected in found.rejected] == [
        (str(path_of(tmp_path, number)), "its payload does not match its checksum") for number in (2, 1)
    ]


def test_another_version_is_refused_even_if_an_older_snapshot_would_do(tmp_path: Path) -> None:
    with_two(tmp_path)
    header = layout.SNAPSHOT_HEADER.pack(layout.SNAPSHOT_MAGIC, 7, 0)
    path_of(tmp_path, 3).write_bytes(header + bytes(8))
    with pytest.raises(UnsupportedVersion, match=r"snapshot-0000000000000003\.bin has version 7") as refusal:
        snapshot.newest(UnsyncedFs(), str(tmp_path))
    assert refusal.value.version == 7


def test_a_snapshot_that_cannot_be_read_is_no_reason_to_take_an_older_one(tmp_path: Path) -> None:
    with_two(tmp_path)
    fs = fault_fs(tmp_path)
    fs.fail_when("pread", errno.EIO)
    with pytest.raises(Io, match="cannot read the snapshot") as failure:
        snapshot.newest(fs, str(tmp_path))
    assert failure.value.errno == errno.EIO


def test_a_foreign_name_is_refused_and_temporary_files_are_not_seen(tmp_path: Path) -> None:
    with_two(tmp_path)
    path_of(tmp_path, 3).with_suffix(".bin.tmp").write_bytes(b"half")
    assert snapshot.newest(UnsyncedFs(), str(tmp_path)).number == 2
    (tmp_path / "snapshot.7.bin").touch()
    with pytest.raises(CorruptMetadata, match=r"snapshot\.7\.bin is no snapshot"):
        snapshot.newest(UnsyncedFs(), str(tmp_path))


@given(st.sets(st.integers(1, 50), min_size=1), st.integers(1, 4))
def test_pruning_keeps_the_newest(
    tmp_path_factory: pytest.TempPathFactory, numbers: set[int], keep: int
) -> None:
    meta = tmp_path_factory.mktemp("meta")
    for number in numbers:
        snapshot.write(UnsyncedFs(), str(meta), number, [b"%d" % number])
    (meta / "snapshot-0000000000000099.bin.tmp").touch()
    removed = snapshot.prune(UnsyncedFs(), str(meta), keep)
    left = sorted(numbers)[-keep:]
    assert removed == sorted(numbers - set(left))
    assert sorted(path.name for path in meta.iterdir()) == [layout.SNAPSHOT_FILE.name(n) for n in left]


def test_pruning_everything_is_refused(tmp_path: Path) -> None:
    with_two(tmp_path)
    with pytest.raises(ValueError, match="at least the newest"):
        snapshot.prune(UnsyncedFs(), str(tmp_path), keep=0)
    assert snapshot.numbers(UnsyncedFs(), str(tmp_path)) == [1, 2]


def replace_oldest(root: Path, fs: FaultFs) -> None:
    """What a checkpoint does: a new snapshot, then the oldest one goes."""
    snapshot.write(fs, str(root), 3, [b"state 3" * 20])
    snapshot.prune(fs, str(root), keep=2)


def test_power_loss_at_any_call_leaves_the_old_or_the_new_snapshot_valid(tmp_path: Path) -> None:
    seen = set()
    for root, _ in every_power_loss(tmp_path, with_two, replace_oldest):
        found = snapshot.newest(UnsyncedFs(), str(root))
        assert found.rejected == []
        assert found.payload == b"state %d" % found.number * 20
        seen.add(found.number)
    assert seen == {2, 3}


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failed_call_is_reported_and_leaves_a_valid_snapshot(tmp_path: Path, number: int) -> None:
    for root, fs in every_failure(tmp_path, number, with_two, replace_oldest):
        found = snapshot.newest(fs, str(root))
        assert found.payload == b"state %d" % found.number * 20
        replace_oldest(root, fs)
        assert snapshot.numbers(UnsyncedFs(), str(root)) == [2, 3]
