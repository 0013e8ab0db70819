"""The page on the tables of a lake: columns, types and meanings, as the code has them."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from everlog.pipeline.tables.schemas import (
    DEPTH,
    FAULTS,
    FEATURES,
    GAPS,
    INSTRUMENTS,
    SCHEMAS,
    TableSchema,
)
from tools.reference_pages.markdown import MADE_BY, code, table

_OPENING: Final = f"""# Tables of a lake

{MADE_BY}

The tables that [import](../guide/jobs/import.md) and [archive with `--decode`](../guide/jobs/archive.md)
fill with events (`trades`, `quotes`, `book_l2`, `orders_l3`, `bars`), and those that
[replay](../guide/jobs/replay.md) and [features](../guide/jobs/features.md) compute of them (`quotes`,
`quotes_depth`, `quotes_report`, `features`, `bars`), made from the code that writes them.
[Querying a lake](../guide/querying-a-lake.md) shows how to read them; names and tick sizes come from the
[symbol catalogue](../guide/symbols.md), the table `dim_symbol`, which views of SQL call `instruments`.
"""
_RULES: Final = """## How tables change

* A column that a later version adds appears with the next commit and is null in older rows.
* A column never changes its type or its meaning. A job that would write another type is refused, names the
  column, and writes nothing.
* A job that would leave columns of a table empty and fill others is refused: it is of another decoding, or of
  a version before these tables. Archive to a new table.
* All columns are nullable. Partitions of a table stay as its first commit made them.
* A table that holds one whole run of `replay` or `features` is replaced with its columns and partitions, also
  when an earlier version made it; what it was stays readable as a version of the table.
"""


def lake_tables_page() -> str:
    """Return the page."""
    tables = [*SCHEMAS.values(), DEPTH, FAULTS, INSTRUMENTS, GAPS]
    return "\n".join([_OPENING, *map(_section, tables), _RULES])


def _section(schema: TableSchema) -> str:
    rows = [(code(one.name), _type(one.type), one.meaning) for one in schema.columns]
    by = ", ".join(map(code, schema.partition_by))
    partitions = f" Partitioned by {by}." if by else ""
    added = " The features that were chosen follow the times." if schema is FEATURES else ""
    return f"## {schema.name}\n\nA row is {schema.row}.{partitions}{added}\n\n" + table(
        ("Column", "Type", "Meaning"), rows
    )


def _type(kind: pa.DataType) -> str:
    """Return a type by the name that Spark and Delta have for it."""
    names = {pa.int64(): "long", pa.int32(): "int", pa.float64(): "double", pa.date32(): "date"}
    if pa.types.is_timestamp(kind):
        return "timestamp, UTC"
    if pa.types.is_list(kind):
        fields = ", ".join(f"{field.name} {_type(field.type)}" for field in kind.value_type)
        return f"array of ({fields})"
    return names.get(kind, str(kind))
