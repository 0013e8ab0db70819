"""`python -m examples.demo`: run the demonstration and say whether anything was lost.

Exit code: 0 nothing lost, 1 something lost or failed, 2 wrong arguments, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from everlog.errors import EverlogError
from examples.demo.audit import Findings, audit
from examples.demo.records import STRATEGIES
from examples.demo.report import Display, make_console, print_findings, to_json
from examples.demo.supervisor import DemoFailed, Supervisor

INTERRUPTED = 130


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="A feed, two strategies and a router exchange orders and fills; one strategy is killed.",
    )
    parser.add_argument(
        "--seconds", type=_at_least(1.0), default=5.0, help="how long the feed sends (default 5)"
    )
    parser.add_argument(
        "--rate", type=_at_least(1000.0), default=10000, help="ticks per second (default 10000)"
    )
    parser.add_argument("--json", action="store_true", help="print what was found as JSON, and nothing else")
    parser.add_argument(
        "--dir", type=Path, help="keep the queues in this directory, which must be new or empty"
    )
    options = parser.parse_args(arguments)
    if options.dir is not None and options.dir.exists() and any(options.dir.iterdir()):
        parser.error(f"--dir {options.dir} is not empty; name a new directory")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run, audit, print; return the exit code."""
    options = parse(arguments)
    console = make_console(quiet=options.json)
    _raise_once_on_signals()
    try:
        with _directory(options.dir) as root:
            findings = _run(root, int(options.seconds * options.rate), int(options.rate), console)
    except KeyboardInterrupt:
        print("interrupted; every process has ended", file=sys.stderr)
        return INTERRUPTED
    except (DemoFailed, EverlogError) as error:
        print(f"the demonstration failed: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(to_json(findings))
    else:
        print_findings(console, findings)
        if options.dir is not None:
            console.print(f"The queues are in {options.dir}.", soft_wrap=True)
    return 0 if findings.zero_loss else 1


def _run(root: Path, ticks: int, rate_per_s: int, console: Console) -> Findings:
    console.print(
        f"{ticks:,} ticks at {rate_per_s:,} per second, an order and a fill for each and every strategy"
    )
    with Display(console, ticks) as display, Supervisor(root, ticks, rate_per_s, display) as supervisor:
        kill = supervisor.run()
        display.note("all processes have ended; reading every queue again from its first record")
        return audit(root, STRATEGIES, kill)


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


def _at_least(least: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = float(text)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least:g}")
        return value

    return number


if __name__ == "__main__":
    sys.exit(main())
