"""One topic's segment files: what is written is read, and no crash or failure is mistaken for data."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import Corrupt, CorruptMetadata, Io
from everlog.fault_fs import FaultFs
from everlog.fs import Fs
from everlog.topics.storage import layout
from everlog.topics.storage.segment_store import (
    Listing,
    Mark,
    SegmentPart,
    SegmentStore,
    delete_topic,
    list_topics,
)
from tests.support.files import UnsyncedFs, descriptors_below, tree
from tests.topics.storage.segment_samples import every_failure, every_power_loss, fault_fs

DATA, INDEX = SegmentPart.DATA, SegmentPart.INDEX


def store_at(root: Path, fs: Fs | None = None) -> SegmentStore:
    return SegmentStore(str(root / "0000000A"), fs or UnsyncedFs())


def both_parts(store: SegmentStore, segment_id: int) -> tuple[bytes, bytes]:
    return store.read(segment_id, DATA, 0), store.read(segment_id, INDEX, 0)


def filled(root: Path) -> SegmentStore:
    store = store_at(root)
    store.put(1, b"d" * 200, b"i" * 200)
    return store


# --- Reading and writing ---------------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.integers(0, 2**64 - 1), st.tuples(st.binary(max_size=300), st.binary(max_size=300)), max_size=4
    ),
    st.integers(0, 300),
    st.integers(0, 300),
)
def test_what_is_put_is_listed_and_read(
    tmp_path_factory: pytest.TempPathFactory,
    segments: dict[int, tuple[bytes, bytes]],
    offset: int,
    length: int,
) -> None:
    store = store_at(tmp_path_factory.mktemp("store"))
    for segment_id, (data, index) in segments.items():
        store.put(segment_id, data, index)
    assert store.list() == sorted(segments)
    for segment_id, (data, index) in segments.items():
        assert both_parts(store, segment_id) == (data, index)
        assert (store.length(segment_id, DATA), store.length(segment_id, INDEX)) == (len(data), len(index))
        if offset + length <= len(data):
            assert store.read(segment_id, DATA, offset, length) == data[offset : offset + length]
        elif length:
            with pytest.raises(Corrupt, match="must reach byte"):
                store.read(segment_id, DATA, offset, length)


@given(
    st.lists(st.tuples(st.binary(max_size=99), st.binary(min_size=1, max_size=99), st.booleans()), min_size=1)
)
def test_an_append_replaces_what_a_failed_one_left(
    tmp_path_factory: pytest.TempPathFactory, appends: list[tuple[bytes, bytes, bool]]
) -> None:
    store = store_at(tmp_path_factory.mktemp("store"))
    data = index = b""
    for more_data, more_index, counts in appends:
        store.append(7, len(data), more_data, len(index), more_index)
        if counts:
            data, index = data + more_data, index + more_index
    store.append(7, len(data), b"end", len(index), b"entry")
    assert both_parts(store, 7) == (data + b"end", index + b"entry")


def test_an_append_to_a_file_that_lost_bytes_is_refused(tmp_path: Path) -> None:
    store = filled(tmp_path)
    with pytest.raises(Corrupt, match="ends at byte 200 but must reach byte 201"):
        store.append(1, 201, b"x", 200, b"y")
    with pytest.raises(Corrupt, match="ends at byte 200 but must reach byte 220"):
        store.append(1, 200, b"x", 220, b"y")
    assert both_parts(store, 1) == (b"d" * 200, b"i" * 200)


def test_trimming_cuts_what_is_too_long_and_refuses_what_is_too_short(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.trim(1, 150, 180)
    assert both_parts(store, 1) == (b"d" * 150, b"i" * 180)
    with pytest.raises(Corrupt, match="ends at byte 150 but must reach byte 151"):
        store.trim(1, 151, 180)


def test_a_missing_segment_is_named(tmp_path: Path) -> None:
    store = filled(tmp_path)
    with pytest.raises(Corrupt, match=r"seg-0000000000000002\.data is missing"):
        store.read(2, DATA, 0, 1)
    with pytest.raises(Corrupt, match=r"seg-0000000000000002\.data is missing"):
        store.map(2, DATA, 1)
    with pytest.raises(Corrupt, match="is missing"):
        store.append(2, 5, b"x", 20, b"y")
    assert not store.exists(2, DATA)
    assert store.list() == [1]


def test_a_mapping_shows_marks_and_outlives_the_segment(tmp_path: Path) -> None:
    store = filled(tmp_path)
    mapped = store.map(1, DATA, 150)
    assert mapped is not None
    view = memoryview(mapped)
    assert view.nbytes == 150
    store.mark_deleted(1, [Mark(99, 36, 65)])
    assert view[99] == layout.SEGMENT_DELETED
    store.delete([1])
    assert bytes(view) == b"d" * 99 + b"\xd5" + b"d" * 50


def test_a_file_shorter_than_the_mapping_wanted_is_refused(tmp_path: Path) -> None:
    store = filled(tmp_path)
    with pytest.raises(Corrupt, match="ends at byte 200"):
        store.map(1, DATA, 201)
    assert bytes(memoryview(store.map(1, DATA, 0) or b"")) == b""


def test_marks_change_exactly_their_bytes(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.mark_deleted(1, [Mark(3, 16, 64), Mark(199, 196, 73)])
    data, index = both_parts(store, 1)
    assert data == b"ddd\xd5" + b"d" * 195 + b"\xd5"
    assert index == b"i" * 16 + b"\x40" + b"i" * 179 + b"\x49" + b"i" * 3


@pytest.mark.parametrize("mark", [Mark(200, 16, 64), Mark(5, 200, 64)])
def test_a_mark_behind_the_end_is_refused_and_makes_no_file_longer(tmp_path: Path, mark: Mark) -> None:
    store = filled(tmp_path)
    with pytest.raises(Corrupt, match="must reach byte 201"):
        store.mark_deleted(1, [mark])
    assert (store.length(1, DATA), store.length(1, INDEX)) == (200, 200)


# --- Names -----------------------------------------------------------------------------------------------


def test_a_topic_without_a_directory_has_no_segments(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    assert store.listing() == Listing()
    store.delete([1, 2])
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("name", ["notes.txt", "seg-1.data", "seg-0000000000000001.dat", "seg-.idx"])
def test_a_foreign_name_is_refused(tmp_path: Path, name: str) -> None:
    store = filled(tmp_path)
    (tmp_path / "0000000A" / name).touch()
    with pytest.raises(CorruptMetadata, match="is no file of a topic") as refusal:
        store.list()
    assert name in str(refusal.value)


def test_leftovers_are_told_apart_and_removed(tmp_path: Path) -> None:
    store = filled(tmp_path)
    names = [
        layout.SEGMENT_DATA.name(2),
        layout.SEGMENT_INDEX.name(3),
        layout.SEGMENT_INDEX.name(4),
        layout.SEGMENT_DATA.name(4) + ".tmp",
        layout.SEGMENT_INDEX.name(5) + ".tmp",
    ]
    for name in names:
        (tmp_path / "0000000A" / name).touch()
    listing = store.listing()
    assert listing == Listing((1,), (2,), (3,), (4,), (names[3], names[4]))
    store.remove_leftovers(listing)
    assert store.listing() == Listing((1,), index_only=(3,))


# --- Crashes and failures --------------------------------------------------------------------------------


def change(store: SegmentStore) -> None:
    """Everything a store can do to files."""
    store.put(2, b"D" * 150, b"I" * 150)
    store.append(3, 0, b"x" * 100, 0, b"y" * 100)
    store.append(3, 50, b"z" * 100, 60, b"z" * 100)
    store.sync(3, created=True)
    store.trim(3, 100, 120)
    store.mark_deleted(1, [Mark(9, 16, 64)])
    store.delete([2])


def test_power_loss_during_a_put_leaves_all_or_nothing(tmp_path: Path) -> None:
    def put(root: Path, fs: FaultFs) -> None:
        store_at(root, fs).put(2, b"D" * 150, b"I" * 150)

    seen = set()
    for root, _ in every_power_loss(tmp_path, filled, put):
        store = store_at(root)
        listing = store.listing()
        assert both_parts(store, 1) == (b"d" * 200, b"i" * 200)
        if 2 in listing.complete:
            assert both_parts(store, 2) == (b"D" * 150, b"I" * 150)
        assert listing.index_only == listing.leaving == ()
        seen.add(listing.complete)
    assert seen == {(1,), (1, 2)}


def test_a_put_that_returned_survives_power_loss(tmp_path: Path) -> None:
    fs = fault_fs(tmp_path)
    store_at(tmp_path, fs).put(2, b"D" * 150, b"I" * 150)
    fs.restore()
    assert both_parts(store_at(tmp_path), 2) == (b"D" * 150, b"I" * 150)


def test_power_loss_during_a_removal_leaves_a_segment_or_a_removal_to_finish(tmp_path: Path) -> None:
    def delete(root: Path, fs: FaultFs) -> None:
        store_at(root, fs).delete([1])

    seen = set()
    for root, _ in every_power_loss(tmp_path, filled, delete, seeds=12):
        store = store_at(root)
        listing = store.listing()
        assert listing.data_only == listing.index_only == ()
        seen.add((listing.complete, listing.leaving))
        store.remove_leftovers(listing)
        assert store.listing() == Listing(complete=listing.complete)
    assert seen == {((1,), ()), ((), (1,)), ((), ())}


def test_a_synced_append_survives_power_loss_whole(tmp_path: Path) -> None:
    def append(root: Path, fs: FaultFs) -> None:
        store = store_at(root, fs)
        store.append(3, 0, b"x" * 100, 0, b"y" * 100)
        store.sync(3, created=True)
        store.append(3, 100, b"X" * 100, 100, b"Y" * 100)

    fs = fault_fs(tmp_path)
    append(tmp_path, fs)
    fs.restore()
    data, index = both_parts(store_at(tmp_path), 3)
    assert data.startswith(b"x" * 100)
    assert index.startswith(b"y" * 100)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_every_failed_call_is_reported_leaks_nothing_and_can_be_repeated(tmp_path: Path, number: int) -> None:
    def act(root: Path, fs: FaultFs) -> None:
        change(store_at(root, fs))

    expected = tmp_path / "expected"
    change(filled(expected))
    for root, fs in every_failure(tmp_path, number, filled, act):
        assert descriptors_below(root) == 0
        act(root, fs)
        assert tree(root) == tree(expected)


def test_an_error_names_the_file_and_the_reason(tmp_path: Path) -> None:
    fs = fault_fs(tmp_path)
    fs.fail_when("pwrite", errno.ENOSPC)
    with pytest.raises(Io, match=r"cannot append to .*seg-0000000000000001\.data: No space left") as failure:
        store_at(tmp_path, fs).append(1, 0, b"x", 0, b"y")
    assert failure.value.errno == errno.ENOSPC


# --- Directories of topics -------------------------------------------------------------------------------


def with_topics(root: Path) -> None:
    for topic_id in (10, 2**40):
        SegmentStore(str(root / layout.TOPIC_DIR.name(topic_id)), UnsyncedFs()).put(1, b"data", b"index")


def test_topics_are_listed_and_deleted(tmp_path: Path) -> None:
    with_topics(tmp_path)
    assert list_topics(UnsyncedFs(), str(tmp_path)) == [10, 2**40]
    delete_topic(UnsyncedFs(), str(tmp_path), 10)
    delete_topic(UnsyncedFs(), str(tmp_path), 10)
    assert list_topics(UnsyncedFs(), str(tmp_path)) == [2**40]
    assert list_topics(UnsyncedFs(), str(tmp_path / "nowhere")) == []


def test_a_foreign_directory_is_refused(tmp_path: Path) -> None:
    with_topics(tmp_path)
    (tmp_path / "lost+found").mkdir()
    with pytest.raises(CorruptMetadata, match=r"lost\+found is no directory of a topic"):
        list_topics(UnsyncedFs(), str(tmp_path))


def test_power_loss_during_the_deletion_of_a_topic_keeps_all_or_nothing(tmp_path: Path) -> None:
    seen = set()
    losses = every_power_loss(
        tmp_path, with_topics, lambda root, fs: delete_topic(fs, str(root), 10), seeds=8
    )
    for root, _ in losses:
        found = tuple(list_topics(UnsyncedFs(), str(root)))
        seen.add(found)
        assert sorted(path.name for path in root.iterdir()) == [layout.TOPIC_DIR.name(each) for each in found]
        if 10 in found:
            assert both_parts(store_at(root), 1) == (b"data", b"index")
    assert seen == {(10, 2**40), (2**40,)}
