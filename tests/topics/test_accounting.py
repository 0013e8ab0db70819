"""Every seq of a topic is accounted for: alive, deleted, evicted, expired, or a hole."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlog.errors import InvalidRequest, TopicNotFound
from everlog.topics import NewRecord, retention
from tests.support.engines import EngineHarness

RESERVED = 256


def counts(
    harness: EngineHarness, name: str, from_seq: int = 0, to_seq: int | None = None
) -> tuple[int, ...]:
    """Live, deleted, evicted, expired and holes, after their sum was checked."""
    bound = {} if to_seq is None else {"to_seq": to_seq}
    found = harness.engine.account(name, from_seq, **bound)
    parts = (found.live, found.deleted, found.evicted, found.expired, found.holes)
    assert sum(parts) == found.to_seq - found.from_seq
    return parts


def test_deletes_by_seq_and_by_tag_are_told_from_evictions_and_ages(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="disk")
    for tag in ("a", "b", "a", "c"):
        harness.append("t", *[NewRecord(b"1", tag)] * 5)
    harness.delete("t", match="b")
    assert counts(harness, "t") == (15, 5, 0, 0, 0)
    harness.delete("t", before_seq=4)
    assert counts(harness, "t") == (12, 8, 0, 0, 0)
    harness.put("t", durability="disk", cap_records=10)
    assert counts(harness, "t") == (10, 5, 5, 0, 0), "the floor is at seq 6"
    harness.put("t", durability="disk", ttl_ms=1000)
    harness.advance_ms(2000)
    harness.append("t", 0)
    assert counts(harness, "t") == (1, 0, 5, 15, 0)
    for again in (harness.restart, harness.crash, lambda: harness.checkpoint(2), harness.crash):
        again()
        assert counts(harness, "t") == (1, 0, 5, 15, 0)


def test_what_a_power_loss_gives_up_are_holes_and_stay_so(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="disk")
    harness.append("t", 0)
    harness.lose_power()
    assert counts(harness, "t") == (1, 0, 0, 0, RESERVED)
    harness.append("t", *[NewRecord(b"1", "x")] * 3)
    harness.delete("t", match="x")
    harness.append("t", 1)
    # Not before a checkpoint is it certain that the power loss is over; until then a kill counts as one.
    for again in (lambda: None, lambda: harness.checkpoint(2), harness.crash, harness.restart, harness.crash):
        again()
        assert counts(harness, "t") == (2, 3, 0, 0, RESERVED)
    harness.delete("t", before_seq=2)
    assert counts(harness, "t") == (1, 4, 0, 0, RESERVED), "also at the front, where no entry is left"


def test_an_ephemeral_topic_comes_back_with_holes(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="ephemeral")
    harness.append("t", 1, 2, 3)
    harness.restart()
    harness.append("t", 4)
    assert counts(harness, "t") == (1, 0, 0, 0, 3)


def test_an_account_covers_what_it_is_asked_for_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="disk")
    harness.append("t", *[NewRecord(b"1", "x")] * 10, *[1] * 10)
    harness.delete("t", match="x")
    assert counts(harness, "t", 8, 12) == (2, 2, 0, 0, 0)
    assert counts(harness, "t", 20) == counts(harness, "t", 99, 3) == (0, 0, 0, 0, 0)
    monkeypatch.setattr(retention, "ACCOUNT_SEQS_MAX", 4)
    assert harness.engine.account("t", 9).to_seq == 13
    assert counts(harness, "t", 9) == (3, 1, 0, 0, 0)


def test_bad_bounds_and_absent_topics_are_refused(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t")
    with pytest.raises(InvalidRequest, match="from_seq is -1"):
        harness.engine.account("t", -1)
    with pytest.raises(TopicNotFound):
        harness.engine.account("absent")
