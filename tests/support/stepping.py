"""Runs another process one machine instruction at a time (ptrace), to stop it at every point of its way.

Owns the tracing; knows nothing of queues. Only instructions of chosen libraries count as points: the
interpreter around them has thousands, and they do not touch what is shared.
"""

import ctypes
import os
import platform
import signal
import struct
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Self

from tests.support.processes import sleeps

_TRACE_CONTINUE = 7
_TRACE_STEP = 9
_TRACE_ATTACH = 16
_TRACE_DETACH = 17
_TRACE_GET_REGISTERS = 0x4204
_GENERAL_REGISTERS = 1
_COUNTER_INDEX = {"x86_64": 16, "aarch64": 32}[platform.machine()]
_SET_TRACER = 0x59616D61
_ANY_TRACER = -1
_WAIT_ALL = 0x40000000

_STEP_S = 0.001
"""A step that takes longer may have entered the kernel and sleep there."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def allow_tracing() -> None:
    """Let any process of this user trace this one; some systems refuse it otherwise."""
    _libc.prctl(_SET_TRACER, ctypes.c_long(_ANY_TRACER), 0, 0, 0)


def _trace(request: int, pid: int, address: int = 0, data: object = 0) -> None:
    if _libc.ptrace(request, pid, address, data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace request {request}: {os.strerror(number)}")


class Stepper:
    """Traces the main thread of a process; it runs freely until it raises SIGSTOP."""

    def __init__(self, pid: int, *libraries: ModuleType) -> None:
        self._pid = pid
        self._code = [_code_of(pid, str(library.__file__)) for library in libraries]
        self._registers = ctypes.create_string_buffer(1024)
        self._stopped = False
        self._blocked = False
        _trace(_TRACE_ATTACH, pid)
        self._await_stop()
        self.run()

    def run(self) -> None:
        """Let the stopped process run freely."""
        _trace(_TRACE_CONTINUE, self._pid)
        self._stopped = False

    def run_when_woken(self) -> None:
        """Let a process that blocked within a step run freely as soon as it has woken up."""
        self._await_stop()
        self.run()

    def await_mark(self) -> None:
        """Wait until the process raises SIGSTOP; one that blocked within a step must have been woken."""
        if self._blocked:
            self.run_when_woken()
        if self._await_stop() != signal.SIGSTOP:
            raise AssertionError(f"process {self._pid} was stopped by something else than SIGSTOP")

    def step_inside(self, count: int, has_ended: Callable[[], bool] = lambda: True) -> bool:
        """Step until `count` instructions of the libraries are done; False if it blocks at its end."""
        while count > 0:
            count -= self._is_inside()
            if not self._step():
                if has_ended():
                    return False
                self._await_stop()  # it waits for another of its threads
        return True

    def steps_inside(self, has_ended: Callable[[], bool]) -> Iterator[None]:
        """Yield after every instruction of the libraries, until the process blocks and `has_ended`."""
        while True:
            inside = self._is_inside()
            if not self._step():
                if has_ended():
                    return
                self._await_stop()  # it waits for another of its threads
            if inside:
                yield

    def _step(self) -> bool:
        """Do one instruction; False if it sleeps in the kernel."""
        _trace(_TRACE_STEP, self._pid)
        self._stopped = False
        look_s = time.monotonic() + _STEP_S
        while True:
            pid, status = os.waitpid(self._pid, _WAIT_ALL | os.WNOHANG)
            if pid:
                self._note(status)
                return True
            if time.monotonic() >= look_s and sleeps(self._pid):
                self._blocked = True
                return False

    def _is_inside(self) -> bool:
        """Tell whether the next instruction is one of the libraries."""
        address = self._instruction()
        return any(address in code for code in self._code)

    def _instruction(self) -> int:
        """The address of the next instruction."""
        vector = _Vector(ctypes.addressof(self._registers), len(self._registers))
        _trace(_TRACE_GET_REGISTERS, self._pid, _GENERAL_REGISTERS, ctypes.addressof(vector))
        (address,) = struct.unpack_from("<Q", self._registers, _COUNTER_INDEX * 8)
        return int(address)

    def _await_stop(self) -> int:
        _, status = os.waitpid(self._pid, _WAIT_ALL)
        return self._note(status)

    def _note(self, status: int) -> int:
        if not os.WIFSTOPPED(status):
            raise AssertionError(f"process {self._pid} ended while it was traced")
        self._stopped = True
        self._blocked = False
        return os.WSTOPSIG(status)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._stopped:
            os.kill(self._pid, signal.SIGSTOP)
            self._await_stop()
        _trace(_TRACE_DETACH, self._pid)


def _code_of(pid: int, library: str) -> range:
    """The addresses of the library's instructions in the memory of a process."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
        for line in file:
            fields = line.split()
            if "x" in fields[1] and fields[-1] == library:
                start, end = (int(address, 16) for address in fields[0].split("-"))
                return range(start, end)
    raise AssertionError(f"process {pid} has not loaded {library}")
