"""The Spark benchmark measures every row of its table, also with tiny sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from benchmarks.engine.report import Results
from benchmarks.spark.costs import core_costs
from benchmarks.spark.measures import COMPARED, MEASURES, Bench, Sizes, prepare, warm_up
from benchmarks.spark.report import print_table, sections

pytestmark = pytest.mark.timeout(300)

TINY = Sizes(20_000, 4000, 2, 2000, (2000, 5000, 10_000), 10_000, warm_up_jobs=2)


def test_every_row_is_measured(spark: SparkSession, tmp_path: Path) -> None:
    prepare(tmp_path, TINY)
    bench = Bench(spark, tmp_path, TINY, 2)
    results = Results(sections(TINY))
    warm_up(bench)
    for measure in MEASURES.values():
        results.add(measure(bench))
    results.add(core_costs(tmp_path, bench.orders, 2000))
    # Scaling needs a second session; it is the ratio of what both measure.
    results.add({f"scale_{name}": one.measure(bench)[one.number] for name, one in COMPARED.items()})
    wanted = [row.number for section in results.sections for row in section.rows]
    assert sorted(results.rounds) == sorted(wanted)
    # What so few records more cost is less than the start of a job changes.
    measured = {number: values for number, values in results.rounds.items() if number != "growth"}
    assert all(value > 0 for values in measured.values() for value in values)
    console = Console(record=True, width=130, file=(tmp_path / "table").open("w"))
    print_table(console, results)
    assert "mapInArrow" in console.export_text()
