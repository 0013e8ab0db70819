"""The command line of the client benchmark: arguments, rounds, output, exit code."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence

from benchmarks.arguments import (
    add_directory,
    benchmark_parser,
    directory_on_disk,
    print_facts,
    table_console,
)
from benchmarks.client.measures import FULL, NOTES, QUICK, SECTIONS, measures
from benchmarks.queue import machine
from benchmarks.queue.report import EVERLOG
from benchmarks.server.command import QUICK_ROUNDS, ROUNDS, _measure
from benchmarks.server.measures import CONTENDERS, Bench
from benchmarks.server.measures import QUICK as SERVER_SIZES
from benchmarks.server.report import Results, print_table

NAMES = ("producer", "http", "bridge")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    options = _parse(arguments)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print(f"the benchmark needs two cores, but may use only {cores}", file=sys.stderr)
        return 2
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    contenders = [name for name in CONTENDERS if name in options.only] or list(CONTENDERS)
    every = measures(QUICK if options.quick else FULL)
    wanted = [measure for measure in every if measure.name in options.only] or list(every)
    found = {name: CONTENDERS[name].missing() for name in contenders}
    missing = {name: what for name, what in found.items() if what is not None}

    started_s = time.monotonic()
    before = machine.CpuTime.now()
    facts = machine.describe()
    results = Results(rounds_planned=rounds, sections=SECTIONS)
    bench = Bench(options.dir, cores[0], cores[1], SERVER_SIZES)
    _measure(bench, wanted, [name for name in contenders if name not in missing], results)
    facts |= {
        "noise": machine.CpuTime.now().noise_since(before),
        "pinned": f"server on core {cores[0]}, client on core {cores[1]}",
        "rounds": f"median of {rounds}, interleaved" + (", quick run" if options.quick else ""),
        "took": f"{time.monotonic() - started_s:.0f} s",
    }
    console = table_console()
    print_table(console, results, contenders, missing, "Python clients of everlog and its peers", NOTES)
    print_facts(console, facts)
    if options.json:
        document = {"machine": facts, "missing": missing, **results.as_json()}
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    complete = EVERLOG not in missing and not results.failures
    return 1 if options.check and (results.missed() or not complete) else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = benchmark_parser(
        "client",
        "The Python clients of everlog side by side with those of its peers.",
        ROUNDS,
        [*CONTENDERS, *NAMES],
    )
    add_directory(parser, directory_on_disk(), "the servers keep their data; needs 1 GB free")
    return parser.parse_args(arguments)
