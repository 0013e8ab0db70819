"""The worker: every job is done, tried again, or put aside; leases live as long as handlers run."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog import tracing
from everlog.client import ApiFailed, Client, DeadLetter, Job, NewRecord, RetryPolicy, Worker
from everlog.client.handlers import CallNext, error_of
from everlog.clock import SystemClock
from everlog.errors import InvalidConfig
from tests.client import process_handlers
from tests.support.http_cases import PATIENCE_S, wait_for
from tests.support.tcp_peers import FaultProxy


def queue_of(client: Client, *values: object, **config: Any) -> None:
    settings: Any = {"type": "queue", **config}
    client.put_topic("q", settings)
    client.append_many("q", [NewRecord(value) for value in values])


def is_empty(client: Client) -> bool:
    return client.topic("q").count == 0


def counts_of(client: Client) -> tuple[int, int]:
    counts = client.topic("q").queue
    assert counts is not None
    return counts.ready, counts.in_flight


def connections_of(client: Client) -> int:
    """How many work streams there are."""
    count: int = client.metrics()["sse_connections"]
    return count


@contextmanager
def worker_program(url: str, *, lease_ms: int = 400) -> Iterator[subprocess.Popen[str]]:
    """A worker as a process of its own."""
    command = [sys.executable, "-m", "tests.client.worker_program", url, "q", str(lease_ms)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_every_job_is_done_once(plain: Client) -> None:
    queue_of(plain, *range(60))
    seen: list[Any] = []
    worker = Worker(plain, "q", concurrency=3, poll_ms=50)

    @worker.handler
    def do(job: Job) -> None:
        seen.append(job.data)

    with worker:
        wait_for(lambda: is_empty(plain))
        plain.append("q", "late")
        wait_for(lambda: "late" in seen and is_empty(plain))
    assert sorted(seen[:-1]) == list(range(60))
    assert worker.done == 61


def test_a_handler_may_be_a_coroutine_function(plain: Client) -> None:
    queue_of(plain, 1)
    seen = []
    worker = Worker(plain, "q", poll_ms=50)

    @worker.handler
    async def do(job: Job) -> None:
        await asyncio.sleep(0)
        seen.append(job.data)

    with worker:
        wait_for(lambda: is_empty(plain))
    assert seen == [1]


def test_a_job_that_fails_is_tried_again_until_it_is_put_aside(
    plain: Client, caplog: pytest.LogCaptureFixture
) -> None:
    queue_of(plain, "bad", "good", max_deliveries=3, dead_letter="faulty")
    tries: list[int] = []
    worker = Worker(plain, "q", first_delay_ms=1, poll_ms=5)

    @worker.handler
    def do(job: Job) -> None:
        if job.data == "bad":
            tries.append(job.deliveries)
            raise ValueError("no")

    with worker:
        wait_for(lambda: is_empty(plain))
    assert tries == [1, 2, 3]
    assert (worker.done, worker.failed) == (1, 3)
    (dead,) = plain.read("faulty")
    assert dead.data == "bad"
    assert "failed, delivery 1: ValueError: no\nTraceback" in caplog.text


def test_a_hopeless_job_is_put_aside_at_once(plain: Client) -> None:
    queue_of(plain, "bad", dead_letter="faulty")
    worker = Worker(plain, "q", poll_ms=50)

    @worker.handler
    def do(job: Job) -> None:
        raise DeadLetter("no such address")

    with worker:
        wait_for(lambda: is_empty(plain))
    (dead,) = plain.read("faulty")
    assert dead.data == "bad"
    assert dead.meta == {
        "$dead_letter_from": "q",
        "$dead_letter_deliveries": "1",
        "$dead_letter_src_seq": "1",
        "$dead_letter_reason": "no such address",
    }


def test_a_hopeless_job_without_a_dead_letter_topic_is_given_back(
    plain: Client, caplog: pytest.LogCaptureFixture
) -> None:
    queue_of(plain, "bad")
    worker = Worker(plain, "q", first_delay_ms=100_000, poll_ms=50)

    @worker.handler
    def do(job: Job) -> None:
        raise DeadLetter("no")

    with worker:
        wait_for(lambda: worker.failed == 1)
    assert plain.topic("q").count == 1
    assert "no dead_letter" in caplog.text


def test_a_lease_lives_as_long_as_its_handler_runs(plain: Client) -> None:
    queue_of(plain, 1)
    may_end = threading.Event()
    deadlines: list[int] = []
    worker = Worker(plain, "q", lease_ms=150, poll_ms=50)

    @worker.handler
    def do(job: Job) -> None:
        deadlines.append(job.deadline_ms)
        assert may_end.wait(PATIENCE_S)

    with worker:
        wait_for(lambda: bool(deadlines))
        # Long after the first lease would have ended, no other worker gets the job.
        wait_for(lambda: time.time_ns() // 1_000_000 > deadlines[0] + 400)
        assert plain.claim("q", "other").claimed == []
        may_end.set()
        wait_for(lambda: is_empty(plain))
    assert worker.done == 1
    assert len(deadlines) == 1


def test_stop_finishes_what_runs_and_takes_nothing_more(plain: Client) -> None:
    queue_of(plain, 1, 2, 3)
    is_running, may_end = threading.Event(), threading.Event()
    worker = Worker(plain, "q", concurrency=1, poll_ms=10)

    @worker.handler
    def do(job: Job) -> None:
        is_running.set()
        assert may_end.wait(PATIENCE_S)

    worker.start()
    assert is_running.wait(PATIENCE_S)
    worker.stop()
    may_end.set()
    worker.join()
    assert worker.done == 1
    wait_for(lambda: counts_of(plain) == (2, 0))  # what was pushed meanwhile is back


def test_a_signal_in_the_middle_of_a_wait_stops_a_worker_that_claims() -> None:
    class InterruptedClock(SystemClock):
        def wait(self, event: threading.Event, timeout_ns: int) -> bool:
            with event._cond:  # type: ignore[attr-defined]  # as `threading.Event` does while it waits
                signal.raise_signal(signal.SIGTERM)
            return super().wait(event, timeout_ns)

    client = Client("http://127.0.0.1:9", retry=RetryPolicy(deadline_s=0))
    worker = Worker(client, "q", push=False, clock=InterruptedClock())
    worker.handler(lambda job: None)
    worker.run()
    assert worker.done == 0


def test_a_stopping_worker_keeps_no_jobs_from_others(plain: Client) -> None:
    queue_of(plain, "long")
    is_running, may_end = threading.Event(), threading.Event()
    worker = Worker(plain, "q", concurrency=3)

    @worker.handler
    def do(job: Job) -> None:
        assert job.data == "long"
        is_running.set()
        assert may_end.wait(PATIENCE_S)

    worker.start()
    assert is_running.wait(PATIENCE_S)
    wait_for(lambda: connections_of(plain) == 3)
    worker.stop()
    wait_for(lambda: connections_of(plain) == 1)  # the free ones have ended, the running one has not
    plain.append("q", "next")
    assert [job.data for job in plain.claim("q", "other").claimed] == ["next"]
    may_end.set()
    worker.join()
    assert worker.done == 1


def test_the_job_of_a_killed_worker_is_at_the_next_one_within_a_second(url: str, plain: Client) -> None:
    queue_of(plain, "x")
    seen: list[tuple[Any, int, float]] = []
    worker = Worker(plain, "q", lease_ms=600_000)
    worker.handler(lambda job: seen.append((job.data, job.deliveries, time.monotonic())))
    with worker_program(url, lease_ms=600_000) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started 1\n"
        with worker:
            wait_for(lambda: connections_of(plain) > 1)
            assert not seen
            killed_s = time.monotonic()
            process.send_signal(signal.SIGKILL)
            wait_for(lambda: is_empty(plain))
    ((data, deliveries, done_s),) = seen
    assert (data, deliveries) == ("x", 2)
    assert done_s - killed_s < 1


def test_without_push_the_job_of_a_killed_worker_comes_back_when_its_lease_ends(plain: Client) -> None:
    queue_of(plain, "x", "y")
    assert plain.claim("q", "gone", lease_ms=300).claimed
    seen: list[tuple[Any, int]] = []
    worker = Worker(plain, "q", push=False, poll_ms=20)
    worker.handler(lambda job: seen.append((job.data, job.deliveries)))
    with worker:
        wait_for(lambda: is_empty(plain))
        assert connections_of(plain) == 0
    assert sorted(seen) == [("x", 2), ("y", 1)]


def test_a_failure_tells_its_type_message_and_the_end_of_its_trace(plain: Client) -> None:
    queue_of(plain, "deep", "end")
    worker = Worker(plain, "q", first_delay_ms=100_000)

    def dig(depth: int) -> None:
        if depth == 0:
            raise KeyError("é" * 9000)
        dig(depth - 1)

    @worker.handler
    def do(job: Job) -> None:
        if job.data == "deep":
            dig(500)
        raise SystemExit("over")

    with worker:
        wait_for(lambda: worker.failed == 2)
    deep, ended = (plain.job("q", seq).last_error for seq in (1, 2))
    assert deep is not None and ended is not None
    assert (deep.type, deep.message) == ("KeyError", "'" + "é" * 999)
    assert len("".join((deep.type, deep.message, deep.trace)).encode()) < 8192
    assert deep.trace.endswith("é'\n")
    assert (ended.type, ended.message) == ("SystemExit", "over")
    assert "in do" in ended.trace
    assert error_of(ValueError("\ud800")).message == "?"


def test_sigterm_lets_a_worker_finish(url: str, plain: Client) -> None:
    queue_of(plain, "x", "y")
    # A lease that a busy machine lets end would give the job back while the worker finishes it.
    with worker_program(url, lease_ms=600_000) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "started 1\n"
        process.send_signal(signal.SIGTERM)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done 1\n"
        assert process.wait(PATIENCE_S) == 0
    wait_for(lambda: counts_of(plain) == (1, 0))


def test_connections_that_are_cut_leave_no_job_undone(
    url: str, plain: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "everlog.worker")
    queue_of(plain, *range(40))
    seen: set[int] = set()
    retry = RetryPolicy(first_pause_s=0.001, longest_pause_s=0.01)
    with FaultProxy(url, seed=5, most_bytes=3000) as proxy, Client(proxy.url, retry=retry) as client:
        worker = Worker(client, "q", concurrency=2, lease_ms=300, poll_ms=20)
        worker.handler(lambda job: seen.add(job.data))
        with worker:
            wait_for(lambda: is_empty(plain))
        assert proxy.cuts > 2
    assert seen == set(range(40))


def test_a_queue_that_is_none_ends_the_worker_with_the_reason(plain: Client) -> None:
    plain.put_topic("q")
    worker = Worker(plain, "q", poll_ms=50)
    worker.handler(lambda job: None)
    with pytest.raises(ApiFailed, match="q") as raised:
        worker.run()
    assert raised.value.code == "not_a_queue"


@given(st.integers(1, 100), st.integers(1, 5000), st.integers(5000, 10**6))
def test_pauses_double_up_to_a_bound(deliveries: int, first_ms: int, longest_ms: int) -> None:
    worker = Worker("http://127.0.0.1:1", "q", first_delay_ms=first_ms, longest_delay_ms=longest_ms)
    most_ms = min(first_ms * 2 ** (deliveries - 1), longest_ms)
    assert most_ms // 2 <= worker.delay_ms(deliveries) <= most_ms


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"lease_ms": 1}, {"poll_ms": 0}])
def test_settings_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        Worker("http://127.0.0.1:1", "q", **options)


def test_a_worker_without_a_handler_says_what_to_do() -> None:
    with pytest.raises(InvalidConfig, match=r"@worker\.handler"):
        Worker("http://127.0.0.1:1", "q").run()


def test_middleware_wraps_the_handler_the_first_one_outermost(plain: Client) -> None:
    queue_of(plain, "skipped", "fails", "done")
    seen: list[str] = []

    def outer(job: Job, call_next: CallNext) -> None:
        seen.append(f"outer {job.data}")
        try:
            call_next(job)
        except ValueError:
            raise DeadLetter("outer knows better") from None
        finally:
            seen.append("outer ends")

    worker = Worker(plain, "q", concurrency=1, middleware=[outer], first_delay_ms=60_000)

    @worker.middleware
    def inner(job: Job, call_next: CallNext) -> None:
        seen.append("inner")
        if job.data != "skipped":
            call_next(job)

    @worker.handler
    async def handle(job: Job) -> None:
        seen.append("handler")
        if job.data == "fails":
            raise ValueError

    with worker:
        wait_for(lambda: worker.done == 2 and worker.failed == 1)
    once = ["inner", "handler", "outer ends"]
    assert seen == [
        *("outer skipped", "inner", "outer ends"),
        *("outer fails", *once),
        *("outer done", *once),
    ]
    assert counts_of(plain) == (0, 0), "the failed one waits, since the queue has no dead_letter"


@pytest.mark.parametrize("push", [True, False])
@pytest.mark.parametrize("handler", [process_handlers.work, process_handlers.work_async])
def test_jobs_run_in_processes_and_a_killed_one_fails_its_own_job_alone(
    plain: Client, tmp_path: Path, push: bool, handler: Any
) -> None:
    file = str(tmp_path / "done")
    trace = f"00-{'ab' * 16}-{'cd' * 8}-01"
    plain.put_topic("q", {"type": "queue", "dead_letter": "dead"})
    with tracing.following(trace):
        plain.append("q", {"file": file})
    for data in ({"file": file, "dies": True}, {"raises": True}, {"hopeless": True}, *[{"file": file}] * 4):
        plain.append("q", data)
    worker = Worker(
        plain, "q", processes=2, push=push, poll_ms=50, first_delay_ms=1, longest_delay_ms=100_000
    )
    worker.handler(handler)
    with worker:
        wait_for(lambda: worker.done == 6)
        wait_for(lambda: len(plain.job("q", 3).attempts) > 0)
        plain.cancel_jobs("q", [3])
    lines = [line.split() for line in Path(file).read_text().splitlines()]
    assert sorted(int(seq) for seq, _, _ in lines) == [1, 2, 5, 6, 7, 8]
    assert str(os.getpid()) not in {pid for _, pid, _ in lines}
    assert [line[2] for line in lines if line[0] == "1"] == [trace]
    assert multiprocessing.active_children() == []
    assert [record.data for record in plain.diff("dead").records] == [{"hopeless": True}]


def test_the_attempt_of_a_killed_process_says_how_it_ended(plain: Client) -> None:
    queue_of(plain, {"dies": True}, {"raises": True})
    worker = Worker(plain, "q", processes=1, first_delay_ms=60_000)
    worker.handler(process_handlers.work)
    with worker:
        wait_for(lambda: worker.failed == 2)
    killed, raised = (plain.job("q", seq).last_error for seq in (1, 2))
    assert killed is not None and raised is not None
    assert killed.type == "everlog.client.handlers.ChildDied"
    assert "ended by signal 9 while it ran job 1" in killed.message
    assert (raised.type, raised.message) == ("ValueError", "no good")
    assert "process_handlers.py" in raised.trace, "the trace is that of the child"


def test_a_failed_job_waits_as_the_queue_says(plain: Client) -> None:
    queue_of(plain, 1, retry={"base_ms": 3_600_000})
    worker = Worker(plain, "q", first_delay_ms=1)

    @worker.handler
    def do(job: Job) -> None:
        raise ValueError

    with worker:
        wait_for(lambda: worker.failed == 1)
    job = plain.job("q", 1)
    assert job.run_at is not None and job.attempts
    assert job.run_at - job.attempts[0].ended_ts >= 3_000_000


def test_a_handler_that_blocks_is_killed_after_its_time(plain: Client, tmp_path: Path) -> None:
    started, file = tmp_path / "started", tmp_path / "done"
    queue_of(plain, {"started": str(started), "file": str(tmp_path / "never")}, {"file": str(file)})
    worker = Worker(plain, "q", processes=1, time_limit_ms=1500, first_delay_ms=60_000)
    worker.handler(process_handlers.work)
    with worker:
        wait_for(lambda: worker.failed == 1 and worker.done == 1)
    error = plain.job("q", 1).last_error
    assert error is not None
    assert error.type == "everlog.client.handlers.TimeLimitExceeded"
    assert "longer than 1.5 s for job 1" in error.message
    assert file.exists(), "the next job has run"
    wait_for(lambda: not is_alive(int(started.read_text())))
    for options in ({"time_limit_ms": 5}, {"time_limit_ms": 0, "processes": 1}):
        with pytest.raises(InvalidConfig, match="time_limit_ms"):
            Worker(plain, "q", **options)


@contextmanager
def process_worker(url: str) -> Iterator[subprocess.Popen[str]]:
    """A worker with child processes, in a process group of its own."""
    command = [sys.executable, "-m", "tests.client.process_handlers", url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_sigterm_to_the_whole_group_lets_child_processes_finish(
    url: str, plain: Client, tmp_path: Path
) -> None:
    started, file = tmp_path / "started", tmp_path / "done"
    queue_of(plain, {"started": str(started), "file": str(file)})
    with process_worker(url) as process:
        wait_for(lambda: started.exists() and bool(started.read_text()))
        os.killpg(process.pid, signal.SIGTERM)
        wait_for(lambda: connections_of(plain) == 1)  # the idle stream has ended: it is stopping
        assert is_alive(int(started.read_text()))
        file.touch()
        assert process.wait(PATIENCE_S) == 0
        assert process.stdout is not None
        assert process.stdout.read() == "done 1\n"
    assert is_empty(plain)


def test_the_handlers_of_a_killed_worker_end_with_it(url: str, plain: Client, tmp_path: Path) -> None:
    started = tmp_path / "started"
    queue_of(plain, {"started": str(started), "file": str(tmp_path / "never")})
    with process_worker(url) as process:
        wait_for(lambda: started.exists() and bool(started.read_text()))
        process.kill()
        wait_for(lambda: not is_alive(int(started.read_text())))
        wait_for(lambda: counts_of(plain) == (1, 0))


def test_a_killed_worker_with_processes_loses_no_job(url: str, plain: Client, tmp_path: Path) -> None:
    file = str(tmp_path / "done")
    queue_of(plain, *[{"file": file}] * 20)
    command = [sys.executable, "-m", "tests.client.process_handlers", url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: Path(file).exists())
    finally:
        process.kill()
        process.communicate()
    worker = Worker(plain, "q", processes=1)
    worker.handler(process_handlers.work)
    with worker:
        wait_for(lambda: is_empty(plain))
    assert {int(line.split()[0]) for line in Path(file).read_text().splitlines()} == set(range(1, 21))


def test_a_handler_that_no_process_can_load_is_refused() -> None:
    worker = Worker("http://127.0.0.1:1", "q", processes=1)
    worker.handler(lambda job: None)
    with pytest.raises(InvalidConfig, match="make it a function of a module"):
        worker.run()
