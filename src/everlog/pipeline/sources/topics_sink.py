"""Writing to topics from Spark: every row once per (query, batch, partition), by idempotency keys.

A task that runs again sends the same keys, and the server answers with the earlier result; so a retry of a
task, or of a whole batch after a crash, appends nothing twice as long as the topic remembers its keys
(`idempotency_window_ms` of its configuration).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from everlog.api_types import Appended
from everlog.client import Client, RetryPolicy
from everlog.client.encoding import encode
from everlog.client.flows import Call
from everlog.client.wire import topic_path
from everlog.errors import InvalidConfig
from everlog.pipeline import topic_ranges
from everlog.pipeline.options import Options
from everlog.pipeline.topic_ranges import ServerAddress

OPTIONS: Final = ("url", "key", "topic", "recordsPerAppend", "timeoutMs", "idempotencyWindowMs", "durability")
COLUMNS: Final = ("topic", "data", "tag", "node", "meta")
RECORDS_PER_APPEND: Final = 5000
RECORDS_PER_APPEND_MAX: Final = 10_000
BYTES_PER_APPEND: Final = 8 << 20
TIMEOUT_MS: Final = 60_000
WINDOW_MS: Final = 7 * 24 * 3600 * 1000
"""A week: a query that restarts later than this may repeat its last batch."""

MS_PER_S: Final = 1000
SHOWN_TEXT: Final = 60
_one_value = msgspec.json.Decoder(msgspec.Raw)


class TopicsWrite(NamedTuple):
    """A checked write, sent to the executors."""

    address: ServerAddress
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
    address = topic_ranges.server_address(options.text("url"), options.text("key", ""))
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
        address,
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
            raise InvalidConfig("tasks of this Spark have no query and batch id; use 4.3")
        return write_task(self._write, iterator, f"{query}:{batch}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the appends are committed already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the batch will run again with the same keys."""


def write_task(write: TopicsWrite, batches: Iterator[pa.RecordBatch], job: str) -> Written:
    """Append the rows of one task in order, topic by topic, under keys that depend on nothing else."""
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    written = 0
    waiting: dict[str, _Pending] = {}
    with write.address.connect() as client:
        for batch in batches:
            rows, sizes = _rows(batch)
            for topic, chosen in _by_topic(batch, write.topic):
                pending = waiting.get(topic)
                if pending is None:
                    pending = waiting[topic] = _Pending(client, write, topic, f"spark:{job}:{partition}")
                if chosen is None:
                    pending.extend(rows, sizes)
                else:
                    pending.extend([rows[row] for row in chosen.tolist()], sizes[chosen])
            written += batch.num_rows
        for pending in waiting.values():
            pending.flush()
    return Written(written)


class _Pending:
    """The rows of one topic that are to be appended.

    The size of an append depends on the rows alone, not on the Arrow batches they arrive in; so do the keys.
    """

    def __init__(self, client: Client, write: TopicsWrite, topic: str, key: str) -> None:
        self._client = client
        self._retry = RetryPolicy(write.timeout_s, connect_s=write.timeout_s)
        self._write = write
        self._topic = topic
        self._key = key
        self._rows: list[_Row] = []
        self._bytes = 0
        self._appends = 0

    def extend(self, rows: list[_Row], sizes: NDArray[np.int64]) -> None:
        """Add rows, and append whenever there are enough of them."""
        ends = np.cumsum(sizes)
        at = before = 0
        while at < len(rows):
            by_count = at + self._write.records_per_append - len(self._rows)
            by_bytes = int(np.searchsorted(ends, before + BYTES_PER_APPEND - self._bytes)) + 1
            stop = min(by_count, by_bytes)
            end = min(stop, len(rows))
            self._rows += rows[at:end]
            self._bytes += int(ends[end - 1]) - before
            at, before = end, int(ends[end - 1])
            if end == stop:
                self.flush()

    def flush(self) -> None:
        """Append the pending rows."""
        if not self._rows:
            return
        body = _Append(self._rows, f"{self._key}:{self._appends}", True, self._write.config)
        path = f"{topic_path(self._topic)}?return_seqs=false"
        # The key makes it safe to send the append again.
        self._client.call(Call("POST", path, Appended, encode(body)), retry=self._retry)
        self._appends += 1
        self._rows, self._bytes = [], 0


def _rows(batch: pa.RecordBatch) -> tuple[list[_Row], NDArray[np.int64]]:
    """Return the rows of a batch, and the bytes of data of each; column by column, there may be many."""
    for name in ("topic", "data"):
        if name in batch.schema.names and batch.column(name).null_count:
            raise InvalidConfig("a row without a topic or without data cannot be appended; filter it out")
    fields: list[list[Any]] = []
    for name in ("data", "tag", "node", "meta"):
        if name not in batch.schema.names:
            fields.append([None] * batch.num_rows)
            continue
        values = batch.column(name).to_pylist()
        fields.append(_raw_texts(values) if name in ("data", "meta") else values)
    sizes = pc.binary_length(batch.column("data")).to_numpy(zero_copy_only=False).astype(np.int64)
    return list(map(_Row, *fields)), sizes


def _by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, NDArray[np.intp] | None]]:
    """Yield each topic with the numbers of its rows, None for all of them."""
    if topic is not None:
        yield topic, None
        return
    names = batch.column("topic").dictionary_encode()
    numbers = names.indices.to_numpy(zero_copy_only=False)
    for number, name in enumerate(names.dictionary.to_pylist()):
        yield name, np.flatnonzero(numbers == number)


def _raw_texts(texts: list[str | None]) -> list[msgspec.Raw | None]:
    """Return JSON texts as they are, checked: half a value, or two, would change what the others mean."""
    found: list[msgspec.Raw | None] = []
    decode = _one_value.decode
    try:
        found.extend([None if text is None else decode(text) for text in texts])
    except msgspec.MsgspecError:
        for text in texts:
            if text is not None:
                _check_json(text)
    return found


def _check_json(text: str) -> None:
    try:
        _one_value.decode(text)
    except msgspec.MsgspecError as error:
        shown = text if len(text) <= SHOWN_TEXT else text[:SHOWN_TEXT] + "..."
        raise InvalidConfig(
            f"{shown!r} is not JSON ({error}); use to_json() for the columns data and meta"
        ) from None
