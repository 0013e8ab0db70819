"""Output of commands: tables on a terminal, plain text in a pipe, JSON on request; errors in one line.

Owns standard output and standard error, the exit codes and the behaviour at signals and broken
pipes. Knows nothing of queues.

    exit 0    done; also when the reader of a pipe has seen enough
    exit 1    an everlog error: one line "error: ..." (or one JSON object) on standard error
    exit 2    wrong usage, with --json also as one JSON object with the code "usage"
    exit 130  interrupted by Ctrl-C,   exit 143  by SIGTERM
"""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args, get_type_hints

import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text
from typer.core import TyperArgument, TyperOption
from typer.models import OptionInfo

from everlog.clock import NS_PER_S, StopEvent
from everlog.errors import EverlogError, Io

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

_BARE_WORD = re.compile(r"[^\s\"\\\x00-\x1f\x7f-\x9f]+")
_BINARY_UNITS = ("KiB", "MiB", "GiB", "TiB")
_LONG_UNITS_S = (("days", 86_400), ("h", 3600), ("min", 60))
_GIVE_UP_CHECK_MS = 100
_FOLDED = 20
# The library keeps the class in different modules from version to version.
_UsageError: Any = typer.BadParameter.__base__
_WRONG_KINDS = {"int_parsing": "is not a whole number", "float_parsing": "is not a number"}
_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan", "dead": "red", "alive": "green"}


def group(help_text: str, example: str) -> typer.Typer:
    """A noun of the command line, to which its verbs are added."""
    return typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help=help_text,
        epilog=f"Example: {example}",
    )


def name_values(app: typer.Typer) -> typer.Typer:
    """Name what follows each option, instead of its type: N for a number, else what the option is called."""
    for command in app.registered_commands:
        assert command.callback is not None
        # Kept, because text that is evaluated again would give other options.
        hints = command.callback.__annotations__ = get_type_hints(command.callback, include_extras=True)
        for name, hint in hints.items():
            for option in getattr(hint, "__metadata__", ()):
                if isinstance(option, OptionInfo) and option.metavar is None:
                    words = next((word for word in option.param_decls or () if word.startswith("--")), name)
                    option.metavar = _value_name(hint.__origin__, words)
    return app


def _value_name(kind: Any, name: str) -> str | None:
    kinds = {each for part in get_args(kind) or (kind,) for each in get_args(part) or (part,)}
    if kinds & {int, float}:
        return "N"
    return name.replace("_", "-").rpartition("-")[2].upper() if kinds & {str, Path} else None


def _hide_types(kind: Any) -> None:
    """Let help show no type of Python: newer versions of the library put one beside arguments and flags."""
    shown = getattr(kind, "display_type_rich", None)
    if shown is not None:

        def without_types(parameter: Any, ctx: Any) -> str | None:
            text: str | None = shown(parameter, ctx=ctx)
            return None if text is None or (text.startswith("<") and "|" not in text) else text.strip("<>")

        kind.display_type_rich = without_types


def _tell_values(kind: Any) -> None:
    """Let an error of usage name the value: newer versions of the library say only what it should be."""
    shown = kind.format_message

    def with_value(error: Any) -> str:
        if (wrong := getattr(error.__cause__, "errors", None)) is not None:
            found, value = wrong()[0], repr(wrong()[0]["input"])
            words = found["msg"].removeprefix("Value error, ")
            words = _WRONG_KINDS.get(found["type"], words.removeprefix("Input "))
            error.message = words if value in words else f"{value} {words}"
        text: str = shown(error)
        return text

    kind.format_message = with_value


_tell_values(typer.BadParameter)
_hide_types(TyperOption)
_hide_types(TyperArgument)


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows of text. Columns whose header ends with '>' are aligned to the right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def print_json(document: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(document, indent=2))


def print_result(document: Any, text: str | Sequence[tuple[str, str]], *, as_json: bool) -> None:
    """Print what a command did: one JSON document, or for a person a sentence or names and values."""
    if as_json:
        print_json(document)
    elif isinstance(text, str):
        print(text)
    else:
        print_fields(text)


@contextmanager
def progress(
    what: str, total: float | None, *columns: ProgressColumn, as_json: bool, per_second: float = 10
) -> Iterator[Callable[[float], None]]:
    """Yield a function that moves a bar on standard error; nothing is drawn without a terminal.

    `total` is None if it is not known before the end. `columns` stand behind the bar.
    """
    from rich.progress import BarColumn, Progress, TextColumn  # which most commands need not wait for

    bar = Progress(
        *(TextColumn("{task.description}"), BarColumn(), *columns),
        console=Console(stderr=True),
        transient=True,
        disable=as_json or not sys.stderr.isatty(),
        refresh_per_second=per_second,
    )
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


def json_line(record: Any) -> str:
    """Return a JSON object as one line."""
    return json.dumps(record, separators=(",", ":")) + "\n"


def write_patiently(text: str, give_up: Callable[[], bool]) -> bool:
    """Write and flush `text`; False if `give_up` said so while the output was blocked.

    A blocked write cannot be interrupted, so this one writes only what fits at once. As long as the output is
    read, the text is written to its end.
    """
    sys.stdout.flush()
    try:
        number = sys.stdout.fileno()
    except (OSError, ValueError):
        sys.stdout.write(text)  # not a real file: a test captures the output
        return True
    rest = memoryview(text.encode(sys.stdout.encoding, sys.stdout.errors or "backslashreplace"))
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    while rest:
        if poll.poll(_GIVE_UP_CHECK_MS):
            rest = rest[os.write(number, rest[: select.PIPE_BUF]) :]
        elif give_up():
            return False
    return True


def print_lines(lines: Sequence[str]) -> None:
    """Print lines of plain text."""
    for line in lines:
        print(line)


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair a line, the values aligned."""
    width = max((len(name) for name, _ in fields), default=0)
    if not is_terminal():
        print_lines([f"{name:<{width}}  {value}" for name, value in fields])
        return
    console = _console()
    for name, value in fields:
        # Not broken into lines: the terminal does that, and what is copied from it stays in one piece.
        line = Text.assemble((f"{name:<{width}}  ", "bold"), (value, _STYLES.get(value, "")))
        console.print(line, soft_wrap=True)


def print_table(table: Table) -> None:
    """Print a table: drawn by rich on a terminal, else aligned columns without any decoration.

    Columns without any content are left out. On a terminal that is too narrow, words of a heading stand below
    each other and long names go on in the next line; where that is not enough, each row becomes a list of
    fields. Nothing is cut, because cut names look the same.
    """
    table = _without_empty_columns(table)
    if not is_terminal():
        print_lines(_plain_table(table))
        return
    console = _console()
    places = range(len(table.columns))
    cells = [max((cell_len(row[place]) for row in table.rows), default=0) for place in places]
    is_tight = _width(table.columns, cells) > console.width
    heads = [column.replace(" ", "\n") if is_tight else column for column in table.columns]
    if _width(heads, cells, _FOLDED if is_tight else None) <= console.width:
        drawn = RichTable(title=table.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
        if is_tight:
            drawn.padding, drawn.pad_edge, drawn.show_edge = (0, 1, 0, 0), False, False
        for head in heads:
            is_number = head.endswith(">")
            justify: Literal["left", "right"] = "right" if is_number else "left"
            drawn.add_column(head.rstrip(">"), justify=justify, no_wrap=is_number, overflow="fold")
        for row in table.rows:
            drawn.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
        console.print(drawn)
        return
    print(table.title)
    for row in table.rows:
        names = (column.rstrip(">") for column in table.columns)
        print_fields([(f"  {name}", cell) for name, cell in zip(names, row, strict=True)])
        print()


def _width(heads: Sequence[str], cells: Sequence[int], folded: int | None = None) -> int:
    """How wide a drawn table is; text that is wider than `folded` goes on in the next line there."""
    width = 3 * len(heads) + 1 if folded is None else 2 * (len(heads) - 1)
    for head, cell in zip(heads, cells, strict=True):
        longest = max(cell, *(len(line) for line in head.rstrip(">").split("\n")))
        width += longest if folded is None or head.endswith(">") else min(longest, folded)
    return width


def _without_empty_columns(table: Table) -> Table:
    used = [place for place in range(len(table.columns)) if any(row[place] for row in table.rows)]
    columns = [table.columns[place] for place in used]
    return Table(table.title, columns, [[row[place] for place in used] for row in table.rows])


def _plain_table(table: Table) -> list[str]:
    rows = [[column.rstrip(">") for column in table.columns], *table.rows]
    widths = [max(len(row[place]) for row in rows) for place in range(len(table.columns))]
    lines = [table.title]
    for row in rows:
        cells = [
            cell.rjust(width) if column.endswith(">") else cell.ljust(width)
            for cell, width, column in zip(row, widths, table.columns, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _console() -> Console:
    # Our own text is never markup or numbers to be coloured: paths may hold brackets.
    return Console(file=sys.stdout, markup=False, highlight=False)


def printable(text: str) -> str:
    """Return `text` as one word that is safe on a terminal: as it is, or quoted as in JSON."""
    return text if _BARE_WORD.fullmatch(text) else json.dumps(text)


def visible_text(payload: bytes) -> str:
    """Return a payload as text in which nothing can steer the terminal."""
    text = payload.decode("utf-8", errors="backslashreplace")
    return "".join(
        character if character in "\n\t" or character.isprintable() else ascii(character)[1:-1]
        for character in text
    )


def one_line(message: str) -> str:
    """Return a message as one line that is safe on a terminal."""
    return visible_text(message.encode("utf-8", "backslashreplace")).replace("\n", "\\n")


def human_bytes(count: int) -> str:
    """Return a number of bytes as a person reads it: 512 B, 1.5 MiB."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(_BINARY_UNITS))
    return f"{count / 1024**power:.1f} {_BINARY_UNITS[power - 1]}"


def human_age(then_ns: int, now_ns: int) -> str:
    """Return how long ago a wall clock time was, as a person says it; 0 is never, the future is now."""
    if then_ns == 0:
        return "never"
    ago_s = max(0, now_ns - then_ns) / NS_PER_S
    for unit, length_s in _LONG_UNITS_S:
        if ago_s >= 2 * length_s:
            return f"{ago_s / length_s:.1f} {unit} ago"
    return f"{ago_s:.1f} s ago"


def human_time(ts_ms: int | None, timespec: str = "seconds") -> str:
    """Return a time in UTC as a person reads it; None is never."""
    if ts_ms is None:
        return "never"
    return datetime.fromtimestamp(ts_ms / 1000, UTC).isoformat(" ", timespec)


def counted(count: int, noun: str) -> str:
    """Return a number with what is counted: 1 segment, 2 segments."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def print_error(error: EverlogError, *, as_json: bool) -> None:
    """Print an error as one line on standard error."""
    print_problem("error", error.code, str(error), as_json=as_json)


def print_warning(code: str, message: str, *, as_json: bool) -> None:
    """Print, on standard error, something that the command got over by itself."""
    print_problem("warning", code, message, as_json=as_json)


def print_problem(
    kind: str, code: str, message: str, detail: dict[str, Any] | None = None, *, as_json: bool
) -> None:
    """Print an error or a warning as one line on standard error; `detail` appears in JSON only."""
    if as_json:
        problem = {"code": code, "message": message}
        line = json.dumps({kind: {**problem, "detail": detail} if detail else problem})
    else:
        line = f"{kind}: {one_line(message)}"
    print(line, file=sys.stderr, flush=True)


@contextmanager
def reporting(*, as_json: bool) -> Iterator[None]:
    """Turn what a command raises into an error line and an exit code."""
    try:
        yield
        sys.stdout.flush()
    except EverlogError as error:
        print_error(error, as_json=as_json)
        raise typer.Exit(1) from None
    except BrokenPipeError:
        discard_output()
        raise typer.Exit(0) from None
    except OSError as error:
        discard_output()
        print_error(Io(f"cannot go on: {error}", error.errno), as_json=as_json)
        raise typer.Exit(1) from None


@contextmanager
def handled_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call `handler` for SIGINT and SIGTERM while the block lasts."""
    previous = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, earlier in previous.items():
            signal.signal(number, earlier)


@contextmanager
def stopped_by_signals() -> Iterator[StopEvent]:
    """Yield an event that SIGINT and SIGTERM set."""
    stopped = StopEvent()
    with handled_signals(lambda *_: stopped.set()):
        yield stopped


def discard_output() -> None:
    """Discard what is still buffered: it is not read, and exiting must not block."""
    try:
        number = sys.stdout.fileno()
    except (OSError, ValueError):
        return  # not a real file (a test captures the output)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


def run_greeting(text: str) -> NoReturn:
    """Print a text and exit."""
    _prepare_streams()
    with reporting(as_json=False):
        print(text, end="", flush=True)
    sys.exit(0)


def _prepare_streams() -> None:
    # Closed by the parent process. Files that are opened later must not get their descriptors.
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A path may hold bytes that are no text; showing them escaped beats failing.
            stream.reconfigure(errors="backslashreplace")


def run(app: typer.Typer, name: str) -> NoReturn:
    """Run a command line of this name and exit."""
    signal.signal(signal.SIGTERM, _terminated)
    _prepare_streams()
    command = typer.main.get_command(app)
    _reflow(command)
    as_json = "--json" in sys.argv[1:]
    try:
        # Not standalone with --json: then errors of usage are printed here, as all others are.
        ended = command(prog_name=name, standalone_mode=not as_json)
        code = ended if isinstance(ended, int) else 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
        if isinstance(end.__context__, BrokenPipeError):
            code = 0  # the libraries that print help call a reader who has seen enough an error
    except typer.Abort:
        code = 1
    except _UsageError as error:
        print_problem("error", "usage", error.format_message(), as_json=True)
        code = error.exit_code
    except OSError as error:
        # From the library, while printing help. Commands report their own errors.
        discard_output()
        print_error(Io(f"cannot go on: {error}", error.errno), as_json=False)
        code = 1
    try:
        sys.stdout.flush()
    except OSError:
        discard_output()
    sys.exit(code)


def _reflow(command: Any) -> None:
    """Let paragraphs of help be as wide as the terminal, not as wide as they are in the code."""
    if command.help:
        paragraphs = inspect.cleandoc(command.help).split("\n\n")
        command.help = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
    for below in getattr(command, "commands", {}).values():
        _reflow(below)


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
