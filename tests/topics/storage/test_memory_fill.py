"""Topics of class `memory` are loaded after the engine is open, and become what recovery makes of them."""

import errno
import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from everlog.api_types import Durability
from everlog.clock import TestClock
from everlog.errors import Io, NotReady
from everlog.fault_fs import FaultFs
from everlog.topics.config import EngineSettings, TopicConfig
from everlog.topics.engine import Engine
from everlog.topics.records import NewRecord
from everlog.topics.routing.definitions import RouterConfig
from everlog.topics.storage import memory_fill, stepped_replay
from everlog.topics.storage.syncs import InlineSyncs
from tests.support.engines import HeldSyncs, open_engine
from tests.support.files import UnsyncedFs

START_MS = 1_700_000_000_000
NS_PER_MS = 1_000_000
MEMORY = TopicConfig(durability=Durability.MEMORY)
DISK = TopicConfig(durability=Durability.DISK)


def open_later(path: Path, syncs: InlineSyncs | None = None, **more: Any) -> Engine:
    settings = EngineSettings(shards=1, segment_max_events=5, **more.pop("settings", {}))
    clock = more.pop("clock", None) or TestClock(START_MS * NS_PER_MS)
    return Engine.open(
        path,
        settings,
        clock=clock,
        fs=more.pop("fs", None) or UnsyncedFs(),
        syncs=syncs or InlineSyncs(),
        fills_later=True,
    )


def append(engine: Engine, name: str, *data: str) -> int:
    appended = engine.append(name, [NewRecord(b'"%b"' % text.encode()) for text in data])
    engine.wait_for(appended.commit)
    return appended.last_seq


def records_of(engine: Engine, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor, head = 0, engine.state(name, touch=False).head_seq
    while cursor < head:
        diff = engine.diff(name, cursor, include_tags=True, touch=False)
        found += json.loads(diff.records)
        cursor = diff.next_from_seq
    return found


def texts(engine: Engine, name: str) -> list[Any]:
    return [record["data"] for record in records_of(engine, name)]


def crash_with_memory_topic(path: Path) -> None:
    """Leave a directory with 20 records of topic `m` in segments and 3 in the log, and a `disk` topic `d`."""
    engine = open_engine(path, segment_max_events=5)
    for name, config in (("m", MEMORY), ("d", DISK)):
        engine.wait_for(engine.put_topic(name, config).commit)
    for number in range(20):
        append(engine, "m", f"{number}")
    engine.checkpoint()
    append(engine, "m", "20", "21", "22")
    append(engine, "d", "kept")
    engine.abandon()


def everything(engine: Engine) -> dict[str, Any]:
    """What can be seen of all topics."""
    found: dict[str, Any] = {}
    for state in engine.topics(limit=1000):
        tombstone = engine.diff(state.topic, touch=False).tombstone
        found[state.topic] = (state, records_of(engine, state.topic), tombstone, engine.account(state.topic))
    return found


def test_an_engine_is_open_before_its_memory_topics_are_loaded(tmp_path: Path) -> None:
    crash_with_memory_topic(tmp_path)
    syncs = HeldSyncs()
    with open_later(tmp_path, syncs) as engine:
        syncs.is_held = True
        engine.poll()
        assert engine.filling_topics == 1
        assert engine.storage_health().filling_topics == 1
        assert [state.topic for state in engine.topics()] == ["d"]
        for refused in (
            lambda: engine.state("m"),
            lambda: engine.diff("m"),
            lambda: engine.append("m", [NewRecord(b"1")]),
            lambda: engine.delete_records("m", before_seq=5),
            lambda: engine.put_topic("m", DISK),
            lambda: engine.delete_topic("m"),
            lambda: engine.put_router("r", RouterConfig(source="m", dest="d", create_dest=False)),
            lambda: engine.put_router("r", RouterConfig(source="d", dest="m", create_dest=False)),
        ):
            with pytest.raises(NotReady, match="'m'"):
                refused()
        syncs.is_held = False
        append(engine, "d", "next")
        engine.wait_filled()
        assert engine.filling_topics == 0
        assert texts(engine, "m") == [f"{number}" for number in range(23)]
        assert append(engine, "m", "more") == 24
        assert texts(engine, "d") == ["kept", "next"]


def test_a_kill_while_topics_are_loaded_loses_nothing(tmp_path: Path) -> None:
    crash_with_memory_topic(tmp_path)
    for life in range(3):
        syncs = HeldSyncs()
        engine = open_later(tmp_path, syncs, settings={"snapshot_log_bytes": 1, "snapshot_interval_ms": 1})
        for number in range(10):  # each of these would begin a checkpoint
            append(engine, "d", f"{life}-{number}")
            if life < 2:
                syncs.is_held = engine.filling_topics > 0  # the load has begun, or is about to
                engine.poll()
                syncs.is_held = False
            engine.write()
            if life == 0:
                break
        engine.abandon()
    with open_later(tmp_path) as engine:
        engine.wait_filled()
        assert texts(engine, "m") == [f"{number}" for number in range(23)]
        assert len(texts(engine, "d")) == 1 + 1 + 10 + 10


def test_there_is_no_checkpoint_before_everything_is_loaded(tmp_path: Path) -> None:
    crash_with_memory_topic(tmp_path)
    snapshots = sorted((tmp_path / "meta").iterdir())
    syncs = HeldSyncs()
    engine = open_later(tmp_path, syncs, settings={"snapshot_log_bytes": 1})
    syncs.is_held = True
    for _ in range(20):
        engine.append("d", [NewRecord(b"1")])
        engine.write()
        engine.poll()
    assert sorted((tmp_path / "meta").iterdir()) == snapshots
    engine.abandon()
    with open_later(tmp_path) as engine:
        engine.checkpoint()  # waits for the load
        assert engine.filling_topics == 0
        assert len(texts(engine, "m")) == 23


def test_an_engine_that_is_closed_early_leaves_everything_for_the_next(tmp_path: Path) -> None:
    crash_with_memory_topic(tmp_path)
    engine = open_later(tmp_path)
    append_commit = engine.append("d", [NewRecord(b'"late"')]).commit
    engine.close()
    assert append_commit.done and append_commit.error is None
    with open_engine(tmp_path) as engine:
        assert len(texts(engine, "m")) == 23
        assert texts(engine, "d") == ["kept", "late"]


def test_a_load_that_fails_is_tried_again(tmp_path: Path) -> None:
    crash_with_memory_topic(tmp_path / "data")
    fs = FaultFs(tmp_path, 1, UnsyncedFs())
    clock = TestClock(START_MS * NS_PER_MS)
    with open_later(tmp_path / "data", fs=fs, clock=clock) as engine:
        fs.fail_when("open", errno.EMFILE, path="topics", times=1)
        with pytest.raises(Io, match="cannot be loaded"):
            engine.wait_filled()
        assert engine.filling_topics == 1
        assert engine.storage_health().failing == {"segment_read": "EMFILE"}
        clock.advance_ns(memory_fill._RETRY_NS)
        engine.wait_filled()
        assert texts(engine, "m") == [f"{number}" for number in range(23)]


@pytest.mark.parametrize("place", [0, -1])
def test_a_damaged_memory_topic_is_not_served_and_the_others_are(tmp_path: Path, place: int) -> None:
    crash_with_memory_topic(tmp_path)
    sorted((tmp_path / "topics").rglob("*.data"))[place].unlink()
    with open_later(tmp_path) as engine:
        engine.wait_filled()
        health = engine.storage_health()
        assert (health.status, health.damaged_topics, health.filling_topics) == ("damaged", 1, 0)
        assert texts(engine, "d") == ["kept"]
        engine.checkpoint()


@pytest.mark.parametrize("change", ["class", "router", "deleted", "replaced"])
def test_a_topic_that_the_log_ties_to_others_is_there_at_once(tmp_path: Path, change: str) -> None:
    engine = open_engine(tmp_path, segment_max_events=5)
    engine.wait_for(engine.put_topic("m", MEMORY).commit)
    append(engine, "m", "a", "b")
    engine.checkpoint()
    if change == "class":
        engine.wait_for(engine.put_topic("m", DISK).commit)
    elif change == "router":
        engine.wait_for(engine.put_router("r", RouterConfig(source="m", dest="copy")).commit)
    else:
        engine.wait_for(engine.delete_topic("m").commit)
    if change == "replaced":
        engine.wait_for(engine.put_topic("m", MEMORY).commit)
    engine.abandon()
    with open_later(tmp_path) as engine:
        assert engine.filling_topics == 0
        expected = {"class": ["a", "b"], "router": ["a", "b"], "deleted": None, "replaced": []}[change]
        assert engine.has_topic("m") is (expected is not None)
        if expected is not None:
            assert texts(engine, "m") == expected


class YieldingClock(TestClock):
    """Counts how often a worker lets other threads go on."""

    yields = 0

    def sleep_ns(self, duration_ns: int) -> None:
        self.yields += duration_ns == 0
        super().sleep_ns(duration_ns)


def test_no_step_of_the_load_is_long(tmp_path: Path) -> None:
    """Each call into native code is about one segment, or 256 KiB of the log."""
    engine = open_engine(tmp_path, segment_max_events=100)
    engine.wait_for(engine.put_topic("m", MEMORY).commit)
    for _ in range(10):
        append(engine, "m", *["x"] * 100)
    engine.checkpoint()
    batch = [NewRecord(b'"%b"' % (b"x" * 1000))] * 100
    for _ in range(50):
        engine.wait_for(engine.append("m", batch).commit)
    engine.abandon()
    clock = YieldingClock(START_MS * NS_PER_MS)
    with open_later(tmp_path, clock=clock) as engine:
        before = clock.yields
        engine.wait_filled()
        assert clock.yields - before >= 10 + 5_000_000 // stepped_replay._STEP_BYTES
        assert engine.state("m").count == 6000


@pytest.mark.parametrize("seed", range(12))
def test_loading_later_gives_what_recovery_gives(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    first = tmp_path / "first"
    engine = open_engine(first, segment_max_events=rng.choice((3, 20)), file_bytes=4096)
    for name in "abc":
        config = TopicConfig(
            durability=rng.choice((Durability.MEMORY, Durability.MEMORY, Durability.DISK)),
            cap_records=rng.choice((0, 0, 15)),
        )
        engine.wait_for(engine.put_topic(name, config).commit)
    for _ in range(rng.randint(20, 120)):
        name = rng.choice("abc")
        step = rng.random()
        if step < 0.75:
            batch = [
                NewRecord(b"%d" % rng.randint(0, 9), tag=rng.choice((None, "x", "y")))
                for _ in range(rng.randint(1, 6))
            ]
            engine.wait_for(engine.append(name, batch).commit)
        elif step < 0.85:
            engine.wait_for(engine.delete_records(name, match=rng.choice(("x", "y"))).commit)
        elif step < 0.92:
            head = engine.state(name).head_seq
            engine.wait_for(engine.delete_records(name, before_seq=rng.randint(0, head + 1)).commit)
        else:
            engine.checkpoint()
    engine.abandon()
    second = tmp_path / "second"
    shutil.copytree(first, second)
    clock = TestClock(time.time_ns())  # the priority of a topic falls with the time since its last use
    with (
        open_later(first, clock=clock) as later,
        open_engine(second, segment_max_events=5, clock=clock) as at_once,
    ):
        later.wait_filled()
        assert everything(later) == everything(at_once)
        for engine in (later, at_once):
            append(engine, "a", "end")
            engine.checkpoint()
        assert everything(later).keys() == everything(at_once).keys()
    with open_later(first) as later, open_engine(second, segment_max_events=5) as at_once:
        later.wait_filled()
        for name in "abc":
            assert texts(later, name) == texts(at_once, name)
            assert later.state(name).evict_floor == at_once.state(name).evict_floor
