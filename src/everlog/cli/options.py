"""Arguments and options that several commands share, so that they are called and explained alike."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

if TYPE_CHECKING:
    from everlog.cli.tail import Start

QueuePath = Annotated[
    str, typer.Argument(metavar="QUEUE", help="Directory of the queue.", show_default=False)
]
RootPath = Annotated[
    str, typer.Argument(metavar="ROOT", help="Directory to search for queues, itself included.")
]
FilterText = Annotated[
    str | None,
    typer.Option("--filter", metavar="JSON", help='Only records that match, like \'["tag","Eq","eu"]\'.'),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]

Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Wait for more. Ctrl-C or SIGTERM ends it with exit code 0.")
]
ReaderName = Annotated[
    str | None,
    typer.Option(
        "--reader",
        metavar="NAME",
        help="Read under this name: go on where it left off and commit what was printed; it counts for "
        "retention. Without a name nothing is left behind.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen; change nothing.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Stop after so many messages.")]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="earliest|latest|SEQ",
        help="Where to start; SEQ itself is included. Default: the oldest message, or where the named reader "
        "left off.",
    ),
]

BenchPath = Annotated[
    str | None,
    typer.Option(
        "--queue-path", metavar="DIR", help="New or empty directory to measure in. Default: a temporary one."
    ),
]
Messages = Annotated[int, typer.Option("--messages", min=1, help="How many messages of each size.")]
ReadBack = Annotated[bool, typer.Option("--read", help="Also read the messages back and check them.")]
Keep = Annotated[bool, typer.Option("--keep", help="Leave the queue for a closer look.")]


def parse_filter(text: str | None) -> list[Any] | None:
    """Parse the value of --filter; the server says what is wrong with an expression."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=list[Any])
    except msgspec.MsgspecError as error:
        raise typer.BadParameter(f"--filter {text!r} is no JSON array: {error}") from None


def parse_time_ms(text: str) -> int | None:
    """A time like 2026-11-18T12:00:00Z as milliseconds, None if it is none; without a zone it is local."""
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def parse_start(value: str | None) -> Start:
    """Parse the value of --from; anything else than a place or a seq is wrong usage."""
    # Imported here: the commands that talk to a server share options, but know no queue.
    from everlog.queue import StartMode

    if value is None:
        return None
    if value in (StartMode.EARLIEST, StartMode.LATEST):
        return StartMode(value)
    if value.isascii() and value.isdigit():
        return int(value)
    raise typer.BadParameter(f"--from {value!r} is neither 'earliest', 'latest' nor a sequence number")


StartTime = Annotated[
    str | None,
    typer.Option(
        "--start",
        metavar="TIME",
        help="Begin at this time of the messages, inclusive: 2026-11-18T12:00 (UTC without a zone), or ns.",
    ),
]
EndTime = Annotated[
    str | None, typer.Option("--end", metavar="TIME", help="End at this time of the messages, exclusive.")
]
Deep = Annotated[
    bool,
    typer.Option("--deep", help="Read everything: check every record, its seq, every index and meta file."),
]
