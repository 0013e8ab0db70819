"""Writing to topics from Spark: every row once per (query, batch, partition), by idempotency keys.

Owns the cutting of rows into appends and the keys of these. A task that is run again sends the same keys, and
the server answers with what it has already; so a retry of a task, or of a whole batch after a crash, appends
nothing twice as long as the topic remembers its keys (`idempotency_window_ms` of its configuration).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from everlog.client.http_api import ApiFailed, Backoff, HttpApi, topic_path
from everlog.errors import InvalidConfig
from everlog.pipeline import topic_ranges
from everlog.pipeline.options import Options
from everlog.pipeline.topic_ranges import Place

OPTIONS: Final = ("url", "key", "topic", "recordsPerAppend", "timeoutMs", "idempotencyWindowMs", "durability")
COLUMNS: Final = ("topic", "data", "tag", "node", "meta")
RECORDS_PER_APPEND: Final = 5000
RECORDS_PER_APPEND_MAX: Final = 10_000
BYTES_PER_APPEND: Final = 8 << 20
TIMEOUT_MS: Final = 60_000
WINDOW_MS: Final = 7 * 24 * 3600 * 1000
"""A week: a query that is started again later than this may repeat its last batch."""

MS_PER_S: Final = 1000
SHOWN_TEXT: Final = 60
_one_value = msgspec.json.Decoder(msgspec.Raw)


class TopicsWrite(NamedTuple):
    """What was asked for, checked; it travels to the executors."""

    place: Place
    topic: str | None
    records_per_append: int
    timeout_s: float
    config: dict[str, Any]
    job: str


class _Row(msgspec.Struct, omit_defaults=True):
    data: msgspec.Raw
    tag: str | None = None
    node: str | None = None
    meta: msgspec.Raw | None = None


class _Append(msgspec.Struct):
    records: list[_Row]
    idempotency_key: str
    create: bool
    config: dict[str, Any]


class Written(WriterCommitMessage):
    """How many rows a task wrote."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


def parse_options(given: Mapping[str, str], schema: StructType) -> TopicsWrite:
    """Check the options and the columns of a write; an error names what is valid."""
    options = Options(given, OPTIONS, "a write to everlog.topics")
    url = options.text("url")
    topic_ranges.check_url(url)
    names = [field.name for field in schema.fields]
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or "data" not in names:
        raise InvalidConfig(
            "a write to everlog.topics takes the column data and, if wanted, topic, tag, node and meta; "
            f"got {', '.join(names)}; select those"
        )
    for field in schema.fields:
        if field.dataType.simpleString() != "string":
            raise InvalidConfig(
                f"column {field.name!r} is {field.dataType.simpleString()}; it must be a string, data and "
                "meta as JSON text: use to_json()"
            )
    topic = options.text("topic", "") or None
    if (topic is None) == ("topic" not in names):
        raise InvalidConfig("the topic must be given either by the option 'topic' or by a column 'topic'")
    records = options.whole("recordsPerAppend", RECORDS_PER_APPEND, least=1) or RECORDS_PER_APPEND
    config: dict[str, Any] = {"idempotency_window_ms": options.whole("idempotencyWindowMs", WINDOW_MS)}
    if "durability" in options:
        config["durability"] = options.choice("durability", ("disk", "fsync", "memory", "ephemeral"))
    return TopicsWrite(
        Place(url, options.text("key", "") or None),
        topic,
        min(records, RECORDS_PER_APPEND_MAX),
        (options.whole("timeoutMs", TIMEOUT_MS) or 0) / MS_PER_S,
        config,
        uuid.uuid4().hex,
    )


class TopicsBatchWriter(DataSourceArrowWriter):
    """One write; its keys are those of this write alone."""

    def __init__(self, write: TopicsWrite) -> None:
        self._write = write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Append the rows of one task."""
        return write_task(self._write, iterator, self._write.job)


class TopicsStreamWriter(DataSourceStreamArrowWriter):
    """A stream; its keys are those of the query and the batch, the same after a restart."""

    def __init__(self, write: TopicsWrite) -> None:
        self._write = write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Append the rows of one task."""
        context = TaskContext.get()
        assert context is not None, "a task runs in a context"
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise InvalidConfig("this Spark does not tell its tasks the query and the batch; use 4.3")
        return write_task(self._write, iterator, f"{query}:{batch}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to do: the appends are kept already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is taken back: the batch will be run again with the same keys."""


def write_task(write: TopicsWrite, batches: Iterator[pa.RecordBatch], job: str) -> Written:
    """Append the rows of one task in order, topic by topic, under keys that depend on nothing else."""
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    written = 0
    waiting: dict[str, _Pending] = {}
    with write.place.connect() as api:
        for batch in batches:
            for topic, row in _rows(batch, write.topic):
                pending = waiting.get(topic)
                if pending is None:
                    pending = waiting[topic] = _Pending(api, write, topic, f"spark:{job}:{partition}")
                pending.add(row)
            written += batch.num_rows
        for pending in waiting.values():
            pending.flush()
    return Written(written)


class _Pending:
    """The rows of one topic that wait to be appended."""

    def __init__(self, api: HttpApi, write: TopicsWrite, topic: str, key: str) -> None:
        self._api = api
        self._write = write
        self._topic = topic
        self._key = key
        self._rows: list[_Row] = []
        self._bytes = 0
        self._appends = 0

    def add(self, row: _Row) -> None:
        self._rows.append(row)
        self._bytes += len(bytes(row.data))
        if len(self._rows) >= self._write.records_per_append or self._bytes >= BYTES_PER_APPEND:
            self.flush()

    def flush(self) -> None:
        if not self._rows:
            return
        body = _Append(self._rows, f"{self._key}:{self._appends}", True, self._write.config)
        path = topic_path(self._topic)
        _patiently(
            lambda: self._api.call(
                "POST", path, dict[str, Any], body=body, query={"return_seqs": "false"}, repeatable=True
            ),
            self._write.timeout_s,
        )
        self._appends += 1
        self._rows, self._bytes = [], 0


def _rows(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, _Row]]:
    """Yield the rows of a batch with the topic of each."""
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    nothing = [None] * batch.num_rows
    topics = columns.get("topic", [topic] * batch.num_rows)
    fields = (columns["data"], columns.get("tag", nothing), columns.get("node", nothing))
    for name, data, tag, node, meta in zip(topics, *fields, columns.get("meta", nothing), strict=True):
        if name is None or data is None:
            raise InvalidConfig("a row without a topic or without data cannot be appended; filter it out")
        yield name, _Row(_raw(data), tag, node, None if meta is None else _raw(meta))


def _raw(text: str) -> msgspec.Raw:
    """Return JSON text as it is, checked: half a value, or two, would change what the others mean."""
    try:
        return _one_value.decode(text)
    except msgspec.MsgspecError as error:
        shown = text if len(text) <= SHOWN_TEXT else text[:SHOWN_TEXT] + "..."
        raise InvalidConfig(
            f"{shown!r} is not JSON ({error}); use to_json() for the columns data and meta"
        ) from None


def _patiently(attempt: Callable[[], object], timeout_s: float) -> None:
    """Try until it works, as long as the server is away or busy and there is time; keys make it safe."""
    deadline_s = time.monotonic() + timeout_s
    backoff = Backoff()
    while True:
        try:
            attempt()
            return
        except ApiFailed as error:
            pause_s = backoff.pause_s(error)
            if not (error.is_busy or error.is_outage) or time.monotonic() + pause_s > deadline_s:
                raise
            time.sleep(pause_s)
