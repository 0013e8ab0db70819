"""`everlog quickstart`: the folder it makes, and that what it makes runs."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from everlog import Client
from tests.support.command_lines import run, started
from tests.support.processes import eventually


def test_the_folder_has_the_programs_and_a_second_run_keeps_what_was_changed(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    assert run("everlog", "quickstart", folder, "--no-run").returncode == 0
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert names == ["README.md", "consumer.py", "page/index.html", "producer.py", "worker.py"]
    (folder / "producer.py").write_text("print('mine')\n")
    (folder / "README.md").unlink()
    assert run("everlog", "quickstart", folder, "--no-run").returncode == 0
    assert (folder / "producer.py").read_text() == "print('mine')\n"
    assert (folder / "README.md").exists()


def test_a_folder_of_something_else_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    ended = run("everlog", "quickstart", tmp_path, "--no-run")
    assert ended.returncode != 0
    assert "is no quickstart folder; name a new one" in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_all_programs_run_until_the_command_is_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    with started("everlog", "quickstart", folder, "--port", 0) as command:
        seen: set[str] = set()
        url = ""
        while not {"producer", "consumer", "worker", "page"} <= seen:
            line = command.line()
            name, _, rest = line.partition("|") if "|" in line else line.partition("  ")
            seen.add(name.strip())
            url = rest.strip().rstrip("/") if name.strip() == "console" else url
        with Client(url) as client:
            eventually("the consumer commits", lambda: client.consumer("orders", "totals").cursor > 0)
        code, _, _ = command.end(signal.SIGINT)
    assert code == 0
    assert (folder / "data").is_dir()


def test_failures_of_the_worker_are_one_line_each_and_their_trace_is_with_the_job(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    assert run("everlog", "quickstart", folder, "--no-run").returncode == 0
    program = (folder / "worker.py").read_text()
    assert "random.random() < 0.2" in program
    (folder / "worker.py").write_text(program.replace("random.random() < 0.2", "True"))
    with started("everlog", "quickstart", folder, "--port", 0) as command:
        told: list[str] = []
        url = ""
        while len(told) < 3:
            line = command.line()
            if line.startswith("console"):
                url = line.split()[1].rstrip("/")
            if line.strip().startswith("worker |"):
                told.append(line.partition("| ")[2].rstrip())
        with Client(url) as client:
            error = client.jobs_page("mail", state="failed").jobs[0].last_error
        command.end(signal.SIGINT)
    pattern = r"job \d+ of mail failed, delivery \d: ConnectionError: the mail server is busy \(made up.*\)"
    assert [line for line in told if not re.fullmatch(pattern, line)] == []
    assert error is not None and "raise ConnectionError" in error.trace


def test_the_console_is_opened_in_the_browser_if_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    ended = run("everlog", "quickstart", tmp_path / "new", "--port", 0, "--seconds", 1, "--open")
    assert ended.returncode == 0
    opened = (tmp_path / "opened").read_text().strip()
    assert f"console  {opened}\n" in ended.stdout


def test_a_program_that_fails_ends_the_command_with_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    assert run("everlog", "quickstart", folder, "--no-run").returncode == 0
    (folder / "worker.py").write_text("raise SystemExit(3)\n")
    ended = run("everlog", "quickstart", folder, "--port", 0)
    assert ended.returncode == 1
    assert "worker ended with exit code 3" in ended.stderr
