"""The installed commands, run as a user runs them: as processes with pipes, signals and terminals."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.processes import PATIENCE_S

BIN = os.path.dirname(sys.executable)


def command_line(name: str, *arguments: object) -> list[str]:
    """The installed command with its arguments."""
    return [os.path.join(BIN, name), *map(str, arguments)]


def run(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, without a terminal."""
    return subprocess.run(
        command_line(name, *arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def readable(descriptor: int, timeout_s: float) -> bool:
    """Wait until there is something to read; other than select() for any number of open files."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))


class Started:
    """A running command whose output is read line by line."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._buffered = {"stdout": b"", "stderr": b""}

    def line(self, stream: str = "stdout") -> str:
        """Return the next line of a stream; fails if there is none in time."""
        deadline_s = time.monotonic() + PATIENCE_S
        pipe = getattr(self.process, stream)
        while b"\n" not in self._buffered[stream]:
            ready = readable(pipe.fileno(), deadline_s - time.monotonic())
            data = os.read(pipe.fileno(), 65536) if ready else b""
            assert data, f"{stream} ended or stayed silent after {self._buffered[stream]!r}"
            self._buffered[stream] += data
        line, _, self._buffered[stream] = self._buffered[stream].partition(b"\n")
        return line.decode()

    def end(self, number: signal.Signals) -> tuple[int, str, str]:
        """Send a signal and return the exit code and what was still printed."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> tuple[int, str, str]:
        """Wait for the end; return the exit code and what was still printed."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        out, err = self._buffered["stdout"] + (out or b""), self._buffered["stderr"] + (err or b"")
        return self.process.returncode, out.decode(), err.decode()


@contextmanager
def started(name: str, *arguments: object) -> Iterator[Started]:
    """Run a command for as long as the block lasts; it is killed if it has not ended by then."""
    process = subprocess.Popen(
        command_line(name, *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield Started(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def on_terminal(name: str, *arguments: object, columns: int = 120) -> tuple[int, str]:
    """Run a command on a pseudo terminal; return its exit code and everything it showed."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "LINES": "50"}
    process = subprocess.Popen(
        command_line(name, *arguments),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={key: value for key, value in environment.items() if key != "NO_COLOR"},
    )
    os.close(theirs)
    shown = b""
    try:
        while readable(ours, PATIENCE_S):
            try:
                data = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            shown += data
        return process.wait(PATIENCE_S), shown.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
