"""Archive segments written without a queue: ids, seqs, late data, `meta.json`, kills."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.archive.layout import (
    ArchiveMeta,
    check_date,
    day_of,
    parse_directory,
    raw_directory,
    stream_directory,
    symbol_code,
)
from everlog.archive.reader import open_archive
from everlog.archive.segment_writer import ArchiveSegmentWriter, DayWriter
from everlog.clock import TestClock
from everlog.errors import (
    CorruptMetadata,
    EverlogError,
    InvalidName,
    InvalidPartition,
    LateData,
    PayloadTooLarge,
)
from everlog.queue import Message
from tests.support.archives import FIRST_NS, append_until_killed, compress, known_messages, write_archive
from tests.support.files import UnsyncedFs
from tests.support.processes import Child

META = ArchiveMeta(venue="binance", symbol_code="btc-usdt", ingest_time_ns=5, exchange_symbol="BTC/USDT")
HOUR_NS = 3600 * 10**9


def read_all(path: Path, **chosen: str) -> list[Message]:
    with open_archive(path, **chosen) as reader:
        return reader.drain(2**31)


def test_ids_and_seqs_go_on_behind_what_is_there_also_after_compression(tmp_path: Path) -> None:
    messages = known_messages(90)
    first = write_archive(tmp_path, messages[:30])
    for segment_id in first:
        compress(tmp_path, segment_id)
    second = write_archive(tmp_path, messages[30:60])
    assert second[0] == first[-1] + 1
    compress(tmp_path, second[-1])
    (tmp_path / f"{second[-1]:09d}.idx").unlink()
    write_archive(tmp_path, messages[60:])
    assert read_all(tmp_path) == messages


def test_a_record_that_never_fits_fails_without_a_gap_and_nothing_leaves_no_file(tmp_path: Path) -> None:
    writer = ArchiveSegmentWriter(str(tmp_path), segment_size=1024, fs=UnsyncedFs())
    with pytest.raises(PayloadTooLarge):
        writer.append(1, bytes(2000), FIRST_NS)
    writer.append(1, b"fits", FIRST_NS)
    writer.finish()
    assert read_all(tmp_path) == [Message(0, FIRST_NS, 1, b"fits")]
    ArchiveSegmentWriter(str(tmp_path), segment_size=1024, fs=UnsyncedFs()).finish()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000000.idx", "000000000.q"]


def test_a_writer_that_is_killed_leaves_whole_segments_and_the_next_goes_on(tmp_path: Path) -> None:
    with Child(append_until_killed, str(tmp_path)) as child:
        child.receive()
        child.kill()
    survived = read_all(tmp_path)
    assert len(survived) >= 28
    assert [message.payload for message in survived] == [b"%d" % number for number in range(len(survived))]
    write_archive(tmp_path, known_messages(3))
    assert [message.seq for message in read_all(tmp_path)] == list(range(len(survived) + 3))
    assert not list(tmp_path.glob("*.tmp"))


def test_messages_go_to_their_day_and_meta_widens_with_them(tmp_path: Path) -> None:
    clock = TestClock()
    clock.set_wall_ns(FIRST_NS + 2 * HOUR_NS)
    writer = DayWriter(str(tmp_path), META, "book", clock=clock, fs=UnsyncedFs(), segment_size=1 << 16)
    times = [FIRST_NS + HOUR_NS * hours for hours in (0, 1, 2, 3)]
    for time_ns in times:
        writer.append(7, b"x", time_ns)
    writer.finish()
    assert [message.timestamp_ns for message in read_all(tmp_path)] == times
    assert {day_of(time_ns) for time_ns in times} == {"2023-11-14", "2023-11-15"}
    directory = Path(stream_directory(str(tmp_path), "binance", "btc-usdt", "2023-11-14", "book"))
    meta = json.loads((directory / "meta.json").read_text())
    assert meta["event_time_range"] == times[:2]
    assert (meta["completeness"], meta["late_policy"]) == ("sealed", "reject")
    assert meta["exchange_symbol"] == "BTC/USDT" and meta["symbol_id"] is None
    later = ArchiveSegmentWriter(str(directory), META, fs=UnsyncedFs(), segment_size=1 << 16)
    later.append(7, b"y", FIRST_NS - 5)
    later.finish()
    assert json.loads((directory / "meta.json").read_text())["event_time_range"] == [FIRST_NS - 5, times[1]]


def test_a_day_closes_an_hour_after_its_end(tmp_path: Path) -> None:
    clock = TestClock()
    end_ns = FIRST_NS - FIRST_NS % (24 * HOUR_NS) + 24 * HOUR_NS
    clock.set_wall_ns(end_ns + HOUR_NS - 1)
    strict = DayWriter(str(tmp_path), META, "book", clock=clock, fs=UnsyncedFs(), segment_size=4096)
    strict.append(1, b"in time", FIRST_NS)
    clock.set_wall_ns(end_ns + HOUR_NS)
    with pytest.raises(LateData, match="2023-11-14"):
        strict.append(1, b"late", FIRST_NS)
    strict.finish()
    lenient = DayWriter(
        str(tmp_path), META, "book", late_policy="late", clock=clock, fs=UnsyncedFs(), segment_size=4096
    )
    lenient.append(1, b"late", FIRST_NS)
    lenient.finish()
    assert [message.payload for message in read_all(tmp_path, stream="late")] == [b"late"]
    assert [message.payload for message in read_all(tmp_path, stream="book")] == [b"in time"]


def test_a_damaged_meta_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text('{"venue": 7}')
    writer = ArchiveSegmentWriter(str(tmp_path), META, segment_size=1024, fs=UnsyncedFs())
    writer.append(1, b"x", FIRST_NS)
    with pytest.raises(CorruptMetadata, match=r"meta\.json"):
        writer.finish()
    assert len(read_all(tmp_path)) == 1


@given(st.text(max_size=20))
def test_a_symbol_in_a_path_has_the_signs_that_the_contract_allows(symbol: str) -> None:
    try:
        code = symbol_code(symbol)
    except InvalidName:
        return
    assert set(code) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-")
    assert "--" not in code and not code.startswith("-") and not code.endswith("-")
    assert symbol_code(code) == code
    directory = stream_directory("/a", "v", code, "2026-01-02", "book")
    assert os.path.normpath(directory) == directory
    assert parse_directory(directory) == ("v", code, "2026-01-02", "book", False)


def test_paths_follow_the_contract() -> None:
    assert symbol_code("BTC/USDT:PERP X") == "btc-usdt-perp-x"
    assert stream_directory("a", "b", "c", "2026-01-02", "trades") == "a/v1/b/c/2026-01-02/trades"
    assert raw_directory("a", "b", "2026-01-02") == "a/raw/v1/b/2026-01-02/raw"
    assert parse_directory("/a/raw/v1/b/2026-01-02/raw") == ("b", None, "2026-01-02", "raw", True)
    assert parse_directory("/a/v1/szse/2026-01-02/2011") == ("szse", None, "2026-01-02", "2011", False)
    assert parse_directory("/somewhere/else") is None
    for wrong in ("2026-1-2", "2026-02-30", "20260102", "../x", ""):
        with pytest.raises(InvalidPartition):
            check_date(wrong)
    with pytest.raises(EverlogError):
        stream_directory("a", "..", "c", "2026-01-02", "book")
