"""The command `everlog queue merge`: many queues into one, in the order of time.

Owns what it prints; the work is done by `everlog.market.merge`, which is loaded when it is needed.
"""

from __future__ import annotations

from typing import Annotated

import typer

from everlog.cli import output
from everlog.cli.options import AsJson
from everlog.cli.output import counted, printable, reporting


def merge_command(
    queues: Annotated[
        list[str], typer.Argument(metavar="QUEUE...", help="Queues to merge.", show_default=False)
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
    as_json: AsJson = False,
) -> None:
    """Write the messages of queues to a new one in the order of time; events of a venue stay whole."""
    from everlog.market.merge import merge_into
    from everlog.market.replay import Replay

    with reporting(as_json=as_json):
        done = merge_into([Replay(queue) for queue in queues], into, by)
        if as_json:
            output.print_json({"into": into, "queues": queues, "by": by, "messages": done.written})
        else:
            print(
                f"{counted(done.written, 'message')} of {counted(len(queues), 'queue')} in {printable(into)}"
            )
