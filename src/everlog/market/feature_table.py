"""One table of all markets of a replay in the order of their messages, and the file it goes to.

Owns the columns that say what a row is about, and the formats of files. The features themselves come from a
`FeatureReplay`, bars from `everlog.market.bar_builder`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from everlog.errors import InvalidConfig, Unsupported
from everlog.market.book_set import Market
from everlog.market.feature_engine import MarketRows
from everlog.market.features import BAR_COLUMNS
from everlog.market.market_names import MarketNames

_UNFINISHED: Final = ".tmp"
_NAMED: Final = {"symbol": "string", "venue": "string", "tick_size": "float64"}


def needed_pyarrow() -> Any:
    """Return pyarrow, or say what to install."""
    try:
        import pyarrow
    except ImportError as error:
        raise Unsupported(
            f"tables need pyarrow, which is not installed ({error}): pip install 'everlog[plot]', or pyarrow"
        ) from None
    return pyarrow


class FeatureTable:
    """Rows of features as Arrow: seq, symbol, venue, tick size and times, then the features in order."""

    def __init__(self, dtype: np.dtype[np.void], names: MarketNames) -> None:
        self._arrow = needed_pyarrow()
        self._names = names
        self._known: dict[Market, tuple[str, str, float | None]] = {}
        fields = dtype.names or ()
        self._times = [name for name in ("ingest_ts_ns", "exchange_ts_ns") if name in fields]
        self._numbers = [name for name in fields if name != "seq"]
        arrow, first = self._arrow, [name for name in ("seq",) if name in fields]
        self._first = first
        self.schema = arrow.schema(
            [
                *(arrow.field(name, arrow.uint64()) for name in first),
                *(arrow.field(name, getattr(arrow, kind)()) for name, kind in _NAMED.items()),
                *(arrow.field(name.replace("_ts_ns", "_time"), self._stamp()) for name in self._times),
                *(arrow.field(name, arrow.from_numpy_dtype(dtype[name])) for name in self._numbers),
            ]
        )

    def batch(self, parts: Sequence[MarketRows]) -> Any:
        """Return the rows of one batch of messages in the order of the messages."""
        if not parts:
            return self._arrow.RecordBatch.from_pylist([], schema=self.schema)
        order = np.argsort(np.concatenate([part.places for part in parts]), kind="stable")
        rows = np.concatenate([part.rows for part in parts])[order]
        market_of = np.repeat(np.arange(len(parts)), [len(part.rows) for part in parts])[order]
        names = [self._named(part.market) for part in parts]
        arrow = self._arrow
        arrays = [arrow.array(np.ascontiguousarray(rows[name])) for name in self._first]
        for place, kind in enumerate(_NAMED.values()):
            values = arrow.array([name[place] for name in names], getattr(arrow, kind)())
            arrays.append(values.take(arrow.array(market_of)))
        arrays += [self._as_times(rows[name]) for name in self._times]
        arrays += [arrow.array(np.ascontiguousarray(rows[name])) for name in self._numbers]
        return arrow.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _named(self, market: Market) -> tuple[str, str, float | None]:
        if market not in self._known:
            names = self._names
            self._known[market] = names.symbol(market), names.venue(market), names.tick_size(market)
        return self._known[market]

    def _stamp(self) -> Any:
        return self._arrow.timestamp("ns", "UTC")

    def _as_times(self, times_ns: NDArray[np.uint64]) -> Any:
        """Return times; 0 is that of an event that has none."""
        numbers = np.ascontiguousarray(times_ns).astype(np.int64)
        return self._arrow.array(numbers, mask=numbers == 0).cast(self._stamp())


def bar_schema() -> Any:
    """Return the columns of a table of bars."""
    arrow = needed_pyarrow()
    times = [arrow.field(f"{end}_time", arrow.timestamp("ns", "UTC")) for end in ("start", "end")]
    fields = [
        arrow.field(name, arrow.from_numpy_dtype(BAR_COLUMNS[name])) for name in BAR_COLUMNS.names or ()
    ]
    return arrow.schema([arrow.field("symbol", arrow.string()), *times, *fields])


def bar_batch(symbol: str, bars: NDArray[np.void]) -> Any:
    """Return bars of one symbol as rows of `bar_schema`."""
    arrow, schema = needed_pyarrow(), bar_schema()
    arrays = [arrow.repeat(arrow.scalar(symbol), len(bars))]
    for name in ("start_ts_ns", "end_ts_ns"):
        arrays.append(arrow.array(bars[name].astype(np.int64)).cast(schema.field(name[:-5] + "time").type))
    arrays += [arrow.array(np.ascontiguousarray(bars[name])) for name in bars.dtype.names or ()]
    return arrow.RecordBatch.from_arrays(arrays, schema=schema)


class TableFile:
    """A file of rows, complete or not there; its name says in which format."""

    def __init__(self, path: str, schema: Any) -> None:
        needed_pyarrow()
        from everlog.market.tables import FILE_KINDS, table_writer

        ending = os.path.splitext(path)[1]
        if ending not in FILE_KINDS:
            raise InvalidConfig(f"{path!r} ends with {ending!r}; tables end with {', '.join(FILE_KINDS)}")
        self._path = path
        temporary = path + _UNFINISHED
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        self._writer = table_writer(temporary, ending, schema)

    def write(self, batch: Any) -> None:
        """Add rows, a batch or a table of them."""
        if batch.num_rows:
            self._writer.write(batch)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the file in place, or remove it if its rows are not whole."""
        temporary = self._path + _UNFINISHED
        try:
            self._writer.close()
            if error is None:
                with open(temporary, "rb+") as file:
                    os.fsync(file.fileno())
                os.replace(temporary, self._path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
