"""Bounds on the processor time of single steps, which the load of the machine can exceed now and then."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterable
from typing import Final, ParamSpec

P = ParamSpec("P")

LOOP_STEP_MS: Final = 10
"""No step may hold the loop of the server longer."""

ATTEMPTS: Final = 3


class LongStep(AssertionError):
    """A step took longer than a step may."""


def assert_short(steps_ms: Iterable[float]) -> None:
    """Raise `LongStep` if any of these steps holds the loop too long."""
    longest_ms = max(steps_ms)
    if longest_ms >= LOOP_STEP_MS:
        raise LongStep(
            f"a step took {longest_ms:.1f} ms of processor time; at most {LOOP_STEP_MS} are allowed"
        )


def repeated_if_slow(test: Callable[P, None]) -> Callable[P, None]:
    """Call such a test up to three times, without garbage collection: what runs beside it shares its caches.

    The calls share their fixtures, so the test makes what it measures itself.
    """

    @functools.wraps(test)
    def repeated(*args: P.args, **kwargs: P.kwargs) -> None:
        for _ in range(ATTEMPTS - 1):
            try:
                return run(*args, **kwargs)
            except LongStep as error:
                print(error)
        run(*args, **kwargs)

    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        gc.collect()  # what other tests left to the collector is no part of a step
        gc.disable()
        try:
            test(*args, **kwargs)
        finally:
            gc.enable()

    return repeated
