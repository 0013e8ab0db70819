"""Run simulations from the command line: `python -m tests.simulation --seeds 0..1999`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter

from tests.simulation.simulator import OPERATIONS_PER_SEED, Simulation, SimulationFailure


def run_seed(seed: int, operations: int = OPERATIONS_PER_SEED, *, verbose: bool = False) -> Counter[str]:
    """Run one simulation in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="everlog-simulation-") as root:
        return Simulation(seed, root, operations, verbose=verbose).run()


def parse_seeds(text: str) -> range:
    """Read `7` or `0..99`, both ends included."""
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)


def main() -> int:
    """Run the seeds; report the first failure and how to see it again."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=parse_seeds, default=range(50), help="one seed or FIRST..LAST")
    parser.add_argument("--operations", type=int, default=OPERATIONS_PER_SEED, help="operations per seed")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    parser.add_argument("--verbose", action="store_true", help="print every operation")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    failed: list[int] = []
    started = time.monotonic()
    for done, seed in enumerate(options.seeds, 1):
        try:
            counts += run_seed(seed, options.operations, verbose=options.verbose)
        except SimulationFailure as failure:
            print(f"\n{failure}", file=sys.stderr)
            failed.append(seed)
            if not options.keep_going:
                break
        if sys.stderr.isatty():
            print(f"\r{done} of {len(options.seeds)} seeds", end="", file=sys.stderr, flush=True)
    took_s = time.monotonic() - started
    summary = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    print(f"\n{len(options.seeds)} seeds, {len(failed)} failed {failed or ''} in {took_s:.1f} s: {summary}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
