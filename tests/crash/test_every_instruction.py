"""Sections 2.3 and 3 of the spec, instruction by instruction: nothing is lost, no wake and no record.

A stress meets a window of a few nanoseconds only by luck. Here one side is stopped after each machine
instruction of its way, in turn, and the other side does all of its part.
"""

import itertools
import time
from pathlib import Path

import pytest

from everlog.clock import SystemClock
from everlog.fs import OsFs
from everlog.native.queue import ring
from everlog.queue import Queue
from everlog.queue.control import ControlBlock
from tests.support.crashes import kill_at_every_instruction
from tests.support.files import UnsyncedFs
from tests.support.processes import Child, eventually, fresh_seed, sleeps
from tests.support.stepping import Stepper
from tests.support.wakes import append_in_steps, read_in_steps, sleep_in_steps, sleep_until_woken
from tests.support.workloads import ABORTED, APPEND, ARRAY, IN_PLACE, MANY, WriterPlan

pytestmark = pytest.mark.crash


def test_a_message_that_comes_at_any_instruction_of_falling_asleep_wakes_the_reader(tmp_path: Path) -> None:
    path = str(tmp_path / "queue")
    with (
        Queue.open_publisher(path, fs=UnsyncedFs(), segment_size=65536) as writer,
        Child(sleep_in_steps, path) as sleeper,
    ):
        assert sleeper.receive() == "open"
        with Stepper(sleeper.pid, ring) as stepper:
            for instruction in itertools.count():
                sleeper.send("wait")
                stepper.await_mark()
                awake = stepper.step_inside(instruction)
                seq = writer.append(1, b"", time.monotonic_ns())
                if awake:
                    stepper.run()
                else:
                    stepper.run_when_woken()
                assert sleeper.receive() == (seq, False), f"a wake was lost at instruction {instruction}"
                if not awake:
                    break
    print(f"{instruction} instructions until the reader sleeps")
    assert instruction > 100, "the way to sleep is longer than that"


def test_a_reader_that_falls_asleep_at_any_instruction_of_an_append_is_woken(tmp_path: Path) -> None:
    path = str(tmp_path / "queue")
    Queue.open_publisher(path, fs=UnsyncedFs(), segment_size=65536).close()
    control = ControlBlock.open(OsFs(), SystemClock(), path)
    with Child(append_in_steps, path) as writer, Child(sleep_until_woken, path, None) as sleeper:
        assert writer.receive() == sleeper.receive() == "open"
        with Stepper(writer.pid, ring) as stepper:
            for instruction in itertools.count():
                writer.send("append")
                stepper.await_mark()
                unfinished = stepper.step_inside(instruction, writer.has_answered)
                sleeper.send("wait")
                eventually(
                    "the reader sleeps or has its message",
                    lambda: sleeper.has_answered() or (control.waiters_pending and sleeps(sleeper.pid)),
                )
                if unfinished:
                    stepper.run()
                assert writer.receive() == "appended"
                seq, report = sleeper.receive()
                assert (seq, report.lost_wakes) == (instruction, 0), f"lost at instruction {instruction}"
                if not unfinished:
                    break
    control.close()
    print(f"{instruction} instructions of an append")
    assert instruction > 100, "an append is longer than that"


def test_records_and_a_roll_that_come_at_any_instruction_of_a_read_are_not_missed(tmp_path: Path) -> None:
    path = str(tmp_path / "queue")
    burst = 10  # more than a segment holds
    with (
        Queue.open_publisher(path, fs=UnsyncedFs(), segment_size=1024) as writer,
        Child(read_in_steps, path) as reader,
    ):
        assert reader.receive() == "open"
        with Stepper(reader.pid, ring) as stepper:
            for instruction in itertools.count():
                reader.send("read")
                stepper.await_mark()
                unfinished = stepper.step_inside(instruction, reader.has_answered)
                first = writer.append_many(1, [bytes(64)] * burst)
                if not unfinished:
                    break
                stepper.run()
                seen = reader.receive()
                if not seen:  # the look was over before the records came
                    reader.send("read")
                    stepper.await_mark()
                    stepper.run()
                    seen = reader.receive()
                assert seen == list(range(first, first + burst)), f"at instruction {instruction}"
    print(f"{instruction} instructions of a read that finds nothing")
    assert instruction > 30, "a read is longer than that"


def test_a_writer_killed_at_any_instruction_of_an_append_or_roll_leaves_what_it_had_committed(
    tmp_path: Path,
) -> None:
    seed = fresh_seed("every instruction")
    plan = WriterPlan(seed, 300, batch_max=5, settings={"segment_size": 1024, "retention": False})
    kinds = (APPEND, ABORTED, MANY, IN_PLACE, ARRAY)
    states = kill_at_every_instruction(tmp_path / "queue", plan, kinds, (ring,))
    print(f"{states} states")
    assert states > 50, "appends and rolls change the files more often than that"
