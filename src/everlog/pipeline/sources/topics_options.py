"""What a read of `everlog.topics` asks for: options, columns, and how a gap becomes a row or an error.

Owns the parsing, shared by the reads over HTTP (`topics`) and from files (`topics_directory`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

import pyarrow as pa

from everlog.errors import DataLost, InvalidConfig
from everlog.pipeline import topic_ranges
from everlog.pipeline.columns import Column, arrow_schema
from everlog.pipeline.options import EARLIEST, LATEST, ON_DATA_LOSS, U64_MAX, Options, Start
from everlog.pipeline.topic_ranges import Bounds, Lost, Place

COLUMNS: Final = {
    "topic": Column("string", pa.string()),
    "seq": Column("bigint", pa.int64()),
    "ts": Column("timestamp", pa.timestamp("us", "UTC")),
    "node": Column("string", pa.string()),
    "tag": Column("string", pa.string()),
    "meta": Column("string", pa.string()),
    "data": Column("string", pa.string()),
    "kind": Column("string", pa.string()),
    "gap_to": Column("bigint", pa.int64()),
    "reason": Column("string", pa.string()),
}
OPTIONS: Final = (
    "url",
    "key",
    "dataDir",
    "coldDir",
    "topic",
    "startingOffsets",
    "endingOffsets",
    "fromSeq",
    "toSeq",
    "fromTs",
    "toTs",
    "tag",
    "columns",
    "partitions",
    "maxRecordsPerBatch",
    "maxBytesPerBatch",
    "onDataLoss",
)
DEFAULT_PARTITION_RECORDS: Final = 250_000
NS_PER_MS: Final = 1_000_000


class Directory(NamedTuple):
    """A data directory, and where its cold segments are, if anywhere."""

    data_dir: str
    cold_dir: str | None


class TopicsRead(NamedTuple):
    """What was asked for, checked; it travels to the executors. Exactly one of the two places is set."""

    place: Place | None
    directory: Directory | None
    topics: tuple[str, ...]
    starting: Start
    ending: Start
    wanted: Bounds
    from_ts_ms: int
    to_ts_ms: int
    tag: str | None
    columns: tuple[str, ...]
    partitions: int | None
    max_records: int | None
    max_bytes: int | None
    on_data_loss: str

    @property
    def server(self) -> Place:
        """The server; a read from files has none."""
        assert self.place is not None, "a read from files does not come here"
        return self.place


def parse_options(given: Mapping[str, str]) -> TopicsRead:
    """Check the options of a read; an error names what is valid."""
    options = Options(given, OPTIONS, "everlog.topics")
    place, directory = _where(options)
    columns = options.names("columns") or tuple(COLUMNS)
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise options.wrong("columns", ",".join(unknown), f"some of {', '.join(COLUMNS)}")
    topics = options.names("topic")
    if not topics:
        raise InvalidConfig("everlog.topics needs the option 'topic': a name, several, or a prefix with *")
    if "maxRecordsPerBatch" in options and "maxBytesPerBatch" in options:
        raise InvalidConfig("maxRecordsPerBatch and maxBytesPerBatch exclude each other; give one of them")
    to_seq, to_ts = options.whole("toSeq"), options.whole("toTs")
    return TopicsRead(
        place,
        directory,
        topics,
        options.start("startingOffsets", EARLIEST),
        options.start("endingOffsets", LATEST),
        Bounds(options.whole("fromSeq") or 0, U64_MAX if to_seq is None else to_seq + 1),
        options.whole("fromTs") or 0,
        U64_MAX if to_ts is None else to_ts,
        options.text("tag", "") or None,
        columns,
        options.whole("partitions", least=1),
        options.whole("maxRecordsPerBatch", least=1),
        options.whole("maxBytesPerBatch", least=1),
        options.choice("onDataLoss", ON_DATA_LOSS),
    )


def _where(options: Options) -> tuple[Place | None, Directory | None]:
    """Return the server or the directory; one of them must be named."""
    if "dataDir" in options:
        for name in ("url", "key"):
            if name in options:
                raise InvalidConfig(f"dataDir reads files and needs no server; leave out {name}")
        # Tasks may run in another directory than this process.
        cold = options.text("coldDir", "")
        return None, Directory(
            os.path.abspath(options.text("dataDir")), os.path.abspath(cold) if cold else None
        )
    if "coldDir" in options:
        raise InvalidConfig("coldDir belongs to dataDir; name that as well")
    if "url" not in options:
        raise InvalidConfig("everlog.topics needs the option 'url', or 'dataDir' to read files")
    topic_ranges.check_url(options.text("url"))
    return Place(options.text("url"), options.text("key", "") or None), None


def first_of(read: TopicsRead) -> int:
    """Where a topic begins if nothing else says so: its first seq, or what was asked for."""
    return max(1, read.wanted.first)


def partition_records(read: TopicsRead, total: int) -> int:
    """Return how many seqs one task reads."""
    return DEFAULT_PARTITION_RECORDS if read.partitions is None else max(1, -(-total // read.partitions))


def constant(name: str, topic: str, count: int) -> pa.Array:
    """Return a column that is the same for all records of a topic."""
    kind = COLUMNS[name].arrow
    if name in ("topic", "kind"):
        return pa.repeat(pa.scalar(topic if name == "topic" else "record", kind), count)
    return pa.nulls(count, kind)


def gap(read: TopicsRead, topic: str, lost: Lost) -> pa.RecordBatch:
    """Return a gap as one row whose `seq` is the first that is gone, or raise it, as the read says."""
    if read.on_data_loss != "record":
        raise DataLost(
            f"records {lost.first} to {lost.end - 1} of topic {topic!r} are lost ({lost.reason}); "
            "start behind them, or read with onDataLoss=record to have the gap as a row"
        )
    row = {"topic": topic, "seq": lost.first, "kind": "gap", "gap_to": lost.end - 1, "reason": lost.reason}
    arrays = [pa.array([row.get(name)], COLUMNS[name].arrow) for name in read.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(COLUMNS, read.columns))
