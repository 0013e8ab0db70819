"""The rows of the Spark benchmark, their targets, and the table.

Owns labels and targets; medians and verdicts are those of the engine's benchmark.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.engine.report import MEGA, Results, short
from benchmarks.queue.report import Row, Section, Target, Verdict
from benchmarks.spark.costs import COMPARED_SYMBOLS, MANY_SYMBOLS, SYMBOLS
from benchmarks.spark.measures import FULL, Sizes

MEBI = 1 / (1 << 20)
NOTES = (
    "The first round warms the session up and does not count.",
    "Spark scans Parquet of the same rows in Java and in columns; its range and its rate source read nothing "
    "and make their rows up. Rows of a Python source are handed from Python to Java: most of the difference.",
    "Topics: the server runs on the same cores. One core against two: the same work in two sessions, each "
    "bound to so many cores, a round of one and a round of the other.",
)


def _rate(label: str, number: str, target: Target | None = None) -> Row:
    return Row(label, number, "M/s", target, scale=MEGA)


def _target(sizes: Sizes, bound: float, *, at_most: bool = False) -> Target | None:
    """Only full runs have targets: in small ones the start of a job is most of the time."""
    return Target(bound, at_most=at_most) if sizes == FULL else None


def _as_it_grows(sizes: Sizes) -> Section:
    points = sizes.linear_points
    shortest, middle, longest = map(short, (points[0], points[-2], points[-1]))
    more = f"one record more, from {middle} to {longest} over from {shortest} to {middle}"
    return Section(
        "As the queue gets longer, aggregated inside the tasks",
        (
            *(Row(f"{short(point)} records", f"linear_{point}_ns", "ns/record") for point in points),
            _rate(f"{longest} records", "longest_per_s"),
            Row(more, "growth", "x", _target(sizes, 1.3, at_most=True)),
            *(
                Row(
                    f"{short(point)} records, a task's own memory", f"linear_{point}_bytes", "MiB", scale=MEBI
                )
                for point in points
            ),
            Row(
                f"memory, {longest} over {shortest}", "memory_growth", "x", _target(sizes, 1.1, at_most=True)
            ),
        ),
    )


def _of_one_core(sizes: Sizes) -> Section:
    return Section(
        "One core without Spark, by its processor time",
        (
            _rate("read and verified", "core_read_per_s"),
            _rate("decoded, orders, all columns", "core_decode_l3_per_s"),
            _rate("decoded, orders, two columns", "core_decode_two_per_s"),
            _rate("decoded, price levels, all columns", "core_decode_book_per_s"),
            _rate("books of orders", "core_replay_l3_per_s"),
            _rate(f"books of price levels, {SYMBOLS} markets", "core_replay_l2_per_s"),
            _rate(f"books of price levels, {MANY_SYMBOLS} markets", "core_replay_many_per_s"),
            _rate("tables of tops and depth, 1 market", "core_tables_one_per_s"),
            _rate(f"tables of tops and depth, {COMPARED_SYMBOLS} markets", "core_tables_many_per_s"),
            Row(
                f"cost of an event of {COMPARED_SYMBOLS} markets over one of 1",
                "core_tables_many_cost",
                "x",
                _target(sizes, 3, at_most=True),
            ),
            _rate("refined", "core_refine_per_s"),
            _rate("written to Parquet, zstd", "core_parquet_per_s"),
        ),
    )


def sections(sizes: Sizes) -> tuple[Section, ...]:
    """All rows, for a run of these sizes."""

    def at_least(bound: float) -> Target | None:
        return _target(sizes, bound)

    records, compared, longest = map(
        short, (sizes.scan_records, sizes.compared_records, sizes.linear_points[-1])
    )
    return (
        Section(
            f"Queue, {records} records of 64 bytes",
            (
                _rate("segments to a DataFrame, 5 columns, no-op sink", "scan5_per_s", at_least(3)),
                _rate("segments to a DataFrame, one number", "scan1_per_s", at_least(4)),
                Row(
                    'where="seq < 10" over toSeq=9',
                    "where_over_option",
                    "x",
                    _target(sizes, 1.3, at_most=True),
                ),
                _rate("aggregated inside the tasks (mapInArrow)", "inside_per_s", at_least(8)),
                _rate("Spark's own: Parquet of the same rows, no-op sink", "parquet_per_s"),
                _rate("Spark's own: range, no-op sink", "range_per_s"),
                _rate("Spark's own: rate source, a stream, no-op sink", "rate_per_s"),
            ),
        ),
        Section(
            f"Topics, {short(sizes.topic_records)} records",
            (
                _rate("Spark's own: the same rows into a Python sink that drops them", "drained_per_s"),
                _rate("batch write to a topic", "sink_per_s", at_least(0.3)),
                _rate("topic to the lake", "lake_per_s", at_least(0.3)),
            ),
        ),
        Section(
            f"Books of orders, {short(sizes.order_events)} events, {sizes.order_markets} markets",
            (
                _rate("inside Spark, per core", "l3_core_per_s"),
                _rate("the kernel alone", "l3_kernel_per_s"),
                Row("share of the kernel's rate", "l3_share", "x", at_least(0.4)),
            ),
        ),
        Section(
            "Two cores over one",
            (
                Row(f"segments to a DataFrame, {compared} records", "scale_scan5", "x", at_least(1.7)),
                Row(f"aggregated inside the tasks, {longest} records", "scale_linear", "x", at_least(1.7)),
            ),
        ),
        _of_one_core(sizes),
        _as_it_grows(sizes),
    )


def print_table(console: Console, results: Results) -> None:
    """Print every row that was measured, then what failed."""
    table = Table(title="everlog on Spark", title_justify="left", header_style="bold")
    for heading in ("What", "unit", "target", "median", "min", "max", "verdict"):
        table.add_column(heading, justify="left" if heading in ("What", "unit") else "right")
    before: Section | None = None
    for section, row in results.measured():
        if section is not before:
            table.add_section()
            table.add_row(Text(section.title, style="bold"))
            before = section
        low, middle, high = results.spread(row)
        verdict = results.verdict(row)
        table.add_row(
            f"  {row.label}",
            row.unit,
            row.target.text(row) if row.target else "",
            *(row.format(value) for value in (middle, low, high)),
            Text(verdict.value, style="bold red" if verdict is Verdict.MISSED else "green"),
        )
    console.print(table)
    for note in NOTES:
        console.print(note, soft_wrap=True)
    for failure in results.failures:
        console.print(Text(failure.strip(), style="red"))
