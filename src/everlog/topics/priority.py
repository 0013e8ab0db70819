"""Effective priority: the operator's number, or how recently a topic was consumed.

Owns the formula, in integers: the powers of two come from a table, so equal times give equal
priorities on every machine.
"""

from __future__ import annotations

from typing import Final

MANUAL_LIMIT: Final = 1000
AUTO_MAX: Final = 500
HALF_LIFE_MS: Final = 30_000
AUTO_FLOOR_MS: Final = 300_000
STEPS: Final = 64  # table entries for one half-life
FRACTION_BITS: Final = 16

# round(2 ** -(i / STEPS) * 2 ** FRACTION_BITS) for i in 0..STEPS
_HALVING: Final = tuple(round(2 ** (-step / STEPS) * (1 << FRACTION_BITS)) for step in range(STEPS + 1))


def recency(idle_ms: int) -> int:
    """Return the bonus of a topic that was consumed `idle_ms` ago: 500, halved every 30 s, 0 after 5 min."""
    idle_ms = max(0, idle_ms)
    if idle_ms >= AUTO_FLOOR_MS:
        return 0
    halvings, rest_ms = divmod(idle_ms, HALF_LIFE_MS)
    factor = _HALVING[rest_ms * STEPS // HALF_LIFE_MS] >> halvings
    return (AUTO_MAX * factor + (1 << (FRACTION_BITS - 1))) >> FRACTION_BITS


def effective_priority(priority: int | None, auto: bool, idle_ms: int | None) -> int:
    """Combine the two; `idle_ms` is None for a topic that nobody has consumed yet."""
    if priority is not None:
        return max(-MANUAL_LIMIT, min(MANUAL_LIMIT, priority))
    return recency(idle_ms) if auto and idle_ms is not None else 0
