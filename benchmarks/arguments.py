"""The command line that all benchmarks share: arguments, where files lie, what is said of the machine."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import Console

from benchmarks.queue import machine

SHARED_MEMORY = Path("/dev/shm")
TABLE_WIDTH = 150
MEMORY_FILESYSTEMS = {"tmpfs", "ramfs"}


def benchmark_parser(
    name: str, description: str, rounds: int, choices: Iterable[str]
) -> argparse.ArgumentParser:
    """A parser with what every benchmark takes; `choices` are the names that --only may choose."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--rounds", type=positive, help=f"rounds to take the median of (default {rounds})")
    parser.add_argument("--quick", action="store_true", help="small sizes and fewer rounds; noisier")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write every number to this file")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        choices=list(choices),
        help="only this; may be given several times: %(choices)s",
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    return parser


def add_directory(parser: argparse.ArgumentParser, default: Path, what: str) -> None:
    """Let the user say where files lie; `what` says which, and how much room they need."""
    parser.add_argument("--dir", type=directory, default=default, help=f"where {what} (default %(default)s)")


def positive(text: str) -> int:
    """A number of rounds."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} rounds measure nothing; give 1 or more")
    return value


def directory(text: str) -> Path:
    """A directory that is there."""
    path = Path(text).resolve()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is not a directory; create it first")
    return path


def directory_on_disk() -> Path:
    """The first usual place for temporary files that is on a disk."""
    places = [Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd()]
    on_disk = (place for place in places if machine.filesystem_of(place) not in MEMORY_FILESYSTEMS)
    return next((place for place in on_disk if place.is_dir()), places[0])


def directory_in_memory(otherwise: Path) -> Path:
    """Where files stay in memory, if there is such a place."""
    return SHARED_MEMORY if SHARED_MEMORY.is_dir() else otherwise


def table_console() -> Console:
    """Where tables go: as wide as the terminal, or as wide as they need."""
    return Console(width=None if sys.stdout.isatty() else TABLE_WIDTH, highlight=False)


def print_facts(console: Console, facts: Mapping[str, object]) -> None:
    """Say below a table what it was measured on."""
    for fact, value in facts.items():
        console.print(f"{fact + ':':<13}{value}", soft_wrap=True)
