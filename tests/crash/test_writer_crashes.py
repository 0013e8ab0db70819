"""`kill -9` of the writer, CRASH_ROUNDS times for each kind of writer: every acknowledged record stays.

A reader in another process reads across all the crashes and sees every record once and in order.
"""

import os
from pathlib import Path

import pytest

from tests.support.crashes import (
    WRITER_CASES,
    CrashCase,
    check_no_leftovers,
    check_whole_queue,
    crash_at_calls,
    crash_writers,
)
from tests.support.processes import fresh_seed

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("CRASH_ROUNDS", "300"))


@pytest.mark.parametrize("case", WRITER_CASES, ids=lambda case: case.name)
def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path, case: CrashCase) -> None:
    outcome = crash_writers(tmp_path / "queue", case, ROUNDS, fresh_seed(case.name))
    print(case.name, outcome)
    # The rounds were worth it: most writers had written something when they died.
    assert outcome.lowest >= ROUNDS // 2
    assert outcome.before_open < ROUNDS // 2
    check_no_leftovers(tmp_path / "queue")


def test_the_whole_history_of_crashes_is_there_once_and_in_order(tmp_path: Path) -> None:
    seed = fresh_seed("history")
    case = CrashCase("history", WRITER_CASES[0].kinds, 900, {"segment_size": 2048, "retention": False})
    outcome = crash_writers(tmp_path / "queue", case, ROUNDS, seed)
    check_whole_queue(tmp_path / "queue", seed, case.length_max, outcome.lowest)


def test_a_writer_killed_at_every_step_leaves_a_queue_that_goes_on_and_a_waiting_reader_too(
    tmp_path: Path,
) -> None:
    steps = crash_at_calls(tmp_path, fresh_seed("calls"), step=1)
    assert steps > 50, "opening, rolling, flushing and closing take more calls than that"
