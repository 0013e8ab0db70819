"""Books and features rebuilt from the queue on this machine, to be held against the venue and the lake.

Owns the comparison of books; the books and formulas are those of `everlog.market`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from everlog.market import BookSet, BookSettings, Market, Outputs
from everlog.market.feature_rows import standard_features
from everlog.market.protocol import BookMode, TypeId
from everlog.market.replay import Replay
from everlog.market.triggers import TimeBar
from examples.demo.accounts import Account
from examples.demo.lake_files import FEATURE_DEPTH, FEATURE_INTERVAL_NS
from examples.demo.tables import Array

LEVELS_MAX = 5000


def book_settings(mode: BookMode) -> BookSettings:
    """Return settings for books of one kind from a queue that carries both; a gap ends the replay."""
    return BookSettings(mode=mode, other_modes="skip")


def rebuilt_books(queue: Path, mode: BookMode) -> BookSet:
    """Replay the whole queue into books of one kind."""
    books = BookSet(book_settings(mode))
    for some in Replay(str(queue)).types(TypeId.BOOK_EVENT).batches():
        books.apply_packed(some.packed, Outputs(top=False))
    return books


def book_account(queue: Path, mode: BookMode, truth: Mapping[str, Any]) -> Account:
    """Compare every level of every rebuilt book with what the venue itself holds at the end."""
    books = {market.market_id: book for market, book in rebuilt_books(queue, mode).books.items()}
    expected = equal = surplus = 0
    for told in truth["books"]:
        book = books.get(told["market_id"])
        sides: tuple[Any, Any] = ((), ()) if book is None else book.depth(LEVELS_MAX)
        for side, levels in zip(("bids", "asks"), sides, strict=True):
            wanted = dict(told[side])
            found = {int(level["price"]): int(level["size"]) for level in levels}
            expected += len(wanted)
            equal += sum(found.get(price) == size for price, size in wanted.items())
            surplus += len(found.keys() - wanted.keys())
    kind = "L3" if mode is BookMode.L3 else "L2"
    how = "price and size of each level, as the venue has it"
    different = expected - equal + surplus
    return Account("books", f"{kind} replay to book", expected, equal, 0, 0, 0, different, how)


def local_features(queue: Path) -> dict[Market, Array]:
    """Compute the features of every market without Spark."""
    rows: dict[Market, list[Array]] = {}
    replay = Replay(str(queue)).features(standard_features(FEATURE_DEPTH), book_settings(BookMode.L2))
    for some in replay.trigger(TimeBar(FEATURE_INTERVAL_NS)).tables():
        rows.setdefault(some.market, []).append(some.rows.copy())
    return {market: np.concatenate(parts) for market, parts in rows.items()}
