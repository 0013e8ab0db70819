"""Events that importers make, decoded as messages of a queue are: one way to read a payload.

A message's record is a header and its payload. Here only payloads are in memory; what the header would say is
handed over beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from everlog.market.decoding import COMMIT_LEN as LENGTH
from everlog.market.decoding import (
    MESSAGE_FIELDS,
    RAW,
    Decoding,
    FieldLayout,
    Indexes,
    MessageSelection,
    column,
    select,
)
from everlog.market.protocol import MessageFlags
from everlog.market.venues.interface import EventBlock
from everlog.queue.layout import HEADER_SIZE

WORD_BYTES: Final = 4


class _Payloads(NamedTuple):
    """What stands for a batch of messages: the bytes that offsets count from."""

    segment: NDArray[np.uint8]


class PayloadSelection(MessageSelection):
    """Some events of a block. Offsets are those of the records that they would be: they may be negative."""

    __slots__ = ("_headers",)

    def __init__(
        self,
        payloads: Any,
        rows: Indexes,
        offsets: NDArray[np.int64],
        headers: Mapping[FieldLayout, NDArray[Any]],
    ) -> None:
        super().__init__(payloads, rows, offsets)
        self._headers = headers

    def where(self, keep: NDArray[np.bool_]) -> PayloadSelection:
        """Return those for which `keep` is true."""
        return self._some(np.flatnonzero(keep))

    def part(self, first: int, end: int) -> PayloadSelection:
        """Return consecutive ones."""
        return self._some(np.arange(first, end))

    def _some(self, chosen: Indexes) -> PayloadSelection:
        headers = {field: values[chosen] for field, values in self._headers.items()}
        return PayloadSelection(self.batch, self.rows[chosen], self.offsets[chosen], headers)

    def values(self, field: FieldLayout) -> NDArray[Any]:
        """Return the value of a field of each record."""
        if field in self._headers:
            return self._headers[field]
        data = self.batch.segment
        width, starts = field.dtype.itemsize, self.offsets + field.offset
        # Fields lie at multiples of their size or of a word, so few gathers make a value.
        unit = gcd(width, WORD_BYTES)
        if (starts % unit).any():
            unit = 1
        cells = data[: len(data) // unit * unit].view(f"<u{unit}")
        gathered = cells[(starts // unit)[:, None] + np.arange(width // unit)]
        found: NDArray[Any] = np.ascontiguousarray(gathered).view(field.dtype).reshape(-1)
        return found


def decoded(block: EventBlock, decoding: Decoding, first_seq: int) -> dict[str, pa.Array]:
    """Return the columns of those events of a block that are of a decoding, numbered from `first_seq`."""
    chosen = select(decoding, _all(block, first_seq))
    return {name: column(decoding, chosen, name) for name in decoding.columns if name != "queue"}


def _all(block: EventBlock, first_seq: int) -> PayloadSelection:
    """Return all events of a block."""
    count = len(block)
    data: NDArray[np.uint8] = np.ascontiguousarray(block.payloads).view(np.uint8).reshape(-1)
    if block.ends is None:
        length = len(data) // count
        starts = np.arange(count, dtype=np.int64) * length
        lengths = np.full(count, length, np.int64)
    else:
        ends = block.ends.astype(np.int64)
        starts = np.concatenate(([0], ends[:-1])) if block.starts is None else block.starts.astype(np.int64)
        lengths = ends - starts
    data = np.pad(data, (0, -len(data) % WORD_BYTES)) if len(data) % WORD_BYTES else data
    flags = block.flags
    if flags is None:
        flags = np.full(count, MessageFlags.LAST_OF_EVENT, np.uint16)
    headers: dict[FieldLayout, NDArray[Any]] = {
        MESSAGE_FIELDS["seq"]: np.arange(first_seq, first_seq + count, dtype=np.uint64),
        MESSAGE_FIELDS["ts_ns"]: np.ascontiguousarray(block.timestamps_ns),
        MESSAGE_FIELDS["type_id"]: np.broadcast_to(np.asarray(block.type_id, np.uint16), count),
        RAW.fields["flags"]: flags,
        LENGTH: lengths + 1,
    }
    return PayloadSelection(_Payloads(data), np.arange(count), starts - HEADER_SIZE, headers)
