"""How often the machine takes its cores away: a loop on each of them that does nothing but read the clock.

Owns this measurement, which belongs to no contender. It says how low the p99 of any of them can be: no
message is in the hands of a receiver that is not running.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from benchmarks.queue.measures import Bench
from benchmarks.queue.stats import NS_PER_S, NS_PER_US, median

LOOKS = 5
LOOK_S = 0.5
# The loop itself takes a tenth of that.
GAP_NS_MIN = 1_000
PERCENT_LATE = 1.0


@contextmanager
def clock_reader(duration_s: float) -> Iterator[Callable[[], array[int]]]:
    """Read the clock again and again; the result is how long each gap between two readings was."""
    yield lambda: _gaps_ns(int(duration_s * NS_PER_S))


def _gaps_ns(duration_ns: int) -> array[int]:
    clock = time.monotonic_ns
    gaps = array("q")
    last_ns = clock()
    end_ns = last_ns + duration_ns
    while last_ns < end_ns:
        now_ns = clock()
        if now_ns - last_ns >= GAP_NS_MIN:
            gaps.append(now_ns - last_ns)
        last_ns = now_ns
    return gaps


def late_ns(gaps_ns: NDArray[np.int64], duration_ns: float, percent: float) -> float:
    """How late at least the latest `percent` of messages are that need no time at all.

    A message that comes at some moment of a gap waits for what is left of the gap.
    """
    low, high = 0.0, float(gaps_ns.max(initial=0))
    while high - low >= 1.0:
        middle = (low + high) / 2
        if np.maximum(gaps_ns - middle, 0).sum() * 100 > percent * duration_ns:
            low = middle
        else:
            high = middle
    return high


def interruptions(bench: Bench) -> str:
    """Look at both cores at once, as everything else uses both, and say what the median look saw."""
    looks = [bench.pair((clock_reader, LOOK_S), (clock_reader, LOOK_S)) for _ in range(LOOKS)]
    duration_ns = LOOK_S * NS_PER_S
    lost = median(sum(map(sum, look)) / (2 * duration_ns) for look in looks)
    gaps_per_s = median(sum(map(len, look)) / (2 * LOOK_S) for look in looks)
    late = median(late_ns(np.asarray(receiver), duration_ns, PERCENT_LATE) for _, receiver in looks)
    return (
        f"a loop that only reads the clock loses {100 * lost:.1f} % of its time in {gaps_per_s:.0f} gaps "
        f"a second of 1 us or more; p99 of a message that needs no time at all: {late / NS_PER_US:.2f} us"
    )
