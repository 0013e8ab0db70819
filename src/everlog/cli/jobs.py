"""The commands of `everlog jobs`: ls, peek, redrive.

Owns what they print and the shape of their JSON. They talk to a running server through `http_api`, as the
commands of `everlog topic` do.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
import typer

from everlog.cli import output
from everlog.cli.output import Table, one_line, printable
from everlog.cli.topic import Document, Session, server_command
from everlog.client.http_api import ApiFailed, topic_path
from everlog.errors import InvalidRequest

PEEK_DEFAULT: Final = 10
PEEK_MAX: Final = 1000
PAGE: Final = 100
DATA_SHOWN: Final = 80
NODE: Final = "everlog-redrive"
MARK: Final = "$dead_letter_"

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Look at the job queues of a running server, and bring back what failed.",
    epilog="Example: everlog jobs ls",
)

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.", show_default=False)]


# -- ls ------------------------------------------------------------------------------------


@server_command("ls", "everlog jobs ls --prefix mail.", app)
def ls_command(
    session: Session,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Only names that begin with this.")] = "",
) -> None:
    """List the queues of the server: jobs that are ready, leased, or were given up."""
    queues = list(_queues(session, prefix))
    if session.as_json:
        output.print_json({"queues": queues})
    elif queues:
        columns = ("queue", "ready>", "in flight>", "delayed>", "dead lettered>", "dead letters go to")
        rows = [_row(queue) for queue in queues]
        output.print_table(Table(f"queues of {session.api.place}", columns, rows))
    else:
        print(f"no queues{f' that begin with {printable(prefix)}' if prefix else ''} on {session.api.place}")


def _queues(session: Session, prefix: str) -> Iterator[Document]:
    """The queues in the order of their names. The list does not tell them from logs, so each is asked for."""
    query = {"prefix": prefix, "page_size": "1000"}
    while True:
        page = session.api.get("/topics", Document, query)
        for listed in page["topics"]:
            try:
                state = session.api.get(topic_path(listed["topic"]), Document, {"touch": "false"})
            except ApiFailed as error:
                if error.code != "topic_not_found":
                    raise
                continue  # deleted meanwhile
            if isinstance(state.get("queue"), dict):
                yield _summary(state)
        if not page.get("next_cursor"):
            return
        query["cursor"] = page["next_cursor"]


def _summary(state: Document) -> Document:
    queue = state["queue"]
    return {
        "queue": state["topic"],
        **queue,
        "delayed": max(0, state["count"] - queue["ready"] - queue["in_flight"]),
        "dead_letter": state["config"]["dead_letter"],
    }


def _row(queue: Document) -> tuple[str, ...]:
    numbers = (str(queue[name]) for name in ("ready", "in_flight", "delayed", "dead_lettered"))
    return (printable(queue["queue"]), *numbers, printable(queue["dead_letter"] or "-"))


# -- peek ----------------------------------------------------------------------------------


@server_command("peek", "everlog jobs peek mail --count 3", app)
def peek_command(
    session: Session,
    queue: QueueName,
    count: Annotated[
        int, typer.Option("--count", "-c", min=1, max=PEEK_MAX, help="How many jobs.")
    ] = PEEK_DEFAULT,
) -> None:
    """Show the oldest jobs of a queue without claiming them. Some of them may be leased right now."""
    state = session.api.get(topic_path(queue), Document, {"touch": "false"})
    if not isinstance(state.get("queue"), dict):
        raise InvalidRequest(f"{queue} is a log, not a queue; `everlog topic read` shows its records")
    body = {"limit": count, "include_tags": True}
    jobs: list[Document] = session.api.call("POST", topic_path(queue, "/diff"), Document, body=body)[
        "records"
    ]
    if session.as_json:
        output.print_json({**_summary(state), "jobs": jobs})
        return
    summary = _summary(state)
    told = ", ".join(
        f"{summary[name]} {name.replace('_', ' ')}" for name in ("ready", "in_flight", "delayed")
    )
    print(f"{printable(queue)}: {told}")
    if jobs:
        rows = [
            (str(job["$seq"]), _time(job["$ts"]), printable(job.get("$tag", "-")), _cut(job)) for job in jobs
        ]
        output.print_table(Table("oldest jobs", ("seq>", "since", "tag", "data"), rows))


def _time(ts_ms: int) -> str:
    return datetime.fromtimestamp(ts_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")


def _cut(job: Document) -> str:
    text = one_line(msgspec.json.encode(job["data"]).decode())
    return text if len(text) <= DATA_SHOWN else text[: DATA_SHOWN - 1] + "…"


# -- redrive -------------------------------------------------------------------------------


class Letter(msgspec.Struct):
    """A dead letter, as reading or claiming it gives it; what is sent again is the text that was stored."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    data: msgspec.Raw
    tag: str | None = msgspec.field(name="$tag", default=None)
    node: str | None = msgspec.field(name="$node", default=None)
    meta: dict[str, msgspec.Raw] = {}
    lease_id: str = ""

    def source(self) -> str | None:
        """The queue that gave it up; None if nothing says so."""
        text = self.meta.get(f"{MARK}from")
        return None if text is None else msgspec.json.decode(text, type=str)

    def again(self) -> Document:
        """The job as it was before it was given up."""
        record: Document = {"data": self.data}
        meta = {name: value for name, value in self.meta.items() if not name.startswith(MARK)}
        for name, value in (("tag", self.tag), ("node", self.node), ("meta", meta or None)):
            if value is not None:
                record[name] = value
        return record


class _Letters(msgspec.Struct):
    """A page of letters, read or claimed."""

    records: list[Letter] = []
    claimed: list[Letter] = []
    tombstone: dict[str, Any] | None = None


class _Appended(msgspec.Struct):
    """What the server says to an append."""

    deduped: bool


@server_command("redrive", "everlog jobs redrive mail.dead --max 100", app)
def redrive_command(
    session: Session,
    dead_letters: Annotated[
        str,
        typer.Argument(metavar="DEAD_LETTER_TOPIC", help="Where the given-up jobs are.", show_default=False),
    ],
    to: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="Send all of them there, not to where they were.")
    ] = None,
    most: Annotated[int | None, typer.Option("--max", min=1, help="Bring back so many at most.")] = None,
) -> None:
    """Bring given-up jobs back to their queues, oldest first, and delete them here.

    A job is deleted here only after its queue has taken it, and taken once if the command is run again.
    """
    state = session.api.get(topic_path(dead_letters), Document, {"touch": "false"})
    drive = _drive_claimed if isinstance(state.get("queue"), dict) else _drive_read
    done: Counter[str] = Counter()
    try:
        drive(session, dead_letters, to, most, done)
    finally:
        _print_redriven(session, dead_letters, done)


def _drive_read(session: Session, topic: str, to: str | None, most: int | None, done: Counter[str]) -> None:
    """From a log: letters go in the order of seq, so that all below the last one can be deleted."""
    while most is None or done.total() < most:
        limit = PAGE if most is None else min(PAGE, most - done.total())
        body = {"limit": limit, "include_tags": True}
        page = session.api.call("POST", topic_path(topic, "/diff"), _Letters, body=body)
        if not page.records:
            return
        if page.tombstone is not None and not done:
            gap = f"records {page.tombstone['gap_from']} to {page.tombstone['gap_to']} of {topic}"
            session.warn("gap", f"{gap} were lost before they were brought back", page.tombstone)
        last_seq = 0
        try:
            for letter in page.records:
                done[_send(session, topic, letter, to)] += 1
                last_seq = letter.seq
        finally:
            if last_seq:
                before = {"before_seq": last_seq + 1}
                session.api.call("POST", topic_path(topic, "/delete"), Document, body=before, repeatable=True)


def _drive_claimed(
    session: Session, topic: str, to: str | None, most: int | None, done: Counter[str]
) -> None:
    """From a queue: letters are claimed, so that no worker has them at the same time."""
    first = session.api.call("POST", topic_path(topic, "/diff"), _Letters, body={"limit": 1})
    for letter in first.records:
        _target(topic, letter, to)  # a claim counts as a delivery, so jobs that are no letters are left alone
    while most is None or done.total() < most:
        limit = PAGE if most is None else min(PAGE, most - done.total())
        body: Document = {"node": NODE, "max": limit}
        page = session.api.call("POST", topic_path(topic, "/claim"), _Letters, body=body)
        if not page.claimed:
            return
        nodes = _nodes(session, topic, page.claimed[0].seq, page.claimed[-1].seq)
        sent: list[Letter] = []
        try:
            for letter in page.claimed:
                letter.node = nodes.get(letter.seq)
                done[_send(session, topic, letter, to)] += 1
                sent.append(letter)
        finally:
            _settle(session, topic, "ack", sent)
            _settle(session, topic, "nack", page.claimed[len(sent) :])


def _nodes(session: Session, topic: str, first_seq: int, last_seq: int) -> dict[int, str | None]:
    """Who wrote the records from `first_seq` to `last_seq`, which a claim does not tell."""
    nodes: dict[int, str | None] = {}
    while first_seq <= last_seq:
        body = {"from_seq": first_seq - 1, "limit": PEEK_MAX}
        page = session.api.call("POST", topic_path(topic, "/diff"), _Letters, body=body)
        if not page.records:
            break
        nodes |= {record.seq: record.node for record in page.records}
        first_seq = page.records[-1].seq + 1
    return nodes


def _settle(session: Session, topic: str, verb: str, letters: list[Letter]) -> None:
    if letters:
        seqs, leases = [letter.seq for letter in letters], [letter.lease_id for letter in letters]
        body = {"node": NODE, "seqs": seqs, "lease_ids": leases}
        session.api.call("POST", topic_path(topic, f"/{verb}"), Document, body=body, repeatable=True)


def _send(session: Session, topic: str, letter: Letter, to: str | None) -> str:
    """Append one letter to its queue; returns which one. The same letter is never taken twice."""
    target = _target(topic, letter, to)
    # Of fixed length, since names can be as long as a key may be. The time tells it from a letter that had
    # this seq before the topic was made anew.
    name = hashlib.sha256(f"{topic}\0{letter.seq}\0{letter.ts}".encode("utf-8", "surrogateescape"))
    body = {"records": [letter.again()], "idempotency_key": f"redrive-{name.hexdigest()}", "create": False}
    query = {"return_seqs": "false"}
    session.api.call("POST", topic_path(target), _Appended, body=body, query=query, repeatable=True)
    return target


def _target(topic: str, letter: Letter, to: str | None) -> str:
    """Where a letter goes."""
    target = to or letter.source()
    if target is None:
        raise InvalidRequest(
            f"record {letter.seq} of {topic} does not say which queue it comes from; name one with --to"
        )
    return target


def _print_redriven(session: Session, topic: str, done: Counter[str]) -> None:
    if session.as_json:
        output.print_json({"topic": topic, "redriven": done.total(), "queues": dict(sorted(done.items()))})
    elif not done:
        print(f"{printable(topic)}: nothing was brought back")
    else:
        for queue, count in sorted(done.items()):
            print(f"{count} {'job' if count == 1 else 'jobs'} brought back to {printable(queue)}")
