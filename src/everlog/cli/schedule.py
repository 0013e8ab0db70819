"""The commands of `everlog schedule`: put, ls, show, rm. Owns what they print."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from everlog.cli.output import group, human_time, one_line, print_fields, printable
from everlog.cli.record_input import Defaults, Line, LineFormat, parse
from everlog.cli.session import Prefix, Session, beginning_with, server_command
from everlog.client.encoding import encode
from everlog.errors import InvalidRecord, ScheduleNotFound
from everlog.job_types import ScheduleState

app = group(
    "Records that the server appends at the times of a cron expression.",
    "everlog schedule put nightly reports '0 3 * * *' -d '{\"kind\":\"daily\"}' --timezone Europe/Berlin",
)

Name = Annotated[str, typer.Argument(metavar="SCHEDULE", help="Name of the schedule.", show_default=False)]


class CatchUp(StrEnum):
    """What becomes of instants that were missed."""

    NONE = "none"
    ONE = "one"
    ALL = "all"


@server_command(app, "put", "everlog schedule put nightly reports '0 3 * * *' -d '{\"kind\":\"daily\"}'")
def put_command(  # noqa: PLR0913, PLR0917
    session: Session,
    schedule: Name,
    topic: Annotated[
        str,
        typer.Argument(metavar="TOPIC", help="Where records are appended; it exists.", show_default=False),
    ],
    cron: Annotated[
        str,
        typer.Argument(metavar="CRON", help="Five fields, or six with seconds first.", show_default=False),
    ],
    data: Annotated[str, typer.Option("--data", "-d", metavar="JSON", help="Data of the record.")] = "null",
    tag: Annotated[str | None, typer.Option(help="Tag of the record.")] = None,
    priority: Annotated[int | None, typer.Option(help="Priority of the job, in a job queue.")] = None,
    unique_key: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Append nothing while a job with this key exists.")
    ] = None,
    timezone: Annotated[str, typer.Option(metavar="NAME", help="Zone of the cron expression.")] = "UTC",
    catch_up: Annotated[
        CatchUp, typer.Option(help="What instants that were missed become: nothing, one record, or all.")
    ] = CatchUp.ONE,
    paused: Annotated[bool, typer.Option("--paused", help="Do not fire until it is put again.")] = False,
) -> None:
    """Create a schedule, or replace one; what it has fired still counts."""
    record = parse(
        Line("--data", data.encode("utf-8", "surrogateescape")), LineFormat.JSON, Defaults(tag, None)
    )
    if record is None:
        raise InvalidRecord("--data is empty; give a JSON value")
    record = msgspec.structs.replace(record, priority=priority, unique_key=unique_key)
    state = session.client.put_schedule(
        schedule, topic, cron, record, timezone=timezone, catch_up=catch_up.value, paused=paused
    )
    session.report(state, f"{printable(schedule)}: {_next(state)}")


def _next(state: ScheduleState) -> str:
    if state.paused:
        return f"paused: {one_line(state.paused_reason)}" if state.paused_reason else "paused"
    return f"fires next {human_time(state.next_ts)}"


@server_command(app, "ls", "everlog schedule ls --prefix report.")
def ls_command(session: Session, prefix: Prefix = "") -> None:
    """List the schedules of the server: when each fires next, and what it has done."""
    schedules = session.client.schedules(prefix or None)
    columns = ("schedule", "topic", "cron", "zone", "next", "last", "fired>")
    rows = [
        (
            printable(each.name),
            printable(each.topic),
            one_line(each.cron),
            printable(each.timezone),
            "paused" if each.paused else human_time(each.next_ts),
            human_time(each.last_ts),
            str(each.fired_total),
        )
        for each in schedules
    ]
    session.list("schedules", schedules, columns, rows, beginning_with(prefix))


@server_command(app, "show", "everlog schedule show nightly")
def show_command(session: Session, schedule: Name) -> None:
    """Show one schedule: its times, its record, when it fires next, and what it has done."""
    state = session.client.schedule(schedule)
    if session.as_json:
        session.report(state, "")
        return
    last = "never" if state.last_ts is None else f"{human_time(state.last_ts)}, seq {state.last_seq}"
    print_fields(
        [
            ("schedule", printable(state.name)),
            ("topic", printable(state.topic)),
            ("cron", f"{one_line(state.cron)} ({printable(state.timezone)})"),
            ("next", _next(state)),
            ("last", last),
            ("fired", str(state.fired_total)),
            ("catches up", state.catch_up),
            ("record", one_line(encode(state.record).decode())),
        ]
    )


@server_command(app, "rm", "everlog schedule rm nightly")
def rm_command(session: Session, schedule: Name) -> None:
    """Delete a schedule. What it has appended stays."""
    answer = session.client.delete_schedule(schedule)
    if not answer.deleted:
        raise ScheduleNotFound(f"there is no schedule {schedule}; nothing was deleted", schedule)
    session.report(answer, f"{printable(schedule)}: deleted")
