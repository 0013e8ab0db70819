"""`python -m examples.demo`: run the chain, leave a report, say whether every message is accounted for.

Exit code: 0 everything explained, 1 something unexplained or failed, 2 wrong arguments, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from everlog.bus import IpcLayout
from everlog.errors import EverlogError
from examples.demo.display import Display, make_console
from examples.demo.evidence import Evidence, gather
from examples.demo.plan import RATE_MAX, RATE_PER_SYMBOL, Plan
from examples.demo.processes import DemoFailed
from examples.demo.records import ticks_dir
from examples.demo.report import PAGE_FILE, TEXT_FILE, as_json, print_report, write_report
from examples.demo.session import Session
from examples.demo.summary import summarize

INTERRUPTED = 130
SECONDS_DEFAULT = 15.0
SYMBOLS_DEFAULT = 4
SYMBOLS_MAX = 200


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="A simulated venue, strategies, bridges, a topics server, a watcher, workers and Spark; "
        "three of the processes are killed on the way, and every message is accounted for at the end.",
    )
    parser.add_argument(
        "--seconds",
        type=_number(2.0, 3600.0),
        default=SECONDS_DEFAULT,
        help=f"how long the venue trades (default {SECONDS_DEFAULT:g})",
    )
    parser.add_argument(
        "--symbols",
        type=_number(1, SYMBOLS_MAX),
        default=SYMBOLS_DEFAULT,
        help=f"how many markets it has (default {SYMBOLS_DEFAULT})",
    )
    parser.add_argument(
        "--rate",
        type=_number(500.0, 1e6),
        help=f"changes of orders per second, all symbols (default {RATE_PER_SYMBOL:g} for each symbol, "
        f"{RATE_MAX:g} at most)",
    )
    parser.add_argument(
        "--no-spark", action="store_true", help="leave out the lake: faster, and needs no Java"
    )
    parser.add_argument(
        "--report", type=Path, default=Path("demo-report"), help="where the report goes (default demo-report)"
    )
    parser.add_argument("--json", action="store_true", help="print what was found as JSON, and nothing else")
    parser.add_argument(
        "--dir", type=Path, help="keep queues, topics and lake in this directory, which must be new or empty"
    )
    parser.add_argument(
        "--serve",
        action="store_true",
        help="keep the server running afterwards, with the console on what the run has left, until Ctrl-C",
    )
    options = parser.parse_args(arguments)
    if options.serve and options.json:
        parser.error("--json prints what was found and ends; leave out --serve")
    if options.dir is not None and options.dir.exists() and any(options.dir.iterdir()):
        parser.error(f"--dir {options.dir} is not empty; name a new directory")
    return options


def plan_of(options: argparse.Namespace) -> Plan:
    """Turn the options into a plan."""
    symbols = int(options.symbols)
    rate = options.rate or min(RATE_MAX, RATE_PER_SYMBOL * symbols)
    return Plan(options.seconds, symbols, rate, not options.no_spark, options.serve)


def main(arguments: list[str] | None = None) -> int:
    """Run, audit, report; return the exit code."""
    options = parse(arguments)
    console = make_console(quiet=options.json)
    _raise_once_on_signals()
    try:
        with _directory(options.dir) as root:
            return _run(root, options, console)
    except KeyboardInterrupt:
        print("interrupted; every process has ended", file=sys.stderr)
        return INTERRUPTED
    except (DemoFailed, EverlogError) as error:
        print(f"the demonstration failed: {error}", file=sys.stderr)
        return 1


def _run(root: Path, options: argparse.Namespace, console: Console) -> int:
    """Run a plan and report on it; if asked, serve what it has left."""
    plan = plan_of(options)
    started_s = time.monotonic()
    display = Display(console, ticks_dir(IpcLayout(root)))
    with Session(root, plan, display) as session:
        with display:
            outcome = session.run()
            display.stage("audit")
            display.note("the chain has ended; reading everything again from its first record")
            assert session.topic is not None, "a session that ended well has read its topic"
            evidence = gather(root, outcome, session.topic)
        code = conclude(evidence, plan, options, console, time.monotonic() - started_s)
        if plan.is_served:
            console.print(f"The console: {session.url}/ (until Ctrl-C).", soft_wrap=True)
            session.serve()
    return code


def conclude(
    evidence: Evidence, plan: Plan, options: argparse.Namespace, console: Console, seconds: float
) -> int:
    """Write and print the report; return the exit code that the verdict asks for."""
    summary = summarize(evidence, plan, seconds)
    write_report(options.report, evidence, summary)
    if options.json:
        print(json.dumps(as_json(evidence, summary)))
    else:
        print_report(console, evidence, summary)
        places = f"The report: {options.report / PAGE_FILE} (opens offline), {options.report / TEXT_FILE}."
        console.print(places, soft_wrap=True)
        if options.dir is not None:
            console.print(f"Queues, topics and lake are in {options.dir}.", soft_wrap=True)
    return 0 if summary.is_sound else 1


@contextlib.contextmanager
def _directory(wanted: Path | None) -> Iterator[Path]:
    """Yield the directory to keep, or one that is removed afterwards."""
    if wanted is not None:
        wanted.mkdir(parents=True, exist_ok=True)
        yield wanted.resolve()  # the processes have another working directory
    else:
        with tempfile.TemporaryDirectory(prefix="everlog-demo-") as directory:
            yield Path(directory)


def _raise_once_on_signals() -> None:
    """Let Ctrl-C and SIGTERM end the run in an orderly way; a second one must not disturb that."""

    def interrupt(*_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)


def _number(least: float, most: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = float(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not between {least:g} and {most:g}")
        return value

    return number


if __name__ == "__main__":
    sys.exit(main())
