"""Spec 9: seeking by seq and by time, with, without and against the index files."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from everlog.errors import Corrupt, SegmentMissing
from everlog.fault_fs import FaultFs
from everlog.queue import QueueReader
from everlog.queue.seek import Seeker, SegmentPosition
from everlog.queue.seq_bounds import SeqBounds
from tests.support import ring_twin
from tests.support.effort import effort
from tests.support.files import UnsyncedFs
from tests.support.queues import (
    SMALL,
    flip,
    kill_image,
    open_reader,
    open_writer,
    overwrite,
    segment_file,
    segment_ids,
)

COUNT = 40
"""Records of 128 bytes, seven to a segment, with timestamps 1000, 1010, ... in pairs of equals."""


def stamp(seq: int) -> int:
    return 1000 + seq // 2 * 10


def fill(path: Path, **settings_: object) -> Path:
    """A closed queue of COUNT records."""
    with open_writer(path, retention=False, **{"index_stride": 3, **settings_}) as writer:
        for seq in range(COUNT):
            writer.append(1, seq.to_bytes(8, "little"), stamp(seq))
    return path


def drop_indexes(path: Path) -> None:
    for file in path.glob("*.idx"):
        file.unlink()


def next_seq(reader: QueueReader) -> int | None:
    """The seq of the next message, without caring for the rest."""
    view = reader.next()
    return None if view is None else view.seq


def shorten_indexes(path: Path) -> None:
    for file in path.glob("*.idx"):
        file.write_bytes(file.read_bytes()[:100])


def empty_indexes(path: Path) -> None:
    for file in path.glob("*.idx"):
        file.write_bytes(b"")


def mix_up_indexes(path: Path) -> None:
    shutil.copy(path / "000000001.idx", path / "000000002.idx")


VARIANTS: dict[str, Callable[[Path], object]] = {
    "with all indexes": lambda path: path,
    "without any index": drop_indexes,
    "with one index missing": lambda path: (path / "000000002.idx").unlink(),
    "with short indexes": shorten_indexes,
    "with empty indexes": empty_indexes,
    "with the index of another segment": mix_up_indexes,
}


@pytest.fixture(params=VARIANTS)
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = fill(tmp_path / "q")
    VARIANTS[request.param](path)
    return path


def test_a_seek_by_seq_stands_before_the_first_record_with_at_least_that_seq(queue: Path) -> None:
    with open_reader(queue, None) as reader:
        for seq in [*range(COUNT), *reversed(range(COUNT))]:
            assert reader.seek_seq(seq) is True
            assert next_seq(reader) == seq, "found, and not consumed by the seek"


def test_a_seek_by_time_stands_before_the_first_record_at_or_after_it(queue: Path) -> None:
    with open_reader(queue, None) as reader:
        for target in range(995, stamp(COUNT - 1) + 1):
            expected = next(seq for seq in range(COUNT) if stamp(seq) >= target)
            assert reader.seek_timestamp(target) is True
            assert next_seq(reader) == expected


@pytest.mark.parametrize("target", [1.7e9, "5", None])
def test_a_seek_to_no_whole_number_is_refused_and_moves_nothing(queue: Path, target: Any) -> None:
    """time.time() counts seconds: taken for nanoseconds it would lie before everything."""
    with open_reader(queue, None) as reader:
        reader.seek_seq(3)
        with pytest.raises(TypeError, match="whole number of nanoseconds"):
            reader.seek_timestamp(target)
        with pytest.raises(TypeError, match="whole number of messages"):
            reader.seek_seq(target)
        assert next_seq(reader) == 3


def test_the_first_and_last_seq_and_the_message_at_a_position_are_found(queue: Path) -> None:
    with open_reader(queue) as reader, open_reader(queue, "other") as looked_at:
        bounds = SeqBounds(looked_at)
        assert (bounds.first, bounds.last) == (0, COUNT - 1)
        for seq in range(COUNT):
            assert bounds.at_or_after(*reader.position) == (seq, stamp(seq))
            assert next_seq(reader) == seq
        assert bounds.at_or_after(*reader.position) is None
        assert next_seq(looked_at) == 0  # it moved nothing


def test_the_last_seq_is_found_behind_damage(tmp_path: Path) -> None:
    path = fill(tmp_path / "q", segment_size=SMALL * 2)
    last = segment_ids(path)[-1]
    with open_reader(path) as reader:
        reader.seek_seq(COUNT - 3)
        assert reader.position[0] == last
        overwrite(segment_file(path, last), reader.position[1], bytes(64))  # no walk goes past it
    with open_reader(path) as reader:
        assert SeqBounds(reader).last == COUNT - 1


def test_a_seek_beyond_the_last_record_stands_at_the_end(queue: Path) -> None:
    with open_writer(queue) as writer, open_reader(queue, None) as reader:
        for seek in (lambda: reader.seek_seq(COUNT), lambda: reader.seek_timestamp(stamp(COUNT - 1) + 1)):
            reader.seek_seq(0)
            assert seek() is False
            assert reader.next() is None
        writer.append(1, b"new", 9999)
        assert next_seq(reader) == COUNT
        assert reader.seek_seq(2**64 - 1) is False
        assert reader.next() is None


@pytest.mark.parametrize("target", [-1, -(2**70), 0])
def test_a_seek_before_everything_stands_at_the_oldest_record(tmp_path: Path, target: int) -> None:
    with open_reader(fill(tmp_path / "q"), None) as reader:
        for seek in (reader.seek_seq, reader.seek_timestamp):
            assert seek(target) is True
            assert next_seq(reader) == 0


@pytest.mark.parametrize("target", [2**64, 2**100])
def test_a_seek_beyond_all_numbers_stands_at_the_end(tmp_path: Path, target: int) -> None:
    with open_reader(fill(tmp_path / "q"), None) as reader:
        for seek in (reader.seek_seq, reader.seek_timestamp):
            reader.seek_seq(0)
            assert seek(target) is False
            assert reader.next() is None


def test_a_seek_is_not_committed(tmp_path: Path) -> None:
    path = fill(tmp_path / "q")
    with open_reader(path) as reader:
        reader.next()
        reader.commit()
        committed = reader.committed_position
        reader.seek_seq(30)
        reader.heartbeat()
        assert reader.committed_position == committed
    with open_reader(path) as reader:
        assert next_seq(reader) == 1
        reader.seek_seq(20)
        reader.commit()
    with open_reader(path) as reader:
        assert next_seq(reader) == 20


def test_a_seek_in_an_empty_queue_finds_nothing(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q") as reader:
        assert reader.seek_seq(0) is False
        assert reader.seek_timestamp(0) is False
        writer.append(1, b"x")
        assert next_seq(reader) == 0


@pytest.mark.parametrize("by_time", [False, True])
def test_a_seek_does_not_pass_by_records_that_come_while_it_looks_for_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_time: bool
) -> None:
    find_end = Seeker.end
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q") as reader:

        def end_after_more(seeker: Seeker) -> SegmentPosition | None:
            for seq in range(4):
                writer.append(1, b"", stamp(seq))
            return find_end(seeker)

        monkeypatch.setattr(Seeker, "end", end_after_more)
        assert reader.seek_timestamp(stamp(2)) if by_time else reader.seek_seq(2)
        assert next_seq(reader) == 2


def test_a_seek_over_deleted_segments_starts_at_the_oldest_that_is_there(tmp_path: Path) -> None:
    path = fill(tmp_path / "q")
    for segment_id in (0, 1):
        segment_file(path, segment_id).unlink()
    with open_reader(path, None, "earliest") as reader:
        assert reader.seek_seq(3) is True
        assert next_seq(reader) == 14
        assert reader.seek_timestamp(0) is True
        assert next_seq(reader) == 14


def test_a_seek_in_a_queue_without_segments_says_so(tmp_path: Path) -> None:
    path = fill(tmp_path / "q")
    with open_reader(path, None) as reader:
        for segment_id in segment_ids(path):
            segment_file(path, segment_id).unlink()
        with pytest.raises(SegmentMissing, match="no segment to seek in"):
            reader.seek_seq(0)


def test_a_seek_passes_over_segments_that_hold_only_padding(tmp_path: Path) -> None:
    path = fill(tmp_path / "q")
    for segment_id in (0, 2, 3):
        data = bytearray(segment_file(path, segment_id).read_bytes())
        ring_twin.pad(data, 64)
        overwrite(segment_file(path, segment_id), 0, bytes(data))
    for prepare in (lambda: None, lambda: drop_indexes(path)):
        prepare()
        with open_reader(path, None) as reader:
            left = [seq for seq in range(COUNT) if seq // 7 not in (0, 2, 3)]
            for seq in range(COUNT):
                assert reader.seek_seq(seq) is True
                assert next_seq(reader) == next(seq_ for seq_ in left if seq_ >= seq)
                assert reader.seek_timestamp(stamp(seq)) is True
                assert next_seq(reader) == next(seq_ for seq_ in left if stamp(seq_) >= stamp(seq))


def test_a_prepared_segment_above_the_head_is_never_a_target(tmp_path: Path) -> None:
    path = fill(tmp_path / "q")
    above = max(segment_ids(path)) + 1
    data = bytearray(segment_file(path, 0).read_bytes())
    data[8:12] = above.to_bytes(4, "little")
    segment_file(path, above).write_bytes(data)
    with open_reader(path, None) as reader:
        assert reader.seek_seq(COUNT) is False
        assert reader.position[0] < above
        assert reader.next() is None


def test_a_failed_seek_leaves_the_reader_where_it_was(tmp_path: Path) -> None:
    path = fill(tmp_path / "q")
    with open_reader(path, None) as reader:
        assert next_seq(reader) == 0
        before = reader.position
        overwrite(segment_file(path, 3), 0, b"JUNK")
        with pytest.raises(Corrupt, match="magic"):
            reader.seek_seq(23)
        assert reader.position == before
        assert next_seq(reader) == 1


STAMPS_THAT_GO_BACK = [100, 200, 50, 60, 300, 10, 250]


def test_without_an_index_times_that_go_back_are_found_by_the_first_record_that_reaches_them(
    tmp_path: Path,
) -> None:
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q", None) as reader:
        for value in STAMPS_THAT_GO_BACK:
            writer.append(1, b"x", value)
        for target, expected in ((1, 0), (100, 0), (101, 1), (200, 1), (201, 4), (300, 4)):
            assert reader.seek_timestamp(target) is True
            assert next_seq(reader) == expected
        assert reader.seek_timestamp(301) is False


def test_with_an_index_times_that_go_back_are_found_at_or_after_the_target(tmp_path: Path) -> None:
    """Best effort: perhaps not the first such record, but never one before the target."""
    with open_writer(tmp_path / "q", index_stride=2) as writer, open_reader(tmp_path / "q", None) as reader:
        for value in STAMPS_THAT_GO_BACK:
            writer.append(1, b"x", value)
        writer.flush_sync()
        for target in range(1, 300):
            assert reader.seek_timestamp(target) is True
            seq = next_seq(reader)
            assert seq is not None
            assert STAMPS_THAT_GO_BACK[seq] >= target


def test_records_added_after_the_last_flush_of_the_index_are_found(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", index_stride=1, index_flush_records=2) as writer:
        for seq in range(5):
            writer.append(1, b"x", 100 + seq)
        with open_reader(tmp_path / "q", None) as reader:
            assert reader.seek_seq(4) is True
            assert next_seq(reader) == 4
            assert reader.seek_timestamp(104) is True
            assert next_seq(reader) == 4


def check_stale(path: Path) -> None:
    """Every record is found by its time, whatever the index of its segment says."""
    with open_reader(path, None) as reader:
        for seq, target in enumerate((10, 20, 30, 40, 50)):
            assert reader.seek_timestamp(target) is True
            assert next_seq(reader) == seq


def test_a_writer_that_died_after_a_flush_leaves_no_index_that_hides_records(tmp_path: Path) -> None:
    image = tmp_path / "image"
    with open_writer(tmp_path / "q", index_stride=1, retention=False) as writer:
        for target in (10, 20):
            writer.append(1, b"x", target)
        writer.flush_sync()
        for target in (30, 40):
            writer.append(1, b"x", target)
        kill_image(tmp_path / "q", image)
    with open_writer(image, retention=False) as writer:
        writer.append(1, bytes(SMALL - 128), 50)
    check_stale(image)


def test_an_index_that_could_not_be_written_at_the_roll_hides_no_records(tmp_path: Path) -> None:
    fs = FaultFs(tmp_path, inner=UnsyncedFs())
    with open_writer(tmp_path / "q", fs=fs, index_stride=1, retention=False) as writer:
        for target in (10, 20):
            writer.append(1, b"x", target)
        writer.flush_sync()
        for target in (30, 40):
            writer.append(1, b"x", target)
        fs.fail_when("pwrite", 28, path="000000000.idx.tmp")
        writer.append(1, bytes(SMALL - 128), 50)
    check_stale(tmp_path / "q")


# -- a damaged index only makes a seek scan -------------------------------------------------------


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A queue to be copied. Its payloads look like records, so that a wrong offset finds something."""
    path = tmp_path_factory.mktemp("seek") / "q"
    forged = bytearray(SMALL)
    for offset in range(64, SMALL, 64):
        ring_twin.append(forged, offset, 2, 1010, 1, b"")
    with open_writer(path, index_stride=3, retention=False) as writer:
        for seq in range(12):
            writer.append(1, bytes(forged[64:192]), 1000 + 10 * seq)
    return path


@settings(max_examples=effort(150))
@given(
    segment_id=st.integers(0, 2),
    damage=st.lists(st.tuples(st.integers(0, 80 + 24 * 2 - 1), st.integers(1, 255)), min_size=1, max_size=2),
    seq=st.integers(0, 12),
)
# The latest timestamp a little earlier; an entry that points into a payload; entries that claim the seq and
# the time of an earlier record.
@example(segment_id=0, damage=[(64, 0x18)], seq=4)
@example(segment_id=0, damage=[(120, 0x40)], seq=3)
@example(segment_id=0, damage=[(104, 0x02)], seq=1)
@example(segment_id=0, damage=[(112, 0xEA), (113, 0x07)], seq=1)
def test_no_damage_to_an_index_changes_where_a_seek_lands(
    original: Path,
    tmp_path_factory: pytest.TempPathFactory,
    segment_id: int,
    damage: list[tuple[int, int]],
    seq: int,
) -> None:
    path = kill_image(original, tmp_path_factory.mktemp("copy") / "q")
    file = path / f"{segment_id:09d}.idx"
    for offset, mask in damage:
        flip(file, offset % len(file.read_bytes()), mask)
    with open_reader(path, None) as reader:
        assert reader.seek_seq(seq) is (seq < 12)
        assert next_seq(reader) == (seq if seq < 12 else None)
        assert reader.seek_timestamp(995 + 10 * seq) is (seq < 12)
        assert next_seq(reader) == (seq if seq < 12 else None)
    shutil.rmtree(path)
