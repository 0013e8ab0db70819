"""Readers after faults: failed heartbeats, wrong indexes, holes in segments, new writers."""

import errno
import itertools
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from everlog.clock import NS_PER_S, TestClock
from everlog.errors import Corrupt, Io, Unsupported
from everlog.fault_fs import FaultFs
from everlog.queue import FanInReader, QueueReader, layout, seek_index
from everlog.queue.layout import CTRL_WAITERS_PENDING
from everlog.queue.reader_meta import list_readers
from tests.support.files import UnsyncedFs
from tests.support.processes import Child, eventually, sleeps
from tests.support.queues import (
    SMALL,
    control_u32,
    kill_image,
    open_reader,
    open_writer,
    overwrite,
    read_all,
    sealed,
    segment_file,
)
from tests.support.wakes import sleep_until_woken

# -- heartbeats that cannot be stored --------------------------------------------------------


def by_next(reader: QueueReader) -> list[int]:
    view = reader.next()
    return [] if view is None else [view.seq]


def by_iteration(reader: QueueReader) -> list[int]:
    return [view.seq for view in itertools.islice(reader, 1)]


def by_batch(reader: QueueReader) -> list[int]:
    return [int(seq) for seq in reader.read_batch(5).seq]


def by_drain(reader: QueueReader) -> list[int]:
    return [message.seq for message in reader.drain(5)]


def by_fan_in(reader: QueueReader) -> list[int]:
    found = FanInReader([reader]).next()
    return [] if found is None else [found[1].seq]


WAYS: dict[str, Callable[[QueueReader], list[int]]] = {
    "next": by_next,
    "iteration": by_iteration,
    "read_batch": by_batch,
    "drain": by_drain,
    "fan-in": by_fan_in,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_heartbeat_that_cannot_be_stored_raises_and_loses_no_message(tmp_path: Path, way: str) -> None:
    """Failing at each message in turn: whatever was read before, all the others follow."""
    count = 30
    with open_writer(tmp_path / "q", retention=False) as writer:
        writer.append_many(1, [b"x"] * count)
    for fails_after in range(count):
        fs, clock = FaultFs(tmp_path / "q", inner=UnsyncedFs()), TestClock()
        with open_reader(tmp_path / "q", f"reader{fails_after}", fs=fs, clock=clock) as reader:
            seen = [reader.next().seq for _ in range(fails_after)]  # type: ignore[union-attr]
            clock.advance_ns(2 * NS_PER_S)
            fs.fail_when("pwrite", errno.EIO, path="readers")
            failures = 0
            while len(seen) < count:
                try:
                    found = WAYS[way](reader)
                except Io as error:
                    assert error.errno == errno.EIO
                    failures += 1
                else:
                    assert found, f"after {seen}"
                    seen += found
            assert seen == list(range(count))
            if fails_after < count - 8 and way != "drain":  # a drain hands over what it has instead
                assert failures == 1


def test_a_heartbeat_that_cannot_be_stored_during_a_wait_raises_and_the_reader_can_be_used(
    tmp_path: Path,
) -> None:
    fs, clock = FaultFs(tmp_path, inner=UnsyncedFs()), TestClock()
    with (
        open_writer(tmp_path / "q") as writer,
        open_reader(tmp_path / "q", fs=fs, clock=clock) as reader,
    ):
        clock.advance_ns(2 * NS_PER_S)
        fs.fail_when("pwrite", errno.EIO, path="readers")
        with pytest.raises(Io, match="heartbeat"):
            reader.wait(0.01)
        writer.append(1, b"x")
        assert reader.wait(0.01) is True
        assert by_next(reader) == [0]


# -- heartbeats that are due -----------------------------------------------------------------


def stored_heartbeat_ns(path: Path, name: str = "alpha") -> int:
    readers = list_readers(UnsyncedFs(), str(path))
    assert readers is not None
    position = readers[name]
    assert not isinstance(position, Exception)
    return position.heartbeat_ns


def test_a_reader_polling_an_empty_queue_asks_its_own_clock_every_time(tmp_path: Path) -> None:
    clock = TestClock()
    with open_writer(tmp_path / "q"), open_reader(tmp_path / "q", clock=clock) as reader:
        for read in (reader.next, reader.read_batch, lambda: reader.drain(3), lambda: reader.wait(0.001)):
            for _ in range(3):
                read()
                before = stored_heartbeat_ns(tmp_path / "q")
                clock.advance_ns(NS_PER_S - 1)
                read()
                assert stored_heartbeat_ns(tmp_path / "q") == before, "not before a second has passed"
                clock.advance_ns(1)
                read()
                assert stored_heartbeat_ns(tmp_path / "q") == clock.wall_ns()


def test_a_reader_that_handles_each_message_slowly_by_its_own_clock_beats_every_few_messages(
    tmp_path: Path,
) -> None:
    clock = TestClock()
    with open_writer(tmp_path / "q", segment_size=2**16) as writer:
        writer.append_many(1, [b"x"] * 200)
    beats: list[tuple[int, int]] = []
    with open_reader(tmp_path / "q", clock=clock) as reader:
        for view in reader:
            clock.advance_ns(2 * NS_PER_S)
            if not beats or stored_heartbeat_ns(tmp_path / "q") != beats[-1][1]:
                beats.append((view.seq, stored_heartbeat_ns(tmp_path / "q")))
    assert len(beats) > 200 // 8
    assert max(later[0] - earlier[0] for earlier, later in itertools.pairwise(beats)) <= 8


def next_beat_ns(path: Path, polls: Iterator[object]) -> int:
    """Poll until the stored heartbeat changes; returns the monotonic time of that."""
    first = stored_heartbeat_ns(path)
    deadline_ns = time.monotonic_ns() + 20 * NS_PER_S
    for _ in polls:
        if stored_heartbeat_ns(path) != first:
            return time.monotonic_ns()
        assert time.monotonic_ns() < deadline_ns, "no heartbeat for 20 seconds"
    raise AssertionError("all messages were handled without a heartbeat")


def test_a_reader_that_polls_an_empty_queue_beats_about_once_a_second(tmp_path: Path) -> None:
    started_ns = time.monotonic_ns()
    with open_writer(tmp_path / "q"), open_reader(tmp_path / "q") as reader:
        beaten_ns = next_beat_ns(tmp_path / "q", iter(reader.next, "never"))
        assert beaten_ns - started_ns > NS_PER_S * 9 // 10, "and not more often"


def test_a_reader_that_handles_messages_slowly_beats_about_once_a_second(tmp_path: Path) -> None:
    """A message takes longer than a tenth of a second: a look every thousand messages would be too rare."""
    with open_writer(tmp_path / "q") as writer:
        writer.append_many(1, [b"x"] * 30)

    def handle(reader: QueueReader) -> Iterator[object]:
        for view in reader:
            time.sleep(0.11)
            yield view

    with open_reader(tmp_path / "q") as reader:
        next_beat_ns(tmp_path / "q", handle(reader))


# -- indexes that lie ------------------------------------------------------------------------

STAMPS = [100 + 10 * seq for seq in range(12)]
"""Seven records of two cells in the first segment, five in the second."""


def next_seq(reader: QueueReader) -> int | None:
    view = reader.next()
    return None if view is None else view.seq


def assert_seeks_are_right(path: Path, stamps: list[int]) -> None:
    """Every seq and every time leads to the first record at or after it."""
    with open_reader(path, None) as reader:
        for seq in range(len(stamps)):
            assert reader.seek_seq(seq) is True
            assert next_seq(reader) == seq
            for target in (stamps[seq] - 1, stamps[seq]):
                assert reader.seek_timestamp(target) is True
                assert next_seq(reader) == seq, f"seek to time {target}"
        assert reader.seek_seq(len(stamps)) is False
        assert reader.seek_timestamp(stamps[-1] + 1) is False


def forge(
    path: Path,
    entries: list[tuple[int, int, int]],
    *,
    stamps: tuple[int, int],
    seqs: tuple[int, int] = (0, 6),
) -> None:
    """Store a well-formed index of the first segment that says these things."""
    seek_index.store(
        UnsyncedFs(),
        str(path),
        seek_index.SeekIndex(0, SMALL, 3, False, *seqs, *stamps, np.array(entries, seek_index.ENTRY_DTYPE)),
    )


@pytest.fixture
def stamped(tmp_path: Path) -> Path:
    """A queue of two segments with known times, its first one sealed."""
    with open_writer(tmp_path / "q", retention=False, index_stride=3) as writer:
        for stamp in STAMPS:
            writer.append(1, b"x", stamp)
    assert sealed(tmp_path / "q", 0)
    return tmp_path / "q"


def test_the_index_of_a_sound_queue_leads_to_every_record(stamped: Path) -> None:
    assert_seeks_are_right(stamped, STAMPS)


@pytest.mark.parametrize(
    "entries",
    [
        [(0, 100, 64), (3, 130, 64 + 3 * 192)],
        [(0, 100, 64), (3, 130, 64 + 4 * 128)],
        [(0, 100, 64), (2, 120, 64 + 5 * 128)],
        [(0, 100, 128), (3, 130, 64 + 3 * 128 + 64)],
        [(0, 100, 64 + 6 * 128)],
    ],
    ids=["other sizes", "one too far", "another record", "inside payloads", "everything behind"],
)
def test_entries_of_an_index_that_point_elsewhere_never_mislead_a_seek(
    stamped: Path, entries: list[tuple[int, int, int]]
) -> None:
    forge(stamped, entries, stamps=(100, 160))
    assert_seeks_are_right(stamped, STAMPS)


@pytest.mark.parametrize("latest", [100, 130, 159])
def test_an_index_that_knows_only_the_first_records_of_a_sealed_segment_hides_no_later_ones(
    stamped: Path, latest: int
) -> None:
    forge(stamped, [(0, 100, 64)], stamps=(100, latest), seqs=(0, 3))
    assert_seeks_are_right(stamped, STAMPS)


@pytest.mark.parametrize("seed", range(10))
def test_an_index_flushed_before_a_roll_that_survives_a_power_loss_instead_of_the_newer_one_hides_nothing(
    tmp_path: Path, seed: int
) -> None:
    """The roll syncs the segment, but not the index it writes: the one of the last flush may come back."""
    fs = FaultFs(tmp_path, seed=seed, inner=UnsyncedFs())
    with open_writer(tmp_path / "q", fs=fs, retention=False) as writer:
        for stamp in STAMPS[:3]:
            writer.append(1, b"x", stamp)
        writer.flush_sync()
        for stamp in STAMPS[3:]:
            writer.append(1, b"x", stamp)
    fs.restore()
    with open_writer(tmp_path / "q", fs=fs, retention=False):
        survived = len(read_all(tmp_path / "q"))
        assert survived >= 7, "the first segment was synced by the roll"
        assert_seeks_are_right(tmp_path / "q", STAMPS[:survived])


def test_an_index_of_records_that_a_power_loss_took_is_dropped_when_the_segment_is_reopened(
    tmp_path: Path,
) -> None:
    path = tmp_path / "q"
    with open_writer(path, index_stride=1) as writer:
        for stamp in STAMPS[:6]:
            writer.append(1, b"x", stamp)
        writer.flush_sync()
    (path / layout.INDEX_META_FILE).unlink()
    overwrite(path / layout.CONTROL_FILE, layout.CTRL_WRITE_OFFSET, (64).to_bytes(8, "little"))
    overwrite(segment_file(path, 0), 64 + 2 * 128, bytes(SMALL - 64 - 2 * 128))
    with open_writer(path, index_stride=1) as writer:
        assert writer.next_seq == 2
        assert not (path / layout.seek_index_name(0)).exists()
        for stamp in (500, 510):
            writer.append(1, bytes(130), stamp)  # records of another size at the same places
        assert_seeks_are_right(path, [100, 110, 500, 510])


def test_recovery_drops_the_index_of_every_segment_that_it_seals(tmp_path: Path) -> None:
    path = tmp_path / "q"
    stamps = [100 + 10 * seq for seq in range(20)]
    with open_writer(path, retention=False, index_stride=1, defer_seal_sync=True) as writer:
        for stamp in stamps:
            writer.append(1, b"x", stamp)
        image = kill_image(path, tmp_path / "image")
    for segment_id in (0, 1):
        assert (image / layout.seek_index_name(segment_id)).exists()
    overwrite(segment_file(image, 1), layout.SEG_FLAGS, bytes(4))
    with open_writer(image, retention=False) as writer:
        assert writer.recovery.sealed_segments == [1]
        assert (image / layout.seek_index_name(0)).exists(), "that segment was not touched"
        assert not (image / layout.seek_index_name(1)).exists()
    assert_seeks_are_right(image, stamps)


def test_no_forged_index_ever_gives_a_wrong_seek_result(stamped: Path) -> None:
    """Every field at random, but well-formed; the plain order of the records is the judge."""
    rng = random.Random(11)
    offsets = range(64, SMALL, 64)
    for _ in range(40):
        count = rng.randint(0, 4)
        chosen = sorted(rng.sample(offsets, count))
        seqs = sorted(rng.sample(range(8), count))
        times = [rng.choice([0, *STAMPS, 2**63]) for _ in range(count)]
        forge(
            stamped,
            list(zip(seqs, times, chosen, strict=True)),
            stamps=(min([*times, rng.choice(STAMPS)]), max([*times, rng.choice(STAMPS)])),
            seqs=(0, rng.randint(8, 20)),
        )
        assert_seeks_are_right(stamped, STAMPS)


# -- holes -----------------------------------------------------------------------------------


def with_hole(path: Path) -> None:
    """Twenty records in three segments; of the first sealed one only records 0 to 2 are left."""
    with open_writer(path, retention=False) as writer:
        for number in range(20):
            writer.append(1, b"x", 100 + number)
    overwrite(segment_file(path, 0), 64 + 3 * 128, bytes(SMALL - 64 - 3 * 128))


@pytest.mark.parametrize("way", WAYS)
def test_a_hole_in_a_sealed_segment_is_corrupt_and_the_missing_seqs_are_named(
    tmp_path: Path, way: str
) -> None:
    with_hole(tmp_path / "q")
    with open_reader(tmp_path / "q") as reader:
        seen: list[int] = []
        while len(seen) < 3:
            seen += WAYS["next"](reader)
        for _ in range(3):
            with pytest.raises(Corrupt, match=r"records 3 to 6 are missing; seek_seq\(7\) goes on"):
                WAYS[way](reader)
            assert reader.position == (0, 64 + 3 * 128)
        with pytest.raises(Corrupt, match="records 3 to 6 are missing"):
            reader.wait(1)
        with pytest.raises(Unsupported):
            reader.skip_corrupt()
        assert reader.seek_seq(7) is True
        while found := WAYS[way](reader):
            seen += found
        assert seen == [0, 1, 2, *range(7, 20)]


def test_a_hole_in_the_middle_of_a_segment_is_reported_and_a_seek_goes_on_behind_it(tmp_path: Path) -> None:
    """A page that was not written back, with records before and behind it."""
    path = tmp_path / "q"
    with open_writer(path, retention=False, segment_size=2**14) as writer:
        writer.append_many(1, [b""] * 600)
    overwrite(segment_file(path, 0), 4096, bytes(4096))
    first, behind = 4096 // 64 - 1, 8192 // 64 - 1
    with open_writer(path, retention=False), open_reader(path) as reader:
        seen: list[int] = []
        with pytest.raises(
            Corrupt, match=rf"records {first} to {behind - 1} are missing; seek_seq\({behind}\)"
        ):
            seen.extend(view.seq for view in reader)
        assert seen == list(range(first))
        assert reader.seek_seq(first) is True
        assert next_seq(reader) == behind
        assert reader.seek_seq(behind) is True
        assert [view.seq for view in reader] == list(range(behind, 600))


def test_a_seek_into_a_hole_stands_behind_it(tmp_path: Path) -> None:
    with_hole(tmp_path / "q")
    with open_reader(tmp_path / "q") as reader:
        for seq, found in [(2, 2), (3, 7), (6, 7), (7, 7), (19, 19)]:
            assert reader.seek_seq(seq) is True
            assert next_seq(reader) == found
        assert reader.seek_timestamp(104) is True
        assert next_seq(reader) == 7


def test_a_segment_that_is_full_to_its_end_or_padded_has_no_hole(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", retention=False) as writer, open_reader(tmp_path / "q") as reader:
        sizes = [SMALL - 128, 10, SMALL - 128, SMALL - 192, 0, 700, 400]
        for size in sizes:
            writer.append(1, bytes(size))
        assert [len(view) for view in reader] == sizes


def test_a_reader_that_had_read_what_a_power_loss_took_is_told_of_no_hole(tmp_path: Path) -> None:
    """It stands inside the padding that recovery has put there, and has missed nothing."""
    path = tmp_path / "q"
    with open_writer(path, retention=False) as writer:
        for _ in range(7):
            writer.append(1, b"x")
        with open_reader(path) as reader:
            assert len(list(reader)) == 7
            reader.commit()
        for _ in range(4):
            writer.append(1, b"x")
    overwrite(segment_file(path, 0), layout.SEG_FLAGS, bytes(4))
    overwrite(segment_file(path, 0), 64 + 4 * 128, bytes(SMALL - 64 - 4 * 128))
    with open_writer(path, retention=False), open_reader(path) as reader:
        assert [view.seq for view in reader] == [7, 8, 9, 10]


# -- a new writer ----------------------------------------------------------------------------


def test_a_new_writer_resets_the_count_that_killed_readers_left(tmp_path: Path) -> None:
    open_writer(tmp_path / "q").close()
    overwrite(tmp_path / "q" / layout.CONTROL_FILE, CTRL_WAITERS_PENDING, (5).to_bytes(4, "little"))
    with open_writer(tmp_path / "q"):
        assert control_u32(tmp_path / "q", CTRL_WAITERS_PENDING) == 0


def test_a_reader_asleep_while_a_new_writer_opens_notices_its_first_message_at_once(tmp_path: Path) -> None:
    """The count is reset under the sleeper; unless it is woken, no append knows of it for up to a second."""
    path = tmp_path / "q"
    open_writer(path).close()
    with Child(sleep_until_woken, str(path), None) as reader:
        assert reader.receive() == "open"
        for seq in range(8):
            reader.send(True)
            eventually(
                "the reader is asleep",
                lambda: control_u32(path, CTRL_WAITERS_PENDING) > 0 and sleeps(reader.pid),
            )
            with open_writer(path) as writer:
                writer.append(1, b"", time.monotonic_ns())
                found, report = reader.receive()
            assert (found, report.lost_wakes) == (seq, 0)
        reader.send(False)
        reader.finish()
