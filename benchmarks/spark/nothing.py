"""A sink that takes rows and drops them: what Spark's hand-over to a sink in Python costs by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType


class NothingFormat(DataSource):
    """The format `nothing`, for writing only."""

    @classmethod
    def name(cls) -> str:
        """Return the name that a write asks for."""
        return "nothing"

    def writer(self, schema: StructType, overwrite: bool) -> NothingWriter:
        """Return what tasks run."""
        return NothingWriter()


class NothingWriter(DataSourceArrowWriter):
    """Reads its rows, and keeps none."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Take the rows of one task."""
        for _ in iterator:
            pass
        return WriterCommitMessage()
