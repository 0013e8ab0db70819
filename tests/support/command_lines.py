"""Programs as processes: the installed commands with pipes, signals and terminals, and Python code."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner

import everlog
from tests.support.effort import IS_QUICK
from tests.support.forked_commands import COMMANDS, ForkedCommand
from tests.support.processes import PATIENCE_S

BIN = os.path.dirname(sys.executable)
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
AnyProcess = subprocess.Popen[bytes] | ForkedCommand
SOURCE_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(everlog.__file__)))


def command_line(name: str, *arguments: object) -> list[str]:
    """The installed command with its arguments."""
    return [os.path.join(BIN, name), *map(str, arguments)]


def run(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, without a terminal."""
    with started(name, *arguments) as command:
        return subprocess.CompletedProcess(command.process.args, *command.wait())


def run_here(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command of `everlog` in this process, which saves the start of another one."""
    from everlog.cli.main import command_line as commands  # not for tests that only need a process

    words = [str(argument) for argument in arguments]
    result = CliRunner().invoke(commands(words[:1]), words, catch_exceptions=False)
    return subprocess.CompletedProcess(words, result.exit_code, result.stdout, result.stderr)


def readable(descriptor: int, timeout_s: float) -> bool:
    """Wait until there is something to read; other than select() for any number of open files."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))


class Started:
    """A running command whose output is read line by line."""

    def __init__(self, process: AnyProcess) -> None:
        self.process = process
        self._buffered = {"stdout": b"", "stderr": b""}

    def line(self, stream: str = "stdout", timeout_s: float = PATIENCE_S) -> str:
        """Return the next line of a stream; fails if there is none in time."""
        deadline_s = time.monotonic() + timeout_s
        pipe = getattr(self.process, stream)
        while b"\n" not in self._buffered[stream]:
            ready = readable(pipe.fileno(), deadline_s - time.monotonic())
            data = os.read(pipe.fileno(), 65536) if ready else b""
            assert data, f"{stream} ended or stayed silent after {self._buffered[stream]!r}"
            self._buffered[stream] += data
        line, _, self._buffered[stream] = self._buffered[stream].partition(b"\n")
        return line.decode()

    def discard(self) -> None:
        """Forget the lines that have come, so that the next one is new."""
        pipe = self.process.stdout
        assert pipe is not None
        while readable(pipe.fileno(), 0) and os.read(pipe.fileno(), 65536):
            pass
        self._buffered["stdout"] = b""

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
    words = command_line(name, *arguments)
    process: AnyProcess
    if IS_QUICK and name in COMMANDS:
        process = ForkedCommand(words)
    else:
        pipe = subprocess.PIPE
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    try:
        yield Started(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


class Terminal:
    """A command on a pseudo terminal: what it shows, and keys typed into it."""

    def __init__(self, name: str, *arguments: object, columns: int = 150, is_plain: bool = True) -> None:
        """`is_plain`: without colours, and without the codes of styles in `shown`."""
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "LINES": "50"}
        environment.pop("NO_COLOR", None)
        self._is_plain = is_plain
        self.process = subprocess.Popen(
            command_line(name, *arguments),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**environment, "NO_COLOR": "1"} if is_plain else environment,
        )
        os.close(theirs)
        self.shown = ""

    def until(self, pattern: str) -> str:
        """Read until the pattern is shown; return everything shown so far."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.shown):
            assert self._read(deadline_s), f"{pattern!r} was not shown: {self.shown!r}"
        return self.shown

    def type(self, text: str) -> None:
        """Type something."""
        os.write(self._ours, text.encode())

    def wait(self) -> int:
        """Read to the end; return the exit code."""
        while self._read(time.monotonic() + PATIENCE_S):
            pass
        return self.process.wait(PATIENCE_S)

    def _read(self, deadline_s: float) -> bool:
        ready = readable(self._ours, deadline_s - time.monotonic())
        try:
            data = os.read(self._ours, 65536) if ready else b""
        except OSError:  # the other side is closed
            data = b""
        text = data.decode(errors="replace")
        self.shown += _STYLE.sub("", text) if self._is_plain else text
        return bool(data)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)


def on_terminal(name: str, *arguments: object, columns: int = 120) -> tuple[int, str]:
    """Run a command on a pseudo terminal; return its exit code and everything it showed."""
    with Terminal(name, *arguments, columns=columns, is_plain=False) as terminal:
        return terminal.wait(), terminal.shown


def with_input(text: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `everlog ...` as a process that reads `text` from its standard input."""
    return subprocess.run(
        command_line("everlog", *arguments),
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@dataclass(frozen=True)
class TopicCommands:
    """`everlog topic ...`, or another noun, against one server, run in this process."""

    url: str
    noun: str = "topic"

    def __call__(self, *arguments: object, code: int = 0) -> str:
        """Run a command and return its standard output."""
        return self.run(*arguments, code=code)[0]

    def json(self, *arguments: object, code: int = 0) -> Any:
        """The document that a command prints with --json."""
        return json.loads(self(*arguments, "--json", code=code))

    def lines(self, *arguments: object, code: int = 0) -> list[Any]:
        """The JSON lines that a command prints with --json."""
        return [json.loads(line) for line in self(*arguments, "--json", code=code).splitlines()]

    def error(self, *arguments: object, code: int = 1) -> Any:
        """What a command that fails says with --json."""
        return json.loads(self.run(*arguments, "--json", code=code)[1].splitlines()[-1])["error"]

    def run(self, *arguments: object, code: int = 0) -> tuple[str, str]:
        """Run a command; return its standard output and standard error."""
        words = [self.noun, *map(str, arguments), "--url", self.url]
        result = run_here(*words)
        assert result.returncode == code, result.stdout + result.stderr
        return result.stdout, result.stderr


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
    """Run a `Holder` while the block runs."""
    holder = Holder(code, *arguments)
    try:
        yield holder
    finally:
        holder.release()
        assert holder.process.stdout is not None
        holder.process.stdout.close()


def run_python(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `code` in a new interpreter, for what may kill one; the caller judges how it ended."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE_ROOT},
        timeout=100,
        check=False,
        **options,
    )


def assert_survives(code: str, *arguments: object) -> str:
    """Run `code` in a new interpreter, insist that it ends well, and return what it printed."""
    ended = run_python(code, *arguments)
    assert ended.returncode == 0, f"ended with {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout
