"""The report as text: on the terminal and in `report.txt`, the same numbers as on the page.

Owns the tables of text and small plots made of characters.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from examples.demo import series
from examples.demo.charts import duration_text
from examples.demo.evidence import Evidence
from examples.demo.page import render_page
from examples.demo.summary import Summary, audit_rows, kill_texts, latency_rows, stage_rows

PLAIN_WIDTH = 110
BAR_WIDTH = 50
RATE_LINES_MAX = 30
PAGE_FILE = "index.html"
TEXT_FILE = "report.txt"
JSON_FILE = "report.json"


def write_report(directory: Path, evidence: Evidence, summary: Summary) -> None:
    """Leave the page, the text and the numbers in a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / PAGE_FILE).write_text(render_page(evidence, summary), encoding="utf-8")
    text = io.StringIO()
    print_report(Console(file=text, width=PLAIN_WIDTH, highlight=False), evidence, summary, with_plots=True)
    (directory / TEXT_FILE).write_text(text.getvalue(), encoding="utf-8")
    (directory / JSON_FILE).write_text(json.dumps(as_json(evidence, summary), indent=2), encoding="utf-8")


def print_report(console: Console, evidence: Evidence, summary: Summary, *, with_plots: bool = False) -> None:
    """Print tables, kills and the verdict; with the plots as characters if wanted."""
    console.print("everlog demo", style="bold")
    console.print(f"{summary.setting} {summary.machine}\n", soft_wrap=True)
    if with_plots:
        _print_plots(console, evidence)
    console.print(_stages(console, evidence))
    console.print(_links(console, evidence))
    console.print(_audit(console, evidence))
    for text in kill_texts(evidence):
        console.print(f"Kill: {text}")
    for problem in summary.problems:
        console.print(f"PROBLEM: {problem}", style="bold red")
    console.print(summary.verdict, style="bold green" if summary.is_sound else "bold red")


def as_json(evidence: Evidence, summary: Summary) -> dict[str, Any]:
    """Return what was found, for programs."""
    headings = ("part", "step", "expected", "arrived", "again", "unexplained")
    return {
        "is_sound": summary.is_sound,
        "unexplained": evidence.verdict.unexplained,
        "problems": summary.problems,
        "messages": len(evidence.market),
        "accounts": [
            {name: getattr(account, name) for name in (*headings, "lost", "duplicated", "different")}
            for account in evidence.verdict.accounts
        ],
        "kills": [kill.who for kill in evidence.outcome.kills],
        "stages": [{"name": stage.name, "seconds": stage.seconds} for stage in evidence.outcome.stages],
    }


# -- tables ----------------------------------------------------------------------------------


def _table(
    console: Console, title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: range
) -> Table:
    style = box.ROUNDED if console.is_terminal else box.ASCII2
    table = Table(title=title, title_justify="left", box=style, padding=(0, 1) if console.width >= 100 else 0)
    for place, heading in enumerate(headings):
        is_number = place in numbers
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=is_number)
    for row in rows:
        table.add_row(*row)
    return table


def _audit(console: Console, evidence: Evidence) -> Table:
    headings = ("part", "step", "expected", "arrived", "again", "unex-\nplained", "checked")
    rows = audit_rows(evidence.verdict)
    table = _table(console, "Audit of everything", headings, [row.cells for row in rows], range(2, 6))
    table.add_section()
    names = ("expected", "arrived", "again", "unexplained")
    table.add_row("", "all", *(f"{sum(row.number(name) for row in rows):,}" for name in names), "")
    return table


def _links(console: Console, evidence: Evidence) -> Table:
    headings = (
        "link",
        "messages",
        "msg/s",
        "p50\nus",
        "p99\nus",
        "p99.9\nus",
        "lost",
        "dupli-\ncated",
        "again",
    )
    return _table(console, "Links, from append to receipt", headings, latency_rows(evidence), range(1, 9))


def _stages(console: Console, evidence: Evidence) -> Table:
    return _table(console, "Stages", ("stage", "seconds", "result"), stage_rows(evidence), range(1, 2))


# -- plots -----------------------------------------------------------------------------------


def _print_plots(console: Console, evidence: Evidence) -> None:
    found = series.prices(evidence)
    console.print(f"Mid price and spread of {found.symbol} ({found.source})")
    step = max(1, len(found.seconds) // RATE_LINES_MAX)
    low, high = float(found.mid.min()), float(found.mid.max())
    for place in range(0, len(found.seconds), step):
        column = round((float(found.mid[place]) - low) / max(high - low, 1e-9) * BAR_WIDTH)
        spread = f"{float(found.spread_bps[place]):6.2f} bps"
        line = (
            f"{float(found.seconds[place]):7.2f} s {float(found.mid[place]):9.3f} {spread} |{' ' * column}*"
        )
        console.print(line)
    _print_depth(console, evidence)
    for histogram in series.histograms(evidence):
        console.print(f"\nLatency of {histogram.name}, messages per interval")
        largest = max(1, int((histogram.counts + histogram.apart).max(initial=1)))
        for low_us, count, apart in zip(histogram.edges_us, histogram.counts, histogram.apart, strict=False):
            if count or apart:
                bar = "#" * round(BAR_WIDTH * int(count) / largest) + "~" * round(
                    BAR_WIDTH * int(apart) / largest
                )
                console.print(f"from {duration_text(float(low_us)):>9} {int(count + apart):>9,} {bar}")
        console.print(f"~ are {histogram.apart_count:,} that waited for a process that was dead")
    _print_rates(console, evidence)


def _print_depth(console: Console, evidence: Evidence) -> None:
    """The heat map with a character per cell, every other column and row."""
    found = series.heat(evidence)
    console.print(
        "\nDepth: resting size by price (down) and time (right); denser characters are larger sizes"
    )
    characters = " .:-=+*#"
    for row in range(found.shades.shape[1] - 1, -1, -2):
        cells = "".join(characters[min(int(shade), 7)] for shade in found.shades[::2, row])
        console.print(f"{float(found.prices[row]):9.3f} |{cells}", markup=False)


def _print_rates(console: Console, evidence: Evidence) -> None:
    found = series.rates(evidence)
    headings = ("seconds", *found.per_second)
    step = max(1, len(found.seconds) // RATE_LINES_MAX)
    rows = [
        (f"{found.seconds[place]:.2f}", *(f"{values[place]:,.0f}" for values in found.per_second.values()))
        for place in range(0, len(found.seconds), step)
    ]
    console.print()
    console.print(_table(console, "Messages a second", headings, rows, range(0, 5)))
