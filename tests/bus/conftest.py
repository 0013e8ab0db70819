"""What the bus tests share: a bus in a temporary directory, and real processes that always end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from everlog.bus import IpcLayout

Spawn = Callable[..., "Child"]


class Child:
    """A Python process that reports by printing lines."""

    def __init__(self, source: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", source, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def expect(self, line: str) -> None:
        """Read one line and insist on it; the timeout of the test bounds the wait."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == line + "\n"

    def tell(self, line: str) -> None:
        """Send one line to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGSTOP, and wait until the process no longer runs."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def finish(self) -> None:
        """Wait for the end by itself, and insist on success."""
        self.process.communicate()
        assert self.process.returncode == 0


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    children: list[Child] = []

    def start(source: str, *arguments: object) -> Child:
        children.append(Child(source, *map(str, arguments)))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        for pipe in (child.process.stdin, child.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()


@pytest.fixture
def layout(tmp_path: Path) -> IpcLayout:
    """A bus whose root exists and is empty."""
    root = tmp_path / "bus"
    root.mkdir()
    return IpcLayout(root)
