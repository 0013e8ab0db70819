"""The time in which a thread had something to do."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from everlog.server import busy_time


@pytest.mark.parametrize("is_told", [True, False])
def test_work_counts_and_sleep_does_not(
    is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_told:
        monkeypatch.setattr(busy_time, "SCHEDSTAT", str(tmp_path / "absent"))
    started_ns, before_ns = time.monotonic_ns(), busy_time.busy_ns()
    while busy_time.busy_ns() - before_ns < 5_000_000:
        pass
    worked_ns, slept_from_ns = busy_time.busy_ns() - before_ns, busy_time.busy_ns()
    time.sleep(0.05)
    assert worked_ns >= 5_000_000
    assert busy_time.busy_ns() - slept_from_ns < time.monotonic_ns() - started_ns


def test_a_kernel_that_says_something_else_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = tmp_path / "schedstat"
    strange.write_text("no numbers here at all")
    monkeypatch.setattr(busy_time, "SCHEDSTAT", str(strange))
    assert 0 < busy_time.busy_ns() <= time.thread_time_ns()
