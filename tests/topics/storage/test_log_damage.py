"""Damage in the log: what is sound behind it stays, what is lost is reported, and no seq comes twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from everlog.errors import DamagedData
from everlog.fs import OsFs
from everlog.topics.routing.definitions import RouterConfig
from everlog.topics.storage import layout
from everlog.topics.storage.log_survey import next_frame, survey
from everlog.topics.storage.synced_ends import SyncedEnd, SyncedEnds, read_ends
from everlog.topics.storage.verify import verify
from tests.support.engines import EngineHarness, parse, sized
from tests.support.files import flip_bit, tree

RECORDS = 100


@pytest.fixture
def killed(tmp_path: Path) -> EngineHarness:
    """A process that was killed after it had acknowledged records of an fsync topic."""
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="fsync")
    harness.append_each("t", range(RECORDS))
    harness.engine.abandon()
    return harness


def log_path(harness: EngineHarness) -> Path:
    """The newest log file."""
    return max((harness.data_dir / "wal").rglob("wal-*.log"))


def record_offsets(path: Path) -> list[int]:
    """Where the frames of records begin."""
    content = path.read_bytes()
    offsets, at = [], 0
    while frame_len := int.from_bytes(content[at : at + 4], "little"):
        if content[at + layout.LOG_TYPE] == layout.FrameType.APPEND:
            offsets.append(at)
        at += frame_len + 4
    return offsets


def read_through(harness: EngineHarness, name: str = "t") -> tuple[list[int], list[tuple[int, int, str]]]:
    """All seqs of a topic and all gaps, as a reader meets them."""
    seqs: list[int] = []
    gaps: list[tuple[int, int, str]] = []
    at = 0
    while True:
        page = harness.diff(name, at)
        if page.tombstone is not None:
            gaps.append((page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.reason))
        seqs += [item["$seq"] for item in parse(page)]
        if page.caught_up:
            return seqs, gaps
        at = page.next_from_seq


def errors_of(harness: EngineHarness) -> list[str]:
    """The kinds of errors that `verify` finds."""
    return [finding.kind for finding in verify(str(harness.data_dir), harness.disk).errors]


def test_a_bad_frame_before_sound_ones_costs_its_record_alone(killed: EngineHarness) -> None:
    path = log_path(killed)
    flip_bit(path, record_offsets(path)[40] + 42)
    killed.open_with(on_damage="serve")
    seqs, gaps = read_through(killed)
    assert gaps == [(41, 41, "corrupt")]
    assert seqs == [seq for seq in range(1, RECORDS + 1) if seq != 41]
    assert killed.state("t").head_seq == RECORDS
    assert killed.append("t", "new").first_seq == RECORDS + 1


def test_a_start_is_refused_and_changes_nothing_until_the_loss_is_accepted(killed: EngineHarness) -> None:
    path = log_path(killed)
    flip_bit(path, record_offsets(path)[40] + 42)
    before = tree(killed.data_dir)
    for _ in range(2):
        with pytest.raises(DamagedData, match="everlog repair --accept-loss"):
            killed.open_with()
        assert tree(killed.data_dir) == before
    assert errors_of(killed) == ["corrupt_frame"]


def test_the_damaged_file_is_kept_and_the_loss_is_reported(killed: EngineHarness) -> None:
    path = log_path(killed)
    flip_bit(path, record_offsets(path)[10] + 42)
    damaged = path.read_bytes()
    killed.open_with(on_damage="serve")
    assert (path.parent / (path.name + layout.DAMAGED_SUFFIX)).read_bytes() == damaged
    report = killed.engine.recovery
    assert report is not None
    assert report.may_lack_acked
    assert [(found.kind, found.path) for found in report.damage] == [("log", str(path))]


@pytest.mark.parametrize("again", ["crash", "restart", "lose_power"])
def test_the_loss_stays_reported_after_further_starts(killed: EngineHarness, again: str) -> None:
    path = log_path(killed)
    flip_bit(path, record_offsets(path)[40] + 42)
    killed.open_with(on_damage="serve")
    expected = read_through(killed)
    killed.settings = EngineHarness(None).settings  # which refuses damage: there must be none any more
    for _ in range(2):
        getattr(killed, again)()
        assert read_through(killed) == expected
        report = killed.engine.recovery
        assert report is not None
        assert report.damage == []


def test_the_last_acknowledged_record_is_not_taken_for_a_torn_tail(killed: EngineHarness) -> None:
    path = log_path(killed)
    flip_bit(path, record_offsets(path)[-1] + 42)
    assert errors_of(killed) == ["corrupt_frame"]
    killed.open_with(on_damage="serve")
    seqs, gaps = read_through(killed)
    assert seqs == list(range(1, RECORDS))
    assert gaps == [(RECORDS, RECORDS, "corrupt")]
    assert killed.append("t", "new").first_seq == RECORDS + 1


def test_a_zeroed_end_of_the_log_gives_no_seq_again(killed: EngineHarness) -> None:
    path = log_path(killed)
    offsets = record_offsets(path)
    content = bytearray(path.read_bytes())
    content[offsets[80] :] = bytes(len(content) - offsets[80])
    path.write_bytes(content)
    assert errors_of(killed) == ["unfinished_file"]
    with pytest.raises(DamagedData):
        killed.open_with()
    killed.open_with(on_damage="serve")
    seqs, gaps = read_through(killed)
    assert seqs == list(range(1, 81))
    assert gaps[0][0] == 81
    assert gaps[-1][1] >= RECORDS
    assert killed.append("t", "new").first_seq > RECORDS


def test_a_log_file_that_is_gone_is_noticed_and_gives_no_seq_again(killed: EngineHarness) -> None:
    log_path(killed).unlink()
    assert errors_of(killed) == ["missing_file"]
    with pytest.raises(DamagedData):
        killed.open_with()


def test_damage_in_an_earlier_file_leaves_the_later_ones_in_force(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path, file_bytes=8192)
    harness.put("t", durability="fsync")
    harness.append_each("t", [sized(1000)] * 30)
    harness.engine.abandon()
    paths = sorted((harness.data_dir / "wal").rglob("wal-*.log"))
    assert len(paths) > 3
    flip_bit(paths[0], record_offsets(paths[0])[2] + 42)
    flip_bit(paths[1], len(paths[1].read_bytes().rstrip(b"\0")) - 1)  # in its end frame
    harness.open_with(file_bytes=8192, on_damage="serve")
    assert read_through(harness) == ([1, 2, *range(4, 31)], [(3, 3, "corrupt")])
    report = harness.engine.recovery
    assert report is not None
    assert [found.path for found in report.damage] == [str(paths[0]), str(paths[1])]


def test_topics_behind_a_lost_creation_do_not_get_its_id(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("first", durability="fsync")
    harness.checkpoint()
    harness.append("first", 1)
    harness.put("lost", durability="fsync")
    harness.append("lost", 1)
    lost_id = harness.engine._core.topics["lost"].topic_id
    harness.engine.abandon()
    path = log_path(harness)
    create = path.read_bytes().index(b"lost")
    flip_bit(path, create)
    harness.open_with(on_damage="serve")
    assert not harness.engine.has_topic("lost")
    harness.put("new")
    assert harness.engine._core.topics["new"].topic_id > lost_id
    assert harness.engine.recovery is not None
    assert harness.engine.recovery.damage


def test_each_record_of_a_damaged_batch_that_is_sound_stays(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="fsync")
    harness.append("t", *range(10))
    harness.engine.abandon()
    path = log_path(harness)
    flip_bit(path, record_offsets(path)[4] + 42)
    harness.open_with(on_damage="serve")
    assert read_through(harness) == ([1, 2, 3, 4, 6, 7, 8, 9, 10], [(5, 5, "corrupt")])


def test_damage_that_reaches_no_promised_topic_does_not_stop_the_start(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("m", durability="memory")
    harness.append_each("m", range(5))
    harness.engine.abandon()
    path = log_path(harness)
    flip_bit(path, record_offsets(path)[2] + 42)
    harness.open_with()
    assert read_through(harness, "m") == ([1, 2, 4, 5], [(3, 3, "corrupt")])
    report = harness.engine.recovery
    assert report is not None
    assert (len(report.damage), report.may_lack_acked) == (1, False)


def test_what_was_never_synced_may_be_torn_by_a_power_loss(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="disk")
    harness.append_each("t", range(5))
    harness.engine.abandon()
    path = log_path(harness)
    end = read_ends(OsFs(), str(harness.data_dir / layout.SYNCED_FILE)).ends[1].offset
    content = path.read_bytes()
    unsynced = [offset for offset in record_offsets(path) if offset >= end]
    assert len(unsynced) > 2
    bad = bytearray(content)
    bad[unsynced[0] + 42] ^= 1
    synced = SyncedEnd(1, end)
    after_power_loss = survey(bytes(bad), 0, synced, is_last=True, is_trusted=False)
    assert (after_power_loss.end, after_power_loss.lost) == (unsynced[0], ())
    after_kill = survey(bytes(bad), 0, synced, is_last=True, is_trusted=True)
    assert [lost.offset for lost in after_kill.lost] == [unsynced[0]]


def test_every_cut_of_the_last_write_is_a_torn_tail(killed: EngineHarness) -> None:
    content = log_path(killed).read_bytes().rstrip(b"\0")
    last = record_offsets(log_path(killed))[-1]
    for size in range(last, len(content)):
        found = survey(
            content[:size].ljust(8192, b"\0"), 0, SyncedEnd(1, last), is_last=True, is_trusted=True
        )
        assert (found.end, found.lost) == (last, ())


def test_the_search_for_a_sound_frame_finds_the_first_one_at_any_offset(killed: EngineHarness) -> None:
    content = log_path(killed).read_bytes().rstrip(b"\0")
    offsets = record_offsets(log_path(killed))
    for start in range(offsets[3] + 1, offsets[4] + 1):
        assert next_frame(content, start, len(content)) == offsets[4]
    noise = os.urandom(3 << 20)
    assert next_frame(noise + content, 0, len(noise) + len(content)) == len(noise)
    assert next_frame(noise, 0, len(noise)) is None


def test_the_ends_of_released_files_make_room_for_others(tmp_path: Path) -> None:
    path = str(tmp_path / "synced")
    ends = SyncedEnds(OsFs(), path, 2, [SyncedEnd(1, 100, 0, 3), SyncedEnd(2, 50)])
    ends.add(3, 1)
    ends.record(3, 70)
    ends.release(1)
    ends.add(4, 0)
    ends.record(4, 10)
    ends.record(4, 20)
    assert read_ends(OsFs(), path).ends == {
        2: SyncedEnd(2, 50),
        3: SyncedEnd(3, 70, 1, 2),
        4: SyncedEnd(4, 20, 0, 2),
    }
    ends.clear()
    ends.close()
    assert read_ends(OsFs(), path) == ({}, 0, False)


def test_a_lost_or_damaged_file_of_synced_ends_is_reported(killed: EngineHarness) -> None:
    path = killed.data_dir / layout.SYNCED_FILE
    whole = path.read_bytes()
    for content in (None, bytes([whole[0] ^ 4]) + whole[1:]):
        path.unlink() if content is None else path.write_bytes(content)
        assert errors_of(killed) == ["bad_synced_file"]
        killed.open_with()
        report = killed.engine.recovery
        assert report is not None
        assert [found.kind for found in report.damage] == ["synced_file"]
        assert killed.state("t").head_seq == RECORDS
        killed.engine.abandon()
        path.write_bytes(whole)


def test_copies_whose_entry_in_the_log_is_lost_get_a_tombstone(tmp_path: Path) -> None:
    """Later copies follow in the destination, so only a tombstone tells of the earlier ones."""
    harness = EngineHarness(tmp_path, shards=2)
    for name in ("source", "dest"):
        harness.put(name, durability="fsync")
    harness.wait_for(harness.engine.put_router("r", RouterConfig(source="source", dest="dest")).commit)
    for number in range(20):
        harness.append("source", number)
        assert harness.values("dest")[-1] == number
    path = max(path for path in (harness.data_dir / "wal").rglob("wal-*.log") if record_offsets(path))
    harness.engine.abandon()
    offset = record_offsets(path)[10]
    content = bytearray(path.read_bytes())
    for _ in range(2):  # a record, and the entry that says where its copy went
        frame_len = int.from_bytes(content[offset : offset + 4], "little")
        content[offset + 20] ^= 1
        offset += frame_len + 4
    path.write_bytes(content)
    harness.open_with(on_damage="serve")
    for _ in range(2):
        assert read_through(harness, "source")[1] == [(11, 11, "corrupt")]
        seqs, gaps = read_through(harness, "dest")
        assert gaps == [(11, 11, "corrupt")]
        assert seqs == [seq for seq in range(1, 21) if seq != 11]
        harness.crash()
