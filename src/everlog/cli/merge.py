"""The command `everlog queue merge`: many queues and archives into one queue, in the order of time.

Owns what it prints; the work is done by `everlog.market.merge`, which is loaded when it is needed.
"""

from __future__ import annotations

from typing import Annotated

import typer

from everlog.cli import output
from everlog.cli.export import chosen_replays
from everlog.cli.options import AsJson, EndTime, StartTime
from everlog.cli.output import counted, printable, reporting


def merge_command(
    queues: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Queues and archives to merge; each stream of an archive counts as one.",
            show_default=False,
        ),
    ],
    into: Annotated[
        str, typer.Option(metavar="QUEUE", help="The new queue; its directory must be empty or absent.")
    ],
    by: Annotated[
        str,
        typer.Option(
            metavar="receive|exchange", help="Time of receipt, or of the exchange where a message has one."
        ),
    ] = "receive",
    start: StartTime = None,
    end: EndTime = None,
    cache: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where blocks of segments in object stores are kept.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the messages of queues and archives to a new queue in the order of time.

    The messages of one event of a venue stay together.
    """
    from everlog.market.merge import merge_into

    with reporting(as_json=as_json):
        found = chosen_replays(queues, start, end, cache=cache)
        done = merge_into(found, into, by)
        document = {"into": into, "queues": queues, "by": by, "messages": done.written}
        text = f"{counted(done.written, 'message')} of {counted(len(found), 'source')} in {printable(into)}"
        output.print_result(document, text, as_json=as_json)
