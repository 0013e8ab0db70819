"""The commands of `everlog jobs`: look at job queues and their jobs, add, change and redrive jobs.

Owns what they print.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
import typer

from everlog.api_types import NewRecord, TopicState, TopicType
from everlog.cli.options import DryRun, FilterText, parse_filter, parse_time_ms
from everlog.cli.output import (
    Table,
    counted,
    group,
    human_time,
    one_line,
    print_fields,
    print_json,
    print_table,
    printable,
)
from everlog.cli.session import Session, beginning_with, server_command
from everlog.client import calls
from everlog.errors import InvalidRequest, NotAQueue, TopicNotFound
from everlog.job_types import JobAttempt, JobError, JobState

PEEK_DEFAULT: Final = 10
PEEK_MAX: Final = 1000
DATA_SHOWN: Final = 80

app = group("Look at the job queues of a running server, and change their jobs.", "everlog jobs ls mail")

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the job queue.", show_default=False)]
Seqs = Annotated[
    list[int] | None,
    typer.Argument(metavar="[SEQ]...", help="Jobs by seq, at most 1000.", show_default=False),
]
JobFilter = Annotated[
    str | None,
    typer.Option("--filter", metavar="JSON", help='Jobs that match, like \'["tag","Eq","eu"]\'.'),
]


class State(StrEnum):
    """The states of jobs."""

    READY = "ready"
    DELAYED = "delayed"
    LEASED = "leased"
    FAILED = "failed"


# -- ls ------------------------------------------------------------------------------------


@server_command(app, "ls", "everlog jobs ls mail --state failed")
def ls_command(
    session: Session,
    queue: Annotated[
        str | None, typer.Argument(metavar="[QUEUE]", help="List the jobs of this one.", show_default=False)
    ] = None,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Only job queues that begin with this.")] = "",
    state: Annotated[State | None, typer.Option(help="Only jobs in this state.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only jobs with this tag.")] = None,
    job_key: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only jobs with this unique or concurrency key.")
    ] = None,
    expression: FilterText = None,
    count: Annotated[int, typer.Option("--count", "-c", min=1, help="How many jobs at most.")] = 100,
) -> None:
    """List the job queues of the server, or the jobs of one: state, deliveries, worker, last error.

    A failed job waits again after an error or after its lease has ended.
    """
    if queue is None:
        if state or tag or job_key or expression:
            raise typer.BadParameter("--state, --tag, --job-key and --filter need the name of a QUEUE")
        _list_queues(session, prefix)
        return
    if prefix:
        raise typer.BadParameter("--prefix is for the list of job queues; leave QUEUE out")
    chosen = {
        "state": None if state is None else state.value,
        "tag": tag,
        "key": job_key,
        "filter": parse_filter(expression),
    }
    jobs, counts = _jobs(session, queue, chosen, count)
    if session.as_json:
        print_json({"queue": queue, "counts": msgspec.to_builtins(counts), "jobs": msgspec.to_builtins(jobs)})
        return
    words = (f"{getattr(counts, each)} {each}" for each in State)
    print(f"{printable(queue)}: {', '.join(words)}, {counts.done_total} done")
    if jobs:
        columns = ("seq>", "state", "deliveries>", "priority>", "when", "worker", "tag", "last error")
        print_table(Table("jobs", columns, [_row(job) for job in jobs]))


def _jobs(session: Session, queue: str, chosen: dict[str, Any], count: int) -> tuple[list[JobState], Any]:
    """Up to `count` jobs; pages that match nothing are passed over."""
    jobs: list[JobState] = []
    cursor = None
    while True:
        limit = min(count - len(jobs), PEEK_MAX)
        page = session.client.jobs_page(queue, limit=limit, cursor=cursor, **chosen)
        jobs += page.jobs
        cursor = page.next_cursor
        if cursor is None or len(jobs) >= count:
            return jobs, page.counts


def _row(job: JobState) -> tuple[str, ...]:
    return (
        str(job.seq),
        job.state,
        str(job.deliveries),
        str(job.priority) if job.priority else "",
        _when(job),
        printable(job.node) if job.node else "",
        printable(job.tag) if job.tag else "",
        _error(job.last_error),
    )


def _when(job: JobState) -> str:
    """When something happens to a job by itself."""
    if job.deadline is not None:
        return f"lease ends {human_time(job.deadline)}"
    if job.run_at is not None and job.state in ("delayed", "failed"):
        return f"due {human_time(job.run_at)}"
    return ""


def _error(error: JobError | None) -> str:
    return "" if error is None else _short(f"{error.type}: {error.message}")


def _list_queues(session: Session, prefix: str) -> None:
    queues = _queues(session, prefix)
    columns = ("queue", "ready>", "in flight>", "delayed>", "dead lettered>", "dead letters go to")
    rows = [
        (
            printable(queue["queue"]),
            *(str(queue[name]) for name in ("ready", "in_flight", "delayed", "dead_lettered")),
            printable(queue["dead_letter"] or "-"),
        )
        for queue in queues
    ]
    session.list("queues", queues, columns, rows, beginning_with(prefix), title="job queues")


def _queues(session: Session, prefix: str) -> list[dict[str, Any]]:
    """The job queues by name; their counts are in the state of each."""
    queues = []
    for listed in session.client.topics(prefix or None):
        if listed.type not in (TopicType.QUEUE, None):  # an older server does not say
            continue
        try:
            state = session.client.topic(listed.topic, touch=False)
        except TopicNotFound:
            continue  # deleted meanwhile
        if state.queue is not None:
            queues.append(_summary(state))
    return queues


def _summary(state: TopicState) -> dict[str, Any]:
    queue = state.queue
    assert queue is not None, "the topic is a job queue"
    return {
        "queue": state.topic,
        **msgspec.to_builtins(queue),
        "delayed": max(0, state.count - queue.ready - queue.in_flight),
        "dead_letter": state.config.dead_letter,
    }


# -- add -----------------------------------------------------------------------------------


@server_command(app, "add", 'everlog jobs add mail \'{"to":"ann"}\' --delay 60 --unique-key ann')
def add_command(
    session: Session,
    queue: QueueName,
    data: Annotated[str, typer.Argument(metavar="JSON", help="Data of the job.", show_default=False)],
    tag: Annotated[str | None, typer.Option(help="Tag of the job.")] = None,
    delay_s: Annotated[
        float | None, typer.Option("--delay", metavar="SECONDS", min=0, help="Not before so many seconds.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Not before this time, like 2026-11-18T12:00:00Z.")
    ] = None,
    priority: Annotated[int | None, typer.Option(min=-1000, max=1000, help="Higher comes first.")] = None,
    unique_key: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Add nothing while a job with this key exists.")
    ] = None,
    concurrency_key: Annotated[
        str | None, typer.Option(metavar="TEXT", help="At most `concurrency_limit` jobs of a key at a time.")
    ] = None,
    max_deliveries: Annotated[
        int | None, typer.Option(min=0, help="Dead letter after so many; 0: never. Default: as the queue.")
    ] = None,
) -> None:
    """Add a job to a job queue that exists, and print its seq."""
    run_at = None if at is None else parse_time_ms(at)
    if at is not None and run_at is None:
        raise typer.BadParameter(f"--at {at!r} is not a time like 2026-11-18T12:00:00Z")
    if at is not None and delay_s is not None:
        raise typer.BadParameter("give --delay or --at, one of them")
    try:
        value = msgspec.json.decode(data)
    except msgspec.MsgspecError as error:
        raise typer.BadParameter(f"{data!r} is not JSON: {error}") from None
    record = NewRecord(
        value,
        tag,
        delay_ms=None if delay_s is None else round(delay_s * 1000),
        run_at=run_at,
        priority=priority,
        unique_key=unique_key,
        concurrency_key=concurrency_key,
        max_deliveries=max_deliveries,
    )
    if session.client.topic(queue, touch=False).queue is None:
        raise NotAQueue(f"{queue} is a log; a topic of type queue has jobs")
    answer = session.client.append_many(queue, [record], create=False, return_seqs=True)
    (seq,) = answer.seqs or (answer.first_seq,)
    added = "was there already" if answer.unique_hits else "added"
    session.report(
        {"queue": queue, "seq": seq, "added": answer.count}, f"{printable(queue)}: job {seq} {added}"
    )


# -- peek ----------------------------------------------------------------------------------


@server_command(app, "peek", "everlog jobs peek mail --count 3")
def peek_command(
    session: Session,
    queue: QueueName,
    count: Annotated[
        int, typer.Option("--count", "-c", min=1, max=PEEK_MAX, help="How many jobs.")
    ] = PEEK_DEFAULT,
) -> None:
    """Show the oldest jobs of a queue without claiming them. Some of them may be leased right now."""
    state = session.client.topic(queue, touch=False)
    if state.queue is None:
        raise InvalidRequest(f"{queue} is a log, not a queue; `everlog topic read` shows its records")
    summary = _summary(state)
    wanted = calls.diff(queue, limit=count, include_tags=True)
    if session.as_json:
        page = session.client.call(wanted.reading(dict[str, Any]))
        print_json({**summary, "jobs": page["records"]})
        return
    counts = (f"{summary[name]} {name.replace('_', ' ')}" for name in ("ready", "in_flight", "delayed"))
    print(f"{printable(queue)}: {', '.join(counts)}")
    jobs = session.client.call(wanted).records
    if jobs:
        rows = [
            (str(job.seq), human_time(job.ts_ms), printable(job.tag or "-"), _data(job.data)) for job in jobs
        ]
        print_table(Table("oldest jobs", ("seq>", "since", "tag", "data"), rows))


def _data(data: object) -> str:
    return _short(msgspec.json.encode(data).decode())


def _short(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= DATA_SHOWN else text[: DATA_SHOWN - 1] + "…"


# -- show ----------------------------------------------------------------------------------


@server_command(app, "show", "everlog jobs show mail 17")
def show_command(
    session: Session,
    queue: QueueName,
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=0, help="Seq of the job.", show_default=False)],
) -> None:
    """Show one job: its data, state, options, and the last ten attempts that failed."""
    job = session.client.job(queue, seq)
    if session.as_json:
        session.report(job, "")
        return
    options = {
        "priority": job.priority or None,
        "unique key": job.unique_key,
        "concurrency key": job.concurrency_key,
        "max deliveries": job.max_deliveries,
    }
    print_fields(
        [
            ("job", f"{job.seq} of {printable(queue)}, since {human_time(job.ts_ms)}"),
            ("state", ", ".join(filter(None, (job.state, _when(job))))),
            ("worker", printable(job.node or "none")),
            ("deliveries", str(job.deliveries)),
            ("tag", printable(job.tag or "none")),
            *((name, printable(str(value))) for name, value in options.items() if value is not None),
            ("data", _data(job.data)),
        ]
    )
    attempts = job.attempts or []
    if attempts:
        columns = ("delivery>", "worker", "from", "to", "outcome", "error")
        print_table(Table("attempts", columns, [_attempt(each) for each in attempts]))
    if job.last_error is not None and job.last_error.trace:
        print("\n".join(map(one_line, job.last_error.trace.splitlines())))


def _attempt(each: JobAttempt) -> tuple[str, ...]:
    times = (human_time(each.claimed_ts), human_time(each.ended_ts))
    return (str(each.delivery), printable(each.node), *times, each.outcome, _error(each.error))


# -- changes -------------------------------------------------------------------------------


@server_command(app, "cancel", "everlog jobs cancel mail 17 18")
def cancel_command(
    session: Session, queue: QueueName, seqs: Seqs = None, expression: JobFilter = None
) -> None:
    """Delete jobs. A leased one is deleted when its lease ends, unless it is done by then."""
    chosen, selection = _chosen(seqs, expression)
    answer = session.client.cancel_jobs(queue, chosen, filter=selection)
    session.report(answer, f"{printable(queue)}: {counted(answer.cancelled, 'job')} cancelled")


@server_command(app, "retry", "everlog jobs retry mail 17")
def retry_command(
    session: Session, queue: QueueName, seqs: Seqs = None, expression: JobFilter = None
) -> None:
    """Let delayed jobs be claimed now, those that wait after an error too."""
    chosen, selection = _chosen(seqs, expression)
    answer = session.client.retry_jobs(queue, chosen, filter=selection)
    session.report(answer, f"{printable(queue)}: {counted(answer.retried, 'job')} made due")


def _chosen(
    seqs: Sequence[int] | None, expression: str | None
) -> tuple[Sequence[int] | None, list[Any] | None]:
    selection = parse_filter(expression)
    if bool(seqs) == (selection is not None):
        raise typer.BadParameter("name jobs by SEQ or by --filter, one of them")
    return seqs or None, selection


@server_command(app, "pause", "everlog jobs pause mail")
def pause_command(session: Session, queue: QueueName) -> None:
    """Give no jobs to workers until `resume`. New jobs are taken, and running ones can be finished."""
    answer = session.client.pause_queue(queue)
    session.report(answer, f"{printable(queue)}: paused")


@server_command(app, "resume", "everlog jobs resume mail")
def resume_command(session: Session, queue: QueueName) -> None:
    """Give jobs to workers again."""
    answer = session.client.resume_queue(queue)
    session.report(answer, f"{printable(queue)}: resumed")


@server_command(app, "purge", "everlog jobs purge mail --all --dry-run")
def purge_command(
    session: Session,
    queue: QueueName,
    expression: JobFilter = None,
    all_jobs: Annotated[bool, typer.Option("--all", help="Every job.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Delete jobs at once, leased ones too: what their workers do is not acknowledged any more."""
    selection = parse_filter(expression)
    if all_jobs == (selection is not None):
        raise typer.BadParameter("say which jobs: --filter or --all, one of them")
    answer = session.client.purge_jobs(queue, filter=selection, all=all_jobs, dry_run=dry_run)
    verb = "would be deleted" if dry_run else "deleted"
    session.report(answer, f"{printable(queue)}: {counted(answer.purged, 'job')} {verb}")


# -- redrive -------------------------------------------------------------------------------


@server_command(app, "redrive", "everlog jobs redrive mail.dead --max 100")
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
    expression: JobFilter = None,
    dry_run: DryRun = False,
) -> None:
    """Bring given-up jobs back to their queues, oldest first, and delete them here.

    Each is brought back once, whatever fails meanwhile. Jobs that cannot be are left, and the exit code is 1.
    """
    selection = parse_filter(expression)
    done: Counter[str] = Counter()
    left = 0
    try:
        while most is None or done.total() < most:
            limit = None if most is None else most - done.total()
            answer = session.client.redrive(
                dead_letters, to=to, filter=selection, limit=limit, dry_run=dry_run
            )
            done.update(answer.queues)
            left = answer.left
            # The server ends a call after half a minute; what it left for that is brought back by the next.
            if dry_run or not (answer.left and answer.moved):
                break
    finally:
        queues = dict(sorted(done.items()))
        verb = "would be brought back" if dry_run else "brought back"
        lines = [f"{counted(n, 'job')} {verb} to {printable(queue)}" for queue, n in queues.items()]
        text = "\n".join(lines) or f"{printable(dead_letters)}: nothing was brought back"
        session.report(
            {"topic": dead_letters, "redriven": done.total(), "queues": queues, "left": left}, text
        )
    if left and (most is None or done.total() < most):
        raise InvalidRequest(
            f"{counted(left, 'job')} of {dead_letters} cannot be brought back: each is leased, or does not "
            "say which queue it comes from, or that queue does not exist; name one with --to"
        )
