"""Failures of the disk: reads go on, each is logged with cause and path, counted and shown while it lasts."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from everlog.errors import Io, OutcomeUnknown, ReadOnly
from everlog.server.errors import from_engine
from tests.support.engines import EngineHarness


@pytest.fixture
def harness(tmp_path: Path) -> EngineHarness:
    """An engine with a topic of three acknowledged records."""
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="fsync")
    harness.append("t", 1, 2, 3)
    return harness


def test_the_outcome_of_a_change_whose_sync_failed_is_unknown_and_later_ones_are_refused(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.disk.fail_when("fdatasync", errno.EIO)
    with pytest.raises(OutcomeUnknown):
        harness.append("t", 4)
    with pytest.raises(ReadOnly) as refusal:
        harness.append("t", 5)
    assert not isinstance(refusal.value, OutcomeUnknown), "nothing of it was written"
    assert harness.values("t") == [1, 2, 3]
    health = harness.engine.storage_health()
    assert (health.status, health.closed_shards, health.errors) == ("failing", {"0": "EIO"}, {"sync": 1})
    lines = [record.getMessage() for record in caplog.records if "storage failure" in record.getMessage()]
    assert len(lines) == 1
    assert "EIO" in lines[0]
    assert "wal-" in lines[0]


def test_reads_go_on_after_the_sync_of_a_delete_failed(harness: EngineHarness) -> None:
    harness.disk.fail_when("fdatasync", errno.EIO)
    answer = harness.engine.delete_records("t", before_seq=3)
    reading = harness.engine.diff("t")
    with pytest.raises(OutcomeUnknown):
        harness.wait_for(answer.commit)
    assert reading.commit.done
    assert reading.commit.error is None, "a read that waited for the delete is answered"
    assert harness.values("t") == [3]
    assert harness.state("t").head_seq == 3


def test_expired_records_can_be_passed_over_in_a_shard_that_takes_no_writes(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="fsync", ttl_ms=1000)
    harness.append("t", 1)
    harness.advance_ms(900)
    harness.append("t", 2)
    harness.disk.fail_when("fdatasync", errno.EIO)
    with pytest.raises(OutcomeUnknown):
        harness.append("t", 3)
    harness.advance_ms(500)
    assert harness.values("t") == [2]


@pytest.mark.parametrize("again", ["crash", "lose_power"])
@pytest.mark.parametrize("change", ["append", "delete"])
def test_after_a_restart_a_change_of_unknown_outcome_happened_wholly_or_not_at_all(
    harness: EngineHarness, again: str, change: str
) -> None:
    harness.disk.fail_when("fdatasync", errno.EIO)
    with pytest.raises(OutcomeUnknown):
        if change == "append":
            harness.append("t", *range(4, 10))
        else:
            harness.delete("t", before_seq=3)
    getattr(harness, again)()
    done = list(range(1, 10)) if change == "append" else [3]
    assert harness.values("t") in ([1, 2, 3], done)
    if again == "crash":
        assert harness.values("t") == done, "what is whole in the log happened"
    assert harness.append("t", "goes on").commit.done


@pytest.mark.parametrize(
    ("operation", "kind"), [("pwrite", "write"), ("allocate", "log_file"), ("rename", "checkpoint")]
)
def test_each_failure_is_logged_once_counted_and_shown_while_it_lasts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, operation: str, kind: str
) -> None:
    harness = EngineHarness(tmp_path, file_bytes=4096)
    harness.put("t", durability="memory")
    harness.append("t", 0)
    for _ in range(3):
        harness.disk.fail_when(operation, errno.ENOSPC)
        with pytest.raises(Io):
            harness.checkpoint() if kind == "checkpoint" else harness.append("t", "x" * 5000)
    health = harness.engine.storage_health()
    assert health.failing == {kind: "ENOSPC"}
    assert health.errors == {kind: 3}
    assert health.status == ("degraded" if kind == "checkpoint" else "failing")
    lines = [record.getMessage() for record in caplog.records if "storage failure" in record.getMessage()]
    assert [("ENOSPC" in line, str(harness.data_dir) in line) for line in lines] == [(True, True)]
    harness.checkpoint() if kind == "checkpoint" else harness.append("t", "x" * 5000)
    assert harness.engine.storage_health().failing == {}


@pytest.mark.parametrize("block", [True, False])
def test_a_segment_that_cannot_be_opened_for_a_read_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, block: bool
) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t")
    harness.append("t", 1, 2, 3)
    harness.checkpoint()
    harness.disk.fail_when("open", errno.EMFILE, path=".data")
    with pytest.raises(Io):
        harness.engine.diff("t", block=block)
    health = harness.engine.storage_health()
    assert (health.status, health.failing) == ("degraded", {"segment_read": "EMFILE"})
    assert health.errors == {"segment_read": 1}
    assert ["EMFILE" in record.getMessage() for record in caplog.records].count(True) == 1
    assert harness.values("t") == [1, 2, 3]


def test_answers_carry_no_paths(harness: EngineHarness) -> None:
    harness.disk.fail_when("fdatasync", errno.EIO)
    with pytest.raises(OutcomeUnknown) as unknown:
        harness.append("t", 4)
    with pytest.raises(ReadOnly) as refused:
        harness.append("t", 4)
    for error in (unknown.value, refused.value):
        assert str(harness.data_dir) in str(error)
        shown = from_engine(error, "t")
        assert "/" not in str(shown)
        assert "EIO" in str(shown)
