"""Which lines of the topics engine the simulation reaches: `python -m tests.simulation.coverage_by_seeds`.

Seeds alone, no other test. Writes `build/proof/coverage.json`: `first_seed`, `last_seed`, `operations` (for
each seed), `seconds`, `lines` and `percent` of all of `src/everlog/topics`, and `modules`, the percentage of
each file of it. The lowest ten are printed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from coverage import Coverage

SOURCE = Path("src/everlog/topics")
REPORT = Path("build/proof/coverage.json")
SHOWN = 10


def measure(seeds: range, operations: int) -> dict[str, object]:
    """Run seeds with every line of the engine watched, from its import on."""
    measured = Coverage(source=[str(SOURCE)], data_file=None, config_file=False)
    measured.start()
    from tests.simulation.__main__ import run_seed

    started = time.monotonic()
    for seed in seeds:
        run_seed(seed, operations)
    measured.stop()
    modules: dict[str, float] = {}
    lines = reached = 0
    for path in sorted(SOURCE.rglob("*.py")):
        _, statements, _, missing, _ = measured.analysis2(str(path))
        lines += len(statements)
        reached += len(statements) - len(missing)
        share = 1 - len(missing) / len(statements) if statements else 1.0
        modules[str(path.relative_to(SOURCE))] = round(100 * share, 1)
    return {
        "first_seed": seeds.start,
        "last_seed": seeds.stop - 1,
        "operations": operations,
        "seconds": round(time.monotonic() - started, 1),
        "lines": lines,
        "percent": round(100 * reached / lines, 1),
        "modules": modules,
    }


def main() -> int:
    """Measure, print the lowest and write all."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.coverage_by_seeds", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="how many, from 0 on")
    parser.add_argument("--operations", type=int, default=120, help="operations of each seed")
    options = parser.parse_args()
    report = measure(range(options.seeds), options.operations)
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2) + "\n")
    modules = report["modules"]
    assert isinstance(modules, dict)
    for name, percent in sorted(modules.items(), key=lambda item: item[1])[:SHOWN]:
        print(f"{percent:6.1f} %  {name}")
    print(f"{report['percent']:6.1f} %  of {report['lines']} lines by {options.seeds} seeds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
