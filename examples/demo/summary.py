"""What the report says in words and tables, the same for the page and for the text.

Owns the wording; prints nothing and draws nothing.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from examples.demo import series
from examples.demo.accounts import Account, Verdict
from examples.demo.audit import Latency
from examples.demo.charts import duration_text
from examples.demo.evidence import Evidence
from examples.demo.plan import Kill, Plan
from examples.demo.records import LEASE_MS


@dataclass(frozen=True)
class Summary:
    """The head of the report."""

    is_sound: bool
    verdict: str
    subtitle: str
    setting: str
    machine: str
    tiles: list[tuple[str, str]]
    problems: list[str]


@dataclass(frozen=True)
class AuditRow:
    """One line of the audit table."""

    account: Account

    @property
    def cells(self) -> tuple[str, ...]:
        """The line as text."""
        account = self.account
        numbers = (account.expected, account.arrived, account.again, account.unexplained)
        return (account.part, account.step, *(f"{number:,}" for number in numbers), account.how)

    def number(self, name: str) -> int:
        """Return one of its numbers by the heading of its column."""
        return int(getattr(self.account, name))


def summarize(evidence: Evidence, plan: Plan, seconds: float) -> Summary:
    """Put the run into a few words."""
    verdict = evidence.verdict
    messages = len(evidence.market)
    checked = sum(account.expected for account in verdict.accounts)
    histograms = {found.name: found.latency for found in series.histograms(evidence)}
    if verdict.is_sound:
        said = (
            f"zero unexplained: {checked:,} checks in {len(verdict.accounts)} steps, nothing lost or doubled"
        )
    else:
        said = (
            f"NOT SOUND: {verdict.unexplained:,} unexplained in {len(verdict.accounts)} steps, "
            f"{len(verdict.problems)} problems"
        )
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return Summary(
        is_sound=verdict.is_sound,
        verdict=said,
        subtitle=f"A whole chain in {seconds:.0f} s, {now}. Every number here was measured in this run.",
        setting=(
            f"{plan.symbols} symbols for {plan.seconds:g} s, {plan.rate_per_s:,.0f} order changes a second"
            + ("." if plan.with_spark else "; without Spark.")
        ),
        machine=(
            f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release().split('-')[0]}, "
            f"CPython {platform.python_version()}; {seconds:.1f} s in all."
        ),
        tiles=[
            ("messages in the queue", f"{messages:,}"),
            ("records watched over SSE", f"{len(evidence.seen):,}"),
            ("orders filled", f"{sum(map(len, evidence.fills.values())):,}"),
            ("queue latency, median", _microseconds(histograms["queue"])),
            ("queue to SSE, median", _microseconds(histograms["SSE"])),
            ("processes killed", f"{len(evidence.outcome.kills)}"),
            ("unexplained", f"{verdict.unexplained:,}"),
        ],
        problems=verdict.problems,
    )


def audit_rows(verdict: Verdict) -> list[AuditRow]:
    """Return the lines of the audit table."""
    return [AuditRow(account) for account in verdict.accounts]


def kill_texts(evidence: Evidence) -> list[str]:
    """Say of each kill what it did and how the process went on."""
    return [text for kill in evidence.outcome.kills for text in _kill_text(evidence, kill)]


def _kill_text(evidence: Evidence, kill: Kill) -> Iterator[str]:
    at_s = (kill.killed_ns - evidence.market.started_ns) / 1e9
    head = f"{kill.who} (pid {kill.pid}) got SIGKILL {at_s:.1f} s after the opening"
    resumed = evidence.findings.resumption
    if resumed is not None and resumed.strategy == kill.who:
        yield (
            f"{head}, after message {resumed.last_seq_before:,}; silent for {resumed.silent_ms:.0f} ms, it "
            f"resumed at its committed position, message {resumed.committed_seq:,}. The router recognised "
            "the orders that it repeated."
        )
    elif kill.who in evidence.done:
        rows = np.concatenate([table.rows for table in evidence.done.values()])
        again = int(np.count_nonzero(rows["deliveries"] > 1))
        jobs = f"{again:,} job{' was' if again == 1 else 's were'}"
        came_back = (
            f"{jobs} given out once more when the lease of {LEASE_MS / 1000:g} s had ended: what it held "
            "came back and was done."
        )
        yield f"{head}. {came_back if again else 'It held no job at that moment.'}"
    else:
        _, waited = series.sse_latencies(evidence)
        received = np.sort(evidence.seen.rows["received_ns"])
        place = int(np.searchsorted(received, kill.restarted_ns))
        silent_s = (int(received[min(place, len(received) - 1)]) - kill.killed_ns) / 1e9
        yield (
            f"{head}; its successor brought the next record {silent_s:.1f} s later; {int(waited.sum()):,} "
            "messages had to wait for it. It asked the topic what had arrived, and sent nothing twice."
        )


def latency_rows(evidence: Evidence) -> list[tuple[str, ...]]:
    """Return the links between processes with rates, percentiles and losses."""
    rows = []
    for link in evidence.findings.links:
        counts = (link.lost, link.duplicated, link.redelivered)
        rate = f"{link.rate_per_s:,.0f}"
        rows.append(
            (link.name, f"{link.messages:,}", rate, *percentiles(link.latency), *(f"{n:,}" for n in counts))
        )
    for strategy, latency in evidence.findings.tick_to_books.items():
        rows.append((f"{strategy}: trade to books", "", "", *percentiles(latency), "", "", ""))
    watched = {account.step: account for account in evidence.verdict.accounts}["topic to SSE watcher"]
    sse = next(found for found in series.histograms(evidence) if found.name == "SSE")
    seconds = max(1e-9, (int(evidence.seen.timestamp_ns[-1]) - int(evidence.seen.timestamp_ns[0])) / 1e9)
    rows.append(
        (
            "queue -> SSE watcher",
            f"{watched.expected:,}",
            f"{len(evidence.seen) / seconds:,.0f}",
            *percentiles(sse.latency),
            f"{watched.lost:,}",
            f"{watched.duplicated:,}",
            "0",
        )
    )
    return rows


def stage_rows(evidence: Evidence) -> list[tuple[str, str, str]]:
    """Return what took how long."""
    return [(stage.name, f"{stage.seconds:.1f}", stage.result) for stage in evidence.outcome.stages]


def percentiles(latency: Latency | None) -> list[str]:
    """Return p50, p99 and p99.9 in microseconds as text."""
    if latency is None:
        return ["-", "-", "-"]
    values = (latency.p50_us, latency.p99_us, latency.p999_us)
    return [f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" for value in values]


def _microseconds(latency: Latency | None) -> str:
    if latency is None:
        return "-"
    return duration_text(latency.p50_us)
