"""`kill -9` of a reader, CRASH_ROUNDS times: it resumes at its commit, nothing lost, little repeated."""

import os
from pathlib import Path

import pytest

from tests.support.crashes import crash_readers
from tests.support.processes import fresh_seed

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("CRASH_ROUNDS", "300"))


def test_a_killed_reader_resumes_at_its_last_commit(tmp_path: Path) -> None:
    assert crash_readers(tmp_path / "queue", ROUNDS, fresh_seed("readers")) > ROUNDS
