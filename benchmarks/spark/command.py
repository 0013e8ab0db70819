"""The command line of the Spark benchmark: arguments, sessions, output, exit code."""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.arguments import add_directory, benchmark_parser, print_facts, table_console
from benchmarks.engine.report import Results
from benchmarks.queue import machine
from benchmarks.spark.costs import core_costs
from benchmarks.spark.measures import (
    COMPARED,
    FULL,
    MEASURES,
    QUICK,
    TURN_OVER,
    Measured,
    Numbers,
    Sizes,
    prepare,
    request,
)
from benchmarks.spark.report import print_table, sections

COSTS = "costs"
ROUNDS = 5
QUICK_ROUNDS = 1
TURNS_A_ROUND = 2
"""When one core is compared with two, which takes only a few seconds: the more turns, the less does it matter
what else the machine does in one of them."""
CORES = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    options = _parse(arguments)
    sizes = QUICK if options.quick else FULL
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    started_s = time.monotonic()
    facts = machine.describe()
    results = Results(sections(sizes))
    with tempfile.TemporaryDirectory(prefix="everlog-bench-", dir=options.dir) as scratch:
        measure(Path(scratch), sizes, rounds, options.only or [COSTS, *MEASURES], results)
    facts |= {
        "rounds": f"median of {rounds} after a warm-up" + (", quick run" if options.quick else ""),
        "files": f"{options.dir} ({machine.filesystem_of(options.dir)})",
        "took": f"{time.monotonic() - started_s:.0f} s",
    }
    console = table_console()
    print_table(console, results)
    print_facts(console, facts)
    if options.json:
        options.json.write_text(json.dumps({"machine": facts, **results.as_json()}, indent=2) + "\n")
    return 1 if options.check and (results.missed() or results.failures) else 0


def measure(folder: Path, sizes: Sizes, rounds: int, names: list[str], results: Results) -> None:
    """Measure without Spark, with two cores, and with one and with two what has to scale."""
    prepare(folder, sizes)
    if COSTS in names:
        results.add(core_costs(folder, str(folder / "orders"), sizes.scan_records // 5))
    names = [name for name in names if name != COSTS]
    if not names:
        return
    for numbers in _in_turns([_Session(folder, sizes, CORES, names)], rounds, results)[0]:
        results.add(numbers)
    compared = [name for name in COMPARED if name in names]
    if not compared:
        return
    # A session for each number of cores, with nothing else measured between, one look here and one there:
    # what the machine does in the meantime is the same for both.
    pair = [_Session(folder, sizes, cores, compared, compared=True) for cores in (1, CORES)]
    one, two = _in_turns(pair, rounds * TURNS_A_ROUND, results)
    for name in compared:
        number = COMPARED[name].number
        pairs = zip(_values(two, number), _values(one, number), strict=False)
        for with_two, with_one in pairs:
            results.add({f"scale_{name}": with_two / with_one})


def _values(found: list[Numbers], number: str) -> list[float]:
    return [numbers[number] for numbers in found if number in numbers]


class _Session:
    """A process with a session of so many cores; it measures a round whenever it is its turn."""

    def __init__(
        self, folder: Path, sizes: Sizes, cores: int, names: list[str], *, compared: bool = False
    ) -> None:
        self.cores = cores
        self._out = folder / f"numbers-{cores}.json"
        self._said = folder / f"said-{cores}.txt"
        asked = request(folder, sizes, cores, names, compared, self._out)
        with self._said.open("w") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.spark.measures", asked],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )

    def take_turn(self) -> None:
        """Return when the round is over, or the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            if line.strip() == TURN_OVER:
                return

    def finish(self, results: Results) -> list[Numbers]:
        """End it; return the numbers of all rounds. What a process says that fails is in the table."""
        self._process.communicate()
        if self._process.returncode != 0:
            results.failures.append(f"{self.cores} cores: {self._said.read_text()}")
            return []
        measured = Measured(*json.loads(self._out.read_text()))
        results.failures.extend(measured.failures)
        return measured.numbers


def _in_turns(sessions: list[_Session], rounds: int, results: Results) -> list[list[Numbers]]:
    for _ in range(rounds + 1):
        for session in sessions:
            session.take_turn()
    return [session.finish(results) for session in sessions]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = benchmark_parser("spark", "Queues and topics in Spark, local[2].", ROUNDS, [COSTS, *MEASURES])
    add_directory(parser, Path(tempfile.gettempdir()), "the queues lie; needs 10 GB free")
    return parser.parse_args(arguments)
