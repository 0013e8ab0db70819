"""Child processes of the benchmark: spawned, pinned, told what to do step by step, always ended.

A job is a context manager that opens its end of a channel and yields the function to run. The
parent leads each child through open, run and close over a pipe, so that a receiver is there
before the first message and a sender outlives the last one. Owns processes, knows no contender.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

Job = Callable[..., AbstractContextManager[Callable[[], Any]]]

END_GRACE_S = 5.0
START_METHOD = "spawn"
"""A new interpreter for each job, which shares nothing with the jobs before it."""


class ChildFailed(Exception):
    """A child process raised, died, or did not answer in time."""


@dataclass
class Child:
    """One spawned process that runs `job(*args)` on one core."""

    role: str
    core: int
    job: Job
    args: tuple[Any, ...]
    _process: BaseProcess = field(init=False)
    _control: Connection = field(init=False)

    def start(self) -> None:
        """Spawn the process; it imports what it needs and waits to be told to open."""
        context = multiprocessing.get_context(START_METHOD)
        self._control, theirs = context.Pipe()
        self._process = context.Process(
            target=_child_main, args=(theirs, self.core, self.job, self.args), name=self.role, daemon=True
        )
        self._process.start()
        theirs.close()

    def tell(self, step: str) -> None:
        """Let the child take its next step."""
        try:
            self._control.send(step)
        except OSError as error:
            raise ChildFailed(f"the {self.role} process is gone: {error}") from error

    def answer(self, deadline_s: float) -> Any:
        """What the child reports about its step; raise ChildFailed after `deadline_s` (monotonic)."""
        if not self._control.poll(max(0.0, deadline_s - time.monotonic())):
            raise ChildFailed(f"the {self.role} process did not answer in time")
        try:
            kind, value = self._control.recv()
        except EOFError as error:
            raise ChildFailed(f"the {self.role} process died, exit code {self._process.exitcode}") from error
        if kind == "failed":
            raise ChildFailed(f"the {self.role} process failed:\n{value}")
        return value

    def end(self) -> None:
        """Close the pipe, then make sure that the process is gone."""
        self._control.close()
        self._process.join(END_GRACE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def run_together(children: list[Child], timeout_s: float) -> list[Any]:
    """Run all children at once and return what each job returned, in the order given.

    Opened in that order (a sender first), set running in the opposite one (a receiver first).
    """
    deadline_s = time.monotonic() + timeout_s
    started: list[Child] = []
    try:
        for child in children:
            child.start()
            started.append(child)
        for child in children:
            child.tell("open")
            child.answer(deadline_s)
        for child in reversed(children):
            child.tell("run")
        results = [child.answer(deadline_s) for child in children]
        for child in reversed(children):
            child.tell("close")
        return results
    finally:
        for child in reversed(started):
            child.end()


def _child_main(control: Connection, core: int, job: Job, args: tuple[Any, ...]) -> None:
    os.sched_setaffinity(0, {core})
    try:
        control.recv()
        with job(*args) as run:
            control.send(("opened", None))
            control.recv()
            # A collection in the middle of a loop would be part of what is measured.
            gc.collect()
            gc.freeze()
            gc.disable()
            result = run()
            control.send(("done", result))
            control.recv()
    except EOFError:
        return  # the parent has given up on this run
    except BaseException:
        control.send(("failed", traceback.format_exc()))
