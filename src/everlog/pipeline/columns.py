"""Columns of the Spark formats: their types in Spark and in Arrow, and the check of a user's schema.

Owns no column itself; each format has its own table of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.types import StructType

from everlog.errors import InvalidConfig


class Column(NamedTuple):
    """The type of a column, as Spark spells it and as Arrow has it; Spark compares the two strictly."""

    spark: str
    arrow: pa.DataType


def spark_schema(columns: Mapping[str, Column], names: Iterable[str]) -> str:
    """Return the schema of these columns as Spark spells it."""
    return ", ".join(f"{name} {columns[name].spark}" for name in names)


def arrow_schema(columns: Mapping[str, Column], names: Iterable[str]) -> pa.Schema:
    """Return the schema of these columns for Arrow batches."""
    return pa.schema([pa.field(name, columns[name].arrow) for name in names])


def check_schema(columns: Mapping[str, Column], schema: StructType, of: str) -> tuple[str, ...]:
    """Return the names in a schema that a user may have given; refuse unknown names and other types."""
    for field in schema.fields:
        if field.name not in columns:
            raise InvalidConfig(f"{of} has no column {field.name!r}; it has {', '.join(columns)}")
        expected, given = columns[field.name].spark, field.dataType.simpleString()
        if given != expected:
            raise InvalidConfig(f"column {field.name!r} of {of} is {expected}, not {given}")
    return tuple(field.name for field in schema.fields)
