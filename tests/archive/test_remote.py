"""The remote tier: moves that can be killed, single blocks fetched, a bounded cache, damage found."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from everlog.archive.reader import ArchiveReader, open_archive
from everlog.archive.remote import BlockCache, RemoteTier, fnv1a, remote_name
from everlog.archive.tiers import Tier, changing, decompress_segment, list_segments
from everlog.errors import Corrupt, EverlogError, InvalidConfig, ObjectExists, ObjectNotFound, Unsupported
from everlog.fs import OsFs
from everlog.queue import Queue
from tests.support.archives import (
    FIRST_NS,
    compress,
    known_messages,
    move_and_die,
    restore_and_die,
    write_archive,
)
from tests.support.files import UnsyncedFs, flip_bit, tree
from tests.support.processes import Child

MESSAGES = known_messages(150)


def moved(tmp_path: Path, block_size: int = 512) -> tuple[Path, Path]:
    """An archive whose middle segment is in a store."""
    directory, bucket = tmp_path / "archive", tmp_path / "bucket"
    ids = write_archive(directory, MESSAGES, segment_size=8192)
    assert len(ids) > 2
    compress(directory, 1, block_size)
    with changing(UnsyncedFs(), str(directory)):
        RemoteTier(UnsyncedFs()).move(str(directory), 1, f"file://{bucket}", "v1/some")
    return directory, bucket


def test_a_moved_segment_is_read_as_before_and_can_be_brought_back(tmp_path: Path) -> None:
    directory, bucket = moved(tmp_path)
    stub = json.loads((directory / "000000001.q.zst.remote.json").read_text())
    data = bucket / "v1/some/000000001.q.zst"
    assert stub["remote_uri"] == f"file://{data}"
    assert stub["size_bytes"] == data.stat().st_size
    assert stub["idx_size_bytes"] == (bucket / "v1/some/000000001.q.zst.idx").stat().st_size
    assert not list(directory.glob("000000001.q")) and not list(directory.glob("*.zst"))
    tier = RemoteTier(OsFs(), cache_directory=str(tmp_path / "cache"))
    for _ in range(2):
        with open_archive(directory, remote=tier) as reader:
            assert reader.drain(1000) == MESSAGES
    assert tier.verify(str(directory), 1) == stub["size_bytes"]
    with open_archive(directory) as reader:
        assert reader.drain(1000) == MESSAGES
    segments = list_segments(OsFs(), str(directory))
    with ArchiveReader(lambda: segments) as reader, pytest.raises(Unsupported, match="archive restore"):
        reader.drain(1000)
    tier.restore(str(directory), 1)
    decompress_segment(UnsyncedFs(), str(directory), 1)
    assert {segment.tier for segment in list_segments(OsFs(), str(directory))} == {Tier.PLAIN}
    with open_archive(directory) as reader:
        assert reader.drain(1000) == MESSAGES


def test_a_move_overwrites_no_object_of_another_archive(tmp_path: Path) -> None:
    first, bucket = moved(tmp_path)
    other = tmp_path / "other"
    write_archive(other, known_messages(150, 7), segment_size=8192)
    compress(other, 1, 512)
    before = tree(other), tree(bucket)
    with changing(UnsyncedFs(), str(other)), pytest.raises(ObjectExists, match="move to another URL"):
        RemoteTier(UnsyncedFs()).move(str(other), 1, f"file://{bucket}", "v1/some")
    assert (tree(other) | {".archive.lock": b""}, tree(bucket)) == (
        before[0] | {".archive.lock": b""},
        before[1],
    )
    with open_archive(first) as reader:
        assert reader.drain(1000) == MESSAGES


def test_a_seek_by_time_fetches_a_small_part_of_a_segment(tmp_path: Path) -> None:
    size, block = 16 << 20, 1 << 14  # a 64th of 1 GiB in blocks of a 64th: 5 MiB scale to 80 KiB
    count = (size - 64) // 128 - 1
    rows = np.frombuffer(random.Random(1).randbytes(64 * count), dtype="V64")  # nothing to compress
    with Queue.open_publisher(tmp_path / "q", segment_size=size, index_stride=64, fs=UnsyncedFs()) as writer:
        writer.append_array(1, rows, timestamp_ns=np.arange(count, dtype=np.uint64) + np.uint64(FIRST_NS))
        writer.append_array(1, rows[:3])
    directory = tmp_path / "archive"
    directory.mkdir()
    for name in ("000000000.q", "000000000.idx"):
        shutil.copy(tmp_path / "q" / name, directory / name)
    compress(directory, 0, block)
    with changing(UnsyncedFs(), str(directory)):
        RemoteTier(UnsyncedFs()).move(str(directory), 0, f"file://{tmp_path}/bucket", "x")
    for target in (0, 1, count // 3, count - 1):
        tier = RemoteTier(OsFs(), cache_directory=str(tmp_path / f"cache-{target}"))
        with open_archive(directory, remote=tier) as reader:
            fetched = tier.fetched_bytes
            assert reader.seek_time(FIRST_NS + target)
            found = reader.next()
            assert found is not None and found.seq == target
        assert tier.fetched_bytes < 5 * (1 << 20) // 64, f"opening fetched {fetched}"
        again = RemoteTier(OsFs(), cache_directory=str(tmp_path / f"cache-{target}"))
        with open_archive(directory, remote=again) as reader:
            assert reader.seek_time(FIRST_NS + target)
            assert reader.next() is not None
        assert again.fetched_bytes == 0


@pytest.mark.parametrize("is_move", [True, False])
def test_a_mover_killed_before_any_file_operation_loses_nothing(tmp_path: Path, is_move: bool) -> None:
    number, was_killed = 1, True
    url = f"file://{tmp_path}/bucket"
    while was_killed:
        directory = tmp_path / str(number)
        write_archive(directory, MESSAGES[:20], segment_size=16384)
        compress(directory, 0)
        tier = RemoteTier(UnsyncedFs())
        if is_move:
            arguments = (move_and_die, str(directory), url, number)
        else:
            tier.move(str(directory), 0, url, "v1/x")
            arguments = (restore_and_die, str(directory), number)  # type: ignore[assignment]
        with Child(*arguments) as child:
            was_killed = child.wait_for_death() == -9
        with open_archive(directory, remote=tier) as reader:
            assert reader.drain(1000) == MESSAGES[:20], f"killed before operation {number}"
        if is_move and (directory / "000000000.q.zst").exists():
            tier.move(str(directory), 0, url, "v1/x")
        elif not is_move and (directory / "000000000.q.zst.remote.json").exists():
            tier.restore(str(directory), 0)
        wanted = Tier.REMOTE if is_move else Tier.COMPRESSED
        assert [segment.tier for segment in list_segments(OsFs(), str(directory))] == [wanted]
        number += 1
    assert number > 10


def test_damage_in_the_store_is_found_by_readers_and_by_verify(tmp_path: Path) -> None:
    directory, bucket = moved(tmp_path)
    data = bucket / "v1/some/000000001.q.zst"
    flip_bit(data, data.stat().st_size // 2)
    tier = RemoteTier(OsFs())
    with open_archive(directory, remote=tier) as reader, pytest.raises(Corrupt):
        reader.drain(1000)
    with pytest.raises(Corrupt, match="SHA-256"):
        tier.verify(str(directory), 1)
    with pytest.raises(Corrupt, match="SHA-256"):
        tier.restore(str(directory), 1)
    assert (directory / "000000001.q.zst.remote.json").exists()
    data.unlink()
    with open_archive(directory, remote=tier) as reader, pytest.raises(ObjectNotFound):
        reader.drain(1000)
    (directory / "000000001.q.zst.remote.json").write_text("{}")
    with pytest.raises(EverlogError, match="stub"):
        open_archive(directory, remote=tier).drain(1000)


def test_a_damaged_cache_is_fetched_again(tmp_path: Path) -> None:
    directory, _ = moved(tmp_path)
    with open_archive(
        directory, remote=RemoteTier(OsFs(), cache_directory=str(tmp_path / "cache"))
    ) as reader:
        assert reader.drain(1000) == MESSAGES
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert len(files) > 3
    for file in files:
        flip_bit(file, file.stat().st_size // 2)
    with open_archive(
        directory, remote=RemoteTier(OsFs(), cache_directory=str(tmp_path / "cache"))
    ) as reader:
        assert reader.drain(1000) == MESSAGES


def test_the_cache_keeps_the_newest_and_never_more_than_its_bound(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path), OsFs(), 1000)
    for number in range(50):
        cache.store("s3://bucket/x.q.zst", str(number), bytes(96))
        assert cache.load("s3://bucket/x.q.zst", "0") is not None or number >= 10
        assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) <= 1000
        if number < 20:
            cache.load("s3://bucket/x.q.zst", "0")  # read again and again: it stays
    assert cache.load("s3://bucket/x.q.zst", "49") == bytes(96)
    assert cache.load("s3://bucket/x.q.zst", "1") is None
    assert cache.bytes <= 1000
    cache.store("s3://bucket/x.q.zst", "large", bytes(5000))
    assert cache.load("s3://bucket/x.q.zst", "large") is None
    assert BlockCache(str(tmp_path), OsFs(), 1000).bytes == cache.bytes
    with pytest.raises(InvalidConfig, match="at least 1"):
        BlockCache(str(tmp_path), OsFs(), 0)


def test_names_in_a_store_follow_the_path_contract() -> None:
    assert fnv1a("") == 0xCBF29CE484222325
    assert fnv1a("a") == 0xAF63DC4C8601EC8C
    assert remote_name("/a", "/a/v1/x/btc/2026-01-02/book") == "v1/x/btc/2026-01-02/book"
    assert remote_name("/a/v1", "/a/v1/szse/2026-01-02/2011") == "v1/szse/2026-01-02/2011"
    assert remote_name("/a", "/a/raw/v1/x/2026-01-02/raw") == "raw/v1/x/2026-01-02/raw"
    assert remote_name("/a", "/a/queue") == "queue"


@pytest.mark.parametrize("length", [20_000, 300_000])
def test_a_seek_among_large_messages_fetches_a_few_blocks(tmp_path: Path, length: int) -> None:
    payloads = [random.Random(number).randbytes(length) for number in range(64_000_000 // length)]
    with Queue.open_publisher(tmp_path, segment_size=80 << 20, fs=UnsyncedFs()) as writer:
        for number, payload in enumerate(payloads):
            writer.append(1, payload, FIRST_NS + number)
        writer.append(1, bytes(70 << 20))
    compress(tmp_path, 0)
    with changing(UnsyncedFs(), str(tmp_path)):
        RemoteTier(UnsyncedFs()).move(str(tmp_path), 0, f"file://{tmp_path}/bucket", "x")
    for target in (0, len(payloads) // 2, len(payloads) - 1):
        tier = RemoteTier(OsFs(), cache_directory=str(tmp_path / f"cache-{target}"))
        with open_archive(f"file://{tmp_path}/bucket", remote=tier) as reader:
            assert reader.seek_time(FIRST_NS + target)
            found = reader.next()
            assert found is not None and found.seq == target
        assert tier.fetched_bytes < 5 << 20
