"""Overload control: from three signals to a pressure, and from that to four rungs.

Owns the arithmetic and the hysteresis. Pure and in integers: it reads no clock, and equal samples give equal
decisions. Nothing here can lose, reorder or refuse a record that was accepted; it only makes things later.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

SAMPLE_NS: Final = 100_000_000
FULL: Final = 1000
"""Pressure and signals are counted in thousandths."""
LATENCY_CEILING_NS: Final = 5_000_000
DEPTH_CEILING: Final = 512
"""So many topics are about five milliseconds of work for the one thread that serves them."""
WAITING_SHARE: Final = 800
BUSY_SHARE: Final = FULL - WAITING_SHARE

COALESCE_MAX_NS: Final = 20_000_000
COMMIT_MIN_NS: Final = 500_000
COMMIT_MAX_NS: Final = 10_000_000
RETRY_STEP_MS: Final = 100
RETRY_MAX_MS: Final = 1000


class Rung(IntEnum):
    """The measures against overload, the cheapest first."""

    COALESCE = 0
    """Several writes are delivered to watchers at once."""
    COMMIT = 1
    """More writers share a sync."""
    DEFER = 2
    """Routers give way to readers, and topics with a negative priority are not pushed."""
    REFUSE = 3
    """Writes are refused while the queue of the log is nearly full."""


class Step(NamedTuple):
    """When a rung is taken and left: above and below these pressures, after so many samples in a row."""

    engage_above: int
    release_below: int
    samples: int = 1


LADDER: Final = (Step(200, 100), Step(400, 300), Step(800, 600, 3), Step(900, 700, 3))


@dataclass(slots=True)
class Signals:
    """What was seen since the last sample."""

    depth: int = 0
    """Turns that are ready and were not served."""
    latency_total_ns: int = 0
    """From commit to service, of all that were served."""
    served: int = 0
    oldest_ns: int = 0
    """How long the oldest work has been waiting."""
    ingest: int = 0
    """How full the fullest queue of the log is, in thousandths."""
    busy_ns: int = 0
    elapsed_ns: int = 0


class Governor:
    """The pressure, and the rungs that are taken because of it."""

    def __init__(self) -> None:
        self.pressure = 0
        """In thousandths."""
        self.latency_ns = 0
        """Moving average of the time from a change to its service."""
        self.busy = 0
        """Share of the time in which the serving thread had work, in thousandths."""
        self.samples = 0
        self.engaged = [False] * len(LADDER)
        self.engagements = [0] * len(LADDER)
        """How often each rung was taken."""
        self._above = [0] * len(LADDER)
        self._refusing_samples = 0

    def sample(self, signals: Signals) -> None:
        """Take what was seen in the last 100 ms or so, and decide."""
        self.samples += 1
        seen_ns = signals.latency_total_ns // signals.served if signals.served else 0
        self.latency_ns = (self.latency_ns + max(seen_ns, signals.oldest_ns)) // 2
        self.busy = min(FULL, signals.busy_ns * FULL // max(signals.elapsed_ns, 1))
        waiting = max(
            min(FULL, signals.depth * FULL // DEPTH_CEILING),
            min(FULL, self.latency_ns * FULL // LATENCY_CEILING_NS),
            min(FULL, signals.ingest),
        )
        target = (waiting * WAITING_SHARE + self.busy * BUSY_SHARE) // FULL
        # Half of the way with each sample, rounded towards the target so that it gets there.
        self.pressure += (target - self.pressure + (target > self.pressure)) // 2
        for rung, step in enumerate(LADDER):
            self._decide(rung, step)
        refuses = self.engaged[Rung.REFUSE]
        self._refusing_samples = self._refusing_samples + 1 if refuses else 0

    def _decide(self, rung: int, step: Step) -> None:
        pressure = self.pressure
        self._above[rung] = self._above[rung] + 1 if pressure > step.engage_above else 0
        if self.engaged[rung]:
            self.engaged[rung] = pressure >= step.release_below
        elif self._above[rung] >= step.samples:
            self.engaged[rung] = True
            self.engagements[rung] += 1

    @property
    def is_calm(self) -> bool:
        """Whether another sample of nothing would change nothing."""
        return self.pressure == 0 and self.latency_ns == 0 and not any(self.engaged)

    @property
    def coalesce_ns(self) -> int:
        """How far apart two services of one topic are at least."""
        if not self.engaged[Rung.COALESCE]:
            return 0
        over = max(0, self.pressure - LADDER[Rung.COALESCE].engage_above)
        return COALESCE_MAX_NS * over // (FULL - LADDER[Rung.COALESCE].engage_above)

    @property
    def commit_floor_ns(self) -> int:
        """How far apart two syncs of one shard are at least; the smallest window if nothing is wrong."""
        if not self.engaged[Rung.COMMIT]:
            return COMMIT_MIN_NS
        return COMMIT_MIN_NS + (COMMIT_MAX_NS - COMMIT_MIN_NS) * self.pressure // FULL

    @property
    def is_deferring(self) -> bool:
        """Whether routers are lowered and B0 is paused."""
        return self.engaged[Rung.DEFER]

    @property
    def is_refusing(self) -> bool:
        """Whether a write may be refused if the queue of its shard is nearly full."""
        return self.engaged[Rung.REFUSE]

    @property
    def retry_after_ms(self) -> int:
        """When a refused writer should try again: the later, the longer this lasts."""
        return min(RETRY_STEP_MS * max(self._refusing_samples, 1), RETRY_MAX_MS)
