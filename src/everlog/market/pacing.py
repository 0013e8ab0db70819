"""When a recorded message is due: the spacing of recorded times divided by a speed, on a clock.

Owns that one rule. It never waits itself; a player and the rehearsal of feeds ask how long to wait.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from everlog.clock import NS_PER_S, Clock
from everlog.errors import InvalidConfig
from everlog.market.times import LATEST_NS

AS_FAST_AS_POSSIBLE: Final = math.inf
SPEED_MAX: Final = 1000.0


def parse_speed(text: str) -> float:
    """Return a speed: `max`, or a number above 0 and up to 1000."""
    if text == "max":
        return AS_FAST_AS_POSSIBLE
    try:
        speed = float(text)
    except ValueError:
        speed = math.nan
    if not 0 < speed <= SPEED_MAX:
        raise InvalidConfig(f"the speed is {text!r}; it must be 'max' or a number above 0 and up to 1000")
    return speed


def speed_text(speed: float) -> str:
    """Return a speed as `parse_speed` takes it."""
    return "max" if math.isinf(speed) else f"{speed:g}"


class Pacer:
    """A place in recorded time that moves on with a clock."""

    def __init__(self, clock: Clock, speed: float = 1.0) -> None:
        """Stands still until `jump` names the recorded time at which it begins."""
        self._clock = clock
        self._speed = speed
        self._is_paused = False
        self._recorded_ns = 0
        self._clock_ns: int | None = None

    @property
    def speed(self) -> float:
        """How many seconds of the recording pass in one."""
        return self._speed

    @property
    def is_paused(self) -> bool:
        """Whether recorded time stands still."""
        return self._is_paused

    @property
    def now_ns(self) -> int:
        """The recorded time up to which messages are due, inclusive."""
        if self._clock_ns is None or self._is_paused or math.isinf(self._speed):
            return self._recorded_ns
        passed_ns = int((self._clock.monotonic_ns() - self._clock_ns) * self._speed)
        return min(self._recorded_ns + passed_ns, LATEST_NS)

    def jump(self, recorded_ns: int) -> None:
        """Go on from a recorded time."""
        self._recorded_ns, self._clock_ns = recorded_ns, self._clock.monotonic_ns()

    def pause(self) -> None:
        """Stand still."""
        self.jump(self.now_ns)
        self._is_paused = True

    def resume(self) -> None:
        """Move on."""
        self._is_paused = False
        self.jump(self._recorded_ns)

    def set_speed(self, speed: float) -> None:
        """Move on at another speed."""
        self.jump(self.now_ns)
        self._speed = speed

    def due_count(self, recorded_ns: NDArray[np.uint64]) -> int:
        """Return how many of some rising recorded times are due."""
        if self._is_paused or not len(recorded_ns):
            return 0
        if math.isinf(self._speed):
            self._recorded_ns = max(self._recorded_ns, int(recorded_ns[-1]))
            return len(recorded_ns)
        return int(np.searchsorted(recorded_ns, np.uint64(self.now_ns), side="right"))

    def wait_s(self, recorded_ns: int) -> float | None:
        """Return how long until a recorded time is due: 0 if it is; None while paused."""
        if self._is_paused:
            return None
        if math.isinf(self._speed):
            return 0.0
        return max(0, recorded_ns - self.now_ns) / self._speed / NS_PER_S
