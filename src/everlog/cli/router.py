"""The commands of `everlog router`: ls, put, show, rm.

Owns what they print and the shape of their JSON. They talk to a running server through `http_api`, as the
commands of `everlog topic` do.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from everlog.cli import output
from everlog.cli.output import Table, printable
from everlog.cli.topic import Document, Session, server_command

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Copy records from one topic of a running server to another.",
    epilog="Example: everlog router put orders-eu orders orders.eu --filter 'eu*'",
)

RouterName = Annotated[str, typer.Argument(metavar="ROUTER", help="Name of the router.", show_default=False)]
Filter = Annotated[
    str | None,
    typer.Option("--filter", metavar="TAG", help="Only records with this tag; a final * means any ending."),
]


def router_path(router: str) -> str:
    """The path of a router below the base of the API."""
    return f"/routers/{quote(router, safe='')}"


@server_command("ls", "everlog router ls --source orders", app)
def ls_command(
    session: Session,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Only names that begin with this.")] = "",
    source: Annotated[str | None, typer.Option(metavar="TOPIC", help="Only those that read here.")] = None,
    dest: Annotated[str | None, typer.Option(metavar="TOPIC", help="Only those that write here.")] = None,
) -> None:
    """List the routers of the server: from where, to where, how many records."""
    wanted = {"prefix": prefix, "source": source, "dest": dest, "page_size": "1000"}
    query = {name: value for name, value in wanted.items() if value}
    routers: list[Document] = []
    while True:
        page = session.api.get("/routers", Document, query)
        routers += page.get("routers", [])
        cursor = page.get("next_cursor")
        if not cursor:
            break
        query["cursor"] = cursor
    if session.as_json:
        output.print_json({"routers": routers})
    elif routers:
        columns = ("router", "source", "dest", "guarantee", "copied>")
        rows = [
            (*(printable(str(router[name])) for name in columns[:4]), str(router["forwarded_total"]))
            for router in routers
        ]
        output.print_table(Table(f"routers of {session.api.place}", columns, rows))
    else:
        some = " like that" if prefix or source or dest else ""
        print(f"no routers{some} on {session.api.place}")


@server_command("put", "everlog router put orders-eu orders orders.eu --filter 'eu*'", app)
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
    create_dest: Annotated[bool, typer.Option(help="Create DEST if there is none.")] = True,
    allow_cycle: Annotated[
        bool, typer.Option("--allow-cycle", help="Let records come back to SOURCE, a few times at most.")
    ] = False,
) -> None:
    """Create a router, or change one between the same topics. Copying begins with the next record."""
    body = {
        "source": source,
        "dest": dest,
        "filter": tag_filter,
        "guarantee": "exactly_once" if exactly_once else "at_least_once",
        "preserve_node": preserve_node,
        "preserve_tag": preserve_tag,
        "create_dest": create_dest,
        "allow_cycle": allow_cycle,
    }
    answer = session.api.call("PUT", router_path(router), Document, body=body)
    if session.as_json:
        output.print_json(answer)
    else:
        done = "created" if answer["created"] else "changed"
        print(f"{printable(router)}: {done}, {printable(source)} -> {printable(dest)}")


@server_command("show", "everlog router show orders-eu", app)
def show_command(session: Session, router: RouterName) -> None:
    """Show one router: its topics, its rules, and how many records it has copied."""
    answer = session.api.get(router_path(router), Document)
    if session.as_json:
        output.print_json(answer)
        return
    match = answer["filter"]
    output.print_fields(
        [
            ("router", printable(str(answer["router"]))),
            ("source", printable(str(answer["source"]))),
            ("dest", printable(str(answer["dest"]))),
            ("filter", "none" if match is None else f"tag {printable(match[2])}"),
            ("guarantee", str(answer["guarantee"])),
            ("copies carry", _carried(answer)),
            ("may close a cycle", "yes" if answer["allow_cycle"] else "no"),
            ("copied", str(answer["forwarded_total"])),
        ]
    )


def _carried(answer: Document) -> str:
    kept = [name for name in ("node", "tag") if answer[f"preserve_{name}"]]
    return " and ".join(kept) or "neither node nor tag"


@server_command("rm", "everlog router rm orders-eu", app)
def rm_command(session: Session, router: RouterName) -> None:
    """Delete a router. What it has copied stays; one that does not exist is no error."""
    answer = session.api.call("DELETE", router_path(router), Document)
    if session.as_json:
        output.print_json(answer)
    else:
        print(f"{printable(router)}: {'deleted' if answer['deleted'] else 'there is no such router'}")
