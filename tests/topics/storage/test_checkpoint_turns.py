"""A checkpoint of many topics works in turns, and what happens between two of them is not lost."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from everlog.api_types import Durability
from everlog.topics.config import EngineSettings, TopicConfig
from everlog.topics.engine import Engine
from everlog.topics.records import NewRecord
from everlog.topics.routing.definitions import RouterConfig
from everlog.topics.storage import checkpoint
from everlog.topics.storage.checkpoint import Checkpointer
from tests.simulation.simulator import Simulation
from tests.support.engines import open_engine
from tests.support.timings import assert_short, repeated_if_slow

TOPICS = 1000


def count_calls(patch: pytest.MonkeyPatch, name: str, owner: Any = Checkpointer) -> list[int]:
    """How often a method of the checkpointer was called; the test may set it back."""
    calls = [0]
    method: Callable[..., Any] = getattr(owner, name)

    def counted(*arguments: Any) -> Any:
        calls[0] += 1
        return method(*arguments)

    patch.setattr(owner, name, counted)
    return calls


def test_no_turn_plans_or_collects_many_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = checkpoint._RECORDS_A_TURN // checkpoint._RECORDS_A_TOPIC
    with open_engine(tmp_path, snapshot_log_bytes=1 << 30) as engine:
        for number in range(TOPICS):
            commit = engine.append(f"t{number}", [NewRecord(b"1")]).commit
            engine.write()
        engine.wait_for(commit)
        plans, records = count_calls(monkeypatch, "_plan"), count_calls(monkeypatch, "collect", checkpoint)
        checkpointer = engine._checkpointer
        assert checkpointer is not None
        checkpointer.start()
        turns = 0
        while checkpointer._busy:
            for calls in (plans, records):
                assert calls[0] <= most + 1
                calls[0] = 0
            engine.poll()
            turns += 1
        assert turns >= 3 * TOPICS // most  # plan, apply, collect
        assert checkpointer.last_error is None


@repeated_if_slow
def test_no_turn_of_a_checkpoint_of_thousands_of_topics_is_long(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine.open(
        tmp_path_factory.mktemp("many"), EngineSettings(snapshot_log_bytes=1 << 30)
    ) as engine:  # with its threads
        for number in range(4000):  # all in one turn would take four times as long as a turn may
            commit = engine.append(f"t{number}", [NewRecord(b"1")]).commit
            if number % 1000 == 999:
                engine.wait_for(commit)
        checkpointer = engine._checkpointer
        assert checkpointer is not None
        turns: list[float] = []

        def timed(turn: Callable[[], object]) -> None:
            started_ns = time.thread_time_ns()
            turn()
            turns.append((time.thread_time_ns() - started_ns) / 1e6)

        plans = count_calls(monkeypatch, "_plan")
        timed(checkpointer.start)
        assert plans == [0]  # the request that begins a checkpoint plans no topic, unless it has a router
        while checkpointer._busy:
            timed(engine.poll)
            engine._syncs.wait(1_000_000)
        assert checkpointer.last_error is None
        assert len(turns) > 100
        assert_short(turns)


@pytest.fixture
def tiny_turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every turn takes one topic."""
    monkeypatch.setattr(checkpoint, "_RECORDS_A_TURN", 1)
    yield


def texts(engine: Engine, name: str) -> list[Any]:
    found: list[Any] = []
    cursor, head = 0, engine.state(name).head_seq
    while cursor < head:
        diff = engine.diff(name, cursor)
        found += [record["data"] for record in json.loads(diff.records)]
        cursor = diff.next_from_seq
    return found


def act(engine: Engine, turn: int) -> None:
    """Something happens between two turns of a checkpoint."""
    for name in (f"t{turn % 7}", "source"):
        engine.wait_for(engine.append(name, [NewRecord(b"%d" % turn)]).commit)
    if turn % 5 == 2:
        engine.wait_for(engine.delete_records(f"t{turn % 7}", before_seq=turn // 5).commit)
    if turn % 5 == 3:
        engine.wait_for(engine.delete_topic(f"t{turn % 7}").commit)
    if turn % 5 == 4:
        engine.wait_for(engine.put_topic(f"new{turn}", TopicConfig(durability=Durability.FSYNC)).commit)


def seen(engine: Engine) -> dict[str, list[Any]]:
    return {state.topic: texts(engine, state.topic) for state in engine.topics(limit=1000)}


@pytest.mark.usefixtures("tiny_turns")
@pytest.mark.parametrize("killed_at", [1, 4, 7, 10, 13, 16, 20, 25, 30, 40])
def test_a_kill_between_two_turns_loses_nothing(tmp_path: Path, killed_at: int) -> None:
    engine = open_engine(tmp_path, snapshot_log_bytes=1 << 30, segment_max_events=3)
    engine.wait_for(engine.put_router("r", RouterConfig(source="source", dest="copy")).commit)
    for turn in range(21):
        act(engine, turn)
    checkpointer = engine._checkpointer
    assert checkpointer is not None
    while not checkpointer._is_prepared():
        engine.poll()
    checkpointer.start()
    for turn in range(21, 21 + killed_at):
        act(engine, turn)
        engine.poll()
    before = seen(engine)
    engine.abandon()
    for _ in range(2):
        with open_engine(tmp_path, segment_max_events=3) as engine:
            assert seen(engine) == before


@pytest.mark.usefixtures("tiny_turns")
@pytest.mark.parametrize("seed", range(6))
def test_the_simulation_holds_with_turns_of_one_topic(seed: int, tmp_path: Path) -> None:
    Simulation(seed, str(tmp_path), 100).run()
