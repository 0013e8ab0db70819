"""Spec 6: many queues, one consumer, by timestamp."""

import contextlib
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.errors import ConcurrentUse, Corrupt, Unsupported
from everlog.queue import BusySpin, FanInReader, QueueReader, QueueWriter, Sleep, SpinThenPark, WaitStrategy
from tests.support.effort import effort
from tests.support.processes import eventually
from tests.support.queues import flip, open_reader, open_writer, segment_file


@contextlib.contextmanager
def sources(
    path: Path, count: int, name: str | None = "fan"
) -> Iterator[tuple[list[QueueWriter], list[QueueReader]]]:
    """So many queues with a writer and a reader each."""
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(open_writer(path / f"{i}", retention=False)) for i in range(count)]
        readers = [stack.enter_context(open_reader(path / f"{i}", name)) for i in range(count)]
        yield writers, readers


def delivered(fan_in: FanInReader) -> list[tuple[int, int]]:
    """(source, timestamp) of everything that is there."""
    return [(index, view.timestamp_ns) for index, view in fan_in]


def test_the_smallest_timestamp_comes_first_and_equal_ones_by_source(tmp_path: Path) -> None:
    with sources(tmp_path, 3) as (writers, readers):
        for index, stamps in enumerate([(5, 9), (1, 5, 20), (5,)]):
            for stamp in stamps:
                writers[index].append(1, b"x", stamp)
        expected = [(1, 1), (0, 5), (1, 5), (2, 5), (0, 9), (1, 20)]
        assert delivered(FanInReader(readers)) == expected


def test_the_order_inside_a_source_never_changes_even_if_time_goes_back(tmp_path: Path) -> None:
    with sources(tmp_path, 2) as (writers, readers):
        for stamp in (50, 10, 60):
            writers[0].append(1, b"x", stamp)
        for stamp in (55, 5):
            writers[1].append(1, b"x", stamp)
        assert delivered(FanInReader(readers)) == [(0, 50), (0, 10), (1, 55), (1, 5), (0, 60)]


def test_an_empty_source_does_not_hold_the_others_back(tmp_path: Path) -> None:
    with sources(tmp_path, 2) as (writers, readers):
        fan_in = FanInReader(readers)
        writers[0].append(1, b"x", 100)
        assert delivered(fan_in) == [(0, 100)]
        writers[1].append(1, b"x", 50)
        assert delivered(fan_in) == [(1, 50)], "the order covers visible messages only"
        assert fan_in.next() is None


def test_a_source_may_be_added_later_and_gets_the_next_index(tmp_path: Path) -> None:
    with sources(tmp_path, 3) as (writers, readers):
        fan_in = FanInReader(readers[:1])
        assert fan_in.add(readers[1]) == 1
        writers[2].append(1, b"x", 1)
        writers[0].append(1, b"x", 2)
        assert fan_in.add(readers[2]) == 2
        assert delivered(fan_in) == [(2, 1), (0, 2)]
        assert fan_in.reader(2) is readers[2]


def test_without_sources_nothing_is_supported(tmp_path: Path) -> None:
    for use in (lambda fan_in: fan_in.next(), lambda fan_in: fan_in.wait(0), list):
        with pytest.raises(Unsupported, match="at least one source"):
            use(FanInReader([]))


@pytest.mark.parametrize("index", [1, 5, -1])
def test_a_bad_source_index_is_unsupported(tmp_path: Path, index: int) -> None:
    with sources(tmp_path, 1) as (_, readers):
        fan_in = FanInReader(readers)
        with pytest.raises(Unsupported, match=f"no source {index}"):
            fan_in.commit(index)
        with pytest.raises(Unsupported, match=f"no source {index}"):
            fan_in.reader(index)


def test_a_commit_covers_what_was_delivered_and_not_what_is_buffered(tmp_path: Path) -> None:
    with sources(tmp_path, 2) as (writers, readers):
        for stamp in (1, 4):
            writers[0].append(1, b"x", stamp)
        for stamp in (2, 3):
            writers[1].append(1, b"x", stamp)
        fan_in = FanInReader(readers)
        assert [next(iter(fan_in))[0] for _ in range(2)] == [0, 1]
        assert readers[0].position[1] > 192, "the second message of source 0 is buffered by now"
        fan_in.commit_all()
    for index, expected in ((0, [4]), (1, [3])):
        with open_reader(tmp_path / f"{index}", "fan") as reader:
            assert [view.timestamp_ns for view in reader] == expected


def test_a_commit_before_any_delivery_loses_nothing(tmp_path: Path) -> None:
    with sources(tmp_path, 2) as (writers, readers):
        for writer in writers:
            writer.append(1, b"x", 1)
        fan_in = FanInReader(readers)
        fan_in.commit_all()
        fan_in.next()
        fan_in.commit(1, durable=False)
    for index in (0, 1):
        with open_reader(tmp_path / f"{index}", "fan") as reader:
            assert len(list(reader)) == 1


def test_an_anonymous_source_cannot_be_committed(tmp_path: Path) -> None:
    with sources(tmp_path, 1, None) as (_, readers), pytest.raises(Unsupported, match="anonymous"):
        FanInReader(readers).commit(0)


def test_damage_in_one_source_is_raised_and_loses_nothing_of_the_others(tmp_path: Path) -> None:
    with sources(tmp_path, 2) as (writers, readers):
        for stamp in (1, 3):
            writers[0].append(1, b"x", stamp)
        for stamp in (2, 4):
            writers[1].append(1, b"x", stamp)
        flip(segment_file(tmp_path / "1", 0), 128)
        fan_in = FanInReader(readers)
        for _ in range(2):
            with pytest.raises(Corrupt, match="checksum"):
                fan_in.next()
        readers[1].skip_corrupt()
        assert delivered(fan_in) == [(0, 1), (0, 3), (1, 4)]


@settings(max_examples=effort(40))
@given(
    stamps=st.lists(st.lists(st.integers(0, 30), max_size=8), min_size=1, max_size=4),
    stop=st.integers(0, 20),
)
def test_the_merge_is_that_of_a_plain_model_and_commits_lose_nothing(
    tmp_path_factory: pytest.TempPathFactory, stamps: list[list[int]], stop: int
) -> None:
    path = tmp_path_factory.mktemp("fan")
    rest = [list(source) for source in stamps]
    expected: list[tuple[int, int]] = []
    while any(rest):
        index = min((index for index, source in enumerate(rest) if source), key=lambda i: (rest[i][0], i))
        expected.append((index, rest[index].pop(0)))
    with sources(path, len(stamps)) as (writers, readers):
        for writer, source in zip(writers, stamps, strict=True):
            for stamp in source:
                writer.append(1, b"x", stamp)
        fan_in = FanInReader(readers)
        first = [item for item, _ in zip(iter(fan_in), range(stop), strict=False)][:stop]
        done = min(stop, len(expected))
        assert [(index, view.timestamp_ns) for index, view in first] == expected[:done]
    shutil.rmtree(path)


def test_messages_after_a_restart_are_those_not_delivered_before(tmp_path: Path) -> None:
    with sources(tmp_path, 3) as (writers, _):
        for stamp in range(30):
            writers[stamp * 7 % 3].append(1, b"x", stamp)
    seen: list[int] = []
    for stop in (4, 9, 100):
        with contextlib.ExitStack() as stack:
            readers = [stack.enter_context(open_reader(tmp_path / f"{i}", "fan")) for i in range(3)]
            fan_in = FanInReader(readers)
            for _ in range(stop):
                item = fan_in.next()
                if item is None:
                    break
                seen.append(item[1].timestamp_ns)
            fan_in.commit_all()
    assert seen == list(range(30))


# -- waiting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [BusySpin(), SpinThenPark(), SpinThenPark(0), Sleep()])
@pytest.mark.parametrize("count", [1, 2, 130])
def test_a_wait_ends_when_any_source_has_a_message(
    tmp_path: Path, strategy: WaitStrategy, count: int
) -> None:
    """Also with more sources than one futex call can take (128)."""
    with open_writer(tmp_path / "last") as writer, contextlib.ExitStack() as stack:
        open_writer(tmp_path / "idle").close()
        idle = [tmp_path / "idle"] * (count - 1)
        paths = [*idle, tmp_path / "last"]
        readers = [
            stack.enter_context(open_reader(path, None, wait_strategy=strategy if i == 0 else None))
            for i, path in enumerate(paths)
        ]
        fan_in = FanInReader(readers)
        assert fan_in.wait(0) is False
        assert fan_in.wait(0.005) is False
        sender = threading.Timer(0.02, writer.append, (1, b"x"))
        sender.start()
        assert fan_in.wait(30) is True
        sender.join()
        assert [index for index, _ in fan_in] == [count - 1]
        assert fan_in.wait(0) is False


def test_a_wait_returns_at_once_while_a_message_is_buffered(tmp_path: Path) -> None:
    with sources(tmp_path, 2) as (writers, readers):
        writers[0].append(1, b"x", 1)
        writers[1].append(1, b"x", 2)
        fan_in = FanInReader(readers)
        fan_in.next()
        assert readers[1].next() is None, "its message waits in the fan-in"
        assert fan_in.wait(0) is True


def test_no_source_can_be_used_by_another_thread_during_a_wait(tmp_path: Path) -> None:
    with sources(tmp_path, 2) as (writers, readers):
        fan_in = FanInReader(readers)
        outcome: list[bool] = []
        waiter = threading.Thread(target=lambda: outcome.append(fan_in.wait(30)))
        waiter.start()

        def refused(reader: QueueReader) -> bool:
            try:
                reader.next()
            except ConcurrentUse:
                return True
            return False

        for reader in readers:
            eventually("the wait to begin", lambda reader=reader: refused(reader))  # type: ignore[misc]
        writers[1].append(1, b"x")
        waiter.join()
        assert outcome == [True]
        assert [index for index, _ in fan_in] == [1]
