"""The processes of a run: started, watched, killed and ended, each by its own id.

Owns every process of the demonstration: whatever happens, none outlives `Processes.close`. What a
process prints goes to a file of its own, whose last lines are part of the message if it fails.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

REPOSITORY = Path(__file__).resolve().parents[2]
EVERLOG = (sys.executable, "-c", "from everlog.cli.main import main; main()")
POLL_S = 0.02
STOP_LIMIT_S = 15.0
SHOWN_LINES = 12

# The linear algebra threads of NumPy would only be in the way of processes that share few cores.
ENVIRONMENT = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


class DemoFailed(Exception):
    """The processes did not do what the demonstration needs; the message says which and why."""


class Processes:
    """All processes by name."""

    def __init__(self, logs: Path, progress: Callable[[], None] = lambda: None) -> None:
        """`progress` is called again and again while something is waited for."""
        self._logs = logs
        self._progress = progress
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, *command: object) -> int:
        """Start a program; return its process id."""
        tied = [sys.executable, "-m", "examples.demo.child", str(os.getpid())]
        with open(self.log_file(name), "ab") as log:
            # A session of its own: Ctrl-C reaches only the demonstration, which then ends the others.
            self._processes[name] = subprocess.Popen(
                [*tied, *map(str, command)],
                cwd=REPOSITORY,
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self._processes[name].pid

    def start_module(self, name: str, module: str, *arguments: object) -> int:
        """Start one of the demonstration's own programs."""
        return self.start(name, sys.executable, "-m", f"examples.demo.{module}", *arguments)

    def start_everlog(self, name: str, *arguments: object) -> int:
        """Start a command of `everlog`."""
        return self.start(name, *EVERLOG, *arguments)

    def log_file(self, name: str) -> Path:
        """Return where a process prints to."""
        return self._logs / f"{name}.log"

    def running(self) -> list[str]:
        """Return the names of those that run."""
        return [name for name, process in self._processes.items() if process.poll() is None]

    def kill(self, name: str) -> int:
        """End a process with SIGKILL, as a crash would; return its id. It must run."""
        process = self._processes.pop(name)
        if process.poll() is not None:
            raise DemoFailed(f"{name} had ended before it could be killed; let the session last longer")
        process.kill()
        process.wait()
        return process.pid

    def stop(self, name: str) -> None:
        """Ask a process to end, and wait; it has to end well and in time."""
        process = self._processes[name]
        process.send_signal(signal.SIGTERM)
        self.until(lambda: process.poll() is not None, STOP_LIMIT_S, "end when asked to", [name])

    def until(
        self, condition: Callable[[], bool], limit_s: float, what: str, who: list[str] | None = None
    ) -> None:
        """Wait for `condition`; a process that fails, or time running out, ends the run."""
        deadline_s = time.monotonic() + limit_s
        while not condition():
            self.check()
            if time.monotonic() > deadline_s:
                names = ", ".join(who or self.running()) or "no process"
                raise DemoFailed(f"{names} did not {what} within {limit_s:.0f} s{self._tails(who or [])}")
            self._progress()
            time.sleep(POLL_S)
        self.check()

    def ended(self, name: str) -> bool:
        """Whether a process has ended."""
        return self._processes[name].poll() is not None

    def check(self) -> None:
        """Raise if a process has failed."""
        for name, process in self._processes.items():
            if process.poll():  # neither None (runs) nor 0 (went well)
                raise DemoFailed(f"{name} failed with exit code {process.returncode}{self._tails([name])}")

    def close(self) -> None:
        """End what still runs, and wait until it has ended."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()

    def _tails(self, names: list[str]) -> str:
        """Return the last lines that these processes printed, ready to be appended to a message."""
        text = ""
        for name in names:
            lines = self.log_file(name).read_text(errors="replace").splitlines()[-SHOWN_LINES:]
            if lines:
                text += f"; {name} said last:\n" + "\n".join(f"  {line}" for line in lines)
        return text

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
