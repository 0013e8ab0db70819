"""Kills of the server and of bridges both ways: no record is lost, none comes twice, none out of order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.bridge_kills import crossing
from tests.support.processes import fresh_seed

ROUNDS = int(os.environ.get("CRASH_ROUNDS", "300")) // 6


def test_two_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    with crossing(tmp_path, fresh_seed("two bridge kills")) as run:
        run.live(2)


@pytest.mark.crash
def test_no_kill_loses_a_record_or_brings_one_twice(tmp_path: Path) -> None:
    with crossing(tmp_path, fresh_seed("bridge kills")) as run:
        run.live(ROUNDS)
