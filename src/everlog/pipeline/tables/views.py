"""The tables of a lake as views of SQL: what analysts query, without the bookkeeping of the archive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import SparkSession

from everlog.errors import InvalidConfig
from everlog.pipeline.lake import LakeTable
from everlog.pipeline.lake_places import LakePlace
from everlog.pipeline.sources.lake import NAME
from everlog.pipeline.symbols import TABLE as DIM_SYMBOL
from everlog.pipeline.tables.schemas import GAPS as GAP_TABLE
from everlog.pipeline.tables.schemas import SCHEMAS

DECODED: Final = tuple(SCHEMAS)
GAPS: Final = GAP_TABLE.name
INSTRUMENTS: Final = "instruments"
GAP_COLUMNS: Final = tuple(one.name for one in GAP_TABLE.columns[1:])
"""Of a row of `gaps`, behind the name of the table that it is from."""


def create_views(
    spark: SparkSession, lake: str, tables: Sequence[str] = DECODED, *, prefix: str = ""
) -> list[str]:
    """Make a temporary view of each table that the lake has; return their names.

    A view has the records of its table as it is now; call this again for what is committed later. The view
    `gaps` has the seqs that were lost before they could be archived, of all these tables, `instruments` the
    symbol catalogue.
    """
    place = LakePlace.of(lake)
    made, gaps = [], []
    for name in tables:
        columns = LakeTable(place, name).columns()
        if columns is None:
            continue
        has_gaps = {"kind", *GAP_COLUMNS} <= set(columns)
        options = {"lake": place.path, "table": name}
        _create(spark, f"{prefix}{name}", {**options, "rows": "records"} if has_gaps else options)
        made.append(f"{prefix}{name}")
        if has_gaps:
            lost = f"{prefix}{name}_{GAPS}"
            _create(spark, lost, {**options, "rows": "gaps", "columns": ",".join(GAP_COLUMNS)})
            gaps.append(f"SELECT '{name}' AS table, {', '.join(GAP_COLUMNS)} FROM `{lost}`")
    if not made:
        raise InvalidConfig(
            f"{place.path} has none of the tables {', '.join(tables)}; run a job that fills them"
        )
    if gaps:
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW `{prefix}{GAPS}` AS {' UNION ALL '.join(gaps)}")
        made.append(f"{prefix}{GAPS}")
    if tables is DECODED and LakeTable(place, DIM_SYMBOL).open() is not None:
        _create(spark, f"{prefix}{INSTRUMENTS}", {"lake": place.path, "table": DIM_SYMBOL})
        made.append(f"{prefix}{INSTRUMENTS}")
    return made


def _create(spark: SparkSession, name: str, options: dict[str, str]) -> None:
    if any("`" in text or "'" in text for text in (name, *options.values())):
        raise InvalidConfig(f"a view of {options['lake']} cannot be made: a quote is in the path or a name")
    given = ", ".join(f"{key} '{text}'" for key, text in options.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW `{name}` USING {NAME} OPTIONS ({given})")
