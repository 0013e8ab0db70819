"""The command line of the client benchmark: arguments, rounds, output, exit code."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.client.measures import FULL, NOTES, QUICK, SECTIONS, measures
from benchmarks.engine.command import TABLE_WIDTH, _default_directory
from benchmarks.queue import machine
from benchmarks.queue.command import _directory, _positive
from benchmarks.queue.report import EVERLOG
from benchmarks.server.command import QUICK_ROUNDS, ROUNDS, _measure
from benchmarks.server.measures import CONTENDERS, Bench
from benchmarks.server.measures import QUICK as SERVER_SIZES
from benchmarks.server.report import Results, print_table

NAMES = ("producer", "http")


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
    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH, highlight=False)
    print_table(console, results, contenders, missing, "Python clients of everlog and its peers", NOTES)
    for fact, value in facts.items():
        console.print(f"{fact}: {value}", soft_wrap=True)
    if options.json:
        document = {"machine": facts, "missing": missing, **results.as_json()}
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    complete = EVERLOG not in missing and not results.failures
    return 1 if options.check and (results.missed() or not complete) else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.client",
        description="The Python clients of everlog side by side with those of its peers.",
    )
    parser.add_argument("--rounds", type=_positive, help=f"rounds to take the median of (default {ROUNDS})")
    parser.add_argument("--quick", action="store_true", help="shorter runs and fewer rounds; noisier")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write every number to this file")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        choices=[*CONTENDERS, *NAMES],
        help="only this contender or measurement; may be given several times: %(choices)s",
    )
    parser.add_argument(
        "--dir",
        type=_directory,
        default=_default_directory(),
        help="where the servers keep their data; needs 1 GB free (default %(default)s)",
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    return parser.parse_args(arguments)
