"""The planted faults fit the source, and the simulation notices cheap ones; `make mutants` tries all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.__main__ import (
    MUTANTS,
    QUEUE_CHECKS,
    TOPIC_CHECKS,
    Check,
    checks_of,
    run_check,
    try_mutant,
)
from tests.mutants.mutant import DriftedMutant, Mutant, mutated, plant

FEW_SEEDS = Check("simulation", ("-m", "tests.simulation", "--seeds", "0..9"), 100)
CHEAP = (
    "only the first shard is replayed",
    "a delete is not logged",
    "keys are not restored from the log",
)
"""One of the first seeds notices each."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_can_be_planted_in_the_source_of_today(mutant: Mutant) -> None:
    assert mutated(mutant) != mutant.old


def test_each_fault_has_a_name_and_a_check_of_its_own_kind() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 30
    known = {check.name for check in (*TOPIC_CHECKS, *QUEUE_CHECKS)}
    assert {mutant.check for mutant in MUTANTS} <= known
    assert all(checks_of(mutant)[0].name == mutant.check for mutant in MUTANTS)


def test_a_source_that_has_changed_fails_by_the_name_of_the_mutant(tmp_path: Path) -> None:
    mutant = MUTANTS[0]
    path = tmp_path / "everlog" / mutant.file
    path.parent.mkdir(parents=True)
    for text in ("", mutant.old * 2):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DriftedMutant, match=mutant.name):
            mutated(mutant, tmp_path)


@pytest.mark.parametrize("name", CHEAP)
def test_the_simulation_notices_a_planted_fault(name: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    result = try_mutant(mutant, [FEW_SEEDS])
    assert result["caught_by"] == "simulation", result
    assert result["detail"].startswith("seed "), result


def test_a_copy_without_a_fault_passes(tmp_path: Path) -> None:
    check = FEW_SEEDS._replace(arguments=("-m", "tests.simulation", "--seeds", "0..1"))
    assert run_check(check, plant(None, tmp_path), tmp_path).failure is None
