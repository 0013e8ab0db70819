"""Parquet files of features: one per day and market, complete or not there.

Owns the files below one directory; the rows come from a replay.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from everlog.errors import InvalidConfig, Unsupported
from everlog.market.book_set import Market

NS_PER_DAY: Final = 86_400_000_000_000
S_PER_DAY: Final = 86_400
OPEN_FILES_MAX: Final = 512
_UNFINISHED: Final = ".tmp"

Key = tuple[int, Market]


class FeatureFiles:
    """Writes rows to the file of their day and market; renames all files into place at the end."""

    def __init__(self, directory: str, dtype: np.dtype[np.void], names: Callable[[Market], str]) -> None:
        if "ingest_ts_ns" not in (dtype.names or ()):
            raise InvalidConfig("files are kept by day: the features must have GlobalTime among them")
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise Unsupported(
                f"writing Parquet needs pyarrow, which is not installed ({error}): pip install pyarrow"
            ) from None
        self._arrow: Any = pyarrow
        self._parquet: Any = pyarrow.parquet
        self._directory = directory
        self._names = names
        self._writers: dict[Key, Any] = {}
        self._paths: dict[Key, str] = {}

    def write(self, market: Market, rows: npt.NDArray[np.void]) -> None:
        """Add rows of one market, which may span days."""
        days = rows["ingest_ts_ns"] // np.uint64(NS_PER_DAY)
        for day in np.unique(days).tolist():
            of_day = rows[days == day]
            columns = {name: np.ascontiguousarray(of_day[name]) for name in of_day.dtype.names or ()}
            self._writer((day, market), columns).write_table(self._arrow.table(columns))

    def _writer(self, key: Key, columns: dict[str, npt.NDArray[Any]]) -> Any:
        writer = self._writers.get(key)
        if writer is None:
            if len(self._writers) >= OPEN_FILES_MAX:
                raise Unsupported(
                    f"more than {OPEN_FILES_MAX} days and markets in one run; replay fewer at a time"
                )
            path = self._path(key)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            schema = self._arrow.table({name: column[:0] for name, column in columns.items()}).schema
            writer = self._parquet.ParquetWriter(path + _UNFINISHED, schema, compression="zstd")
            self._writers[key], self._paths[key] = writer, path
        return writer

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
        for writer in self._writers.values():
            writer.close()
        for path in self._paths.values():
            if error is not None:
                with suppress(FileNotFoundError):
                    os.unlink(path + _UNFINISHED)
                continue
            with open(path + _UNFINISHED, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(path + _UNFINISHED, path)
