"""Queues and archives of any tier as sources of replays and merges."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from everlog.archive import sources
from everlog.archive.layout import ArchiveMeta
from everlog.archive.remote import RemoteTier
from everlog.archive.segment_writer import DayWriter
from everlog.archive.tiers import changing
from everlog.clock import TestClock
from everlog.errors import InvalidConfig
from everlog.market.merge import merge
from everlog.market.replay import CLOCK_STEP_NS, Replay
from everlog.queue import Message, Queue
from tests.support.archives import FIRST_NS, compress, known_messages, write_archive
from tests.support.files import UnsyncedFs

HOUR_NS = 3_600_000_000_000


def read(replays: list[Replay]) -> list[tuple[int, int, bytes]]:
    return [
        (time_ns, type_id, bytes(payload))
        for one in merge(replays)
        for time_ns, type_id, payload in zip(
            one.timestamp_ns.tolist(), one.type_id.tolist(), one.packed, strict=True
        )
    ]


def as_rows(messages: list[Message]) -> list[tuple[int, int, bytes]]:
    return [(one.timestamp_ns, one.type_id, one.payload) for one in messages]


def test_a_queue_and_archives_of_every_tier_are_merged_as_queues_are(tmp_path: Path) -> None:
    of_queue, of_archive = known_messages(200, 1), known_messages(200, 2)
    with Queue.open_publisher(tmp_path / "queue", segment_size=4096) as writer:
        for one in of_queue:
            writer.append(one.type_id, one.payload, one.timestamp_ns)
    ids = write_archive(tmp_path / "archive", of_archive, segment_size=8192)
    for number in ids[1:]:
        compress(tmp_path / "archive", number, 512)
    with changing(UnsyncedFs(), str(tmp_path / "archive")):
        RemoteTier(UnsyncedFs()).move(str(tmp_path / "archive"), ids[-1], f"file://{tmp_path}/bucket", "x")
    found = [
        *sources.replays(tmp_path / "queue"),
        *sources.replays(tmp_path / "archive", cache=str(tmp_path / "cache")),
    ]
    assert len(found) == 2
    assert read(found) == sorted(as_rows(of_queue) + as_rows(of_archive), key=lambda row: row[0])


def test_an_archive_queue_is_read_on_from_its_compressed_segments_into_the_open_one(tmp_path: Path) -> None:
    messages = known_messages(300, 3)
    with Queue.open_publisher(tmp_path, segment_size=4096) as writer:
        for one in messages:
            writer.append(one.type_id, one.payload, one.timestamp_ns)
        for number in (0, 1, 2):
            compress(tmp_path, number)
            assert not (tmp_path / f"{number:09}.q").exists()
        assert read(sources.replays(tmp_path)) == as_rows(messages)


@pytest.fixture
def days(tmp_path: Path) -> Path:
    """An archive of two symbols and two days, a message an hour."""
    for symbol in ("aaa", "bbb"):
        meta = ArchiveMeta(venue="binance", symbol_code=symbol, ingest_time_ns=0)
        writer = DayWriter(
            str(tmp_path), meta, "trades", segment_size=4096, clock=TestClock(), fs=UnsyncedFs()
        )
        for hour in range(36):
            payload = f"{symbol} {hour}".encode()
            writer.append(1, payload, FIRST_NS + hour * HOUR_NS)
        writer.finish()
    return tmp_path


def test_each_stream_of_an_archive_is_a_source_over_all_its_days(days: Path) -> None:
    found = sources.replays(days)
    assert len(found) == 2
    rows = read(found)
    assert [payload.decode() for _, _, payload in rows] == [
        f"{symbol} {hour}" for hour in range(36) for symbol in ("aaa", "bbb")
    ]
    one = sources.replays(days, symbol="bbb", first_date="2023-11-15", last_date="2023-11-15")
    assert {payload.split()[0] for _, _, payload in read(one)} == {b"bbb"}
    assert len(read(one)) == 24


def test_a_time_range_of_an_archive_reads_only_what_is_near_it(days: Path) -> None:
    start_ns, end_ns = FIRST_NS + 20 * HOUR_NS, FIRST_NS + 22 * HOUR_NS
    assert CLOCK_STEP_NS < HOUR_NS
    for one in sources.replays(days):
        stats = one.between(start_ns, end_ns).for_each(lambda some: None)
        assert (stats.written, stats.read) == (2, stats.read) and stats.read <= 24


def test_a_path_without_messages_and_choices_within_a_queue_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="neither a queue nor"):
        sources.replays(tmp_path / "absent")
    Queue.open_publisher(tmp_path / "queue").close()
    with pytest.raises(InvalidConfig, match="is a queue"):
        sources.replays(tmp_path / "queue", symbol="aaa")
    shutil.rmtree(tmp_path / "queue")
