"""Commands of everlog as copies of one process that has imported them, so that a start costs next to nothing.

`make check` starts commands like this, `make test` starts those that are installed (`command_lines` decides).
A command is a process of its own all the same: with its own id, pipes, directory and environment, ended by
signals. As the copied process is its parent, that one is asked how a command has ended. If the test run dies,
it kills the commands that are left.
"""

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

COMMANDS: Final = {"everlog": "everlog.cli.main", "chron-cli": "everlog.cli.chron_cli"}
"""Modules whose `main` each command runs."""
PRELOADED: Final = (
    *("everlog.cli.backup", "everlog.cli.queue", "everlog.cli.repair", "everlog.cli.topic"),
    *("everlog.cli.main", "everlog.server.serve", "pydantic.type_adapter", "uvloop"),
)
_ROOT: Final = Path(__file__).resolve().parent.parent.parent
_MESSAGE_BYTES: Final = 1 << 17
_POLL_S: Final = 0.002


class ForkedCommand:
    """A running command; what tests use of `subprocess.Popen`."""

    def __init__(self, words: list[str]) -> None:
        """Start it with an empty input; its output and its errors are pipes."""
        self.args = words
        self.returncode: int | None = None
        source, out, err = os.open(os.devnull, os.O_RDONLY), os.pipe(), os.pipe()
        theirs = (source, out[1], err[1])
        try:
            self.pid = _launcher().start(words, theirs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self.stdout, self.stderr = open(out[0], "rb"), open(err[0], "rb")  # noqa: SIM115

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        if self.returncode is None:
            self.returncode = _launcher().exit_code(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline_s is not None and time.monotonic() > deadline_s:
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(_POLL_S)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """Read both pipes to their ends and wait for the end."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        read: dict[int, bytes] = {self.stdout.fileno(): b"", self.stderr.fileno(): b""}
        poll = select.poll()
        for descriptor in read:
            poll.register(descriptor, select.POLLIN)
        left = len(read)
        while left:
            found = poll.poll(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()) * 1000)
            if not found:
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
            for descriptor, _ in found:
                data = os.read(descriptor, 1 << 16)
                read[descriptor] += data
                if not data:
                    poll.unregister(descriptor)
                    left -= 1
        out, err = read[self.stdout.fileno()], read[self.stderr.fileno()]
        self.stdout.close()
        self.stderr.close()
        self.wait(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))
        return out, err

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class _Launcher:
    """Talks to the process that is copied, one request at a time."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.support.forked_commands", str(theirs.fileno())]
        # It forks, so it must not have the worker threads that numpy's linear algebra starts.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], cwd=_ROOT, env=environment
            )
        self._lock = threading.Lock()
        atexit.register(self._end)

    def start(self, words: list[str], descriptors: tuple[int, ...]) -> int:
        """Start a command with these as its input, output and errors; return its process id."""
        surroundings = {"directory": os.getcwd(), "environment": dict(os.environ)}
        answer = self._ask({"words": words, **surroundings}, descriptors)
        return int(answer)

    def exit_code(self, pid: int) -> int | None:
        """Return how a command has ended; None if it has not."""
        code: int | None = self._ask({"pid": pid})
        return code

    def _ask(self, request: dict[str, Any], descriptors: tuple[int, ...] = ()) -> Any:
        with self._lock:
            socket.send_fds(self._channel, [json.dumps(request).encode()], descriptors)
            answer = self._channel.recv(_MESSAGE_BYTES)
        assert answer, "the process that starts commands has ended"
        return json.loads(answer)

    def _end(self) -> None:
        self._channel.close()
        self._process.wait()


_running: list[_Launcher] = []


def _launcher() -> _Launcher:
    if not _running:
        _running.append(_Launcher())
    return _running[0]


# --- In the process that is copied -----------------------------------------------------------------------


def serve(channel: socket.socket) -> Callable[[], object]:
    """Answer requests; return, in a copy only, the command to run there."""
    alive: set[int] = set()
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 3)
        if not data:
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
            return lambda: 0
        request = json.loads(data)
        if "pid" in request:
            pid, status = os.waitpid(request["pid"], os.WNOHANG)
            alive.discard(pid)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if not answer:
                channel.detach()
                return become(request, descriptors)
            alive.add(answer)
            for descriptor in descriptors:
                os.close(descriptor)
        channel.send(json.dumps(answer).encode())


def become(request: dict[str, Any], descriptors: list[int]) -> Callable[[], object]:
    """Take over the arguments, directory, environment and streams of a command; return its `main`."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(request["directory"])
    for name in os.environ.keys() - request["environment"].keys():
        del os.environ[name]
    os.environ.update(request["environment"])
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.argv = request["words"]
    main: Callable[[], object] = importlib.import_module(COMMANDS[os.path.basename(sys.argv[0])]).main
    return main


if __name__ == "__main__":
    for _module in PRELOADED:
        importlib.import_module(_module)
    gc.collect()
    gc.freeze()
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1])))())
