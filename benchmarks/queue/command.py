"""The command line of the queue benchmark: arguments, rounds, output, exit code."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from benchmarks.arguments import (
    add_directory,
    benchmark_parser,
    directory_in_memory,
    print_facts,
    table_console,
)
from benchmarks.queue import machine
from benchmarks.queue.interruptions import interruptions
from benchmarks.queue.measures import MEASURES, Bench, Measure
from benchmarks.queue.peers import PEERS
from benchmarks.queue.processes import ChildFailed
from benchmarks.queue.report import EVERLOG, Results, print_table

ROUNDS = 5
QUICK_ROUNDS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    options = _parse(arguments)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print(f"the benchmark needs two cores, but may use only {cores}", file=sys.stderr)
        return 2
    bench = Bench(options.dir, cores[0], cores[1], options.quick)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    contenders, measures = _selection(options.only)
    missing = [name for name in contenders if PEERS[name].installed_version() is None]

    before = machine.CpuTime.now()
    facts = machine.describe() | {"interrupted": interruptions(bench)}
    results = _measure(bench, measures, [name for name in contenders if name not in missing], rounds)
    facts |= {
        "noise": machine.CpuTime.now().noise_since(before),
        "pinned": f"sender on core {cores[0]}, receiver on core {cores[1]}",
        "rounds": f"median of {rounds}, interleaved" + (", quick run" if options.quick else ""),
        "queue files": f"{options.dir} ({machine.filesystem_of(options.dir)})",
        "versions": ", ".join(f"{name} {PEERS[name].installed_version()}" for name in contenders),
    }

    console = table_console()
    print_table(console, results, contenders, missing)
    print_facts(console, facts)
    if options.json:
        options.json.write_text(json.dumps({"machine": facts, **results.as_json()}, indent=2) + "\n")
    complete = EVERLOG not in missing and not results.failures
    return 1 if options.check and (results.missed() or not complete) else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = benchmark_parser(
        "queue",
        "The everlog queue side by side with its peers.",
        ROUNDS,
        [*PEERS, *(measure.name for measure in MEASURES)],
    )
    add_directory(parser, directory_in_memory(Path(tempfile.gettempdir())), "the queue files lie")
    return parser.parse_args(arguments)


def _selection(only: Sequence[str]) -> tuple[list[str], list[Measure]]:
    contenders = [name for name in PEERS if name in only] or list(PEERS)
    measures = [measure for measure in MEASURES if measure.name in only] or list(MEASURES)
    return contenders, measures


def _measure(bench: Bench, measures: Sequence[Measure], contenders: Sequence[str], rounds: int) -> Results:
    """Each round takes every measurement of every contender once, so that noise hits all alike."""
    steps = [
        (measure, name)
        for measure in measures
        for name in contenders
        if measure.contenders is None or name in measure.contenders
    ]
    results = Results(rounds_planned=rounds)
    # No thread that redraws the bar now and then: it would do so on a core that is being measured.
    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task("", total=rounds * len(steps))
        for number in range(1, rounds + 1):
            for measure, name in steps:
                step = f"round {number}/{rounds}: {measure.name}, {name}"
                progress.update(task, description=step, refresh=True)
                try:
                    results.add(name, measure.run(bench, PEERS[name]))
                except (ChildFailed, OSError) as error:
                    results.failures.append(f"round {number}, {measure.name}, {name}: {error}")
                progress.advance(task)
    return results
