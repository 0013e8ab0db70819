"""Planning and reading ranges of a queue: every message once, and every gap reported."""

from __future__ import annotations

import os
import pickle
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import Corrupt, QueueNotFound
from everlog.pipeline import queue_ranges
from everlog.pipeline.queue_ranges import QueueBounds
from everlog.queue import Queue
from everlog.queue.batch import Batch
from everlog.queue.layout import IDENTITY_FILE
from everlog.seq_ranges import Gap, SeqRange

SEGMENT_SIZE = 4096
MESSAGES = 200


@pytest.fixture
def queue(tmp_path: Path) -> str:
    """A queue of 200 messages over several segments; message n has n % 90 bytes and the time 1000 + n."""
    path = str(tmp_path / "queue")
    with Queue.open_publisher(path, segment_size=SEGMENT_SIZE) as writer:
        for number in range(MESSAGES):
            writer.append(1 + number % 2, bytes([number % 256]) * (number % 90), 1000 + number)
    return path


def delete_oldest_segment(path: str) -> int:
    """Delete the oldest segment, as retention does; return the first seq that is left."""
    oldest = min(name for name in os.listdir(path) if name.endswith(".q"))
    os.unlink(os.path.join(path, oldest))
    return queue_ranges.bounds(path).first


def seqs(path: str, wanted: SeqRange, batch: int = 65536) -> tuple[list[int], list[Gap]]:
    """Read a range; return the seqs that came and what was lost."""
    found: list[int] = []
    lost: list[Gap] = []
    for piece in queue_ranges.read(path, wanted, batch_records=batch):
        if isinstance(piece, Gap):
            lost.append(piece)
        else:
            found += piece.seq.tolist()
    return found, lost


def test_the_ranges_of_the_segments_join_without_a_gap(queue: str) -> None:
    ranges = QueueBounds(queue).ranges()
    assert len(ranges) > 3
    assert ranges[0].first == 0 and ranges[-1].end == MESSAGES
    assert all(one.end == following.first for one, following in pairwise(ranges))


def test_small_segments_are_read_by_one_task_and_large_ones_by_one_each(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = QueueBounds(queue)
    assert held.task_ranges() == [SeqRange(0, MESSAGES)]
    monkeypatch.setattr(queue_ranges, "TASK_BYTES", 3 * SEGMENT_SIZE + 1)
    ranges, tasks = held.ranges(), held.task_ranges()
    assert [task.first for task in tasks] == [one.first for one in ranges[::3]]
    assert all(one.end == following.first for one, following in pairwise(tasks))
    assert tasks[-1].end == MESSAGES
    monkeypatch.setattr(queue_ranges, "TASK_BYTES", SEGMENT_SIZE - 1)
    assert held.task_ranges() == ranges


def test_an_empty_queue_has_an_empty_range(tmp_path: Path) -> None:
    Queue.open_publisher(str(tmp_path / "empty"), segment_size=SEGMENT_SIZE).close()
    assert queue_ranges.bounds(str(tmp_path / "empty")).size == 0


def test_a_path_without_a_queue_is_named(tmp_path: Path) -> None:
    with pytest.raises(QueueNotFound, match="no queue at"):
        QueueBounds(str(tmp_path)).ranges()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 60)),
        st.tuples(st.sampled_from(["delete the oldest", "restart", "recreate"]), st.just(0)),
    ),
    max_size=12,
)


@given(steps=STEPS)
def test_later_calls_return_the_present_bounds(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    path = str(tmp_path_factory.mktemp("held") / "queue")
    writer = Queue.open_publisher(path, segment_size=SEGMENT_SIZE)
    held, end = QueueBounds(path), 0
    for step, count in steps:
        if step == "append":
            writer.append_many(1, [b"x" * 40] * count)
            end += count
        elif step == "delete the oldest" and len(held.ranges()) > 1:
            delete_oldest_segment(path)
        elif step in ("restart", "recreate"):
            writer.close()
            if step == "recreate":
                shutil.rmtree(path)
                end = 0
            writer = Queue.open_publisher(path, segment_size=SEGMENT_SIZE)
        assert held.ranges() == QueueBounds(path).ranges()
        assert held.bounds() == queue_ranges.bounds(path)
        assert held.bounds().end == end
    writer.close()


def wipe(path: str, seq: int) -> None:
    """Make a message of the newest segment as if it had never been written."""
    segment = max(name for name in os.listdir(path) if name.endswith(".q"))
    with Queue.open_subscriber(path, None, "earliest") as reader:
        reader.seek_seq(seq)
        offset = int(reader.read_batch(1).offset[0])
    with open(os.path.join(path, segment), "r+b") as file:
        file.seek(offset)
        file.write(bytes(4))


def test_later_calls_do_not_scan_the_same_messages_again(queue: str) -> None:
    held = QueueBounds(queue)
    head = held.ranges()[-1]
    wipe(queue, head.first + 1)
    with pytest.raises(Corrupt):
        QueueBounds(queue).ranges()
    assert held.ranges()[-1] == head


def test_a_missing_newest_message_is_damage_and_not_the_end_of_the_queue(queue: str) -> None:
    held = QueueBounds(queue)
    end = held.bounds().end
    wipe(queue, end - 1)
    for bounds in (held, QueueBounds(queue)):
        with pytest.raises(Corrupt, match="records are missing"):
            bounds.bounds()


def test_what_is_known_of_a_queue_does_not_travel(queue: str) -> None:
    held = QueueBounds(queue)
    new = pickle.dumps(held)
    held.ranges()
    assert pickle.dumps(held) == new
    assert pickle.loads(new).ranges() == held.ranges()


def test_a_time_is_found_by_its_first_message(queue: str) -> None:
    assert queue_ranges.seq_at_time(queue, 1050) == 50
    assert queue_ranges.seq_at_time(queue, 0) == 0
    assert queue_ranges.seq_at_time(queue, 10_000) == MESSAGES


@given(first=st.integers(0, MESSAGES), end=st.integers(0, MESSAGES), parts=st.none() | st.integers(1, 300))
def test_the_parts_of_a_range_cover_it_once(first: int, end: int, parts: int | None) -> None:
    """Whatever is asked for, no seq is in two tasks and none is forgotten."""
    ranges = [SeqRange(at, min(at + 33, MESSAGES)) for at in range(0, MESSAGES, 33)]
    cut = queue_ranges.split(ranges, SeqRange(first, end), parts)
    assert [seq for one in cut for seq in range(one.first, one.end)] == list(range(first, end))
    assert parts is None or len(cut) <= parts


@pytest.mark.parametrize("batch", [1, 7, 65536])
def test_a_range_is_read_in_order_and_nothing_around_it(queue: str, batch: int) -> None:
    found, lost = seqs(queue, SeqRange(13, 151), batch)
    assert found == list(range(13, 151))
    assert not lost


def test_what_retention_deleted_is_reported_and_the_rest_is_read(queue: str) -> None:
    left = delete_oldest_segment(queue)
    found, lost = seqs(queue, SeqRange(2, MESSAGES))
    assert lost == [Gap(2, left, "retention")]
    assert found == list(range(left, MESSAGES))


def test_a_range_that_is_gone_as_a_whole_is_one_loss(queue: str) -> None:
    left = delete_oldest_segment(queue)
    assert seqs(queue, SeqRange(0, left - 1)) == ([], [Gap(0, left - 1, "retention")])


def test_a_queue_made_anew_is_another_instance_and_a_restart_is_not(queue: str) -> None:
    instance = queue_ranges.instance_of(queue)
    Queue.open_publisher(queue).close()
    assert queue_ranges.instance_of(queue) == instance is not None
    shutil.rmtree(queue)
    with Queue.open_publisher(queue, segment_size=SEGMENT_SIZE) as writer:
        writer.append_many(1, [b"x"] * 300)
    assert queue_ranges.instance_of(queue) not in (instance, None)
    (gap,) = queue_ranges.read(queue, SeqRange(10, 20), instance=instance)
    assert gap == Gap(10, 20, "recreated")


def test_a_queue_of_an_earlier_version_gets_an_identity_from_its_next_writer(queue: str) -> None:
    os.unlink(os.path.join(queue, IDENTITY_FILE))
    assert queue_ranges.instance_of(queue) is None
    assert sum(len(piece) for piece in queue_ranges.read(queue, SeqRange(0, 9), instance="any")) == 9
    Queue.open_publisher(queue).close()
    assert queue_ranges.instance_of(queue) is not None


@given(damaged=st.sets(st.integers(0, MESSAGES - 1), min_size=1, max_size=6))
def test_damaged_messages_are_gaps_and_all_others_are_read(
    tmp_path_factory: pytest.TempPathFactory, damaged: set[int]
) -> None:
    path = str(tmp_path_factory.mktemp("damaged") / "queue")
    with Queue.open_publisher(path, segment_size=SEGMENT_SIZE) as writer:
        for number in range(MESSAGES):
            writer.append(1, bytes([number]) * 40, 1000 + number)
    per_segment = (SEGMENT_SIZE - 64) // 128
    for seq in damaged:
        with open(os.path.join(path, f"{seq // per_segment:09}.q"), "r+b") as file:
            file.seek(64 + seq % per_segment * 128 + 64)  # the first byte of the payload
            file.write(bytes([seq ^ 0xFF]))
    with pytest.raises(Corrupt):
        list(queue_ranges.read(path, SeqRange(0, MESSAGES)))
    found, lost = [], set()
    for piece in queue_ranges.read(path, SeqRange(0, MESSAGES), pass_damage=True):
        if isinstance(piece, Gap):
            assert piece.reason == "corrupt"
            lost.update(range(piece.first, piece.end))
        else:
            found += piece.seq.tolist()
    assert lost == damaged
    assert found == sorted(set(range(MESSAGES)) - damaged)


def test_a_segment_deleted_under_the_reader_is_reported(queue: str) -> None:
    pieces = queue_ranges.read(queue, SeqRange(0, MESSAGES), batch_records=5)
    next(pieces)
    ranges = QueueBounds(queue).ranges()
    for segment in sorted(name for name in os.listdir(queue) if name.endswith(".q"))[:3]:
        os.unlink(os.path.join(queue, segment))
    rest = list(pieces)
    lost = [piece for piece in rest if isinstance(piece, Gap)]
    assert lost == [Gap(ranges[1].first, ranges[3].first, "retention")]
    assert sum(len(piece) for piece in rest if not isinstance(piece, Gap)) + 5 == (
        MESSAGES - (ranges[3].first - ranges[1].first)
    )


def test_a_limit_of_bytes_takes_what_fits_and_one_message_at_least(queue: str) -> None:
    whole = SeqRange(0, MESSAGES)
    assert queue_ranges.end_within_bytes(queue, whole, 1) == 1
    # Message 0 takes 64 bytes with its header, messages 1 to 64 take 128.
    assert queue_ranges.end_within_bytes(queue, whole, 64 + 3 * 128) == 4
    assert queue_ranges.end_within_bytes(queue, whole, 1 << 30) == MESSAGES


def test_payloads_are_joined_whatever_their_lengths(queue: str) -> None:
    for piece in queue_ranges.read(queue, SeqRange(0, MESSAGES)):
        assert not isinstance(piece, Gap)
        data, begins = piece.joined()
        payloads = [data[start:end].tobytes() for start, end in pairwise(begins)]
        assert payloads == [bytes(view) for view in piece]


@pytest.mark.parametrize("sizes", [[5] * 9, [5, 9, 5], [5, 100, 5], [0, 0], [7]])
def test_payloads_are_joined_whether_or_not_they_have_one_length(tmp_path: Path, sizes: list[int]) -> None:
    payloads = [bytes([number]) * size for number, size in enumerate(sizes)]
    with Queue.open_publisher(tmp_path / "q", segment_size=1 << 16) as writer:
        for payload in payloads:
            writer.append(1, payload, 1)
    (batch,) = queue_ranges.read(str(tmp_path / "q"), SeqRange(0, len(sizes)))
    assert isinstance(batch, Batch)
    data, begins = batch.joined()
    assert [data[first:end].tobytes() for first, end in pairwise(begins.tolist())] == payloads
    data[:] = 0  # a copy, not the queue itself
    assert [bytes(view.payload) for view in batch] == payloads
