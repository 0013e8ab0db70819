"""The commands of `everlog topic`: ls, create, show, append, read, tail, latest, delete, rm.

Owns what they print. The loop of reading is in `topic_reading`, the lines of `append` in `record_input`.
"""

from __future__ import annotations

import json
import secrets
import signal
import sys
import time
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, Literal, cast

import msgspec
import typer

from everlog.api_types import Appended, TopicPut, TopicSettings, TopicState
from everlog.cli.options import DryRun, FilterText, parse_filter, parse_time_ms
from everlog.cli.output import (
    Table,
    counted,
    group,
    human_bytes,
    human_time,
    print_fields,
    print_json,
    print_table,
    printable,
)
from everlog.cli.record_format import Renderer, renderer
from everlog.cli.record_input import STDIN, Defaults, Line, LineFormat, batches, read_lines
from everlog.cli.session import Prefix, Session, beginning_with, server_command
from everlog.cli.topic_reading import Last, ReadRequest, Since, Start, TopicReading
from everlog.client import calls
from everlog.client.arguments import checked_settings
from everlog.client.errors import ApiFailed
from everlog.client.flows import Call
from everlog.client.retrying import Backoff
from everlog.client.sync_client import Client
from everlog.errors import TopicIncompatible, TopicNotFound

BATCH_DEFAULT: Final = 500
BATCH_MAX: Final = 10_000
TAIL_DEFAULT: Final = "-10"
RETRY_S: Final = 30.0
"""How long `append` keeps trying to send a batch after an outage."""

app = group("Work with the topics of a running server (see `everlog serve`).", "everlog topic tail -f orders")

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False)]


# -- ls ------------------------------------------------------------------------------------


@server_command(app, "ls", "everlog topic ls --prefix orders.")
def ls_command(session: Session, prefix: Prefix = "") -> None:
    """List the topics of the server: type, durability class, seqs, records, bytes."""
    topics = session.client.topics(prefix or None)
    columns = ("topic", "type", "class", "head>", "earliest>", "records>", "bytes>", "priority>")
    rows = [
        (
            printable(each.topic),
            each.type or "",
            each.durability or "",
            str(each.head_seq),
            str(each.earliest_seq),
            str(each.count),
            human_bytes(each.bytes),
            str(each.effective_priority or ""),
        )
        for each in topics
    ]
    session.list("topics", topics, columns, rows, beginning_with(prefix))


# -- create --------------------------------------------------------------------------------


@server_command(app, "create", "everlog topic create orders --durability fsync --cap-records 100000")
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
    options = {
        "type": kind,
        "durability": durability,
        "ttl_ms": ttl_ms,
        "cap_records": cap_records,
        "cap_bytes": cap_bytes,
        "discard": discard,
    }
    given = {name: value for name, value in options.items() if value is not None}
    wanted = checked_settings(cast(TopicSettings, _config(config) | given))
    existing = None if replace else _existing(session.client, topic)
    if existing is None:
        answer = session.client.put_topic(topic, wanted)
    else:
        _check_same(topic, dict(wanted), msgspec.to_builtins(existing.config))
        answer = TopicPut(topic, False, existing.config)
    done = "created" if answer.created else "replaced" if replace else "exists already, unchanged"
    session.report(answer, f"{printable(topic)}: {done}")


def _config(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise typer.BadParameter(f"--config is not a JSON object: {error}") from None


def _existing(client: Client, topic: str) -> TopicState | None:
    try:
        return client.topic(topic, touch=False)
    except TopicNotFound:
        return None


def _check_same(topic: str, wanted: dict[str, Any], existing: dict[str, Any]) -> None:
    different = [
        f"{name} is {json.dumps(existing[name])}, not {json.dumps(value)}"
        for name, value in wanted.items()
        if existing[name] != value
    ]
    if different:
        raise TopicIncompatible(
            f"{topic} exists with other settings ({'; '.join(different)}); --replace replaces all of them"
        )


# -- show ----------------------------------------------------------------------------------


@server_command(app, "show", "everlog topic show orders")
def show_command(session: Session, topic: TopicName) -> None:
    """Show one topic: seqs, size, last use, settings. Does not count as a use."""
    state = session.client.topic(topic, touch=False)
    document: dict[str, Any] = msgspec.to_builtins(state)
    if session.as_json:
        print_json(document)
        return
    fields = [
        ("topic", printable(state.topic)),
        ("type", state.type),
        ("head", str(state.head_seq)),
        ("earliest", str(state.earliest_seq)),
        ("records", str(state.count)),
        ("bytes", human_bytes(state.bytes)),
        ("priority", str(state.effective_priority)),
        ("last write", human_time(state.last_write_ts, "milliseconds")),
        ("last read", human_time(state.last_read_ts, "milliseconds")),
    ]
    fields += [(name.replace("_", " "), str(count)) for name, count in document.get("queue", {}).items()]
    print_fields(fields)
    rows = [(name, json.dumps(value)) for name, value in document["config"].items()]
    print_table(Table("settings", ("name", "value"), rows))


# -- append --------------------------------------------------------------------------------


@dataclass(slots=True)
class AppendTotals:
    """What was appended."""

    topic: str
    count: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    batches: int = 0
    created: bool = False
    deduped: int = 0

    def add(self, answer: Appended) -> None:
        """Count one more batch."""
        self.batches += 1
        self.count += answer.count
        self.first_seq = answer.first_seq if self.first_seq is None else self.first_seq
        self.last_seq = answer.last_seq
        self.created |= answer.created
        self.deduped += answer.count if answer.deduped else 0


@server_command(app, "append", "everlog topic append orders --tag eu orders.jsonl")
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
        str | None, typer.Option(metavar="TEXT", help="Running the same command again appends nothing twice.")
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, max=BATCH_MAX, help="Records of one request, at most.")
    ] = BATCH_DEFAULT,
    create: Annotated[bool, typer.Option(help="Create the topic if there is none.")] = True,
) -> None:
    """Append records from lines of files, of standard input, or of --data.

    A batch is appended as a whole or not at all, and is sent again if the server is away for a moment.
    Without --idempotency-key a batch is sent as soon as the input pauses.
    """
    lines = _data_lines(data) if data and not files else read_lines(files or [STDIN])
    patient = idempotency_key is not None
    totals = AppendTotals(topic)
    try:
        for records in batches(lines, form, Defaults(tag, node), size_max=batch, patient=patient):
            key = _batch_key(idempotency_key, totals.batches)
            call = calls.append_many(topic, records, idempotency_key=key, create=create)
            totals.add(_insist(session, call, has_answered=totals.batches > 0))
    except BaseException:
        if totals.count:
            session.warn(
                "partly_appended",
                f"{counted(totals.count, 'record')} up to seq {totals.last_seq}: already appended",
            )
        raise
    session.report(asdict(totals), _summary(totals))


def _data_lines(data: list[str]) -> list[Line]:
    return [
        Line(f"--data number {number}", text.encode("utf-8", "surrogateescape"))
        for number, text in enumerate(data, start=1)
    ]


def _batch_key(key: str | None, batches: int) -> str:
    """The idempotency key of a batch, which makes it safe to send it again when no answer came."""
    if key is None:
        return secrets.token_hex(12)
    return key if batches == 0 else f"{key}#{batches + 1}"


def _insist(session: Session, call: Call[Appended], *, has_answered: bool) -> Appended:
    backoff = Backoff()
    deadline_s = time.monotonic() + RETRY_S
    warned = False
    while True:
        try:
            return session.client.call(call)
        except ApiFailed as error:
            may_wait = error.is_busy or (error.is_outage and has_answered)
            if not may_wait or time.monotonic() > deadline_s:
                raise
            if not warned:
                session.warn(error.code, f"{error}; trying again for {RETRY_S:g} s", error.detail)
            warned = True
            time.sleep(backoff.pause_s(error))


def _summary(totals: AppendTotals) -> str:
    if not totals.count:
        return "nothing to append"
    again = f", {totals.deduped} of them were there already" if totals.deduped else ""
    last = f" to {totals.last_seq}" if totals.last_seq != totals.first_seq else ""
    return f"{counted(totals.count, 'record')}, seq {totals.first_seq}{last}{again}"


# -- read, tail ----------------------------------------------------------------------------

From = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="earliest|latest|SEQ|-N|TIME",
        help="Where to start; SEQ itself is included, -N: N seqs before the end, TIME: like "
        "2026-11-18T12:00:00Z.",
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


@server_command(app, "read", "everlog topic read orders --from 100 --count 10 --format '{seq} {data}'")
def read_command(
    session: Session,
    topic: TopicName,
    start: From = "earliest",
    count: Count = None,
    form: Format = "text",
    node: Node = None,
    expression: FilterText = None,
    allow_gaps: AllowGaps = False,
    at_end: ExitAtEnd = False,
) -> None:
    """Print records up to the end of the log, from the oldest one unless told otherwise.

    Exit code 4 if records were lost before they could be read; what is missing is said on standard error.
    """
    nodes, selection = tuple(node or ()), parse_filter(expression)
    request = ReadRequest(topic, parse_start(start), False, count, nodes, allow_gaps, selection)
    TopicReading(session, request, _renderer(form, as_json=session.as_json)).run()


@server_command(app, "tail", "everlog topic tail -f orders --format json")
def tail_command(
    session: Session,
    topic: TopicName,
    follow: Follow = False,
    start: From = TAIL_DEFAULT,
    count: Count = None,
    form: Format = "text",
    node: Node = None,
    expression: FilterText = None,
    allow_gaps: AllowGaps = False,
    at_end: ExitAtEnd = False,
) -> None:
    """Print the last records and, with -f, those that come.

    Exit code 4 if records were lost before they could be read; what is missing is said on standard error.
    """
    if follow and at_end:
        raise typer.BadParameter("--follow and --exit contradict each other; give one of them")
    nodes, selection = tuple(node or ()), parse_filter(expression)
    request = ReadRequest(topic, parse_start(start), follow, count, nodes, allow_gaps, selection)
    TopicReading(session, request, _renderer(form, as_json=session.as_json)).run()


def parse_start(text: str) -> Start:
    """Parse the value of --from."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= 20:
        return Last(int(digits)) if text.startswith("-") else int(text)
    time_ms = parse_time_ms(text)
    if time_ms is not None:
        return Since(time_ms)
    raise typer.BadParameter(f"--from {text!r} is neither 'earliest', 'latest', a seq, -N nor a time")


def _renderer(form: str, *, as_json: bool) -> Renderer:
    try:
        return renderer("json" if as_json else form)
    except ValueError as error:
        raise typer.BadParameter(f"--format: {error}") from None


@server_command(app, "latest", "everlog topic latest quotes --tag BTC --tag ETH")
def latest_command(
    session: Session,
    topic: TopicName,
    tag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="A tag; may be repeated.")] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="All tags that begin with this; '' is all of them.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, max=1000, help="Print at most so many.")] = None,
    form: Format = "text",
) -> None:
    """Print the newest record of each tag, sorted by tag."""
    if bool(tag) == (prefix is not None):
        raise typer.BadParameter("give --tag or --prefix")
    render = _renderer(form, as_json=session.as_json)
    answer = session.client.call(calls.latest(topic, tag or (), prefix=prefix, limit=limit).reading(_RawPage))
    print("".join(render(topic, record) for record in answer.records), end="")
    if answer.next_cursor is not None and limit is None:
        session.warn("truncated", "there are more tags; give --limit, or a longer --prefix")


class _RawPage(msgspec.Struct):
    """Records that stay the text that the server sent."""

    records: list[msgspec.Raw]
    next_cursor: str | None = None


# -- delete, rm ----------------------------------------------------------------------------


@server_command(app, "delete", "everlog topic delete orders --before 1000 --match 'eu*' --dry-run")
def delete_command(
    session: Session,
    topic: TopicName,
    before: Annotated[int | None, typer.Option(metavar="SEQ", min=0, help="Only below this seq.")] = None,
    match: Annotated[
        str | None, typer.Option(metavar="TAG", help="Only with this tag; 'eu*': that begin with eu.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Delete records for good, by seq, by tag, or both. The topic stays."""
    if before is None and match is None:
        raise typer.BadParameter("give --before, --match or both; `everlog topic rm` deletes a whole topic")
    answer = session.client.delete_records(topic, before_seq=before, match=match, dry_run=dry_run)
    deleted = f"{counted(answer.deleted, 'record')} deleted, {answer.count} left"
    session.report(
        answer, f"{answer.deleted} of {answer.count} records would be deleted" if dry_run else deleted
    )


@server_command(app, "rm", "everlog topic rm orders --yes")
def rm_command(
    session: Session,
    topic: TopicName,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Refuse if the topic has records.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a topic with all its records. Asks first if a person is there to answer."""
    if not yes and sys.stdin.isatty() and sys.stderr.isatty():
        question = f"delete {printable(topic)} and all its records on {session.client.address}?"
        if not _confirmed(question):
            print("nothing was deleted", file=sys.stderr)
            raise typer.Exit(1)
    answer = session.client.delete_topic(topic, if_empty=if_empty)
    if not answer.deleted:
        raise TopicNotFound(f"there is no topic {topic}; nothing was deleted", topic)
    session.report(answer, f"{printable(topic)}: deleted")


def _confirmed(question: str) -> bool:
    """Ask; the end of the input is no, and Ctrl-C ends the command as it does everywhere."""
    try:
        return typer.confirm(question, err=True)
    except typer.Abort as abort:
        print(file=sys.stderr)
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise typer.Exit(128 + signal.SIGINT) from None
        return False
