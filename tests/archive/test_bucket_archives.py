"""Archives whose root is the address of an object store: read without anything here."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from everlog.archive.layout import stream_directory
from everlog.archive.raw_archiver import RawArchiver
from everlog.archive.reader import open_archive
from everlog.archive.remote import RemoteTier, remote_name
from everlog.archive.tiers import changing, list_segments
from everlog.archive.verification import verify_segments
from everlog.cli.main import app
from everlog.errors import Corrupt, InvalidConfig, Unsupported
from everlog.fs import OsFs
from everlog.market import BookSet, Outputs
from everlog.market.feature_rows import standard_features
from everlog.market.protocol import TypeId
from everlog.market.replay import Messages, Replay, ReplayStats
from everlog.market.triggers import TimeBar
from everlog.queue import Queue
from tests.support.archives import compress, known_messages, write_archive
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
        with pytest.raises(InvalidConfig, match="no compressed segment"):
            open_archive(address, **wrong)  # type: ignore[arg-type]
    directory = tmp_path / "bucket/v1/x/y/2023-11-14/book"
    write_archive(directory, known_messages(30))
    with pytest.raises(Unsupported, match="not compressed"):
        open_archive(f"file://{tmp_path}/bucket")


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


class BucketReplay(Replay):
    """A replay whose messages come out of an archive."""

    def batches(self, stats: ReplayStats | None = None) -> Iterator[Messages]:
        filters = [make() for make in self.filters]
        with open_archive(self.path) as reader:
            while len(batch := reader.read_batch(self.batch_messages)):
                some = Messages(batch, np.arange(len(batch)))
                for keep in filters:
                    some = some.where(keep(some))
                if len(some.chosen):
                    yield some


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
    assert tops_and_features(BucketReplay(url)) == expected
    assert "raw/v1/sim" in command("archive", "ls", url)
    assert "checked" in command("archive", "verify", url)
    assert command("archive", "cat", url, "--limit", 1, "--from-seq", 5).startswith("seq=5 ")
    assert "object store" in command("archive", "compress", url, code=1)
