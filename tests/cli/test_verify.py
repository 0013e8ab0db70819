"""`everlog verify`: what it prints, its JSON, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from everlog.cli.main import app
from tests.support.command_lines import on_terminal, run
from tests.support.engines import crashed_directory, open_small, stopped_directory
from tests.support.files import flip_bit


def everlog_verify(*arguments: object, code: int = 0) -> str:
    """Run `everlog verify ...` in this process and return its standard output."""
    result = CliRunner().invoke(app, ["verify", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stdout


def everlog_verify_json(*arguments: object, code: int = 0) -> Any:
    """The document of `everlog verify ... --json`."""
    return json.loads(everlog_verify(*arguments, "--json", code=code))


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A data directory with one damaged record in the cold directory beside it; returns that file."""
    stopped_directory(tmp_path)
    path = sorted((tmp_path / "cold" / "topics").rglob("*.data"))[0]
    flip_bit(path, 40)
    return path


def test_a_good_directory_has_no_findings_and_exit_code_0(tmp_path: Path) -> None:
    data = stopped_directory(tmp_path)
    shown = everlog_verify(data, "--cold", tmp_path / "cold")
    assert "errors          none" in shown
    assert "findings" not in shown


def test_a_damaged_record_is_shown_with_exit_code_1(tmp_path: Path, damaged: Path) -> None:
    shown = everlog_verify(tmp_path / "data", "--cold", tmp_path / "cold", code=1)
    assert "corrupt_frame" in shown
    assert str(damaged) in shown


def test_without_the_cold_directory_the_segments_in_it_count_as_missing(tmp_path: Path) -> None:
    shown = everlog_verify(stopped_directory(tmp_path), code=1)
    assert "name the cold directory if there is one" in shown


def test_notes_alone_give_exit_code_0(tmp_path: Path) -> None:
    data = crashed_directory(tmp_path)
    document = everlog_verify_json(data, "--cold", tmp_path / "cold")
    assert document["errors"] == 0
    assert {finding["severity"] for finding in document["findings"]} == {"info"}


def test_json_holds_everything(tmp_path: Path, damaged: Path) -> None:
    cold = tmp_path / "cold"
    document = everlog_verify_json(tmp_path / "data", "--cold", cold, code=1)
    assert document["directory"] == str(tmp_path / "data")
    assert document["cold_directory"] == str(cold)
    assert document["errors"] == 1
    for key in ("files", "bytes", "log_frames", "records"):
        assert isinstance(document[key], int)
    (finding,) = document["findings"]
    assert set(finding) == {"severity", "kind", "path", "offset", "message"}
    assert (finding["severity"], finding["kind"], finding["path"]) == ("error", "corrupt_frame", str(damaged))


def test_a_directory_in_use_is_an_error_in_one_line(tmp_path: Path) -> None:
    engine = open_small(tmp_path)
    ended = run("everlog", "verify", tmp_path / "data", "--json")
    engine.close()
    assert (ended.returncode, ended.stdout) == (1, "")
    assert json.loads(ended.stderr)["error"]["code"] == "data_dir_in_use"


def test_a_missing_directory_is_an_error_in_one_line(tmp_path: Path) -> None:
    ended = run("everlog", "verify", tmp_path / "nothing")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("error: there is no data directory")
    assert ended.stderr.count("\n") == 1


def test_on_a_terminal_the_findings_are_a_table(tmp_path: Path, damaged: Path) -> None:
    code, shown = on_terminal(
        "everlog", "verify", tmp_path / "data", "--cold", tmp_path / "cold", columns=250
    )
    assert code == 1
    assert "findings" in shown
    assert "corrupt_frame" in shown
