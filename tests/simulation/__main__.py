"""Run simulations from the command line: `python -m tests.simulation --seeds 0..1999`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.simulation.simulator import OPERATIONS_PER_SEED, Simulation, SimulationFailure

_SEEDS_AT_A_TIME = 4  # for each process: the next ones are handed out when these are done


class Job(NamedTuple):
    """One seed and how to run it."""

    seed: int
    operations: int = OPERATIONS_PER_SEED
    verbose: bool = False


class SeedResult(NamedTuple):
    """What one seed did, and why it failed if it did."""

    seed: int
    counts: Counter[str]
    failure: str | None


def run_seed(seed: int, operations: int = OPERATIONS_PER_SEED, *, verbose: bool = False) -> Counter[str]:
    """Run one simulation in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="everlog-simulation-") as root:
        return Simulation(seed, root, operations, verbose=verbose).run()


def run_job(job: Job) -> SeedResult:
    """Run one seed; a failure is part of the result."""
    try:
        return SeedResult(job.seed, run_seed(job.seed, job.operations, verbose=job.verbose), None)
    except SimulationFailure as error:
        return SeedResult(job.seed, Counter(), str(error))


def run_jobs(jobs: list[Job], processes: int) -> Iterator[SeedResult]:
    """Run the seeds in order, side by side if there is more than one process."""
    if processes == 1:
        yield from map(run_job, jobs)
        return
    with ProcessPoolExecutor(processes) as pool:
        for start in range(0, len(jobs), processes * _SEEDS_AT_A_TIME):
            yield from pool.map(run_job, jobs[start : start + processes * _SEEDS_AT_A_TIME])


def parse_seeds(text: str) -> range:
    """Read `7` or `0..99`, both ends included."""
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=parse_seeds, default=range(50), help="one seed or FIRST..LAST")
    parser.add_argument("--operations", type=int, default=OPERATIONS_PER_SEED, help="operations per seed")
    parser.add_argument("--processes", type=int, default=1, help="how many seeds run side by side")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    parser.add_argument("--verbose", action="store_true", help="print every operation")
    parser.add_argument("--json", type=Path, help="where to write what was done")
    return parser.parse_args()


def collect(results: Iterable[SeedResult], keep_going: bool, total: int) -> list[SeedResult]:
    """Take the results as they come, show failures at once, and stop at the first one if asked to."""
    taken: list[SeedResult] = []
    for result in results:
        taken.append(result)
        if result.failure is not None:
            print(f"\n{result.failure}", file=sys.stderr)
            if not keep_going:
                break
        if sys.stderr.isatty():
            print(f"\r{len(taken)} of {total} seeds", end="", file=sys.stderr, flush=True)
    return taken


def document_of(results: list[SeedResult], options: argparse.Namespace, seconds: float) -> dict[str, object]:
    """What a run did, for `--json`."""
    counts = sum((result.counts for result in results), Counter[str]())
    return {
        "first_seed": options.seeds.start,
        "seeds": len(results),
        "failed": [result.seed for result in results if result.failure is not None],
        "operations_per_seed": options.operations,
        "seconds": round(seconds, 1),
        "counts": dict(sorted(counts.items())),
    }


def main() -> int:
    """Run the seeds; report the first failure and how to see it again."""
    options = parse_arguments()
    started = time.monotonic()
    jobs = [Job(seed, options.operations, options.verbose) for seed in options.seeds]
    results = collect(run_jobs(jobs, options.processes), options.keep_going, len(jobs))
    document = document_of(results, options, time.monotonic() - started)
    counts, failed = document["counts"], document["failed"]
    assert isinstance(counts, dict)
    summary = ", ".join(f"{name} {count}" for name, count in counts.items())
    print(f"\n{len(results)} seeds, failed: {failed or 'none'}, {document['seconds']} s: {summary}")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
