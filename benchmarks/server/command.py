"""The command line of the server benchmark: arguments, rounds, output, exit code."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress

from benchmarks.arguments import (
    add_directory,
    benchmark_parser,
    directory_on_disk,
    print_facts,
    table_console,
)
from benchmarks.queue import machine
from benchmarks.queue.processes import ChildFailed
from benchmarks.queue.report import EVERLOG
from benchmarks.server.measures import CONTENDERS, FULL, MEASURES, QUICK, Bench, Measure
from benchmarks.server.report import Results, print_table, sections

ROUNDS = 5
QUICK_ROUNDS = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    options = _parse(arguments)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print(f"the benchmark needs two cores, but may use only {cores}", file=sys.stderr)
        return 2
    sizes = QUICK if options.quick else FULL
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    contenders = [name for name in CONTENDERS if name in options.only] or list(CONTENDERS)
    measures = [measure for measure in MEASURES if measure.name in options.only] or list(MEASURES)
    found = {name: CONTENDERS[name].missing() for name in contenders}
    missing = {name: what for name, what in found.items() if what is not None}

    started_s = time.monotonic()
    before = machine.CpuTime.now()
    facts = machine.describe()
    results = Results(rounds_planned=rounds, sections=sections(sizes))
    bench = Bench(options.dir, cores[0], cores[1], sizes)
    _measure(bench, measures, [name for name in contenders if name not in missing], results)
    facts |= {
        "noise": machine.CpuTime.now().noise_since(before),
        "pinned": f"server on core {cores[0]}, load on core {cores[1]}",
        "rounds": f"median of {rounds}, interleaved" + (", quick run" if options.quick else ""),
        "files": f"{options.dir} ({machine.filesystem_of(options.dir)})",
        "took": f"{time.monotonic() - started_s:.0f} s",
    }

    console = table_console()
    print_table(console, results, contenders, missing)
    print_facts(console, facts)
    if options.json:
        document = {"machine": facts, "missing": missing, **results.as_json()}
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    complete = EVERLOG not in missing and not results.failures
    return 1 if options.check and (results.missed() or not complete) else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = benchmark_parser(
        "server",
        "The everlog topics server side by side with its peers.",
        ROUNDS,
        [*CONTENDERS, *(measure.name for measure in MEASURES)],
    )
    add_directory(parser, directory_on_disk(), "the servers keep their data; needs 5 GB free")
    return parser.parse_args(arguments)


def _measure(bench: Bench, measures: Sequence[Measure], contenders: Sequence[str], results: Results) -> None:
    """Each round takes every measurement of every contender once, so that noise hits all alike."""
    steps = [(measure, name) for measure in measures for name in contenders if name in measure.runs]
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=results.rounds_planned * len(steps))
        for number in range(1, results.rounds_planned + 1):
            for measure, name in steps:
                where = f"round {number}/{results.rounds_planned}: {measure.name}, {name}"
                progress.update(task, description=where)
                try:
                    results.add(name, measure.runs[name](bench))
                except (ChildFailed, OSError) as error:
                    results.failures.append(f"{where}: {error}")
                progress.advance(task)
