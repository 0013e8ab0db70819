"""The commands of `everlog consumer`: ls, put, show, read, commit, acquire, reset, rm.

Owns what they print.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from everlog.api_types import ConsumerState, Tombstone
from everlog.cli.options import DryRun, FilterText, parse_filter, parse_time_ms
from everlog.cli.output import counted, group, print_fields, printable, write_patiently
from everlog.cli.record_format import renderer
from everlog.cli.session import Session, server_command
from everlog.cli.topic import TopicName
from everlog.cli.topic_reading import GAPS_EXIT_CODE, LIMIT_MAX
from everlog.client import calls
from everlog.client.arguments import Position
from everlog.client.flows import Call
from everlog.errors import ConsumerNotFound

app = group(
    "Stored positions of readers: where each is in its topic, and how far behind.",
    "everlog consumer put orders billing --start earliest",
)

Name = Annotated[str, typer.Argument(metavar="CONSUMER", help="Name of the consumer.", show_default=False)]
Epoch = Annotated[
    int | None, typer.Option("--owner-epoch", min=0, help="Epoch of the owner, if the consumer has had one.")
]
_POSITION = "earliest|latest|SEQ|TIME"
_TIME = "2026-11-18T12:00:00Z"
_TIME_HELP = f"TIME is like {_TIME}"


class _Page(msgspec.Struct):
    """A read whose records stay the text that the server sent."""

    records: list[msgspec.Raw]
    next_from_seq: int
    caught_up: bool
    consumer: ConsumerState
    tombstone: Tombstone | None = None


def _position(text: str) -> Position:
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isascii() and text.isdigit():
        return int(text)
    time_ms = parse_time_ms(text)
    if time_ms is None:
        raise typer.BadParameter(f"{text!r} is neither earliest, latest, a seq, nor a time like {_TIME}")
    return {"time_ms": time_ms}


def _behind(state: ConsumerState) -> str:
    if not state.lag_records:
        return "nothing"
    return f"{counted(state.lag_records, 'record')}, {state.lag_ms / 1000:.1f} s"


@server_command(app, "ls", "everlog consumer ls orders")
def ls_command(session: Session, topic: TopicName) -> None:
    """List the consumers of a topic: cursor, lag in records and seconds, owner."""
    consumers = session.client.consumers(topic)
    columns = ("consumer", "cursor>", "records behind>", "seconds behind>", "at risk", "hold", "owner")
    rows = [
        (
            printable(each.name),
            str(each.cursor),
            str(each.lag_records),
            f"{each.lag_ms / 1000:.1f}",
            "yes" if each.at_risk else "",
            "yes" if each.hold else "",
            printable(each.owner) if each.owner else "",
        )
        for each in consumers
    ]
    session.list("consumers", consumers, columns, rows, f" of {printable(topic)}")


@server_command(app, "put", "everlog consumer put orders billing --start earliest --hold")
def put_command(
    session: Session,
    topic: TopicName,
    consumer: Name,
    start: Annotated[
        str,
        typer.Option(metavar=_POSITION, help=f"Where a new one begins; SEQ itself is read. {_TIME_HELP}."),
    ] = "earliest",
    hold: Annotated[
        bool, typer.Option("--hold", help="Keep records until they are committed, whatever caps and age say.")
    ] = False,
    hold_max_ms: Annotated[
        int | None, typer.Option(min=0, help="Let a record go after this all the same. Default: a day.")
    ] = None,
    expression: FilterText = None,
    node: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Leave out what this node wrote; may be repeated."),
    ] = None,
) -> None:
    """Create a consumer, or change the settings of an existing one, whose cursor stays."""
    done = "changed" if _exists(session, topic, consumer) else "created"
    answer = session.client.put_consumer(
        topic,
        consumer,
        start=_position(start),
        hold=hold,
        hold_max_ms=hold_max_ms,
        filter=parse_filter(expression),
        node=node or None,
    )
    session.report(answer, f"{printable(consumer)}: {done}, cursor {answer.cursor}, behind {_behind(answer)}")


def _exists(session: Session, topic: str, consumer: str) -> bool:
    try:
        session.client.consumer(topic, consumer)
    except ConsumerNotFound:
        return False
    return True


@server_command(app, "show", "everlog consumer show orders billing")
def show_command(session: Session, topic: TopicName, consumer: Name) -> None:
    """Show one consumer: its cursor, its lag, its owner, and whether retention is about to pass it."""
    state = session.client.consumer(topic, consumer)
    if session.as_json:
        session.report(state, "")
        return
    print_fields(
        [
            ("consumer", printable(state.name)),
            ("topic", printable(state.topic)),
            ("cursor", f"{state.cursor} of {state.head_seq}"),
            ("behind", _behind(state)),
            (
                "at risk",
                "yes: records that it has not read are evicted, or soon will be" if state.at_risk else "no",
            ),
            ("holds records", f"for up to {state.hold_max_ms} ms" if state.hold else "no"),
            (
                "filter",
                "none" if state.filter is None else printable(msgspec.json.encode(state.filter).decode()),
            ),
            ("leaves out", printable(", ".join(state.node)) or "nothing"),
            ("owner", f"{printable(state.owner or 'none')}, epoch {state.owner_epoch}"),
        ]
    )


@server_command(app, "read", "everlog consumer read orders billing --commit --count 100")
def read_command(
    session: Session,
    topic: TopicName,
    consumer: Name,
    count: Annotated[
        int | None, typer.Option("--count", "-c", min=1, help="Stop after so many records.")
    ] = None,
    commit: Annotated[
        bool,
        typer.Option("--commit", help="Commit what was printed; otherwise the next read prints it again."),
    ] = False,
    owner_epoch: Epoch = None,
    form: Annotated[
        str, typer.Option("--format", metavar="text|json|raw|TEMPLATE", help="How records are printed.")
    ] = "text",
) -> None:
    """Print what a consumer reads next: with --commit up to the present end, otherwise at most 1000 records.

    A gap is reported on standard error and ends the command with exit code 4.
    """
    render = renderer("json" if session.as_json else form)
    gaps, left, seq = 0, count, None
    while True:
        page = session.client.call(_page(topic, consumer, left, seq, owner_epoch))
        if page.tombstone is not None:
            gaps += 1
            gap = page.tombstone
            message = f"{printable(topic)} lost seq {gap.gap_from} to {gap.gap_to} ({gap.reason})"
            session.warn("gap", message, {"gap_from": gap.gap_from, "gap_to": gap.gap_to})
        write_patiently("".join(render(topic, record) for record in page.records), give_up=lambda: False)
        left = None if left is None else left - len(page.records)
        seq = page.next_from_seq
        if not commit or page.caught_up or left == 0:
            break
    if commit and seq > page.consumer.cursor:
        session.client.commit_consumer(topic, consumer, seq, owner_epoch=owner_epoch)
    if gaps:
        raise typer.Exit(GAPS_EXIT_CODE)


def _page(
    topic: str, consumer: str, left: int | None, commit: int | None, owner_epoch: int | None
) -> Call[_Page]:
    limit = LIMIT_MAX if left is None else min(left, LIMIT_MAX)
    call: Call[Any] = calls.read_consumer(
        topic, consumer, limit=limit, commit=commit, owner_epoch=owner_epoch
    )
    return call.reading(_Page)


@server_command(app, "commit", "everlog consumer commit orders billing 1200")
def commit_command(
    session: Session,
    topic: TopicName,
    consumer: Name,
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=0, help="Last seq processed.", show_default=False)],
    owner_epoch: Epoch = None,
) -> None:
    """Note that everything up to SEQ is processed. To go back, use reset."""
    state = session.client.commit_consumer(topic, consumer, seq, owner_epoch=owner_epoch)
    session.report(state, f"{printable(consumer)}: cursor {state.cursor}, behind {_behind(state)}")


@server_command(app, "acquire", "everlog consumer acquire orders billing $(hostname)")
def acquire_command(
    session: Session,
    topic: TopicName,
    consumer: Name,
    owner: Annotated[
        str, typer.Argument(metavar="OWNER", help="Who owns it from now on.", show_default=False)
    ],
    ttl_ms: Annotated[
        int | None, typer.Option(min=1000, help="Until it reads or commits again, at most. Default: 30 s.")
    ] = None,
) -> None:
    """Become the owner: reads and commits need the printed epoch from now on, earlier ones are refused."""
    answer = session.client.acquire_consumer(topic, consumer, owner, ttl_ms=ttl_ms)
    session.report(answer, f"{printable(consumer)}: owned by {printable(owner)}, epoch {answer.owner_epoch}")


@server_command(app, "reset", "everlog consumer reset orders billing earliest --dry-run")
def reset_command(
    session: Session,
    topic: TopicName,
    consumer: Name,
    to: Annotated[
        str,
        typer.Argument(
            metavar=_POSITION,
            help=f"Where it reads next; SEQ itself is read. {_TIME_HELP}.",
            show_default=False,
        ),
    ],
    dry_run: DryRun = False,
) -> None:
    """Move a cursor forward or back."""
    moved = session.client.reset_consumer(topic, consumer, _position(to), dry_run=dry_run)
    verb = "would move" if dry_run else "moved"
    session.report(
        moved,
        f"{printable(consumer)}: {verb} from {moved.cursor_before} to {moved.cursor}, "
        f"over {counted(moved.records, 'record')}",
    )


@server_command(app, "rm", "everlog consumer rm orders billing")
def rm_command(session: Session, topic: TopicName, consumer: Name) -> None:
    """Delete a consumer with its cursor. The records of the topic stay."""
    answer = session.client.delete_consumer(topic, consumer)
    if not answer.deleted:
        raise ConsumerNotFound(f"topic {topic} has no consumer {consumer}; nothing was deleted")
    session.report(answer, f"{printable(consumer)}: deleted")
