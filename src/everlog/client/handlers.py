"""How a worker runs its handler for one job: wrapped by middleware, in this process or in a child.

Owns the child processes and what becomes of an error. A child that dies fails the job it had and no other:
each has a pipe of its own, and the next job gets a new child.
"""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Final, NamedTuple

from everlog import tracing
from everlog.errors import EverlogError, InvalidConfig
from everlog.job_types import Job, JobError

Handler = Callable[[Job], Awaitable[None] | None]
CallNext = Callable[[Job], None]
Middleware = Callable[[Job, CallNext], None]
"""Is called with each job and what to call for it: the next middleware, or the handler at the end."""

# Together less than the 8 KiB that the server keeps, from which it would cut the end of the trace.
TYPE_BYTES_MAX: Final = 200
MESSAGE_BYTES_MAX: Final = 2000
TRACE_BYTES_MAX: Final = 5900
TRACE_FRAMES_MAX: Final = 20
_END_S: Final = 5.0


class DeadLetter(EverlogError):
    """Raised by a handler: this job can never be done, move it to the dead-letter topic now."""

    code = "dead_letter"


class HandlerFailed(EverlogError):
    """A handler raised in its child process; `error` is what it raised there."""

    code = "handler_failed"

    def __init__(self, error: JobError) -> None:
        super().__init__(f"{error.type}: {error.message}\n{error.trace}")
        self.error = error


class ChildDied(EverlogError):
    """The child process ended while it ran the handler: killed, or by a fault in native code."""

    code = "child_died"


def error_of(error: BaseException) -> JobError:
    """An exception as the server keeps it, with the innermost frames of its trace."""
    if isinstance(error, HandlerFailed):
        return error.error
    shown = traceback.TracebackException.from_exception(error, limit=-TRACE_FRAMES_MAX)
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return JobError(
        _cut(name, slice(TYPE_BYTES_MAX)),
        _cut(str(shown), slice(MESSAGE_BYTES_MAX)),
        _cut("".join(shown.format()), slice(-TRACE_BYTES_MAX, None)),
    )


def _cut(text: str, part: slice) -> str:
    """Some bytes of a text, as far as they are characters; lone surrogates are replaced."""
    return text.encode("utf-8", "replace")[part].decode("utf-8", "ignore")


def wrapped(handler: Handler, middleware: Sequence[Middleware]) -> CallNext:
    """The handler inside of all middleware, of which the first is outermost."""
    call: CallNext = partial(run_handler, handler)
    for each in reversed(middleware):
        call = partial(_call, each, call)
    return call


def _call(middleware: Middleware, call_next: CallNext, job: Job) -> None:
    middleware(job, call_next)


def run_handler(handler: Handler, job: Job) -> None:
    """Run a handler to its end, also one that is a coroutine function."""
    waiting = handler(job)
    if inspect.isawaitable(waiting):
        asyncio.run(_awaited(waiting))


async def _awaited(waiting: Awaitable[None]) -> None:
    await waiting


# --- Child processes -------------------------------------------------------------------------------------


class _Failure(NamedTuple):
    """What a child reports of an error."""

    error: JobError
    is_hopeless: bool


class TimeLimitExceeded(EverlogError):
    """The handler ran longer than it may; its child process was killed."""

    code = "time_limit_exceeded"


class HandlerProcesses:
    """Runs a handler in child processes, one for each call at a time; they are used again.

    A child whose handler runs longer than `time_limit_s` is killed.
    """

    def __init__(self, handler: Handler, time_limit_s: float | None = None) -> None:
        try:
            pickle.dumps(handler)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InvalidConfig(
                f"{handler!r} cannot run in another process: {error}; make it a function of a module"
            ) from None
        self._handler = handler
        self._time_limit_s = time_limit_s
        self._lock = threading.Lock()
        self._idle: list[_Child] = []

    def run(self, job: Job) -> None:
        """Run the handler for a job; raises what it raises, or that its process has died."""
        with self._lock:
            child = self._idle.pop() if self._idle else None
        if child is None or not child.is_alive():
            child = _Child(self._handler)
        failure = child.run(job, self._time_limit_s)
        with self._lock:
            self._idle.append(child)
        if failure is not None and failure.is_hopeless:
            raise DeadLetter(failure.error.message)
        if failure is not None:
            raise HandlerFailed(failure.error)

    def close(self) -> None:
        """End the children; none may be running a job."""
        with self._lock:
            children, self._idle = self._idle, []
        for child in children:
            child.close()


class _Child:
    """One child process, and the pipe to it."""

    def __init__(self, handler: Handler) -> None:
        # Spawned, not forked: the worker has threads, whose locks a forked child would keep for ever.
        context = multiprocessing.get_context("spawn")
        self._pipe, end = context.Pipe()
        self._process = context.Process(target=_serve, args=(handler, end), daemon=True)
        self._process.start()
        end.close()  # so that the pipe ends with the child
        self._is_ready = False

    def is_alive(self) -> bool:
        """Whether it can take another job."""
        return self._process.is_alive()

    def run(self, job: Job, time_limit_s: float | None) -> _Failure | None:
        try:
            if not self._is_ready:
                self._pipe.recv()  # the time of its start is not the handler's
                self._is_ready = True
            self._pipe.send((job, tracing.current()))
            if not self._pipe.poll(time_limit_s):
                self._process.kill()
                raise TimeLimitExceeded(
                    f"the handler ran longer than {time_limit_s:g} s for job {job.seq}; it was killed"
                )
            failure: _Failure | None = self._pipe.recv()
        except (EOFError, OSError):
            self.close()
            code = self._process.exitcode
            how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
            raise ChildDied(f"the process of the handler ended {how} while it ran job {job.seq}") from None
        except BaseException:
            self.close()  # what it sends later would be taken for the answer to another job
            raise
        return failure

    def close(self) -> None:
        """End it; a child without a job ends by itself."""
        self._pipe.close()
        self._process.join(_END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _end_with_the_worker() -> None:
    """Kill this process when the worker is killed: another worker has its job already."""
    worker = multiprocessing.parent_process()
    if worker is not None:
        worker.join()
        os.kill(os.getpid(), signal.SIGKILL)


def _serve(handler: Handler, pipe: Connection) -> None:
    """Run jobs until the pipe ends.

    Ctrl-C and the SIGTERM of a service manager reach the whole group, but the worker ends its children
    itself, when their jobs are finished. They are caught rather than ignored, which programs that a handler
    starts would inherit.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    threading.Thread(target=_end_with_the_worker, name="worker-watch", daemon=True).start()
    pipe.send(None)
    while True:
        try:
            job, traceparent = pipe.recv()
        except (EOFError, OSError):
            return
        failure: _Failure | None = None
        try:
            with tracing.following(traceparent):
                run_handler(handler, job)
        except BaseException as error:
            failure = _Failure(error_of(error), isinstance(error, DeadLetter))
        try:
            pipe.send(failure)
        except OSError:
            return  # the worker is gone, and the job is at another one
