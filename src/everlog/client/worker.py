"""`Worker`: runs a handler function for each job of a job queue.

Owns where jobs come from, the threads that run the handler (`handlers` says how), the leases while they run,
and the outcome of a job: acknowledged, retried later, or moved to the dead-letter topic. Every job is done
at least once; twice if its lease is lost meanwhile.

By default each thread has a work stream of its own with room for one job. So the jobs of a killed worker
return at once, and a worker that stops ends the streams without a job at once and the others after their job.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Final, Self, TypeVar

from everlog import tracing
from everlog.api_types import NewRecord
from everlog.client import streams
from everlog.client.calls import new_key
from everlog.client.connection import Connection
from everlog.client.errors import ApiFailed
from everlog.client.handlers import (
    CallNext,
    DeadLetter,
    Handler,
    HandlerProcesses,
    Middleware,
    error_of,
    wrapped,
)
from everlog.client.retrying import Backoff
from everlog.client.sync_client import Client, client_of, iterate_once
from everlog.clock import NS_PER_S, Clock, StopEvent, SystemClock
from everlog.errors import Closed, InvalidConfig
from everlog.job_types import Job, JobError

log = logging.getLogger("everlog.worker")

_Function = TypeVar("_Function", bound=Handler)
_Middleware = TypeVar("_Middleware", bound=Middleware)

HEARTBEATS_A_LEASE: Final = 3
MS_PER_S: Final = 1000
_STOP_CHECK_S: Final = 0.05


class _Slot:
    """One thread of a worker, and its stream. The attributes change under the worker's condition."""

    def __init__(self) -> None:
        self.stream: Connection | None = None
        self.is_idle = True


class Worker:
    """Gets jobs of a job queue and runs a handler for each, `concurrency` at a time.

    When the handler returns, the job is acknowledged. When it raises, the job is retried as the queue's
    `retry` says, by default after a pause that doubles with each delivery; the queue's `max_deliveries` and
    `dead_letter` say when that ends. When it raises `DeadLetter`, the job is moved there at once. Leases are
    extended while handlers run.

    Jobs are pushed over `concurrency` streams, and return at once if the process is killed. With `push=False`
    they are claimed, with a request every `poll_ms` at least, and return when their leases end.

    `middleware` are functions `(job, call_next)` around the handler, the first one outermost. With
    `processes` so many jobs run at a time, each in a child process; the handler is a function of a module. A
    child whose handler runs longer than `time_limit_ms` is killed, and its job has failed.
    """

    def __init__(  # noqa: PLR0913
        self,
        client: Client | str,
        queue: str,
        *,
        key: str | None = None,
        node: str | None = None,
        concurrency: int = 4,
        lease_ms: int = 30_000,
        push: bool = True,
        poll_ms: int = 1000,
        first_delay_ms: int = 1000,
        longest_delay_ms: int = 300_000,
        middleware: Sequence[Middleware] = (),
        processes: int = 0,
        time_limit_ms: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        if processes < 0:
            raise InvalidConfig(f"processes is {processes}; it must be 0, or how many jobs run at a time")
        if time_limit_ms is not None and (time_limit_ms < 1 or not processes):
            raise InvalidConfig(
                f"time_limit_ms is {time_limit_ms} with {processes} processes; it must be at least 1, and "
                "only a handler in a process can be ended: give processes=1 or more"
            )
        concurrency = processes or concurrency
        if concurrency < 1 or lease_ms < 100 or poll_ms < 1:
            raise InvalidConfig(
                f"concurrency {concurrency}, lease_ms {lease_ms} and poll_ms {poll_ms} cannot work; they "
                "must be at least 1, 100 and 1"
            )
        self._owns_client = isinstance(client, str)
        self._client = client_of(client, key)
        self.queue = queue
        self.node = node or f"{socket.gethostname()[:60]}-{os.getpid()}-{new_key()[:8]}"
        self.done = 0
        self.failed = 0
        self._concurrency = concurrency
        self._lease_ms = lease_ms
        self._is_pushed = push
        self._middleware = list(middleware)
        self._has_processes = processes > 0
        self._time_limit_s = None if time_limit_ms is None else time_limit_ms / MS_PER_S
        self._poll_ms = poll_ms
        self._first_delay_ms = first_delay_ms
        self._longest_delay_ms = longest_delay_ms
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._handler: Handler | None = None
        self._changed = threading.Condition()
        self._held: dict[str, Job] = {}
        self._stopping = StopEvent()
        self._has_ended = False
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def __repr__(self) -> str:
        return f"<Worker {self.node} of {self.queue} on {self._client.address}: {self.done} jobs done>"

    def handler(self, function: _Function) -> _Function:
        """Decorator: use this function as the handler. It may be a coroutine function."""
        self._handler = function
        return function

    def middleware(self, function: _Middleware) -> _Middleware:
        """Decorator: call this function around the handler, inside of the middleware there is."""
        self._middleware.append(function)
        return function

    # --- Running -------------------------------------------------------------------------------------------

    def run(self, *, handle_signals: bool = True) -> None:
        """Run until `stop`, SIGTERM or SIGINT; running jobs are finished first."""
        if self._handler is None:
            raise InvalidConfig("the worker has no handler; put @worker.handler above a function")
        if self._has_ended:
            raise Closed(f"the worker of {self.queue} has ended; make a new one")
        is_main = threading.current_thread() is threading.main_thread()
        children = HandlerProcesses(self._handler, self._time_limit_s) if self._has_processes else None
        call = wrapped(self._handler if children is None else children.run, self._middleware)
        with _stopping_on_signals(self, handle_signals and is_main):
            heart = threading.Thread(target=self._beat, name=f"leases-{self.queue}", daemon=True)
            heart.start()
            try:
                with ThreadPoolExecutor(self._concurrency, f"worker-{self.queue}") as pool:
                    get_jobs = self._work_all if self._is_pushed else self._claim_all
                    get_jobs(pool, call)
            finally:
                self._has_ended = True
                self._stopping.set()
                with self._changed:
                    self._changed.notify_all()
                heart.join()
                if children is not None:
                    children.close()
                if self._owns_client:
                    self._client.close()

    def stop(self) -> None:
        """Begin no more jobs; `run` returns when the running jobs are finished."""
        self._stopping.set()
        # Not by the condition: this is called by signal handlers, in the middle of anything.

    def start(self) -> None:
        """Run in a thread of its own; `join` waits for its end. Done by `with`."""

        def run() -> None:
            try:
                self.run(handle_signals=False)
            except BaseException as error:
                self._failure = error

        self._thread = threading.Thread(target=run, name=f"worker-{self.queue}")
        self._thread.start()

    def join(self) -> None:
        """Wait until a started worker has ended; raises what ended it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.join()

    # --- Pushed jobs ---------------------------------------------------------------------------------------

    def _work_all(self, pool: ThreadPoolExecutor, handler: CallNext) -> None:
        slots = [_Slot() for _ in range(self._concurrency)]
        running = [pool.submit(self._work, handler, slot) for slot in slots]
        while not all(each.done() for each in running):
            with self._changed:
                # With a timeout, because `stop` does not notify the condition.
                self._changed.wait(_STOP_CHECK_S)
                if any(each.done() for each in running):
                    self._stopping.set()  # one ends only by `stop` or by a failure, which is for all
                if self._stopping.is_set():
                    for slot in slots:
                        if slot.is_idle and slot.stream is not None:
                            slot.stream.interrupt()
        for each in running:
            each.result()

    def _work(self, handler: CallNext, slot: _Slot) -> None:
        """Run the jobs of one stream after the other, until the worker stops."""
        wanted = streams.work(self.queue, self.node, 1, lease_ms=self._lease_ms)
        backoff = Backoff()

        def opened(stream: Connection) -> None:
            with self._changed:
                slot.stream = stream

        while not self._stopping.is_set():
            jobs = iterate_once(self._client, wanted, opened)
            try:
                for job in jobs:
                    if not self._begin(slot, job):
                        break
                    is_finished = self._do(handler, job)
                    with self._changed:
                        slot.is_idle = True
                    if self._stopping.is_set() or not is_finished:
                        break
                    backoff = Backoff()
            except ApiFailed as error:
                if self._stopping.is_set():
                    return
                if not (error.is_busy or error.is_outage):
                    raise
                log.warning("jobs of %s cannot be received, trying again: %s", self.queue, error)
                self._clock.wait(self._stopping, int(backoff.pause_s(error) * NS_PER_S))
            finally:
                jobs.close()  # which returns a job that was not finished

    def _begin(self, slot: _Slot, job: Job) -> bool:
        """Hold a job, unless the worker stops."""
        with self._changed:
            if self._stopping.is_set():
                return False
            slot.is_idle = False
            self._held[job.lease_id] = job
            return True

    # --- Claimed jobs --------------------------------------------------------------------------------------

    def _claim_all(self, pool: ThreadPoolExecutor, handler: CallNext) -> None:
        backoff = Backoff()
        head_seq: int | None = None
        while not self._stopping.is_set():
            free = self._wait_for_room()
            if not free:
                continue
            try:
                if head_seq is None:
                    head_seq = self._client.topic(self.queue, touch=False).head_seq
                claimed = self._client.claim(self.queue, self.node, free, lease_ms=self._lease_ms).claimed
                self._hold(claimed)
                for job in claimed:
                    pool.submit(self._do, handler, job)
                if not claimed:
                    # Answered as soon as something is appended; other jobs come back with time.
                    waited = self._client.diff(self.queue, head_seq, limit=1, wait_ms=self._poll_ms)
                    head_seq = waited.head_seq
                backoff = Backoff()
            except ApiFailed as error:
                if not (error.is_busy or error.is_outage):
                    raise
                log.warning("jobs of %s cannot be claimed, trying again: %s", self.queue, error)
                self._clock.wait(self._stopping, int(backoff.pause_s(error) * NS_PER_S))

    def _wait_for_room(self) -> int:
        with self._changed:
            free = self._concurrency - len(self._held)
            if not free:
                # With a timeout, because `stop` does not notify the condition.
                self._changed.wait(self._poll_ms / MS_PER_S)
                free = self._concurrency - len(self._held)
            return 0 if self._stopping.is_set() else free

    def _hold(self, jobs: list[Job]) -> None:
        with self._changed:
            self._held.update((job.lease_id, job) for job in jobs)

    # --- Jobs ----------------------------------------------------------------------------------------------

    def _do(self, handler: CallNext, job: Job) -> bool:
        """Run the handler and finish the job, or return False; in a thread, so errors are logged."""
        try:
            finish = self._outcome(handler, job)
            finish(job)
            return True
        except ApiFailed as error:
            log.error(
                "job %d of %s is not finished and will be delivered again: %s",
                job.seq,
                self.queue,
                error,
            )
        except BaseException:
            log.exception("job %d of %s is not finished and will be delivered again", job.seq, self.queue)
        finally:
            with self._changed:
                self._held.pop(job.lease_id, None)
                self._changed.notify_all()
        return False

    def _outcome(self, handler: CallNext, job: Job) -> Callable[[Job], None]:
        attributes = {
            "messaging.system": "everlog",
            "messaging.operation.name": "process",
            "messaging.destination.name": self.queue,
            "messaging.message.id": str(job.seq),
        }
        try:
            with tracing.span(f"process {self.queue}", "consumer", attributes, tracing.of_meta(job.meta)):
                handler(job)
        except DeadLetter as error:
            return partial(self._dead_letter, error=error)
        except BaseException as error:  # also what ends a program ends the job alone
            known = error_of(error)
            reason, *_ = f"{known.type}: {known.message}".splitlines()
            log.exception("job %d of %s failed, delivery %d: %s", job.seq, self.queue, job.deliveries, reason)
            return partial(self._retry_later, known=known)
        return self._acknowledge

    def _acknowledge(self, job: Job) -> None:
        answer = self._client.ack(self.queue, self.node, [job.seq], lease_ids=[job.lease_id])
        if answer.acked:
            with self._changed:
                self.done += 1
        else:
            log.warning("job %d of %s was done, but its lease had ended", job.seq, self.queue)

    def _retry_later(self, job: Job, known: JobError) -> None:
        retry = self._client.topic(self.queue, touch=False).config.retry
        self._client.nack(
            self.queue,
            self.node,
            [job.seq],
            delay_ms=self.delay_ms(job.deliveries) if retry is None else None,
            lease_ids=[job.lease_id],
            error=known,
        )
        with self._changed:
            self.failed += 1

    def delay_ms(self, deliveries: int) -> int:
        """The pause before a failed job is retried: doubling with each delivery, and randomized."""
        longest_ms = min(self._first_delay_ms * 2 ** min(deliveries - 1, 60), self._longest_delay_ms)
        return int(longest_ms * random.uniform(0.5, 1.0))

    def _dead_letter(self, job: Job, error: DeadLetter) -> None:
        """Copy the job to the dead-letter topic, as the server does, then delete it."""
        dead_letter = self._client.topic(self.queue, touch=False).config.dead_letter
        if dead_letter is None:
            log.error("job %d of %s can never be done, but the queue has no dead_letter", job.seq, self.queue)
            self._retry_later(job, error_of(error))
            return
        meta: dict[str, Any] = {
            **(job.meta or {}),
            "$dead_letter_from": self.queue,
            "$dead_letter_deliveries": str(job.deliveries),
            "$dead_letter_src_seq": str(job.seq),
            "$dead_letter_reason": str(error),
        }
        key = f"dead-letter:{self.queue}:{job.lease_id}"[:256]
        self._client.append_many(
            dead_letter, [NewRecord(job.data, tag=job.tag, meta=meta)], idempotency_key=key
        )
        self._client.ack(self.queue, self.node, [job.seq], lease_ids=[job.lease_id])
        with self._changed:
            self.failed += 1

    # --- Leases --------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Extend the leases of running jobs until the worker has stopped and none is left."""
        interval_s = self._lease_ms / MS_PER_S / HEARTBEATS_A_LEASE
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping.is_set() and not self._held, interval_s)
                if self._stopping.is_set() and not self._held:
                    return
                jobs = list(self._held.values())
            if jobs:
                self._extend(jobs)

    def _extend(self, jobs: list[Job]) -> None:
        seqs, leases = [job.seq for job in jobs], [job.lease_id for job in jobs]
        try:
            answer = self._client.extend(self.queue, self.node, seqs, self._lease_ms, lease_ids=leases)
        except ApiFailed as error:
            log.warning("leases of %s cannot be extended: %s", self.queue, error)
            return
        with self._changed:
            lost = [job for job in jobs if job.seq in answer.skipped and job.lease_id in self._held]
        for job in lost:
            log.warning("the lease of job %d of %s has ended while it runs", job.seq, self.queue)


@contextmanager
def _stopping_on_signals(worker: Worker, is_wanted: bool) -> Iterator[None]:
    if not is_wanted:
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        worker.stop()
        # A second signal ends the program at once.
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)

    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
