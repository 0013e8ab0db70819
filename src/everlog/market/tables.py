"""Events as Arrow tables, DataFrames and files, and Arrow tables back into a queue.

Owns which columns a kind of event has in a table, and the files. The columns themselves are made by
`everlog.market.decoding`. Needs pyarrow; `to_pandas` and `to_polars` need these packages too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq

from everlog.errors import InvalidConfig
from everlog.market.decoding import DECODINGS, MessageSelection, column, select
from everlog.market.feature_table import TableFile
from everlog.market.replay import Replay
from everlog.queue import Queue

KINDS: Final = tuple(DECODINGS)
"""`raw` is every message with its bytes; the others are the columns of one kind of event."""
FILE_KINDS: Final = (".parquet", ".arrow", ".csv")
TABLE_MESSAGES: Final = 65536
_RAW_COLUMNS: Final = ("ts_ns", "type_id", "flags", "payload")

Source = Replay | str | os.PathLike[str]


def record_batches(source: Source, kind: str = "raw") -> Iterator[pa.RecordBatch]:
    """Yield the events of one kind of a queue or a replay, in order."""
    schema = schema_of(kind)
    decoding = DECODINGS[kind]
    replay = source if isinstance(source, Replay) else Replay(os.fspath(source))
    for some in replay.batches():
        offsets = some.batch.offset.astype(np.int64)[some.chosen]
        chosen = select(decoding, MessageSelection(some.batch, some.chosen, offsets))
        if len(chosen):
            columns = [
                pa.repeat(replay.path, len(chosen)) if name == "queue" else column(decoding, chosen, name)
                for name in schema.names
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def schema_of(kind: str) -> pa.Schema:
    """Return the columns of a kind."""
    if kind not in DECODINGS:
        raise InvalidConfig(f"{kind!r} is no kind of event; there are {', '.join(KINDS)}")
    return pa.schema(list(DECODINGS[kind].columns.items()))


def to_arrow(source: Source, kind: str = "raw") -> pa.Table:
    """Return the events of one kind as a table. Prices and sizes of books are integers with their scales."""
    return pa.Table.from_batches(record_batches(source, kind), schema=schema_of(kind))


def to_pandas(source: Source, kind: str = "raw") -> Any:
    """Return the events of one kind as a DataFrame of pandas."""
    return to_arrow(source, kind).to_pandas()


def to_polars(source: Source, kind: str = "raw") -> Any:
    """Return the events of one kind as a DataFrame of Polars."""
    import polars

    return polars.from_arrow(to_arrow(source, kind))


# --- Files -----------------------------------------------------------------------------------------------


def write_table(
    sources: Sequence[Source],
    path: str,
    kind: str = "raw",
    *,
    advance: Callable[[int], object] = lambda rows: None,
) -> int:
    """Write events to a file by its ending, one source behind the other; return how many rows it has.

    In a CSV file a book has a row for each of its levels, and payloads are hex. `advance` is told how many
    rows each step has written.
    """
    batches = (batch for source in sources for batch in record_batches(source, kind))
    schema = schema_of(kind)
    if path.endswith(".csv"):
        batches, schema = (_flat(batch, kind) for batch in batches), _flat(schema.empty_table(), kind).schema
    with TableFile(path, schema) as file:
        rows = 0
        for batch in batches:
            file.write(batch)
            rows += batch.num_rows
            advance(batch.num_rows)
    return rows


def table_writer(path: str, ending: str, schema: pa.Schema) -> Any:
    """Return the writer of a file of rows; the ending is one of `FILE_KINDS`."""
    if ending == ".parquet":
        return pq.ParquetWriter(path, schema, compression="zstd")
    if ending == ".arrow":
        return pa.ipc.new_file(path, schema)
    return pyarrow.csv.CSVWriter(path, schema)


def _flat(batch: pa.RecordBatch | pa.Table, kind: str) -> pa.Table:
    """Return rows without lists and bytes."""
    table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
    if kind == "raw":
        payloads = [one.hex() for one in table["payload"].to_pylist()]
        return table.set_column(
            table.schema.get_field_index("payload"), "payload", pa.array(payloads, pa.string())
        )
    if kind != "book":
        return table
    parts = []
    for side in ("bids", "asks"):
        lists = table[side].combine_chunks()
        levels = lists.flatten()
        rows = table.drop_columns(["bids", "asks"]).take(pc.list_parent_indices(lists))
        rows = rows.append_column("side", pa.repeat(side[:-1], len(levels)))
        for number, name in enumerate(("price", "size")):
            rows = rows.append_column(name, levels.field(number))
        parts.append(rows)
    joined = pa.concat_tables(parts)
    return joined.sort_by([("seq", "ascending"), ("side", "descending")]) if joined.num_rows else joined


def read_table(path: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a `.parquet` or `.arrow` file."""
    ending = os.path.splitext(path)[1]
    if ending == ".parquet":
        with closing(pq.ParquetFile(path)) as file:
            yield from file.iter_batches(TABLE_MESSAGES)
    elif ending == ".arrow":
        with pa.ipc.open_file(path) as file:
            for number in range(file.num_record_batches):
                yield file.get_batch(number)
    else:
        raise InvalidConfig(f"{path!r} ends with {ending!r}; a queue is made of .parquet or .arrow")


def from_arrow(batches: Iterable[pa.RecordBatch] | pa.Table, queue: str, **config: Any) -> int:
    """Append the messages of tables of kind `raw` to a queue; return how many there were.

    They keep bytes, times, types and flags, and get the queue's own seqs.
    """
    written = 0
    with Queue.open_publisher(queue, **config) as writer:
        for batch in batches.to_batches() if isinstance(batches, pa.Table) else batches:
            missing = [name for name in _RAW_COLUMNS if name not in batch.schema.names]
            if missing:
                raise InvalidConfig(
                    f"the table has no column {', '.join(missing)}; only tables of kind "
                    "'raw' hold messages whole"
                )
            if not batch.num_rows:
                continue
            payloads = batch.column("payload").cast(pa.large_binary())
            begins = np.frombuffer(payloads.buffers()[1], np.int64)[payloads.offset :][: len(payloads) + 1]
            writer.append_packed(
                _numbers(batch, "type_id", np.uint16),
                np.frombuffer(payloads.buffers()[2] or b"", np.uint8),
                begins[1:].astype(np.uint64),
                _numbers(batch, "ts_ns", np.uint64),
                _numbers(batch, "flags", np.uint16),
                begins[:-1].astype(np.uint64),
            )
            written += batch.num_rows
    return written


def _numbers(batch: pa.RecordBatch, name: str, dtype: Any) -> Any:
    return batch.column(name).to_numpy(zero_copy_only=False).astype(dtype)
