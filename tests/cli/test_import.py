"""`everlog import` and `everlog simulate`, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everlog.cli.import_ import FormatName
from everlog.feeds.captures import IMPORTERS
from tests.support.command_lines import on_terminal, run_here
from tests.support.import_runs import messages_of

GOOD = "34200.5,1,11,18,5853300,1\n34201.5,3,11,18,5853300,1\n"


def message_file(folder: Path, text: str = GOOD) -> Path:
    path = folder / "AAPL_2012-06-21_message_1.csv"
    path.write_text(text)
    return path


def test_the_formats_on_the_command_line_are_those_there_are() -> None:
    assert [name.value for name in FormatName] == list(IMPORTERS)


def test_an_import_tells_what_it_did_and_a_second_one_that_it_was_done(tmp_path: Path) -> None:
    path, queue = message_file(tmp_path), tmp_path / "queue"
    first = run_here("import", "lobster", path, "--queue", queue)
    assert first.returncode == 0, first.stderr
    assert "imported" in first.stdout and "rows/s" in first.stdout
    second = run_here("import", "lobster", path, "--queue", queue, "--json")
    (entry,) = json.loads(second.stdout)["imports"]
    assert (entry["imported"], entry["rows"], entry["symbol"]) == (False, 2, "AAPL")
    forced = run_here("import", "lobster", path, "--queue", queue, "--json", "--force")
    assert json.loads(forced.stdout)["imports"][0]["imported"] is True
    assert len(messages_of(queue)) == 2


def test_a_person_at_a_terminal_sees_the_result(tmp_path: Path) -> None:
    code, text = on_terminal(
        "everlog", "import", "lobster", message_file(tmp_path), "--queue", tmp_path / "queue"
    )
    assert code == 0 and "imported" in text and "nasdaq" in text


def test_a_bad_row_ends_with_its_place_and_lenient_goes_on(tmp_path: Path) -> None:
    path, queue = message_file(tmp_path, GOOD + "x,1,1,1,1,1\n"), tmp_path / "queue"
    strict = run_here("import", "lobster", path, "--queue", queue, "--json")
    assert strict.returncode == 1
    error = json.loads(strict.stderr)["error"]
    assert error["code"] == "invalid_source" and f"{path}:3: time 'x' is no number" in error["message"]
    lenient = run_here("import", "lobster", path, "--queue", queue, "--lenient")
    assert lenient.returncode == 0 and "bad rows are in" in lenient.stdout
    assert len(messages_of(queue)) == 2


def test_options_reach_the_importer_and_notes_are_warnings(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    path = tmp_path / "rows.csv"
    path.write_text(GOOD)
    arguments = ("import", "lobster", path, "--queue", queue)
    assert run_here(*arguments, "--symbol", "MSFT", "--date", "2020-01-02").returncode == 0
    again = run_here(*arguments, "--symbol", "AAPL")
    assert again.returncode == 0 and "other options" in again.stderr


@pytest.mark.parametrize("arguments", [["lobster"], ["parchment", "x"], ["szse", "x", "--price-scale", "40"]])
def test_wrong_usage_ends_with_2(arguments: list[str], tmp_path: Path) -> None:
    assert run_here("import", *arguments, "--queue", tmp_path / "q").returncode == 2


def test_a_simulated_venue_fills_a_queue_the_same_way_each_time(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        result = run_here("simulate", "--queue", tmp_path / name, "--symbols", 3, "--events", 2000, "--json")
        assert result.returncode == 0, result.stderr
        messages = messages_of(tmp_path / name)
        assert json.loads(result.stdout)["events"] == len(messages) >= 2000
        found.append([(message.timestamp_ns, message.payload) for message in messages])
    assert found[0] == found[1]


@pytest.mark.parametrize("amount", [("--events", "300000"), ("--seconds", "3")])
def test_a_simulated_venue_shows_its_progress_on_a_terminal(tmp_path: Path, amount: tuple[str, str]) -> None:
    code, shown = on_terminal("everlog", "simulate", "--queue", tmp_path / "q", *amount, columns=120)
    assert code == 0
    assert "simulating" in shown and "100%" in shown
    assert "events of 10 symbols" in shown


def test_a_simulated_venue_can_run_in_time(tmp_path: Path) -> None:
    arguments = ("--rate", 2000, "--seconds", 0.2, "--speed", 2, "--kinds", "trades,l3", "--symbols", 2)
    result = run_here("simulate", "--queue", tmp_path / "q", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["elapsed_s"] >= 0.1


def test_how_much_to_simulate_must_be_said_once(tmp_path: Path) -> None:
    for arguments in ((), ("--events", 5, "--seconds", 5)):
        result = run_here("simulate", "--queue", tmp_path / "q", *arguments)
        assert result.returncode == 1 and "either --events or --seconds" in result.stderr
