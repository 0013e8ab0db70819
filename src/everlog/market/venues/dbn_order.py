"""Records of a DBN file that are out of order or there twice.

Owns what order a file promises: the times of arrival of one publisher's instrument never go back. A snapshot
is a run of its own, with one add for each order; its records, and those marked as of a wrong time of arrival,
have no place in that order. Trades may look alike, so only adds are taken for repeated.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from everlog.market.venues.dbn_records import RecordBlock

F_BAD_TS_RECV: Final = 8
F_SNAPSHOT: Final = 32
GOES_BACK: Final = "ts_recv goes back: records are out of order or there twice; --allow-unordered keeps them"
IS_TWICE: Final = "the order is added twice; --allow-unordered keeps both"
_COMPARED: Final = (
    *("publisher_id", "instrument_id", "ts_recv", "ts_event", "sequence"),
    *("price", "size", "side", "action"),
)


class RecordOrder:
    """Watches the order of the records of one file."""

    def __init__(self) -> None:
        """No record has been seen."""
        self._latest: dict[int, int] = {}
        self._latest_of_all = np.uint64(0)
        self._last_number, self._last_record = -1, b""
        self._in_snapshot: dict[int, set[int]] = {}

    def out_of_order(self, block: RecordBlock) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which records of the next block go back in time, and which add an order a second time."""
        records = block.records
        keys = (records["publisher_id"].astype(np.int64) << 32) | records["instrument_id"]
        return self._going_back(records, keys), self._added_twice(block, keys)

    def _going_back(self, records: NDArray[np.void], keys: NDArray[np.int64]) -> NDArray[np.bool_]:
        goes_back = np.zeros(len(records), dtype=np.bool_)
        timed = np.flatnonzero((records["flags"] & (F_SNAPSHOT | F_BAD_TS_RECV)) == 0)
        times, keys = records["ts_recv"][timed], keys[timed]
        if not len(times):
            return goes_back
        if times[0] >= self._latest_of_all and (times[1:] >= times[:-1]).all():
            self._latest_of_all = times[-1]
            if (keys == keys[0]).all():
                self._latest[int(keys[0])] = int(times[-1])
            else:  # the last of each key remains
                self._latest.update(zip(keys.tolist(), times.tolist(), strict=True))
            return goes_back
        self._latest_of_all = max(self._latest_of_all, times.max())
        order = np.argsort(keys, kind="stable")
        found, starts = np.unique(keys[order], return_index=True)
        for key, places in zip(found.tolist(), np.split(order, starts[1:]), strict=False):
            before = np.uint64(self._latest.get(key, 0))
            latest = np.maximum.accumulate(np.concatenate(([before], times[places])))
            goes_back[timed[places]] = times[places] < latest[:-1]
            self._latest[key] = int(latest[-1])
        return goes_back

    def _added_twice(self, block: RecordBlock, keys: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return adds that equal the record directly before, or whose order a snapshot has already."""
        records = block.records
        twice = np.zeros(len(records), dtype=np.bool_)
        if "order_id" not in (records.dtype.names or ()) or not len(records):
            return twice
        twice[0] = block.numbers[0] == self._last_number + 1 and records[0].tobytes() == self._last_record
        twice[1:] = (np.diff(records["order_id"]) == 0) & (np.diff(block.numbers) == 1)
        alike = np.flatnonzero(twice)
        twice[alike] = records["action"][alike] == b"A"
        for row in np.flatnonzero(twice[1:]).tolist():
            twice[row + 1] = all(records[name][row + 1] == records[name][row] for name in _COMPARED)
        self._last_number, self._last_record = int(block.numbers[-1]), records[-1].tobytes()
        parts = (records["flags"] & F_SNAPSHOT) != 0
        if parts.any() or self._in_snapshot:
            self._follow_snapshots(records, keys, parts, twice)
        return twice

    def _follow_snapshots(
        self,
        records: NDArray[np.void],
        keys: NDArray[np.int64],
        parts: NDArray[np.bool_],
        twice: NDArray[np.bool_],
    ) -> None:
        """Mark adds of orders that the snapshot has already."""
        columns = (keys.tolist(), parts.tolist(), records["action"].tolist(), records["order_id"].tolist())
        for row, (key, is_part, action, order_id) in enumerate(zip(*columns, strict=True)):
            if not is_part:
                self._in_snapshot.pop(key, None)
            elif action == b"R":
                self._in_snapshot[key] = set()
            elif action == b"A":
                known = self._in_snapshot.setdefault(key, set())
                twice[row] |= order_id in known
                known.add(order_id)
