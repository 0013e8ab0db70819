"""The commands `everlog status` and `everlog top`: how a running server is, once and again and again.

Owns what they print; everything comes from the public API.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import typer

from everlog.api_types import ConsumerPage, ConsumerState, StorageHealth, TopicSummary, TopicType
from everlog.cli import output
from everlog.cli.options import AsJson
from everlog.cli.output import Table, counted, human_bytes, printable, reporting
from everlog.cli.session import ContextName, Key, Url, connected
from everlog.client.errors import ApiFailed
from everlog.client.flows import Call
from everlog.client.retrying import ONCE
from everlog.client.sync_client import Client
from everlog.errors import NotAQueue, TopicNotFound
from everlog.job_types import JobCounts

UNWELL_EXIT_CODE: Final = 1
ROWS: Final = 20
TABLE_LINES: Final = 6
"""Of a table without its rows: a line before it, its title, two of its heading, a rule, one behind it."""
TOPICS_COMPARED: Final = 1000
"""One page: looking at a server costs the same whatever it holds."""


def status_command(
    url: Url = None, key: Key = None, context: ContextName = None, as_json: AsJson = False
) -> None:
    """Show how a running server is: what it holds, what failed, and what the last start found damaged.

    Exit code 1 unless everything is fine.
    """
    with reporting(as_json=as_json), connected(url, key, context, ONCE) as client:
        health = client.health()
        storage = health.storage or StorageHealth()
        try:
            metrics: dict[str, Any] | None = client.metrics()
        except ApiFailed as error:
            # Health is open to everyone, metrics are not; a probe without a key still shows the storage.
            if error.status not in (401, 403):
                raise
            metrics = None
        if as_json:
            document = {**msgspec.to_builtins(health), "storage": msgspec.to_builtins(storage)}
            output.print_json({**document, "metrics": metrics})
        else:
            server = f"{printable(str(client.address))}, version {printable(health.version)}"
            fields = [("server", server), ("up", _duration(health.uptime_ms))]
            output.print_fields(
                [*fields, *_content_fields(metrics), *_storage_fields(msgspec.to_builtins(storage))]
            )
    if storage.status != "ok":
        raise typer.Exit(UNWELL_EXIT_CODE)


def _content_fields(metrics: dict[str, Any] | None) -> list[tuple[str, str]]:
    if metrics is None:
        return [("topics", "not shown without a key that may read")]
    classes = {name: metrics.get(f"topics_{name}", 0) for name in ("ephemeral", "memory", "disk", "fsync")}
    by_class = ", ".join(f"{count} {name}" for name, count in classes.items() if count)
    return [
        (
            "ready",
            "yes" if metrics["ready"] else f"no, {metrics['replay_progress']:.0%} of the log is replayed",
        ),
        ("topics", f"{metrics['topics']}{f' ({by_class})' if by_class else ''}"),
        ("records", f"{metrics['records_live']}, {human_bytes(metrics['bytes_live'])}"),
        ("job queues", f"{metrics['queue_topics']}, {counted(metrics['queue_leases_in_flight'], 'lease')}"),
        ("connections", str(metrics.get("sse_connections", 0))),
    ]


def _storage_fields(storage: dict[str, Any]) -> list[tuple[str, str]]:
    fields = [("storage", storage["status"])]
    for name in ("closed_shards", "failing", "errors", "damage"):
        values = ", ".join(f"{printable(kind)} {value}" for kind, value in sorted(storage[name].items()))
        fields.append((name.replace("_", " "), values or "none"))
    lost = "some may be lost" if storage["may_lack_acked"] else "none is lost"
    for name in ("damaged_topics", "paused_routers"):
        fields.append((name.replace("_", " "), str(storage.get(name, 0))))
    return [*fields, ("acknowledged records", lost)]


def _duration(milliseconds: int) -> str:
    seconds = milliseconds // 1000
    days, seconds = divmod(seconds, 86_400)
    clock = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{counted(days, 'day')}, {clock}" if days else clock


# -- top -----------------------------------------------------------------------------------


class Sample(NamedTuple):
    """A server at one time; `queues` are the job queues with what is in them."""

    at_s: float
    metrics: dict[str, Any]
    topics: Sequence[TopicSummary]
    has_more: bool
    queues: Mapping[str, JobCounts] = {}
    consumers: Sequence[ConsumerState] = ()


def top_command(
    url: Url = None,
    key: Key = None,
    context: ContextName = None,
    interval_s: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="Time between two looks.")
    ] = 2.0,
    count: Annotated[int | None, typer.Option("--count", "-c", min=1, help="Stop after so many.")] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            "--rows",
            min=1,
            max=1000,
            help="Rows of each table. Default: what the terminal has room for, else 20.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the busiest topics, job queues and the consumers that are behind, again and again, until Ctrl-C.

    Rates are those since the look before. The first 1000 topics by name and 1000 consumers are compared.
    """
    with reporting(as_json=as_json), connected(url, key, context, ONCE) as client:
        before = _sample(client, rows or ROWS)
        looks = 0
        try:
            while count is None or looks < count:
                time.sleep(interval_s)
                now = _sample(client, rows or ROWS)
                if as_json:
                    _print_json(before, now, rows or ROWS)
                else:
                    _show(str(client.address), before, now, rows)
                before = now
                looks += 1
        except KeyboardInterrupt:
            raise typer.Exit(0) from None


def _sample(client: Client, rows: int) -> Sample:
    metrics = client.metrics()
    page = client.topics_page(page_size=TOPICS_COMPARED)
    named = [topic.topic for topic in page.topics if topic.type is TopicType.QUEUE]
    queues = {name: counts for name in named[:rows] if (counts := _counts(client, name)) is not None}
    consumers = client.call(Call("GET", f"/consumers?page_size={TOPICS_COMPARED}", ConsumerPage)).consumers
    return Sample(time.monotonic(), metrics, page.topics, page.next_cursor is not None, queues, consumers)


def _counts(client: Client, queue: str) -> JobCounts | None:
    try:
        return client.jobs_page(queue, limit=1).counts
    except (TopicNotFound, NotAQueue):
        return None  # deleted meanwhile


def rates(before: Sample, now: Sample) -> list[tuple[TopicSummary, float]]:
    """The topics with the records each got a second, busiest first; a new topic counts from its start."""
    heads = {topic.topic: topic.head_seq for topic in before.topics}
    duration_s = max(now.at_s - before.at_s, 1e-9)
    # A head that went back belongs to a topic that was deleted and made again.
    found = [
        (topic, (topic.head_seq - min(heads.get(topic.topic, 0), topic.head_seq)) / duration_s)
        for topic in now.topics
    ]
    return sorted(found, key=lambda each: (-each[1], each[0].topic))


def _totals(before: Sample, now: Sample) -> tuple[float, float]:
    """Records and syncs a second."""
    duration_s = max(now.at_s - before.at_s, 1e-9)
    syncs = max(0, now.metrics["wal"]["fsyncs"] - before.metrics["wal"]["fsyncs"]) / duration_s
    return sum(rate for _, rate in rates(before, now)), syncs


def _print_json(before: Sample, now: Sample, rows: int) -> None:
    records, syncs = _totals(before, now)
    busiest = rates(before, now)[:rows]
    topics = [{"topic": topic.topic, "records_per_s": round(rate, 3)} for topic, rate in busiest]
    sample = {"records_per_s": round(records, 3), "syncs_per_s": round(syncs, 3), "topics": topics}
    queues = [
        {"queue": name, **msgspec.to_builtins(counts), "done_per_s": round(rate, 3)}
        for name, counts, rate in _done_rates(before, now)
    ]
    behind = [msgspec.to_builtins(state) for state in _behind(now, rows)]
    print(output.json_line({**sample, "queues": queues, "consumers": behind}), end="", flush=True)


def _shares(asked: int | None, queues: int, consumers: int) -> tuple[int, int, int]:
    """How many topics, job queues and consumers are shown: on a terminal what it has room for."""
    if asked is not None or not output.is_terminal():
        return (asked or ROWS,) * 3
    tables = 1 + bool(queues) + bool(consumers)
    room = max(shutil.get_terminal_size().lines - tables * TABLE_LINES, 3)
    queues, consumers = min(queues, max(room // 4, 1)), min(consumers, max(room // 3, 1))
    return max(room - queues - consumers, 1), queues, consumers


def _show(address: str, before: Sample, now: Sample, rows: int | None) -> None:
    busiest = rates(before, now)
    records, syncs = _totals(before, now)
    metrics = now.metrics
    done, behind = _done_rates(before, now), _behind(now, TOPICS_COMPARED)
    topics_shown, queues_shown, consumers_shown = _shares(rows, len(done), len(behind))
    if output.is_terminal():
        print("\x1b[2J\x1b[H", end="")  # the screen begins anew
    more = f", the first {TOPICS_COMPARED} by name" if now.has_more else ""
    title = (
        f"{address}: up {_duration(metrics['uptime_ms'])}, {counted(metrics['topics'], 'topic')}{more}, "
        f"{records:.1f} records/s, {syncs:.1f} syncs/s, {human_bytes(metrics['bytes_live'])} live"
    )
    lines = [
        (
            printable(topic.topic),
            topic.type or "",
            topic.durability or "",
            f"{rate:.1f}",
            str(topic.head_seq),
            human_bytes(topic.bytes),
        )
        for topic, rate in busiest[:topics_shown]
    ]
    output.print_table(Table(title, ("topic", "type", "class", "records/s>", "head>", "bytes>"), lines))
    _print_queues(done[:queues_shown])
    _print_consumers(behind[:consumers_shown])


def _print_queues(done: list[tuple[str, JobCounts, float]]) -> None:
    if done:
        states = ("ready", "leased", "delayed", "failed", "dead_lettered")
        columns = ("job queue", "done/s>", *(f"{state.replace('_', ' ')}>" for state in states))
        of_queues = [
            (printable(name), f"{rate:.1f}", *(str(getattr(counts, state)) for state in states))
            for name, counts, rate in done
        ]
        output.print_table(Table("job queues", columns, of_queues))


def _print_consumers(behind: list[ConsumerState]) -> None:
    if behind:
        columns = ("consumer", "topic", "records behind>", "seconds behind>", "owner", "at risk")
        of_consumers = [
            (
                printable(state.name),
                printable(state.topic),
                str(state.lag_records),
                f"{state.lag_ms / 1000:.1f}",
                printable(state.owner) if state.owner else "",
                "yes" if state.at_risk else "",
            )
            for state in behind
        ]
        output.print_table(Table("consumers that are behind", columns, of_consumers))


def _done_rates(before: Sample, now: Sample) -> list[tuple[str, JobCounts, float]]:
    """The job queues with the jobs done a second."""
    duration_s = max(now.at_s - before.at_s, 1e-9)
    found = []
    for name, counts in now.queues.items():
        known = before.queues.get(name)
        done = counts.done_total - (known.done_total if known is not None else counts.done_total)
        found.append((name, counts, max(0, done) / duration_s))
    return found


def _behind(now: Sample, rows: int) -> list[ConsumerState]:
    """The consumers that have something to read, the latest first."""
    late = [state for state in now.consumers if state.lag_records]
    return sorted(late, key=lambda state: (-state.lag_ms, state.topic, state.name))[:rows]
