"""Reading a data directory from outside gives what an engine gives, and changes no byte of it."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.errors import Corrupt, Io, TopicNotFound
from everlog.seq_ranges import Gap
from everlog.topics import Engine, TopicConfig, record_of
from everlog.topics.config import Durability, EngineSettings
from everlog.topics.routing.definitions import RouterConfig
from everlog.topics.storage.bulk_view import BulkView, FramesPiece, open_piece
from everlog.topics.storage.layout import SYNCED_FILE
from tests.support.effort import effort
from tests.support.engines import EngineHarness
from tests.support.files import UnsyncedFs, flip_bit
from tests.support.model_checks import all_records
from tests.topics.storage.bulk_readers import read_planned, read_whole

TAGS = ("a:1", "a:2", "b", None)


@pytest.fixture
def harness(tmp_path: Path) -> EngineHarness:
    """An empty engine with small files."""
    return EngineHarness(tmp_path, file_bytes=8192, segment_max_events=4)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder but the one that a live engine writes after each sync, on another thread."""
    return {
        str(path): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != SYNCED_FILE
    }


def open_engine(folder: Path) -> Engine:
    """An engine with small files and a cold directory."""
    small = EngineSettings(
        shards=2,
        file_bytes=8192,
        segment_max_events=5,
        hot_retain_segments=1,
        cold_dir=str(folder / "cold"),
        snapshot_interval_ms=10**9,
    )
    return Engine.open(str(folder / "data"), small, fs=UnsyncedFs())


def view_of(folder: Path) -> BulkView:
    """What the directory of such an engine holds."""
    return BulkView(str(folder / "data"), str(folder / "cold"))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(("plain", "capped", "source")), st.integers(1, 7)),
        st.tuples(st.just("append"), st.sampled_from(("plain", "source")), st.integers(3, 12)),
        st.tuples(st.just("delete_tag"), st.sampled_from(("plain", "copies")), st.sampled_from(("a:1", "b"))),
        st.tuples(st.just("delete_below"), st.sampled_from(("plain", "source")), st.integers(1, 20)),
        st.tuples(st.just("recreate"), st.just("plain"), st.just(0)),
        st.tuples(st.just("checkpoint"), st.just(""), st.just(0)),
        st.tuples(st.just("relocate"), st.just(""), st.just(0)),
    ),
    min_size=3,
    max_size=25,
)


def take_step(engine: Engine, step: tuple[str, str, int | str], number: int) -> None:
    """Change something."""
    kind, name, argument = step
    if kind == "append":
        assert isinstance(argument, int)
        records = [
            record_of([number, i], tag=TAGS[(number + i) % 4], meta={"m": i} if i % 3 == 0 else None)
            for i in range(argument)
        ]
        engine.wait_for(engine.append(name, records, node="n" if number % 2 else None).commit)
    elif kind == "delete_tag":
        engine.wait_for(engine.delete_records(name, match=str(argument)).commit)
    elif kind == "delete_below":
        engine.wait_for(engine.delete_records(name, before_seq=int(argument)).commit)
    elif kind == "recreate":
        engine.wait_for(engine.delete_topic(name).commit)
        engine.wait_for(engine.put_topic(name, TopicConfig()).commit)
    elif kind == "checkpoint":
        engine.checkpoint()
    else:
        engine.relocate()


@settings(max_examples=effort(60), deadline=None)
@given(steps=STEPS, ending=st.sampled_from(("live", "closed", "killed")))
def test_a_directory_is_seen_as_an_engine_sees_it(
    steps: list[tuple[str, str, int | str]], ending: str
) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        engine = open_engine(folder)
        for name, config in (("plain", TopicConfig()), ("capped", TopicConfig(cap_records=6))):
            engine.wait_for(engine.put_topic(name, config).commit)
        engine.wait_for(engine.put_topic("source", TopicConfig(durability=Durability.FSYNC)).commit)
        engine.wait_for(engine.put_router("r", RouterConfig(source="source", dest="copies")).commit)
        for number, step in enumerate(steps):
            take_step(engine, step, number)
        expected = {name: all_records(engine, name) for name in ("plain", "capped", "source", "copies")}
        if ending == "closed":
            engine.close()
        elif ending == "killed":
            engine.abandon()
        before = contents(folder)
        view = view_of(folder)
        assert {name: read_whole(view, name) for name in expected} == expected
        assert contents(folder) == before
        if ending == "live":
            engine.close()
    finally:
        shutil.rmtree(folder)


def test_a_delete_that_is_only_in_the_log_counts_in_segments(harness: EngineHarness) -> None:
    for number in range(12):
        harness.append("t", record_of(number, tag="odd" if number % 2 else "even"))
    harness.engine.checkpoint()
    harness.delete("t", match="odd")
    assert [record.seq for record in read_whole(BulkView(str(harness.data_dir)), "t")] == [*range(1, 12, 2)]


def test_segments_that_grew_behind_the_snapshot_are_read_up_to_it_and_on_in_the_log(
    harness: EngineHarness,
) -> None:
    for first in (0, 6, 11):
        harness.append_each("t", range(first, first + 5))
        harness.engine.checkpoint()
    expected = all_records(harness.engine, "t")
    harness.engine.abandon()
    max((harness.data_dir / "meta").glob("*.bin")).unlink()
    before = contents(harness.data_dir)
    assert read_whole(BulkView(str(harness.data_dir)), "t") == expected
    assert contents(harness.data_dir) == before


def test_segments_on_the_cold_disk_are_read_there(tmp_path: Path) -> None:
    engine = open_engine(tmp_path)
    engine.wait_for(engine.append("t", [record_of(number) for number in range(40)]).commit)
    engine.checkpoint()
    assert engine.relocate() > 2
    expected = all_records(engine, "t")
    engine.close()
    pieces = view_of(tmp_path).plan("t", 1, 41)
    folders = [piece.folders for piece in pieces if not isinstance(piece, Gap | FramesPiece)]
    assert str(tmp_path / "cold") in folders[0][0]
    assert len({len(tried) for tried in folders}) == 2, "a hot one may move before it is read"
    assert read_whole(view_of(tmp_path), "t") == expected


def test_a_directory_that_is_written_to_is_seen_whole_up_to_some_moment(tmp_path: Path) -> None:
    started, done = threading.Event(), threading.Event()

    def write() -> None:
        engine = open_engine(tmp_path)
        for number in range(150):
            engine.wait_for(engine.append("t", [record_of([number, i]) for i in range(5)]).commit)
            if number % 5 == 0:
                engine.checkpoint()
                engine.relocate()
            started.set()
        engine.close()
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert started.wait(60)
    seen = 0
    while True:
        is_last = done.is_set()
        view = view_of(tmp_path)
        for piece in view.plan("t", 1, view.bounds("t").end):
            assert not isinstance(piece, Gap)
        end = view.bounds("t").end
        assert end > seen, "what was there once is there later"
        seen = end - 1
        if is_last:
            break
    writer.join()
    assert [record.seq for record in read_whole(view, "t")] == list(range(1, 751))


def test_a_range_below_the_floor_has_its_gap_named(harness: EngineHarness) -> None:
    harness.put("t", cap_records=3)
    harness.append_each("t", range(10))
    view = BulkView(str(harness.data_dir))
    records, gaps = read_planned(view, "t", 2, 11)
    assert gaps == [Gap(2, 8, "cap")]
    assert [record.seq for record in records] == [8, 9, 10]


def test_seqs_that_the_topic_never_had_mean_that_it_was_recreated(harness: EngineHarness) -> None:
    harness.append_each("t", range(3))
    view = BulkView(str(harness.data_dir))
    records, gaps = read_planned(view, "t", 2, 9)
    assert [record.seq for record in records] == [2, 3]
    assert gaps == [Gap(4, 9, "recreated")]
    assert read_planned(view, "t", 7, 9) == ([], [Gap(7, 9, "recreated")])


def test_a_time_is_found_among_segments_and_log(harness: EngineHarness) -> None:
    harness.append_each("t", range(10))
    harness.engine.checkpoint()
    harness.append_each("t", range(5))
    view = BulkView(str(harness.data_dir))
    times = [record.ts for record in read_whole(view, "t")]
    for ts in {0, *times, times[-1] + 1}:
        assert view.seq_at_time("t", ts) == 1 + sum(time < ts for time in times)


def test_files_that_vanish_after_planning_are_told_and_not_read_as_empty(harness: EngineHarness) -> None:
    harness.append_each("t", range(10))
    harness.engine.checkpoint()
    harness.engine.close()
    pieces = BulkView(str(harness.data_dir)).plan("t", 1, 11)
    assert len(pieces) > 1
    shutil.rmtree(harness.data_dir / "topics")
    for piece in pieces:
        assert not isinstance(piece, Gap)
        assert open_piece(piece) is None


def test_a_damaged_directory_is_refused_as_at_a_start(harness: EngineHarness) -> None:
    harness.append_each("t", range(10))
    harness.engine.close()
    index = min((harness.data_dir / "topics").rglob("*.idx"))
    flip_bit(index, 4)
    with pytest.raises(Corrupt, match="restore"):
        BulkView(str(harness.data_dir))


def test_what_is_not_there_is_named(harness: EngineHarness, tmp_path: Path) -> None:
    with pytest.raises(Io, match="no data directory"):
        BulkView(str(tmp_path / "elsewhere"))
    with pytest.raises(TopicNotFound, match="'nothing'"):
        BulkView(str(harness.data_dir)).bounds("nothing")
