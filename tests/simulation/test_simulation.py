"""Seeds of the simulation: some in every test run, thousands in `make crash`."""

from __future__ import annotations

import os

import pytest

from tests.simulation.__main__ import run_seed

SEEDS = range(50)
CRASH_SEEDS = range(1000, 1000 + int(os.environ.get("SIM_SEEDS", "2000")))


def test_every_promise_holds_whatever_fails() -> None:
    for seed in SEEDS:
        run_seed(seed)


@pytest.mark.crash
def test_every_promise_holds_over_many_seeds() -> None:
    for seed in CRASH_SEEDS:
        run_seed(seed)
