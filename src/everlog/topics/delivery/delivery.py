"""From a commit to those who wait for it: marks topics that have news, and serves them in good order.

Owns the ready set, the governor, and the time they are run by. Knows no topic and no connection: what it
serves is `Work`. All of it belongs to the thread that owns the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Final

import msgspec

from everlog.clock import Clock
from everlog.native.ready_set import BANDS, ReadySet, Work
from everlog.topics.delivery.governor import COMMIT_MIN_NS, SAMPLE_NS, Governor, Rung, Signals

BUDGET_NS: Final = 2_000_000
"""How long one turn serves; then whoever calls has other things to do."""
SERVICES_MAX: Final = 4096
"""The same where time stands still: work that makes news by being served must not keep a turn for ever."""
NS_PER_MS: Final = 1_000_000
NS_PER_US: Final = 1000
LATENCY_BUCKETS: Final = 21
"""Latencies are counted in powers of two of microseconds: at most 1, 2, 4, ... about half a second, more."""

Drain = Callable[[int], bool]
"""Finishes what a service has begun, up to a time; tells whether it is finished."""


class DeliveryCounts(msgspec.Struct, frozen=True):
    """What delivery has done and how it is, for metrics."""

    pressure: float = 0.0
    busy: float = 0.0
    latency_us: int = 0
    """Moving average of the time from news to service."""
    band_depths: tuple[int, ...] = (0,) * BANDS
    held: int = 0
    paused: int = 0
    served: int = 0
    latency_us_total: int = 0
    latency_buckets: tuple[int, ...] = (0,) * LATENCY_BUCKETS
    rungs: tuple[bool, ...] = (False,) * len(Rung)
    rungs_taken: tuple[int, ...] = (0,) * len(Rung)
    coalesce_ms: float = 0.0
    commit_floor_ms: float = 0.0
    refused: int = 0

    def cumulative_buckets(self) -> list[tuple[str, float]]:
        """The histogram as Prometheus counts."""
        bounds = [str(1 << power) for power in range(LATENCY_BUCKETS - 1)] + ["+Inf"]
        return list(zip(bounds, accumulate(map(float, self.latency_buckets)), strict=True))


class Delivery:
    """The ready set of an engine and the turns in which it is served."""

    def __init__(self, clock: Clock) -> None:
        self.scheduler = ReadySet(clock.monotonic_ns, clock.wall_ns)
        self.governor = Governor()
        self.is_refusing = False
        """Whether a write is refused if the queue of its shard is nearly full."""
        self.is_throttling = False
        """Whether anything is done later than it could be."""
        self.refused = 0
        """Writes that were refused because of pressure."""
        self.ingest: Callable[[], int] = lambda: 0
        """How full the queues of the log are, in thousandths."""
        self.is_serving = False
        self._clock = clock
        self._monotonic_ns = clock.monotonic_ns
        self._sampled_ns = clock.monotonic_ns()
        self._sampled_served = 0
        self._sampled_latency_ns = 0
        self._sampled_busy_ns = 0
        self._busy_ns: Callable[[], int] = lambda: 0
        self.commit_floor_ns = self.governor.commit_floor_ns
        """How far apart two syncs of one shard are to be at least."""

    @property
    def hold_ns(self) -> int:
        """How long the work that is being served was held back to gather more."""
        return self.scheduler.hold_ns

    # --- News --------------------------------------------------------------------------------------------

    def mark(self, work: Work, now_ms: int) -> None:
        """This work has news, as of this wall time; it is served in one of the next turns."""
        scheduler = self.scheduler
        scheduler.mark(work, self._monotonic_ns(), now_ms, scheduler.window_ns)

    def mark_router(self, work: Work, now_ms: int) -> None:
        """As `mark`, for work that gives way to readers when there is too much to do."""
        is_lowered = self.governor.is_deferring
        self.scheduler.mark(work, self._monotonic_ns(), now_ms, is_lowered=is_lowered)

    def forget(self, work: Work) -> None:
        """This work is not to be served any more."""
        self.scheduler.forget(work)

    def reconsider(self, work: Work) -> None:
        """The priority of this work may have changed."""
        if work.is_marked:
            clock = self._clock
            self.scheduler.reconsider(work, clock.monotonic_ns(), clock.wall_ns() // NS_PER_MS)

    # --- The turn ----------------------------------------------------------------------------------------

    def turn(self, budget_ns: int = BUDGET_NS, drain: Drain | None = None) -> None:
        """Serve for a while. What one service began is drained before the next one begins.

        All are served whatever one of them raises; the first error is raised in the end.
        """
        scheduler = self.scheduler
        if not scheduler.count and not scheduler.is_unfinished:
            now_ns = self._monotonic_ns()
            if now_ns - self._sampled_ns >= SAMPLE_NS:
                self._sample(now_ns, 0)
            return
        if self.is_serving:
            return  # somebody who is being served takes a turn: the one that is under way goes on
        self.is_serving = True
        try:
            first_error = scheduler.turn(budget_ns, SERVICES_MAX, drain)
        finally:
            self.is_serving = False
            scheduler.hold_ns = 0
        if scheduler.now_ns - self._sampled_ns >= SAMPLE_NS:
            self._sample(scheduler.now_ns, scheduler.ready)
        if first_error is not None:
            raise first_error

    @property
    def has_ready(self) -> bool:
        """Whether another turn has something to do now."""
        return self.scheduler.is_unfinished or self.scheduler.ready > 0

    def due_ns(self) -> int | None:
        """When the next turn has something to do, on the monotonic clock; None: not before there is news."""
        if self.has_ready:
            return self._clock.monotonic_ns()
        times = []
        release_ns = self.scheduler.next_release_ns() if self.scheduler.held else None
        if release_ns is not None:
            times.append(release_ns)
        if not self.governor.is_calm:
            times.append(self._sampled_ns + SAMPLE_NS)
        return min(times, default=None)

    # --- The governor ------------------------------------------------------------------------------------

    def measure_busy(self, busy_ns: Callable[[], int]) -> None:
        """Ask this for how long the serving thread has worked so far; call it on that thread."""
        self._busy_ns = busy_ns
        self._sampled_busy_ns = busy_ns()

    def sync_wait_ns(self, waited_ns: int) -> int:
        """How much of the time that somebody waited for a sync is due to pressure, at most."""
        return min(waited_ns, max(0, self.commit_floor_ns - COMMIT_MIN_NS))

    def _sample(self, now_ns: int, depth: int) -> None:
        busy_ns = self._busy_ns()
        signals = Signals(
            depth=depth,
            latency_total_ns=self.scheduler.latency_total_ns - self._sampled_latency_ns,
            served=self.scheduler.served - self._sampled_served,
            oldest_ns=self.scheduler.oldest_ns(now_ns),
            ingest=self.ingest(),
            busy_ns=busy_ns - self._sampled_busy_ns,
            elapsed_ns=now_ns - self._sampled_ns,
        )
        self._sampled_ns = now_ns
        self._sampled_served = self.scheduler.served
        self._sampled_latency_ns = self.scheduler.latency_total_ns
        self._sampled_busy_ns = busy_ns
        self.governor.sample(signals)
        self._follow_governor()

    def _follow_governor(self) -> None:
        governor = self.governor
        self.scheduler.window_ns = governor.coalesce_ns
        self.commit_floor_ns = governor.commit_floor_ns
        self.is_refusing = governor.is_refusing
        self.is_throttling = any(governor.engaged)
        if governor.is_deferring != self.scheduler.is_paused:
            self.scheduler.pause(governor.is_deferring)

    def counts(self) -> DeliveryCounts:
        """What was done and how it is."""
        governor, scheduler = self.governor, self.scheduler
        buckets = scheduler.latency_buckets
        last = LATENCY_BUCKETS - 1
        return DeliveryCounts(
            pressure=governor.pressure / 1000,
            busy=governor.busy / 1000,
            latency_us=governor.latency_ns // NS_PER_US,
            band_depths=tuple(scheduler.depths),
            held=scheduler.held,
            paused=scheduler.paused,
            served=scheduler.served,
            latency_us_total=scheduler.latency_total_ns // NS_PER_US,
            latency_buckets=(*buckets[:last], sum(buckets[last:])),
            rungs=tuple(governor.engaged),
            rungs_taken=tuple(governor.engagements),
            coalesce_ms=governor.coalesce_ns / NS_PER_MS,
            commit_floor_ms=governor.commit_floor_ns / NS_PER_MS,
            refused=self.refused,
        )
