"""Which lines of the topics engine the simulation reaches: `python -m tests.simulation.coverage_by_seeds`.

Seeds alone, no other test. `--json FILE` writes `seeds` (how many, from 0 on), `operations_per_seed`, and
`coverage`: reached lines and all lines of each file of `src/everlog/topics`. The lowest ten are printed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from coverage import Coverage

SOURCE = Path("src/everlog/topics")
SHOWN = 10


def measure(seeds: int, operations: int) -> dict[str, tuple[int, int]]:
    """Run seeds with every line of the engine watched, from its import on; reached and all lines by file."""
    measured = Coverage(source=[str(SOURCE)], data_file=None, config_file=False)
    measured.start()
    from tests.simulation.__main__ import run_seed

    for seed in range(seeds):
        run_seed(seed, operations)
    measured.stop()
    files: dict[str, tuple[int, int]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        _, statements, _, missing, _ = measured.analysis2(str(path))
        files[str(path.relative_to(SOURCE))] = (len(statements) - len(missing), len(statements))
    return files


def main() -> int:
    """Measure, print the lowest and write all."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.coverage_by_seeds", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="how many, from 0 on")
    parser.add_argument("--operations", type=int, default=120, help="operations of each seed")
    parser.add_argument("--json", type=Path, help="where to write what was reached")
    options = parser.parse_args()
    files = measure(options.seeds, options.operations)
    percents = {name: 100 * reached / lines for name, (reached, lines) in files.items() if lines}
    for name, percent in sorted(percents.items(), key=lambda item: item[1])[:SHOWN]:
        print(f"{percent:6.1f} %  {name}")
    reached, lines = (sum(counts) for counts in zip(*files.values(), strict=True))
    print(f"{100 * reached / lines:6.1f} %  of {lines} lines by {options.seeds} seeds")
    if options.json is not None:
        document = {"seeds": options.seeds, "operations_per_seed": options.operations, "coverage": files}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
