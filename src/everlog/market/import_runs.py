"""Runs of a queue within which receive times rise: files may be imported in any order.

Owns what the ledger of imports says about the order of a queue. A queue without imports, and one whose files
came in the order of time, is one run. Reads no messages.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

from everlog.fs import OsFs
from everlog.market.ledger import Ledger, LedgerEntry

NO_SEQ: Final = 2**64
_LATEST_NS: Final = 2**64 - 1


class ImportRun(NamedTuple):
    """Messages `first <= seq < end` of a queue; the last run has no end."""

    first: int
    end: int
    min_ns: int
    max_ns: int
    rises: bool
    """Whether times rise: not if the import allowed rows out of order."""

    def may_hold(self, first_ns: int, last_ns: int) -> bool:
        """Whether messages of these times, both inclusive, may be in the run."""
        return self.min_ns <= last_ns and first_ns <= self.max_ns


WHOLE: Final = ImportRun(0, NO_SEQ, 0, _LATEST_NS, rises=True)


def import_runs(path: str) -> Sequence[ImportRun]:
    """Return the runs of the queue at a path, in its order; they hold all messages."""
    entries = [one for one in Ledger(OsFs(), path).all_finished() if one.min_ts_ns is not None]
    runs: list[ImportRun] = []
    for entry, behind in itertools.zip_longest(entries, entries[1:]):
        run = _run_of(entry, behind)
        last = runs[-1] if runs else None
        if last is not None and last.rises and run.rises and last.max_ns <= run.min_ns:
            runs[-1] = last._replace(end=run.end, max_ns=run.max_ns)
        else:
            runs.append(run)
    if not runs:
        return (WHOLE,)
    if len(runs) == 1:
        return (WHOLE._replace(rises=runs[0].rises),)
    # What another writer has put before the first import has times that the ledger does not know.
    return (runs[0]._replace(first=0, min_ns=0), *runs[1:])


def _run_of(entry: LedgerEntry, behind: LedgerEntry | None) -> ImportRun:
    """Return the messages of an import and those behind it, which another writer has put there later."""
    assert entry.min_ts_ns is not None and entry.max_ts_ns is not None, "imports without events are left out"
    end = NO_SEQ if behind is None else behind.first_seq
    max_ns = entry.max_ts_ns if end == entry.end_seq else _LATEST_NS
    rises = not entry.options.get("allow_unordered", False)
    return ImportRun(entry.first_seq, end, entry.min_ts_ns, max_ns, rises)
