"""What one run of the demonstration is asked to do, and what is known about it besides its queues.

Owns values only; nothing here starts or reads anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from examples.demo.accounts import Account

RATE_PER_SYMBOL = 1000.0
RATE_MAX = 8000.0
"""Changes of orders per second; every process of the chain is one Python process on shared cores."""


@dataclass(frozen=True)
class Plan:
    """How long, how many markets, how fast, whether Spark takes part, and whether the server stays."""

    seconds: float = 15.0
    symbols: int = 4
    rate_per_s: float = 4 * RATE_PER_SYMBOL
    with_spark: bool = True
    is_served: bool = False


@dataclass(frozen=True)
class Kill:
    """One SIGKILL: who, when, and when it was started again.

    `committed_seq` is the first message that a killed strategy had not committed.
    """

    who: str
    pid: int
    killed_ns: int
    restarted_ns: int
    committed_seq: int | None = None


@dataclass(frozen=True)
class Stage:
    """A part of the run and how long it took."""

    name: str
    seconds: float
    result: str = ""


@dataclass
class Outcome:
    """What happened, as the one who started everything saw it; the audit asks the data instead."""

    kills: list[Kill] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    topics: dict[str, Any] = field(default_factory=dict)
    lake: dict[str, Any] | None = None
    live_accounts: list[Account] = field(default_factory=list)

    def kill_of(self, who: str) -> Kill | None:
        """Return the kill of a process, None if it was let live."""
        return next((kill for kill in self.kills if kill.who == who), None)
