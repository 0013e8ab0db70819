"""`everlog pipeline` before Spark is at work: what is refused at once, and what a signal does meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import everlog.pipeline
from everlog.cli.main import app
from everlog.queue import Queue

NOWHERE = "http://127.0.0.1:1"


class Session:
    """A session that does nothing but end."""

    stopped = 0

    def stop(self) -> None:
        """It has ended."""
        self.stopped += 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("archive", "--queue", "nowhere", "--lake", "lake"), "queue_not_found"),
        (("archive", "--topic", "t", "--url", NOWHERE, "--lake", "lake"), "unreachable"),
        (("audit", "--queue", "nowhere", "--lake", "lake"), "queue_not_found"),
        (("replay", "--queue", "nowhere", "--lake", "lake"), "queue_not_found"),
        (("features", "--queue", "nowhere", "--lake", "lake"), "queue_not_found"),
        (("refine", "--queue", "nowhere", "--to", "x", "--venue", "v", "--symbols", "S"), "queue_not_found"),
    ],
)
def test_a_source_that_is_not_there_is_told_before_spark_starts(
    words: tuple[str, ...], code: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVERLOG_URL", raising=False)
    monkeypatch.setattr(everlog.pipeline, "spark_session", lambda **options: pytest.fail("Spark was started"))
    result = CliRunner().invoke(app, ["pipeline", *words, "--json"])
    assert result.exit_code == 1, result.output
    assert json.loads(result.stderr)["error"]["code"] == code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("archive", "--queue", "queue", "--lake", "s4://bucket/lake"), "s4:// is not supported"),
        (("archive", "--queue", "queue", "--lake", "lake", "--table", "../x"), "cannot be called '../x'"),
        (("audit", "--queue", "queue", "--lake", "lake"), "there is no table 'records'"),
        (("features", "--queue", "queue", "--lake", "lake", "--features", "no"), "unknown feature 'no'"),
        (("repair", "--lake", "lake", "--table", "absent"), "there is no table 'absent'"),
    ],
)
def test_a_lake_or_a_name_that_is_wrong_is_told_before_spark_starts(
    words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVERLOG_URL", raising=False)
    monkeypatch.setattr(everlog.pipeline, "spark_session", lambda **options: pytest.fail("Spark was started"))
    Queue.open_publisher("queue", segment_size=1 << 20).close()
    result = CliRunner().invoke(app, ["pipeline", *words])
    assert result.exit_code == 1, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ") and said in line


@pytest.mark.spark
def test_a_master_that_is_none_is_one_line_that_names_the_flag(tmp_path: Path) -> None:
    Queue.open_publisher(tmp_path / "queue", segment_size=1 << 20).close()
    words = ["archive", "--queue", "queue", "--lake", "lake", "--master", "nonsense"]
    done = subprocess.run(
        [sys.executable, "-m", "everlog", "pipeline", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 1
    (line,) = [one for one in done.stderr.splitlines() if "error:" in one or "Traceback" in one]
    assert line.startswith("error: Spark does not start with --master nonsense: ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_spark_starts_ends_the_session_that_has_started(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Queue.open_publisher(tmp_path / "queue", segment_size=1 << 20).close()
    session = Session()

    def start(**options: object) -> Session:
        os.kill(os.getpid(), number)
        return session

    monkeypatch.setattr(everlog.pipeline, "spark_session", start)
    words = ["pipeline", "replay", "--queue", str(tmp_path / "queue"), "--lake", str(tmp_path / "lake")]
    before = signal.getsignal(number)
    assert CliRunner().invoke(app, words).exit_code == 128 + number
    assert session.stopped == 1
    assert signal.getsignal(number) is before
