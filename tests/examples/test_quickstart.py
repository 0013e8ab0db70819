"""The quickstart examples: two processes, one of them killed, as the first thing a user tries."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@contextmanager
def running(name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run an example, its input and output in pipes, and kill it in the end."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


def type_lines(process: subprocess.Popen[str], *lines: str) -> list[str]:
    assert process.stdin is not None
    for line in lines:
        process.stdin.write(line + "\n")
    process.stdin.flush()
    return read_lines(process, len(lines))


def test_a_subscriber_that_was_killed_goes_on_with_what_it_missed(tmp_path: Path) -> None:
    path = str(tmp_path / "hello")
    with running("quickstart_publisher.py", path) as publisher:
        with running("quickstart_subscriber.py", path) as subscriber:
            assert type_lines(publisher, "one", "two") == ["appended message 0", "appended message 1"]
            assert read_lines(subscriber, 2) == ["0 one", "1 two"]
        assert type_lines(publisher, "three") == ["appended message 2"]
        with running("quickstart_subscriber.py", path) as subscriber:
            # What was printed but perhaps not committed when the kill came may be printed again.
            lines = read_lines(subscriber, 1)
            while lines[-1] not in ("2 three", ""):  # "": it has ended
                lines += read_lines(subscriber, 1)
            assert lines == ["0 one", "1 two", "2 three"][-len(lines) :]
        with running("quickstart_subscriber.py", path, "another") as another:
            assert read_lines(another, 3) == ["0 one", "1 two", "2 three"]


def test_a_subscriber_waits_for_a_queue_that_does_not_exist_yet(tmp_path: Path) -> None:
    path = str(tmp_path / "later")
    with (
        running("quickstart_subscriber.py", path) as subscriber,
        running("quickstart_publisher.py", path) as publisher,
    ):
        type_lines(publisher, "here I am")
        assert read_lines(subscriber, 1) == ["0 here I am"]
