"""What the demonstration prints: progress while it runs, and what the audit found.

Owns the wording. On a terminal it is rich's tables and bars; anywhere else plain lines.
"""

from __future__ import annotations

import dataclasses
import json
import time
from types import TracebackType
from typing import Any, Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.demo.audit import Findings, Latency
from examples.demo.records import STRATEGIES
from examples.demo.supervisor import Counts

PLAIN_WIDTH = 110
WIDE = 100  # with this many columns there is room for some air in the table
PLAIN_INTERVAL_S = 1.0


def make_console(*, quiet: bool) -> Console:
    """Return a console: as wide as the terminal, or wide enough for the table if there is none."""
    console = Console(quiet=quiet, highlight=False)
    return console if console.is_terminal else Console(quiet=quiet, highlight=False, width=PLAIN_WIDTH)


class Display:
    """Shows how a run goes on; a `Watcher` of the supervisor."""

    def __init__(self, console: Console, ticks: int) -> None:
        self._console = console
        self._started_s = time.monotonic()
        self._shown_s = self._started_s
        self._progress: Progress | None = None
        if console.is_terminal and not console.quiet:
            columns = (TextColumn("{task.description:>8}"), BarColumn(None), MofNCompleteColumn())
            self._progress = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
            both = len(STRATEGIES) * ticks
            self._totals = {"ticks": ticks, "orders": both, "fills": both}
            self._bars = {
                name: self._progress.add_task(name, total=self._totals[name]) for name in self._totals
            }

    def note(self, text: str) -> None:
        """Tell what happened, and when."""
        self._console.print(f"{time.monotonic() - self._started_s:6.2f} s  {text}")

    def progress(self, counts: Counts) -> None:
        """Move the bars, or print a line once a second."""
        if self._progress is not None:
            for name, bar in self._bars.items():
                # Orders that a restarted strategy repeats would carry its bar beyond the end.
                completed = min(getattr(counts, name), self._totals[name])
                self._progress.update(bar, completed=completed)
        elif counts.ticks and time.monotonic() - self._shown_s >= PLAIN_INTERVAL_S:
            self._shown_s = time.monotonic()
            self.note(f"{counts.ticks:,} ticks, {counts.orders:,} orders, {counts.fills:,} fills")

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()


def print_findings(console: Console, findings: Findings) -> None:
    """Print the table, what the kill did, and the verdict."""
    console.print(_table(findings, console))
    resumed = findings.resumption
    if resumed is not None:
        console.print(
            f"Kill: {resumed.strategy} (pid {resumed.pid}) got SIGKILL after tick "
            f"{resumed.last_seq_before:,}, was silent for {resumed.silent_ms:.0f} ms and resumed at tick "
            f"{resumed.first_seq_after:,}; its committed position was tick {resumed.committed_seq:,}."
        )
    rolls = sum(link.segments - 1 for link in findings.links)
    console.print(
        f"Latency: from append to receipt, over {rolls} rolls of a segment. Left out: {findings.left_out:,} "
        "ticks that waited for a strategy to start, with their orders and fills."
    )
    for problem in findings.problems:
        console.print(f"PROBLEM: {problem}", style="bold red")
    if findings.zero_loss:
        verdict = "zero loss: every tick has one order, one fill and one entry in the books"
        console.print(verdict, style="bold green")
    else:
        lost = sum(link.lost for link in findings.links)
        duplicated = sum(link.duplicated for link in findings.links)
        problems = len(findings.problems)
        verdict = f"NOT zero loss: {lost:,} lost, {duplicated:,} duplicated, {problems} problems"
        console.print(verdict, style="bold red")


def to_json(findings: Findings) -> str:
    """Return everything that was found as one JSON object."""
    content: dict[str, Any] = dataclasses.asdict(findings)
    return json.dumps({"zero_loss": findings.zero_loss, **content}, indent=2, ensure_ascii=False)


def _table(findings: Findings, console: Console) -> Table:
    style = box.ROUNDED if console.is_terminal else box.ASCII2
    padding = (0, 1) if console.width >= WIDE else 0
    table = Table(title="What the audit found", box=style, padding=padding)
    table.add_column("link", no_wrap=True)
    headings = ("messages", "msg/s", "p50\nus", "p99\nus", "p99.9\nus", "lost", "dupli-\ncated")
    for heading in (*headings, "redeli-\nvered\nafter kill"):
        table.add_column(heading, justify="right", no_wrap=True)
    for link in findings.links:
        counts = [f"{count:,}" for count in (link.lost, link.duplicated, link.redelivered)]
        rate = f"{link.rate_per_s:,.0f}"
        table.add_row(link.name, f"{link.messages:,}", rate, *_percentiles(link.latency), *counts)
    table.add_section()
    for strategy, latency in findings.tick_to_books.items():
        table.add_row(f"{strategy}, in all", "", "", *_percentiles(latency), "", "", "")
    return table


def _percentiles(latency: Latency | None) -> list[str]:
    if latency is None:
        return ["-", "-", "-"]
    values = (latency.p50_us, latency.p99_us, latency.p999_us)
    return [f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" for value in values]
