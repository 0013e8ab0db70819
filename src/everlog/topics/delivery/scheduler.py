"""The order in which topics with news are served: five bands, weighted shares, and age.

Owns the ready set. Pure: it reads no clock, calls nobody and knows no topic, only `Work` that has a priority.
What serving means, and when there is time for it, is the business of `delivery`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from heapq import heappop, heappush
from typing import Final, Protocol

BOUNDS: Final = (0, 250, 500, 750)
"""The lowest effective priority of the bands B1 to B4; what is below the first is in B0."""
WEIGHTS: Final = (1, 1, 2, 4, 8)
"""How many of each band, B0 first, are served in one round if all have enough to do."""
BANDS: Final = len(WEIGHTS)
TOP: Final = BANDS - 1
NOWHERE: Final = -1
HELD: Final = BANDS

TICK_NS: Final = 50_000_000
AGE_STEP_NS: Final = 10_000_000
"""Waiting so long is worth one point: 100 in a second."""
AGE_MAX: Final = 1000
LOWER_BAND: Final = 250
TICK_WORK: Final = 1024
"""So many turns are looked at in one call of `age`; those that are left follow in the next one."""


class Work(Protocol):
    """Something that can be served: it is in the ready set at most once."""

    turn: Turn | None
    """Its place in the ready set; None if it is in none."""
    spare: Turn | None
    """A turn that can be used for its next wait. Objects that come and go in large numbers are what keeps the
    garbage collector busy, and it looks at every topic then."""
    served_ns: int
    """When it was served last, on the monotonic clock."""

    def priority_at(self, now_ms: int) -> int:
        """Its priority without age, at this wall time."""
        ...

    def serve(self) -> None:
        """Do what is due."""
        ...


class Turn:
    """One wait of one piece of work, from its first news to its service."""

    __slots__ = (
        "band",
        "due_tick",
        "has_moved",
        "is_lowered",
        "order",
        "priority",
        "ready_ns",
        "since_ns",
        "work",
    )

    def __init__(self, work: Work) -> None:
        self.work = work
        self.order = 0
        self.since_ns = 0  # it ages from here
        self.ready_ns = 0  # it may be served from here; later if it is held to gather more
        self.is_lowered = False
        self.priority = 0  # without age, when it was looked at last
        self.band = NOWHERE
        self.has_moved = False  # it may be in queues that it has left
        self.due_tick = 0  # the tick for which its next band is planned, 0 if none; other plans are void


def band_of(priority: int) -> int:
    """The band of an effective priority."""
    return bisect_right(BOUNDS, priority)


def age_boost(waited_ns: int) -> int:
    """What waiting adds to a priority."""
    return min(max(waited_ns, 0) // AGE_STEP_NS, AGE_MAX)


class Scheduler:
    """A ready set, served in the order of a deficit weighted round robin over its bands.

    Each round gives every band that has something credit for as many turns as its weight, B4 first. Inside a
    band it is first come, first served, whatever band somebody waited in before.
    """

    def __init__(self) -> None:
        self.depths = [0] * BANDS
        """Turns in each band that could be served now."""
        self.count = 0
        """All turns: those that are ready, paused or held."""
        self.is_paused = False
        """B0 gets no credit, and nobody ages out of it."""
        self._order = 0
        self._queues: tuple[deque[Turn], ...] = tuple(deque() for _ in range(BANDS))
        # Those who came into their band later than they came to wait: by the order of waiting. A turn that
        # left a band stays where it was until it is at the front; its `band` tells that it has gone.
        self._moved: tuple[list[tuple[int, Turn]], ...] = tuple([] for _ in range(BANDS))
        self._held: list[tuple[int, int, Turn]] = []
        self._held_count = 0
        self._band = TOP
        self._credit = WEIGHTS[TOP]
        # Ageing: when a turn reaches its next band is known in advance, so a tick looks only at those.
        self._tick = 0
        self._fresh: deque[Turn] = deque()
        self._slots: dict[int, list[Turn]] = {}
        self._slot_ticks: list[int] = []
        self._frozen: list[Turn] = []

    @property
    def ready(self) -> int:
        """Turns that `take` would give."""
        return self.count - self._held_count - (self.depths[0] if self.is_paused else 0)

    @property
    def paused(self) -> int:
        """Turns that wait for the end of a pause."""
        return self.depths[0] if self.is_paused else 0

    @property
    def held(self) -> int:
        """Turns that wait for their window."""
        return self._held_count

    # --- In and out --------------------------------------------------------------------------------------

    def mark(
        self, work: Work, now_ns: int, now_ms: int, window_ns: int = 0, *, is_lowered: bool = False
    ) -> None:
        """There is news: put the work into the ready set, unless it is there.

        With a window it is not served sooner than so long after it was served last. A lowered one is one
        band below its priority, but not in B0 for that.
        """
        if work.turn is not None:
            return
        self._order = order = self._order + 1
        self.count += 1
        work.turn = turn = work.spare or Turn(work)
        turn.order = order
        turn.since_ns = turn.ready_ns = now_ns
        turn.is_lowered = is_lowered
        turn.due_tick = 0
        if window_ns and now_ns - work.served_ns < window_ns:
            turn.ready_ns = work.served_ns + window_ns
            turn.band = HELD
            self._held_count += 1
            heappush(self._held, (turn.ready_ns, order, turn))
            return
        priority = work.priority_at(now_ms)
        if is_lowered:
            priority = _lowered(priority)
        turn.priority = priority
        turn.band = band = bisect_right(BOUNDS, priority)
        self.depths[band] += 1
        self._queues[band].append(turn)
        if band < TOP:
            self._fresh.append(turn)

    def take(self) -> Turn | None:
        """Take the turn that is next out of the ready set; None if none may be served now."""
        depths, is_paused = self.depths, self.is_paused
        band, credit = self._band, self._credit
        for _ in range(BANDS + 1):
            if credit and depths[band] and (band or not is_paused):
                depths[band] -= 1
                self.count -= 1
                self._band, self._credit = band, credit - 1
                queue = self._queues[band]
                is_simple = not self._moved[band] and queue[0].band == band
                turn = queue.popleft() if is_simple else self._pop(band)
                turn.band = NOWHERE
                work = turn.work
                work.turn = None
                work.spare = None if turn.has_moved else turn
                return turn
            band = band - 1 if band else TOP
            credit = WEIGHTS[band]
        # Nobody is left whose share could be cut short: whoever comes next begins a round.
        self._band, self._credit = TOP, WEIGHTS[TOP]
        return None

    def _pop(self, band: int) -> Turn:
        """Take the one of a band that has waited longest; there is one."""
        turn = self._first(band)
        queue = self._queues[band]
        if queue and queue[0] is turn:
            return queue.popleft()
        return heappop(self._moved[band])[1]

    def _first(self, band: int) -> Turn:
        """The one of a band that has waited longest; there is one."""
        queue, moved = self._queues[band], self._moved[band]
        while queue and queue[0].band != band:
            queue.popleft()
        if moved:
            while moved and moved[0][1].band != band:
                heappop(moved)
            if moved and (not queue or moved[0][0] < queue[0].order):
                return moved[0][1]
        return queue[0]

    def forget(self, work: Work) -> None:
        """Take work out that is not to be served any more."""
        turn = work.turn
        if turn is not None:
            work.turn = work.spare = None
            self._leave_band(turn)
            self.count -= 1
            turn.band = NOWHERE

    def waiting(self, band: int) -> list[Turn]:
        """The turns of a band, in no order; looks at all of them."""
        found = {turn.order: turn for turn in self._queues[band] if turn.band == band}
        found.update((order, turn) for order, turn in self._moved[band] if turn.band == band)
        return list(found.values())

    def oldest_ns(self, now_ns: int) -> int:
        """How long the one that waits longest has been ready; paused ones do not count."""
        oldest_ns = now_ns
        for band in range(1 if self.is_paused else 0, BANDS):
            if self.depths[band]:
                oldest_ns = min(oldest_ns, self._first(band).ready_ns)
        return now_ns - oldest_ns

    # --- Time passes -------------------------------------------------------------------------------------

    def is_due(self, now_ns: int) -> bool:
        """Whether `release` or `age` have something to do."""
        return self._held_count > 0 or now_ns // TICK_NS != self._tick

    def release(self, now_ns: int, now_ms: int) -> None:
        """Let those be served whose window is over."""
        held = self._held
        while held and held[0][0] <= now_ns:
            turn = heappop(held)[2]
            if turn.band == HELD:
                self._enter(turn, self._band_at(turn, now_ns, now_ms))

    def next_release_ns(self) -> int | None:
        """When the next window is over."""
        held = self._held
        while held and held[0][2].band != HELD:
            heappop(held)
        return held[0][0] if held else None

    def age(self, now_ns: int, now_ms: int) -> None:
        """Move those up who have waited long enough; does something once in a tick of 50 ms."""
        tick = now_ns // TICK_NS
        if tick == self._tick:
            return
        left = TICK_WORK
        fresh = self._fresh
        while fresh and left:
            left -= 1
            turn = fresh.popleft()
            if 0 <= turn.band < TOP:
                self._plan(turn)
        ticks = self._slot_ticks
        while ticks and ticks[0] <= tick and left:
            turns = self._slots[ticks[0]]
            while turns and left:
                left -= 1
                turn = turns.pop()
                if turn.due_tick == ticks[0]:
                    turn.due_tick = 0
                    self._grow(turn, now_ns, now_ms)
            if not turns:
                del self._slots[heappop(ticks)]
        if left:
            self._tick = tick

    def reconsider(self, work: Work, now_ns: int, now_ms: int) -> None:
        """The priority of this work has changed by something else than waiting."""
        turn = work.turn
        if turn is None or turn.band == HELD:
            return
        band = self._band_at(turn, now_ns, now_ms)
        if band != turn.band:
            self._enter(turn, band)
        elif band < TOP:
            self._plan(turn)

    def pause(self, is_paused: bool) -> None:
        """Give B0 no credit, or give it credit again; what has waited is as old as it is."""
        self.is_paused = is_paused
        if not is_paused:
            self._fresh.extend(self._frozen)
            self._frozen.clear()

    def _grow(self, turn: Turn, now_ns: int, now_ms: int) -> None:
        """A turn may have reached its next band."""
        if not 0 <= turn.band < TOP:
            return
        if turn.band == 0 and self.is_paused:
            self._frozen.append(turn)
            return
        band = self._band_at(turn, now_ns, now_ms)
        if band > turn.band:
            self._enter(turn, band)
        else:
            self._plan(turn)  # it was consumed long ago, and is worth less than when it came

    def _enter(self, turn: Turn, band: int) -> None:
        """Put a turn that has waited already into another band, at its place by age."""
        self._leave_band(turn)
        turn.band = band
        turn.has_moved = True
        self.depths[band] += 1
        heappush(self._moved[band], (turn.order, turn))
        if band < TOP:
            self._fresh.append(turn)

    def _leave_band(self, turn: Turn) -> None:
        if turn.band == HELD:
            self._held_count -= 1
        else:
            self.depths[turn.band] -= 1

    def _band_at(self, turn: Turn, now_ns: int, now_ms: int) -> int:
        priority = turn.work.priority_at(now_ms)
        if turn.is_lowered:
            priority = _lowered(priority)
        turn.priority = priority
        return bisect_right(BOUNDS, priority + age_boost(now_ns - turn.since_ns))

    def _plan(self, turn: Turn) -> None:
        """Note when a turn gets into its next band at the earliest."""
        missing = BOUNDS[turn.band] - turn.priority
        if missing > AGE_MAX:
            return  # it never gets there by age alone
        tick = -(-(turn.since_ns + missing * AGE_STEP_NS) // TICK_NS)
        if tick <= self._tick:
            tick = self._tick + 1
        if tick == turn.due_tick:
            return
        turn.due_tick = tick
        turns = self._slots.get(tick)
        if turns is None:
            self._slots[tick] = [turn]
            heappush(self._slot_ticks, tick)
        else:
            turns.append(turn)


def _lowered(priority: int) -> int:
    """One band below, but not into the band of those whose pushes may be paused."""
    return priority if priority < 0 else max(priority - LOWER_BAND, 0)
