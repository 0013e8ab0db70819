"""How much a test run tries: all examples and seeds, or a part of them.

`HYPOTHESIS_PROFILE=quick`, which `make check` sets, runs every test with a fifth of the examples; `make test`
runs all of them.
"""

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
QUICK_SHARE = 5
IS_QUICK = os.environ.get("HYPOTHESIS_PROFILE") == "quick"


def effort(count: int) -> int:
    """Return how many of `count` examples or seeds this run tries."""
    return max(1, count // QUICK_SHARE) if IS_QUICK else count


def some_of(cases: Sequence[T]) -> Sequence[T]:
    """Return all cases, or in a quick run a part of them with the first and the last."""
    return [*cases[:-1:QUICK_SHARE], *cases[-1:]] if IS_QUICK else cases
