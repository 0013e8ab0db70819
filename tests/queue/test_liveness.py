"""Spec 4: is the writer there? Status and disconnect reasons, with the clock in the test's hands."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from everlog.clock import NS_PER_S, TestClock
from everlog.queue import DisconnectReason, QueueReader, WriterStatus
from everlog.queue.layout import CTRL_WRITER_HEARTBEAT_NS
from everlog.queue.writer_lock import process_start_ticks
from tests.support.queues import name_dead_writer, open_reader, open_writer, overwrite, segment_file

TTL_S = 5.0
HEARTBEAT_NS = 1_700_000_000 * NS_PER_S


@pytest.fixture
def clock() -> TestClock:
    """The reader's clock; the writer has one that stands still."""
    return TestClock(HEARTBEAT_NS)


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """A queue whose writer has closed; its lock names this process, which lives."""
    with open_writer(tmp_path / "q", clock=TestClock(HEARTBEAT_NS)) as writer:
        writer.append(1, b"x")
    return tmp_path / "q"


@pytest.fixture
def reader(queue: Path, clock: TestClock) -> Iterator[QueueReader]:
    with open_reader(queue, clock=clock) as opened:
        yield opened


def set_heartbeat(queue: Path, heartbeat_ns: int) -> None:
    overwrite(queue / "control.meta", CTRL_WRITER_HEARTBEAT_NS, heartbeat_ns.to_bytes(8, "little"))


def test_a_fresh_writer_is_alive_and_connected(reader: QueueReader) -> None:
    assert reader.writer_status() == WriterStatus(True, HEARTBEAT_NS, int(TTL_S * NS_PER_S))
    assert reader.detect_disconnect() is None


def test_a_live_owner_is_alive_whatever_its_heartbeat(reader: QueueReader, clock: TestClock) -> None:
    clock.advance_ns(1000 * NS_PER_S)
    assert reader.writer_status().alive


def test_a_live_owner_without_heartbeat_for_longer_than_the_ttl_is_stale(
    reader: QueueReader, clock: TestClock
) -> None:
    clock.advance_ns(int(TTL_S * NS_PER_S))
    assert reader.detect_disconnect(TTL_S) is None, "exactly the TTL is still fresh"
    clock.advance_ns(1)
    assert reader.detect_disconnect(TTL_S) is DisconnectReason.HEARTBEAT_STALE
    assert reader.detect_disconnect(TTL_S + 1) is None


def test_a_dead_owner_with_a_fresh_heartbeat_counts_as_alive(queue: Path, reader: QueueReader) -> None:
    name_dead_writer(queue)
    assert reader.writer_status().alive
    assert reader.detect_disconnect() is None


def test_a_dead_owner_without_heartbeat_for_longer_than_the_ttl_has_lost_the_lock(
    queue: Path, reader: QueueReader, clock: TestClock
) -> None:
    name_dead_writer(queue)
    clock.advance_ns(int(TTL_S * NS_PER_S))
    assert reader.writer_status(TTL_S).alive
    assert reader.detect_disconnect(TTL_S) is None
    clock.advance_ns(1)
    assert not reader.writer_status(TTL_S).alive
    assert reader.detect_disconnect(TTL_S) is DisconnectReason.WRITER_LOCK_LOST


def test_a_dead_owner_that_never_gave_a_heartbeat_has_lost_the_lock(queue: Path, reader: QueueReader) -> None:
    name_dead_writer(queue)
    set_heartbeat(queue, 0)
    assert not reader.writer_status().alive
    assert reader.detect_disconnect() is DisconnectReason.WRITER_LOCK_LOST


def test_a_live_owner_that_never_gave_a_heartbeat_is_stale(queue: Path, reader: QueueReader) -> None:
    set_heartbeat(queue, 0)
    assert reader.writer_status() == WriterStatus(True, 0, int(TTL_S * NS_PER_S))
    assert reader.detect_disconnect() is DisconnectReason.HEARTBEAT_STALE


@pytest.mark.parametrize("owner", ["alive", "dead"])
def test_a_heartbeat_in_the_future_is_fresh(
    queue: Path, reader: QueueReader, clock: TestClock, owner: str
) -> None:
    """The reader's clock was set back."""
    if owner == "dead":
        name_dead_writer(queue)
    clock.set_wall_ns(HEARTBEAT_NS - 3600 * NS_PER_S)
    assert reader.writer_status().alive
    assert reader.detect_disconnect() is None


def test_a_missing_segment_comes_before_every_other_reason(
    queue: Path, reader: QueueReader, clock: TestClock
) -> None:
    segment_file(queue, 0).unlink()
    assert reader.detect_disconnect() is DisconnectReason.SEGMENT_MISSING
    name_dead_writer(queue)
    clock.advance_ns(1000 * NS_PER_S)
    assert reader.detect_disconnect() is DisconnectReason.SEGMENT_MISSING


@pytest.mark.parametrize("content", [b"", b"garbage", b"0 0 0\n", None])
def test_a_lock_that_names_no_process_has_no_live_owner(
    queue: Path, reader: QueueReader, clock: TestClock, content: bytes | None
) -> None:
    if content is None:
        (queue / "writer.lock").unlink()
    else:
        (queue / "writer.lock").write_bytes(content)
    assert reader.writer_status().alive, "as long as the heartbeat is fresh"
    clock.advance_ns(int(TTL_S * NS_PER_S) + 1)
    assert not reader.writer_status().alive
    assert reader.detect_disconnect() is DisconnectReason.WRITER_LOCK_LOST


def test_a_process_with_the_pid_of_a_dead_writer_is_not_the_writer(
    queue: Path, reader: QueueReader, clock: TestClock
) -> None:
    started = process_start_ticks(os.getpid())
    assert started is not None
    (queue / "writer.lock").write_bytes(f"{os.getpid()} {started + 1} 1\n".encode())
    clock.advance_ns(int(TTL_S * NS_PER_S) + 1)
    assert reader.detect_disconnect() is DisconnectReason.WRITER_LOCK_LOST


def test_a_reconnected_reader_sees_the_new_epoch_and_a_seq_without_gap(queue: Path) -> None:
    with open_reader(queue) as reader:
        assert reader.writer_epoch == 1
        with open_writer(queue) as writer:
            writer.append(1, b"y")
        assert reader.writer_epoch == 2
        assert [view.seq for view in reader] == [0, 1]


def test_looking_changes_nothing(queue: Path, reader: QueueReader) -> None:
    before = reader.position
    control = (queue / "control.meta").read_bytes()
    reader.writer_status()
    reader.detect_disconnect()
    assert reader.position == before
    assert (queue / "control.meta").read_bytes() == control
