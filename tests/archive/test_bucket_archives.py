"""Archives whose root is the address of an object store: read without anything here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from everlog.archive import replays
from everlog.archive.layout import stream_directory
from everlog.archive.raw_archiver import RawArchiver
from everlog.archive.reader import open_archive
from everlog.archive.remote import RemoteTier, remote_name
from everlog.archive.tiers import changing, list_segments
from everlog.archive.verification import verify_segments
from everlog.cli.main import app
from everlog.errors import Corrupt, InvalidConfig
from everlog.fs import OsFs
from everlog.market import BookSet, Outputs
from everlog.market.feature_rows import standard_features
from everlog.market.protocol import TypeId
from everlog.market.replay import Replay
from everlog.market.triggers import TimeBar
from everlog.objects import open_store
from everlog.queue import Message, Queue
from tests.support.archives import FIRST_NS, compress, known_messages, write_archive
from tests.support.files import UnsyncedFs, flip_bit
from tests.support.object_stores import S3Server, moto_server

DAYS = ("2023-11-14", "2023-11-15")
SYMBOLS = ("btc-usdt", "eth-usdt")
COUNT = 120


@pytest.fixture(scope="module")
def moto() -> Iterator[S3Server]:
    """One S3 server for all tests here, with what is needed to reach it in the environment."""
    with moto_server() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(params=["file", "s3"], scope="module")
def address(request: pytest.FixtureRequest, moto: S3Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where an archive of two symbols and days has been moved to; nothing of it is left here."""
    root = tmp_path_factory.mktemp("archive")
    url = moto.url("days") if request.param == "s3" else f"file://{tmp_path_factory.mktemp('bucket')}"
    for number, symbol in enumerate(SYMBOLS):
        for day in DAYS:
            directory = Path(stream_directory(str(root), "binance", symbol, day, "book"))
            write_archive(directory, known_messages(COUNT, number), segment_size=8192)
            move_all(directory, root, url)
    shutil.rmtree(root)
    return url


def move_all(directory: Path, root: Path, url: str, block_size: int = 1024) -> None:
    """Compress and move every segment of a directory."""
    tier = RemoteTier(UnsyncedFs())
    for segment in list_segments(OsFs(), str(directory)):
        compress(directory, segment.segment_id, block_size)
        with changing(UnsyncedFs(), str(directory)):
            tier.move(str(directory), segment.segment_id, url, remote_name(str(root), str(directory)))


def test_an_address_is_read_as_the_directories_that_were_moved_there(address: str) -> None:
    for number, symbol in enumerate(SYMBOLS):
        with open_archive(address, symbol=symbol) as reader:
            assert reader.drain(1000) == [*known_messages(COUNT, number)] * 2
            assert reader.next() is None
        with open_archive(f"{address}/v1/binance/{symbol}/{DAYS[0]}/book/") as reader:
            assert reader.drain(1000) == known_messages(COUNT, number)


def test_days_are_pruned_by_path_and_seeks_fetch_a_few_blocks(address: str, tmp_path: Path) -> None:
    messages = known_messages(COUNT, 0)
    target = messages[COUNT // 2]
    for cache in (None, str(tmp_path)):
        tier = RemoteTier(OsFs(), cache_directory=cache)
        with open_archive(
            address, symbol=SYMBOLS[0], first_date=DAYS[1], last_date=DAYS[1], remote=tier
        ) as reader:
            assert {segment.directory for segment in reader.segments} == {
                f"{address}/v1/binance/{SYMBOLS[0]}/{DAYS[1]}/book"
            }
            before = tier.fetched_bytes
            assert reader.seek_seq(target.seq)
            found = reader.next()
            assert found is not None and (found.seq, bytes(found)) == (target.seq, target.payload)
            assert tier.fetched_bytes - before < 6000
    again = RemoteTier(OsFs(), cache_directory=str(tmp_path))
    with open_archive(address, symbol=SYMBOLS[0], first_date=DAYS[1], remote=again) as reader:
        assert reader.seek_seq(target.seq) and reader.next() is not None
    assert again.fetched_bytes == 0


def test_what_cannot_be_read_is_refused_with_its_address(address: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="more than one stream"):
        open_archive(address)
    for wrong in ({"symbol": "none"}, {"symbol": SYMBOLS[0], "first_date": "2030-01-01"}):
        with pytest.raises(InvalidConfig, match="no sealed segment"):
            open_archive(address, **wrong)  # type: ignore[arg-type]
    cut = tmp_path / "bucket/v1/x/y/2023-11-14/book/000000000.q"
    write_archive(cut.parent, known_messages(30))
    cut.write_bytes(cut.read_bytes()[:200])
    with open_archive(f"file://{tmp_path}/bucket") as reader, pytest.raises(Corrupt):
        reader.drain(1000)


@pytest.fixture(params=["file", "s3"])
def copied(request: pytest.FixtureRequest, moto: S3Server, tmp_path: Path) -> str:
    """Where the files of an archive with a segment in each tier were copied to as they are."""
    directory = Path(stream_directory(str(tmp_path / "here"), "v", "s", DAYS[0], "book"))
    first, second, third, *_ = write_archive(directory, known_messages(COUNT), segment_size=4096)
    for number in (second, third):
        compress(directory, number, 1024)
    shutil.copy(
        directory / f"{second:09}.q.zst", directory / f"{first:09}.q.zst"
    )  # without index: does not count
    with changing(UnsyncedFs(), str(directory)):
        RemoteTier(UnsyncedFs()).move(str(directory), third, f"file://{tmp_path}/elsewhere", "x")
    url = moto.url(f"copied-{tmp_path.name}") if request.param == "s3" else f"file://{tmp_path}/bucket"
    store = open_store(url)
    for path in directory.glob("[!.]*"):
        store.put(str(path.relative_to(tmp_path / "here")), path.read_bytes())
    shutil.rmtree(tmp_path / "here")
    return url


def test_files_of_every_tier_that_were_copied_to_a_store_are_read_from_there(
    copied: str, tmp_path: Path
) -> None:
    messages = known_messages(COUNT)
    for cache in (None, str(tmp_path / "cache"), str(tmp_path / "cache")):
        with open_archive(copied, remote=RemoteTier(OsFs(), cache_directory=cache)) as reader:
            assert reader.drain(1000) == messages
            assert reader.seek_seq(5) and reader.next() is not None
    assert command("archive", "verify", copied).startswith("checked")
    (row,) = json.loads(command("archive", "ls", copied, "--json"))["directories"]
    assert row["remote"] > 3 and row["remote_bytes"] > 3 * 4096


def test_a_seek_in_a_plain_segment_of_a_store_fetches_single_blocks(tmp_path: Path) -> None:
    directory = Path(stream_directory(str(tmp_path / "bucket"), "v", "s", DAYS[0], "book"))
    messages = [Message(seq, FIRST_NS + seq, 1, bytes(200)) for seq in range(60_000)]
    write_archive(directory, messages, segment_size=16 << 20)
    tier = RemoteTier(OsFs(), cache_directory=str(tmp_path / "cache"))
    with open_archive(f"file://{tmp_path}/bucket", remote=tier) as reader:
        assert reader.seek_time(FIRST_NS + 50_000)
        found = reader.next()
        assert found is not None and found.seq == 50_000
    assert 0 < tier.fetched_bytes < 5 << 20


def test_the_segment_that_a_writer_had_open_when_a_queue_was_copied_is_left_out(tmp_path: Path) -> None:
    with Queue.open_publisher(tmp_path / "queue", segment_size=4096) as writer:
        for number in range(200):
            writer.append(1, b"%d" % number)
        store = open_store(f"file://{tmp_path}/bucket")
        for path in sorted(
            one for one in (tmp_path / "queue").iterdir() if one.suffix in {".q", ".idx", ".meta"}
        ):
            store.put(f"q/{path.name}", path.read_bytes())
        with open_archive(tmp_path / "queue") as reader:
            sealed = reader.drain(1000)
    assert 0 < len(sealed) < 200
    with open_archive(f"file://{tmp_path}/bucket") as reader:
        assert reader.drain(1000) == sealed


def test_a_flipped_bit_in_a_bucket_is_found_by_verify_and_by_the_reader(tmp_path: Path) -> None:
    directory = Path(stream_directory(str(tmp_path / "here"), "v", "s", DAYS[0], "book"))
    write_archive(directory, known_messages(COUNT), segment_size=8192)
    url = f"file://{tmp_path}/bucket"
    move_all(directory, tmp_path / "here", url)
    damaged = sorted((tmp_path / "bucket").rglob("*.q.zst"))[1]
    flip_bit(damaged, damaged.stat().st_size // 2)
    tier = RemoteTier(OsFs())
    segments = [one for place in tier.directories(url) for one in tier.segments(place)]
    assert list(verify_segments(OsFs(), segments, tier).failed) == [segments[1].path]
    with open_archive(url) as reader, pytest.raises(Corrupt):
        reader.drain(1000)


# --- A day of a market -----------------------------------------------------------------------------------


def tops_and_features(replay: Replay) -> tuple[dict[int, tuple[int, ...]], list[tuple[int, list[object]]]]:
    """The best prices after every event, and rows of features."""
    books, tops = BookSet(), {}
    for some in replay.types(TypeId.BOOK_EVENT).batches():
        for events, result in books.apply_packed(some.packed, Outputs()).values():
            assert result.top is not None
            tops.update(zip(some.seq[events].tolist(), map(tuple, result.top.tolist()), strict=True))
    rows: dict[int, list[object]] = {}
    for table in replay.features(standard_features()).trigger(TimeBar(1_000_000_000)).tables():
        rows.setdefault(table.market.market_id, []).extend(table.rows.tolist())
    return tops, sorted(rows.items())


def command(*words: object, code: int = 0) -> str:
    """Run a command of `everlog` in this process and return what it printed."""
    result = CliRunner().invoke(app, [*map(str, words)])
    assert result.exit_code == code, result.output
    return result.output


def test_a_day_that_is_only_in_a_bucket_replays_to_the_same_books_and_features(
    tmp_path: Path, moto: S3Server
) -> None:
    live, root, url = tmp_path / "live", tmp_path / "history", moto.url("history")
    Queue.open_publisher(live, segment_size=1 << 18, retention=False).close()
    command("simulate", "--queue", live, "--symbols", 2, "--events", 8000, "--kinds", "l2,trades")
    with Queue.open_publisher(live) as writer:
        writer.append(99, bytes((1 << 18) - 4096))  # the segment of the last event is full: it is sealed
    expected = tops_and_features(Replay(str(live)))
    assert len(expected[0]) > 4000 and expected[1]
    with RawArchiver(str(live), str(root), "sim") as archiver:
        assert len(archiver.run_once()) > 3
    command("archive", "compress", root)
    command("archive", "move", root, "--to", url)
    shutil.rmtree(live)
    shutil.rmtree(root)
    (replay,) = replays(url)
    assert tops_and_features(replay) == expected
    assert "raw/v1/sim" in command("archive", "ls", url)
    assert "checked" in command("archive", "verify", url)
    assert command("archive", "cat", url, "--limit", 1, "--from-seq", 5).startswith("seq=5 ")
    assert "object store" in command("archive", "compress", url, code=1)
