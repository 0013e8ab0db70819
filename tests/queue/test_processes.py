"""Writers and readers in processes of their own: many rolls, crashes, forks. Sleeping readers are in
`test_process_wakes`, retention is in `test_process_retention`.

The crash tests here are a few rounds of those in tests/crash.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from everlog.errors import WriterAlreadyActive
from everlog.queue import Queue
from tests.support.crashes import (
    WRITER_CASES,
    CrashCase,
    check_no_leftovers,
    crash_at_calls,
    crash_readers,
    crash_writers,
)
from tests.support.files import UnsyncedFs
from tests.support.processes import Child, eventually, fresh_seed, shared_words
from tests.support.workloads import (
    ABORTED,
    ALL_KINDS,
    APPEND,
    ARRAY,
    IN_PLACE,
    MANY,
    WAYS_TO_READ,
    ReaderPlan,
    WriterPlan,
    read_queue,
    write_and_fork,
    write_queue,
)

SEGMENT = 4096
LENGTH_MAX = 1000
ROUNDS = 10


def newest_segment(queue: Path) -> int:
    return max(int(file.stem) for file in queue.glob("*.q"))


def oldest_segment(queue: Path) -> int:
    return min(int(file.stem) for file in queue.glob("*.q"))


def create(path: str, segment_size: int = SEGMENT) -> None:
    Queue.open_publisher(path, fs=UnsyncedFs(), segment_size=segment_size).close()


# --- Many rolls ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kinds", "how", "total"),
    [
        ((APPEND,), "next", 5_000),
        ((IN_PLACE, ABORTED), "iterate", 4_500),
        ((MANY,), "drain", 4_500),
        ((ARRAY,), "batch", 18_000),
    ],
)
def test_a_reader_in_another_process_sees_every_record_through_hundreds_of_rolls(
    tmp_path: Path, kinds: tuple[str, ...], how: str, total: int
) -> None:
    seed = fresh_seed("rolls")
    queue = tmp_path / "queue"
    create(str(queue))
    writing = WriterPlan(seed, LENGTH_MAX, seed, kinds, total=total)
    reading = ReaderPlan(seed, LENGTH_MAX, "reader", how, commit_every=500)
    with (
        Child(read_queue, str(queue), reading, shared_words(1)) as reader,
        Child(write_queue, str(queue), writing, shared_words(2)) as writer,
    ):
        assert reader.receive() == "open"
        reader.send(total)
        assert writer.receive() == total
        assert reader.receive() == total
    assert newest_segment(queue) > 400


def test_four_readers_see_every_record_through_a_thousand_rolls_while_segments_are_deleted_behind_them(
    tmp_path: Path,
) -> None:
    seed = fresh_seed("four readers")
    queue = tmp_path / "queue"
    total = 8_000
    max_segments = 40
    limits = {"max_segments": max_segments, "backpressure": "block", "block_timeout_s": 60.0}
    settings = {**limits, "retention_check_interval_s": 0.001}
    writing = WriterPlan(seed, 700, seed, ALL_KINDS, total=total, settings=settings)
    create(str(queue), segment_size=1536)
    readers = [
        Child(read_queue, str(queue), ReaderPlan(seed, 700, how, how, commit_every=50), shared_words(1))
        for how in WAYS_TO_READ
    ]
    for reader in readers:
        assert reader.receive() == "open"
        reader.send(total)
    with Child(write_queue, str(queue), writing, shared_words(2)) as writer:
        assert writer.receive() == total
        for reader in readers:
            with reader:
                assert reader.receive() == total
    assert newest_segment(queue) > 1_000
    assert oldest_segment(queue) > 0
    # On a busy machine deletion comes later than the readers; a writer that is given time catches up.
    with Queue.open_publisher(queue, fs=UnsyncedFs(), **settings):
        eventually("what all have read is gone", lambda: len(list(queue.glob("*.q"))) <= max_segments)


# --- kill -9 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", WRITER_CASES, ids=lambda case: case.name)
def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path, case: CrashCase) -> None:
    crash_writers(tmp_path / "queue", case, ROUNDS, fresh_seed(case.name))


def test_a_killed_reader_resumes_at_its_last_commit(tmp_path: Path) -> None:
    assert crash_readers(tmp_path / "queue", ROUNDS, fresh_seed("readers")) > 0


def test_a_writer_killed_at_any_step_leaves_a_queue_that_goes_on_and_a_waiting_reader_too(
    tmp_path: Path,
) -> None:
    crash_at_calls(tmp_path, fresh_seed("calls"), step=15)


def test_killed_writers_leave_neither_temporary_files_nor_indexes_without_a_segment(tmp_path: Path) -> None:
    seed = fresh_seed("leftovers")
    queue = tmp_path / "queue"
    case = CrashCase("leftovers", (APPEND,), 300, {"segment_size": 512, "retention_check_interval_s": 0.001})
    crash_writers(queue, case, 4 * ROUNDS, seed)
    check_no_leftovers(queue)


# --- fork ------------------------------------------------------------------------------------------------


def test_a_forked_process_that_outlives_the_writer_blocks_the_next_one_with_an_error_within_moments(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "queue")
    with Child(write_and_fork, path) as owner:
        forked, met = owner.receive()
        assert met == "Closed"
        owner.kill()
        started_s = time.monotonic()
        with pytest.raises(WriterAlreadyActive, match=rf"{owner.pid} .*forked child"):
            Queue.open_publisher(path)
        assert 0.1 <= time.monotonic() - started_s < 10
        os.kill(forked, signal.SIGKILL)
        eventually("the lock is free", lambda: is_free(path))
    with Queue.open_publisher(path) as writer:
        assert writer.next_seq == 3


def test_a_writer_that_was_closed_has_freed_the_queue_even_if_a_forked_process_lives(tmp_path: Path) -> None:
    path = str(tmp_path / "queue")
    with Child(write_and_fork, path) as owner:
        owner.receive()
        owner.send("close")
        assert owner.receive() == "closed"
        with Queue.open_publisher(path) as writer:
            assert writer.next_seq == 3


def is_free(path: str) -> bool:
    try:
        Queue.open_publisher(path).close()
    except WriterAlreadyActive:
        return False
    return True
