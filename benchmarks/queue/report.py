"""The one table: rows with their targets, a column for each contender, a verdict.

Owns labels, targets and layout; computes nothing but medians over rounds and ratios of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.queue.peers import PEERS
from benchmarks.queue.stats import median, spread

EVERLOG = "everlog"
PACKED_RECORDS = 65_536 // 64


class Verdict(Enum):
    """What a row says about its target."""

    OK = "ok"
    MISSED = "MISSED"
    UNKNOWN = "not measured"
    NONE = ""


@dataclass(frozen=True)
class Target:
    """A bound on everlog's number."""

    bound: float
    at_most: bool

    def met_by(self, value: float) -> bool:
        """Whether `value` is on the right side."""
        return value <= self.bound if self.at_most else value >= self.bound

    def text(self, row: Row) -> str:
        """As the table shows it, e.g. `<= 0.8`."""
        return f"{'<=' if self.at_most else '>='} {row.format(self.bound)}"


@dataclass(frozen=True)
class Row:
    """One line. With `versus`, the number is a ratio of everlog's to that contender's."""

    label: str
    number: str
    unit: str
    target: Target | None = None
    versus: str | None = None
    scale: float = 1.0

    def format(self, value: float) -> str:
        """Three digits are all that a noisy machine supports."""
        digits = 0 if value >= 100 else 1 if value >= 10 else 2
        return f"{value:.{digits}f}"


@dataclass(frozen=True)
class Section:
    """Rows under one heading."""

    title: str
    rows: Sequence[Row]


def _at_most(bound: float) -> Target:
    return Target(bound, at_most=True)


def _at_least(bound: float) -> Target:
    return Target(bound, at_most=False)


SECTIONS = (
    Section(
        "Cost of a call, one process, 64-byte payload",
        (
            Row("append, payload CRC written, caller's timestamp", "append_ns", "ns", _at_most(100)),
            Row("append, wall clock read as well", "append_wall_ns", "ns"),
            Row("for m in reader, CRC checked", "iterate_ns", "ns/msg", _at_most(70)),
            Row("append_array, CRC written", "append_array_ns", "ns/msg", _at_most(30)),
            Row("batch view, CRC checked", "batch_view_ns", "ns/msg", _at_most(30)),
            Row("batch view, checking left to caller", "batch_view_unchecked_ns", "ns/msg", _at_most(10)),
        ),
    ),
    Section(
        "One-way latency between processes, receiver spinning",
        (
            Row("p50", "spinning_p50_us", "us", _at_most(0.8)),
            Row("p99", "spinning_p99_us", "us", _at_most(1.5)),
            Row("p99.9", "spinning_p999_us", "us"),
            Row("times better than iceoryx2, p50", "spinning_p50_us", "x", _at_least(7), versus="iceoryx2"),
            Row("times better than iceoryx2, p99", "spinning_p99_us", "x", _at_least(7), versus="iceoryx2"),
            Row("next() in a loop in place of wait(), p50", "polling_p50_us", "us"),
            Row("next() in a loop in place of wait(), p99", "polling_p99_us", "us"),
            Row("  while the machine interrupted the receiver", "polling_interrupted_percent", "%"),
            Row("  p99 of all others", "polling_running_p99_us", "us"),
            Row("  times better than iceoryx2, p99", "polling_running_p99_us", "x", versus="iceoryx2"),
        ),
    ),
    Section(
        "One-way latency between processes, receiver asleep in the kernel",
        (
            Row("p50", "asleep_p50_us", "us", _at_most(45)),
            Row("p99", "asleep_p99_us", "us"),
            Row("times better than pyzmq, p50", "asleep_p50_us", "x", _at_least(1), versus="pyzmq"),
            Row("times better than iceoryx2, p50", "asleep_p50_us", "x", _at_least(1), versus="iceoryx2"),
        ),
    ),
    Section(
        "Throughput, one sender to one receiver, content and order checked",
        (
            Row("64 B, one by one", "stream_64b_per_s", "M/s", _at_least(5), scale=1e-6),
            Row("times pyzmq, 64 B, one by one", "stream_64b_per_s", "x", _at_least(4), versus="pyzmq"),
            Row("64 B, batches, prepared segment", "batched_per_s", "M/s", _at_least(20), scale=1e-6),
            Row("64 B, batches, fresh segments", "batched_fresh_per_s", "M/s", _at_least(8), scale=1e-6),
            Row("1 KiB, one by one", "stream_1kib_per_s", "k/s", scale=1e-3),
            Row("64 KiB, one by one", "stream_64kib_per_s", "k/s", scale=1e-3),
            Row(
                f"64 B, {PACKED_RECORDS} packed by the caller into one message",
                "stream_64kib_per_s",
                "M/s",
                scale=PACKED_RECORDS * 1e-6,
            ),
        ),
    ),
    Section(
        "append while every 511th rolls to a prepared segment",
        (
            Row("all appends, p50", "rolling_append_p50_us", "us"),
            Row("all appends, p99", "rolling_append_p99_us", "us"),
            Row("all appends, p99.9", "rolling_append_p999_us", "us", _at_most(999)),
            Row("all appends, max", "rolling_append_max_us", "us"),
            Row("those that rolled, p50", "roll_p50_us", "us"),
            Row("those that rolled, p99", "roll_p99_us", "us"),
            Row("those that rolled, max", "roll_max_us", "us"),
        ),
    ),
    Section(
        "Resident memory after the 64 B throughput run",
        (
            Row("sender, private", "sender_private_mib", "MiB"),
            Row("sender, mapped", "sender_mapped_mib", "MiB"),
            Row("receiver, private", "receiver_private_mib", "MiB"),
            Row("receiver, mapped", "receiver_mapped_mib", "MiB"),
        ),
    ),
)


NOTES = (
    "Latency: from just before the send call to the message in hand; paced, so that none waits for another.",
    "Spinning: everlog wait() with BusySpin, then next(); in a loop iceoryx2 receive(), pyzmq recv(NOBLOCK),",
    "Pipe poll(), Redis XREAD. Asleep: everlog SpinThenPark(spin_us=0), iceoryx2 listener; the others block.",
    "Spinning has 20,000 samples a round, pyzmq 4,000 and Redis 2,000 (slower pace); asleep has 800.",
    "The machine interrupted a receiver if the look that found the message took 1 us longer than usual.",
    "Cost of a call: median chunk of 4,096 messages, each chunk read right after it was written (in cache).",
    "everlog uses prepared segments except in the row that says fresh, and persists every message; the peers",
    "persist none. The packed row is the 64 KiB run: its records have no seq, timestamp or CRC each.",
)


@dataclass
class Results:
    """All numbers of all rounds: name of the number, then contender, then one value a round."""

    rounds_planned: int
    rounds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, contender: str, numbers: Mapping[str, float]) -> None:
        """Take in what one measurement of one round gave."""
        for number, value in numbers.items():
            self.rounds.setdefault(number, {}).setdefault(contender, []).append(value)

    def value(self, row: Row, contender: str) -> float | None:
        """The number that belongs into a cell, or None."""
        by_contender = self.rounds.get(row.number, {})
        if contender not in by_contender:
            return None
        value = median(by_contender[contender])
        if row.versus is None:
            return value * row.scale
        if contender != EVERLOG or row.versus not in by_contender:
            return None
        other = median(by_contender[row.versus])
        higher_is_better = row.number.endswith("_per_s")
        return value / other if higher_is_better else other / value

    def rounds_of(self, row: Row, contender: str) -> int:
        """How many rounds a cell stands on; fewer than planned when some failed."""
        values = self.rounds.get(row.number, {})
        contenders = [contender] if row.versus is None else [contender, row.versus]
        return min(len(values.get(name, [])) for name in contenders)

    def verdict(self, row: Row) -> Verdict:
        """Whether everlog meets the row's target."""
        if row.target is None:
            return Verdict.NONE
        value = self.value(row, EVERLOG)
        if value is None:
            return Verdict.UNKNOWN
        return Verdict.OK if row.target.met_by(value) else Verdict.MISSED

    def missed(self) -> list[str]:
        """The rows whose target was measured and not met."""
        return [
            f"{section.title}: {row.label}"
            for section in SECTIONS
            for row in section.rows
            if self.verdict(row) is Verdict.MISSED
        ]

    def as_json(self) -> dict[str, Any]:
        """Every row that was measured, and every value of every round with its spread."""
        return {
            "rows": [
                {
                    "section": section.title,
                    "row": row.label,
                    "number": row.number,
                    "unit": row.unit,
                    "target": row.target.text(row) if row.target else None,
                    "verdict": self.verdict(row).value,
                    "values": {name: value for name in PEERS if (value := self.value(row, name)) is not None},
                }
                for section in SECTIONS
                for row in section.rows
                if row.number in self.rounds
            ],
            "numbers": {
                number: {
                    contender: dict(zip(("min", "median", "max"), spread(values), strict=True))
                    | {"rounds": values}
                    for contender, values in by_contender.items()
                }
                for number, by_contender in self.rounds.items()
            },
            "failures": self.failures,
        }


def print_table(
    console: Console, results: Results, contenders: Sequence[str], missing: Sequence[str]
) -> None:
    """Print the table, then what could not be measured and why."""
    table = Table(title="everlog queue and its peers", title_justify="left", header_style="bold")
    table.add_column("What")
    table.add_column("unit")
    table.add_column("target", justify="right", no_wrap=True)
    for contender in contenders:
        table.add_column(PEERS[contender].title, justify="right")
    table.add_column("verdict")
    for section in SECTIONS:
        measured = [row for row in section.rows if row.number in results.rounds]
        if not measured:
            continue
        table.add_section()
        table.add_row(Text(section.title, style="bold"))
        for row in measured:
            table.add_row(*cells(results, row, contenders, missing))
    console.print(table)
    for note in NOTES:
        console.print(note, soft_wrap=True)
    for contender in missing:
        console.print(f"{PEERS[contender].title}: not installed; {PEERS[contender].install_command}")
    for failure in results.failures:
        # The last line says what happened; the JSON output has the whole story.
        head, _, rest = failure.partition("\n")
        console.print(Text(f"{head} {rest.strip().splitlines()[-1] if rest.strip() else ''}", style="red"))


def cells(results: Results, row: Row, contenders: Sequence[str], missing: Sequence[str]) -> list[str | Text]:
    """What one line of the table shows."""
    verdict = results.verdict(row)
    cells: list[str | Text] = [f"  {row.label}", row.unit, row.target.text(row) if row.target else ""]
    for contender in contenders:
        cells.append("not installed" if contender in missing else _cell(results, row, contender))
    cells.append(Text(verdict.value, style="bold red" if verdict is Verdict.MISSED else "green"))
    return cells


def _cell(results: Results, row: Row, contender: str) -> str:
    value = results.value(row, contender)
    if value is None:
        return "-"
    rounds = results.rounds_of(row, contender)
    # A median of fewer rounds than the heading says must say so itself.
    partial = f" ({rounds}/{results.rounds_planned})" if rounds < results.rounds_planned else ""
    return row.format(value) + partial
