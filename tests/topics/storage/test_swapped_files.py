"""Whole files under the names of others: nothing is read from them, and the message says which file it is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from everlog.clock import SystemClock
from everlog.errors import Corrupt, CorruptMetadata, TopicDamaged
from everlog.fs import OsFs
from everlog.objects import open_store
from everlog.topics.storage import control, layout, snapshot
from everlog.topics.storage.restoring import Restorer
from everlog.topics.storage.shipping import BASE, LOG, Shipper, last_number
from everlog.topics.storage.verify import verify
from everlog.topics.storage.wal_files import end_frame
from tests.support.engines import EngineHarness
from tests.support.files import tree

RECORDS = 300


@pytest.fixture
def killed(tmp_path: Path) -> EngineHarness:
    """A process that was killed: two snapshots, and several log files of which the last has no end."""
    harness = EngineHarness(tmp_path, file_bytes=2048)
    harness.put("t", durability="fsync")
    for half in range(2):
        harness.append_each("t", range(half * RECORDS // 2, (half + 1) * RECORDS // 2))
        harness.checkpoint(1 - half)
    harness.engine.abandon()
    return harness


def log_files(harness: EngineHarness) -> list[Path]:
    return sorted((harness.data_dir / "wal").glob("wal-*.log"))


def swap(one: Path, other: Path) -> None:
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def refused(harness: EngineHarness) -> None:
    """A start, `verify` and a repair all say that a file has the name of another one."""
    before = tree(harness.data_dir)
    for policy in ("refuse", "serve", "give_up"):
        with pytest.raises(CorruptMetadata, match=r"under another name; give each .* its name back"):
            harness.open_with(on_damage=policy)
    assert "wrong_name" in {finding.kind for finding in verify(str(harness.data_dir), OsFs()).errors}
    assert tree(harness.data_dir) == before


@pytest.mark.parametrize(("one", "other"), [(0, -3), (1, -2), (0, -1), (-3, -2), (-3, -1), (-2, -1)])
def test_two_log_files_of_a_shard_that_changed_places_are_noticed(
    killed: EngineHarness, one: int, other: int
) -> None:
    files = log_files(killed)
    assert len(files) > 4
    swap(files[one], files[other])
    refused(killed)
    swap(files[one], files[other])
    killed.open_with()
    assert killed.values("t") == list(range(RECORDS))


def test_a_copy_of_a_log_file_in_the_place_of_another_is_noticed(killed: EngineHarness) -> None:
    files = log_files(killed)
    files[-3].write_bytes(files[-2].read_bytes())
    refused(killed)


def test_two_snapshots_that_changed_places_are_noticed(killed: EngineHarness) -> None:
    killed.open_with()
    killed.checkpoint(2)
    killed.engine.abandon()
    one, other = sorted((killed.data_dir / "meta").iterdir())
    swap(one, other)
    refused(killed)
    swap(one, other)
    killed.open_with()
    assert killed.values("t") == list(range(RECORDS))


def test_files_of_version_0_2_which_have_no_numbers_are_read(killed: EngineHarness) -> None:
    for path in log_files(killed):
        number = layout.WAL_FILE.number(path.name)
        assert number is not None
        path.write_bytes(path.read_bytes().replace(end_frame(number), end_frame(0)))
    for path in (killed.data_dir / "meta").iterdir():
        number = layout.SNAPSHOT_FILE.number(path.name)
        assert number is not None
        payload = path.read_bytes()[layout.SNAPSHOT_HEADER_SIZE : -layout.SNAPSHOT_TRAILER_SIZE]
        body = msgspec.structs.replace(control.decode(payload, control.SnapshotBody), number=0)
        snapshot.write(OsFs(), str(path.parent), number, [control.encode(body)])
    assert verify(str(killed.data_dir), OsFs()).errors == []
    killed.open_with()
    assert killed.values("t") == list(range(RECORDS))


@pytest.mark.parametrize("folder", [BASE, LOG])
def test_two_objects_of_a_backup_that_changed_places_are_noticed(tmp_path: Path, folder: str) -> None:
    harness = EngineHarness(tmp_path)
    store = open_store(f"file://{tmp_path}/bucket")
    shipper = Shipper(str(harness.data_dir), store, OsFs(), SystemClock())
    harness.put("t", durability="fsync")
    for number in range(3):
        harness.append("t", number)
        harness.checkpoint()
        shipper.round()
        harness.append("t", number + 100)
        shipper.round()
    one, other = sorted((tmp_path / "bucket" / folder).iterdir())[-2:]
    assert int(other.name) == last_number(store, folder)
    swap(one, other)
    with pytest.raises(Corrupt, match=r"under another name; give each object its name back"):
        Restorer(store, str(tmp_path / "target"), OsFs()).restore()


def segment_files(harness: EngineHarness, first_seq: int) -> list[list[Path]]:
    """Both parts of one segment, of each topic."""
    names = [naming.name(first_seq) for naming in (layout.SEGMENT_DATA, layout.SEGMENT_INDEX)]
    topics = sorted((harness.data_dir / "topics").iterdir())
    return [[directory / name for name in names] for directory in topics]


@pytest.mark.parametrize("end", ["close", "abandon"])
def test_segments_of_two_topics_that_changed_places_are_noticed(tmp_path: Path, end: str) -> None:
    harness = EngineHarness(tmp_path, segment_max_events=5)
    for name in "abc":
        harness.put(name, durability="fsync")
        harness.append(name, *[f"{name}{number:05d}" for number in range(12)])
        harness.advance_ms(1)  # that alone tells them apart: all have the same size
    harness.checkpoint(2)
    harness.delete("a", before_seq=3)  # its mark is in the file, and not yet in a snapshot
    harness.delete("c", before_seq=3)
    getattr(harness.engine, end)()
    one, other, _ = segment_files(harness, 6)
    counts = {"a": 10, "b": 12, "c": 10}
    for parts in zip(one, other, strict=True):
        swap(*parts)
    errors = verify(str(harness.data_dir), OsFs()).errors
    assert {(each.path, each.kind) for each in errors} == {
        (str(parts[0]), "wrong_name") for parts in (one, other)
    }
    harness.open_with(segment_max_events=5)
    for name in "ab":
        with pytest.raises(TopicDamaged):
            harness.diff(name)
    assert len(harness.values("c")) == counts["c"], "the other topics are served"
    harness.engine.close()
    for parts in zip(one, other, strict=True):
        swap(*parts)
    harness.open_with(segment_max_events=5)
    for name, count in counts.items():
        values = harness.values(name)
        assert len(values) == count
        assert all(value.startswith(name) for value in values)
    harness.engine.close()
    assert verify(str(harness.data_dir), OsFs()).errors == []
    for parts in zip(one, other, strict=True):
        swap(*parts)
    harness.open_with(segment_max_events=5, on_damage="give_up")
    assert harness.gap("b", 5) == (6, 10, "corrupt")
    assert all(value.startswith("b") for value in harness.values("b"))
