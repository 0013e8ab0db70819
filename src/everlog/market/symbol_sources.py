"""What the queues below a directory know of symbols, put together in one catalogue.

Owns where names come from besides the importer or feed itself: ledgers of imports, and catalogues of queues.
"""

from __future__ import annotations

import os

from everlog.fs import Fs, OsFs
from everlog.market.ledger import Ledger, LedgerEntry
from everlog.market.symbols import (
    NS_PER_US,
    SymbolCatalogue,
    SymbolDefinition,
    changing_symbols,
    load_symbols,
)
from everlog.market.venues.interface import MULTI
from everlog.queue.inspect import find_queues


def refresh_symbols(directory: str, fs: Fs | None = None) -> tuple[int, SymbolCatalogue]:
    """Bring the catalogue in a directory up to date; return how many versions changed, and all of them.

    Nothing is written before everything was read, so an error leaves the catalogue as it was.
    """
    with changing_symbols(directory, fs) as catalogue:
        before = set(catalogue.versions)
        catalogue.versions = gather_symbols(directory, fs).versions
    return len(set(catalogue.versions) - before), catalogue


def gather_symbols(directory: str, fs: Fs | None = None) -> SymbolCatalogue:
    """Return what a directory and the queues below it know; nothing is written."""
    fs = fs or OsFs()
    top = os.path.abspath(directory)
    catalogue = load_symbols(top, fs)
    definitions: list[SymbolDefinition] = []
    for queue in find_queues(fs, top).paths:
        definitions += ledger_definitions(queue, fs)
        if queue != top:
            definitions += load_symbols(queue, fs).definitions()
    # In the order of time: a deletion closes what is known, whichever file was imported first.
    catalogue.record(sorted(definitions, key=lambda one: one.at_ts or 0), 0)
    return catalogue


def ledger_definitions(queue: str, fs: Fs) -> list[SymbolDefinition]:
    """Return the symbols that the imports of a queue name."""
    return [one for entry in Ledger(fs, queue).all_finished() for one in _definitions_in(entry)]


def _definitions_in(entry: LedgerEntry) -> list[SymbolDefinition]:
    """Return the symbols of an import; earlier releases noted the name of a single one only."""
    if entry.symbols or entry.symbol in ("", MULTI) or entry.min_ts_ns is None:
        return entry.symbols
    at_ts = entry.min_ts_ns // NS_PER_US
    return [SymbolDefinition(exchange=entry.venue, exchange_symbol=entry.symbol, at_ts=at_ts)]
