"""A second process that takes something, reports, and keeps it until it is told to end."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import everlog

SOURCE_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(everlog.__file__)))


class Holder:
    """Runs `code` with `arguments` in a new interpreter; talks to it in lines.

    The code should block in `sys.stdin.read()` while it holds what the test is about.
    """

    def __init__(self, code: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": SOURCE_ROOT},
        )

    def read_line(self) -> str:
        """Wait for the next line the process prints; empty if it ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def send_line(self, line: str = "") -> None:
        """Let the process go on from its `sys.stdin.readline()`."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def release(self) -> None:
        """End the input of the process and of its children, and wait until it has ended."""
        assert self.process.stdin is not None
        if not self.process.stdin.closed:
            self.process.stdin.close()
        self.process.wait()

    def kill(self) -> None:
        """End the process as a crash would, and wait until it has ended."""
        self.process.kill()
        self.process.wait()


@contextmanager
def holding(code: str, *arguments: str) -> Iterator[Holder]:
    """Run a `Holder` for as long as the block lasts."""
    holder = Holder(code, *arguments)
    try:
        yield holder
    finally:
        holder.release()
        assert holder.process.stdout is not None
        holder.process.stdout.close()
