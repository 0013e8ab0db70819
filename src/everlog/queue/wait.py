"""How a reader waits for messages: the three strategies."""

from __future__ import annotations

from dataclasses import dataclass

from everlog.errors import InvalidConfig

KIND_BUSY_SPIN = 0
KIND_SPIN_THEN_PARK = 1
KIND_SLEEP = 2


@dataclass(frozen=True, slots=True)
class BusySpin:
    """Look again and again. Fastest to notice; keeps one core busy."""


@dataclass(frozen=True, slots=True)
class SpinThenPark:
    """Spin for `spin_us`, then sleep in the kernel until the writer wakes the reader."""

    spin_us: float = 10.0

    def __post_init__(self) -> None:
        """Refuse a negative spin."""
        if not self.spin_us >= 0:
            raise InvalidConfig(f"spin_us must not be negative, got {self.spin_us}")


@dataclass(frozen=True, slots=True)
class Sleep:
    """Look every `interval_us`; never bothers the writer with a wake-up."""

    interval_us: float = 100.0

    def __post_init__(self) -> None:
        """Refuse an interval that would spin."""
        if not self.interval_us > 0:
            raise InvalidConfig(f"interval_us must be above 0, got {self.interval_us}")


WaitStrategy = BusySpin | SpinThenPark | Sleep


def native_arguments(strategy: WaitStrategy) -> tuple[int, int, int]:
    """Return (kind, spin_ns, sleep_ns) as the native reader wants them."""
    match strategy:
        case BusySpin():
            return KIND_BUSY_SPIN, 0, 0
        case SpinThenPark(spin_us):
            return KIND_SPIN_THEN_PARK, int(spin_us * 1000), 0
        case Sleep(interval_us):
            return KIND_SLEEP, 0, max(1, int(interval_us * 1000))
    raise InvalidConfig(f"wait_strategy must be BusySpin, SpinThenPark or Sleep, got {strategy!r}")
