"""What the book kernels' error numbers mean, as errors of everlog.

Owns the texts; the numbers are those of `book_ladder.h`. Called by the native modules only.
"""

from __future__ import annotations

from typing import Final

from everlog.errors import BookGap, Corrupt, EverlogError, LimitReached, Unsupported, UnsupportedVersion

_CORRUPT: Final = {
    -5: "its side is neither 1 (buy) nor 2 (sell)",
    -7: "its length is not what its header says",
    -10: "its event type is unknown",
    -13: "it adds an order with id 0",
    -14: "it names an order that is not in the book; open the book with unknown_orders='skip' to go on",
    -15: "it adds an order whose id is in the book already; open the book with unknown_orders='skip' to "
    "let the new one stand for the old one",
    -16: "the sizes of its level add up to more than 64 bits",
}
_UNSUPPORTED: Final = {
    -3: "at the book's scale a number needs more than 64 bits; use smaller scales",
    -4: "a scale is larger than 18",
    -9: "its book mode or byte order is not the one this book applies",
    -11: "it is a DELTA diff, and only ABSOLUTE diffs are defined",
}
_LIMITS: Final = {
    -2: ("max_levels", "the book has as many levels a side as it may"),
    -12: ("max_orders", "the book has as many orders as it may"),
}
_GAP: Final = -6
_VERSION: Final = -8
_NO_MEMORY: Final = -1


def book_error(number: int, index: int, seen: int, found: int, limit: int) -> EverlogError | MemoryError:
    """Return the error for a number the kernels returned for the event at `index`.

    `seen` and `found` are the two numbers of a gap, `found` also the version; `limit` is the bound
    that was reached.
    """
    event = f"event {index} was not applied: "
    if number in _CORRUPT:
        return Corrupt(event + _CORRUPT[number])
    if number in _UNSUPPORTED:
        return Unsupported(event + _UNSUPPORTED[number])
    if number in _LIMITS:
        name, text = _LIMITS[number]
        return LimitReached(f"{event}{text} ({limit}); raise {name}", name, limit)
    if number == _GAP:
        return BookGap(
            f"{event}number {found} follows {seen}, so something between was lost; rebuild the book from a "
            "snapshot, or choose gap policy quarantine or ignore",
            seen,
            found,
        )
    if number == _VERSION:
        return UnsupportedVersion(f"{event}its schema version is {found}, this build reads 3", found)
    return MemoryError(f"{event}no memory for the book")
