"""What the server measured of itself in the last hour, so that a chart has a past when a page is opened.

Owns two rings of fixed size and the meaning of each number in them. A sample costs the same whatever the
server holds: it looks at counters, never at topics.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Final

from everlog.server.request_counts import BOUNDS_US
from everlog.topics.delivery.delivery import DeliveryCounts
from everlog.topics.results import EngineVitals
from everlog.topics.storage.wal import SYNC_MICROS_BOUNDS

NS_PER_S: Final = 1_000_000_000
FINE_STEP_MS: Final = 1000
FINE_COUNT: Final = 300
COARSE_STEP_MS: Final = 10_000
COARSE_COUNT: Final = 360
FINE_PER_COARSE: Final = COARSE_STEP_MS // FINE_STEP_MS

FIELDS: Final = (
    "time_ms",
    "records_per_s",
    "requests_per_s",
    "log_bytes_per_s",
    "syncs_per_s",
    "deliveries_per_s",
    "topics",
    "bytes_live",
    "connections",
    "queue_depth",
    "pressure",
    "busy",
    "rung",
    "sync_p50_ms",
    "sync_p99_ms",
    "delivery_p50_ms",
    "delivery_p99_ms",
    "loop_late_ms",
    "request_p50_ms",
    "request_p99_ms",
)
"""What a row holds, in this order. Rates are means over the step, latencies those of the step alone."""

_SUMMED: Final = frozenset(name for name in FIELDS if name.endswith("_per_s"))
_GAUGES: Final = frozenset({"time_ms", "topics", "bytes_live", "connections"})
_DELIVERY_BOUNDS: Final = tuple(1 << power for power in range(20))
MICROS_PER_MS: Final = 1000


class SampleRing:
    """The last rows, oldest first; a new one replaces the oldest."""

    def __init__(self, count_max: int, width: int) -> None:
        self._values = array("d", bytes(8 * count_max * width))
        self._count_max = count_max
        self._width = width
        self._added = 0

    def add(self, row: Sequence[float]) -> None:
        """Keep one more row."""
        at = self._added % self._count_max * self._width
        self._values[at : at + self._width] = array("d", row)
        self._added += 1

    def rows(self, after_ms: float = -1.0) -> list[list[float]]:
        """The rows whose first number is above `after_ms`."""
        kept = min(self._added, self._count_max)
        found = (self._row(number) for number in range(self._added - kept, self._added))
        return [row for row in found if row[0] > after_ms]

    def _row(self, number: int) -> list[float]:
        at = number % self._count_max * self._width
        return self._values[at : at + self._width].tolist()


class Sampler:
    """Makes a row each second; ten of them become one of the long ring."""

    def __init__(self) -> None:
        self.fine = SampleRing(FINE_COUNT, len(FIELDS))
        self.coarse = SampleRing(COARSE_COUNT, len(FIELDS))
        self._before: tuple[int, int, EngineVitals, DeliveryCounts, Sequence[int]] | None = None
        self._gathered: list[list[float]] = []

    def sample(
        self,
        time_ms: int,
        now_ns: int,
        requests: int,
        connections: int,
        vitals: EngineVitals,
        delivery: DeliveryCounts,
        late_ms: float = 0.0,
        latencies: Sequence[int] = (),
    ) -> None:
        """Look at the counters; the first look only remembers them. `latencies` are counts by `BOUNDS_US`."""
        before, self._before = self._before, (now_ns, requests, vitals, delivery, latencies)
        if before is None or now_ns <= before[0]:
            return
        then_ns, requests_then, earlier, delivered, latencies_then = before
        duration_s = (now_ns - then_ns) / NS_PER_S
        syncs = _difference(vitals.wal.fsync_micros_counts, earlier.wal.fsync_micros_counts)
        services = _difference(delivery.latency_buckets, delivered.latency_buckets)
        answers = _difference(latencies, latencies_then)
        row = [
            float(time_ms),
            (vitals.appended - earlier.appended) / duration_s,
            (requests - requests_then) / duration_s,
            (vitals.wal.bytes_written - earlier.wal.bytes_written) / duration_s,
            (vitals.wal.fsyncs - earlier.wal.fsyncs) / duration_s,
            (delivery.served - delivered.served) / duration_s,
            float(vitals.topics),
            float(vitals.bytes_live),
            float(connections),
            float(vitals.queue_depth),
            delivery.pressure,
            delivery.busy,
            float(sum(delivery.rungs)),
            *(quantile_ms(SYNC_MICROS_BOUNDS, syncs, share) for share in (0.5, 0.99)),
            *(quantile_ms(_DELIVERY_BOUNDS, services, share) for share in (0.5, 0.99)),
            late_ms,
            *(quantile_ms(BOUNDS_US, answers, share) for share in (0.5, 0.99)),
        ]
        self.fine.add(row)
        self._gathered.append(row)
        if len(self._gathered) == FINE_PER_COARSE:
            self.coarse.add(_together(self._gathered))
            self._gathered.clear()


def _difference(now: Sequence[int], before: Sequence[int]) -> list[int]:
    return [late - early for late, early in zip(now, before, strict=True)]


def quantile_ms(bounds_us: Sequence[float], counts: Sequence[int], share: float) -> float:
    """The bound below which this share of what was counted lies, in milliseconds; 0 if nothing was.

    The last count has no bound of its own; it is shown as the one before.
    """
    total = sum(counts)
    if not total:
        return 0.0
    seen = 0
    for bound, count in zip((*bounds_us, bounds_us[-1]), counts, strict=True):
        seen += count
        if seen >= share * total:
            return bound / MICROS_PER_MS
    return bounds_us[-1] / MICROS_PER_MS


def _together(rows: Sequence[Sequence[float]]) -> list[float]:
    """One row for several: rates as their mean, gauges as they were last, the worst of all else."""
    combine: dict[str, Callable[[Sequence[float]], float]] = {
        name: _mean if name in _SUMMED else _last if name in _GAUGES else max for name in FIELDS
    }
    columns = zip(*rows, strict=True)
    return [combine[name](column) for name, column in zip(FIELDS, columns, strict=True)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _last(values: Sequence[float]) -> float:
    return values[-1]
