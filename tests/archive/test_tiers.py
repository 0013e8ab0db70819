"""Compressing and bringing back: verified first, killed or out of power anywhere, one process at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from everlog.archive import tiers
from everlog.archive.reader import open_archive
from everlog.archive.tiers import (
    Tier,
    changing,
    compress_segment,
    decompress_segment,
    list_segments,
    resolve,
)
from everlog.errors import Corrupt, EverlogError, Unsupported
from everlog.fault_fs import FaultFs, PowerLoss
from everlog.fs import Fs, OsFs
from everlog.queue import Message, Queue
from tests.support.archives import compress, compress_and_die, known_messages, write_archive
from tests.support.files import UnsyncedFs
from tests.support.processes import Child

MESSAGES = known_messages(60)


def read_all(directory: Path) -> list[Message]:
    with open_archive(directory) as reader:
        return reader.drain(2**31)


def test_the_first_tier_of_a_segment_counts_and_each_segment_counts_once(tmp_path: Path) -> None:
    ids = write_archive(tmp_path, MESSAGES)
    compress(tmp_path, ids[0], keep_source=True)
    compress(tmp_path, ids[1])
    stub = '{"remote_uri": "file:///x/000000001.q.zst", "size_bytes": 1, "idx_size_bytes": 1, "sha256": "%s"}'
    for name in ("000000001.q.zst.remote.json", "000000900.q.zst.remote.json"):
        (tmp_path / name).write_text(stub % ("0" * 64))
    (tmp_path / "000000901.q.zst").write_bytes(b"without its index")
    (tmp_path / "12.q").write_bytes(b"not a segment's name")
    found = {segment.segment_id: segment.tier for segment in list_segments(OsFs(), str(tmp_path))}
    assert found == {
        **dict.fromkeys(ids, Tier.PLAIN),
        ids[1]: Tier.COMPRESSED,
        900: Tier.REMOTE,
    }
    assert resolve(OsFs(), str(tmp_path), ids[1]) == list_segments(OsFs(), str(tmp_path))[1]
    assert resolve(OsFs(), str(tmp_path), 901) is None


def steps_of(action: Callable[[Fs, str], object], prepare: Callable[[Path], None], root: Path) -> int:
    directory = root / "clean"
    prepare(directory)
    fs = FaultFs(directory)
    action(fs, str(directory))
    assert fs.calls > 8
    return fs.calls


def prepare_plain(directory: Path) -> None:
    write_archive(directory, MESSAGES, segment_size=16384)


def prepare_compressed(directory: Path) -> None:
    prepare_plain(directory)
    compress(directory, 0, 6000)


@pytest.mark.parametrize(
    ("action", "prepare"),
    [
        (lambda fs, directory: compress_segment(fs, directory, 0, block_size=6000), prepare_plain),
        (lambda fs, directory: decompress_segment(fs, directory, 0), prepare_compressed),
    ],
    ids=["compress", "decompress"],
)
def test_power_lost_at_any_call_leaves_every_message_and_the_step_can_be_done_again(
    action: Callable[[Fs, str], object], prepare: Callable[[Path], None], tmp_path: Path
) -> None:
    for number in range(1, steps_of(action, prepare, tmp_path) + 1):
        directory = tmp_path / str(number)
        prepare(directory)
        fs = FaultFs(directory, seed=number)
        fs.lose_power_at(number)
        with suppress(PowerLoss):
            action(fs, str(directory))
        fs.restore()
        assert read_all(directory) == MESSAGES, f"after call {number}"
        with suppress(FileNotFoundError):  # it was done
            action(UnsyncedFs(), str(directory))
        assert read_all(directory) == MESSAGES
        assert len(list_segments(OsFs(), str(directory))) == 1


def test_a_compressor_that_is_killed_before_any_file_operation_loses_nothing(tmp_path: Path) -> None:
    number, was_killed = 0, True
    while was_killed:
        number += 1
        directory = tmp_path / str(number)
        prepare_plain(directory)
        with Child(compress_and_die, str(directory), number) as child:
            was_killed = child.wait_for_death() == -9
        assert read_all(directory) == MESSAGES
        if was_killed and (directory / "000000000.q").exists():
            compress(directory, 0, 6000)
        assert read_all(directory) == MESSAGES
        assert not list(directory.glob("*.q"))
    assert number > 15


def test_what_does_not_read_back_as_its_source_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_plain(tmp_path)

    class LyingFs(UnsyncedFs):
        def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> None:
            wrong = bytes(data[:-1]) + bytes([data[-1] ^ 1]) if len(data) > 300 else data
            super().pwrite(fd, wrong, offset)

    with pytest.raises(Corrupt):
        compress_segment(LyingFs(), str(tmp_path), 0, block_size=6000)
    assert (tmp_path / "000000000.q").exists()
    assert not (tmp_path / "000000000.q.zst").exists()
    assert read_all(tmp_path) == MESSAGES


def test_only_sealed_segments_are_compressed(tmp_path: Path) -> None:
    with Queue.open_publisher(tmp_path, segment_size=1024) as writer:
        writer.append(1, b"x")
        with pytest.raises(Unsupported, match="not sealed"):
            compress_segment(UnsyncedFs(), str(tmp_path), 0)
    with pytest.raises(EverlogError, match="restore it"):
        (tmp_path / "000000000.q").write_bytes(b"short")
        compress_segment(UnsyncedFs(), str(tmp_path), 0)


def test_a_directory_is_changed_by_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        changing(OsFs(), str(tmp_path)),
        pytest.raises(Unsupported, match="another process"),
        changing(OsFs(), str(tmp_path)),
    ):
        raise AssertionError("two at a time")


def test_a_damaged_record_is_archived_as_it_is_and_reported_by_the_reader(tmp_path: Path) -> None:
    prepare_plain(tmp_path)
    file = tmp_path / "000000000.q"
    content = bytearray(file.read_bytes())
    content[200] ^= 1
    file.write_bytes(content)
    (tmp_path / "000000000.idx").unlink()
    compress(tmp_path, 0)
    with pytest.raises(Corrupt, match="checksum"):
        read_all(tmp_path)
    assert decompress_segment(UnsyncedFs(), str(tmp_path), 0) == len(content)
    assert file.read_bytes() == bytes(content)


def test_the_seek_index_of_a_segment_says_what_the_one_of_its_writer_said(tmp_path: Path) -> None:
    messages = known_messages(10_000, length_max=10)
    write_archive(tmp_path, messages, segment_size=1 << 21)
    written = (tmp_path / "000000000.idx").read_bytes()
    (tmp_path / "000000000.idx").unlink()
    compress(tmp_path, 0)
    assert (tmp_path / "000000000.idx").read_bytes() == written


def test_the_index_of_a_compressed_segment_survives_a_writer_of_the_queue(tmp_path: Path) -> None:
    with Queue.open_publisher(tmp_path, segment_size=1024) as writer:
        for seq in range(30):
            writer.append(1, b"%d" % seq, 1 + seq)
    compress(tmp_path, 0)
    with Queue.open_publisher(tmp_path) as writer:
        assert writer.append(1, b"more") == 30
    assert (tmp_path / "000000000.idx").exists()
    assert tiers.list_segments(OsFs(), str(tmp_path))[0].tier is Tier.COMPRESSED
