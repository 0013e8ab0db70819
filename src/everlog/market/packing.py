"""Batches of book events of varying length, packed without a loop per event.

Owns how L2 bodies are laid one behind the other. Knows no queue: `PackedRecords` fits
`QueueWriter.append_packed(TypeId.BOOK_EVENT, packed.buffer, packed.ends, timestamps)` and
`Batch.segment`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from everlog.errors import Corrupt
from everlog.market.protocol import (
    BOOK_EVENT_HEADER,
    HEADER_BYTES,
    LEVEL_BYTES,
    MAX_DIFF_LEVELS,
)
from everlog.native.market.events import write_events

assert BOOK_EVENT_HEADER.fields is not None
_LENGTH_AT: Final[int] = BOOK_EVENT_HEADER.fields["record_len"][1]


@dataclass(frozen=True, slots=True)
class PackedRecords:
    """Payloads in one buffer: where each begins and how long it is.

    If `stride` is not 0 all have one length, and each begins so many bytes behind the one before.
    """

    buffer: NDArray[np.uint8]
    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint64]
    stride: int = 0

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.offsets)

    def __iter__(self) -> Iterator[memoryview]:
        """Yield the payloads one by one, without a copy."""
        view = self.buffer.data
        for offset, length in zip(self.offsets.tolist(), self.lengths.tolist(), strict=True):
            yield view[offset : offset + length]

    @property
    def ends(self) -> NDArray[np.uint64]:
        """Where each record ends in the buffer."""
        return self.offsets + self.lengths

    def take(self, chosen: NDArray[Any] | slice[int, int]) -> PackedRecords:
        """Return some of the records, by index, mask or slice, without a copy of their bytes."""
        return PackedRecords(self.buffer, self.offsets[chosen], self.lengths[chosen])


def pack_l2_diffs(
    headers: NDArray[np.void],
    diffs: NDArray[np.void],
    levels: NDArray[np.void],
    bid_counts: NDArray[Any] | None = None,
    ask_counts: NDArray[Any] | None = None,
) -> PackedRecords:
    """Pack diffs whose levels lie one behind the other in `levels`: bids of event 0, its asks, and so on.

    Counts come from `diffs` unless given; given ones may exceed 65535 a side, and such events are split
    into several, of which the later ones carry on from the last update id.
    """
    bids = np.asarray(diffs["bid_count"] if bid_counts is None else bid_counts, dtype=np.int64)
    asks = np.asarray(diffs["ask_count"] if ask_counts is None else ask_counts, dtype=np.int64)
    _check_level_count(int((bids + asks).sum()), len(levels))
    if len(bids) and max(int(bids.max()), int(asks.max())) > MAX_DIFF_LEVELS:
        headers, diffs, levels, bids, asks = _split(headers, diffs, levels, bids, asks)
    bodies = diffs.copy()
    bodies["bid_count"] = bids
    bodies["ask_count"] = asks
    return _pack(headers, bodies, levels, bids + asks)


def pack_l2_snapshots(
    headers: NDArray[np.void], snapshots: NDArray[np.void], levels: NDArray[np.void]
) -> PackedRecords:
    """Pack snapshots whose levels lie one behind the other in `levels`."""
    counts = snapshots["bid_count"].astype(np.int64) + snapshots["ask_count"]
    _check_level_count(int(counts.sum()), len(levels))
    return _pack(headers, snapshots, levels, counts)


def gather_headers(packed: PackedRecords) -> NDArray[np.void]:
    """Return the headers of book events; payloads shorter than a header are not allowed."""
    return gather_records(packed, BOOK_EVENT_HEADER)


def gather_records(packed: PackedRecords, layout: np.dtype[np.void]) -> NDArray[np.void]:
    """Return the beginning of each payload as a record of a layout; shorter payloads are not allowed."""
    starts, size = packed.offsets, layout.itemsize
    if len(starts) and not (starts % np.uint64(size)).any():
        # Payloads of a queue begin at multiples of a header's size: one copy each, as bytes without fields.
        cells = len(packed.buffer) // size
        rows = packed.buffer[: cells * size].view(f"V{size}")
        records: NDArray[np.void] = rows[starts // np.uint64(size)].view(layout)
        return records
    return _gather(packed.buffer, starts, layout)


def gather_field(packed: PackedRecords, name: str) -> NDArray[Any]:
    """Return one field of the headers of book events, without the rest of them."""
    starts = packed.offsets
    if len(starts) and not (starts % np.uint64(HEADER_BYTES)).any():
        cells = len(packed.buffer) // HEADER_BYTES
        column = packed.buffer[: cells * HEADER_BYTES].view(BOOK_EVENT_HEADER)[name]
        field: NDArray[Any] = column[starts // np.uint64(HEADER_BYTES)]
        return field
    return gather_headers(packed)[name]


def ranges(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return start, start + 1, ... for each start, `count` numbers each, as one array."""
    before = np.cumsum(counts) - counts
    steps = np.arange(int(counts.sum()), dtype=np.int64)
    numbers: NDArray[np.int64] = steps + np.repeat(starts - before, counts)
    return numbers


def by_key(keys: NDArray[Any]) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Yield each key and the places that have it, in order; one sort, however many keys there are."""
    if not len(keys):
        return
    order = np.argsort(keys, kind="stable")
    found, starts = np.unique(keys[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, starts[1:]), strict=True)


def _check_level_count(wanted: int, given: int) -> None:
    if wanted != given:
        raise Corrupt(f"the events have {wanted} levels by their counts, but {given} were given")


def _rows(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of each element as a row."""
    rows: NDArray[np.uint8] = np.ascontiguousarray(array).view(np.uint8).reshape(len(array), array.itemsize)
    return rows


def _pack(
    headers: NDArray[np.void], bodies: NDArray[np.void], levels: NDArray[np.void], counts: NDArray[np.int64]
) -> PackedRecords:
    lengths = HEADER_BYTES + bodies.itemsize + counts * LEVEL_BYTES
    starts = np.cumsum(lengths) - lengths
    buffer = np.empty(int(lengths.sum()), dtype=np.uint8)
    write_events(_rows(headers), _rows(bodies), _rows(levels), counts, _LENGTH_AT, buffer)
    return PackedRecords(buffer, starts.astype(np.uint64), lengths.astype(np.uint64))


def _gather(buffer: NDArray[np.uint8], starts: NDArray[Any], layout: np.dtype[np.void]) -> NDArray[np.void]:
    """Return what lies at each start as elements of the layout; starts need not be aligned."""
    positions = np.asarray(starts, dtype=np.int64)[:, None] + np.arange(layout.itemsize)
    gathered: NDArray[np.void] = buffer[positions].reshape(-1).view(layout)
    return gathered


def _split(
    headers: NDArray[np.void],
    diffs: NDArray[np.void],
    levels: NDArray[np.void],
    bids: NDArray[np.int64],
    asks: NDArray[np.int64],
) -> tuple[NDArray[np.void], NDArray[np.void], NDArray[np.void], NDArray[np.int64], NDArray[np.int64]]:
    parts = np.maximum(1, -(-np.maximum(bids, asks) // MAX_DIFF_LEVELS))
    event = np.repeat(np.arange(len(parts)), parts)
    part = ranges(np.zeros_like(parts), parts)
    begun = part * MAX_DIFF_LEVELS
    bid_part = np.clip(bids[event] - begun, 0, MAX_DIFF_LEVELS)
    ask_part = np.clip(asks[event] - begun, 0, MAX_DIFF_LEVELS)
    first_level = np.cumsum(bids + asks) - (bids + asks)
    bid_start = first_level[event] + np.minimum(begun, bids[event])
    ask_start = first_level[event] + bids[event] + np.minimum(begun, asks[event])
    starts = np.stack([bid_start, ask_start], axis=1).reshape(-1)
    order = ranges(starts, np.stack([bid_part, ask_part], axis=1).reshape(-1))
    bodies = diffs[event].copy()
    later = part > 0
    bodies["first_update_id"][later] = bodies["last_update_id"][later]
    bodies["previous_update_id"][later] = bodies["last_update_id"][later]
    return headers[event], bodies, levels[order], bid_part, ask_part
