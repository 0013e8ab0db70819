"""The checks of an archive's rows, and what its tasks leave: without Spark, but with its own calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructType

from everlog.errors import InvalidConfig
from everlog.pipeline.sources.queue_sink import Built, QueueArchiveWriter, QueueWrite, parse_options
from everlog.queue import Queue

TYPES: dict[str, DataType] = {
    "queue": StringType(),
    "seq": LongType(),
    "ts_ns": LongType(),
    "type_id": IntegerType(),
    "payload": BinaryType(),
    "flags": IntegerType(),
}


def schema(*names: str, **others: DataType) -> StructType:
    """Some of the columns, and others."""
    result = StructType()
    for name, kind in {**{name: TYPES[name] for name in names or TYPES}, **others}.items():
        result = result.add(name, kind)
    return result


def open_write(path: Path) -> QueueWrite:
    """The write of an archive with small segments."""
    return parse_options({"path": str(path), "segmentSize": "4096"}, schema())


def rows(first: int, end: int, **others: Any) -> pa.RecordBatch:
    """Messages: number n has the time 1000 + n, type n % 3, flags n % 2, and its number as payload."""
    numbers = range(first, end)
    columns = {
        "queue": pa.array(["feed"] * len(numbers)),
        "seq": pa.array(numbers, pa.int64()),
        "ts_ns": pa.array([1000 + number for number in numbers], pa.int64()),
        "type_id": pa.array([number % 3 for number in numbers], pa.int32()),
        "payload": pa.array([b"%d" % number for number in numbers], pa.binary()),
        "flags": pa.array([number % 2 for number in numbers], pa.int32()),
    }
    return pa.RecordBatch.from_pydict({**columns, **others})


def write(path: Path, *tasks: list[pa.RecordBatch]) -> None:
    """Write an archive as Spark does it, one task after the other."""
    writer = QueueArchiveWriter(open_write(path))
    try:
        writer.commit([writer.write(iter(task)) for task in tasks])
    except BaseException:
        writer.abort([])
        raise


def read(path: Path) -> list[tuple[int, int, int, int, bytes]]:
    """Everything in a queue."""
    with Queue.open_subscriber(path, None, "earliest") as reader:
        return [
            (view.seq, view.timestamp_ns, view.type_id, view.flags, bytes(view.payload)) for view in reader
        ]


def expected(first: int, end: int) -> list[tuple[int, int, int, int, bytes]]:
    """What `rows` gives."""
    return [(number, 1000 + number, number % 3, number % 2, b"%d" % number) for number in range(first, end)]


def test_tasks_in_any_order_make_one_queue(tmp_path: Path) -> None:
    sliced = rows(90, 120).slice(10)
    write(tmp_path / "q", [sliced, rows(120, 150)], [], [rows(50, 70), rows(70, 70), rows(70, 100)])
    assert read(tmp_path / "q") == expected(50, 150)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["q"]


def test_an_attempt_that_does_not_count_leaves_nothing(tmp_path: Path) -> None:
    writer = QueueArchiveWriter(open_write(tmp_path / "q"))

    def dies() -> Iterator[pa.RecordBatch]:
        yield rows(0, 100)
        raise ConnectionError("the worker was killed")

    with pytest.raises(ConnectionError):
        writer.write(dies())
    writer.write(iter([rows(0, 100)]))  # a second attempt whose answer never came
    writer.commit([writer.write(iter([rows(0, 100)])), None])
    assert read(tmp_path / "q") == expected(0, 100)
    assert not list((tmp_path / "q").glob("*.part"))


def test_messages_keep_64_bits_without_a_sign(tmp_path: Path) -> None:
    late = pa.array([-1], pa.int64())
    write(tmp_path / "q", [rows(5, 6, ts_ns=late)])
    assert [message[:2] for message in read(tmp_path / "q")] == [(5, 2**64 - 1)]


def test_flags_and_the_name_of_the_queue_may_be_left_out(tmp_path: Path) -> None:
    write(tmp_path / "q", [rows(0, 3).drop_columns(["queue", "flags"])])
    assert [message[3] for message in read(tmp_path / "q")] == [0, 0, 0]


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ([[rows(0, 5), rows(6, 9)]], "found seq 6 instead of 5.*repartitionByRange"),
        ([[rows(0, 5), rows(4, 9)]], "found seq 4 instead of 5"),
        ([[rows(0, 5)], [rows(6, 9)]], "exactly once"),
        ([[rows(0, 1, seq=pa.array([None], pa.int64()))]], "without seq"),
        ([[rows(0, 1, type_id=pa.array([0xFFFF], pa.int32()))]], "type_id is 65535"),
        ([[rows(0, 1, flags=pa.array([-1], pa.int32()))]], "flags is -1"),
        ([[rows(0, 1)], [rows(1, 2, queue=pa.array(["other"]))]], "feed, other"),
    ],
)
def test_rows_that_are_no_archive_are_refused_and_nothing_appears(
    tmp_path: Path, tasks: list[list[pa.RecordBatch]], said: str
) -> None:
    with pytest.raises(InvalidConfig, match=said):
        write(tmp_path / "q", *tasks)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_taken_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    write(tmp_path / "q", [rows(0, 3)])
    with pytest.raises(InvalidConfig, match="something at"):
        open_write(tmp_path / "q")
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", [rows(0, 3)])
    assert read(tmp_path / "empty") == expected(0, 3)


@pytest.mark.parametrize(
    ("options", "columns", "said"),
    [
        ({}, schema(), "needs the option 'path'"),
        ({"path": "q", "decode": "raw"}, schema(), "valid are path, segmentSize"),
        ({"path": "q", "segmentSize": "100"}, schema(), "segment_size must be"),
        ({"path": "q"}, schema("seq", "payload"), "takes the columns seq, ts_ns, type_id, payload"),
        ({"path": "q"}, schema(kind=StringType()), "select those"),
        ({"path": "q"}, schema(seq=IntegerType()), "'seq' .* is bigint, not int"),
    ],
)
def test_bad_options_and_columns_are_refused_with_those_that_are_valid(
    options: dict[str, str], columns: StructType, said: str
) -> None:
    with pytest.raises(InvalidConfig, match=said):
        parse_options(options, columns)


def test_the_answer_of_a_task_travels(tmp_path: Path) -> None:
    built = QueueArchiveWriter(open_write(tmp_path / "q")).write(iter([rows(0, 200)]))
    assert isinstance(built, Built)
    assert len(built.segments) > 1
    assert (built.segments[0].first_seq, built.segments[-1].last_seq) == (0, 199)
