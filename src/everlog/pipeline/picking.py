"""Records of topics as Arrow columns, whether they come from files or from a server.

Owns the choice of records and the making of arrays. The records themselves are picked in
`everlog.native.columns.frame_columns`, without a loop over them here.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

from everlog.native.columns.frame_columns import FrameColumns

TIME: Final = pa.timestamp("us", "UTC")
PICKED: Final = ("seq", "ts", "node", "tag", "meta", "data")
"""The columns that can be made."""


class Filter(NamedTuple):
    """Which records are wanted: times in ms, both ends included, and a tag, as a prefix if it ends in `*`."""

    from_ts_ms: int
    to_ts_ms: int
    tag: str | None

    def columns(self) -> FrameColumns:
        """Return the kernel that picks them."""
        is_prefix = self.tag is not None and self.tag.endswith("*")
        tag = None if self.tag is None else self.tag.removesuffix("*" if is_prefix else "").encode()
        return FrameColumns(self.from_ts_ms, self.to_ts_ms, tag, is_prefix)


def take_columns(picked: FrameColumns, names: tuple[str, ...]) -> dict[str, pa.Array]:
    """Return what was picked as arrays, and begin anew."""
    arrays: dict[str, pa.Array] = {}
    seqs, times_us = picked.numbers()
    for name in names:
        if name == "seq":
            arrays[name] = pa.array(seqs)
        elif name == "ts":
            arrays[name] = pa.array(times_us).cast(TIME)
        else:
            text = picked.text(name)
            valid = None if text.valid is None else pa.py_buffer(text.valid)
            buffers = [valid, pa.py_buffer(text.ends), pa.py_buffer(text.bytes)]
            arrays[name] = pa.Array.from_buffers(pa.string(), len(picked), buffers, text.absent)
    picked.clear()
    return arrays
