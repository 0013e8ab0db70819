"""The benchmark of the archive runs, reads back every message, and says what was missed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.archive import command


def test_it_measures_everything_once_and_writes_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "QUICK_BYTES", 1 << 20)
    monkeypatch.setattr(command.os, "sched_setaffinity", lambda *_: None)
    out = tmp_path / "out.json"
    assert command.main(["--quick", "--rounds", "1", "--json", str(out), "--dir", str(tmp_path)]) == 0
    names = {row["row"] for row in json.loads(out.read_text())["rows"]}
    assert {"tap", "compress", "scan plain", "scan compressed", "remote read", "cp"} <= names
    assert "Archive" in capsys.readouterr().out


def test_a_ratio_below_its_target_is_missed() -> None:
    assert command.row("Ratios", "x", "times", 0.5, {"everlog": 0.4})["verdict"] == "MISSED"
    assert command.row("Ratios", "x", "times", 0.5, {"everlog": 0.5})["verdict"] == "ok"
