"""Tables of decoded market data: filled by imports and archives, audited, and queried."""

from __future__ import annotations

import json
import os
from pathlib import Path

import duckdb
import numpy as np
import polars
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import everlog.pipeline
from everlog.cli.main import app
from everlog.errors import InvalidConfig
from everlog.market.protocol import TRADE, TypeId
from everlog.market.symbols import SymbolDefinition, record_symbols
from everlog.market.venues.simulated import SimulatedVenue
from everlog.pipeline import create_views
from everlog.pipeline.jobs.archive import archive_queue
from everlog.pipeline.jobs.audit import audit_queue
from everlog.pipeline.jobs.audit_report import AUDITS, html_of, record_audit
from everlog.pipeline.jobs.importing import import_to_lake
from everlog.pipeline.lake import LakeTable
from everlog.pipeline.upkeep import UpkeepPolicy
from everlog.queue import Queue
from tests.market.venues.tardis_files import write_tardis_files
from tests.support.import_runs import import_into

pytestmark = pytest.mark.timeout(300)

OF_ORIGIN = ("seq", "source", "instance")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A file of books and a file of trades of one symbol."""
    folder = tmp_path_factory.mktemp("files")
    venue = SimulatedVenue(["SYM"], resting_orders=10, rate=2000.0, kinds=("l2", "trades"))
    return [str(path) for path in write_tardis_files(venue, 200, folder)]


def rows(lake: Path, table: str) -> polars.DataFrame:
    """Read a table without Spark and without everlog."""
    return polars.read_delta(str(lake / table))


def test_an_import_and_an_archive_of_the_same_events_give_the_same_rows(
    spark: SparkSession, files: list[str], tmp_path: Path
) -> None:
    formats = {path: "tardis-trades" if "_trades_" in path else "tardis-book" for path in files}
    for path, name in formats.items():
        report = import_to_lake(spark, name, [path], str(tmp_path / "imported"))
        assert (report.known, report.rows) == (0, report.entries[0].groups)
        assert import_to_lake(spark, name, [path], str(tmp_path / "imported")).known == 1
        queue = tmp_path / f"queue-{name}"
        import_into(queue, name, Path(path))
        decode = "trade" if name == "tardis-trades" else "book"
        archive_queue(
            spark,
            str(queue),
            str(tmp_path / "archived"),
            "trades" if decode == "trade" else "book_l2",
            options={"decode": decode},
        )
    for table in ("trades", "book_l2"):
        imported, archived = (
            rows(tmp_path / lake, table).sort("seq").drop(OF_ORIGIN) for lake in ("imported", "archived")
        )
        assert imported.equals(archived) and len(imported) > 50
        assert set(imported["symbol"]) == {"SYM"} and set(imported["venue"]) == {"simulated"}
    assert set(rows(tmp_path / "imported", "trades")["source"]) == {
        path for path, name in formats.items() if name == "tardis-trades"
    }


def test_an_import_that_was_killed_between_two_tables_fills_only_the_other(
    spark: SparkSession, files: list[str], tmp_path: Path
) -> None:
    book = next(path for path in files if "_book_" in path)
    done = import_to_lake(spark, "tardis-book", [book], str(tmp_path))
    before = LakeTable(tmp_path, "book_l2").open()
    (entry,) = (tmp_path / "imports" / "tables" / "tardis-book").glob("*.json")
    entry.unlink()
    again = import_to_lake(spark, "tardis-book", [book], str(tmp_path))
    after = LakeTable(tmp_path, "book_l2").open()
    assert before is not None and after is not None and before.version() == after.version()
    assert (again.known, again.files) == (0, 0) and entry.exists()
    assert len(rows(tmp_path, "book_l2")) == done.rows


def test_an_audit_of_decoded_rows_compares_prices_and_leaves_names_aside(
    spark: SparkSession, files: list[str], tmp_path: Path
) -> None:
    queue, lake = tmp_path / "queue", str(tmp_path / "lake")
    import_into(queue, "tardis-trades", Path(next(path for path in files if "_trades_" in path)))
    archive_queue(spark, str(queue), lake, "trades", options={"decode": "trade"})
    record_symbols(queue, [SymbolDefinition(exchange="simulated", exchange_symbol="SYM")])
    verdict = audit_queue(spark, lake, "trades", queue=str(queue))
    assert verdict.is_sound and verdict.streams[0].unverified == 0
    table = LakeTable(lake, "trades").open()
    assert table is not None
    table.update(updates={"price": "price + 1"}, predicate="seq = 3")
    changed = audit_queue(spark, lake, "trades", queue=str(queue))
    assert not changed.is_sound and changed.streams[0].altered > 0


def test_views_have_the_records_and_the_gaps_apart_as_they_are_when_views_are_made(
    spark: SparkSession, tmp_path: Path
) -> None:
    queue, lake = str(tmp_path / "queue"), str(tmp_path / "lake")
    trades = np.zeros(1000, TRADE)
    trades["price"] = 1.5
    with Queue.open_publisher(queue, segment_size=1 << 16) as writer:
        writer.append_array(TypeId.TRADE, trades, np.arange(1000, dtype=np.uint64))
        os.unlink(min(Path(queue).glob("*.q")))
        archive_queue(spark, queue, lake, "trades", options={"decode": "trade"})
        assert create_views(spark, lake, prefix="v_") == ["v_trades", "v_gaps"]
        (gap,) = spark.sql("SELECT * FROM v_gaps").collect()
        assert (gap.table, gap.seq) == ("trades", 0) and gap.gap_to > 0
        count = "SELECT count(*) AS n FROM v_trades"
        assert spark.sql(f"{count} WHERE price = 1.5").collect()[0].n == 999 - gap.gap_to
        writer.append_array(TypeId.TRADE, trades[:100], np.arange(1000, 1100, dtype=np.uint64))
    archive_queue(spark, queue, lake, "trades", options={"decode": "trade"})
    create_views(spark, lake, prefix="v_")
    assert spark.sql(count).collect()[0].n == 1099 - gap.gap_to
    with pytest.raises(InvalidConfig, match="none of the tables"):
        create_views(spark, str(tmp_path))


def test_the_format_opens_only_files_of_the_wanted_days_and_symbols(
    spark: SparkSession, files: list[str], tmp_path: Path
) -> None:
    lake = str(tmp_path)
    book = next(path for path in files if "_book_" in path)
    import_to_lake(spark, "tardis-book", [book], lake)
    read = spark.read.format("everlog.lake").option("table", "book_l2")
    total = len(rows(tmp_path, "book_l2"))
    assert read.options(symbol="OTHER,SYM", venue="simulated", date="2024-01-02").load(lake).count() == total
    for file in tmp_path.glob("book_l2/*/*/*.parquet"):
        file.write_bytes(b"damaged: a reader that opens it fails")
    for options in ({"symbol": "OTHER"}, {"fromDate": "2024-01-03"}, {"fromTs": "2000000000000000000"}):
        assert read.options(**options).load(lake).count() == 0
        read = spark.read.format("everlog.lake").option("table", "book_l2")
    for wrong, said in (
        ({"topic": "x"}, "has no column 'topic'"),
        ({"columns": "a"}, "has no column 'a'"),
        ({"date": "today"}, "a day like"),
        ({"pace": "1"}, "valid are"),
    ):
        with pytest.raises(Exception, match=said):
            spark.read.format("everlog.lake").options(table="book_l2", **wrong).load(lake).count()


def test_small_files_are_joined_while_an_archive_runs_and_its_account_stays_whole(
    spark: SparkSession, tmp_path: Path
) -> None:
    queue, lake = str(tmp_path / "queue"), str(tmp_path / "lake")
    with Queue.open_publisher(queue, segment_size=1 << 20) as writer:
        for number in range(600):
            writer.append(7, b"%d" % number, 1_700_000_000_000_000_000 + number)
    report = archive_queue(
        spark,
        queue,
        lake,
        "messages",
        options={"maxRecordsPerBatch": "30"},
        upkeep=UpkeepPolicy(every=5),
    )
    assert (report.batches, report.rows) == (20, 600)
    assert len(LakeTable(lake, "messages").files()) == 1
    assert audit_queue(spark, lake, "messages", queue=queue).is_sound
    assert sorted(rows(tmp_path / "lake", "messages")["seq"]) == list(range(600))


def test_an_audit_is_a_page_and_a_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(everlog.pipeline, "spark_session", lambda **options: spark)
    monkeypatch.setattr(type(spark), "stop", lambda self: None)  # other tests need it
    queue, lake, page = str(tmp_path / "a<b>"), tmp_path / "lake", tmp_path / "audit.html"
    with Queue.open_publisher(queue) as writer:
        for number in range(20):
            writer.append(7, b"%d" % number)
        archive_queue(spark, queue, str(lake), "messages")
        writer.append(7, b"later")
    words = ["audit", "--lake", str(lake), "--table", "messages", "--queue", queue]
    done = CliRunner().invoke(app, ["pipeline", *words, "--html", str(page), "--record", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["version"], report["compared_with"], report["place"]) == (0, [queue], str(lake))
    text = page.read_text()
    assert "Every seq is accounted for" in text and "a&lt;b&gt;" in text and "a<b>" not in text
    assert '<dd class="n">20</dd>' in text and "<script" not in text
    (row,) = rows(lake, AUDITS).to_dicts()
    assert (row["table"], row["delivered"], row["behind"], row["is_sound"]) == ("messages", 20, 1, True)
    faulty = audit_queue(spark, str(lake), "messages", queue=queue)
    faulty.streams[0].missing, faulty.streams[0].missing_ranges = 2, [(4, 5)]
    record_audit(str(lake), faulty)
    assert "missing: 4 to 5" in html_of(faulty) and "NOT every seq" in html_of(faulty)
    found = duckdb.from_arrow(rows(lake, AUDITS).to_arrow())
    assert found.aggregate("count(*), sum(missing)").fetchall() == [(2, 2)]
