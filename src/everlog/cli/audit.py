"""The commands of `everlog audit`: every seq of topics, queues and bridges is accounted for.

Owns the tables and the shape of the JSON. The rules are in `everlog.bridge`.

    exit 0  everything is explained
    exit 1  a seq is not, or the audit could not be done
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from everlog.cli.options import AsJson
from everlog.cli.output import Table, counted, group, print_error, print_json, print_table, reporting
from everlog.cli.session import ContextName, Key, Url, connected
from everlog.clock import SystemClock
from everlog.errors import EverlogError
from everlog.fs import OsFs

if TYPE_CHECKING:
    from everlog.bridge.audit_bridge import BridgeAudit
    from everlog.bridge.audit_queue import QueueAudit
    from everlog.bridge.audit_topic import TopicAudit

    Audit = TopicAudit | QueueAudit | BridgeAudit

app = group(
    "Account for every seq of topics, queues and bridges; exit code 1 if one is unexplained.",
    "everlog audit topic orders",
)

TOPIC_COLUMNS: Final = (
    "assigned", "live", "deleted", "evicted", "expired", "holes", "unexplained", "disordered",
)  # fmt: skip
QUEUE_COLUMNS: Final = ("assigned", "live", "deleted", "unexplained", "damaged")
BRIDGE_COLUMNS: Final = (
    "forwarded", "present", "gone", "gaps", "under_way", "duplicates", "unexplained",
)  # fmt: skip


@app.command("topic", epilog="Example: everlog audit topic orders trades --json")
def topic_command(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC...", help="Topics; all of the server if none is given."),
    ] = None,
    url: Url = None,
    key: Key = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Account for every seq that topics have given out: live, deleted, evicted, expired, or a hole.

    Reads the topics from their beginning to their present head.
    """
    from everlog.bridge.audit_topic import audit_topic

    with reporting(as_json=as_json), connected(url, key, context) as client:
        names = topics or [summary.topic for summary in client.topics()]
        audits = [audit_topic(client, name) for name in names]
        _report("topic", TOPIC_COLUMNS, audits, as_json)


@app.command("queue", epilog="Example: everlog audit queue ./queue")
def queue_command(
    roots: Annotated[
        list[str],
        typer.Argument(metavar="ROOT...", help="Directories to search for queues, themselves included."),
    ],
    as_json: AsJson = False,
) -> None:
    """Account for every seq of queues: it can be read and is whole, or retention has deleted it."""
    from everlog.bridge.audit_queue import audit_queue
    from everlog.queue.inspect import find_queues, inspect_queue

    with reporting(as_json=as_json):
        paths: list[str] = []
        for root in roots:
            # Says what is missing if there is no queue at all.
            paths += find_queues(OsFs(), root).paths or [inspect_queue(OsFs(), SystemClock(), root).path]
        _report("queue", QUEUE_COLUMNS, [audit_queue(path) for path in paths], as_json)


@app.command("bridge", epilog="Example: everlog audit bridge --queue ./queue")
def bridge_command(
    queue: Annotated[str, typer.Option(metavar="DIR", help="Directory of the queue.")],
    names: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="NAME", help="A bridge; may be repeated. Default: all of the queue."),
    ] = None,
    url: Url = None,
    key: Key = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Account for everything that bridges have forwarded: present on the other side, or gone there since."""
    from everlog.bridge.audit_bridge import audit_bridge
    from everlog.bridge.state import bridge_names

    with reporting(as_json=as_json), connected(url, key, context) as client:
        wanted = names or bridge_names(OsFs(), queue)
        if not wanted:
            raise EverlogError(f"no bridge has run on {queue}; start one with `everlog bridge`")
        audits = [audit_bridge(client, queue, name) for name in wanted]
        _report("bridge", BRIDGE_COLUMNS, audits, as_json)


def _report(noun: str, columns: Sequence[str], audits: Sequence[Audit], as_json: bool) -> None:
    is_sound = all(audit.is_sound for audit in audits)
    if as_json:
        documents: list[Any] = [
            {**msgspec.to_builtins(audit), "is_sound": audit.is_sound} for audit in audits
        ]
        print_json({"is_sound": is_sound, f"{noun}s": documents})
    else:
        rows = [
            [getattr(audit, noun), *(str(getattr(audit, column)) for column in columns), _verdict(audit)]
            for audit in audits
        ]
        headers = [noun, *(f"{column.replace('_', ' ')}>" for column in columns), "verdict"]
        print_table(Table(f"audit of {counted(len(audits), noun)}", headers, rows))
    if not is_sound:
        for audit in audits:
            _complain(noun, audit, as_json)
        raise typer.Exit(1)


def _verdict(audit: Audit) -> str:
    return "sound" if audit.is_sound else "error"


def _complain(noun: str, audit: Audit, as_json: bool) -> None:
    for run in audit.runs:
        is_one = run.first_seq == run.last_seq
        seqs = f"seq {run.first_seq}" if is_one else f"seqs {run.first_seq} to {run.last_seq}"
        problem = EverlogError(f"{noun} {getattr(audit, noun)}: {seqs}: {run.problem}")
        print_error(problem, as_json=as_json)
