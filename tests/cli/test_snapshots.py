"""`everlog queue snapshotter` and `everlog queue snapshots`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from everlog.cli import main, snapshots
from tests.support.market_queues import MARKETS, write_market_queue


def queue_json(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(main.app, ["queue", *map(str, arguments), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout) if code == 0 else None


def test_snapshots_are_written_listed_and_kept(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path))
    assert queue_json("snapshots", tmp_path)["snapshots"] == []
    arguments = ("--records", 50, "--interval", 0, "--keep", 3, "--once")
    done = queue_json("snapshotter", tmp_path, *arguments)
    assert done["events"] > 400 and done["snapshots"] > 6
    listed = queue_json("snapshots", tmp_path)["snapshots"]
    assert [row["market_id"] for row in listed] == [market for market in MARKETS for _ in range(3)]
    assert {row["mode"] for row in listed} == {"L2"}
    shown = CliRunner().invoke(main.app, ["queue", "snapshots", str(tmp_path)]).stdout
    assert "ingest time" in shown
    assert queue_json("snapshotter", tmp_path, *arguments)["snapshots"] == 0
    queue_json("snapshotter", tmp_path, "--market", "seven", code=1)
    queue_json("snapshotter", tmp_path / "nothing", "--once", code=1)
    queue_json("snapshots", tmp_path / "nothing", code=1)


def test_the_other_name_takes_its_own_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_market_queue(str(tmp_path))
    words = [
        "--archive",
        str(tmp_path),
        "--venue",
        "1",
        "--market",
        str(MARKETS[0]),
        "--records",
        "50",
        "--once",
    ]
    monkeypatch.setattr(sys, "argv", ["snapshotter", *words])
    with pytest.raises(SystemExit) as ended:
        snapshots.main()
    assert not ended.value.code
    assert {row["market_id"] for row in queue_json("snapshots", tmp_path)["snapshots"]} == {MARKETS[0]}
