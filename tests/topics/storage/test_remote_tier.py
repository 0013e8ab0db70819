"""The cold tier on an object store: what moves, crashes at every step, deletions, damage, two servers."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from everlog.errors import (
    Corrupt,
    EverlogError,
    Fenced,
    InvalidConfig,
    ObjectStoreFailed,
    TopicDamaged,
    Unsupported,
)
from everlog.fs import OsFs
from everlog.objects import DirectoryStore
from everlog.topics import Engine, EngineSettings, record_of
from everlog.topics.storage.verify import verify
from tests.support.effort import effort
from tests.support.engines import EngineHarness, open_engine, sized
from tests.support.files import names_below
from tests.topics.test_engine_model import EngineMachine

PER_SEGMENT = 4
COUNT = 22


def open_remote(root: Path, **settings: Any) -> EngineHarness:
    """Segments of four records, of which the two newest sealed ones stay hot."""
    chosen = {
        "segment_max_events": PER_SEGMENT,
        "hot_retain_segments": 2,
        "cold_url": f"file://{root}/bucket",
        **settings,
    }
    return EngineHarness(root, **chosen)


@pytest.fixture
def harness(tmp_path: Path) -> EngineHarness:
    """Six segments of a topic, the last one not full, in the hot tier."""
    harness = open_remote(tmp_path)
    harness.append("t", *[record_of(number, tag=f"x{number % 4}") for number in range(COUNT)])
    harness.checkpoint()
    return harness


def objects(harness: EngineHarness) -> list[int]:
    """The first seqs of the segments in the bucket."""
    assert harness.root is not None
    return sorted(int(name[4:20]) for name in names_below(harness.root / "bucket", "seg-*.data"))


def hot(harness: EngineHarness) -> list[int]:
    return [int(name[4:20]) for name in names_below(harness.data_dir / "topics", "seg-*.data")]


def garbage(harness: EngineHarness) -> list[str]:
    return names_below(harness.data_dir / "remote" / "garbage", "*")


def findings(harness: EngineHarness) -> list[str]:
    """What verify finds wrong in the stopped directory."""
    harness.engine.close()
    found = [f"{finding.kind}: {finding.message}" for finding in verify(str(harness.data_dir), OsFs()).errors]
    harness.open_with()
    return found


def test_old_segments_become_objects_and_are_read_as_before(harness: EngineHarness) -> None:
    before = harness.items("t", include_tags=True)
    assert harness.engine.relocate() == 3
    assert (objects(harness), hot(harness), garbage(harness)) == ([1, 5, 9], [13, 17, 21], [])
    assert harness.diff("t").cold_segments_read >= 1
    assert harness.items("t", include_tags=True) == before
    assert harness.engine.relocate() == 0
    assert findings(harness) == []


@pytest.mark.parametrize("again", ["crash", "restart", "lose_power"])
def test_moved_records_are_there_after_a_restart(harness: EngineHarness, again: str) -> None:
    harness.engine.relocate()
    for _ in range(2):
        getattr(harness, again)()
        assert harness.values("t") == list(range(COUNT))
    harness.append("t", *range(COUNT, 30))
    harness.checkpoint()
    assert harness.engine.relocate() >= 1
    assert harness.values("t") == list(range(30))


def test_a_deletion_in_an_object_is_in_the_index_and_survives(harness: EngineHarness) -> None:
    harness.engine.relocate()
    harness.delete("t", match="x1")
    expected = [number for number in range(COUNT) if number % 4 != 1]
    assert harness.values("t") == expected
    for again in (harness.crash, harness.restart, harness.lose_power):
        harness.checkpoint()
        again()
        assert harness.values("t") == expected
    assert findings(harness) == []


def test_an_object_in_which_nothing_is_live_is_removed(harness: EngineHarness) -> None:
    harness.engine.relocate()
    harness.delete("t", before_seq=10)
    harness.checkpoint(3)
    harness.engine.relocate()
    assert (objects(harness), garbage(harness)) == ([9], [])
    harness.crash()
    assert harness.seqs("t") == list(range(10, COUNT + 1))


def test_a_deleted_topic_leaves_no_object(harness: EngineHarness) -> None:
    harness.engine.relocate()
    harness.delete_topic("t")
    harness.checkpoint(3)
    harness.engine.relocate()
    assert (objects(harness), hot(harness), garbage(harness)) == ([], [], [])


@pytest.mark.parametrize("path", ["bucket", "data/remote", "data/topics"])
@pytest.mark.parametrize(
    "operation", ["open", "pwrite", "fsync", "rename", "rename_noreplace", "unlink", "fsync_dir"]
)
def test_a_move_that_fails_at_any_call_loses_nothing_and_leaves_no_orphan(
    harness: EngineHarness, operation: str, path: str
) -> None:
    """The call fails once, at each of its first places in turn; then the process is killed."""
    left: int | None = None

    def is_due(call: Any) -> bool:
        nonlocal left
        if left is None or call.name != operation or f"/{path}" not in call.path:
            return False
        left -= 1
        return left < 0

    for skipped in range(6):
        left = skipped

        harness.disk.fail_when(is_due, errno.EIO)
        try:
            harness.engine.relocate()
        except (EverlogError, OSError):
            assert harness.values("t") == list(range(COUNT))
        left = None
        harness.crash()
        assert harness.values("t") == list(range(COUNT))
    harness.engine.relocate()
    assert harness.values("t") == list(range(COUNT))
    assert (objects(harness), garbage(harness)) == ([1, 5, 9], [])
    assert 1 not in hot(harness)


class RemoteEngineMachine(EngineMachine):
    """All operations of topics against their model, with older segments in an object store."""

    def _open(self, shards: int) -> Engine:
        return open_engine(
            self.directory + "/data",
            clock=self.clock,
            shards=shards,
            file_bytes=16384,
            segment_max_events=self.segment_max_events,
            hot_retain_segments=1,
            cold_url=f"file://{self.directory}/bucket",
        )


RemoteEngineMachine.TestCase.settings = settings(max_examples=effort(40), stateful_step_count=40)
TestRemoteEngineAgainstModel = RemoteEngineMachine.TestCase


def test_a_store_that_fails_delays_no_append_and_reads_work_again(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.engine.relocate()
    with monkeypatch.context() as broken:
        broken.setattr(DirectoryStore, "get_ranges", _unreachable)
        broken.setattr(DirectoryStore, "put_new", _unreachable)
        for _ in range(2):
            with pytest.raises(ObjectStoreFailed):
                harness.diff("t")
        harness.append("t", *range(COUNT, 40))
        harness.checkpoint()
        with pytest.raises(ObjectStoreFailed):
            harness.engine.relocate()
        assert harness.diff("t", 12).delivered == 4, "hot records are read"
    harness.advance_ms(2000)
    assert harness.values("t") == list(range(40))
    assert harness.engine.relocate() > 0


@pytest.mark.parametrize("harm", ["version 1", "a flipped bit"])
def test_a_start_needs_no_request_once_the_heads_of_frames_are_beside_the_index(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    harness.engine.relocate()
    with monkeypatch.context() as broken:
        broken.setattr(DirectoryStore, "get_ranges", _unreachable)
        harness.crash()
        assert harness.delete("t", match="x1").deleted == 6
    assert harness.values("t") == [number for number in range(COUNT) if number % 4 != 1]
    harness.engine.abandon()
    for path in (harness.data_dir / "remote").rglob("seg-*.data"):
        content = bytearray(path.read_bytes())
        if harm == "version 1":
            stub = json.loads(content.partition(b"\n")[0])
            del stub["heads_checksum"]
            content = bytearray(json.dumps(stub | {"version": 1}).encode())
        else:
            content[-1] ^= 1
        path.write_bytes(content)
    kinds = [finding.kind for finding in verify(str(harness.data_dir), OsFs()).errors]
    assert kinds == ([] if harm == "version 1" else ["bad_checksum"] * 3)
    with monkeypatch.context() as broken:
        broken.setattr(DirectoryStore, "get_ranges", _unreachable)
        with pytest.raises(ObjectStoreFailed):
            harness.open_with()
    harness.open_with()  # fetches the data once
    with monkeypatch.context() as broken:
        broken.setattr(DirectoryStore, "get_ranges", _unreachable)
        harness.crash()
    assert harness.delete("t", match="x2").deleted == 5
    assert findings(harness) == []


def test_a_stub_of_a_later_version_is_refused_with_its_path(harness: EngineHarness) -> None:
    harness.engine.relocate()
    harness.engine.abandon()
    path = next((harness.data_dir / "remote").rglob("seg-*.data"))
    path.write_bytes(path.read_bytes().replace(b'"version":2', b'"version":3'))
    with pytest.raises(Unsupported, match=f"{path.name} has version 3"):
        harness.open_with()


def _unreachable(*_: object) -> None:
    raise ObjectStoreFailed("the bucket does not answer")


def test_the_segment_behind_the_one_that_is_read_is_fetched_as_well(tmp_path: Path) -> None:
    harness = open_remote(tmp_path, hot_retain_segments=0, cold_cache_bytes=1 << 20)
    harness.append("t", *[sized(2000)] * 20)
    harness.checkpoint()
    harness.engine.relocate()
    first = harness.engine.diff("t", 0, limit=1, block=False)
    assert first.commit is not None
    harness.wait_for(first.commit)
    while harness.engine.poll():
        pass
    store = harness.engine._store
    assert store is not None
    assert len(store.loaded._fetched) == 2


@pytest.mark.parametrize("harm", ["missing", "flipped"])
def test_a_damaged_object_is_found_by_verify_and_never_served(harness: EngineHarness, harm: str) -> None:
    harness.engine.relocate()
    [path] = [
        item for item in (harness.data_dir.parent / "bucket").rglob("seg-*.data") if "0005-" in item.name
    ]
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.unlink()
    if harm == "flipped":
        path.write_bytes(content)
    with pytest.raises(Corrupt, match="restore it from a backup"):
        harness.diff("t", 4)
    assert harness.diff("t", 8).delivered == 4, "up to the end of the next segment"
    harness.engine.abandon()
    found = verify(str(harness.data_dir), OsFs()).errors
    assert [item.kind for item in found] == ["missing_part" if harm == "missing" else "bad_checksum"]


def test_a_damaged_local_index_takes_the_topic_out_of_service(harness: EngineHarness) -> None:
    harness.engine.relocate()
    [path] = [item for item in (harness.data_dir / "remote").rglob("*.idx") if "0005" in item.name]
    content = bytearray(path.read_bytes())
    content[8] ^= 1
    path.write_bytes(content)
    harness.crash()
    with pytest.raises(TopicDamaged):
        harness.diff("t")


def test_without_its_url_a_directory_is_not_opened(harness: EngineHarness) -> None:
    harness.engine.relocate()
    harness.engine.close()
    with pytest.raises(InvalidConfig, match="set TOPICS_COLD_URL"):
        harness.open_with(segment_max_events=PER_SEGMENT)
    harness.open_with(cold_url=f"file://{harness.data_dir.parent}/bucket")
    assert harness.values("t") == list(range(COUNT))


def test_a_server_that_started_later_keeps_an_earlier_one_from_moving_and_removing(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    harnesses = [open_remote(tmp_path / name, cold_url=url) for name in ("a", "b")]
    for harness in harnesses:
        harness.append("t", *range(COUNT))
        harness.checkpoint()
        harness.engine.relocate()
    earlier, later = harnesses
    earlier.append("t", *range(COUNT, 40))
    earlier.checkpoint()
    with pytest.raises(Fenced, match="started later"):
        earlier.engine.relocate()
    assert earlier.values("t") == list(range(40))
    assert later.values("t") == list(range(COUNT))
    manifest = json.loads((tmp_path / "bucket" / "manifest.json").read_bytes())
    assert manifest["epoch"] == 2


def test_a_cold_directory_and_a_url_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="both set"):
        EngineSettings(cold_url=f"file://{tmp_path}", cold_dir=str(tmp_path))
