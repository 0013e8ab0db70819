"""Parquet files of features: one per day and market, complete or not there.

Owns the files below one directory; the rows come from a replay.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from everlog.clock import NS_PER_DAY
from everlog.errors import InvalidConfig, Unsupported
from everlog.market.book_set import Market
from everlog.market.feature_table import TableFile, needed_pyarrow

S_PER_DAY: Final = 86_400
OPEN_FILES_MAX: Final = 512

Key = tuple[int, Market]


class FeatureFiles:
    """Writes rows to the file of their day and market; renames all files into place at the end."""

    def __init__(self, directory: str, dtype: np.dtype[np.void], names: Callable[[Market], str]) -> None:
        if "ingest_ts_ns" not in (dtype.names or ()):
            raise InvalidConfig("files are kept by day: the features must have GlobalTime among them")
        self._arrow: Any = needed_pyarrow()
        self._directory = directory
        self._names = names
        self._files: dict[Key, TableFile] = {}

    def write(self, market: Market, rows: npt.NDArray[np.void]) -> None:
        """Add rows of one market, which may span days."""
        days = rows["ingest_ts_ns"] // np.uint64(NS_PER_DAY)
        for day in np.unique(days).tolist():
            of_day = rows[days == day]
            columns = {name: np.ascontiguousarray(of_day[name]) for name in of_day.dtype.names or ()}
            table = self._arrow.table(columns)
            self._file((day, market), table.schema).write(table)

    def _file(self, key: Key, schema: Any) -> TableFile:
        if key not in self._files:
            if len(self._files) >= OPEN_FILES_MAX:
                raise Unsupported(
                    f"more than {OPEN_FILES_MAX} days and markets in one run; replay fewer at a time"
                )
            self._files[key] = TableFile(self._path(key), schema)
        return self._files[key]

    def _path(self, key: Key) -> str:
        day, market = key
        date = datetime.fromtimestamp(day * S_PER_DAY, UTC).date().isoformat()
        return os.path.join(
            self._directory, f"date={date}", f"symbol={self._names(market)}", "features.parquet"
        )

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the files in place, or remove what is unfinished if the replay failed."""
        for file in self._files.values():
            file.__exit__(kind, error, trace)
