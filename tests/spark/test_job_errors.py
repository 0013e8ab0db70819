"""Errors of jobs as a person sees them: one line that says what to do, the trace of Spark on request."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from everlog.cli.main import app
from everlog.market.protocol import TypeId
from everlog.queue import Queue

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def queue(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A queue with a book event that is too short; jobs do not end the session of the tests."""
    monkeypatch.setattr(type(spark), "stop", lambda session: None)
    with Queue.open_publisher(tmp_path / "queue", segment_size=1 << 16) as writer:
        writer.append(TypeId.BOOK_EVENT, b"abc")
    return str(tmp_path / "queue")


def replay(queue: str, tmp_path: Path, *flags: str) -> Result:
    """Run the job that reads the message in a task."""
    return CliRunner().invoke(
        app, ["pipeline", *flags, "replay", "--queue", queue, "--lake", str(tmp_path / "lake")]
    )


def test_an_error_in_a_task_is_one_line(queue: str, tmp_path: Path) -> None:
    result = replay(queue, tmp_path)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert "message 0 has 3 bytes, its type has at least" in line


def test_verbose_shows_the_whole_trace(queue: str, tmp_path: Path) -> None:
    result = replay(queue, tmp_path, "--verbose")
    assert isinstance(result.exception, PythonException)
    assert "Traceback" in str(result.exception) and "message 0 has 3 bytes" in str(result.exception)
