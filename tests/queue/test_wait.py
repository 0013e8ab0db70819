"""Spec 3: waiting. Which readers sleep, what wakes them, and that no wake-up is needless."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from everlog.clock import NS_PER_S, TestClock
from everlog.errors import Corrupt, EverlogError, SegmentMissing
from everlog.queue import BusySpin, QueueReader, Sleep, SpinThenPark, WaitStrategy
from everlog.queue.layout import CTRL_NOTIFY_SEQ, CTRL_WAITERS_PENDING
from tests.support.command_lines import run_python
from tests.support.processes import eventually
from tests.support.queues import SMALL, control_u32, flip, open_reader, open_writer, overwrite, segment_file

STRATEGIES: list[WaitStrategy] = [BusySpin(), SpinThenPark(), SpinThenPark(0), Sleep(), Sleep(5)]


def waiting(reader: QueueReader, outcome: list[object], timeout_s: float | None = 60) -> threading.Thread:
    """Let a thread wait, and note how the wait ended."""

    def wait() -> None:
        try:
            outcome.append(reader.wait(timeout_s))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def asleep(path: Path, count: int = 1) -> None:
    """Wait until so many readers have registered as sleepers."""
    eventually(f"{count} sleeping readers", lambda: control_u32(path, CTRL_WAITERS_PENDING) == count)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_wait_returns_at_once_if_there_is_something(tmp_path: Path, strategy: WaitStrategy) -> None:
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q", wait_strategy=strategy) as reader:
        writer.append(1, b"x")
        assert reader.wait(0) is True
        assert reader.wait(None) is True
        view = reader.next()
        assert view is not None, "the wait has consumed nothing"
        assert bytes(view) == b"x"


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("timeout_s", [0, -1, 0.02])
def test_a_wait_without_result_ends_after_its_timeout(
    tmp_path: Path, strategy: WaitStrategy, timeout_s: float
) -> None:
    with open_writer(tmp_path / "q"), open_reader(tmp_path / "q", wait_strategy=strategy) as reader:
        start = time.monotonic()
        assert reader.wait(timeout_s) is False
        assert time.monotonic() - start >= timeout_s
        assert control_u32(tmp_path / "q", CTRL_WAITERS_PENDING) == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("timeout_s", [60, None])
def test_a_message_ends_the_wait(tmp_path: Path, strategy: WaitStrategy, timeout_s: float | None) -> None:
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q", wait_strategy=strategy) as reader:
        outcome: list[object] = []
        thread = waiting(reader, outcome, timeout_s)
        writer.append(1, b"x")
        thread.join()
        assert outcome == [True]
        assert [bytes(view) for view in reader] == [b"x"]


def test_a_sleeping_reader_is_counted_and_woken_without_delay(tmp_path: Path) -> None:
    """No sleep lasts longer than a second, so only a fast return shows that it was woken."""
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q") as reader:
        durations = []
        for _ in range(5):
            outcome: list[object] = []
            thread = waiting(reader, outcome)
            asleep(tmp_path / "q")
            start = time.monotonic()
            writer.append(1, b"x")
            thread.join()
            durations.append(time.monotonic() - start)
            assert outcome == [True]
            list(reader)
        assert min(durations) < 0.5
    assert control_u32(tmp_path / "q", CTRL_WAITERS_PENDING) == 0


def test_every_sleeper_is_woken_by_one_message(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer:
        readers = [open_reader(tmp_path / "q", f"r{number}") for number in range(4)]
        outcome: list[object] = []
        threads = [waiting(reader, outcome) for reader in readers]
        asleep(tmp_path / "q", 4)
        writer.append(1, b"x")
        for thread in threads:
            thread.join()
        assert outcome == [True] * 4
        for reader in readers:
            reader.close()
    assert control_u32(tmp_path / "q", CTRL_WAITERS_PENDING) == 0


@pytest.mark.parametrize("strategy", [BusySpin(), Sleep()])
def test_a_reader_that_spins_or_polls_is_not_counted(tmp_path: Path, strategy: WaitStrategy) -> None:
    """The writer must not pay for a needless wake-up."""
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q", wait_strategy=strategy) as reader:
        outcome: list[object] = []
        thread = waiting(reader, outcome)
        for _ in range(200):
            assert control_u32(tmp_path / "q", CTRL_WAITERS_PENDING) == 0
        writer.append(1, b"x")
        thread.join()
        assert outcome == [True]


def test_every_append_raises_notify_seq_by_one(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", segment_size=2**16) as writer:
        for append in (
            lambda: writer.append(1, b"x"),
            lambda: writer.append_in_place(1, 1, lambda view: None),
            lambda: writer.append_many(1, [b"x"] * 9),
            lambda: writer.append_array(1, memoryview(b"123")),  # type: ignore[arg-type]
        ):
            before = control_u32(tmp_path / "q", CTRL_NOTIFY_SEQ)
            append()
            assert control_u32(tmp_path / "q", CTRL_NOTIFY_SEQ) == before + 1


def test_notify_seq_may_wrap(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q") as reader:
        overwrite(tmp_path / "q/control.meta", CTRL_NOTIFY_SEQ, b"\xff" * 4)
        outcome: list[object] = []
        thread = waiting(reader, outcome)
        asleep(tmp_path / "q")
        writer.append(1, b"x")
        thread.join()
        assert outcome == [True]
        assert control_u32(tmp_path / "q", CTRL_NOTIFY_SEQ) == 0


NO_WAKE = """
import ctypes, struct, sys
from everlog.queue import Queue
writer = Queue.open_publisher(sys.argv[1], segment_size=2**20)
writer.append(1, b"x")

# From here on the kernel kills this thread's process at a FUTEX_WAKE of the shared kind (operation 1,
# without the PRIVATE flag, which all locks of the interpreter carry).
FUTEX, KILL, ALLOW = int(sys.argv[2]), 0x80000000, 0x7FFF0000
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
steps = [(LOAD, 0, 0, 0), (EQUAL, 0, 3, FUTEX), (LOAD, 0, 0, 24), (EQUAL, 0, 1, 1), (RETURN, 0, 0, KILL),
         (RETURN, 0, 0, ALLOW)]
program = b"".join(struct.pack("<HBBI", *step) for step in steps)
buffer = ctypes.create_string_buffer(program, len(program))
filter = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(steps), ctypes.addressof(buffer)), 16)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0, "no_new_privs"
assert libc.prctl(22, 2, filter, 0, 0) == 0, f"seccomp: {ctypes.get_errno()}"

for _ in range(1000):
    writer.append(1, b"x")
writer.append_many(1, [b"x"] * 10)
print("no reader was woken", flush=True)
with open(sys.argv[1] + "/control.meta", "r+b") as control:
    control.seek(388)
    control.write(b"\\x01")
writer.append(1, b"x")
print("a reader should have been woken", flush=True)
"""


def test_no_wake_reaches_the_kernel_unless_a_waiter_is_registered(tmp_path: Path) -> None:
    futex = {"x86_64": 202, "aarch64": 98}[os.uname().machine]
    ended = run_python(NO_WAKE, tmp_path / "q", futex)
    assert ended.stdout == "no reader was woken\n", ended.stderr
    assert ended.returncode == -signal.SIGSYS, "the wake for a registered waiter does reach it"


def test_a_count_left_by_a_killed_reader_is_reset_by_the_next_writer(tmp_path: Path) -> None:
    open_writer(tmp_path / "q").close()
    overwrite(tmp_path / "q/control.meta", CTRL_WAITERS_PENDING, b"\x07\0\0\0")
    before = control_u32(tmp_path / "q", CTRL_NOTIFY_SEQ)
    with open_writer(tmp_path / "q"):
        assert control_u32(tmp_path / "q", CTRL_WAITERS_PENDING) == 0
        assert control_u32(tmp_path / "q", CTRL_NOTIFY_SEQ) > before


def test_a_sleeper_whose_count_was_reset_still_wakes(tmp_path: Path) -> None:
    """Its writer closes, another comes and resets the count while it sleeps; at worst it sleeps a second."""
    open_writer(tmp_path / "q").close()
    with open_reader(tmp_path / "q") as reader:
        outcome: list[object] = []
        thread = waiting(reader, outcome)
        asleep(tmp_path / "q")
        with open_writer(tmp_path / "q") as writer:
            writer.append(1, b"x")
            thread.join()
        assert outcome == [True]
    assert control_u32(tmp_path / "q", CTRL_WAITERS_PENDING) == 0


def test_a_reader_asleep_at_the_end_of_a_segment_wakes_for_a_message_in_the_next(tmp_path: Path) -> None:
    for left in (0, 64, 128):
        path = tmp_path / f"q{left}"
        with open_writer(path, retention=False) as writer, open_reader(path) as reader:
            writer.append(1, bytes(SMALL - 128 - left))
            list(reader)
            outcome: list[object] = []
            thread = waiting(reader, outcome)
            asleep(path)
            writer.append(1, bytes(SMALL - 128))
            thread.join()
            assert outcome == [True]
            assert [view.segment_id for view in reader] == [1]


def test_a_roll_without_a_message_is_nothing_to_read(tmp_path: Path) -> None:
    """Padding and a seal are stepped over; the wait goes on in the next segment."""
    with open_writer(tmp_path / "q", retention=False) as writer, open_reader(tmp_path / "q") as reader:
        writer.append(1, b"x")
        list(reader)

        def fail(view: memoryview) -> None:
            raise LookupError

        with pytest.raises(LookupError):
            writer.append_in_place(1, SMALL - 128, fail)
        assert writer.segment_id == 1, "the roll has happened, the record has not"
        assert reader.wait(0) is False
        assert reader.position == (1, 64)
        assert reader.wait(0.01) is False
        writer.append(1, b"y")
        assert reader.wait(0) is True
        assert [bytes(view) for view in reader] == [b"y"]


def test_damage_ends_a_wait_so_that_reading_can_report_it(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q") as reader:
        writer.append(1, b"x")
        flip(segment_file(tmp_path / "q", 0), 128)
        assert reader.wait(1) is True
        with pytest.raises(Corrupt):
            reader.next()


def test_a_next_segment_that_is_gone_ends_a_wait_with_the_error(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", retention=False) as writer, open_reader(tmp_path / "q") as reader:
        writer.append(1, bytes(SMALL - 128))
        list(reader)
        outcome: list[object] = []
        thread = waiting(reader, outcome)
        asleep(tmp_path / "q")
        writer.append(1, b"x")
        thread.join()
        assert outcome == [True]
        list(reader)
        writer.append(1, bytes(SMALL - 128))
        segment_file(tmp_path / "q", 2).unlink()
        with pytest.raises(SegmentMissing):
            reader.wait(1)


def test_a_waiting_reader_gives_signs_of_life(tmp_path: Path) -> None:
    clock = TestClock()
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q", clock=clock) as reader:
        before = (tmp_path / "q/readers/alpha.meta").read_bytes()
        outcome: list[object] = []
        thread = waiting(reader, outcome)
        asleep(tmp_path / "q")
        clock.advance_ns(2 * NS_PER_S)
        eventually("a heartbeat", lambda: (tmp_path / "q/readers/alpha.meta").read_bytes() != before)
        writer.append(1, b"x")
        thread.join()
        assert outcome == [True]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_other_threads_run_while_a_reader_waits(tmp_path: Path, strategy: WaitStrategy) -> None:
    """The GIL is released, also while spinning."""
    counted = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal counted
        while not stop.is_set():
            counted += 1

    with open_writer(tmp_path / "q"), open_reader(tmp_path / "q", wait_strategy=strategy) as reader:
        thread = threading.Thread(target=count)
        thread.start()
        eventually("the other thread to run", lambda: counted > 0)
        before = counted
        assert reader.wait(0.1) is False
        progress = counted - before
        stop.set()
        thread.join()
    assert progress > 1000


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_signal_handler_runs_during_a_wait_and_may_end_it(tmp_path: Path, strategy: WaitStrategy) -> None:
    calls = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise InterruptedError("enough")

    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q", wait_strategy=strategy) as reader:
        previous: Callable[..., object] | int | None = signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        try:
            with pytest.raises(InterruptedError, match="enough"):
                reader.wait(60)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
        assert calls >= 3
        assert control_u32(tmp_path / "q", CTRL_WAITERS_PENDING) == 0
        writer.append(1, b"x")
        assert reader.wait(1) is True
        assert [bytes(view) for view in reader] == [b"x"]


def test_a_timeout_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q") as reader:
        with pytest.raises(TypeError):
            reader.wait("soon")  # type: ignore[arg-type]
        assert reader.wait(0) is False
        rescue = threading.Timer(0.2, writer.append, (1, b"x"))  # should the wait begin after all
        rescue.start()
        try:
            with pytest.raises((ValueError, EverlogError)):
                reader.wait(float("nan"))
        finally:
            rescue.join()
