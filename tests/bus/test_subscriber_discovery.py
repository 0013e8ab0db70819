"""SubscriberDiscovery: section 5.2 and the disconnect reasons of section 4.

The writer is a real process. The subscriber's clock stands still unless a test moves it, so
nothing here depends on how fast the machine is.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from everlog.bus import Connected, Disconnected, SubscriberDiscovery, Waiting
from everlog.clock import NS_PER_S, TestClock
from everlog.errors import InvalidConfig, ReaderAlreadyActive, SegmentMissing
from everlog.queue import DisconnectReason, Queue, QueueReader
from everlog.queue.layout import CONTROL_FILE, CTRL_INIT_STATE, INIT_STATE_INITIALIZING
from tests.bus.conftest import Spawn
from tests.support.command_lines import Holder
from tests.support.files import hooked_fs

HALF_A_SECOND_NS = NS_PER_S // 2
FIVE_SECONDS_NS = 5 * NS_PER_S  # the default time to live of a writer
AFTER_THE_TTL_NS = 3600 * NS_PER_S

WRITER = """
import sys
from everlog.queue import Queue
with Queue.open_publisher(sys.argv[1], segment_size=4096) as writer:
    writer.append(1, b"one")
    print("open", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue"


@pytest.fixture
def clock() -> TestClock:
    """Starts at the real time, since the heartbeats of the writer process are real."""
    return TestClock(wall_ns=time.time_ns())


@pytest.fixture
def discovery(path: Path, clock: TestClock) -> SubscriberDiscovery:
    return SubscriberDiscovery(path, "strategy", poll_interval_s=0, clock=clock)


def start_writer(spawn: Spawn, path: Path) -> Holder:
    child = spawn(WRITER, path)
    assert child.read_line() == "open"
    return child


def connect(discovery: SubscriberDiscovery) -> QueueReader:
    [event] = discovery.poll(None)
    assert isinstance(event, Connected)
    return event.reader


def write_one(path: Path) -> None:
    with Queue.open_publisher(path, segment_size=4096) as writer:
        writer.append(1, b"one")


def test_without_a_queue_it_waits_and_creates_nothing(discovery: SubscriberDiscovery, path: Path) -> None:
    assert discovery.poll(None) == [Waiting()]
    assert not path.exists()


def test_a_queue_that_is_still_being_initialised_is_waited_for(
    discovery: SubscriberDiscovery, path: Path
) -> None:
    write_one(path)
    control = bytearray((path / CONTROL_FILE).read_bytes())
    control[CTRL_INIT_STATE] = INIT_STATE_INITIALIZING
    (path / CONTROL_FILE).write_bytes(control)
    assert discovery.poll(None) == [Waiting()]


def test_at_every_step_of_the_creation_of_a_queue_it_waits_or_connects_but_never_fails(
    discovery: SubscriberDiscovery, path: Path
) -> None:
    steps: list[type] = []

    def look(operation: str, arguments: tuple[object, ...]) -> None:
        if threading.current_thread() is threading.main_thread():  # the writer's workers have files too
            [event] = discovery.poll(None)
            steps.append(type(event))
            if isinstance(event, Connected):
                event.reader.close()

    with Queue.open_publisher(path, segment_size=4096, fs=hooked_fs(look)):
        connected = steps.count(Connected)
        assert 0 < connected < len(steps)
        assert steps == [Waiting] * (len(steps) - connected) + [Connected] * connected


def test_a_queue_that_can_be_opened_is_connected_with_the_named_reader(
    discovery: SubscriberDiscovery, path: Path
) -> None:
    write_one(path)
    with connect(discovery) as reader:
        assert reader.name == "strategy"
        assert [bytes(message) for message in reader] == [b"one"]


def test_the_start_mode_is_the_one_asked_for(path: Path) -> None:
    write_one(path)
    with connect(SubscriberDiscovery(path, "late", start="latest", poll_interval_s=0)) as reader:
        assert list(reader) == []


def test_an_anonymous_reader_leaves_no_trace(path: Path) -> None:
    write_one(path)
    with connect(SubscriberDiscovery(path, None, poll_interval_s=0)) as reader:
        assert len(list(reader)) == 1
    assert not (path / "readers").exists()


def test_the_first_poll_looks_and_the_next_does_nothing_until_500_ms_have_passed(
    path: Path, clock: TestClock
) -> None:
    discovery = SubscriberDiscovery(path, "strategy", clock=clock)
    assert discovery.poll(None) == [Waiting()]
    write_one(path)
    assert discovery.poll(None) == []
    clock.advance_ns(HALF_A_SECOND_NS - 1)
    assert discovery.poll(None) == []
    clock.advance_ns(1)
    connect(discovery).close()


def test_the_interval_also_holds_back_the_look_at_a_reader(
    path: Path, clock: TestClock, spawn: Spawn
) -> None:
    child = start_writer(spawn, path)
    discovery = SubscriberDiscovery(path, "strategy", poll_interval_s=7200, clock=clock)
    with connect(discovery) as reader:
        child.kill()
        clock.advance_ns(AFTER_THE_TTL_NS)
        assert discovery.poll(reader) == []
        clock.advance_ns(AFTER_THE_TTL_NS)
        assert discovery.poll(reader) == [Disconnected(DisconnectReason.WRITER_LOCK_LOST)]


def test_an_interval_of_zero_means_always(discovery: SubscriberDiscovery) -> None:
    assert [discovery.poll(None) for _ in range(3)] == [[Waiting()]] * 3


def test_while_the_writer_lives_there_is_nothing_to_report(
    discovery: SubscriberDiscovery, path: Path, spawn: Spawn
) -> None:
    start_writer(spawn, path)
    with connect(discovery) as reader:
        assert discovery.poll(reader) == []


def test_a_killed_writer_is_reported_once_its_heartbeat_is_older_than_the_ttl(
    discovery: SubscriberDiscovery, path: Path, clock: TestClock, spawn: Spawn
) -> None:
    child = start_writer(spawn, path)
    with connect(discovery) as reader:
        child.kill()
        clock.set_wall_ns(reader.writer_status().last_heartbeat_ns + FIVE_SECONDS_NS)
        assert discovery.poll(reader) == []
        clock.advance_ns(1)
        assert discovery.poll(reader) == [Disconnected(DisconnectReason.WRITER_LOCK_LOST)]


def test_a_stopped_writer_is_reported_as_silent_and_forgiven_when_it_goes_on(
    discovery: SubscriberDiscovery, path: Path, clock: TestClock, spawn: Spawn
) -> None:
    child = start_writer(spawn, path)
    with connect(discovery) as reader:
        child.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.process.pid, os.WSTOPPED)
        heartbeat_ns = reader.writer_status().last_heartbeat_ns
        clock.set_wall_ns(heartbeat_ns + FIVE_SECONDS_NS)
        assert discovery.poll(reader) == []
        clock.advance_ns(1)
        assert discovery.poll(reader) == [Disconnected(DisconnectReason.HEARTBEAT_STALE)]
        child.process.send_signal(signal.SIGCONT)
        deadline_s = time.monotonic() + 30
        while reader.writer_status().last_heartbeat_ns == heartbeat_ns:
            assert time.monotonic() < deadline_s, "an idle writer must show a heartbeat every second"
            os.sched_yield()
        assert discovery.poll(reader) == []


def test_a_deleted_segment_is_reported_whatever_the_writer_does(
    discovery: SubscriberDiscovery, path: Path, spawn: Spawn
) -> None:
    start_writer(spawn, path)
    with connect(discovery) as reader:
        (path / "000000000.q").unlink()
        assert discovery.poll(reader) == [Disconnected(DisconnectReason.SEGMENT_MISSING)]


def test_it_reports_as_long_as_the_application_keeps_the_reader_and_never_closes_it(
    discovery: SubscriberDiscovery, path: Path, clock: TestClock, spawn: Spawn
) -> None:
    child = start_writer(spawn, path)
    with connect(discovery) as reader:
        child.kill()
        clock.advance_ns(AFTER_THE_TTL_NS)
        assert discovery.poll(reader) == discovery.poll(reader) != []
        assert [bytes(message) for message in reader] == [b"one"]


def test_after_a_disconnect_the_application_closes_its_reader_and_is_connected_to_the_new_writer(
    discovery: SubscriberDiscovery, path: Path, clock: TestClock, spawn: Spawn
) -> None:
    first = start_writer(spawn, path)
    reader = connect(discovery)
    assert [message.seq for message in reader] == [0]
    reader.commit()
    first_epoch = reader.writer_epoch
    first.kill()
    clock.advance_ns(AFTER_THE_TTL_NS)
    assert len(discovery.poll(reader)) == 1
    reader.close()
    clock.set_wall_ns(time.time_ns())
    start_writer(spawn, path)
    with connect(discovery) as reader:
        assert discovery.poll(reader) == []
        assert reader.writer_epoch > first_epoch
        assert [message.seq for message in reader] == [1]


def test_a_reader_name_that_is_still_open_is_an_error(discovery: SubscriberDiscovery, path: Path) -> None:
    write_one(path)
    with connect(discovery), pytest.raises(ReaderAlreadyActive):
        discovery.poll(None)


def test_a_strict_reader_whose_segment_is_gone_is_an_error_not_a_silent_skip(
    discovery: SubscriberDiscovery, path: Path
) -> None:
    with Queue.open_publisher(path, segment_size=4096, retention=False) as writer:
        writer.append(1, b"one")
        with connect(discovery) as reader:
            reader.commit()
        for _ in range(4):
            writer.append(1, bytes(2000))
    (path / "000000000.q").unlink()
    with pytest.raises(SegmentMissing):
        discovery.poll(None)


@pytest.mark.parametrize("interval_s", [-0.1, float("nan"), float("inf")])
def test_an_interval_that_cannot_work_is_refused(path: Path, interval_s: float) -> None:
    with pytest.raises(InvalidConfig, match="poll_interval_s"):
        SubscriberDiscovery(path, "strategy", poll_interval_s=interval_s)
