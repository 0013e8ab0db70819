"""The cap of a destination holds for copies too, however they get into its log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from everlog.topics import Engine, NewRecord, TopicConfig
from everlog.topics.config import Discard, Durability
from everlog.topics.routing.definitions import RouterConfig
from tests.support.engines import EngineHarness, open_engine

CAP = 2
FULL = TopicConfig(cap_records=1, discard=Discard.REJECT)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """A source in memory only, a synced destination with a cap behind it, and a full topic behind that."""
    engine = open_engine(tmp_path)
    for name, config in (
        ("source", TopicConfig(durability=Durability.EPHEMERAL)),
        ("capped", TopicConfig(durability=Durability.FSYNC, cap_records=CAP)),
        ("full", FULL),
    ):
        engine.wait_for(engine.put_topic(name, config).commit)
    for name, source, dest in (("first", "source", "capped"), ("second", "capped", "full")):
        engine.wait_for(engine.put_router(name, RouterConfig(source=source, dest=dest)).commit)
    engine.wait_for(engine.append("full", [NewRecord(b'"occupied"')]).commit)
    with engine:
        yield engine


def send(engine: Engine, *numbers: int) -> None:
    engine.append("source", [NewRecord(str(number).encode()) for number in numbers])


def copies(engine: Engine, name: str) -> list[int]:
    """What a reader finds; sees to it that everything is copied."""
    return [record["data"] for record in json.loads(engine.diff(name).records)]


def test_copies_that_wait_for_their_sync_are_counted_when_they_are_visible(engine: Engine) -> None:
    """The router behind looks at the destination meanwhile, which enforces what is visible of the cap."""
    send(engine, 1, 2)
    assert copies(engine, "capped") == [1, 2]
    send(engine, 3, 4, 5, 6, 7)
    assert copies(engine, "full") == ["occupied"]
    assert copies(engine, "capped") == [6, 7]
    state = engine.state("capped")
    assert (state.count, state.evict_floor) == (CAP, 6)
    assert engine.router("second").forwarded_total == 5, "a hole for each that was lost before it was copied"


def test_copies_push_out_nothing_before_they_are_kept(engine: Engine) -> None:
    send(engine, 1, 2)
    assert copies(engine, "capped") == [1, 2]
    send(engine, 3, 4)
    engine.forward_turn()
    answer = engine.diff("capped", block=False)
    assert [record["data"] for record in json.loads(answer.records)] == [1, 2]
    assert copies(engine, "capped") == [3, 4]


def test_copies_that_were_pushed_out_stay_out_when_the_cap_is_taken_away(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("s", durability="disk")
    harness.put("d", durability="disk", cap_records=CAP)
    harness.wait_for(harness.engine.put_router("r", RouterConfig(source="s", dest="d")).commit)
    harness.append("s", 1, 2, 3, 4, 5)
    before = harness.items("d"), harness.gap("d")
    assert [item["data"] for item in before[0]] == [4, 5]
    harness.put("d", durability="disk", cap_records=0)
    harness.crash()
    assert (harness.items("d"), harness.gap("d")) == before
