"""The demonstration with Spark: what is in the lake is what was in the queue, and the report says so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from everlog.bus import IpcLayout
from examples.demo.lake_checks import lake_accounts
from examples.demo.lake_files import RESULT_FILE, lake_dir
from examples.demo.records import ticks_dir, truth_file
from examples.demo.tables import read_market

REPOSITORY = Path(__file__).resolve().parents[2]
LAKE_STEPS = [
    "queue to lake",
    "payloads in the lake",
    "topic to lake",
    "L2 replay on Spark",
    "L3 replay on Spark",
    "features on Spark",
]


@pytest.mark.spark
@pytest.mark.timeout(600)  # starts Java, and a machine under test may be busy
def test_the_lake_holds_every_message_book_and_feature_and_a_lost_row_is_seen(tmp_path: Path) -> None:
    root, report = tmp_path / "run", tmp_path / "report"
    arguments = ["--seconds", "3", "--symbols", "2", "--dir", str(root), "--report", str(report)]
    result = subprocess.run(
        [sys.executable, "-m", "examples.demo", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.isascii()
    assert "\x1b" not in result.stdout
    assert "-- Spark: at work" in result.stdout
    accounts = {row["step"]: row for row in json.loads((report / "report.json").read_text())["accounts"]}
    assert [accounts[step]["unexplained"] for step in LAKE_STEPS] == [0] * len(LAKE_STEPS)
    assert all(accounts[step]["arrived"] > 0 for step in LAKE_STEPS)
    page = (report / "index.html").read_text()
    assert "features computed by Spark" in page and "Spark and lake" in page

    # A row that is gone from a table must be missed.
    for table in ("messages", "top_l3", "features"):
        path = str(lake_dir(root) / table)
        column = "ingest_ts_ns" if table == "features" else "seq"
        value = max(DeltaTable(path).to_pyarrow_table(columns=[column]).column(column).to_pylist())
        DeltaTable(path).delete(f"{column} = {value}")
    queue = ticks_dir(IpcLayout(root))
    market = read_market(queue)
    truth = json.loads(truth_file(root).read_text())
    results = json.loads((root / RESULT_FILE).read_text())
    found = lake_accounts(root, queue, market, len(market), truth, results)
    unexplained = {account.step: account.unexplained for account in found if account.unexplained}
    assert unexplained.keys() == {"payloads in the lake", "L3 replay on Spark", "features on Spark"}
