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
COMMA: Final = ","
_ESCAPED: Final = r'["\\\x00-\x1f]'
"""What JSON does not have in a text as it is."""

_one_value = msgspec.json.Decoder(msgspec.Raw)
_values = msgspec.json.Decoder(list[msgspec.Raw])


class TopicsWrite(NamedTuple):
    """A checked write, sent to the executors."""

    address: ServerAddress
    topic: str | None
    records_per_append: int
    timeout_s: float
    config: dict[str, Any]
    job: str


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
            _check(batch)
            for topic, rows in _by_topic(batch, write.topic):
                pending = waiting.get(topic)
                if pending is None:
                    pending = waiting[topic] = _Pending(client, write, topic, f"spark:{job}:{partition}")
                pending.extend(rows)
            written += batch.num_rows
        for pending in waiting.values():
            pending.flush()
    return Written(written)


class _Pending:
    """The rows of one topic that are to be appended, as the text of the request.

    The size of an append depends on the rows alone, not on the Arrow batches they arrive in; so do the keys.
    """

    def __init__(self, client: Client, write: TopicsWrite, topic: str, key: str) -> None:
        self._client = client
        self._retry = RetryPolicy(write.timeout_s, connect_s=write.timeout_s)
        self._write = write
        self._topic = topic
        self._key = key
        self._records: list[memoryview] = []
        self._rows = 0
        self._bytes = 0
        self._appends = 0

    def extend(self, batch: pa.RecordBatch) -> None:
        """Add rows, and append whenever there are enough of them."""
        text, begins = _texts_of(_records(batch))
        sizes = pc.binary_length(batch.column("data")).to_numpy(zero_copy_only=False).astype(np.int64)
        ends = np.cumsum(sizes)
        at = before = 0
        while at < batch.num_rows:
            by_count = at + self._write.records_per_append - self._rows
            by_bytes = int(np.searchsorted(ends, before + BYTES_PER_APPEND - self._bytes)) + 1
            stop = min(by_count, by_bytes)
            end = min(stop, batch.num_rows)
            self._records.append(text[begins[at] : begins[end]])
            self._rows += end - at
            self._bytes += int(ends[end - 1]) - before
            at, before = end, int(ends[end - 1])
            if end == stop:
                self.flush()

    def flush(self) -> None:
        """Append the pending rows."""
        if not self._rows:
            return
        self._records[-1] = self._records[-1][: -len(COMMA)]
        rest: dict[str, Any] = {
            "idempotency_key": f"{self._key}:{self._appends}",
            "create": not self._appends,
        }
        if not self._appends:
            # The server reads a request without a configuration in native code; the topic is there by then.
            rest["config"] = self._write.config
        body = b"".join([b'{"records":[', *self._records, b"],", encode(rest)[1:]])
        path = f"{topic_path(self._topic)}?return_seqs=false"
        # The key makes it safe to send the append again.
        self._client.call(Call("POST", path, Appended, body), retry=self._retry)
        self._appends += 1
        self._records, self._rows, self._bytes = [], 0, 0


def _check(batch: pa.RecordBatch) -> None:
    """Refuse rows that are no records."""
    for name in ("topic", "data"):
        if name in batch.schema.names and batch.column(name).null_count:
            raise InvalidConfig("a row without a topic or without data cannot be appended; filter it out")
    for name in ("data", "meta"):
        if name in batch.schema.names:
            _check_texts(batch.column(name).drop_null())


def _records(batch: pa.RecordBatch) -> pa.Array:
    """Return each row as a record in JSON, with a comma behind it."""
    parts = ['{"data":', batch.column("data")]
    for name in ("tag", "node", "meta"):
        if name not in batch.schema.names:
            continue
        values = batch.column(name)
        member = [f',"{name}":', values] if name == "meta" else [f',"{name}":"', _escaped(values), '"']
        # In one go where every row has it: each pass over the rows costs as much as the others.
        parts += member if not values.null_count else [_joined(member)]
    return pc.binary_join_element_wise(*parts, "}" + COMMA, "")


def _joined(member: list[Any]) -> pa.Array:
    """Return a member of each row as text, empty where the row does not have it."""
    return pc.fill_null(pc.binary_join_element_wise(*member, ""), "")


def _escaped(texts: pa.Array) -> pa.Array:
    """Return texts as JSON has them between quotes."""
    names = texts.dictionary_encode()
    different = names.dictionary
    if not pc.any(pc.match_substring_regex(different, _ESCAPED)).as_py():
        return texts
    written = pa.array([encode(text).decode()[1:-1] for text in different.to_pylist()], pa.string())
    return written.take(names.indices)


def _texts_of(texts: pa.Array) -> tuple[memoryview, NDArray[np.int64]]:
    """Return the bytes of texts without nulls, one behind the other, and where each begins and ends."""
    _, offsets, content = texts.buffers()
    begins = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4).astype(np.int64)
    return memoryview(content or b""), begins


def _by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield each topic with its rows."""
    if topic is not None:
        yield topic, batch
        return
    names = batch.column("topic").dictionary_encode()
    numbers = names.indices.to_numpy(zero_copy_only=False)
    for number, name in enumerate(names.dictionary.to_pylist()):
        yield name, batch.take(pa.array(np.flatnonzero(numbers == number)))


def _check_texts(texts: pa.Array) -> None:
    """Refuse texts that are not one JSON value each: half a value, or two, would change what the others mean.

    All of them are one list in JSON; if its values are as long as the texts, each is the text in its place.
    """
    content, begins = _texts_of(pc.binary_join_element_wise(texts, COMMA, ""))
    if len(texts) == 0:
        return
    lengths = np.diff(begins) - len(COMMA)
    try:
        values = _values.decode(b"".join([b"[", content[begins[0] : begins[-1] - len(COMMA)], b"]"]))
    except msgspec.MsgspecError:
        values = []
    if len(values) != len(texts) or not np.array_equal(np.fromiter(map(len, values), np.int64), lengths):
        for text in texts.to_pylist():  # white space around a value is no fault
            _check_json(text)


def _check_json(text: str) -> None:
    try:
        _one_value.decode(text)
    except msgspec.MsgspecError as error:
        shown = text if len(text) <= SHOWN_TEXT else text[:SHOWN_TEXT] + "..."
        raise InvalidConfig(
            f"{shown!r} is not JSON ({error}); use to_json() for the columns data and meta"
        ) from None
