"""The commands of `everlog topic`: ls, create, show, append, read, tail, delete, rm.

Owns what they print and the shape of their JSON. They talk to a running server through `http_api`; the loop
of reading is in `topic_reading`, the lines of `append` in `record_input`.
"""

from __future__ import annotations

import functools
import json
import secrets
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, cast

import msgspec
import typer

from everlog.api_types import TopicSettings
from everlog.cli import output
from everlog.cli.options import AsJson
from everlog.cli.output import Table, counted, human_bytes, one_line, printable, reporting
from everlog.cli.record_format import Renderer, renderer
from everlog.cli.record_input import STDIN, Defaults, Line, LineFormat, batches, read_lines
from everlog.cli.signatures import Option, give_options, options_of
from everlog.cli.topic_reading import Last, Place, ReadRequest, Start, read_topic
from everlog.client.arguments import checked_settings
from everlog.client.http_api import DEFAULT_URL, ApiFailed, Backoff, HttpApi, topic_path
from everlog.errors import TopicIncompatible

BATCH_DEFAULT: Final = 500
BATCH_MAX: Final = 10_000
TAIL_DEFAULT: Final = "-10"
RETRY_S: Final = 30.0
"""How long `append` goes on trying to hand over a batch after an outage."""

Document = dict[str, Any]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Work with the topics of a running server (see `everlog serve`).",
    epilog="Example: everlog topic tail -f orders",
)

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False)]
Url = Annotated[str, typer.Option("--url", metavar="URL", envvar="EVERLOG_URL", help="Where the server is.")]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="KEY",
        envvar="EVERLOG_KEY",
        show_default=False,
        help="Key for the server. Other users see arguments; the variable is safer.",
    ),
]


_SESSION_OPTIONS: Final = (
    Option("url", Url, DEFAULT_URL),
    Option("key", Key),
    Option("as_json", AsJson, False),
)


# -- the server ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Session:
    """A server to talk to, and how to talk to the user."""

    api: HttpApi
    as_json: bool

    def warn(self, code: str, message: str, detail: Document | None = None) -> None:
        """Say on standard error what the command got over by itself."""
        print_problem("warning", code, message, detail, as_json=self.as_json)


def print_problem(kind: str, code: str, message: str, detail: Document | None, *, as_json: bool) -> None:
    """Print a problem as one line on standard error, with the server's detail in JSON."""
    if as_json:
        problem: Document = {"code": code, "message": message}
        if detail:
            problem["detail"] = detail
        line = json.dumps({kind: problem})
    else:
        line = f"{kind}: {one_line(message)}"
    print(line, file=sys.stderr, flush=True)


def server_command(
    name: str, example: str, group: typer.Typer = app
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command whose first parameter is a `Session`; it gets --url, --key and --json for it."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(*, url: str, key: str | None, as_json: bool, **options: Any) -> None:
            with reporting(as_json=as_json), HttpApi(url, key) as api:
                try:
                    function(Session(api, as_json), **options)
                except ApiFailed as error:
                    print_problem("error", error.code, str(error), error.detail, as_json=as_json)
                    raise typer.Exit(1) from None

        give_options(command, [*options_of(function), *_SESSION_OPTIONS])
        return group.command(name, epilog=f"Example: {example}")(command)

    return register


# -- ls ------------------------------------------------------------------------------------


@server_command("ls", "everlog topic ls --prefix orders.")
def ls_command(
    session: Session,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Only names that begin with this.")] = "",
) -> None:
    """List the topics of the server: seqs, records, bytes."""
    topics: list[Document] = []
    query = {"prefix": prefix, "page_size": "1000"}
    while True:
        page = session.api.get("/topics", Document, query)
        topics += page.get("topics", [])
        cursor = page.get("next_cursor")
        if not cursor:
            break
        query["cursor"] = cursor
    if session.as_json:
        output.print_json({"topics": topics})
    elif topics:
        columns = ("topic", "head>", "earliest>", "records>", "bytes>", "durable", "priority>")
        rows = [_listed(topic) for topic in topics]
        output.print_table(Table(f"topics of {session.api.place}", columns, rows))
    else:
        print(f"no topics{f' that begin with {printable(prefix)}' if prefix else ''} on {session.api.place}")


def _listed(topic: Document) -> tuple[str, ...]:
    return (
        printable(str(topic["topic"])),
        str(topic["head_seq"]),
        str(topic["earliest_seq"]),
        str(topic["count"]),
        human_bytes(topic["bytes"]),
        "yes" if topic.get("durable") else "no",
        str(topic.get("effective_priority", "")),
    )


# -- create --------------------------------------------------------------------------------


@server_command("create", "everlog topic create orders --durability fsync --cap-records 100000")
def create_command(
    session: Session,
    topic: TopicName,
    kind: Annotated[Literal["log", "queue"] | None, typer.Option("--type", help="Default: log.")] = None,
    durability: Annotated[
        Literal["ephemeral", "memory", "disk", "fsync"] | None,
        typer.Option(help="What an acknowledged record survives. Default: disk."),
    ] = None,
    ttl_ms: Annotated[int | None, typer.Option(min=0, help="Records expire after this; 0: never.")] = None,
    cap_records: Annotated[int | None, typer.Option(min=0, help="Most records kept; 0: any.")] = None,
    cap_bytes: Annotated[int | None, typer.Option(min=0, help="Most bytes kept; 0: any.")] = None,
    discard: Annotated[
        Literal["old", "reject"] | None,
        typer.Option(help="At a cap: evict the oldest, or refuse. Default: old."),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Any other settings as a JSON object; the options above win."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Let the settings replace all those of an existing topic.")
    ] = False,
) -> None:
    """Create a topic. One that exists is left alone, and is an error if its settings differ."""
    wanted = _config(config)
    options = {
        "type": kind,
        "durability": durability,
        "ttl_ms": ttl_ms,
        "cap_records": cap_records,
        "cap_bytes": cap_bytes,
        "discard": discard,
    }
    wanted |= {name: value for name, value in options.items() if value is not None}
    checked_settings(cast(TopicSettings, wanted))
    existing = None if replace else _existing(session.api, topic)
    if existing is not None:
        _check_same(topic, wanted, existing["config"])
        answer = {"topic": topic, "created": False, "config": existing["config"]}
    else:
        answer = session.api.call("PUT", topic_path(topic), Document, body=wanted)
    if session.as_json:
        output.print_json(answer)
    else:
        done = "created" if answer["created"] else "replaced" if replace else "exists already, unchanged"
        print(f"{printable(topic)}: {done}")


def _config(text: str | None) -> Document:
    if text is None:
        return {}
    try:
        return msgspec.json.decode(text, type=Document)
    except msgspec.MsgspecError as error:
        raise typer.BadParameter(f"--config is not a JSON object: {error}") from None


def _existing(api: HttpApi, topic: str) -> Document | None:
    try:
        return api.get(topic_path(topic), Document, {"touch": "false"})
    except ApiFailed as error:
        if error.code != "topic_not_found":
            raise
        return None


def _check_same(topic: str, wanted: Document, existing: Document) -> None:
    different = [
        f"{name} is {json.dumps(existing[name])}, not {json.dumps(value)}"
        for name, value in wanted.items()
        if name in existing and existing[name] != value
    ]
    if different:
        raise TopicIncompatible(
            f"{topic} exists with other settings ({'; '.join(different)}); --replace replaces all of them"
        )


# -- show ----------------------------------------------------------------------------------


@server_command("show", "everlog topic show orders")
def show_command(session: Session, topic: TopicName) -> None:
    """Show one topic: seqs, size, last use, settings. Does not count as a use."""
    state = session.api.get(topic_path(topic), Document, {"touch": "false"})
    if session.as_json:
        output.print_json(state)
        return
    fields = [
        ("topic", printable(str(state["topic"]))),
        ("type", str(state["type"])),
        ("head", str(state["head_seq"])),
        ("earliest", str(state["earliest_seq"])),
        ("records", str(state["count"])),
        ("bytes", human_bytes(state["bytes"])),
        ("priority", str(state["effective_priority"])),
        ("last write", _time(state["last_write_ts"])),
        ("last read", _time(state["last_read_ts"])),
    ]
    if isinstance(state.get("queue"), dict):
        fields += [(name.replace("_", " "), str(value)) for name, value in state["queue"].items()]
    output.print_fields(fields)
    rows = [(name, json.dumps(value)) for name, value in state["config"].items()]
    output.print_table(Table("settings", ("name", "value"), rows))


def _time(ts_ms: int | None) -> str:
    if ts_ms is None:
        return "never"
    return datetime.fromtimestamp(ts_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")


# -- append --------------------------------------------------------------------------------


@dataclass(slots=True)
class AppendRequest:
    """How records are handed over."""

    topic: str
    key: str | None
    create: bool


@dataclass(slots=True)
class AppendTotals:
    """What was handed over."""

    batches: int = 0
    count: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    created: bool = False
    deduped: int = 0


class Appended(msgspec.Struct):
    """What the server says to an append."""

    first_seq: int
    last_seq: int
    count: int
    created: bool
    deduped: bool


@server_command("append", "everlog topic append orders --tag eu orders.jsonl")
def append_command(
    session: Session,
    topic: TopicName,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]...", help="Files with one record a line; '-' is standard input."),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", "-d", metavar="TEXT", help="A record, as a line would be; may be repeated."),
    ] = None,
    form: Annotated[
        LineFormat,
        typer.Option("--input", help="What a line is: JSON data, text, or a record with data, tag, ..."),
    ] = LineFormat.JSON,
    tag: Annotated[str | None, typer.Option(help="Tag of records that bring none.")] = None,
    node: Annotated[str | None, typer.Option(help="Node of records that bring none.")] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Running the same command again appends nothing twice."),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, max=BATCH_MAX, help="Records of one request, at most.")
    ] = BATCH_DEFAULT,
    create: Annotated[bool, typer.Option(help="Create the topic if there is none.")] = True,
) -> None:
    """Append records from lines of files, of standard input, or of --data.

    A batch is kept as a whole or not at all, and is sent again if the server is away for a moment. Without
    --idempotency-key a batch is sent as soon as the input pauses.
    """
    lines = _data_lines(data) if data and not files else read_lines(files or [STDIN])
    request = AppendRequest(topic, idempotency_key, create)
    patient = idempotency_key is not None
    totals = AppendTotals()
    try:
        for records in batches(lines, form, Defaults(tag, node), size_max=batch, patient=patient):
            _append(session, request, records, totals)
    except BaseException:
        if totals.count:
            session.warn(
                "partly_appended",
                f"{counted(totals.count, 'record')} up to seq {totals.last_seq}: already appended",
            )
        raise
    _print_totals(session, topic, totals)


def _data_lines(data: list[str]) -> list[Line]:
    return [
        Line(f"--data number {number}", text.encode("utf-8", "surrogateescape"))
        for number, text in enumerate(data, start=1)
    ]


def _append(session: Session, request: AppendRequest, records: list[Document], totals: AppendTotals) -> None:
    """Hand over one batch. Its key makes it safe to send it again when no answer came."""
    key = secrets.token_hex(12)
    if request.key is not None:
        key = request.key if totals.batches == 0 else f"{request.key}#{totals.batches + 1}"
    body = {"records": records, "idempotency_key": key, "create": request.create}
    call = functools.partial(
        session.api.call,
        "POST",
        topic_path(request.topic),
        Appended,
        body=body,
        query={"return_seqs": "false"},
        repeatable=True,
    )
    answer = _insist(session, call, has_answered=totals.batches > 0)
    totals.batches += 1
    totals.count += answer.count
    totals.first_seq = answer.first_seq if totals.first_seq is None else totals.first_seq
    totals.last_seq = answer.last_seq
    totals.created |= answer.created
    totals.deduped += answer.count if answer.deduped else 0


def _insist(session: Session, call: Callable[[], Appended], *, has_answered: bool) -> Appended:
    backoff = Backoff()
    deadline_s = time.monotonic() + RETRY_S
    warned = False
    while True:
        try:
            return call()
        except ApiFailed as error:
            may_wait = error.is_busy or (error.is_outage and has_answered)
            if not may_wait or time.monotonic() > deadline_s:
                raise
            if not warned:
                session.warn(error.code, f"{error}; trying again for {RETRY_S:g} s", error.detail)
            warned = True
            time.sleep(backoff.pause_s(error))


def _print_totals(session: Session, topic: str, totals: AppendTotals) -> None:
    if session.as_json:
        output.print_json(
            {
                "topic": topic,
                "count": totals.count,
                "first_seq": totals.first_seq,
                "last_seq": totals.last_seq,
                "batches": totals.batches,
                "created": totals.created,
                "deduped": totals.deduped,
            }
        )
    elif not totals.count:
        print("nothing to append")
    else:
        again = f", {totals.deduped} of them were there already" if totals.deduped else ""
        records = counted(totals.count, "record")
        last = f" to {totals.last_seq}" if totals.last_seq != totals.first_seq else ""
        print(f"{records}, seq {totals.first_seq}{last}{again}")


# -- read, tail ----------------------------------------------------------------------------

From = Annotated[
    str,
    typer.Option(
        "--from", metavar="earliest|latest|SEQ|-N", help="Where to start; -N: N seqs before the end."
    ),
]
Count = Annotated[int | None, typer.Option("--count", "-c", min=1, help="Stop after so many records.")]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="text|json|raw|TEMPLATE",
        help="How records are printed: a line each, JSON lines, the data alone, or like '{seq} {data}' or "
        "'%o %s'. --json is the same as json.",
    ),
]
Node = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Leave out what this node wrote; may be repeated.")
]
AllowGaps = Annotated[
    bool, typer.Option("--allow-gaps", help="Exit code 0 also if records were lost before they were read.")
]
ExitAtEnd = Annotated[
    bool, typer.Option("--exit", "-e", help="End at the end of the log, as without --follow.")
]
Follow = Annotated[
    bool,
    typer.Option("--follow", "-f", help="Wait for more, also across restarts of the server, until Ctrl-C."),
]


@server_command("read", "everlog topic read orders --from 100 --count 10 --format '{seq} {data}'")
def read_command(
    session: Session,
    topic: TopicName,
    start: From = "earliest",
    count: Count = None,
    form: Format = "text",
    node: Node = None,
    allow_gaps: AllowGaps = False,
    at_end: ExitAtEnd = False,
) -> None:
    """Print records up to the end of the log, from the oldest one unless told otherwise.

    Exit code 4 if records were lost before they could be read; what is missing is said on standard error.
    """
    request = ReadRequest(topic, parse_start(start), False, count, tuple(node or ()), allow_gaps)
    read_topic(session.api, request, _renderer(form, as_json=session.as_json), session.warn)


@server_command("tail", "everlog topic tail -f orders --format json")
def tail_command(
    session: Session,
    topic: TopicName,
    follow: Follow = False,
    start: From = TAIL_DEFAULT,
    count: Count = None,
    form: Format = "text",
    node: Node = None,
    allow_gaps: AllowGaps = False,
    at_end: ExitAtEnd = False,
) -> None:
    """Print the last records and, with -f, those that come.

    Exit code 4 if records were lost before they could be read; what is missing is said on standard error.
    """
    if follow and at_end:
        raise typer.BadParameter("--follow and --exit contradict each other; give one of them")
    request = ReadRequest(topic, parse_start(start), follow, count, tuple(node or ()), allow_gaps)
    read_topic(session.api, request, _renderer(form, as_json=session.as_json), session.warn)


def parse_start(text: str) -> Start:
    """Parse the value of --from."""
    if text in (Place.EARLIEST.value, Place.LATEST.value):
        return Place(text)
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= 20:
        return Last(int(digits)) if text.startswith("-") else int(text)
    raise typer.BadParameter(f"--from {text!r} is neither 'earliest', 'latest', a seq nor -N")


def _renderer(form: str, *, as_json: bool) -> Renderer:
    try:
        return renderer("json" if as_json else form)
    except ValueError as error:
        raise typer.BadParameter(f"--format: {error}") from None


# -- delete, rm ----------------------------------------------------------------------------


@server_command("delete", "everlog topic delete orders --before 1000 --match 'eu*'")
def delete_command(
    session: Session,
    topic: TopicName,
    before: Annotated[int | None, typer.Option(metavar="SEQ", min=0, help="Only below this seq.")] = None,
    match: Annotated[
        str | None, typer.Option(metavar="TAG", help="Only with this tag; 'eu*': that begin with eu.")
    ] = None,
) -> None:
    """Delete records for good, by seq, by tag, or both. The topic stays."""
    if before is None and match is None:
        raise typer.BadParameter("give --before, --match or both; `everlog topic rm` deletes a whole topic")
    body = {"before_seq": before, "match": match}
    body = {name: value for name, value in body.items() if value is not None}
    answer = session.api.call("POST", topic_path(topic, "/delete"), Document, body=body)
    if session.as_json:
        output.print_json(answer)
    else:
        print(f"{counted(answer['deleted'], 'record')} deleted, {answer['count']} left")


@server_command("rm", "everlog topic rm orders --yes")
def rm_command(
    session: Session,
    topic: TopicName,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Refuse if the topic has records.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a topic with all its records. Asks first if a person is there to answer."""
    if not yes and sys.stdin.isatty() and sys.stderr.isatty():
        question = f"delete {printable(topic)} and all its records on {session.api.place}?"
        if not _confirmed(question):
            print("nothing was deleted", file=sys.stderr)
            raise typer.Exit(1)
    query = {"if_empty": "true" if if_empty else "false"}
    answer = session.api.call("DELETE", topic_path(topic), Document, query=query)
    if session.as_json:
        output.print_json(answer)
    else:
        print(f"{printable(topic)}: {'deleted' if answer['deleted'] else 'there was no such topic'}")


def _confirmed(question: str) -> bool:
    """Ask; the end of the input is no, and Ctrl-C ends the command as it does everywhere."""
    try:
        return typer.confirm(question, err=True)
    except typer.Abort as abort:
        print(file=sys.stderr)
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise typer.Exit(128 + signal.SIGINT) from None
        return False
