"""One shard of the log against a list of what it was given: writing, failing, rotating, trimming, ending.

Each promise stands alone here; `test_wal_model.py` does all of it in any order.
"""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import BatchTooLarge, Closed, InvalidConfig, ReadOnly, StorageFailed
from everlog.fault_fs import PowerLoss
from everlog.topics.storage.wal import (
    BACKGROUND_SYNC_NS,
    SYNC_MICROS_BOUNDS,
    Position,
    WalMetrics,
)
from everlog.topics.storage.wal_files import AHEAD_BYTES, END_FRAME_SIZE, end_frame
from tests.topics.storage.wal_samples import FILE_BYTES, OVERHEAD, LogBench, frames_of

LIMIT = FILE_BYTES - END_FRAME_SIZE
"""Frames of one file end here at the latest."""


# --- Writing ---------------------------------------------------------------------------------------------


def test_many_batches_are_written_with_one_call(bench: LogBench) -> None:
    for length in (4, 60, 100):
        bench.gather(length, length)
    assert bench.calls("pwrite") == []
    bench.write()
    assert bench.calls("pwrite") == ["pwrite"]
    assert bench.shard.position == Position(1, 2 * (4 + 60 + 100) + 6 * OVERHEAD)
    bench.check()
    bench.check_disk(bench.contents())


def test_writing_nothing_does_nothing(bench: LogBench) -> None:
    before = bench.fs.calls
    bench.write()
    assert bench.fs.calls == before
    assert bench.shard.metrics == WalMetrics()


def test_the_metrics_count_what_was_gathered(bench: LogBench) -> None:
    bench.gather(10, 20)
    bench.gather(30)
    bench.write()
    bench.append(5)
    metrics = bench.shard.metrics
    assert (metrics.frames, metrics.batches) == (4, 2)
    assert metrics.bytes_written == 65 + 4 * OVERHEAD
    assert (metrics.rotations, metrics.fsyncs) == (0, 0)


@given(micros=st.lists(st.integers(0, 200_000) | st.sampled_from(SYNC_MICROS_BOUNDS)))
def test_the_histogram_counts_every_sync_under_the_first_bound_that_holds_it(micros: list[int]) -> None:
    metrics = WalMetrics()
    for value in micros:
        metrics.count_sync(value)
    assert metrics.fsyncs == len(micros) == sum(metrics.fsync_micros_counts)
    assert metrics.fsync_micros_total == sum(micros)
    for bound, below in zip(
        SYNC_MICROS_BOUNDS, itertools.accumulate(metrics.fsync_micros_counts), strict=False
    ):
        assert below == sum(value <= bound for value in micros)


def test_gathering_without_a_reservation_is_noticed(bench: LogBench) -> None:
    bench.shard.buffer.append_bytes(bytes(FILE_BYTES))
    with pytest.raises(ValueError, match="without a reservation"):
        bench.shard.write()


@pytest.mark.parametrize("file_bytes", [0, 255, 1 << 32])
def test_file_sizes_that_cannot_work_are_refused(tmp_path: Path, file_bytes: int) -> None:
    with pytest.raises(InvalidConfig, match=str(file_bytes)):
        LogBench(tmp_path, file_bytes=file_bytes)


# --- Failing writes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("eighths", range(9))
def test_a_failed_write_leaves_no_byte_and_the_log_goes_on_in_a_new_file(
    bench: LogBench, eighths: int
) -> None:
    bench.append(20)
    good = bench.shard.position
    bench.disk.fail_write = eighths
    bench.gather(4)
    bench.gather(100, 4)
    with pytest.raises(StorageFailed, match="nothing of it stays") as caught:
        bench.shard.write()
    assert caught.value.errno == errno.EIO
    assert bench.shard.needs_discard
    assert len(bench.shard.buffer) == 108 + 3 * OVERHEAD
    assert bench.shard.position == good
    assert os.path.getsize(bench.shard.files[0].path) == good.offset
    bench.note()
    assert bench.append(30).file_number == 2
    bench.check()
    contents = bench.contents()
    bench.check_disk(contents)
    assert frames_of(contents[1])[-1] == end_frame(1)
    assert bench.shard.read_only is None


def test_nothing_is_accepted_before_the_failed_frames_are_discarded(bench: LogBench) -> None:
    bench.gather(10)
    bench.disk.fail_write = 3
    for attempt in (bench.shard.write, bench.shard.write, bench.shard.rotate, lambda: bench.shard.reserve(1)):
        with pytest.raises(StorageFailed):
            attempt()
        assert bench.shard.needs_discard
    bench.note()
    bench.append_synced(10)
    bench.check_disk(bench.contents())


def test_the_buffer_can_grow_while_the_error_is_kept(bench: LogBench) -> None:
    bench.gather(10)
    bench.disk.fail_write = 3
    with pytest.raises(StorageFailed) as kept:
        bench.shard.write()
    bench.note()
    bench.append(100_000)
    assert kept.value.errno == errno.EIO
    bench.check()


def test_a_cut_that_fails_makes_the_shard_read_only(bench: LogBench) -> None:
    bench.append_synced(10)
    bench.gather(10)
    bench.disk.fail_write = 4
    bench.fs.fail_when("truncate", errno.EIO)
    with pytest.raises(ReadOnly, match="cutting it back"):
        bench.write()
    bench.expect_read_only()
    bench.shard.close()
    assert bench.open_files() == set()


def test_the_cut_is_on_disk_before_the_next_file_gets_a_byte(bench: LogBench) -> None:
    bench.append_synced(10)
    bench.disk.fail_write = 7
    with pytest.raises(StorageFailed):
        bench.append(60, 60)
    start = bench.fs.calls
    bench.append(20)
    order = [(call.name, os.path.basename(call.path)) for call in bench.fs.log if call.number > start]
    first, second = (os.path.basename(file.path) for file in bench.shard.files)
    assert order.index(("fdatasync", first)) < order.index(("pwrite", second))
    bench.lose_power()


def test_an_end_frame_that_cannot_be_written_is_tried_again(bench: LogBench) -> None:
    bench.append(10)
    bench.fs.fail_when("pwrite", errno.ENOSPC, times=2)
    for _ in range(2):
        with pytest.raises(StorageFailed):
            bench.rotate()
        assert not bench.shard.needs_discard
    bench.append(10)
    assert bench.shard.position.file_number == 2
    bench.check_disk(bench.contents())


def test_what_was_written_before_a_failed_write_can_still_be_read_and_synced(bench: LogBench) -> None:
    bench.append(10)
    bench.sync()
    bench.disk.fail_write = 2
    with pytest.raises(StorageFailed):
        bench.append(700)
    bench.check()
    mapped = bench.sources.buffer(bench.shard.source)
    assert mapped is not None
    assert len(memoryview(mapped)) == bench.shard.position.offset, (
        "touching a byte behind the cut would be a bus error"
    )
    bench.settle()
    assert bench.told == [None]
    bench.lose_power()


# --- Rotating --------------------------------------------------------------------------------------------


def test_a_batch_that_ends_exactly_at_the_limit_does_not_rotate(bench: LogBench) -> None:
    bench.append(100)
    bench.append(LIMIT - 100 - 2 * OVERHEAD)
    assert bench.shard.position == Position(1, LIMIT)
    bench.append(4)
    assert bench.shard.position == Position(2, 4 + OVERHEAD)
    contents = bench.contents()
    assert len(contents[1]) == FILE_BYTES
    assert contents[1].endswith(end_frame(1))
    bench.check_disk(contents)


def test_a_batch_one_byte_too_long_rotates_and_is_not_split(bench: LogBench) -> None:
    bench.append(100)
    bench.gather(LIMIT - 100 - 3 * OVERHEAD - 10, 11)
    bench.write()
    assert [len(frames_of(content)) for content in bench.contents().values()] == [2, 2]
    bench.check_disk(bench.contents())


@given(lengths=st.lists(st.integers(4, 5_000), min_size=1, max_size=4), before=st.integers(0, 2))
def test_a_batch_larger_than_a_file_gets_a_file_of_its_own_size(
    lengths: list[int], before: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    bench = LogBench(tmp_path_factory.mktemp("log"))
    for _ in range(before):
        bench.append(300)
    bench.append(*lengths)
    bench.append(4)
    bench.check()
    bench.check_disk(bench.contents())
    bench.shard.close()


def test_a_prepared_file_that_is_too_small_is_enlarged(bench: LogBench) -> None:
    bench.append(800)
    bench.settle()
    assert sorted(bench.contents()) == [1, 2]
    bench.append(5_000)
    assert bench.shard.position.file_number == 2
    bench.append(10)
    bench.check()
    bench.lose_power()


def test_a_batch_that_no_file_could_hold_is_refused(bench: LogBench) -> None:
    with pytest.raises(BatchTooLarge, match="split"):
        bench.shard.reserve(1 << 32)
    bench.append(10)


def test_rotating_writes_what_is_gathered_and_an_empty_file_is_kept(bench: LogBench) -> None:
    bench.rotate()
    assert bench.shard.position == Position(1, 0)
    bench.gather(10)
    bench.rotate()
    assert bench.shard.position == Position(2, 0)
    assert bench.shard.metrics.rotations == 1
    bench.check_disk(bench.contents())


def test_the_next_file_is_prepared_at_three_quarters(bench: LogBench) -> None:
    bench.append_synced(FILE_BYTES * 3 // 4 - OVERHEAD - 1)
    assert sorted(bench.contents()) == [1]
    bench.append_synced(4)
    assert sorted(bench.contents()) == [1, 2]
    before = bench.fs.calls
    bench.append(400)
    assert bench.shard.position.file_number == 2
    names = [call.name for call in bench.fs.log if call.number > before]
    assert names == ["pwrite", "fdatasync", "close", "pwrite", "write_zeros"], "a rotation only ends a file"


def test_a_file_is_written_ahead_piece_by_piece_and_not_behind_large_writes(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, file_bytes=8 * AHEAD_BYTES)
    for _ in range(30):
        bench.append(AHEAD_BYTES // 8)
    assert bench.shard.position.file_number == 1
    assert len(bench.calls("write_zeros")) == 4, "30 eighths of a piece reach the end of three pieces"
    bench.append(AHEAD_BYTES)
    assert len(bench.calls("write_zeros")) == 4
    bench.check()
    bench.check_disk(bench.contents())


def test_a_file_that_cannot_be_written_ahead_takes_frames_all_the_same(bench: LogBench) -> None:
    bench.fs.fail_when("write_zeros", errno.EIO)
    bench.append_synced(100)
    bench.append_synced(100)
    bench.check()
    bench.check_disk(bench.contents())


def test_no_byte_is_written_to_a_file_before_the_one_before_it_is_synced(bench: LogBench) -> None:
    for _ in range(20):
        bench.append(400)
    written_to = ""
    synced = set()
    for call in bench.fs.log:
        if call.name == "fdatasync":
            synced.add(call.path)
        elif call.name == "pwrite" and call.path != written_to:
            assert written_to in synced or not written_to
            written_to = call.path
    assert bench.shard.metrics.rotations >= 9


def test_descriptors_of_left_files_are_closed(bench: LogBench) -> None:
    for _ in range(10):
        bench.append(800)
    bench.settle()
    assert len(bench.shard.files) == 10
    assert bench.open_files() <= {10, 11}
    bench.check()


# --- No room ---------------------------------------------------------------------------------------------


def test_a_full_disk_refuses_the_batch_and_keeps_what_is_gathered(bench: LogBench) -> None:
    bench.gather(500)
    bench.fs.fail_when("allocate", errno.ENOSPC, times=2)
    for _ in range(2):
        with pytest.raises(StorageFailed, match="free some space") as caught:
            bench.gather(500)
        assert caught.value.errno == errno.ENOSPC
        assert not bench.shard.needs_discard
    bench.gather(10)
    bench.write()
    assert bench.shard.position == Position(1, 510 + 2 * OVERHEAD)
    bench.append(500)
    bench.check()
    bench.lose_power()


def test_a_preparation_without_room_is_repeated_by_the_rotation(bench: LogBench) -> None:
    bench.fs.fail_when("allocate", errno.ENOSPC)
    bench.append(800)
    bench.settle()
    assert sorted(bench.contents()) == [1]
    bench.append(800)
    assert bench.shard.read_only is None
    bench.check_disk(bench.contents())


def test_a_prepared_file_that_cannot_grow_is_kept(bench: LogBench) -> None:
    bench.append(800)
    bench.settle()
    bench.fs.fail_when("allocate", errno.ENOSPC)
    with pytest.raises(StorageFailed):
        bench.gather(5_000)
    bench.append(800)
    bench.append(5_000)
    bench.check_disk(bench.contents())


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "wal").touch()
    with pytest.raises(StorageFailed, match="wal"):
        LogBench(tmp_path)


# --- Trimming --------------------------------------------------------------------------------------------


def test_only_files_wholly_before_the_position_are_trimmed(bench: LogBench) -> None:
    ends = [bench.append(600) for _ in range(4)]
    bench.settle()
    sources = [file.source for file in bench.shard.files]
    assert bench.trim(Position(1, ends[0].offset)) == []
    assert bench.trim(Position(3, 1)) == [1, 2]
    assert bench.trim(Position(3, FILE_BYTES)) == [3]
    assert bench.trim(Position(9, 9)) == []
    assert [file.number for file in bench.shard.files] == [4]
    assert sorted(bench.contents()) == [4]
    assert bench.sources.add(b"") in sources[:3], "the ids of trimmed files are free again"
    bench.settle()
    bench.fs.restore()
    assert sorted(bench.contents()) == [4]


def test_a_file_may_be_trimmed_while_its_last_sync_is_pending(bench: LogBench) -> None:
    bench.append(600)
    bench.rotate()
    assert bench.trim(bench.shard.position) == [1]
    bench.append_synced(10)
    assert bench.open_files() == {2}


def test_after_closing_everything_may_be_trimmed(bench: LogBench) -> None:
    for _ in range(3):
        bench.append(600)
    bench.shard.close()
    assert bench.trim(bench.shard.position) == [1, 2, 3]
    bench.fs.restore()
    assert bench.contents() == {}


# --- The end ---------------------------------------------------------------------------------------------


def test_closing_writes_syncs_and_tells(bench: LogBench) -> None:
    bench.append(10)
    bench.sync()
    bench.gather(20)
    bench.close()
    bench.close()
    assert bench.told == [None]
    assert bench.shard.synced == bench.shard.position
    assert bench.open_files() == set()
    contents = bench.contents()
    assert frames_of(contents[1])[-1] == end_frame(1)
    bench.fs.restore()
    bench.check_disk(bench.contents())
    with pytest.raises(Closed):
        bench.shard.reserve(1)
    with pytest.raises(Closed):
        bench.sync()


def test_closing_removes_files_that_never_got_a_frame(bench: LogBench) -> None:
    bench.append(800)
    bench.settle()
    assert sorted(bench.contents()) == [1, 2]
    bench.shard.close()
    assert sorted(bench.contents()) == [1]
    bench.open()
    bench.shard.close()
    assert sorted(bench.contents()) == []


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
def test_a_close_that_cannot_keep_what_is_gathered_says_so_and_closes(
    bench: LogBench, operation: str
) -> None:
    bench.append_synced(10)
    bench.gather(20)
    bench.fs.fail_when(operation, errno.EIO)
    with pytest.raises(StorageFailed):
        bench.shard.close()
    assert bench.open_files() == set()
    bench.shard.close()
    bench.syncs.poll()
    bench.fs.restore()
    bench.check_disk(bench.contents())


def test_closing_after_a_failed_write_keeps_what_was_written_before(bench: LogBench) -> None:
    bench.append(10)
    bench.sync()
    bench.gather(20)
    bench.disk.fail_write = 5
    with pytest.raises(StorageFailed):
        bench.shard.write()
    bench.shard.close()
    bench.gathered.clear()
    assert bench.told == [None]
    bench.fs.restore()
    bench.check_disk(bench.contents())
    assert frames_of(bench.contents()[1])[-1] == end_frame(1)


def test_abandoning_writes_nothing_calls_nothing_and_closes(bench: LogBench) -> None:
    bench.append(800)
    bench.sync()
    bench.shard.poll()
    bench.rotate()
    bench.gather(10)
    before = bench.fs.calls
    bench.shard.abandon()
    bench.shard.abandon()
    assert {call.name for call in bench.fs.log if call.number > before} == {"close"}
    assert bench.open_files() == set()
    bench.syncs.poll()
    assert bench.told == []


def test_a_new_life_writes_to_new_files_only(bench: LogBench) -> None:
    bench.append_synced(10)
    bench.shard.abandon()
    before = bench.contents()
    bench.open()
    bench.append_synced(10)
    bench.shard.close()
    bench.first_number = 0
    after = bench.contents()
    assert after[1] == before[1]
    assert set(after) > set(before)


# --- Every moment ----------------------------------------------------------------------------------------


def story(bench: LogBench) -> None:
    """Something of everything; ends by closing."""
    for turn in range(12):
        bench.gather(4 + 37 * turn % 200)
        bench.gather(90, 4)
        bench.write()
        if turn % 3 == 0:
            bench.sync()
        bench.poll()
        bench.clock.advance_ns(BACKGROUND_SYNC_NS // 4)
        if turn % 5 == 4:
            bench.rotate()
        if turn == 9:
            bench.trimmed_before = bench.shard.synced
            bench.trim(bench.trimmed_before)
    bench.gather(2_000)
    bench.close()


def story_length(tmp_path: Path) -> int:
    """The number of file operations in the story."""
    bench = LogBench(tmp_path / "rehearsal")
    opened = bench.fs.calls
    story(bench)
    bench.check_disk(bench.contents())
    return bench.fs.calls - opened


@pytest.mark.parametrize("how", ["lose_power_at", "tear_at"])
def test_power_may_go_at_every_file_operation(tmp_path: Path, how: str) -> None:
    length = story_length(tmp_path)
    assert length > 50
    for call in range(1, length + 1):
        bench = LogBench(tmp_path / str(call), seed=call)
        getattr(bench.fs, how)(bench.fs.calls + call)
        with pytest.raises(PowerLoss):
            story(bench)
        bench.lose_power()


def test_every_file_operation_may_fail(tmp_path: Path) -> None:
    for call in range(1, story_length(tmp_path) + 1):
        bench = LogBench(tmp_path / str(call), seed=call)
        bench.fs.fail_at(bench.fs.calls + call, errno.EIO)
        try:
            story(bench)
        except StorageFailed:
            bench.poll()
            bench.check()
        bench.lose_power()
        assert all(error is None or isinstance(error, ReadOnly) for error in bench.told)
