"""The scheduler again, as slow and plain as possible: every wait is looked at every time."""

from __future__ import annotations

from typing import NamedTuple

from everlog.topics.delivery.scheduler import TICK_NS, Schedulable

MS = 1_000_000
ROUND = [4] * 8 + [3] * 4 + [2] * 2 + [1] + [0]


class Item(Schedulable):
    """Something to be served whose priority the test decides, and that counts how often it was."""

    def __init__(self, name: str, priority: int = 0) -> None:
        super().__init__()
        self.name = name
        self.priority = priority
        self.served_ns = -(10**12)
        self.served = 0

    def priority_at(self, now_ms: int) -> int:
        """The number that the test has set."""
        return self.priority

    def serve(self) -> None:
        """Count it."""
        self.served += 1

    def __repr__(self) -> str:
        return f"Item({self.name!r}, {self.priority})"


class Wait(NamedTuple):
    """One entry of the model's ready set."""

    order: int
    item: Item
    since_ns: int
    ready_ns: int
    band: int | None
    """None while it is held."""
    is_lowered: bool


def band_by_table(priority: int) -> int:
    """The band, as the contract lists them."""
    if priority >= 750:
        return 4
    if priority >= 500:
        return 3
    if priority >= 250:
        return 2
    return 1 if priority >= 0 else 0


def effective_priority(priority: int | None, is_auto: bool, idle_ms: int | None) -> int:
    """The priority of a topic without age: the operator's number, or 500 halved every 30 s.

    In 64 steps for each half-life, as fixed-point numbers of 16 bits; nothing is left after five minutes.
    """
    if priority is not None:
        return max(-1000, min(1000, priority))
    if not is_auto or idle_ms is None or idle_ms >= 300_000:
        return 0
    halvings, rest_ms = divmod(max(0, idle_ms), 30_000)
    factor = round(2 ** (-(rest_ms * 64 // 30_000) / 64) * 65536) >> halvings
    return (500 * factor + 32768) >> 16


class SchedulerModel:
    """What the scheduler promises, without any of its shortcuts. Moves of time are whole ticks."""

    def __init__(self) -> None:
        self.waits: dict[str, Wait] = {}
        self.is_paused = False
        self._order = 0
        self._place = 0
        self._tick = 0

    def _band(self, wait: Wait, now_ns: int) -> int:
        priority = wait.item.priority
        if wait.is_lowered and priority >= 0:
            priority = max(0, priority - 250)
        waited_ms = (now_ns - wait.since_ns) // MS
        return band_by_table(priority + min(1000, waited_ms // 10))

    def mark(self, item: Item, now_ns: int, window_ns: int, is_lowered: bool) -> None:
        """Note that something is new."""
        if item.name in self.waits:
            return
        self._order += 1
        is_held = now_ns < item.served_ns + window_ns
        ready_ns = item.served_ns + window_ns if is_held else now_ns
        wait = Wait(self._order, item, now_ns, ready_ns, None, is_lowered)
        self.waits[item.name] = wait if is_held else wait._replace(band=self._band(wait, now_ns))

    def take(self) -> Item | None:
        """The next one, by walking through a round slot by slot."""
        for step in range(len(ROUND)):
            band = ROUND[(self._place + step) % len(ROUND)]
            waits = [wait for wait in self.waits.values() if wait.band == band]
            if waits and not (band == 0 and self.is_paused):
                self._place = (self._place + step + 1) % len(ROUND)
                first = min(waits, key=lambda wait: wait.order)
                del self.waits[first.item.name]
                return first.item
        self._place = 0
        return None

    def pass_time(self, now_ns: int) -> None:
        """Windows end; and once in a tick the band of every topic is computed anew, but not down."""
        for name, wait in self.waits.items():
            if wait.band is None and wait.ready_ns <= now_ns:
                self.waits[name] = wait._replace(band=self._band(wait, now_ns))
        if now_ns // TICK_NS == self._tick:
            return
        self._tick = now_ns // TICK_NS
        for name, wait in self.waits.items():
            is_frozen = wait.band == 0 and self.is_paused
            if wait.band is not None and not is_frozen:
                self.waits[name] = wait._replace(band=max(wait.band, self._band(wait, now_ns)))

    def reconsider(self, item: Item, now_ns: int) -> None:
        """The priority was changed, up or down."""
        wait = self.waits.get(item.name)
        if wait is not None and wait.band is not None:
            self.waits[item.name] = wait._replace(band=self._band(wait, now_ns))

    def depths(self) -> list[int]:
        """Waits of each band."""
        return [sum(wait.band == band for wait in self.waits.values()) for band in range(5)]
