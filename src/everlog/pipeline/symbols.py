"""The table `dim_symbol` of a lake: the symbol catalogue as Delta, for Spark and SQL.

Owns the table's columns and how it is brought up to date. What a row means is known to
`everlog.market.symbols`, whose `add_names` gives Arrow batches in tasks their names. Needs no Spark session.

    catalogue = read_dim_symbol(lake)           # SymbolCatalogue, to be handed to tasks
    update_dim_symbol(lake, definitions)        # one transaction, none if nothing changes
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from everlog.market.symbol_sources import gather_symbols
from everlog.market.symbols import (
    FOREVER,
    RefreshedCatalogue,
    SymbolCatalogue,
    SymbolDefinition,
    SymbolVersion,
    load_nearby,
)
from everlog.pipeline.lake import LakeTable
from everlog.pipeline.lake_files import write_files
from everlog.pipeline.lake_places import LakePlace
from everlog.pipeline.tables.schemas import INSTRUMENTS

TABLE: Final = INSTRUMENTS.name
APPLICATION: Final = "symbols"
SCHEMA: Final = INSTRUMENTS.arrow


def read_dim_symbol(
    lake: str | os.PathLike[str] | LakePlace, table: str = TABLE, version: int | None = None
) -> SymbolCatalogue:
    """Return the catalogue in a lake, now or as of a version of the table; empty if there is no table."""
    found = LakeTable(lake, table).open(version)
    return SymbolCatalogue() if found is None else SymbolCatalogue(found.to_pyarrow_table().to_pylist())


def catalogue_of(lake: str | os.PathLike[str] | LakePlace, queue: str) -> SymbolCatalogue:
    """Return what a lake knows of symbols, completed by what is beside a queue and in its bus."""
    return read_dim_symbol(lake).completed_by(load_nearby(queue))


def refreshed_dim_symbol(
    lake: str | os.PathLike[str] | LakePlace, interval_ns: int, now_ns: int, table: str = TABLE
) -> RefreshedCatalogue:
    """Return the catalogue of a lake that is read again now and then; if that fails the old copy stays."""
    return RefreshedCatalogue(lambda: read_dim_symbol(lake, table), interval_ns, now_ns)


def update_dim_symbol(
    lake: str | os.PathLike[str] | LakePlace,
    definitions: Iterable[SymbolDefinition],
    at_ts: int = 0,
    table: str = TABLE,
) -> int:
    """Take in definitions, in one transaction; return how many versions are new or changed."""
    catalogue = read_dim_symbol(lake, table)
    changed = catalogue.record(definitions, at_ts)
    if changed:
        _write(LakeTable(lake, table), catalogue)
    return changed


def refresh_dim_symbol(
    lake: str | os.PathLike[str] | LakePlace,
    sources: Sequence[str],
    table: str = TABLE,
    on_failure: Callable[[str, Exception], None] | None = None,
) -> int:
    """Take in what queues, buses and archives know; return how many versions are new or changed.

    With `on_failure` what cannot be read or written is passed to it and the others go on: what the table has
    stays.
    """
    definitions: list[SymbolDefinition] = []
    for source in sources:
        try:
            catalogue = gather_symbols(source)
        except Exception as error:
            if on_failure is None:
                raise
            on_failure(source, error)
            continue
        definitions += catalogue.definitions()
    try:
        return update_dim_symbol(lake, definitions, table=table)
    except Exception as error:
        if on_failure is None:
            raise
        on_failure(LakePlace.of(lake).path, error)
        return 0


def _write(table: LakeTable, catalogue: SymbolCatalogue) -> None:
    """Replace the rows of the table."""
    rows = [_row(version) for version in catalogue.versions]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    written = [
        {**row, "partition_values": dict(row["partition_values"] or ())}
        for described in write_files(iter([batch]), table.place, ())
        for row in described.to_pylist()
    ]
    number = (table.committed_batch(APPLICATION) or 0) + 1
    table.commit(written, SCHEMA, APPLICATION, number, replace=True)


def _row(version: SymbolVersion) -> dict[str, Any]:
    ends = None if version.valid_until_ts == FOREVER else version.valid_until_ts
    row: dict[str, Any] = msgspec.to_builtins(version)
    return {**row, "valid_from": version.valid_from_ts, "valid_until": ends}
