"""The commands of `everlog router`: ls, put, show, rm. Owns what they print."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from everlog.api_types import RouterState
from everlog.cli.options import parse_filter
from everlog.cli.output import group, print_fields, printable
from everlog.cli.session import Prefix, Session, server_command
from everlog.errors import RouterNotFound, TopicNotFound

app = group(
    "Copy records from one topic of a running server to another.",
    "everlog router put orders-eu orders orders.eu --create --filter 'eu*'",
)

RouterName = Annotated[str, typer.Argument(metavar="ROUTER", help="Name of the router.", show_default=False)]
Filter = Annotated[
    str | None,
    typer.Option(
        "--filter",
        metavar="TAG|JSON",
        help="Only records with this tag, a final * means any ending; or an expression like "
        '\'["data.price","Gt",100]\'.',
    ),
]


@server_command(app, "ls", "everlog router ls --source orders")
def ls_command(
    session: Session,
    prefix: Prefix = "",
    source: Annotated[str | None, typer.Option(metavar="TOPIC", help="Only those that read here.")] = None,
    dest: Annotated[str | None, typer.Option(metavar="TOPIC", help="Only those that write here.")] = None,
) -> None:
    """List the routers of the server: from where, to where, how many records."""
    routers = session.client.routers(prefix or None, source=source or None, dest=dest or None)
    columns = ("router", "source", "dest", "guarantee", "copied>")
    rows = [
        (
            printable(each.router),
            printable(each.source),
            printable(each.dest),
            each.guarantee,
            str(each.forwarded_total),
        )
        for each in routers
    ]
    condition = " like that" if prefix or source or dest else ""
    session.list("routers", routers, columns, rows, condition)


@server_command(app, "put", "everlog router put orders-eu orders orders.eu --create --filter 'eu*'")
def put_command(
    session: Session,
    router: RouterName,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Topic to read.", show_default=False)],
    dest: Annotated[str, typer.Argument(metavar="DEST", help="Topic to write to.", show_default=False)],
    tag_filter: Filter = None,
    exactly_once: Annotated[
        bool, typer.Option("--exactly-once", help="Mark copies with their origin, and never copy twice.")
    ] = False,
    preserve_node: Annotated[bool, typer.Option(help="Let copies carry the node.")] = True,
    preserve_tag: Annotated[bool, typer.Option(help="Let copies carry the tag.")] = True,
    create: Annotated[
        bool, typer.Option("--create", help="Create SOURCE and DEST if there are none.")
    ] = False,
    allow_cycle: Annotated[
        bool, typer.Option("--allow-cycle", help="Let records come back to SOURCE, a few times at most.")
    ] = False,
) -> None:
    """Create a router, or change one between the same topics. Copying begins with the next record.

    Topics that do not exist are refused without --create, because a misspelt name would copy nothing.
    """
    if not create:
        for topic in (source, dest):
            _check_exists(session, topic)
    answer = session.client.put_router(
        router,
        source,
        dest,
        filter=parse_filter(tag_filter) if (tag_filter or "").startswith("[") else tag_filter,
        guarantee="exactly_once" if exactly_once else "at_least_once",
        preserve_node=preserve_node,
        preserve_tag=preserve_tag,
        create_dest=create,
        allow_cycle=allow_cycle,
    )
    done = "created" if answer.created else "changed"
    session.report(answer, f"{printable(router)}: {done}, {printable(source)} -> {printable(dest)}")


def _check_exists(session: Session, topic: str) -> None:
    try:
        session.client.topic(topic, touch=False)
    except TopicNotFound:
        raise TopicNotFound(f"there is no topic {topic}; check the name, or give --create") from None


@server_command(app, "show", "everlog router show orders-eu")
def show_command(session: Session, router: RouterName) -> None:
    """Show one router: its topics, its rules, and how many records it has copied."""
    state = session.client.router(router)
    if session.as_json:
        session.report(state, "")
        return
    print_fields(
        [
            ("router", printable(state.router)),
            ("source", printable(state.source)),
            ("dest", printable(state.dest)),
            ("filter", _filter(state)),
            ("guarantee", state.guarantee),
            ("copies carry", _carried(state)),
            ("may close a cycle", "yes" if state.allow_cycle else "no"),
            ("copied", str(state.forwarded_total)),
            *([("paused", _why_paused(state))] if state.paused else []),
        ]
    )


def _why_paused(state: RouterState) -> str:
    if state.corrupt_seq is None:
        return "a topic at one of its ends is damaged"
    return f"record {state.corrupt_seq} of its source is damaged; see `everlog verify`"


def _filter(state: RouterState) -> str:
    if state.filter is None:
        return "none"
    is_tag = state.filter[0] == "tag" and isinstance(state.filter[-1], str)
    expression = msgspec.json.encode(state.filter).decode()
    return f"tag {printable(state.filter[-1])}" if is_tag else printable(expression)


def _carried(state: RouterState) -> str:
    carried = [("node", state.preserve_node), ("tag", state.preserve_tag)]
    return " and ".join(name for name, is_carried in carried if is_carried) or "neither node nor tag"


@server_command(app, "rm", "everlog router rm orders-eu")
def rm_command(session: Session, router: RouterName) -> None:
    """Delete a router. What it has copied stays."""
    answer = session.client.delete_router(router)
    if not answer.deleted:
        raise RouterNotFound(f"there is no router {router}; nothing was deleted")
    session.report(answer, f"{printable(router)}: deleted")
