"""Columns from the files of a data directory, against reading the same pieces record by record."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from everlog.errors import Corrupt, InvalidConfig, TopicNotFound
from everlog.pipeline import segment_ranges
from everlog.pipeline.columns_from_frames import RecordFilter
from everlog.pipeline.sources.base import BatchReader
from everlog.pipeline.sources.topics import TopicsFormat
from everlog.seq_ranges import Gap
from everlog.topics import record_of
from everlog.topics.storage.bulk_view import BulkView, Piece
from tests.support.engines import EngineHarness
from tests.support.files import flip_bit
from tests.support.topics_model import ModelRecord
from tests.topics.storage.bulk_readers import read_whole

EVERYTHING = RecordFilter(0, 2**64 - 1, None)
NAMES = ("seq", "ts", "node", "tag", "meta", "data")
RECORDS = 100


@pytest.fixture
def harness(tmp_path: Path) -> EngineHarness:
    """An engine whose topic `t` has records in many segments and in the log; every seventh is deleted."""
    harness = EngineHarness(tmp_path, segment_max_events=8)
    for number in range(RECORDS):
        tag = None if number % 3 else f"tag:{number % 7}"
        meta = {"number": number} if number % 2 else None
        harness.append("t", record_of([number, "é" * (number % 5)], tag=tag, meta=meta), node="writer")
        harness.advance_ms(10)
        if number == RECORDS // 2:
            harness.engine.checkpoint()
    harness.delete("t", match="tag:0")
    return harness


def view_again(harness: EngineHarness) -> segment_ranges.Replan:
    """Plan with what there is now."""
    return lambda first, end: BulkView(str(harness.data_dir)).plan("t", first, end)


def read_columns(
    harness: EngineHarness, wanted: RecordFilter = EVERYTHING, first: int = 1, end: int = RECORDS + 1
) -> tuple[pa.Table, list[Gap]]:
    """Read a range of the topic."""
    view = BulkView(str(harness.data_dir))
    batches, lost = [], []
    for found in segment_ranges.read("t", view.plan("t", first, end), wanted, NAMES, view_again(harness)):
        if isinstance(found, Gap):
            lost.append(found)
        else:
            batches.append(pa.RecordBatch.from_pydict(found))
    empty = pa.schema([(name, pa.string()) for name in NAMES])
    return (pa.Table.from_batches(batches) if batches else empty.empty_table()), lost


def as_row(record: ModelRecord) -> dict[str, Any]:
    """A record as a row of the columns."""
    when = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=record.ts)
    meta = None if record.meta is None else record.meta.decode()
    row = {"seq": record.seq, "ts": when, "node": record.node, "tag": record.tag, "meta": meta}
    return {**row, "data": record.data.decode()}


def test_columns_hold_every_live_record_with_all_its_fields(harness: EngineHarness) -> None:
    wanted = read_whole(BulkView(str(harness.data_dir)), "t")
    table, lost = read_columns(harness)
    assert not lost
    assert table.to_pylist() == [as_row(record) for record in wanted]
    assert 0 < len(wanted) < RECORDS


def test_records_of_many_segments_come_in_few_batches(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(read_columns(harness)[0].column("seq").chunks) == 1
    monkeypatch.setattr(segment_ranges, "BATCH_RECORDS", 10)
    table, _ = read_columns(harness)
    assert {len(chunk) for chunk in table.column("seq").chunks[:-1]} == {10}
    monkeypatch.setattr(segment_ranges, "BATCH_BYTES", 1)
    assert read_columns(harness)[0].equals(table)


@pytest.mark.parametrize("tag", ["tag:3", "tag:*", "nothing", "tag"])
def test_tags_and_times_are_filtered(harness: EngineHarness, tag: str) -> None:
    everything, _ = read_columns(harness)
    times = everything.column("ts").cast("int64").to_pylist()
    from_ms, to_ms = times[20] // 1000, times[60] // 1000
    table, _ = read_columns(harness, RecordFilter(from_ms, to_ms, tag))
    expected = [
        row["seq"]
        for row, time in zip(everything.to_pylist(), times, strict=True)
        if from_ms * 1000 <= time <= to_ms * 1000
        and row["tag"] is not None
        and (row["tag"].startswith(tag[:-1]) if tag.endswith("*") else row["tag"] == tag)
    ]
    assert table.column("seq").to_pylist() == expected


def test_a_gap_comes_between_the_records_around_it(harness: EngineHarness) -> None:
    pieces = BulkView(str(harness.data_dir)).plan("t", 1, RECORDS + 1)
    (folder,) = (harness.data_dir / "topics").iterdir()
    for part in ("data", "idx"):
        (folder / f"seg-0000000000000009.{part}").unlink()
    order: list[Any] = []

    def gone(first: int, end: int) -> list[Piece | Gap]:
        return [Gap(first, end, "cap")]

    for found in segment_ranges.read("t", pieces, EVERYTHING, ("seq",), gone):
        order += [found] if isinstance(found, Gap) else found["seq"].to_pylist()
    place = order.index(Gap(9, 17, "cap"))
    assert max(order[:place]) < 9
    assert min(order[place + 1 :]) >= 17


def test_files_that_stay_missing_are_a_gap_of_retention(harness: EngineHarness) -> None:
    pieces = BulkView(str(harness.data_dir)).plan("t", 1, 9)
    shutil.rmtree(harness.data_dir / "topics")
    found = list(segment_ranges.read("t", pieces, EVERYTHING, ("seq",), lambda first, end: pieces))
    assert found == [Gap(2, 9, "retention")], "the first record is deleted, which is no loss"


def task_reads(
    harness: EngineHarness, between: Callable[[], object], **options: str
) -> list[tuple[Any, ...]]:
    """Plan a read, let something happen, and run its tasks; returns seq, kind and reason of the rows."""
    names = ("seq", "kind", "reason")
    given = {"dataDir": str(harness.data_dir), "topic": "t", "columns": ",".join(names), **options}
    reader = BatchReader(TopicsFormat(given).source())
    parts = reader.partitions()
    between()
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    return [tuple(row[name] for name in names) for row in rows]


def test_records_that_move_from_the_log_to_segments_meanwhile_are_not_lost(harness: EngineHarness) -> None:
    expected = task_reads(harness, lambda: None)

    def checkpoint_twice() -> None:
        # The log is kept for one snapshot more than the newest.
        for number in range(2):
            harness.append("t", number)
            harness.engine.checkpoint()

    assert len(list((harness.data_dir / "wal").glob("*.log"))) > 0
    assert task_reads(harness, checkpoint_twice) == expected
    assert task_reads(harness, harness.engine.close) == [
        *expected,
        *((seq, "record", None) for seq in (101, 102)),
    ]


def test_a_topic_that_is_replaced_meanwhile_is_a_gap_and_not_mixed(harness: EngineHarness) -> None:
    def replace() -> None:
        harness.delete_topic("t")
        harness.append_each("t", range(RECORDS))
        for _ in range(3):
            harness.append("t", "more")
            harness.engine.checkpoint()

    rows = task_reads(harness, replace, onDataLoss="record")
    assert {kind for _, kind, _ in rows if kind == "gap"} == {"gap"}
    assert {reason for _, kind, reason in rows if kind == "gap"} == {"recreated"}


def test_a_damaged_record_is_named(harness: EngineHarness) -> None:
    (data,) = (harness.data_dir / "topics").rglob("seg-0000000000000009.data")
    flip_bit(data, 40)
    with pytest.raises(Corrupt, match=r"record 9 of topic 't' in .*seg-0000000000000009.data"):
        read_columns(harness)


def planned_topics(harness: EngineHarness, names: str) -> list[str]:
    """The topics of a read's tasks."""
    parts = BatchReader(
        TopicsFormat({"dataDir": str(harness.data_dir), "topic": names}).source()
    ).partitions()
    return [part.value[0] for part in parts]


def test_names_are_taken_as_they_are_or_as_a_prefix(harness: EngineHarness) -> None:
    for name in ("orders.a", "orders.b", "trades"):
        harness.append(name, 1)
    assert set(planned_topics(harness, "orders*,t")) == {"orders.a", "orders.b", "t"}
    with pytest.raises(TopicNotFound, match=r"no topic in .* matches x\*"):
        planned_topics(harness, "x*")


def planned(harness: EngineHarness, **options: str) -> list[int]:
    """The seqs that the tasks of a read give, one after the other."""
    given = {"dataDir": str(harness.data_dir), "topic": "t", "columns": "seq", **options}
    reader = BatchReader(TopicsFormat(given).source())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [seq for batch in batches for seq in batch.column("seq").to_pylist()]


def test_ranges_and_offsets_bound_the_read(harness: EngineHarness) -> None:
    everything = planned(harness)
    assert planned(harness, partitions="7") == everything
    assert planned(harness, fromSeq="10", toSeq="20") == [seq for seq in everything if 10 <= seq <= 20]
    assert planned(harness, startingOffsets='{"seq": 90}') == [seq for seq in everything if seq >= 90]
    assert planned(harness, startingOffsets="latest") == []
    assert planned(harness, endingOffsets='{"ts_ns": 0}') == []


def test_no_file_is_left_open_and_none_is_changed(harness: EngineHarness) -> None:
    copy = harness.data_dir.parent / "copy"
    shutil.copytree(harness.data_dir, copy)
    planned(harness)
    for path in copy.rglob("*"):
        if path.is_file():
            assert (harness.data_dir / path.relative_to(copy)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dataDir": "d", "url": "http://h"}, "leave out url"),
        ({"dataDir": "d", "key": "k"}, "leave out key"),
        ({"coldDir": "d", "url": "http://h"}, "coldDir belongs to dataDir"),
        ({}, "needs the option 'url', or 'dataDir'"),
        ({"dataDir": "d", "topic": ""}, "needs the option 'topic'"),
        ({"url": "http://h", "maxRecordsPerBatch": "1", "maxBytesPerBatch": "1"}, "exclude each other"),
        ({"dataDir": "d", "colour": "red"}, "valid are coldDir, columns, dataDir"),
    ],
)
def test_places_that_exclude_each_other_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        TopicsFormat({"topic": "t", **options}).source()
