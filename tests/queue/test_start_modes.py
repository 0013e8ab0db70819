"""Spec 4: where a reader starts, in each mode, with and without a saved position, and what it may write."""

import struct
from pathlib import Path

import pytest

from everlog.errors import Corrupt, CorruptMetadata, ReaderAlreadyActive, SegmentMissing
from everlog.fs import OsFs
from everlog.queue import StartMode
from everlog.queue.reader_meta import ReaderPosition, list_readers
from tests.support.files import hooked_fs, tree
from tests.support.queues import SMALL, open_reader, open_writer, overwrite, segment_file, segment_ids

COUNT = 20
PER_SEGMENT = 7
ALL_MODES = [mode.value for mode in StartMode]
RESUMING = ["resume-strict", "resume-snapshot", "resume-latest"]


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """A closed queue of three segments, seven records each; the last is not full."""
    path = tmp_path / "q"
    with open_writer(path, retention=False) as writer:
        for seq in range(COUNT):
            writer.append(1, seq.to_bytes(8, "little"))
    return path


def save_position(queue: Path, seq: int, name: str = "alpha") -> None:
    """Let a reader commit before `seq`."""
    with open_reader(queue, name, "earliest") as reader:
        reader.seek_seq(seq)
        reader.commit()


def first_seq(queue: Path, start: str) -> int | None:
    """The first message of a reader that starts so; it commits nothing."""
    with open_reader(queue, "alpha", start) as reader:
        view = reader.next()
        return None if view is None else view.seq


def delete_segments(queue: Path, *segment_ids_: int) -> None:
    for segment_id in segment_ids_:
        segment_file(queue, segment_id).unlink()


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("resume-strict", 0),
        ("resume-snapshot", 0),
        ("resume-latest", 0),
        ("latest", None),
        ("earliest", 0),
    ],
)
@pytest.mark.parametrize("deleted", [0, 1, 2])
def test_without_a_saved_position_a_reader_starts_at_the_oldest_segment(
    queue: Path, start: str, expected: int | None, deleted: int
) -> None:
    """No meta file is Earliest, on an aged queue too; only Latest looks at the head."""
    delete_segments(queue, *range(deleted))
    assert first_seq(queue, start) == (None if expected is None else deleted * PER_SEGMENT)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("resume-strict", 9),
        ("resume-snapshot", 9),
        ("resume-latest", 9),
        ("latest", None),
        ("earliest", 0),
    ],
)
def test_with_a_saved_position_the_mode_decides(queue: Path, start: str, expected: int | None) -> None:
    save_position(queue, 9)
    assert first_seq(queue, start) == expected


@pytest.mark.parametrize(
    ("start", "expected"),
    [("resume-snapshot", 14), ("resume-latest", None), ("latest", None), ("earliest", 14)],
)
def test_if_the_saved_segment_is_gone_the_mode_decides(queue: Path, start: str, expected: int | None) -> None:
    save_position(queue, 9)
    delete_segments(queue, 0, 1)
    assert first_seq(queue, start) == expected


def test_strict_refuses_to_go_on_with_a_gap_and_names_the_ways_out(queue: Path) -> None:
    save_position(queue, 9)
    delete_segments(queue, 0, 1)
    before = tree(queue)
    with pytest.raises(
        SegmentMissing, match=r"reader segment missing: 'alpha' stands at segment 1 .*resume-snap"
    ):
        open_reader(queue, "alpha", "resume-strict")
    assert tree(queue) == before, "a failed open writes nothing"
    assert first_seq(queue, "resume-snapshot") == 14


def test_the_default_is_strict(queue: Path) -> None:
    save_position(queue, 9)
    delete_segments(queue, 0, 1)
    with pytest.raises(SegmentMissing):
        open_reader(queue)


def test_a_gap_elsewhere_does_not_matter_to_strict(queue: Path) -> None:
    save_position(queue, 9)
    delete_segments(queue, 0)
    assert first_seq(queue, "resume-strict") == 9


def test_latest_stands_behind_the_last_record_and_sees_the_next(queue: Path) -> None:
    with open_writer(queue, retention=False) as writer, open_reader(queue, "alpha", "latest") as reader:
        assert reader.next() is None
        writer.append(1, b"new")
        view = reader.next()
        assert view is not None
        assert view.seq == COUNT


def test_latest_trusts_the_records_and_not_the_published_offset(queue: Path) -> None:
    """After a crash it may lag behind, after a power loss run ahead."""
    for offset in (64, 128, SMALL):
        overwrite(queue / "control.meta", 256, struct.pack("<Q", offset))
        with open_reader(queue, None, "latest") as reader:
            assert reader.position == (2, 64 + 6 * 128)


def test_latest_on_a_full_head_sees_what_comes_next(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", retention=False) as writer:
        writer.append(1, bytes(SMALL - 128))
        with open_reader(tmp_path / "q", "alpha", "latest") as reader:
            writer.append(1, b"next")
            assert [bytes(view) for view in reader] == [b"next"]


@pytest.mark.parametrize("start", ALL_MODES)
def test_every_mode_works_on_an_empty_queue(tmp_path: Path, start: str) -> None:
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q", "alpha", start) as reader:
        assert reader.next() is None
        assert reader.position == (0, 64)
        writer.append(1, b"x")
        assert [bytes(view) for view in reader] == [b"x"]


# -- what opening writes ---------------------------------------------------------------------------


def saved(queue: Path) -> tuple[int, int]:
    readers = list_readers(OsFs(), str(queue))
    assert readers is not None
    position = readers["alpha"]
    assert isinstance(position, ReaderPosition)
    return position.segment_id, position.offset


@pytest.mark.parametrize("start", ALL_MODES)
def test_a_new_reader_registers_where_it_starts(queue: Path, start: str) -> None:
    with open_reader(queue, "alpha", start) as reader:
        assert saved(queue) == reader.position == reader.committed_position


@pytest.mark.parametrize("start", ALL_MODES)
def test_a_saved_position_stays_until_the_reader_commits(queue: Path, start: str) -> None:
    save_position(queue, 9)
    before = saved(queue)
    with open_reader(queue, "alpha", start) as reader:
        reader.drain(2)
        reader.heartbeat()
        assert saved(queue) == before == reader.committed_position
        reader.commit()
        assert saved(queue) == reader.position


@pytest.mark.parametrize("start", ["resume-snapshot", "resume-latest", "latest", "earliest"])
def test_a_position_whose_segment_is_gone_is_replaced(queue: Path, start: str) -> None:
    save_position(queue, 3)
    delete_segments(queue, 0)
    with open_reader(queue, "alpha", start) as reader:
        assert saved(queue) == reader.position


@pytest.mark.parametrize("start", ALL_MODES)
def test_a_second_reader_of_the_same_name_is_refused_and_nothing_is_written(queue: Path, start: str) -> None:
    with open_reader(queue, "alpha") as first:
        first.drain(3)
        before = tree(queue)
        with pytest.raises(ReaderAlreadyActive, match="reader 'alpha' is already open"):
            open_reader(queue, "alpha", start)
        assert tree(queue) == before
        open_reader(queue, "beta", start).close()
        assert first.drain(1)[0].seq == 3


@pytest.mark.parametrize("start", ALL_MODES)
@pytest.mark.parametrize("damage", ["meta", "offset", "segment"])
def test_an_open_that_fails_on_damage_writes_nothing(queue: Path, start: str, damage: str) -> None:
    save_position(queue, 9)
    meta = queue / "readers/alpha.meta"
    if damage == "meta":
        overwrite(meta, 0, b"\xff" * 80)
    elif damage == "offset":
        meta.write_bytes(struct.pack("<QQ", 1, 100))
    else:
        for segment_id in segment_ids(queue):
            overwrite(segment_file(queue, segment_id), 0, b"JUNK")
    before = tree(queue)
    with pytest.raises((Corrupt, CorruptMetadata)):
        open_reader(queue, "alpha", start)
    assert tree(queue) == before


def test_a_new_reader_that_fails_to_open_leaves_no_registration(queue: Path) -> None:
    for segment_id in segment_ids(queue):
        overwrite(segment_file(queue, segment_id), 0, b"JUNK")
    for start in ALL_MODES:
        with pytest.raises(Corrupt):
            open_reader(queue, "alpha", start)
    assert not (queue / "readers").exists()


@pytest.mark.parametrize("start", RESUMING)
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (struct.pack("<Q", 64 + 3 * 128), 3),
        (struct.pack("<Q", 0), 0),
        (struct.pack("<QQ", 1, 64 + 128), 8),
        (struct.pack("<QQ", 2, 0), 14),
    ],
)
def test_a_legacy_position_is_resumed_and_upgraded(
    queue: Path, start: str, content: bytes, expected: int
) -> None:
    (queue / "readers").mkdir()
    (queue / "readers/alpha.meta").write_bytes(content)
    assert first_seq(queue, start) == expected
    assert len((queue / "readers/alpha.meta").read_bytes()) == 80


def test_a_meta_file_of_zeros_is_a_new_reader(queue: Path) -> None:
    (queue / "readers").mkdir()
    (queue / "readers/alpha.meta").write_bytes(bytes(80))
    delete_segments(queue, 0)
    assert first_seq(queue, "resume-strict") == PER_SEGMENT


def test_a_segment_deleted_while_opening_only_moves_the_start(queue: Path) -> None:
    """Retention may delete the oldest segment between listing and opening it."""
    deleted: list[int] = []

    def before(name: str, arguments: tuple[object, ...]) -> None:
        if name == "open" and str(arguments[0]).endswith("000000000.q") and not deleted:
            deleted.append(0)
            delete_segments(queue, 0)

    with open_reader(queue, "alpha", "earliest", fs=hooked_fs(before)) as reader:
        assert deleted == [0]
        assert reader.drain(1)[0].seq == PER_SEGMENT
        assert saved(queue) == (1, 64)


def test_a_segment_deleted_between_opening_and_registering_moves_the_start(queue: Path) -> None:
    deleted: list[int] = []

    def before(name: str, arguments: tuple[object, ...]) -> None:
        if name in ("rename", "rename_noreplace") and not deleted:
            deleted.append(0)
            delete_segments(queue, 0)

    with open_reader(queue, "alpha", "earliest", fs=hooked_fs(before)) as reader:
        assert deleted == [0]
        assert reader.drain(1)[0].seq == PER_SEGMENT
        assert saved(queue) == (1, 64)
