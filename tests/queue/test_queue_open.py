"""Spec 1.5 and 4: how a queue comes into being and how it is opened."""

import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everlog.clock import NS_PER_S, SystemClock, TestClock
from everlog.errors import (
    CorruptMetadata,
    EverlogError,
    InvalidConfig,
    InvalidName,
    QueueNotFound,
    SegmentMissing,
    UnsupportedVersion,
)
from everlog.queue import Queue, QueueReader, StartMode
from everlog.queue.layout import CTRL_INIT_STATE, CTRL_VERSION_OFFSET
from tests.support.files import UnsyncedFs, hooked_fs, tree
from tests.support.queues import SMALL, open_reader, open_writer, overwrite, payloads


def test_a_new_queue_has_these_files_and_bytes(tmp_path: Path) -> None:
    clock = TestClock(wall_ns=123)
    open_writer(tmp_path / "q", clock=clock).close()
    files = tree(tmp_path / "q")
    assert sorted(files) == ["000000000.q", "control.meta", "queue.id", "writer.lock"]
    control = files["control.meta"]
    assert control is not None
    assert struct.unpack_from("<III4xQQ", control) == (0x4348524E, 3, 2, 1, SMALL)
    assert struct.unpack_from("<I", control, 132) == (0,)
    assert struct.unpack_from("<QQ", control, 256) == (64, 123)
    assert struct.unpack_from("<I", control, 388) == (0,)
    used = [(0, 32), (128, 136), (256, 272), (384, 392)]
    zero = bytearray(control)
    for start, end in used:
        zero[start:end] = bytes(end - start)
    assert zero == bytes(512), "all other bytes are zero"
    lock = files["writer.lock"]
    assert lock is not None
    assert lock.startswith(f"{os.getpid()} ".encode())
    assert lock.endswith(b" 1\n")


def test_missing_directories_are_created(tmp_path: Path) -> None:
    with open_writer(tmp_path / "a/b/c") as writer:
        writer.append(1, b"x")
    assert payloads(tmp_path / "a/b/c") == [b"x"]


def test_a_path_may_be_a_string(tmp_path: Path) -> None:
    with Queue.open_publisher(str(tmp_path / "q"), segment_size=SMALL) as writer:
        writer.append(1, b"x")
    with Queue.open_subscriber(str(tmp_path / "q"), None) as reader:
        assert [bytes(view) for view in reader] == [b"x"]


def test_the_epoch_rises_with_every_writer(tmp_path: Path) -> None:
    for epoch in range(1, 5):
        with open_writer(tmp_path / "q") as writer:
            assert writer.epoch == epoch


def test_the_epoch_rises_even_if_the_control_block_lost_it(tmp_path: Path) -> None:
    for _ in range(3):
        open_writer(tmp_path / "q").close()
    overwrite(tmp_path / "q/control.meta", 16, bytes(8))
    with open_writer(tmp_path / "q") as writer:
        assert writer.epoch == 4


# -- subscribers -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["missing", ".", "file", "file/below"])
def test_a_queue_that_does_not_exist_is_not_found(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(QueueNotFound, match=r"no queue at .*control\.meta is missing; check the path"):
        open_reader(tmp_path / path)
    assert Queue.try_open_subscriber(tmp_path / path, "alpha") is None
    assert sorted(tree(tmp_path)) == ["file"]


def test_opening_to_read_creates_nothing_but_the_readers_meta(tmp_path: Path) -> None:
    open_writer(tmp_path / "q").close()
    before = tree(tmp_path / "q")
    open_reader(tmp_path / "q", None).close()
    assert tree(tmp_path / "q") == before
    open_reader(tmp_path / "q", "alpha").close()
    assert sorted(set(tree(tmp_path / "q")) - set(before)) == ["readers", "readers/alpha.meta"]


def test_a_subscriber_waits_a_second_for_a_control_block_in_the_making(tmp_path: Path) -> None:
    open_writer(tmp_path / "q").close()
    overwrite(tmp_path / "q/control.meta", CTRL_INIT_STATE, struct.pack("<I", 1))
    clock = TestClock()
    before_ns = clock.monotonic_ns()
    with pytest.raises(CorruptMetadata, match=r"not initialised after 1 s \(init_state 1, expected 2\)"):
        open_reader(tmp_path / "q", clock=clock)
    assert NS_PER_S <= clock.monotonic_ns() - before_ns < 1.1 * NS_PER_S
    assert Queue.try_open_subscriber(tmp_path / "q", "alpha") is None
    assert not (tmp_path / "q/readers").exists()


def test_a_subscriber_opens_as_soon_as_the_control_block_is_ready(tmp_path: Path) -> None:
    open_writer(tmp_path / "q").close()
    control = tmp_path / "q/control.meta"
    overwrite(control, CTRL_INIT_STATE, struct.pack("<I", 1))

    class MakingProgress(TestClock):
        def sleep_ns(self, duration_ns: int) -> None:
            super().sleep_ns(duration_ns)
            if self.monotonic_ns() > NS_PER_S // 2:
                overwrite(control, CTRL_INIT_STATE, struct.pack("<I", 2))

    clock = MakingProgress()
    open_reader(tmp_path / "q", clock=clock).close()
    assert clock.monotonic_ns() < NS_PER_S


@pytest.mark.parametrize("state", [0, 1, 3])
def test_try_open_says_not_yet_while_the_state_is_not_2(tmp_path: Path, state: int) -> None:
    open_writer(tmp_path / "q").close()
    overwrite(tmp_path / "q/control.meta", CTRL_INIT_STATE, struct.pack("<I", state))
    assert Queue.try_open_subscriber(tmp_path / "q", "alpha") is None


def test_try_open_raises_on_a_bad_magic_or_version(tmp_path: Path) -> None:
    open_writer(tmp_path / "q").close()
    overwrite(tmp_path / "q/control.meta", CTRL_VERSION_OFFSET, struct.pack("<I", 4))
    with pytest.raises(UnsupportedVersion, match="version 4"):
        Queue.try_open_subscriber(tmp_path / "q", "alpha")
    overwrite(tmp_path / "q/control.meta", 0, b"JUNK")
    with pytest.raises(CorruptMetadata, match="magic"):
        Queue.try_open_subscriber(tmp_path / "q", "alpha")


def test_try_open_opens(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer:
        writer.append(1, b"x")
    reader = Queue.try_open_subscriber(tmp_path / "q", "alpha", "earliest", fs=UnsyncedFs())
    assert isinstance(reader, QueueReader)
    with reader:
        assert [bytes(view) for view in reader] == [b"x"]


def test_an_unknown_start_mode_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    open_writer(tmp_path / "q").close()
    with pytest.raises(
        InvalidConfig, match=r"unknown start mode 'newest'; valid are resume-strict, .*earliest"
    ):
        open_reader(tmp_path / "q", start="newest")


@pytest.mark.parametrize("mode", [*StartMode, *(mode.value for mode in StartMode)])
def test_a_start_mode_is_given_as_member_or_name(tmp_path: Path, mode: Any) -> None:
    open_writer(tmp_path / "q").close()
    open_reader(tmp_path / "q", start=mode).close()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../alpha", "a\\b", "a\0b"])
def test_a_reader_name_that_is_no_path_component_is_refused(tmp_path: Path, name: str) -> None:
    open_writer(tmp_path / "q").close()
    before = tree(tmp_path)
    for open_it in (Queue.open_subscriber, Queue.try_open_subscriber):
        with pytest.raises(InvalidName, match="reader name"):
            open_it(tmp_path / "q", name)
    assert tree(tmp_path) == before


# -- at the same time --------------------------------------------------------------------------


def opened_between(path: Path, attempt: Callable[[], object]) -> list[tuple[str, object]]:
    """Create a queue and `attempt` before each of the creator's file operations; return the outcomes."""
    outcomes: list[tuple[str, object]] = []

    def before(name: str, arguments: tuple[Any, ...]) -> None:
        try:
            outcomes.append((f"{name} {arguments[0]}", attempt()))
        except EverlogError as error:
            outcomes.append((f"{name} {arguments[0]}", error))

    open_writer(path, fs=hooked_fs(before)).close()
    return outcomes


def test_try_open_during_creation_is_none_until_it_opens(tmp_path: Path) -> None:
    """A subscriber that keeps looking for a queue must never get an error while it is being created."""

    def attempt() -> bool:
        reader = Queue.try_open_subscriber(tmp_path / "q", None, fs=UnsyncedFs())
        if reader is None:
            return False
        with reader:
            assert reader.next() is None
        return True

    outcomes = opened_between(tmp_path / "q", attempt)
    assert [outcome for outcome in outcomes if isinstance(outcome[1], EverlogError)] == []
    opened = [outcome[1] for outcome in outcomes]
    assert opened == sorted(opened, key=bool), "once it can be opened it stays so"
    assert opened[-1] is True


def test_open_during_creation_finds_no_queue_or_opens_it(tmp_path: Path) -> None:
    def attempt() -> None:
        open_reader(tmp_path / "q", None, clock=TestClock()).close()

    outcomes = opened_between(tmp_path / "q", attempt)
    kinds = {type(outcome) for _, outcome in outcomes}
    assert SegmentMissing not in kinds, "nothing was ever deleted here"
    assert kinds <= {QueueNotFound, CorruptMetadata, type(None)}


def test_a_queue_is_opened_and_not_made() -> None:
    with pytest.raises(TypeError, match=r"Queue\.open_publisher\(path\)"):
        Queue("somewhere")


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    name: Any = 5
    with pytest.raises(InvalidName, match="reader name 5 is not text"):
        Queue.open_subscriber(tmp_path, name)


def test_what_is_printed_tells_queue_and_reader_and_whether_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "q"
    with open_writer(path) as writer, open_reader(path, "r") as reader, open_reader(path, None) as anonymous:
        writer.append(1, b"x")
        shown = [repr(each) for each in (writer, reader, anonymous)]
        assert repr(reader.read_batch()) == "<Batch of 1 messages from offset 64 of segment 0>"
    told = [f"<QueueWriter of {path}", f"<QueueReader 'r' of {path}", f"<QueueReader anonymous of {path}"]
    assert shown == [f"{each}>" for each in told]
    assert [repr(each) for each in (writer, reader, anonymous)] == [f"{each}, closed>" for each in told]


def test_a_reader_waits_for_a_queue_that_is_made_later(tmp_path: Path) -> None:
    path = tmp_path / "late"
    looks = threading.Event()

    class Looking(SystemClock):
        def sleep_ns(self, duration_ns: int) -> None:
            looks.set()
            super().sleep_ns(duration_ns)

    def make() -> None:
        looks.wait(60)
        with Queue.open_publisher(path) as writer:
            writer.append(1, b"hello")

    maker = threading.Thread(target=make)
    maker.start()
    try:
        with Queue.open_subscriber(path, None, "earliest", wait=60, clock=Looking()) as reader:
            assert reader.wait(60)
    finally:
        looks.set()
        maker.join()


def test_a_queue_that_does_not_come_is_reported_when_the_wait_is_over(tmp_path: Path) -> None:
    clock = TestClock()
    began_ns = clock.monotonic_ns()
    with pytest.raises(QueueNotFound):
        Queue.open_subscriber(tmp_path / "never", None, wait=2.0, clock=clock)
    assert 2.0 <= (clock.monotonic_ns() - began_ns) / 1e9 < 2.1
