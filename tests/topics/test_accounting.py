"""Every seq of a topic is accounted for: alive, deleted, evicted, expired, or a hole."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlog.errors import InvalidRequest, TopicNotFound
from everlog.topics import NewRecord, retention
from tests.support.engines import EngineHarness

RESERVED = 256


def counts(stage: EngineHarness, name: str, from_seq: int = 0, to_seq: int | None = None) -> tuple[int, ...]:
    """Live, deleted, evicted, expired and holes, after their sum was checked."""
    bound = {} if to_seq is None else {"to_seq": to_seq}
    found = stage.engine.account(name, from_seq, **bound)
    parts = (found.live, found.deleted, found.evicted, found.expired, found.holes)
    assert sum(parts) == found.to_seq - found.from_seq
    return parts


def test_deletes_by_seq_and_by_tag_are_told_from_evictions_and_ages(tmp_path: Path) -> None:
    stage = EngineHarness(tmp_path)
    stage.put("t", durability="disk")
    for tag in ("a", "b", "a", "c"):
        stage.append("t", *[NewRecord(b"1", tag)] * 5)
    stage.delete("t", match="b")
    assert counts(stage, "t") == (15, 5, 0, 0, 0)
    stage.delete("t", before_seq=4)
    assert counts(stage, "t") == (12, 8, 0, 0, 0)
    stage.put("t", durability="disk", cap_records=10)
    assert counts(stage, "t") == (10, 5, 5, 0, 0), "the floor is at seq 6"
    stage.put("t", durability="disk", ttl_ms=1000)
    stage.advance_ms(2000)
    stage.append("t", 0)
    assert counts(stage, "t") == (1, 0, 5, 15, 0)
    for again in (stage.restart, stage.crash, lambda: stage.checkpoint(2), stage.crash):
        again()
        assert counts(stage, "t") == (1, 0, 5, 15, 0)


def test_what_a_power_loss_gives_up_are_holes_and_stay_so(tmp_path: Path) -> None:
    stage = EngineHarness(tmp_path)
    stage.put("t", durability="disk")
    stage.append("t", 0)
    stage.lose_power()
    assert counts(stage, "t") == (1, 0, 0, 0, RESERVED)
    stage.append("t", *[NewRecord(b"1", "x")] * 3)
    stage.delete("t", match="x")
    stage.append("t", 1)
    # Not before a checkpoint is it certain that the power loss is over; until then a kill counts as one.
    for again in (lambda: None, lambda: stage.checkpoint(2), stage.crash, stage.restart, stage.crash):
        again()
        assert counts(stage, "t") == (2, 3, 0, 0, RESERVED)
    stage.delete("t", before_seq=2)
    assert counts(stage, "t") == (1, 4, 0, 0, RESERVED), "also at the front, where no entry is left"


def test_an_ephemeral_topic_comes_back_with_holes(tmp_path: Path) -> None:
    stage = EngineHarness(tmp_path)
    stage.put("t", durability="ephemeral")
    stage.append("t", 1, 2, 3)
    stage.restart()
    stage.append("t", 4)
    assert counts(stage, "t") == (1, 0, 0, 0, 3)


def test_an_account_covers_what_it_is_asked_for_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = EngineHarness(tmp_path)
    stage.put("t", durability="disk")
    stage.append("t", *[NewRecord(b"1", "x")] * 10, *[1] * 10)
    stage.delete("t", match="x")
    assert counts(stage, "t", 8, 12) == (2, 2, 0, 0, 0)
    assert counts(stage, "t", 20) == counts(stage, "t", 99, 3) == (0, 0, 0, 0, 0)
    monkeypatch.setattr(retention, "ACCOUNT_SEQS_MAX", 4)
    assert stage.engine.account("t", 9).to_seq == 13
    assert counts(stage, "t", 9) == (3, 1, 0, 0, 0)


def test_bad_bounds_and_absent_topics_are_refused(tmp_path: Path) -> None:
    stage = EngineHarness(tmp_path)
    stage.put("t")
    with pytest.raises(InvalidRequest, match="from_seq is -1"):
        stage.engine.account("t", -1)
    with pytest.raises(TopicNotFound):
        stage.engine.account("absent")
