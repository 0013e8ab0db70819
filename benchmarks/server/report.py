"""The one table: rows with their targets, a column for each contender, a verdict, and where everlog loses.

Owns labels, targets and layout; medians, ratios and verdicts are those of the queue's report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.engine.report import at_least, at_most, short
from benchmarks.queue import report as queue_report
from benchmarks.queue.report import EVERLOG, Row, Section, Verdict
from benchmarks.server import wrk
from benchmarks.server.measures import CONTENDERS, FULL, Sizes

KILO = 1e-3
MEGA = 1e-6


def sections(sizes: Sizes) -> tuple[Section, ...]:
    """All rows, for a run of these sizes."""
    return (
        _single_section(),
        _batch_section(),
        Section(
            "Reads of 1000 records, 16 connections (diff; XRANGE)",
            (
                Row("records", "diff_per_s", "M/s", at_least(1), scale=MEGA),
                Row("waiting time, p99", "diff_p99_ms", "ms"),
                Row("times Redis", "diff_per_s", "x", versus="redis"),
            ),
        ),
        _watch_section(sizes),
        _readers_section(sizes),
        Section(
            "Jobs: 50 workers take ten at a time and acknowledge them (bare sockets; redis-py; nats-py)",
            (
                Row("jobs", "jobs_per_s", "k/s", at_least(40), scale=KILO),
                Row("server CPU a job", "jobs_cpu_us", "us"),
                Row("times Redis, streams with a group", "jobs_per_s", "x", at_least(1), versus="redis"),
                Row("times NATS, a work queue", "jobs_per_s", "x", at_least(1), versus="nats"),
                Row("job of a killed connection at the next worker, p50", "handover_p50_ms", "ms"),
                Row("the same, p99", "handover_p99_ms", "ms", at_most(10)),
                Row(
                    f"{short(sizes.keys)} keys with a limit of 1 each: jobs",
                    "keyed_jobs_per_s",
                    "k/s",
                    scale=KILO,
                ),
                Row("the same: server CPU a job", "keyed_cpu_us", "us"),
                Row("the same: share of the jobs without keys", "keyed_share", "x", at_least(0.9)),
                Row(
                    f"{short(sizes.scheduled_jobs)} jobs wait for their time: lateness, p50",
                    "late_p50_ms",
                    "ms",
                ),
                Row("the same, p99", "late_p99_ms", "ms", at_most(10)),
                Row(f"redrive of {short(sizes.dead_letters)} dead letters", "redrive_s", "s", at_most(5)),
            ),
        ),
        Section(
            "From a Python program, one connection, one call after the other (Client, redis-py, nats-py)",
            (
                Row("single records", "python_single_per_s", "k/s", scale=KILO),
                Row("times redis-py", "python_single_per_s", "x", at_least(1), versus="redis"),
                Row("times nats-py", "python_single_per_s", "x", at_least(1), versus="nats"),
                Row("batches of 100: records", "python_batch_per_s", "k/s", scale=KILO),
                Row("batches of 100: times redis-py", "python_batch_per_s", "x", at_least(1), versus="redis"),
                Row("batches of 100: times nats-py", "python_batch_per_s", "x", at_least(1), versus="nats"),
                Row("reads of 1000: records", "python_read_per_s", "k/s", scale=KILO),
                Row("reads of 1000: times redis-py", "python_read_per_s", "x", at_least(1), versus="redis"),
                Row("reads of 1000: times nats-py", "python_read_per_s", "x", at_least(1), versus="nats"),
            ),
        ),
    )


def _single_section() -> Section:
    return Section(
        "Single records, 16 connections, written before the answer (disk; appendfsync everysec)",
        (
            Row("bare body (XADD)", "single_per_s", "k/s", scale=KILO),
            Row("bare body, topic with cap_records", "capped_per_s", "k/s", scale=KILO),
            Row("client's form: query and idempotency key", "client_per_s", "k/s", scale=KILO),
            Row("bare body, server with API keys", "single_keys_per_s", "k/s", scale=KILO),
            Row("client's form, server with API keys", "client_keys_per_s", "k/s", scale=KILO),
            Row("the same: times Redis XADD", "client_keys_per_s", "x", at_least(0.45), versus="redis"),
            Row("the same: waiting time, p50", "client_keys_p50_ms", "ms"),
            Row("the same: waiting time, p99", "client_keys_p99_ms", "ms", at_most(3)),
            Row("the same: server CPU a request", "client_keys_cpu_us", "us"),
            Row(
                "fastest by slowest form, bare with keys aside",
                "forms_spread",
                "x",
                at_most(1.4),
            ),
            Row("bare body: times the client's form", "bare_share", "x", at_least(1)),
            Row("bare body: server CPU a request", "single_cpu_us", "us"),
            Row("bare body: times NATS", "single_per_s", "x", versus="nats"),
        ),
    )


def _batch_section() -> Section:
    return Section(
        "Batches of 100, 16 connections",
        (
            Row("disk, bare body: records", "batch_per_s", "k/s", scale=KILO),
            Row("disk, client's form with API keys: records", "batch_keys_per_s", "k/s", scale=KILO),
            Row(
                "the same: times Redis pipelined",
                "batch_keys_per_s",
                "x",
                at_least(2),
                versus="redis",
            ),
            Row("disk: waiting time of a batch, p99", "batch_p99_ms", "ms"),
            Row("disk: server CPU a batch", "batch_cpu_us", "us"),
            Row("disk: times Redis, pipelines of 100", "batch_per_s", "x", versus="redis"),
            Row("disk: times NATS, 100 publishes", "batch_per_s", "x", versus="nats"),
            Row("fsync (appendfsync always): records", "fsync_per_s", "k/s", scale=KILO),
            Row("fsync: share of the disk figure", "fsync_share", "x", at_least(0.6)),
            Row("fsync: batches kept by one sync", "fsync_appends_a_sync", "", at_least(8)),
            Row("fsync: times Redis", "fsync_per_s", "x", versus="redis"),
        ),
    )


def _watch_section(sizes: Sizes) -> Section:
    idle = sizes.idle_watchers
    return Section(
        "From a write to its delivery to every watcher (server-sent events; XREAD BLOCK; push consumers)",
        (
            Row("100 watchers, p50", "few_p50_ms", "ms", at_most(1)),
            Row("100 watchers, p99", "few_p99_ms", "ms", at_most(3)),
            Row("1000 watchers, p50", "many_p50_ms", "ms", at_most(5)),
            Row("1000 watchers, p99", "many_p99_ms", "ms"),
            Row("1000 watchers, server CPU a delivery", "many_cpu_us", "us", at_most(10)),
            Row("times better than Redis, 1000 watchers, p50", "many_p50_ms", "x", versus="redis"),
            Row("times better than NATS, 1000 watchers, p50", "many_p50_ms", "x", versus="nats"),
            Row(
                f"{short(idle)} idle watchers: resident",
                "idle_resident_mib",
                "MiB",
                # The target names a number of watchers, and holds for that only.
                at_most(300) if idle == FULL.idle_watchers else None,
            ),
            Row("an idle watcher", "idle_watcher_kib", "KiB"),
        ),
    )


def _readers_section(sizes: Sizes) -> Section:
    scanned, topics = short(sizes.filtered_records), short(sizes.watched_topics)
    return Section(
        "Readers with a name, a filter or a pattern",
        (
            Row("commits of consumers, 16 connections", "commit_per_s", "k/s", at_least(20), scale=KILO),
            Row("the same: server CPU a commit", "commit_cpu_us", "us"),
            Row(
                f"diff with a filter on data, none of {scanned} passes: records",
                "filter_data_per_s",
                "M/s",
                at_least(2),
                scale=MEGA,
            ),
            Row("the same, a filter on the tag: records", "filter_tag_per_s", "M/s", at_least(2), scale=MEGA),
            Row(f"watch of {topics} topics by a pattern: server CPU a change", "pattern_change_cpu_us", "us"),
            Row("watch of those that change by their names", "named_change_cpu_us", "us"),
            Row("change and pattern: times change and names", "pattern_share", "x", at_most(1.1)),
            Row(
                f"{short(sizes.idle_consumers)} idle consumers: share of a core",
                "idle_consumers_core",
                "%",
                at_most(1),
                scale=100,
            ),
        ),
    )


NOTES = (
    "Server on one core, load on the other, one request under way on each connection, 64-byte records.",
    "Redis gets its load from redis-benchmark and everlog its writes from wrk, both in C; all else is Python."
    if wrk.is_installed()
    else f"Redis gets its load from redis-benchmark, in C; the others are Python ({wrk.INSTALL_COMMAND}).",
    "disk and everysec: written, synced in the background; NATS syncs every two minutes, nothing else.",
    "Delivery: from just before the write to the record in hand; the next write begins when all have it.",
)


@dataclass
class Results(queue_report.Results):
    """All numbers of all rounds: name of the number, then contender, then one value a round."""

    sections: Sequence[Section] = field(default_factory=tuple)

    def missed(self) -> list[str]:
        """The rows whose target was measured and not met."""
        return [
            f"{section.title}: {row.label}"
            for section, row in self.rows()
            if self.verdict(row) is Verdict.MISSED
        ]

    def lost(self) -> list[str]:
        """The comparisons in which everlog is behind, with the ratio."""
        behind = []
        for section, row in self.rows():
            value = self.value(row, EVERLOG) if row.versus is not None else None
            if value is not None and value < 1:
                behind.append(f"{section.title.partition(',')[0]}: {row.label}: {row.format(value)}")
        return behind

    def rows(self) -> list[tuple[Section, Row]]:
        """All rows with their sections."""
        return [(section, row) for section in self.sections for row in section.rows]

    def measured(self) -> list[tuple[Section, Row]]:
        """The rows that have a number."""
        return [(section, row) for section, row in self.rows() if row.number in self.rounds]

    def as_json(self) -> dict[str, Any]:
        """Every row that was measured, and every value of every round."""
        return {
            "rows": [
                {
                    "section": section.title,
                    "row": row.label,
                    "number": row.number,
                    "unit": row.unit,
                    "target": row.target.text(row) if row.target else None,
                    "verdict": self.verdict(row).value,
                    "values": {
                        name: value for name in CONTENDERS if (value := self.value(row, name)) is not None
                    },
                }
                for section, row in self.measured()
            ],
            "rounds": self.rounds,
            "lost": self.lost(),
            "failures": self.failures,
        }


def print_table(
    console: Console,
    results: Results,
    contenders: Sequence[str],
    missing: dict[str, str],
    title: str = "everlog topics server and its peers",
    notes: Sequence[str] = NOTES,
) -> None:
    """Print the table, then where everlog loses, and what could not be measured and why."""
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("What")
    table.add_column("unit")
    table.add_column("target", justify="right", no_wrap=True)
    for name in contenders:
        table.add_column(CONTENDERS[name].title, justify="right")
    table.add_column("verdict")
    before: Section | None = None
    for section, row in results.measured():
        if section is not before:
            table.add_section()
            table.add_row(Text(section.title, style="bold"))
            before = section
        table.add_row(*queue_report.cells(results, row, contenders, list(missing)))
    console.print(table)
    for note in notes:
        console.print(note, soft_wrap=True)
    for loss in results.lost():
        console.print(Text(f"everlog is behind: {loss}", style="red"))
    for name, what in missing.items():
        contender = CONTENDERS[name]
        console.print(f"{contender.title}: {what} is not installed; {contender.install_command}")
    for failure in results.failures:
        # The last line says what happened; the JSON output has the whole story.
        head, _, rest = failure.partition("\n")
        console.print(Text(f"{head} {rest.strip().splitlines()[-1] if rest.strip() else ''}", style="red"))
