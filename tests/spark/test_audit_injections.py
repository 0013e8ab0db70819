"""Faults planted in an archive, each of which the audit has to name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from everlog.pipeline.jobs.archive import archive_queue
from everlog.pipeline.jobs.audit import AuditReport, StreamAudit, audit_queue
from everlog.pipeline.lake import LakeTable
from everlog.queue import Queue

pytestmark = pytest.mark.timeout(300)
MESSAGES = 300
Damage = Callable[[pa.Table], pa.Table]


@pytest.fixture(scope="module")
def archived(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A queue of 300 messages and its archive of three commits, sound."""
    folder = tmp_path_factory.mktemp("archived")
    with Queue.open_publisher(str(folder / "queue")) as writer:
        for number in range(MESSAGES):
            writer.append(7, b"payload %d" % number, 1_700_000_000_000_000_000 + number)
    options = {"maxRecordsPerBatch": "100"}
    archive_queue(spark, str(folder / "queue"), str(folder / "lake"), "messages", options=options)
    return folder


@pytest.fixture
def lake(archived: Path, tmp_path: Path) -> str:
    """A copy of the archive, to be damaged."""
    shutil.copytree(archived / "lake", tmp_path / "lake")
    return str(tmp_path / "lake")


def rewrite(lake: str, seq: int, damage: Damage) -> None:
    """Change the rows of the file that holds a seq, in place, as no commit does it."""
    (file,) = LakeTable(lake, "messages").files(ranges={"seq": (seq, seq)})
    path = file.removeprefix("file://")
    pq.write_table(damage(pq.read_table(path, partitioning=None)), path, compression="zstd")


def replaced(column: str, seq: int, value: Any) -> Damage:
    """Give one row another value."""

    def damage(rows: pa.Table) -> pa.Table:
        place, field = rows.schema.get_field_index(column), rows.schema.field(column)
        scalar = pa.scalar(value, field.type)
        changed = pc.if_else(pc.equal(rows.column("seq"), seq), scalar, rows.column(column))
        return rows.set_column(place, field, changed)

    return damage


def without(*seqs: int) -> Damage:
    """Leave out rows."""
    return lambda rows: rows.filter(pc.invert(pc.is_in(rows.column("seq"), pa.array(seqs, pa.int64()))))


def with_gap(first: int, last: int) -> Damage:
    """Add the row of a gap that never was."""

    def damage(rows: pa.Table) -> pa.Table:
        row = dict.fromkeys(rows.column_names) | {"queue": rows.column("queue")[0].as_py()}
        row |= {"instance": rows.column("instance")[0].as_py(), "seq": first, "gap_to": last}
        row |= {"kind": "gap", "reason": "retention"}
        return pa.concat_tables([rows, pa.Table.from_pylist([row], schema=rows.schema)])

    return damage


def audited(spark: SparkSession, lake: str, queue: Path | None = None) -> StreamAudit:
    """Audit the archive; with the queue only if it is given."""
    (stream,) = audit_queue(spark, lake, "messages", queue=queue and str(queue)).streams
    return stream


def test_a_sound_archive_is_sound_also_after_compaction(
    spark: SparkSession, archived: Path, lake: str
) -> None:
    LakeTable(lake, "messages").compact()
    stream = audited(spark, lake, archived / "queue")
    assert stream.is_sound, stream
    assert (stream.delivered, stream.unverified, stream.behind) == (MESSAGES, 0, 0)
    assert stream.instance is not None


def test_an_archive_that_grows_during_its_audit_is_sound(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, lake = str(tmp_path / "queue"), str(tmp_path / "lake")
    read = LakeTable.read

    def grow() -> None:
        with Queue.open_publisher(queue) as writer:
            writer.append(7, b"one more", 1_700_000_000_000_000_000)
        archive_queue(spark, queue, lake, "messages")

    def read_and_grow(table: LakeTable, *args: Any, **options: Any) -> DataFrame:
        rows = read(table, *args, **options)
        monkeypatch.undo()
        grow()
        return rows

    grow()
    monkeypatch.setattr(LakeTable, "read", read_and_grow)
    for delivered in (1, 2):
        stream = audited(spark, lake)
        assert stream.is_sound, stream
        assert stream.delivered == delivered


@pytest.mark.parametrize(
    ("column", "value"), [("payload", b"another"), ("ts_ns", 5), ("type_id", 8), ("payload", None)]
)
def test_a_changed_value_is_found_without_the_source(
    spark: SparkSession, lake: str, column: str, value: Any
) -> None:
    rewrite(lake, 150, replaced(column, 150, value))
    stream = audited(spark, lake)
    assert (stream.delivered, stream.missing, stream.is_sound) == (MESSAGES, 0, False)
    assert stream.altered_ranges == [(100, 199)]


def test_a_lost_record_is_missing_and_its_commit_altered(spark: SparkSession, lake: str) -> None:
    rewrite(lake, 42, without(42, 43))
    stream = audited(spark, lake)
    assert (stream.missing_ranges, stream.altered_ranges) == ([(42, 43)], [(0, 99)])


def test_a_false_gap_over_delivered_records_overlaps(spark: SparkSession, lake: str) -> None:
    rewrite(lake, 250, with_gap(210, 219))
    stream = audited(spark, lake)
    assert (stream.overlapping, stream.overlapping_ranges) == (10, [(210, 219)])
    assert stream.altered_ranges == [(200, 299)]


def test_a_false_gap_does_not_balance_records_that_are_lost_elsewhere(spark: SparkSession, lake: str) -> None:
    rewrite(lake, 5, without(5, 6, 7))
    rewrite(lake, 250, with_gap(250, 252))
    stream = audited(spark, lake)
    assert stream.delivered + stream.gap == MESSAGES
    assert (stream.missing_ranges, stream.overlapping_ranges) == ([(5, 7)], [(250, 252)])


def test_a_gap_in_the_place_of_lost_records_is_not_what_was_committed(spark: SparkSession, lake: str) -> None:
    rewrite(lake, 5, lambda rows: with_gap(5, 7)(without(5, 6, 7)(rows)))
    stream = audited(spark, lake)
    assert (stream.missing, stream.overlapping, stream.altered_ranges) == (0, 0, [(0, 99)])


def test_a_lost_tail_below_the_checkpoint_is_missing(spark: SparkSession, lake: str) -> None:
    log = Path(lake, "messages", "_delta_log")
    max(log.glob("*.json")).unlink()
    stream = audited(spark, lake)
    assert (stream.delivered, stream.missing_ranges) == (200, [(200, 299)])


def test_a_table_that_was_filled_wrongly_differs_from_its_source(
    spark: SparkSession, archived: Path, tmp_path: Path
) -> None:
    """Neither intervals nor digests can know it: only the source does."""
    rows = LakeTable(archived / "lake", "messages").read(spark)
    wrong = rows.selectExpr("* except (payload)", "if(seq = 77, cast('no' as binary), payload) payload")
    LakeTable(tmp_path, "wrong").append(wrong, "test", 0, ("date",), stream="queue")
    (alone,) = audit_queue(spark, str(tmp_path), "wrong").streams
    assert alone.is_sound
    (compared,) = audit_queue(spark, str(tmp_path), "wrong", queue=str(archived / "queue")).streams
    assert (compared.altered_ranges, compared.is_sound) == ([(77, 77)], False)


def test_records_that_were_lost_while_a_queue_was_archived_are_missing_without_it(
    spark: SparkSession, archived: Path, tmp_path: Path
) -> None:
    rows = LakeTable(archived / "lake", "messages").read(spark).where("seq not in (77, 78)")
    for table, options in (("all", {}), ("some", {"typeId": "7"})):
        LakeTable(tmp_path, table).append(rows, "test", 0, ("date",), stream="queue", options=options)
    (stream,) = audit_queue(spark, str(tmp_path), "all").streams
    assert (stream.missing_ranges, stream.deleted) == ([(77, 78)], 0)
    (stream,) = audit_queue(spark, str(tmp_path), "some").streams
    assert (stream.missing, stream.deleted) == (0, 2)


@pytest.mark.parametrize("change", [{"seq": 500}, {"instance": "another"}, {"queue": "another"}])
def test_records_that_no_job_has_committed_are_altered(
    spark: SparkSession, lake: str, change: dict[str, Any]
) -> None:
    table = deltalake.DeltaTable(f"{lake}/messages")
    rows = table.to_pyarrow_table()
    row = rows.slice(0, 1).to_pylist()[0] | change
    deltalake.write_deltalake(table, pa.Table.from_pylist([row], schema=rows.schema), mode="append")
    faults = [one for one in audit_queue(spark, lake, "messages").streams if not one.is_sound]
    assert [(row["seq"], row["seq"])] == [one.altered_ranges[-1] for one in faults]
    assert [one.unverified for one in faults] == [0]


def test_a_column_that_others_add_hides_no_change(spark: SparkSession, archived: Path, lake: str) -> None:
    field = deltalake.Field("note", deltalake.schema.PrimitiveType("string"), nullable=True)
    deltalake.DeltaTable(f"{lake}/messages").alter.add_columns([field])
    stream = audited(spark, lake, archived / "queue")
    assert (stream.is_sound, stream.unverified) == (True, 0)
    rewrite(lake, 150, replaced("payload", 150, b"another"))
    assert audited(spark, lake).altered_ranges == [(100, 199)]
    assert audited(spark, lake, archived / "queue").altered_ranges == [(100, 199)]


def test_records_in_the_partition_of_another_day_are_altered(spark: SparkSession, lake: str) -> None:
    log = min(Path(lake, "messages", "_delta_log").glob("*.json"))
    log.write_text(log.read_text().replace("2023-11-14", "2023-11-15"))
    Path(lake, "messages", "date=2023-11-14").rename(Path(lake, "messages", "date=2023-11-15"))
    for other in sorted(log.parent.glob("*.json"))[1:]:
        other.write_text(other.read_text().replace("2023-11-14", "2023-11-15"))
    assert audited(spark, lake).altered_ranges == [(0, 299)]


def test_a_file_that_is_gone_is_named(spark: SparkSession, lake: str) -> None:
    file = Path(LakeTable(lake, "messages").files()[0].removeprefix("file://"))
    file.unlink()
    (name,) = audit_queue(spark, lake, "messages").unreadable
    assert name.endswith(file.name)


def test_a_stream_of_which_all_commits_are_lost_is_missing(spark: SparkSession, lake: str) -> None:
    positions = Path(lake, "messages.checkpoint", "archived")
    known = msgspec.json.decode(positions.read_bytes())
    positions.write_bytes(msgspec.json.encode([*known, ["another", "its instance", 20]]))
    (other,) = [one for one in audit_queue(spark, lake, "messages").streams if one.name == "another"]
    assert other.missing_ranges == [(19, 19)]


def test_an_archive_with_damage_as_rows_is_sound_beside_its_queue(
    spark: SparkSession, tmp_path: Path
) -> None:
    queue, lake = tmp_path / "queue", str(tmp_path / "lake")
    with Queue.open_publisher(str(queue), segment_size=1 << 16) as writer:
        for number in range(20):
            writer.append(7, b"payload %d" % number)
    (segment,) = queue.glob("*.q")
    content = bytearray(segment.read_bytes())
    content[content.index(b"payload 11")] ^= 1
    segment.write_bytes(content)
    archive_queue(spark, str(queue), lake, "messages", options={"onCorrupt": "record"})
    stream = audited(spark, lake, queue)
    assert (stream.is_sound, stream.delivered, stream.gap) == (True, 19, 1), stream


@pytest.mark.parametrize("column", ["seq", "ts_ns", "payload"])
def test_a_flipped_bit_in_the_values_of_a_file_is_found(spark: SparkSession, lake: str, column: str) -> None:
    file = Path(LakeTable(lake, "messages").files()[0].removeprefix("file://"))
    group = pq.read_metadata(file).row_group(0)
    (chunk,) = [
        found for place in range(group.num_columns) if (found := group.column(place)).path_in_schema == column
    ]
    content = bytearray(file.read_bytes())
    start = chunk.data_page_offset if chunk.dictionary_page_offset is None else chunk.dictionary_page_offset
    content[start + chunk.total_compressed_size // 2] ^= 0x10
    file.write_bytes(content)
    report: AuditReport = audit_queue(spark, lake, "messages")
    assert not report.is_sound
    assert all(name.endswith(file.name) for name in report.unreadable)
