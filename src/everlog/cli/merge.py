"""The command `everlog queue merge`: many queues and archives into one queue, in the order of time.

Owns what it prints; the work is done by `everlog.market.merge`, which is loaded when it is needed.
"""

from __future__ import annotations

from typing import Annotated

import typer

from everlog.cli import output
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
    from everlog.archive.sources import replays
    from everlog.market.merge import merge_into
    from everlog.market.times import LATEST_NS, parse_time_ns

    with reporting(as_json=as_json):
        found = [one for path in queues for one in replays(path, cache=cache)]
        if start is not None or end is not None:
            span = (parse_time_ns(start), parse_time_ns(end, LATEST_NS))
            found = [one.between(*span) for one in found]
        done = merge_into(found, into, by)
        if as_json:
            output.print_json({"into": into, "queues": queues, "by": by, "messages": done.written})
        else:
            print(
                f"{counted(done.written, 'message')} of {counted(len(found), 'source')} in {printable(into)}"
            )
