"""Arrow columns of topic records, whether the records come from files or from a server.

Owns the filter and the making of arrays. `everlog.native` selects the records and copies their text; there is
no loop over records here.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

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
    for name in names:
        if name == "seq":
            arrays[name] = pa.array(seqs)
        elif name == "ts":
            arrays[name] = pa.array(times_us).cast(TIME)
        else:
            text = collected.text(name)
            valid = None if text.valid is None else pa.py_buffer(text.valid)
            buffers = [valid, pa.py_buffer(text.ends), pa.py_buffer(text.bytes)]
            arrays[name] = pa.Array.from_buffers(TEXT, len(collected), buffers, text.absent)
    collected.clear()
    return arrays
