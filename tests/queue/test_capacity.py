"""Spec 7: how far a writer may be ahead of the slowest reader that counts."""

import shutil
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.clock import NS_PER_S, TestClock
from everlog.errors import QueueFull
from everlog.queue import QueueReader, QueueWriter
from tests.support.effort import effort
from tests.support.queues import SMALL, open_reader, open_writer, payloads, read_all, register, sealed
from tests.support.ring_twin import record_size


def position(writer: QueueWriter) -> int:
    """The head as one number."""
    return writer.segment_id * writer.segment_size + writer.offset


def append_until_full(writer: QueueWriter, limit: int = 200) -> int:
    """Append records of 128 bytes until one is refused; return how many went in."""
    for count in range(limit):
        try:
            writer.append(1, b"x")
        except QueueFull:
            return count
    raise AssertionError(f"{limit} records and no end")


def take(reader: QueueReader, count: int) -> None:
    """Read and commit so many messages."""
    assert len(reader.drain(count)) == count
    reader.commit()


def test_without_limits_no_reader_holds_the_writer_back(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q"):
        writer.append_many(1, [b"x"] * 1000)


@pytest.mark.parametrize(
    "limits", [{"max_bytes": 512}, {"max_segments": 1}, {"max_bytes": 1, "max_segments": 1}]
)
def test_without_a_reader_that_counts_there_is_no_limit(tmp_path: Path, limits: dict[str, int]) -> None:
    with open_writer(tmp_path / "q", **limits) as writer:
        writer.append_many(1, [b"x"] * 100)
        with open_reader(tmp_path / "q", None):
            writer.append_many(1, [b"x"] * 100)


@pytest.mark.parametrize("max_bytes", [128, 200, 256, 512, 1000, 3000])
def test_max_bytes_is_the_distance_to_the_slowest_reader(tmp_path: Path, max_bytes: int) -> None:
    """Equal is still allowed: head after the record less the minimum is at most max_bytes."""
    with open_writer(tmp_path / "q", max_bytes=max_bytes) as writer, open_reader(tmp_path / "q") as reader:
        append_until_full(writer)
        start = reader.committed_position[0] * SMALL + reader.committed_position[1]
        assert position(writer) - start <= max_bytes
        rolls = writer.offset + 128 > SMALL
        after = (writer.segment_id + 1) * SMALL + 64 + 128 if rolls else position(writer) + 128
        assert after - start > max_bytes, "one more would have been too many"


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"max_segments": 1}, "more than max_segments=1 ahead"),
        ({"max_bytes": 512}, "more than max_bytes=512 ahead"),
        ({"max_bytes": 512, "max_segments": 1}, "more than max_bytes=512 or max_segments=1 ahead"),
    ],
)
def test_a_full_queue_names_the_limits_that_are_set(tmp_path: Path, limits: Any, told: str) -> None:
    with (
        open_writer(tmp_path / "q", **limits) as writer,
        open_reader(tmp_path / "q"),
        pytest.raises(QueueFull, match=told),
    ):
        while True:
            writer.append(1, b"x")


def test_the_gap_left_by_padding_counts(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", max_bytes=SMALL) as writer, open_reader(tmp_path / "q"):
        writer.append(1, bytes(SMALL - 256))
        with pytest.raises(QueueFull):
            writer.append(1, bytes(SMALL - 256))
        assert writer.append(1, b"") == 1
        assert writer.append(1, b"") == 2


@pytest.mark.parametrize("count", [2, 3])
def test_max_segments_counts_those_from_the_slowest_reader_to_the_head(tmp_path: Path, count: int) -> None:
    with open_writer(tmp_path / "q", max_segments=count) as writer, open_reader(tmp_path / "q") as reader:
        assert append_until_full(writer) == 7 * count
        assert (writer.segment_id, writer.offset) == (count - 1, 64 + 7 * 128)
        take(reader, 6)
        assert append_until_full(writer) == 0, "still in its first segment"
        take(reader, 2)
        assert append_until_full(writer) == 7


def test_both_limits_hold(tmp_path: Path) -> None:
    with (
        open_writer(tmp_path / "q", max_segments=1, max_bytes=512) as writer,
        open_reader(tmp_path / "q") as reader,
    ):
        assert append_until_full(writer) == 4
        take(reader, 4)
        assert append_until_full(writer) == 3, "the segment is full"


def test_the_refusal_says_what_is_full_and_changes_nothing(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", max_bytes=512) as writer, open_reader(tmp_path / "q"):
        append_until_full(writer)
        before = (tmp_path / "q/control.meta").read_bytes()[:384], position(writer), writer.next_seq
        with pytest.raises(QueueFull, match=r"is full: .*max_bytes=512 .*let readers commit") as raised:
            writer.append(1, b"x")
        assert raised.value.code == "queue_full"
        assert raised.value.appended == 0
        assert ((tmp_path / "q/control.meta").read_bytes()[:384], position(writer), writer.next_seq) == before
        assert len(payloads(tmp_path / "q")) == 4


def test_reading_alone_frees_nothing_but_a_commit_does(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", max_bytes=512) as writer, open_reader(tmp_path / "q") as reader:
        assert append_until_full(writer) == 4
        assert len(reader.drain(2)) == 2
        assert append_until_full(writer) == 0
        reader.commit()
        assert append_until_full(writer) == 2


def test_the_slowest_reader_counts(tmp_path: Path) -> None:
    with (
        open_writer(tmp_path / "q", max_bytes=512) as writer,
        open_reader(tmp_path / "q", "slow") as slow,
        open_reader(tmp_path / "q", "fast") as fast,
    ):
        append_until_full(writer)
        take(fast, 4)
        assert append_until_full(writer) == 0
        take(slow, 1)
        assert append_until_full(writer) == 1


def test_a_reader_that_closed_counts_until_its_ttl_is_over(tmp_path: Path) -> None:
    clock = TestClock()
    with open_writer(tmp_path / "q", clock=clock, max_bytes=512, reader_ttl_s=10.0) as writer:
        open_reader(tmp_path / "q", clock=clock).close()
        assert append_until_full(writer) == 4
        clock.advance_ns(10 * NS_PER_S)
        assert append_until_full(writer) == 0
        clock.advance_ns(NS_PER_S)
        writer.append_many(1, [b"x"] * 100)


def test_a_reader_exactly_at_the_lag_limit_still_counts(tmp_path: Path) -> None:
    limits = {"max_bytes": 512, "max_reader_lag_bytes": 512}
    with open_writer(tmp_path / "q", **limits) as writer, open_reader(tmp_path / "q"):
        assert append_until_full(writer) == 4


def test_a_reader_too_far_behind_no_longer_counts(tmp_path: Path) -> None:
    limits = {"max_bytes": 512, "max_reader_lag_bytes": 511}
    with open_writer(tmp_path / "q", **limits) as writer, open_reader(tmp_path / "q"):
        for seq in range(100):
            assert writer.append(1, b"x") == seq


def test_a_legacy_reader_counts_for_ever(tmp_path: Path) -> None:
    clock = TestClock()
    with open_writer(tmp_path / "q", clock=clock, max_bytes=512) as writer:
        register(tmp_path / "q", "old", struct.pack("<QQ", 0, 64))
        assert append_until_full(writer) == 4
        clock.advance_ns(10**6 * NS_PER_S)
        assert append_until_full(writer) == 0


def test_a_reader_that_comes_late_is_noticed_within_max_bytes(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", max_bytes=512, retention=False) as writer:
        writer.append_many(1, [b"x"] * 50)
        with open_reader(tmp_path / "q", "late", "latest"):
            assert append_until_full(writer) <= 2 * 512 // 128


def test_many_tells_how_many_went_in(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", max_bytes=512) as writer, open_reader(tmp_path / "q") as reader:
        with pytest.raises(QueueFull) as raised:
            writer.append_many(1, [bytes([number]) for number in range(10)])
        assert raised.value.appended == 4
        assert [bytes(view) for view in reader] == [bytes([number]) for number in range(4)]
        reader.commit()
        with pytest.raises(QueueFull) as raised:
            writer.append_array(1, np.arange(4, 14, dtype=np.uint8))
        assert raised.value.appended == 3, "the rest of the segment"
        assert [bytes(view) for view in reader] == [bytes([number]) for number in range(4, 7)]
        assert writer.next_seq == 7


def test_a_builder_is_not_called_for_a_full_queue(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", max_bytes=512) as writer, open_reader(tmp_path / "q"):
        append_until_full(writer)
        with pytest.raises(QueueFull):
            writer.append_in_place(1, 1, lambda view: pytest.fail("called"))


# -- block -----------------------------------------------------------------------------------------


class CommittingClock(TestClock):
    """Lets a reader take a message after so much time of waiting."""

    def __init__(self, after_ns: int) -> None:
        super().__init__()
        self.after_ns = after_ns
        self.sleeps: list[int] = []
        self.reader: QueueReader | None = None

    def sleep_ns(self, duration_ns: int) -> None:
        super().sleep_ns(duration_ns)
        self.sleeps.append(duration_ns)
        if self.reader is not None and sum(self.sleeps) >= self.after_ns:
            take(self.reader, 1)
            self.reader = None


def test_block_polls_every_100_us_until_a_reader_moves(tmp_path: Path) -> None:
    clock = CommittingClock(after_ns=2_000_000)
    with (
        open_writer(
            tmp_path / "q", clock=clock, max_bytes=512, backpressure="block", block_timeout_s=1.0
        ) as writer,
        open_reader(tmp_path / "q", clock=clock) as reader,
    ):
        writer.append_many(1, [b"x"] * 4)
        assert clock.sleeps == []
        clock.reader = reader
        assert writer.append(1, b"after the wait") == 4
        assert clock.sleeps == [100_000] * 20


def test_block_gives_up_after_its_timeout(tmp_path: Path) -> None:
    clock = CommittingClock(after_ns=2**62)
    with (
        open_writer(
            tmp_path / "q", clock=clock, max_bytes=512, backpressure="block", block_timeout_s=0.5
        ) as writer,
        open_reader(tmp_path / "q", clock=clock),
    ):
        writer.append_many(1, [b"x"] * 4)
        with pytest.raises(QueueFull):
            writer.append(1, b"x")
        assert sum(clock.sleeps) == NS_PER_S // 2
        assert set(clock.sleeps) == {100_000}


def test_block_with_no_time_is_fail_fast(tmp_path: Path) -> None:
    clock = CommittingClock(after_ns=2**62)
    with (
        open_writer(
            tmp_path / "q", clock=clock, max_segments=1, backpressure="block", block_timeout_s=0.0
        ) as writer,
        open_reader(tmp_path / "q", clock=clock),
    ):
        assert append_until_full(writer) == 7
        assert clock.sleeps == []


def test_block_lets_two_real_threads_work_through_a_small_queue(tmp_path: Path) -> None:
    seen: list[int] = []

    def consume() -> None:
        with open_reader(tmp_path / "q") as reader:
            ready.set()
            while len(seen) < 500:
                reader.wait(1)
                seen.extend(message.seq for message in reader.drain(3))
                reader.commit(durable=False)

    ready = threading.Event()
    with open_writer(tmp_path / "q", max_bytes=1024, backpressure="block", block_timeout_s=60.0) as writer:
        thread = threading.Thread(target=consume)
        thread.start()
        ready.wait()
        for _ in range(500):
            writer.append(1, b"x")
        thread.join()
    assert seen == list(range(500))


# -- against a model -------------------------------------------------------------------------------


@settings(max_examples=effort(40))
@given(
    limits=st.sampled_from([{"max_bytes": 700}, {"max_segments": 2}, {"max_bytes": 1500, "max_segments": 2}]),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(0, SMALL - 128)),
            st.tuples(st.just("take"), st.integers(1, 3)),
        ),
        max_size=40,
    ),
)
def test_a_record_is_refused_exactly_when_the_formula_says_so(
    tmp_path_factory: pytest.TempPathFactory, limits: dict[str, Any], steps: list[tuple[str, int]]
) -> None:
    path = tmp_path_factory.mktemp("capacity") / "q"
    with open_writer(path, **limits) as writer, open_reader(path) as reader:
        written = 0
        for kind, number in steps:
            if kind == "take":
                reader.drain(number)
                reader.commit()
                continue
            size = record_size(number)
            segment_id, offset = writer.segment_id, writer.offset
            if offset + size > SMALL:
                segment_id, offset = segment_id + 1, 64
            minimum = reader.committed_position[0] * SMALL + reader.committed_position[1]
            allowed = segment_id * SMALL + offset + size - minimum <= limits.get("max_bytes", 2**62)
            allowed &= segment_id - minimum // SMALL + 1 <= limits.get("max_segments", 2**62)
            if allowed:
                assert writer.append(1, bytes(number)) == written
                written += 1
            else:
                with pytest.raises(QueueFull):
                    writer.append(1, bytes(number))
        assert [message.seq for message in read_all(path)][-1:] == ([written - 1] if written else [])
    shutil.rmtree(path)


def test_a_roll_seals_what_was_appended_and_seq_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    with open_writer(path) as writer:
        assert not writer.roll(), "an empty segment is not sealed"
        writer.append(1, b"first")
        assert writer.roll() and not writer.roll()
        assert [sealed(path, number) for number in (0, 1)] == [True, False]
        assert writer.append(1, b"second") == 1
        assert writer.segment_id == 1
    with open_writer(path) as writer:
        writer.roll()
    with open_writer(path) as writer:  # the newest segment is empty now
        assert writer.append(1, b"third") == 2
    assert [message.payload for message in read_all(path)] == [b"first", b"second", b"third"]


def test_a_roll_waits_for_capacity_as_an_append_does(tmp_path: Path) -> None:
    with open_writer(tmp_path / "queue", max_segments=1, retention=False) as writer:
        with open_reader(tmp_path / "queue"):
            writer.append(1, b"unread")
            with pytest.raises(QueueFull):
                writer.roll()
        assert writer.append(1, b"the segment is still open") == 1
