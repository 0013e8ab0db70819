"""A pytest plugin that counts what long tests do: `-p tests.support.counted`.

Owns the counts: processes that were ended by SIGKILL, fuzzed cases. Each is a property of the report of its
test, which `--junitxml` stores, and the sums are printed at the end. A process that kills itself at a chosen
call is not counted.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Generator
from typing import Any, Final

import pytest

counts: Final = Counter[str]()
KILLS: Final = "kills"
FUZZ_CASES: Final = "fuzz_cases"
FUZZED_REQUESTS: Final = "fuzzed_requests"
NAMES: Final = (KILLS, FUZZ_CASES, FUZZED_REQUESTS)


def _on_audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("os.kill", "os.killpg") and arguments[1] == signal.SIGKILL:
        counts[KILLS] += 1


def pytest_configure() -> None:
    """Begin to look at the signals that this process sends."""
    sys.addaudithook(_on_audit)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Count while the test itself runs; what its fixtures end is no crash."""
    before = counts.copy()
    try:
        return (yield)
    finally:
        item.user_properties.extend((counts - before).items())


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the sums."""
    sums = Counter[str]()
    for report in terminalreporter.stats.get("passed", []):
        sums.update({name: value for name, value in report.user_properties if name in NAMES})
    terminalreporter.write_line(", ".join(f"{name} {count}" for name, count in sorted(sums.items())))
