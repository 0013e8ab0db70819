"""Plant every fault in a copy of the package and see which check notices it: `make mutants`.

Owns the checks, their order and their limits. The checks first pass without a fault. Then each mutant meets
the check that is expected to notice it, and if that does not, the others in the order of their cost. A mutant
that passes them all fails the run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.mutants.mutant import Mutant, mutated, plant
from tests.mutants.queue_faults import QUEUE_FAULTS
from tests.mutants.router_and_job_faults import ROUTER_AND_JOB_FAULTS
from tests.mutants.topic_faults import TOPIC_FAULTS

ROOT: Final = Path(__file__).resolve().parents[2]
MUTANTS: Final = [*TOPIC_FAULTS, *ROUTER_AND_JOB_FAULTS, *QUEUE_FAULTS]
SEEDS: Final = 60
DETAIL_MAX: Final = 240
_FAILED_SEED: Final = re.compile(r"^seed \d+, operation .*$", re.MULTILINE)
_FAILED_TEST: Final = re.compile(r"^(?:FAILED|ERROR) tests/.*$", re.MULTILINE)


class Check(NamedTuple):
    """Something that fails if a promise is broken: the arguments of Python, and how long it may take."""

    name: str
    arguments: tuple[str, ...]
    limit_s: int


class Outcome(NamedTuple):
    """What came of one check: None as `failure` if it passed."""

    check: str
    failure: str | None
    seconds: float


def _tests(name: str, limit_s: int, *arguments: str) -> Check:
    return Check(name, ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments), limit_s)


TOPIC_CHECKS: Final = (
    Check("simulation", ("-m", "tests.simulation", "--seeds", f"0..{SEEDS - 1}"), 600),
    _tests("jobs", 300, "tests/topics/jobs"),
    _tests(
        "damage", 300, "tests/topics/storage/test_random_damage.py", "tests/topics/storage/test_log_damage.py"
    ),
    _tests("routers", 600, "tests/simulation/test_router_power.py", "tests/topics/routing"),
    _tests(
        "engine",
        600,
        *(f"--ignore=tests/topics/{name}" for name in ("jobs", "routing", "storage")),
        "tests/topics",
    ),
    _tests("storage", 600, "tests/topics/storage"),
)
QUEUE_CHECKS: Final = (
    _tests(
        "queue faults",
        300,
        "tests/queue/test_faults.py",
        "tests/queue/test_interrupted_rolls.py",
        "tests/queue/test_retention.py",
        "tests/queue/test_reader_meta.py",
    ),
    _tests("queue damage", 300, "tests/queue/test_damage.py"),
    _tests(
        "queue power", 600, "tests/queue/test_power_loss.py", "tests/queue/test_recovery_after_power_loss.py"
    ),
)
"""Cheapest first."""


def checks_of(mutant: Mutant) -> list[Check]:
    """The checks that a mutant has to pass to survive, the one expected to notice it first."""
    checks = QUEUE_CHECKS if mutant.file.startswith("queue/") else TOPIC_CHECKS
    return sorted(checks, key=lambda check: check.name != mutant.check)


def run_check(check: Check, package: Path, folder: Path) -> Outcome:
    """Run one check with the package of a folder; one that does not end has noticed something too."""
    folder.chmod(0o755)  # some tests look at files as another user
    (folder / "tmp").mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(package),
        "TMPDIR": str(folder / "tmp"),
        # What fails here must not be tried again in a run without the fault.
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
    }
    started = time.monotonic()
    with subprocess.Popen(
        [sys.executable, *check.arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=check.limit_s)
            failure = None if process.returncode == 0 else describe_failure(output)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            failure = f"does not end within {check.limit_s} s"
    return Outcome(check.name, failure, time.monotonic() - started)


def describe_failure(output: str) -> str:
    """The seed or the test that failed, and what it said."""
    found = _FAILED_SEED.search(output) or _FAILED_TEST.search(output)
    text = found[0] if found is not None else output.strip().rpartition("\n")[2]
    return text[:DETAIL_MAX]


def try_mutant(mutant: Mutant, checks: Sequence[Check]) -> dict[str, Any]:
    """Plant a fault and run the checks until one fails."""
    mutated(mutant)  # before anything is copied: a drifted mutant is an error of the list
    with tempfile.TemporaryDirectory(prefix="everlog-mutant-") as folder:
        package = plant(mutant, Path(folder))
        outcomes: list[Outcome] = []
        for check in checks:
            outcomes.append(run_check(check, package, Path(folder)))
            if outcomes[-1].failure is not None:
                break
    last = outcomes[-1]
    return {
        "name": mutant.name,
        "file": mutant.file,
        "breaks": mutant.breaks,
        "expected": mutant.check,
        "caught_by": last.check if last.failure is not None else None,
        "detail": last.failure,
        "seconds": round(sum(outcome.seconds for outcome in outcomes), 1),
    }


def run_baseline(checks: Sequence[Check], pool: ThreadPoolExecutor) -> dict[str, float]:
    """All checks must pass without a fault; returns the seconds of each."""
    with tempfile.TemporaryDirectory(prefix="everlog-mutant-") as folder:
        package = plant(None, Path(folder))
        outcomes = list(pool.map(lambda check: run_check(check, package, Path(folder)), checks))
    for outcome in outcomes:
        print(f"without a fault: {outcome.check} {outcome.seconds:.1f} s", flush=True)
        if outcome.failure is not None:
            raise SystemExit(f"{outcome.check} fails without a fault: {outcome.failure}")
    return {outcome.check: round(outcome.seconds, 1) for outcome in outcomes}


def show(result: dict[str, Any]) -> dict[str, Any]:
    """Print one line about a mutant."""
    caught = f"caught by {result['caught_by']}" if result["caught_by"] else "SURVIVED"
    if result["caught_by"] not in (None, result["expected"]):
        caught += f" instead of {result['expected']}"
    print(f"{result['name']}: {caught}, {result['seconds']} s: {result['detail']}", flush=True)
    return result


def main() -> int:
    """Run all mutants, or those whose names contain a text; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="mutants whose name or file contains this")
    parser.add_argument("--processes", type=int, default=2, help="how many run side by side")
    parser.add_argument(
        "--no-baseline", action="store_true", help="do not run the checks without a fault first"
    )
    parser.add_argument("--json", type=Path, help="where to write the result")
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if options.only in f"{mutant.name} {mutant.file}"]
    started = time.monotonic()
    with ThreadPoolExecutor(options.processes) as pool:
        wanted = {check.name for mutant in chosen for check in checks_of(mutant)}
        checks = [check for check in (*TOPIC_CHECKS, *QUEUE_CHECKS) if check.name in wanted]
        baseline = {} if options.no_baseline else run_baseline(checks, pool)
        results = list(pool.map(lambda mutant: show(try_mutant(mutant, checks_of(mutant))), chosen))
    survived = [result["name"] for result in results if result["caught_by"] is None]
    seconds = round(time.monotonic() - started)
    print(f"{len(results)} mutants, {len(survived)} survived {survived or ''} in {seconds} s")
    if options.json is not None:
        document = {"seconds": seconds, "seeds": SEEDS, "baseline": baseline, "mutants": results}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
