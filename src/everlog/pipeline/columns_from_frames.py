"""Arrow columns of topic records, whether the records come from files or from a server.

Owns the filter and the making of arrays. `everlog.native` selects the records and copies their text; only the
columns of `ORIGIN_COLUMNS`, which a read has if it names them, need a loop over records.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

from everlog.bridge.origin import meta_of
from everlog.native.columns.frame_columns import FrameColumns

TIME: Final = pa.timestamp("us", "UTC")
TEXT: Final = pa.string()
FRAME_COLUMNS: Final = {
    "seq": pa.int64(),
    "ts": TIME,
    "node": TEXT,
    "tag": TEXT,
    "meta": TEXT,
    "data": TEXT,
}
ORIGIN_COLUMNS: Final = {
    "source": TEXT,
    "source_seq": pa.int64(),
    "ts_ns": pa.int64(),
    "type_id": pa.int32(),
}
"""Which message of a queue a record was, by the meta that a bridge gave it; null for other records."""

Columns = dict[str, pa.Array]


class RecordFilter(NamedTuple):
    """Which records are read: times in ms, both ends included; a tag, as a prefix if it ends in `*`."""

    from_ts_ms: int
    to_ts_ms: int
    tag: str | None

    def collector(self) -> FrameColumns:
        """Return an empty collector of the records that pass."""
        is_prefix = self.tag is not None and self.tag.endswith("*")
        tag = None if self.tag is None else self.tag.removesuffix("*" if is_prefix else "").encode()
        return FrameColumns(self.from_ts_ms, self.to_ts_ms, tag, is_prefix)


def take_columns(collected: FrameColumns, names: tuple[str, ...]) -> Columns:
    """Return the collected records as arrays, and empty the collector."""
    arrays: Columns = {}
    seqs, times_us = collected.numbers()
    if not ORIGIN_COLUMNS.keys().isdisjoint(names):
        arrays = _origins(_texts(collected, "meta"))
    for name in names:
        if name == "seq":
            arrays[name] = pa.array(seqs)
        elif name == "ts":
            arrays[name] = pa.array(times_us).cast(TIME)
        elif name not in ORIGIN_COLUMNS:
            arrays[name] = _texts(collected, name)
    collected.clear()
    return arrays


def _texts(collected: FrameColumns, name: str) -> pa.Array:
    text = collected.text(name)
    valid = None if text.valid is None else pa.py_buffer(text.valid)
    buffers = [valid, pa.py_buffer(text.ends), pa.py_buffer(text.bytes)]
    return pa.Array.from_buffers(TEXT, len(collected), buffers, text.absent)


def _origins(metas: pa.Array) -> Columns:
    found = [meta_of(meta or "") for meta in metas.to_pylist()]
    rows = [
        (one.source, one.seq, one.ts_ns, one.type) if one.is_complete else (None,) * len(ORIGIN_COLUMNS)
        for one in found
    ]
    columns = zip(*rows, strict=True) if rows else ((),) * len(ORIGIN_COLUMNS)
    return {
        name: pa.array(values, kind)
        for (name, kind), values in zip(ORIGIN_COLUMNS.items(), columns, strict=True)
    }
