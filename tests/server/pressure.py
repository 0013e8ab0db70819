"""Pressure on demand: a governor that sees what the test wants it to see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from everlog.topics import Engine
from everlog.topics.delivery.governor import DEPTH_CEILING, Governor, Signals

SAMPLES = 20


@contextmanager
def full_pressure(engine: Engine) -> Iterator[None]:
    """All rungs are taken while the block runs; after it the governor sees what there is."""
    delivery = engine.delivery
    full = Signals(depth=DEPTH_CEILING, busy_ns=1, elapsed_ns=1)

    def see(_: Signals) -> None:
        Governor.sample(delivery.governor, full)

    for _ in range(SAMPLES):
        see(full)
    setattr(delivery.governor, "sample", see)  # noqa: B010  # an instance that sees something else
    delivery._follow_governor()
    try:
        yield
    finally:
        del delivery.governor.__dict__["sample"]


def no_pressure(engine: Engine) -> None:
    """Let the governor see for long enough that nothing is wrong."""
    for _ in range(3 * SAMPLES):
        engine.delivery.governor.sample(Signals(elapsed_ns=1))
    engine.delivery._follow_governor()
