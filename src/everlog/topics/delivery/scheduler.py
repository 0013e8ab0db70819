"""Which dirty topic is served next: five bands, weighted shares, and priority that rises with waiting time.

Owns the rules and the state of what waits. Reads no clock: all times are arguments, in integers, so that
equal times give equal orders on every machine. What is served is a `Schedulable`; that of a topic is its
`TopicSchedule`.

A band is a heap of orders of arrival. Work that leaves a band leaves its entry behind, which is skipped
later: an entry is valid if the work of that order still waits in that band.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from everlog.topics.delivery.delivery import Delivery

BANDS: Final = 5
TOP_BAND: Final = BANDS - 1
BAND_BOUNDS: Final = (0, 250, 500, 750)
"""The lowest effective priority of the bands B1 to B4; what is below the first is in B0."""
WEIGHTS: Final = (1, 1, 2, 4, 8)
"""How many of each band, B0 first, are served in one round if all have enough to do."""
NOT_WAITING: Final = -1
HELD: Final = BANDS
"""In place of a band: waits until its coalescing window is over."""

PRIORITY_MAX: Final = 1000
AGE_MAX: Final = 1000
AGE_STEP_NS: Final = 10_000_000
"""Priority rises by 1 for so long a wait: by 100 in a second."""
TICK_NS: Final = 50_000_000
"""How often the bands of waiting work are computed anew."""
LOOKS_MAX: Final = 1024
"""How much work one call of `age` looks at; the next call goes on."""
ROUTER_PENALTY: Final = 250
"""Under pressure routers are served one band below their priority."""

RECENCY_MAX: Final = 500
HALF_LIFE_MS: Final = 30_000
RECENCY_END_MS: Final = 300_000
_TABLE_STEPS: Final = 64
_TABLE_BITS: Final = 16
_HALVING: Final = tuple(
    round(2 ** (-step / _TABLE_STEPS) * (1 << _TABLE_BITS)) for step in range(_TABLE_STEPS)
)
# A heap is rebuilt when it has more than this many entries besides twice those that are valid.
_STALE_MAX: Final = 1024


def recency(idle_ms: int) -> int:
    """Return the bonus of a topic that was consumed `idle_ms` ago: 500, halved every 30 s, 0 after 5 min."""
    if idle_ms >= RECENCY_END_MS:
        return 0
    halvings, rest_ms = divmod(max(idle_ms, 0), HALF_LIFE_MS)
    factor = _HALVING[rest_ms * _TABLE_STEPS // HALF_LIFE_MS] >> halvings
    return (RECENCY_MAX * factor + (1 << (_TABLE_BITS - 1))) >> _TABLE_BITS


def band_of(priority: int) -> int:
    """Return the band of an effective priority."""
    return bisect_right(BAND_BOUNDS, priority)


def age_boost(waited_ns: int) -> int:
    """Return what waiting adds to a priority."""
    return min(max(waited_ns, 0) // AGE_STEP_NS, AGE_MAX)


class Schedulable:
    """Work that can be scheduled; it waits in the scheduler at most once."""

    __slots__ = (
        "band",
        "base_priority",
        "due_tick",
        "is_lowered",
        "order",
        "ready_ns",
        "served_ns",
        "since_ns",
    )

    def __init__(self) -> None:
        self.band = NOT_WAITING
        self.order = 0
        """Its number in the order of arrival."""
        self.since_ns = 0
        """When its wait began; it ages from there."""
        self.ready_ns = 0
        """When it could be served first: later than `since_ns` if it was held to gather more."""
        self.served_ns = 0
        """When it was served last."""
        self.base_priority = 0
        """Without age, when it was last computed."""
        self.due_tick = 0
        """The tick at which it can reach the next band at the earliest."""
        self.is_lowered = False

    @property
    def is_waiting(self) -> bool:
        """Whether it waits to be served."""
        return self.band != NOT_WAITING

    def priority_at(self, now_ms: int) -> int:
        """Its priority without age, at this wall time."""
        raise NotImplementedError

    def serve(self) -> None:
        """Do what is due."""
        raise NotImplementedError


class TopicSchedule(Schedulable):
    """The schedule of one topic: its priority, and the callbacks that wait for a change."""

    __slots__ = ("_is_auto", "_manual", "delivery", "last_read_ts", "name", "waiters")

    def __init__(self, name: str = "", delivery: Delivery | None = None) -> None:
        super().__init__()
        self.name = name
        self.delivery = delivery
        """None: changes are not delivered."""
        self.waiters: dict[Callable[[], None], None] = {}
        """Called with the next change, in the order of registration."""
        self.last_read_ts: int | None = None
        """When the topic was last consumed."""
        self._manual: int | None = None
        self._is_auto = False

    def configure(self, priority: int | None, is_auto: bool) -> None:
        """Use the operator's priority if there is one; otherwise recency counts, if `is_auto`."""
        self._manual = None if priority is None else max(-PRIORITY_MAX, min(PRIORITY_MAX, priority))
        self._is_auto = is_auto

    def priority_at(self, now_ms: int) -> int:
        """The priority of the topic at this wall time, whether or not it waits."""
        if self._manual is not None:
            return self._manual
        if not self._is_auto or self.last_read_ts is None:
            return 0
        return recency(now_ms - self.last_read_ts)

    def mark_dirty(self, now_ms: int) -> None:
        """Call the waiters when it is the turn of this topic."""
        if self.waiters and self.band == NOT_WAITING and self.delivery is not None:
            self.delivery.mark(self, now_ms)

    def serve(self) -> None:
        """Call every waiter once."""
        waiters = self.waiters
        if len(waiters) == 1:
            waiter, _ = waiters.popitem()  # keeps the dictionary: there are many topics
            waiter()
        elif waiters:
            self.waiters = {}
            for waiter in waiters:
                waiter()


class Scheduler:
    """Waiting work, served by deficit weighted round robin over its bands.

    Each round gives every band that has work credit for as many services as its weight, B4 first. Inside a
    band work is served in the order of arrival, also if it arrived in another band.
    """

    def __init__(self) -> None:
        self.depths = [0] * BANDS
        """How much waits in each band."""
        self.held = 0
        """How much waits for the end of its window."""
        self.is_paused = False
        """Whether B0 gets no credit."""
        self._waiting: dict[int, Schedulable] = {}  # by order of arrival
        self._bands: list[list[int]] = [[] for _ in range(BANDS)]
        self._windows: list[tuple[int, int]] = []  # heap: end of the window, order
        self._due: defaultdict[int, list[int]] = defaultdict(list)  # tick -> orders to look at
        self._frozen: list[int] = []  # orders in B0 that were due while it was paused
        self._last_order = 0
        self._tick = 0
        self._band, self._credit = TOP_BAND, WEIGHTS[TOP_BAND]

    @property
    def count(self) -> int:
        """How much waits."""
        return len(self._waiting)

    @property
    def paused(self) -> int:
        """How much waits for the end of a pause."""
        return self.depths[0] if self.is_paused else 0

    @property
    def ready(self) -> int:
        """How much `take` would return."""
        return len(self._waiting) - self.held - self.paused

    def waiting(self, band: int) -> list[Schedulable]:
        """Return what waits in a band, or is held if `band` is `HELD`; looks at everything."""
        return [work for work in self._waiting.values() if work.band == band]

    def oldest_ns(self, now_ns: int) -> int:
        """Return how long the oldest work has been ready; what is paused does not count."""
        bands = range(1 if self.is_paused else 0, BANDS)
        return now_ns - min(
            (self._first_of(band).ready_ns for band in bands if self.depths[band]), default=now_ns
        )

    # --- In and out --------------------------------------------------------------------------------------

    def mark(
        self,
        work: Schedulable,
        now_ns: int,
        now_ms: int,
        window_ns: int = 0,
        *,
        is_lowered: bool = False,
    ) -> None:
        """Let work wait, unless it does already.

        With a window it is not served sooner than so long after its last service. If lowered, it waits one
        band below its priority, but not in B0 for that.
        """
        if work.band != NOT_WAITING:
            return
        work.since_ns = work.ready_ns = now_ns
        work.is_lowered = is_lowered
        if window_ns and now_ns - work.served_ns < window_ns:
            band = HELD
        else:
            band = self._band_at(work, now_ns, now_ms)
            if work.band != NOT_WAITING:
                return  # asking for its priority has marked it
        self._last_order += 1
        work.order = self._last_order
        self._waiting[work.order] = work
        if band != HELD:
            self._enter(work, band)
            return
        work.band = HELD
        work.ready_ns = work.served_ns + window_ns
        heappush(self._windows, (work.ready_ns, work.order))
        self.held += 1

    def take(self) -> Schedulable | None:
        """Take out what is next; None if nothing may be served now."""
        band, credit = self._band, self._credit
        for _ in range(BANDS + 1 if self._waiting else 0):
            if credit and self.depths[band] and (band or not self.is_paused):
                self._band, self._credit = band, credit - 1
                work = self._first_of(band)
                self.forget(work)
                return work
            band = band - 1 if band else TOP_BAND
            credit = WEIGHTS[band]
        # No band has work whose share could be cut short: the next work begins a round.
        self._band, self._credit = TOP_BAND, WEIGHTS[TOP_BAND]
        return None

    def forget(self, work: Schedulable) -> None:
        """Take out work, to serve it or because it is not to be served any more."""
        if work.band == NOT_WAITING:
            return
        self._leave(work)
        del self._waiting[work.order]
        if not self._waiting:
            self._drop_entries()

    def drain(self) -> list[Schedulable]:
        """Take out everything and return it."""
        found = list(self._waiting.values())
        for work in found:
            self.forget(work)
        return found

    def _first_of(self, band: int) -> Schedulable:
        """The first arrival of a band that has work."""
        heap = self._bands[band]
        while True:
            work = self._waiting.get(heap[0])
            if work is not None and work.band == band:
                return work
            heappop(heap)

    def _enter(self, work: Schedulable, band: int) -> None:
        work.band = band
        self.depths[band] += 1
        heappush(self._bands[band], work.order)
        if band < TOP_BAND:
            self._plan(work)

    def _leave(self, work: Schedulable) -> None:
        if work.band == HELD:
            self.held -= 1
        else:
            self.depths[work.band] -= 1
        work.band = NOT_WAITING

    def _move(self, work: Schedulable, band: int) -> None:
        if work.band != NOT_WAITING:  # asking for its priority may have removed it
            self._leave(work)
            self._enter(work, band)

    # --- Time --------------------------------------------------------------------------------------------

    def has_due(self, now_ns: int) -> bool:
        """Whether `release` or `age` may have something to do."""
        return self.held > 0 or now_ns // TICK_NS != self._tick

    def release(self, now_ns: int, now_ms: int) -> None:
        """Move work whose window is over to its band."""
        windows = self._windows
        while windows and windows[0][0] <= now_ns:
            _, order = heappop(windows)
            work = self._waiting.get(order)
            if work is not None and work.band == HELD:
                self._move(work, self._band_at(work, now_ns, now_ms))

    def next_release_ns(self) -> int | None:
        """When the next window is over."""
        while self._windows:
            end_ns, order = self._windows[0]
            work = self._waiting.get(order)
            if work is not None and work.band == HELD:
                return end_ns
            heappop(self._windows)
        return None

    def age(self, now_ns: int, now_ms: int) -> None:
        """Move work up that has waited long enough; acts once in a tick of 50 ms."""
        tick = now_ns // TICK_NS
        if tick == self._tick:
            return
        looks = 0
        for due_tick in sorted(due for due in self._due if due <= tick):
            orders = self._due[due_tick]
            while orders:
                if looks == LOOKS_MAX:
                    return  # the next call goes on
                work = self._waiting.get(orders.pop())
                if work is not None and work.due_tick == due_tick:
                    looks += 1
                    self._look(work, now_ns, now_ms)
            self._due.pop(due_tick, None)
        self._tick = tick
        self._drop_stale()

    def _look(self, work: Schedulable, now_ns: int, now_ms: int) -> None:
        """Move work that may have reached its next band."""
        if work.band == 0 and self.is_paused:
            self._frozen.append(work.order)
        else:
            self.reconsider(work, now_ns, now_ms, may_lower=False)

    def reconsider(self, work: Schedulable, now_ns: int, now_ms: int, *, may_lower: bool = True) -> None:
        """Compute the band of waiting work anew."""
        if work.band in (NOT_WAITING, HELD):
            return
        band = self._band_at(work, now_ns, now_ms)
        if band > work.band or (may_lower and band < work.band):
            self._move(work, band)
        elif 0 <= work.band < TOP_BAND:
            self._plan(work)

    def pause(self, is_paused: bool) -> None:
        """Give B0 no credit, or give it credit again; what has waited keeps its age."""
        self.is_paused = is_paused
        if not is_paused:
            for order in self._frozen:
                work = self._waiting.get(order)
                if work is not None:
                    work.due_tick = self._tick + 1
                    self._due[work.due_tick].append(order)
            self._frozen.clear()

    def _band_at(self, work: Schedulable, now_ns: int, now_ms: int) -> int:
        priority = work.priority_at(now_ms)
        if work.is_lowered and priority > 0:
            priority = max(priority - ROUTER_PENALTY, 0)
        work.base_priority = priority
        return band_of(priority + age_boost(now_ns - work.since_ns))

    def _plan(self, work: Schedulable) -> None:
        """Note when work can reach its next band at the earliest; recency lost meanwhile makes it later."""
        missing = BAND_BOUNDS[work.band] - work.base_priority
        if missing <= AGE_MAX:
            work.due_tick = due_tick = -(-(work.since_ns + missing * AGE_STEP_NS) // TICK_NS)
            self._due[due_tick].append(work.order)

    # --- Stale entries -----------------------------------------------------------------------------------

    def _drop_entries(self) -> None:
        """Nothing waits: every entry is stale."""
        for heap in self._bands:
            heap.clear()
        self._windows.clear()
        self._due.clear()
        self._frozen.clear()

    def _drop_stale(self) -> None:
        """Rebuild a band whose entries are mostly stale: work that comes and goes must take no memory."""
        for band, heap in enumerate(self._bands):
            if len(heap) > 2 * self.depths[band] + _STALE_MAX:
                heap[:] = sorted(work.order for work in self.waiting(band))
        if len(self._frozen) > 2 * self.depths[0] + _STALE_MAX:
            self._frozen = [order for order in self._frozen if order in self._waiting]
