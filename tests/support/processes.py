"""Processes of a test: started here, talked to through pipes, ended by their own pid within a time limit.

Owns starting, ending and watching; what a process does is a function of `workloads` or `wakes`. All
children come from one small server process that has everlog imported already: a start costs
milliseconds, so a test can afford hundreds. If the test run dies, the server ends, and its children
with it.
"""

import ctypes
import multiprocessing
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Self

PATIENCE_S = 60.0
"""How long anything may take that should take milliseconds; beyond, the test fails."""

_POLL_S = 0.001
_PR_SET_PDEATHSIG = 1
_PRELOADED = [
    "everlog.queue",
    "tests.support.archives",
    "tests.support.crashes",
    "tests.support.topics_worker",
    "tests.support.wakes",
]

# The server forks, so it must not have the worker threads that numpy's linear algebra starts.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

START_METHOD = "forkserver"
_context = multiprocessing.get_context(START_METHOD)
_context.set_forkserver_preload(_PRELOADED)

type_of_words = ctypes.Array[ctypes.c_uint64]


class ChildFailed(AssertionError):
    """A child raised, or ended when it should not have."""


class _Failure:
    """What a child sends instead of an answer."""

    def __init__(self, trace: str) -> None:
        self.trace = trace


def _run(function: Callable[..., None], channel: Connection, arguments: tuple[Any, ...]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        function(channel, *arguments)
    except BaseException:
        channel.send(_Failure(traceback.format_exc()))
        raise SystemExit(1) from None


class Child:
    """A process that runs `function(channel, *arguments)`; a context manager that never leaves it behind."""

    def __init__(self, function: Callable[..., None], *arguments: Any) -> None:
        self._name = function.__name__
        self._arguments = arguments  # shared words are reused once they are not referenced
        self._channel, theirs = _context.Pipe()
        self._process = _context.Process(target=_run, args=(function, theirs, arguments), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process.pid is not None
        return self._process.pid

    def send(self, value: object) -> None:
        """Send the child what its `channel.recv()` returns."""
        self._channel.send(value)

    def receive(self, timeout_s: float = PATIENCE_S) -> Any:
        """Return what the child sent next; ChildFailed if it raised, ended or took too long."""
        if not self._channel.poll(timeout_s):
            raise ChildFailed(f"{self._name} (process {self.pid}) said nothing for {timeout_s} s")
        try:
            value = self._channel.recv()
        except EOFError:
            raise ChildFailed(f"{self._name} (process {self.pid}) ended without an answer") from None
        if isinstance(value, _Failure):
            raise ChildFailed(f"{self._name} (process {self.pid}) raised:\n{value.trace}")
        return value

    def has_answered(self) -> bool:
        """Tell whether `receive` would return at once."""
        return self._channel.poll()

    def check(self) -> None:
        """Raise if the child has failed or sent something unasked."""
        if self._channel.poll():
            raise ChildFailed(f"{self._name} (process {self.pid}) said {self.receive()!r} unasked")

    def kill(self) -> None:
        """Send SIGKILL and wait until the process is gone."""
        self._process.kill()
        self._join()

    def finish(self) -> None:
        """Wait for a good end."""
        self._join()
        if self._process.exitcode != 0:
            self.check()
            raise ChildFailed(f"{self._name} (process {self.pid}) ended with {self._process.exitcode}")

    def wait_for_death(self) -> int:
        """Wait until the process is gone, however it ended; return its exit code (-9: SIGKILL)."""
        self._join()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def _join(self) -> None:
        self._process.join(PATIENCE_S)
        if self._process.is_alive():
            raise ChildFailed(f"{self._name} (process {self.pid}) did not end within {PATIENCE_S} s")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.is_alive():
            self.kill()
        self._channel.close()


def shared_words(count: int) -> type_of_words:
    """Return so many 64-bit words, all 0, that can be given to children.

    A store is one instruction, so a word written by a process that was killed is the old or the new
    one.
    """
    return _context.RawArray(ctypes.c_uint64, count)


def eventually(what: str, condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    """Wait until the condition holds; fail, naming `what` was awaited, if it never does."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"waited {timeout_s} s in vain until {what}")
        time.sleep(_POLL_S)


def sleeps(pid: int) -> bool:
    """Tell whether the main thread of a process sleeps in the kernel."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[0] == "S"


class Resources(NamedTuple):
    """What a process holds."""

    descriptors: int
    resident_bytes: int


def resources_of(pid: int) -> Resources:
    """Return what a process holds now."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        pages = int(file.read().split()[1])
    return Resources(len(os.listdir(f"/proc/{pid}/fd")), pages * os.sysconf("SC_PAGE_SIZE"))


def fresh_seed(name: str) -> int:
    """Return a new seed, or the one in the environment variable TEST_SEED; prints which."""
    seed = int(os.environ.get("TEST_SEED", random.SystemRandom().randrange(2**32)))
    print(f"{name}: TEST_SEED={seed}")
    return seed
