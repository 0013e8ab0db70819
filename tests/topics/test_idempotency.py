"""Idempotency keys: what a repeat is told, for how long, and over which restarts."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from everlog.errors import InvalidRequest, StorageFailed
from tests.support.engines import EngineHarness, records

CLASSES = ("ephemeral", "memory", "disk", "fsync")
WINDOW_MS = 120_000


@pytest.fixture
def stage(tmp_path: Path) -> EngineHarness:
    """An empty engine on a disk."""
    return EngineHarness(tmp_path)


@pytest.mark.parametrize("durability", CLASSES)
def test_a_repeat_gets_the_first_answer_and_appends_nothing(stage: EngineHarness, durability: str) -> None:
    stage.put("t", durability=durability)
    stage.append("t", 0)
    first = stage.append("t", 1, 2, idempotency_key="k")
    stage.append("t", 3)
    again = stage.append("t", "something else", idempotency_key="k")
    assert (again.first_seq, again.last_seq, again.count, again.head_seq) == (2, 3, 2, 3)
    assert (first.deduped, again.deduped, again.created) == (False, True, False)
    assert stage.values("t") == [0, 1, 2, 3]


def test_the_write_that_creates_the_topic_remembers_its_key_too(stage: EngineHarness) -> None:
    assert stage.append("t", 1, idempotency_key="k").created
    again = stage.append("t", 1, idempotency_key="k")
    assert (again.created, again.deduped, again.first_seq) == (False, True, 1)


def test_a_key_has_at_most_256_bytes(stage: EngineHarness) -> None:
    stage.append("t", 1, idempotency_key="ü" * 128)
    with pytest.raises(InvalidRequest):
        stage.engine.append("t", records([1]), idempotency_key="ü" * 128 + "x")
    stage.crash()
    assert stage.append("t", 1, idempotency_key="ü" * 128).deduped


def test_keys_belong_to_their_topic(stage: EngineHarness) -> None:
    stage.append("a", 1, idempotency_key="k")
    assert not stage.append("b", 1, idempotency_key="k").deduped


@pytest.mark.parametrize("durability", CLASSES)
def test_a_repeat_before_the_first_commit_waits_for_the_same_commit(
    stage: EngineHarness, durability: str
) -> None:
    stage.put("t", durability=durability)
    first, second = (stage.engine.append("t", records([n]), idempotency_key="k") for n in (1, 2))
    assert (second.first_seq, second.deduped) == (first.first_seq, True)
    assert second.commit is first.commit
    stage.wait_for(second.commit)
    assert stage.values("t") == [1]


def test_a_key_of_a_batch_that_failed_is_free_again(stage: EngineHarness) -> None:
    stage.put("t")
    stage.disk.fail_when("pwrite", errno.EIO)
    first, second = (stage.engine.append("t", records([n]), idempotency_key="k") for n in (1, 2))
    stage.engine.write()
    assert isinstance(first.commit.error, StorageFailed)
    assert isinstance(second.commit.error, StorageFailed)
    third = stage.append("t", 3, idempotency_key="k")
    assert (third.deduped, third.first_seq) == (False, 1)
    stage.crash()
    assert stage.append("t", 4, idempotency_key="k").deduped
    assert stage.values("t") == [3]


def test_a_refused_batch_does_not_use_its_key(stage: EngineHarness) -> None:
    stage.put("t", cap_records=1, discard="reject")
    with pytest.raises(InvalidRequest):
        stage.engine.append("t", records([1, 2]), idempotency_key="k")
    assert not stage.append("t", 1, idempotency_key="k").deduped


def test_a_repeat_is_answered_even_if_the_topic_is_full_by_now(stage: EngineHarness) -> None:
    stage.put("t", cap_records=1, discard="reject")
    stage.append("t", 1, idempotency_key="k")
    assert stage.append("t", 1, idempotency_key="k").deduped


@pytest.mark.parametrize("durability", CLASSES)
def test_a_key_is_forgotten_when_its_window_is_over(stage: EngineHarness, durability: str) -> None:
    stage.put("t", durability=durability)
    stage.append("t", 1, idempotency_key="k")
    stage.advance_ms(WINDOW_MS - 1)
    assert stage.append("t", 2, idempotency_key="k").deduped
    stage.advance_ms(2)
    again = stage.append("t", 3, idempotency_key="k")
    assert (again.deduped, again.first_seq) == (False, 2)


def test_a_repeat_does_not_make_the_window_longer(stage: EngineHarness) -> None:
    stage.append("t", 1, idempotency_key="k")
    for _ in range(3):
        stage.advance_ms(WINDOW_MS // 3)
        assert stage.append("t", 1, idempotency_key="k").deduped
    stage.advance_ms(1)
    assert not stage.append("t", 1, idempotency_key="k").deduped


@pytest.mark.parametrize("durability", ["disk", "fsync"])
@pytest.mark.parametrize("again", ["crash", "restart", "checkpoint and crash"])
def test_keys_survive_restarts_with_their_batches_until_their_window_is_over(
    stage: EngineHarness, durability: str, again: str
) -> None:
    stage.put("t", durability=durability)
    stage.append("t", 0)
    stage.append("t", 1, 2, idempotency_key="k")
    if again == "checkpoint and crash":
        stage.checkpoint(2)
        again = "crash"
    for _ in range(2):
        getattr(stage, again)()
        answer = stage.append("t", "again", idempotency_key="k")
        assert (answer.first_seq, answer.last_seq, answer.count, answer.deduped) == (2, 3, 2, True)
    stage.advance_ms(WINDOW_MS + 1)
    assert not stage.append("t", 3, idempotency_key="k").deduped


@pytest.mark.parametrize("durability", ["ephemeral", "memory"])
@pytest.mark.parametrize("again", ["crash", "restart", "checkpoint and crash"])
def test_the_weak_classes_lose_their_keys_with_a_restart(
    stage: EngineHarness, durability: str, again: str
) -> None:
    stage.put("t", durability=durability)
    stage.append("t", 1, idempotency_key="k")
    if again == "checkpoint and crash":
        stage.checkpoint(2)
        again = "crash"
    getattr(stage, again)()
    head_seq = stage.state("t").head_seq
    answer = stage.append("t", 2, idempotency_key="k")
    assert (answer.deduped, answer.first_seq) == (False, head_seq + 1)


@pytest.mark.parametrize("seed", range(8))
def test_a_retry_after_a_power_loss_never_appends_twice_what_was_kept(tmp_path: Path, seed: int) -> None:
    stage = EngineHarness(tmp_path, seed)
    for durability in ("disk", "fsync"):
        stage.put(durability, durability=durability)
        for number in range(10):
            stage.append(durability, number, idempotency_key=str(number))
    stage.lose_power()
    for durability in ("disk", "fsync"):
        kept = len(stage.values(durability))
        for number in range(10):
            assert stage.append(durability, number, idempotency_key=str(number)).deduped == (number < kept)
        assert stage.values(durability) == list(range(10))
        assert durability == "disk" or kept == 10


def test_a_key_that_was_used_twice_does_not_shield_others_after_a_replay(stage: EngineHarness) -> None:
    stage.append("t", 1, idempotency_key="a")
    stage.advance_ms(50_000)
    stage.append("t", 2, idempotency_key="b")
    stage.advance_ms(80_000)
    stage.append("t", 3, idempotency_key="a")
    stage.crash()
    stage.advance_ms(45_000)
    assert stage.append("t", 4, idempotency_key="a").deduped
    assert not stage.append("t", 5, idempotency_key="b").deduped


def test_the_window_is_that_of_the_topic(stage: EngineHarness) -> None:
    stage.put("t", idempotency_window_ms=10)
    stage.append("t", 1, idempotency_key="k")
    stage.advance_ms(10)
    assert stage.append("t", 1, idempotency_key="k").deduped
    stage.advance_ms(1)
    assert not stage.append("t", 2, idempotency_key="k").deduped
