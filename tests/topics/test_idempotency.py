"""Idempotency keys: what a repeat is told, for how long, and over which restarts."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from everlog.errors import InvalidRequest, StorageFailed
from tests.support.effort import some_of
from tests.support.engines import EngineHarness, open_engine, records

CLASSES = ("ephemeral", "memory", "disk", "fsync")
WINDOW_MS = 120_000


@pytest.fixture
def harness(tmp_path: Path) -> EngineHarness:
    """An empty engine on a disk."""
    return EngineHarness(tmp_path)


@pytest.mark.parametrize("durability", CLASSES)
def test_a_repeat_gets_the_first_answer_and_appends_nothing(harness: EngineHarness, durability: str) -> None:
    harness.put("t", durability=durability)
    harness.append("t", 0)
    first = harness.append("t", 1, 2, idempotency_key="k")
    harness.append("t", 3)
    again = harness.append("t", "something else", idempotency_key="k")
    assert (again.first_seq, again.last_seq, again.count, again.head_seq) == (2, 3, 2, 3)
    assert (first.deduped, again.deduped, again.created) == (False, True, False)
    assert harness.values("t") == [0, 1, 2, 3]


def test_the_write_that_creates_the_topic_remembers_its_key_too(harness: EngineHarness) -> None:
    assert harness.append("t", 1, idempotency_key="k").created
    again = harness.append("t", 1, idempotency_key="k")
    assert (again.created, again.deduped, again.first_seq) == (False, True, 1)


def test_a_key_has_at_most_256_bytes(harness: EngineHarness) -> None:
    harness.append("t", 1, idempotency_key="ü" * 128)
    with pytest.raises(InvalidRequest):
        harness.engine.append("t", records([1]), idempotency_key="ü" * 128 + "x")
    harness.crash()
    assert harness.append("t", 1, idempotency_key="ü" * 128).deduped


def test_keys_belong_to_their_topic(harness: EngineHarness) -> None:
    harness.append("a", 1, idempotency_key="k")
    assert not harness.append("b", 1, idempotency_key="k").deduped


@pytest.mark.parametrize("durability", CLASSES)
def test_a_repeat_before_the_first_commit_waits_for_the_same_commit(
    harness: EngineHarness, durability: str
) -> None:
    harness.put("t", durability=durability)
    first, second = (harness.engine.append("t", records([n]), idempotency_key="k") for n in (1, 2))
    assert (second.first_seq, second.deduped) == (first.first_seq, True)
    assert second.commit is first.commit
    harness.wait_for(second.commit)
    assert harness.values("t") == [1]


def test_a_key_of_a_batch_that_failed_is_free_again(harness: EngineHarness) -> None:
    harness.put("t")
    harness.disk.fail_when("pwrite", errno.EIO)
    first, second = (harness.engine.append("t", records([n]), idempotency_key="k") for n in (1, 2))
    harness.engine.write()
    assert isinstance(first.commit.error, StorageFailed)
    assert isinstance(second.commit.error, StorageFailed)
    third = harness.append("t", 3, idempotency_key="k")
    assert (third.deduped, third.first_seq) == (False, 1)
    harness.crash()
    assert harness.append("t", 4, idempotency_key="k").deduped
    assert harness.values("t") == [3]


def test_a_refused_batch_does_not_use_its_key(harness: EngineHarness) -> None:
    harness.put("t", cap_records=1, discard="reject")
    with pytest.raises(InvalidRequest):
        harness.engine.append("t", records([1, 2]), idempotency_key="k")
    assert not harness.append("t", 1, idempotency_key="k").deduped


def test_a_repeat_is_answered_even_if_the_topic_is_full_by_now(harness: EngineHarness) -> None:
    harness.put("t", cap_records=1, discard="reject")
    harness.append("t", 1, idempotency_key="k")
    assert harness.append("t", 1, idempotency_key="k").deduped


@pytest.mark.parametrize("durability", CLASSES)
def test_a_key_is_forgotten_when_its_window_is_over(harness: EngineHarness, durability: str) -> None:
    harness.put("t", durability=durability)
    harness.append("t", 1, idempotency_key="k")
    harness.advance_ms(WINDOW_MS - 1)
    assert harness.append("t", 2, idempotency_key="k").deduped
    harness.advance_ms(2)
    again = harness.append("t", 3, idempotency_key="k")
    assert (again.deduped, again.first_seq) == (False, 2)


def test_a_repeat_does_not_make_the_window_longer(harness: EngineHarness) -> None:
    harness.append("t", 1, idempotency_key="k")
    for _ in range(3):
        harness.advance_ms(WINDOW_MS // 3)
        assert harness.append("t", 1, idempotency_key="k").deduped
    harness.advance_ms(1)
    assert not harness.append("t", 1, idempotency_key="k").deduped


@pytest.mark.parametrize("durability", ["disk", "fsync"])
@pytest.mark.parametrize("again", ["crash", "restart", "checkpoint and crash"])
def test_keys_survive_restarts_with_their_batches_until_their_window_is_over(
    harness: EngineHarness, durability: str, again: str
) -> None:
    harness.put("t", durability=durability)
    harness.append("t", 0)
    harness.append("t", 1, 2, idempotency_key="k")
    if again == "checkpoint and crash":
        harness.checkpoint(2)
        again = "crash"
    for _ in range(2):
        getattr(harness, again)()
        answer = harness.append("t", "again", idempotency_key="k")
        assert (answer.first_seq, answer.last_seq, answer.count, answer.deduped) == (2, 3, 2, True)
    harness.advance_ms(WINDOW_MS + 1)
    assert not harness.append("t", 3, idempotency_key="k").deduped


@pytest.mark.parametrize("durability", ["ephemeral", "memory"])
@pytest.mark.parametrize("again", ["crash", "restart", "checkpoint and crash"])
def test_the_weak_classes_lose_their_keys_with_a_restart(
    harness: EngineHarness, durability: str, again: str
) -> None:
    harness.put("t", durability=durability)
    harness.append("t", 1, idempotency_key="k")
    if again == "checkpoint and crash":
        harness.checkpoint(2)
        again = "crash"
    getattr(harness, again)()
    head_seq = harness.state("t").head_seq
    answer = harness.append("t", 2, idempotency_key="k")
    assert (answer.deduped, answer.first_seq) == (False, head_seq + 1)


@pytest.mark.parametrize("seed", range(8))
def test_a_retry_after_a_power_loss_never_appends_twice_what_was_kept(tmp_path: Path, seed: int) -> None:
    harness = EngineHarness(tmp_path, seed)
    for durability in ("disk", "fsync"):
        harness.put(durability, durability=durability)
        for number in range(10):
            harness.append(durability, number, idempotency_key=str(number))
    harness.lose_power()
    for durability in ("disk", "fsync"):
        kept = len(harness.values(durability))
        for number in range(10):
            assert harness.append(durability, number, idempotency_key=str(number)).deduped == (number < kept)
        assert harness.values(durability) == list(range(10))
        assert durability == "disk" or kept == 10


def test_a_key_that_was_used_twice_does_not_shield_others_after_a_replay(harness: EngineHarness) -> None:
    harness.append("t", 1, idempotency_key="a")
    harness.advance_ms(50_000)
    harness.append("t", 2, idempotency_key="b")
    harness.advance_ms(80_000)
    harness.append("t", 3, idempotency_key="a")
    harness.crash()
    harness.advance_ms(45_000)
    assert harness.append("t", 4, idempotency_key="a").deduped
    assert not harness.append("t", 5, idempotency_key="b").deduped


def test_the_window_is_that_of_the_topic(harness: EngineHarness) -> None:
    harness.put("t", idempotency_window_ms=10)
    harness.append("t", 1, idempotency_key="k")
    harness.advance_ms(10)
    assert harness.append("t", 1, idempotency_key="k").deduped
    harness.advance_ms(1)
    assert not harness.append("t", 2, idempotency_key="k").deduped


def test_a_key_is_known_after_a_torn_write_only_if_its_records_are_there(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "killed")
    engine.wait_for(engine.append("t", records([0])).commit)
    path = max((tmp_path / "killed" / "wal").rglob("*.log"))
    before = len(path.read_bytes().rstrip(b"\0"))
    engine.append("t", records([1, 2]), idempotency_key="k")
    engine.write()
    engine.abandon()
    whole = path.read_bytes().rstrip(b"\0")

    def without_log(folder: str, _: list[str]) -> list[str]:
        return [path.name] if Path(folder) == path.parent else []  # allocated, so long to copy

    for end in some_of(range(before, len(whole) + 1)):
        torn = tmp_path / str(end)
        shutil.copytree(tmp_path / "killed", torn, ignore=without_log)
        (torn / path.relative_to(tmp_path / "killed")).write_bytes(whole[:end])
        engine = open_engine(torn)
        kept = engine.state("t").count
        assert kept in (1, 3)
        assert engine.append("t", records([1, 2]), idempotency_key="k").deduped == (kept == 3), end
        engine.abandon()
