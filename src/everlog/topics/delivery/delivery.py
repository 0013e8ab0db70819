"""From a commit to the callbacks that wait for it: dirty topics are marked, and served in turns.

Owns the scheduler, the governor, and the clock they run by. Knows no connection: what it serves is
`Schedulable`. All of it belongs to the thread that owns the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Final, Protocol

import msgspec

from everlog.clock import Clock
from everlog.topics.delivery.governor import COMMIT_MIN_NS, SAMPLE_NS, Governor, Rung, Signals
from everlog.topics.delivery.scheduler import BANDS, NOT_WAITING, Schedulable, Scheduler

BUDGET_NS: Final = 2_000_000
"""How long one turn serves; then the event loop sees to its sockets."""
SERVICES_MAX: Final = 4096
"""The limit where a test clock stands still: work that marks itself dirty must not keep a turn forever."""
NS_PER_MS: Final = 1_000_000
NS_PER_US: Final = 1000
LATENCY_BUCKETS: Final = 21
"""Latencies are counted in powers of two of microseconds: at most 1, 2, 4, ... about half a second, more."""

Drain = Callable[[int], bool]
"""Finishes what a service has begun, up to a time; returns whether it is finished."""

_LATENCY_BITS: Final = 64


class DeliveryCounts(msgspec.Struct, frozen=True):
    """Counters and gauges of delivery, for metrics."""

    pressure: float = 0.0
    busy: float = 0.0
    latency_us: int = 0
    """Moving average of the time from commit to service."""
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


class RouterSource(Protocol):
    """A topic whose records are to be copied."""

    @property
    def schedule(self) -> Schedulable:
        """Its schedule, which has its priority."""
        ...


class RouterWork(Schedulable):
    """The copying of all routers; as important as the most important source that has something to copy."""

    __slots__ = ("_copy", "_sources")

    def __init__(self, sources: Callable[[], Iterable[RouterSource]], copy: Callable[[], object]) -> None:
        super().__init__()
        self._sources = sources
        self._copy = copy

    def priority_at(self, now_ms: int) -> int:
        """The highest priority of a source."""
        return max((source.schedule.priority_at(now_ms) for source in self._sources()), default=0)

    def serve(self) -> None:
        """Copy for a while."""
        self._copy()


class Delivery:
    """The scheduler of an engine, and the turns in which dirty topics are served."""

    def __init__(self, clock: Clock) -> None:
        self.scheduler = Scheduler()
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
        self.is_unfinished = False
        """Whether the last service is still to be drained."""
        self.window_ns = 0
        """How far apart two services of one topic are at least."""
        self.hold_ns = 0
        """How long the work that is being served was held to gather more."""
        self._clock = clock
        self._monotonic_ns = clock.monotonic_ns
        self._served = 0
        self._latency_total_ns = 0
        self._latency_buckets = [0] * _LATENCY_BITS  # by the number of bits of the microseconds
        self._sampled_ns = clock.monotonic_ns()
        self._sampled_served = 0
        self._sampled_latency_ns = 0
        self._sampled_busy_ns = 0
        self._busy_ns: Callable[[], int] = lambda: 0
        self.commit_floor_ns = self.governor.commit_floor_ns
        """How far apart two syncs of one shard are to be at least."""

    # --- Dirty topics ------------------------------------------------------------------------------------

    def mark(self, work: Schedulable, now_ms: int) -> None:
        """Serve this work in one of the next turns; `now_ms` is the wall time."""
        self.scheduler.mark(work, self._monotonic_ns(), now_ms, self.window_ns)

    def mark_router(self, work: Schedulable, now_ms: int) -> None:
        """As `mark`, for work that gives way to readers under pressure."""
        is_lowered = self.governor.is_deferring
        self.scheduler.mark(work, self._monotonic_ns(), now_ms, is_lowered=is_lowered)

    def forget(self, work: Schedulable) -> None:
        """Do not serve this work any more."""
        self.scheduler.forget(work)

    def reconsider(self, work: Schedulable) -> None:
        """Compute the priority of waiting work anew."""
        if work.band != NOT_WAITING:
            clock = self._clock
            self.scheduler.reconsider(work, clock.monotonic_ns(), clock.wall_ns() // NS_PER_MS)

    # --- The turn ----------------------------------------------------------------------------------------

    def turn(self, budget_ns: int = BUDGET_NS, drain: Drain | None = None) -> None:
        """Serve for a while. What one service began is drained before the next one begins.

        An error of one service does not stop the others; the first error is raised in the end.
        """
        if self.is_serving:
            return  # a callback takes a turn: the one that is under way goes on
        now_ns = self._monotonic_ns()
        first_error: Exception | None = None
        if self.scheduler.count or self.is_unfinished:
            self.is_serving = True
            try:
                now_ns, first_error = self._serve(now_ns, now_ns + budget_ns, drain)
            finally:
                self.is_serving = False
                self.hold_ns = 0
        if now_ns - self._sampled_ns >= SAMPLE_NS:
            self._sample(now_ns, self.scheduler.ready)
        if first_error is not None:
            raise first_error

    def _serve(self, now_ns: int, end_ns: int, drain: Drain | None) -> tuple[int, Exception | None]:
        """Serve up to a time; return when it ended, and the first error."""
        scheduler = self.scheduler
        first_error: Exception | None = None
        if scheduler.has_due(now_ns):
            now_ms = self._clock.wall_ns() // NS_PER_MS
            scheduler.release(now_ns, now_ms)
            scheduler.age(now_ns, now_ms)
        if self.is_unfinished and drain is not None:
            self.is_unfinished = not drain(end_ns)
        for _ in range(SERVICES_MAX):
            if self.is_unfinished or now_ns >= end_ns or (work := scheduler.take()) is None:
                break
            work.served_ns = now_ns
            self.hold_ns = work.ready_ns - work.since_ns
            self._count_service(now_ns - work.ready_ns)
            try:
                work.serve()
                if drain is not None:
                    self.is_unfinished = not drain(end_ns)
            except Exception as error:
                first_error = first_error or error
                self.is_unfinished = drain is not None  # the next turn drains the rest
            now_ns = self._monotonic_ns()
        return now_ns, first_error

    def _count_service(self, latency_ns: int) -> None:
        self._served += 1
        self._latency_total_ns += latency_ns
        self._latency_buckets[(latency_ns // NS_PER_US).bit_length()] += 1

    @property
    def has_ready(self) -> bool:
        """Whether another turn has something to do now."""
        return self.is_unfinished or self.scheduler.ready > 0

    def due_ns(self) -> int | None:
        """When the next turn has something to do, on the monotonic clock; None: no topic is dirty."""
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
        """Use this as the time for which the serving thread has worked so far; call it on that thread."""
        self._busy_ns = busy_ns
        self._sampled_busy_ns = busy_ns()

    def sync_wait_ns(self, waited_ns: int) -> int:
        """How much of a wait for a sync is due to pressure, at most."""
        return min(waited_ns, max(0, self.commit_floor_ns - COMMIT_MIN_NS))

    def _sample(self, now_ns: int, depth: int) -> None:
        busy_ns = self._busy_ns()
        signals = Signals(
            depth=depth,
            latency_total_ns=self._latency_total_ns - self._sampled_latency_ns,
            served=self._served - self._sampled_served,
            oldest_ns=self.scheduler.oldest_ns(now_ns),
            ingest=self.ingest(),
            busy_ns=busy_ns - self._sampled_busy_ns,
            elapsed_ns=now_ns - self._sampled_ns,
        )
        self._sampled_ns = now_ns
        self._sampled_served = self._served
        self._sampled_latency_ns = self._latency_total_ns
        self._sampled_busy_ns = busy_ns
        self.governor.sample(signals)
        self._follow_governor()

    def _follow_governor(self) -> None:
        governor = self.governor
        self.window_ns = governor.coalesce_ns
        self.commit_floor_ns = governor.commit_floor_ns
        self.is_refusing = governor.is_refusing
        self.is_throttling = any(governor.engaged)
        if governor.is_deferring != self.scheduler.is_paused:
            self.scheduler.pause(governor.is_deferring)

    def counts(self) -> DeliveryCounts:
        """Counters and gauges."""
        governor, scheduler = self.governor, self.scheduler
        buckets = self._latency_buckets
        last = LATENCY_BUCKETS - 1
        return DeliveryCounts(
            pressure=governor.pressure / 1000,
            busy=governor.busy / 1000,
            latency_us=governor.latency_ns // NS_PER_US,
            band_depths=tuple(scheduler.depths),
            held=scheduler.held,
            paused=scheduler.paused,
            served=self._served,
            latency_us_total=self._latency_total_ns // NS_PER_US,
            latency_buckets=(*buckets[:last], sum(buckets[last:])),
            rungs=tuple(governor.engaged),
            rungs_taken=tuple(governor.engagements),
            coalesce_ms=governor.coalesce_ns / NS_PER_MS,
            commit_floor_ms=governor.commit_floor_ns / NS_PER_MS,
            refused=self.refused,
        )
