"""The one table: rows with their targets, the median and the spread of the rounds, a verdict.

Owns labels, targets and layout; computes nothing but medians over rounds. A target that names a size
is only held against a run of that size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.engine.measures import FULL, Sizes
from benchmarks.queue.report import Row, Section, Target, Verdict
from benchmarks.queue.stats import spread

MEGA = 1e-6


def at_most(bound: float) -> Target:
    """A target that is met by `bound` or less."""
    return Target(bound, at_most=True)


def at_least(bound: float) -> Target:
    """A target that is met by `bound` or more."""
    return Target(bound, at_most=False)


def short(count: int) -> str:
    """A count as a label has it: `10 M`, `100 k`."""
    for size, letter in ((1_000_000, "M"), (1000, "k")):
        if count >= size:
            return f"{count / size:g} {letter}"
    return str(count)


def _rate(label: str, number: str, target: float | None = None) -> Row:
    return Row(label, number, "M/s", None if target is None else at_least(target), scale=MEGA)


def _append_section() -> Section:
    return Section(
        "Append, 64 bytes of JSON: checked, framed, checksummed, written; all commits done",
        (
            _rate("disk, batches of 100", "append_disk_100_per_s", 1.5),
            _rate("disk, batches of 1000", "append_disk_1000_per_s", 1.5),
            _rate("ephemeral, batches of 100", "append_ephemeral_100_per_s", 2.5),
            _rate("ephemeral, batches of 1000", "append_ephemeral_1000_per_s", 2.5),
            _rate("memory, batches of 100", "append_memory_100_per_s"),
            _rate("memory, batches of 1000", "append_memory_1000_per_s"),
            _rate("fsync, pipelined, batches of 100", "append_fsync_100_per_s"),
            _rate("fsync, pipelined, batches of 1000", "append_fsync_1000_per_s"),
            Row("fsync, one by one, 1 record: until kept, p50", "append_fsync_lone_1_us", "us"),
            Row("fsync, one by one, batch of 100: until kept, p50", "append_fsync_lone_100_us", "us"),
            Row("disk, one by one, 1 record: until kept, p50", "append_disk_lone_1_us", "us"),
            Row("disk, one by one, batch of 100: until kept, p50", "append_disk_lone_100_us", "us"),
        ),
    )


def _read_section() -> Section:
    return Section(
        "diff, limit 1000, rendered to the JSON of the response",
        (
            _rate("from the log", "diff_log_per_s", 3),
            _rate("from segments, checksums verified", "diff_segments_per_s", 3),
            _rate("ephemeral, from memory", "diff_ephemeral_per_s", 3),
        ),
    )


def _delivery_section(sizes: Sizes) -> Section:
    return Section(
        "Delivery: processor time from a commit to the call of who waits",
        (
            Row(
                f"{short(sizes.dirty_topics)} topics of all bands at once: each",
                "deliver_burst_us",
                "us",
                at_most(3),
            ),
            Row("one topic, with the turn around it", "deliver_lone_us", "us", at_most(3)),
        ),
    )


def _router_section() -> Section:
    return Section(
        "Routers: one topic to a hundred of class disk, processor time of the copying",
        (
            _rate("copies", "router_copies_per_s", 0.2),
            Row("frames of the log for one record", "router_frames_per_record", "", at_most(1.1)),
            Row("answer to a single record at their source, p50", "router_answer_us", "us"),
            Row(
                "the same in times that of a topic without routers", "router_answer_ratio", "x", at_most(1.1)
            ),
        ),
    )


def _recovery_section(sizes: Sizes) -> Section:
    records = short(sizes.segment_records)
    start_target = at_most(3) if sizes.segment_records == FULL.segment_records else None
    return Section(
        f"Recovery: {short(sizes.log_records)} records in the log, {records} in segments",
        (
            _rate("log replayed, no tags", "replay_untagged_per_s"),
            _rate("log replayed, 1000 tags", "replay_shared_per_s", 2),
            _rate("log replayed, every tag different", "replay_distinct_per_s", 2),
            Row(f"segments and snapshot, {records} records", "start_untagged_s", "s", start_target),
            Row(f"the same with {short(sizes.tags)} tags", "start_tagged_s", "s"),
        ),
    )


def _delete_section(sizes: Sizes) -> Section:
    target = at_most(50) if sizes.segment_records == FULL.segment_records else None
    per_tag = sizes.segment_records // sizes.tags
    rows: list[Row] = []
    for name, label in (("delete_disk", "disk"), ("delete_ephemeral", "ephemeral")):
        rows += [
            Row(f"{label}, a tag of 1 record", f"{name}_one_us", "us"),
            Row(f"{label}, a tag of {per_tag} records", f"{name}_many_us", "us"),
            Row(f"{label}, the fixed part", f"{name}_fixed_us", "us", target),
            Row(f"{label}, a deleted record more", f"{name}_record_us", "us"),
        ]
    return Section(f"Delete by exact tag among {short(sizes.segment_records)} records", rows)


def _idle_section(sizes: Sizes) -> Section:
    is_full = sizes.idle_topics == FULL.idle_topics
    return Section(
        f"{short(sizes.idle_topics)} idle topics, one record each, files in memory",
        (
            Row("created, all commits done", "idle_create_s", "s"),
            Row("checkpointed", "idle_checkpoint_s", "s"),
            Row("closed", "idle_close_s", "s"),
            Row(
                f"checkpoint on the disk, {short(sizes.disk_topics)} topics: for each",
                "idle_disk_checkpoint_ms",
                "ms",
            ),
            Row("started", "idle_start_s", "s", at_most(20) if is_full else None),
            Row("resident memory they add", "idle_resident_mib", "MiB", at_most(1024) if is_full else None),
        ),
    )


def _kernel_section(sizes: Sizes) -> Section:
    records = short(sizes.index_records)
    return Section(
        "Kernels alone, and the memory of an index",
        (
            _rate("encode frames, batches of 1000", "encode_per_s", 20),
            _rate("scan frames with checksums, 256 KiB", "scan_small_per_s", 50),
            _rate(
                f"scan frames with checksums, {sizes.scan_bytes >> 20} MiB",
                "scan_large_per_s",
                50,
            ),
            Row(f"index, 50 k to {records} records", "index_bytes", "B/record", at_most(40)),
            Row("index of tags besides, 1000 tags", "tag_bytes_shared", "B/record"),
            Row("index of tags besides, every tag different", "tag_bytes_distinct", "B/record"),
        ),
    )


def _curve_section(sizes: Sizes) -> Section:
    rows: list[Row] = []
    for what, label in (
        ("append", "append, batches of 1000"),
        ("fill", "append with the checkpoints meanwhile"),
        ("diff", "diff anywhere, limit 1000"),
    ):
        rows += [
            Row(f"{label}: at {short(point)}", f"curve_{what}_{point}_ns", "ns/record")
            for point in sizes.curve_points
        ]
        first, last = short(sizes.curve_points[0]), short(sizes.curve_points[-1])
        rows.append(Row(f"{label}: {last} over {first}", f"curve_{what}_ratio", "x"))
    rows.append(Row("private memory at the end", "curve_private_mib", "MiB"))
    return Section("One disk topic as it grows: the cost of a record must stay flat", rows)


def sections(sizes: Sizes) -> tuple[Section, ...]:
    """All rows, for a run of these sizes."""
    return (
        _append_section(),
        _read_section(),
        _delivery_section(sizes),
        _router_section(),
        _recovery_section(sizes),
        _delete_section(sizes),
        _idle_section(sizes),
        _kernel_section(sizes),
        _curve_section(sizes),
    )


NOTES = (
    "Every measurement runs in a fresh process on one core; the sync threads run where `pinned` says.",
    "Appends: one turn a batch (append, write, poll) until everything is acknowledged, checkpoints included.",
    "Records are made before the clock starts and are checked after it stops. Files are in the page cache.",
    "The fixed part of a delete: the time for 1 record less that of a record more, from the big deletes.",
    "The rows of one topic as it grows are medians at each point of one single climb.",
)


@dataclass
class Results:
    """All numbers: name of the number, then one value a round."""

    sections: Sequence[Section]
    rounds: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, numbers: Mapping[str, float]) -> None:
        """Take in what one round gave."""
        for number, value in numbers.items():
            self.rounds.setdefault(number, []).append(value)

    def spread(self, row: Row) -> tuple[float, float, float]:
        """Lowest, median and highest value of a row that was measured, in its unit."""
        low, middle, high = spread(self.rounds[row.number])
        return low * row.scale, middle * row.scale, high * row.scale

    def verdict(self, row: Row) -> Verdict:
        """Whether the median meets the row's target."""
        if row.target is None:
            return Verdict.NONE
        if row.number not in self.rounds:
            return Verdict.UNKNOWN
        return Verdict.OK if row.target.met_by(self.spread(row)[1]) else Verdict.MISSED

    def missed(self) -> list[str]:
        """The rows whose target was measured and not met."""
        return [
            f"{section.title}: {row.label}"
            for section in self.sections
            for row in section.rows
            if self.verdict(row) is Verdict.MISSED
        ]

    def as_json(self) -> dict[str, Any]:
        """Every row that was measured, with every value of every round."""
        return {
            "rows": [self._row_as_json(section, row) for section, row in self.measured()],
            "failures": self.failures,
        }

    def _row_as_json(self, section: Section, row: Row) -> dict[str, Any]:
        return {
            "section": section.title,
            "row": row.label,
            "number": row.number,
            "unit": row.unit,
            "target": row.target.text(row) if row.target else None,
            "verdict": self.verdict(row).value,
            **dict(zip(("min", "median", "max"), self.spread(row), strict=True)),
            "rounds": [value * row.scale for value in self.rounds[row.number]],
        }

    def measured(self) -> list[tuple[Section, Row]]:
        """The rows that have a number."""
        return [
            (section, row) for section in self.sections for row in section.rows if row.number in self.rounds
        ]


def print_table(console: Console, results: Results) -> None:
    """Print the table, then what could not be measured and why."""
    table = Table(title="everlog topics engine", title_justify="left", header_style="bold")
    table.add_column("What")
    table.add_column("unit")
    for heading in ("target", "median", "min", "max", "rounds"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict")
    before: Section | None = None
    for section, row in results.measured():
        if section is not before:
            table.add_section()
            table.add_row(Text(section.title, style="bold"))
            before = section
        table.add_row(*_cells(results, row))
    console.print(table)
    for note in NOTES:
        console.print(note, soft_wrap=True)
    for failure in results.failures:
        # The last line says what happened; the JSON output has the whole story.
        head, _, rest = failure.partition("\n")
        console.print(Text(f"{head} {rest.strip().splitlines()[-1] if rest.strip() else ''}", style="red"))


def _cells(results: Results, row: Row) -> list[str | Text]:
    low, middle, high = results.spread(row)
    verdict = results.verdict(row)
    return [
        f"  {row.label}",
        row.unit,
        row.target.text(row) if row.target else "",
        row.format(middle),
        row.format(low),
        row.format(high),
        str(len(results.rounds[row.number])),
        Text(verdict.value, style="bold red" if verdict is Verdict.MISSED else "green"),
    ]
