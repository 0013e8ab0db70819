"""The command line of the engine benchmark: arguments, rounds, output, exit code."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from benchmarks.arguments import (
    add_directory,
    benchmark_parser,
    directory_in_memory,
    directory_on_disk,
    print_facts,
    table_console,
)
from benchmarks.engine.measures import FULL, MEASURES, QUICK, Bench, Measure
from benchmarks.engine.report import Results, print_table, sections
from benchmarks.queue import machine
from benchmarks.queue.processes import ChildFailed

ROUNDS = 5
QUICK_ROUNDS = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    options = _parse(arguments)
    sizes = QUICK if options.quick else FULL
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    cores = sorted(os.sched_getaffinity(0))
    core = cores[0]
    helper_cores = (core,) if options.one_core or len(cores) < 2 else (cores[1],)

    started_s = time.monotonic()
    before = machine.CpuTime.now()
    facts = machine.describe()
    chosen = [measure for measure in MEASURES if measure.name in options.only] or list(MEASURES)
    with tempfile.TemporaryDirectory(prefix="everlog-bench-", dir=options.dir) as scratch:
        results = _measure(
            Bench(Path(scratch), directory_in_memory(options.dir), core, helper_cores, sizes, rounds), chosen
        )
    facts |= {
        "noise": machine.CpuTime.now().noise_since(before),
        "pinned": f"engine on core {core}, its sync threads on core {helper_cores[0]}",
        "rounds": f"median of {rounds}, interleaved" + (", quick run" if options.quick else ""),
        "files": f"{options.dir} ({machine.filesystem_of(options.dir)})",
        "took": f"{time.monotonic() - started_s:.0f} s",
    }

    console = table_console()
    print_table(console, results)
    print_facts(console, facts)
    if options.json:
        options.json.write_text(json.dumps({"machine": facts, **results.as_json()}, indent=2) + "\n")
    return 1 if options.check and (results.missed() or results.failures) else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = benchmark_parser(
        "engine", "The topics engine inside one process.", ROUNDS, [measure.name for measure in MEASURES]
    )
    add_directory(parser, directory_on_disk(), "the data directories lie; needs 20 GB free")
    parser.add_argument("--one-core", action="store_true", help="the engine's threads share its core")
    return parser.parse_args(arguments)


def _measure(bench: Bench, measures: Sequence[Measure]) -> Results:
    """Interleaved rounds first, so that noise hits all alike; then what takes its rounds by itself."""
    steps = [
        (f"round {number}/{bench.rounds}", measure)
        for number in range(1, bench.rounds + 1)
        for measure in measures
        if not measure.once
    ]
    steps += [("once", measure) for measure in measures if measure.once]
    results = Results(sections(bench.sizes))
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(steps))
        for when, measure in steps:
            progress.update(task, description=f"{when}: {measure.name}")
            try:
                for numbers in measure.run(bench):
                    results.add(numbers)
            except (ChildFailed, OSError) as error:
                results.failures.append(f"{when}, {measure.name}: {error}")
            progress.advance(task)
    return results
