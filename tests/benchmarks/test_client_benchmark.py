"""The client benchmark runs from end to end and fills every row of everlog's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.client import command
from benchmarks.client.measures import SECTIONS, Sizes, measures
from benchmarks.queue.report import EVERLOG

TINY = Sizes(records=5000, peer_records=1000, requests=20)


def test_every_row_of_everlog_has_a_number_and_nothing_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "QUICK", TINY)
    out, directory = tmp_path / "out.json", tmp_path / "servers"
    directory.mkdir()
    command.main(["--quick", "--rounds", "1", "--only", EVERLOG, "--dir", str(directory), "--json", str(out)])
    outcome = json.loads(out.read_text())
    wanted = [row.number for section in SECTIONS for row in section.rows if row.versus is None]
    assert outcome["failures"] == []
    assert [row["number"] for row in outcome["rows"] if row["values"].get(EVERLOG, 0) > 0] == wanted
    assert list(directory.iterdir()) == []


def test_the_names_on_the_command_line_are_those_of_the_measurements() -> None:
    assert [measure.name for measure in measures(TINY)] == list(command.NAMES)
