"""Spec section 3 between processes: no reader sleeps through a message, whatever the writer does."""

import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from everlog.clock import SystemClock
from everlog.fs import OsFs
from everlog.queue import BusySpin, FanInReader, Queue
from everlog.queue.control import ControlBlock
from everlog.queue.layout import CTRL_WAITERS_PENDING
from tests.support.files import UnsyncedFs
from tests.support.processes import Child, eventually, fresh_seed, sleeps
from tests.support.wakes import (
    WaitLog,
    doze,
    open_sleeper,
    post,
    post_to_all,
    reply,
    roll_and_die,
    sleep_in_fan_in,
    sleep_until_woken,
)

ROUND_TRIPS = 5_000
POKES = 25_000
DOZE_NS_MAX = 8_000
"""Longer than a reader needs from its last answer until it sleeps."""

ONE_PER_SEGMENT = 1024
FILLING = b"x" * 800
"""One record of this fills a segment of ONE_PER_SEGMENT bytes: every further append rolls."""


def create(*paths: str, segment_size: int = 4096) -> None:
    for path in paths:
        Queue.open_publisher(path, fs=UnsyncedFs(), segment_size=segment_size).close()


@contextmanager
def control_of(path: str) -> Iterator[ControlBlock]:
    control = ControlBlock.open(OsFs(), SystemClock(), path)
    try:
        yield control
    finally:
        control.close()


def await_sleep(child: Child, control: ControlBlock, waiters: int = 1) -> None:
    eventually(
        f"process {child.pid} is asleep as waiter number {waiters}",
        lambda: control.waiters_pending >= waiters and sleeps(child.pid),
    )


# --- No wake is lost -------------------------------------------------------------------------------------


def test_no_wake_is_lost_between_two_processes_that_answer_each_other_without_spinning(
    tmp_path: Path,
) -> None:
    seed = fresh_seed("ping-pong")
    ping, pong = str(tmp_path / "ping"), str(tmp_path / "pong")
    create(ping, pong)
    rng, log = random.Random(seed), WaitLog()
    with (
        Child(reply, ping, pong, ROUND_TRIPS, seed + 1) as peer,
        Queue.open_publisher(ping, fs=UnsyncedFs()) as writer,
        open_sleeper(pong) as reader,
    ):
        assert peer.receive() == "open"
        for seq in range(ROUND_TRIPS):
            post(writer, rng)
            assert log.next_of(reader).seq == seq
        reports = [log.report(), peer.receive()]
    assert [report.lost_wakes for report in reports] == [0, 0], reports
    # The stress is one: nearly every message found its reader asleep, or on its way there.
    assert all(report.waits > ROUND_TRIPS // 2 for report in reports), reports


@pytest.mark.parametrize("sources", [1, 3])
def test_no_wake_is_lost_when_the_message_comes_just_as_the_reader_falls_asleep(
    tmp_path: Path, sources: int
) -> None:
    seed = fresh_seed("dozing")
    pokes = [str(tmp_path / f"poke-{number}") for number in range(sources)]
    answer = str(tmp_path / "answer")
    create(*pokes, answer, segment_size=65536)
    rng = random.Random(seed)
    with ExitStack() as stack:
        sleeper = stack.enter_context(Child(doze, pokes, answer, POKES))
        writers = [stack.enter_context(Queue.open_publisher(path, fs=UnsyncedFs())) for path in pokes]
        reader = stack.enter_context(Queue.open_subscriber(answer, None, wait_strategy=BusySpin()))
        assert sleeper.receive() == "open"
        for seq in range(POKES):
            # Awake all the time, so the next poke comes while the sleeper is still lying down.
            post(rng.choice(writers), rng, DOZE_NS_MAX)
            assert reader.wait(60)
            assert reader.next().seq == seq
        report = sleeper.receive()
    assert report.lost_wakes == 0, report
    assert report.waits > POKES // 2, report


def test_no_wake_is_lost_with_eight_waiting_processes_and_a_fan_in_over_their_answers(tmp_path: Path) -> None:
    seed = fresh_seed("eight waiters")
    rounds, question = 1_000, str(tmp_path / "question")
    answers = [str(tmp_path / f"answer-{number}") for number in range(8)]
    create(question, *answers)
    rng, log = random.Random(seed), WaitLog()
    with ExitStack() as stack:
        writer = stack.enter_context(Queue.open_publisher(question, fs=UnsyncedFs()))
        peers = [
            stack.enter_context(Child(reply, question, path, rounds, seed + number))
            for number, path in enumerate(answers)
        ]
        for peer in peers:
            assert peer.receive() == "open"
        fan_in = FanInReader([stack.enter_context(open_sleeper(path)) for path in answers])
        for seq in range(rounds):
            post(writer, rng)
            answered = [log.next_of_many(fan_in) for _ in answers]
            assert sorted(index for index, _ in answered) == list(range(8))
            assert {view.seq for _, view in answered} == {seq}
        reports = [log.report(), *(peer.receive() for peer in peers)]
    assert [report.lost_wakes for report in reports] == [0] * 9, reports
    assert all(report.waits > rounds // 4 for report in reports), reports


def test_a_fan_in_over_three_writing_processes_sleeps_and_keeps_the_order_of_each(tmp_path: Path) -> None:
    seed = fresh_seed("three writers")
    count = 1_500
    paths = [str(tmp_path / name) for name in "abc"]
    create(*paths)
    log = WaitLog()
    seen: list[list[int]] = [[], [], []]
    with ExitStack() as stack:
        writers = [
            stack.enter_context(Child(post_to_all, [path], count, seed + number))
            for number, path in enumerate(paths)
        ]
        fan_in = FanInReader([stack.enter_context(open_sleeper(path)) for path in paths])
        for writer in writers:
            assert writer.receive() == "open"
        for writer in writers:
            writer.send("go")
        for _ in range(3 * count):
            index, view = log.next_of_many(fan_in)
            seen[index].append(view.seq)
    assert seen == [list(range(count))] * 3
    assert log.lost_wakes == 0, log.report()


def test_a_lost_wake_would_be_noticed_and_costs_no_more_than_the_bounded_sleep(tmp_path: Path) -> None:
    path = str(tmp_path / "queue")
    create(path)
    with (
        Child(sleep_until_woken, path, None) as sleeper,
        Queue.open_publisher(path) as writer,
        control_of(path) as control,
    ):
        assert sleeper.receive() == "open"
        sleeper.send("wait")
        await_sleep(sleeper, control)
        control.mapping.store_u32(CTRL_WAITERS_PENDING, 0)  # the writer sees no waiter
        writer.append(1, b"", time.monotonic_ns())
        seq, report = sleeper.receive()
        assert seq == 0
        assert report.lost_wakes == 1, report
        assert report.longest_ns < 10_000_000_000, report
        assert control.waiters_pending == 0


@pytest.mark.parametrize(("sources", "registered"), [(128, True), (129, False)])
def test_a_fan_in_registers_with_up_to_128_queues_and_looks_now_and_then_at_more(
    tmp_path: Path, sources: int, registered: bool
) -> None:
    paths = [str(tmp_path / str(number)) for number in range(sources)]
    create(*paths)
    with ExitStack() as stack:
        sleeper = stack.enter_context(Child(sleep_in_fan_in, paths))
        controls = [stack.enter_context(control_of(path)) for path in paths]
        assert sleeper.receive() == "open"
        for source in (0, sources // 2, sources - 1):
            sleeper.send("wait")
            eventually("the fan-in waits", lambda: sleeps(sleeper.pid))
            if registered:
                eventually(
                    "it is known to all", lambda: all(control.waiters_pending == 1 for control in controls)
                )
            else:
                assert [control.waiters_pending for control in controls] == [0] * sources
            with Queue.open_publisher(paths[source], fs=UnsyncedFs()) as writer:
                writer.append(1, b"", time.monotonic_ns())
                assert sleeper.receive()[:2] == (source, 0)


# --- Sleeping through the writer's troubles --------------------------------------------------------------


def test_a_reader_asleep_while_the_writer_rolls_and_dies_and_another_comes_reads_on(tmp_path: Path) -> None:
    path = str(tmp_path / "queue")
    create(path, segment_size=ONE_PER_SEGMENT)
    with Child(sleep_until_woken, path, "sleeper") as sleeper, control_of(path) as control:
        assert sleeper.receive() == "open"
        for seq in range(6):
            sleeper.send("wait")
            await_sleep(sleeper, control)
            if seq > 0:
                head = control.head()[0]
                with Child(roll_and_die, path, FILLING) as victim:
                    assert victim.receive() == "open"
                    assert victim.wait_for_death() == -signal.SIGKILL
                assert control.head()[0] == head + 1
                sleeper.check()
            with Queue.open_publisher(path, fs=UnsyncedFs()) as writer:
                assert writer.append(1, FILLING, time.monotonic_ns()) == seq
            assert sleeper.receive(timeout_s=10)[0] == seq


@pytest.mark.parametrize("sleepers", [1, 8])
def test_the_first_append_of_a_new_writer_wakes_who_slept_through_its_opening(
    tmp_path: Path, sleepers: int
) -> None:
    path = str(tmp_path / "queue")
    restarts = 20
    create(path)
    with ExitStack() as stack:
        control = stack.enter_context(control_of(path))
        children = [stack.enter_context(Child(sleep_until_woken, path, None)) for _ in range(sleepers)]
        for child in children:
            assert child.receive() == "open"
        for seq in range(restarts):
            for child in children:
                child.send("wait")
            for child in children:
                await_sleep(child, control)
            with Queue.open_publisher(path, fs=UnsyncedFs()) as writer:
                writer.append(1, b"", time.monotonic_ns())
                answers = [child.receive() for child in children]
            assert [answer[0] for answer in answers] == [seq] * sleepers
    lost = [report.lost_wakes for _, report in answers]
    # Several sleepers may take back each other's registration in the moment of the reset.
    assert max(lost) <= (0 if sleepers == 1 else restarts // 10), lost


def test_a_reader_killed_in_its_sleep_leaves_a_count_that_the_next_writer_resets(tmp_path: Path) -> None:
    path = str(tmp_path / "queue")
    create(path)
    with control_of(path) as control:
        with Queue.open_publisher(path) as writer:
            for waiters in (1, 2, 3):
                with Child(sleep_until_woken, path, None) as sleeper:
                    assert sleeper.receive() == "open"
                    for seq in range(waiters - 1):  # what was appended before
                        sleeper.send("wait")
                        assert sleeper.receive()[0] == seq
                    sleeper.send("wait")
                    await_sleep(sleeper, control, waiters)
                    sleeper.kill()
                assert control.waiters_pending == waiters
                assert writer.append(1, b"") == waiters - 1
        with Queue.open_publisher(path) as writer:
            assert control.waiters_pending == 0
            assert writer.append(1, b"") == 3
        with open_sleeper(path) as reader:
            assert [view.seq for view in reader] == [0, 1, 2, 3]
            assert not reader.wait(0.01)
        assert control.waiters_pending == 0
