"""Coming back: what is believed, what is refused, and that a second start changes nothing."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from everlog.errors import Corrupt, CorruptMetadata, EverlogError, Io, TopicDamaged, UnsupportedVersion
from everlog.topics import record_of
from everlog.topics.storage.recovery import Progress
from tests.support.engines import EngineHarness, sized
from tests.support.files import flip_bit, names_below

FILE_BYTES = 8192


@pytest.fixture
def harness(tmp_path: Path) -> EngineHarness:
    """An empty engine with small files."""
    return EngineHarness(tmp_path, file_bytes=FILE_BYTES, segment_max_events=4)


def log_paths(harness: EngineHarness) -> list[Path]:
    """The log files, oldest first."""
    return sorted((harness.data_dir / "wal").rglob("wal-*.log"), key=lambda path: path.name)


def snapshot_paths(harness: EngineHarness) -> list[Path]:
    """The snapshots, oldest first."""
    return sorted((harness.data_dir / "meta").glob("*.bin"))


def last_frame_offset(path: Path) -> int:
    """Some offset within the last frame that was written to a log file."""
    return len(path.read_bytes().rstrip(b"\0")) - 3


# --- Torn and damaged logs -------------------------------------------------------------------------------


def test_a_torn_tail_is_cut_and_never_read_as_data(harness: EngineHarness) -> None:
    harness.put("t", durability="fsync")
    harness.append_each("t", range(4))
    harness.engine.append("t", [record_of(4)])
    harness.engine.write()
    harness.engine.abandon()
    path = log_paths(harness)[-1]
    torn = len(path.read_bytes().rstrip(b"\0")) - 3
    with path.open("r+b") as file:
        file.truncate(torn)
    harness.open_with()
    assert harness.values("t") == [0, 1, 2, 3]
    report = harness.engine.recovery
    assert report is not None
    assert report.cut_bytes > 0
    assert report.damage == []
    assert harness.append("t", "new").first_seq == 5
    for again in (harness.crash, harness.crash, harness.restart):
        again()
        assert harness.values("t") == [0, 1, 2, 3, "new"]


def test_damage_in_one_shard_does_not_touch_the_others(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path, shards=2, file_bytes=FILE_BYTES)
    names = [f"t{number}" for number in range(6)]
    for name in names:
        harness.put(name, durability="fsync")
        harness.append_each(name, [sized(1000)] * 12)
    shards = {name: harness.engine._core.topics[name].shard for name in names}
    harness.engine.abandon()
    first = min((harness.data_dir / "wal" / "shard-00").glob("*.log"))
    flip_bit(first, 30)
    harness.open_with(shards=2, file_bytes=FILE_BYTES, on_damage="serve")
    counts = {state.topic: state.count for state in harness.engine.topics()}
    assert {name: counts.get(name, 0) for name in names if shards[name] == 1} == {
        name: 12 for name in names if shards[name] == 1
    }


@pytest.mark.parametrize("seed", range(4))
def test_what_a_start_after_a_kill_shows_survives_a_power_loss(tmp_path: Path, seed: int) -> None:
    """A file that was ended but not synced yet has its records in the page cache only."""
    harness = EngineHarness(tmp_path, seed, file_bytes=FILE_BYTES)
    harness.put("t", durability="disk")
    harness.append_each("t", range(20))
    harness.engine._core.shards[0].wal.rotate()
    harness.crash()
    assert harness.values("t") == list(range(20))
    harness.lose_power()
    assert harness.values("t") == list(range(20))


def test_recovery_run_twice_gives_the_same_state(harness: EngineHarness) -> None:
    harness.put("t", durability="disk", cap_records=30)
    harness.append_each("t", [record_of(number, tag=str(number % 3)) for number in range(50)])
    harness.checkpoint()
    harness.append_each("t", range(20))
    harness.delete("t", match="1")
    harness.crash()
    first = (harness.items("t"), harness.state("t"))
    for _ in range(2):
        harness.crash()
        assert (harness.items("t"), harness.state("t")) == first


def test_progress_is_told_and_ends_at_its_total(harness: EngineHarness) -> None:
    harness.append_each("t", range(10))
    harness.checkpoint()
    harness.append_each("t", range(10))
    harness.engine.abandon()
    steps: list[Progress] = []
    engine = type(harness.engine).open(
        harness.data_dir, harness.settings, clock=harness.clock, progress=steps.append
    )
    engine.close()
    assert {step.phase for step in steps} == {"segments", "log"}
    for phase in ("segments", "log"):
        done = [step.done for step in steps if step.phase == phase]
        assert done == sorted(done)
        last = [step for step in steps if step.phase == phase][-1]
        assert last.done == last.total


# --- Snapshots -------------------------------------------------------------------------------------------


def fill(harness: EngineHarness) -> list[int]:
    """A topic with evicted, deleted, saved and unsaved records, and two snapshots; returns its seqs."""
    harness.put("t", durability="fsync", cap_records=40)
    for start in range(0, 60, 15):
        harness.append_each("t", [sized(300, tag=str(number % 5)) for number in range(15)])
        harness.delete("t", match="3", before_seq=start)
        harness.checkpoint()
    harness.append_each("t", range(5))
    harness.delete("t", match="2")
    return harness.seqs("t")


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_newest_snapshot_falls_back_to_the_older_one_without_any_loss(
    harness: EngineHarness, damage: str
) -> None:
    expected, gap, state = fill(harness), harness.gap("t"), harness.state("t")
    harness.engine.abandon()
    newest = snapshot_paths(harness)[-1]
    if damage == "flip":
        flip_bit(newest, newest.stat().st_size // 2)
    else:
        newest.write_bytes(newest.read_bytes()[:40] if damage == "cut" else b"")
    harness.open_with()
    assert (harness.seqs("t"), harness.gap("t"), harness.state("t").head_seq) == (
        expected,
        gap,
        state.head_seq,
    )
    report = harness.engine.recovery
    assert report is not None
    assert len(report.rejected_snapshots) == 1
    assert newest.name in report.rejected_snapshots[0]
    harness.restart()
    assert (harness.seqs("t"), harness.gap("t")) == (expected, gap)


def test_a_fall_back_works_for_segments_that_were_moved_meanwhile(tmp_path: Path) -> None:
    cold_dir = str(tmp_path / "cold")
    harness = EngineHarness(tmp_path, segment_max_events=5, hot_retain_segments=0, cold_dir=cold_dir)
    harness.append("t", 1, 2, 3)
    harness.checkpoint()
    harness.append("t", *range(4, 11))
    harness.checkpoint()
    harness.engine.relocate()
    harness.engine.abandon()
    snapshot_paths(harness)[-1].write_bytes(b"damaged")
    harness.open_with()
    assert harness.values("t") == list(range(1, 11))


def test_a_whole_log_makes_up_for_a_lost_snapshot(harness: EngineHarness) -> None:
    harness.append("t", 1, 2, 3)
    harness.checkpoint()
    harness.append("t", 4)
    harness.engine.abandon()
    for path in snapshot_paths(harness):
        path.write_bytes(b"damaged")
    harness.open_with()
    assert harness.values("t") == [1, 2, 3, 4]


@pytest.mark.parametrize("way", ["damaged", "removed"])
def test_a_trimmed_log_without_any_readable_snapshot_is_refused_and_left_alone(
    harness: EngineHarness, way: str
) -> None:
    fill(harness)
    harness.append_each("t", [sized(1000)] * 20)
    harness.checkpoint(3)
    harness.engine.abandon()
    for path in snapshot_paths(harness):
        path.unlink() if way == "removed" else path.write_bytes(b"damaged")
    before = names_below(harness.data_dir, "*")
    for _ in range(2):
        with pytest.raises(CorruptMetadata):
            harness.open_with()
    assert names_below(harness.data_dir, "*") == before


def test_one_idle_shard_does_not_make_a_trimmed_log_look_whole(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path, shards=2, file_bytes=FILE_BYTES)
    names = [f"t{number}" for number in range(6)]
    for name in names:
        harness.append(name, 0)
    busy = next(name for name in names if harness.engine._core.topics[name].shard == 1)
    for _ in range(4):
        harness.append_each(busy, [sized(1000)] * 10)
        harness.checkpoint()
    harness.engine.abandon()
    assert log_paths(harness)[0].name == "wal-0000000000000001.log"
    for path in snapshot_paths(harness):
        path.write_bytes(b"damaged")
    with pytest.raises(CorruptMetadata):
        harness.open_with()


def test_a_stopped_directory_that_lost_its_snapshot_is_refused(harness: EngineHarness) -> None:
    harness.append("t", 1)
    harness.engine.close()
    for path in [*snapshot_paths(harness), *harness.data_dir.glob("*.copy")]:
        path.unlink()
    with pytest.raises(CorruptMetadata):
        harness.open_with()
    assert names_below(harness.data_dir / "topics", "*.data")


def test_a_snapshot_of_a_later_format_is_refused(harness: EngineHarness) -> None:
    harness.append("t", 1)
    harness.engine.close()
    for path in [*snapshot_paths(harness), *harness.data_dir.glob("*.copy")]:
        content = bytearray(path.read_bytes())
        content[8] = 0xFE
        path.write_bytes(content)
    with pytest.raises(UnsupportedVersion):
        harness.open_with()


# --- Refusing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["missing", "short", "flipped"])
def test_an_index_is_made_again_from_its_data(harness: EngineHarness, way: str) -> None:
    harness.append_each("t", range(10))
    harness.delete("t", before_seq=3)
    expected = harness.items("t")
    harness.engine.close()
    for path in (harness.data_dir / "topics").rglob("*.idx"):
        if way == "missing":
            path.unlink()
        elif way == "short":
            path.write_bytes(path.read_bytes()[:-25])
        else:
            flip_bit(path, 5)
    harness.open_with()
    assert harness.items("t") == expected
    report = harness.engine.recovery
    assert report is not None
    assert {found.kind for found in report.damage} == {"index"}
    harness.restart()
    assert harness.items("t") == expected
    assert harness.engine.recovery is not None
    assert harness.engine.recovery.damage == []


@pytest.mark.parametrize("way", ["missing", "short"])
def test_a_topic_that_lost_a_segment_is_not_served_and_the_others_are(
    harness: EngineHarness, way: str
) -> None:
    harness.append_each("t", range(10))
    harness.append_each("other", range(3))
    topic_id = harness.engine._core.topics["t"].topic_id
    harness.engine.close()
    path = sorted((harness.data_dir / "topics" / f"{topic_id:08X}").glob("*.data"))[1]
    content = path.read_bytes()
    path.unlink() if way == "missing" else path.write_bytes(content[:-25])
    for again in (harness.open_with, harness.restart, harness.crash):
        again()
        assert harness.values("other") == [0, 1, 2]
        assert [state.topic for state in harness.engine.topics()] == ["other"]
        for refused in (
            lambda: harness.diff("t"),
            lambda: harness.append("t", 1),
            lambda: harness.put("t"),
            lambda: harness.delete_topic("t"),
        ):
            with pytest.raises(TopicDamaged):
                refused()
        health = harness.engine.storage_health()
        assert (health.status, health.damaged_topics, health.damage) == ("damaged", 1, {"segment": 1})
    harness.engine.close()
    path.write_bytes(content)
    harness.open_with()
    assert harness.values("t") == list(range(10)), "the file is back, and so is the topic"


def test_a_repair_gives_up_a_lost_segment_and_damaged_records(harness: EngineHarness) -> None:
    harness.append_each("t", [sized(50)] * 12)
    harness.engine.close()
    first, second, third = sorted((harness.data_dir / "topics").rglob("*.data"))
    first.unlink()
    flip_bit(third, 45)
    harness.open_with(segment_max_events=4, on_damage="give_up")
    assert harness.gap("t") == (1, 4, "corrupt")
    assert harness.gap("t", 8) == (9, 9, "corrupt")
    assert harness.seqs("t") == [5, 6, 7, 8, 10, 11, 12]
    harness.restart(segment_max_events=4)
    assert harness.seqs("t") == [5, 6, 7, 8, 10, 11, 12]
    assert harness.append("t", 1).first_seq == 13
    assert second.exists()


@pytest.mark.parametrize("way", ["flipped", "cut", "missing"])
def test_damage_to_the_snapshot_of_a_clean_stop_costs_nothing(harness: EngineHarness, way: str) -> None:
    expected = fill(harness)
    harness.engine.close()
    (path,) = snapshot_paths(harness)
    if way == "missing":
        path.unlink()
    elif way == "cut":
        path.write_bytes(path.read_bytes()[:40])
    else:
        flip_bit(path, path.stat().st_size // 2)
    harness.open_with()
    assert harness.seqs("t") == expected
    report = harness.engine.recovery
    assert report is not None
    assert [found.kind for found in report.damage] == ["snapshot"]


def test_a_record_that_does_not_match_its_checksum_is_an_error_and_no_short_read(
    harness: EngineHarness,
) -> None:
    harness.append_each("t", [sized(50)] * 8)
    harness.engine.close()
    second = max((harness.data_dir / "topics").rglob("*.data"))
    flip_bit(second, 40)
    harness.open_with()
    page = harness.diff("t")
    assert [page.delivered, page.caught_up] == [4, False]
    with pytest.raises(Corrupt):
        harness.diff("t", page.next_from_seq)
    assert harness.append("t", 1).commit.done


@pytest.mark.parametrize("operation", ["listdir", "open", "pread"])
def test_a_directory_that_cannot_be_read_is_refused_and_can_be_opened_later(
    harness: EngineHarness, operation: str
) -> None:
    harness.append_each("t", range(5))
    harness.engine.abandon()
    harness.disk.fail_when(lambda call: call.name == operation and "lock" not in call.path, errno.EIO)
    with pytest.raises(Io):
        harness.open_with()
    harness.open_with()
    assert harness.values("t") == list(range(5))


def test_a_file_in_the_log_directory_that_is_not_ours_is_refused(harness: EngineHarness) -> None:
    harness.append("t", 1)
    harness.engine.abandon()
    (harness.data_dir / "wal" / "notes.txt").write_text("mine")
    with pytest.raises(EverlogError):
        harness.open_with()


def test_an_empty_directory_is_a_fresh_start(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    assert harness.engine.topics() == []
    harness.restart()
    assert harness.engine.topics() == []
    report = harness.engine.recovery
    assert report is not None
    assert (report.topics, report.damage, report.rejected_snapshots) == (0, [], [])


# --- Shards ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", ["crash", "restart"])
@pytest.mark.parametrize("checkpoints", [0, 1])
def test_the_number_of_shards_may_change_between_starts(tmp_path: Path, again: str, checkpoints: int) -> None:
    harness = EngineHarness(tmp_path, shards=1, file_bytes=FILE_BYTES)
    names = [f"t{number}" for number in range(7)]
    for written, shards in enumerate((3, 2, 1, 4), start=1):
        for name in names:
            harness.append(name, written - 1)
        harness.checkpoint(checkpoints)
        getattr(harness, again)(shards=shards, file_bytes=FILE_BYTES)
        assert {name: harness.values(name) for name in names} == {
            name: list(range(written)) for name in names
        }
        assert len(harness.engine._core.shards) == shards
