"""The command `everlog export`: events as files of other programs, and files of messages back into a queue.

Owns what it prints. The work is done by `everlog.market.tables` and `everlog.market.hftbacktest`, which are
loaded when they are needed: the first needs pyarrow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import TextColumn, TimeElapsedColumn

from everlog.cli import output
from everlog.cli.options import AsJson, EndTime, StartTime
from everlog.cli.output import counted, printable, reporting
from everlog.errors import InvalidConfig

if TYPE_CHECKING:
    from everlog.market.replay import Replay


def export_command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Queues and archives; or one .parquet or .arrow file of kind raw, which becomes a queue.",
            show_default=False,
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FILE",
            help="File to write; .npz (hftbacktest), .parquet, .arrow or .csv. For a file: the queue.",
        ),
    ],
    kind: Annotated[
        str,
        typer.Option(metavar="raw|book|trade|l3", help="What a table holds; raw: every message whole."),
    ] = "raw",
    start: StartTime = None,
    end: EndTime = None,
    symbols: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Only these symbols, or markets with these numbers."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the events of queues and archives to a file, or the messages of a file to a queue."""
    with reporting(as_json=as_json):
        columns = (TextColumn("{task.completed:,} rows"), TimeElapsedColumn())
        with output.progress("exporting", None, *columns, as_json=as_json) as advance:
            if any(os.path.isfile(source) for source in sources):
                rows = _into_queue(sources, to, advance)
            else:
                rows = _into_file(chosen_replays(sources, start, end, symbols), to, kind, advance)
        text = f"{counted(rows, 'row')} in {printable(to)}"
        output.print_result({"to": to, "sources": sources, "rows": rows}, text, as_json=as_json)
        if not rows and not as_json:
            of_kind = "" if kind == "raw" else f" of kind {kind}"
            output.print_warning(
                "no_rows", f"nothing{of_kind} that was chosen is in {', '.join(sources)}", as_json=False
            )


def chosen_replays(
    sources: Sequence[str],
    start: str | None,
    end: str | None,
    symbols: str | None = None,
    *,
    cache: str | None = None,
) -> list[Replay]:
    """Return replays of queues and archives with what was chosen of them."""
    from everlog.archive.sources import replays
    from everlog.market.times import LATEST_NS, parse_time_ns

    chosen = [one for path in sources for one in replays(path, cache=cache)]
    if start is not None or end is not None:
        span = (parse_time_ns(start), parse_time_ns(end, LATEST_NS))
        chosen = [one.between(*span) for one in chosen]
    return [one.symbols(*symbols.split(",")) for one in chosen] if symbols is not None else chosen


def _into_file(chosen: list[Replay], path: str, kind: str, advance: Callable[[int], None]) -> int:
    if path.endswith(".npz"):
        from everlog.market.hftbacktest import write_npz

        if kind != "raw":
            raise InvalidConfig(f"a file of hftbacktest has books and trades; leave out --kind {kind}")
        return write_npz(chosen, path, advance=advance)
    tables = _tables()
    rows: int = tables.write_table(chosen, path, kind, advance=advance)
    return rows


def _into_queue(sources: list[str], queue: str, advance: Callable[[int], None]) -> int:
    tables = _tables()
    if os.path.isfile(queue) or os.path.splitext(queue)[1] in (*tables.FILE_KINDS, ".npz"):
        raise InvalidConfig(f"{queue!r} is a file, and so is the source; a file becomes a queue")
    if os.path.isdir(queue) and os.listdir(queue):
        raise InvalidConfig(f"{queue} is not empty; name a new queue")

    def batches() -> Iterator[Any]:
        for path in sources:
            for batch in tables.read_table(path):
                yield batch
                advance(batch.num_rows)

    rows: int = tables.from_arrow(batches(), queue)
    return rows


def _tables() -> ModuleType:
    try:
        from everlog.market import tables
    except ImportError as error:
        raise InvalidConfig(f"tables need pyarrow ({error}); run: pip install pyarrow") from None
    return tables
