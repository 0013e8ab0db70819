"""A replica shows what was shipped, round after round, whatever the primary does in between."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.clock import SystemClock
from everlog.errors import DataDirInUse, Io
from everlog.job_types import JobMembers
from everlog.objects import open_store
from everlog.topics import Engine, EngineSettings, record_of
from everlog.topics.replica import Replica
from everlog.topics.routing.definitions import RouterConfig
from everlog.topics.storage.restoring import Restorer
from everlog.topics.storage.shipping import Shipper
from tests.support.effort import effort
from tests.support.engines import EngineHarness, parse
from tests.support.files import UnsyncedFs

SMALL: dict[str, Any] = {"segment_max_events": 5, "file_bytes": 8192}
NAMES = ("a", "b", "copies", "jobs")


class Copied:
    """A primary that is driven step by step, its shipper, and a replica with its newest engine."""

    def __init__(self, root: Path) -> None:
        self.primary = EngineHarness(root, **SMALL)
        self.primary.put("jobs", type="queue", durability="fsync")
        self.primary.wait_for(
            self.primary.engine.put_router("r", RouterConfig(source="a", dest="copies")).commit
        )
        self.url = f"file://{root}/bucket"
        self.shipper = self.new_shipper()
        self.shipper.round()
        self.replica = Replica(
            self.url,
            str(root / "copy"),
            EngineSettings(**SMALL),
            clock=self.primary.clock,
            fs=UnsyncedFs(),
        )
        self.engine = self.replica.open()

    def new_shipper(self) -> Shipper:
        store = open_store(self.url, fs=UnsyncedFs())
        return Shipper(str(self.primary.data_dir), store, UnsyncedFs(), SystemClock())

    def follow(self) -> None:
        """Ship, and let the replica take it."""
        self.primary.engine.wait_for(self.primary.engine.forward("copies"))
        self.shipper.round()
        newer = self.replica.refresh()
        if newer is not None:
            self.engine = newer
            self.replica.move_watchers()

    def close(self) -> None:
        self.engine.close()
        self.replica.close()


def shown(engine: Engine) -> dict[str, Any]:
    """What readers of an engine see of all topics."""
    found: dict[str, Any] = {}
    for name in NAMES:
        if engine.has_topic(name):
            state = engine.state(name, touch=False)
            diff = engine.diff(name, 0, 1000, include_tags=True)
            counts = state.queue
            # A lease ends with its server: a job that is leased there can be claimed here.
            jobs = None if counts is None else (counts.ready + counts.in_flight, counts.dead_lettered)
            found[name] = (state.epoch, state.head_seq, state.earliest_seq, jobs, parse(diff))
    if engine.has_topic("b"):
        found["consumers"] = [(each.name, each.cursor) for each in engine.consumers.page("b")[0]]
    return found


OTHER_STEPS = ["delete", "checkpoint", "crash", "shipper", "drop", "claim", "ack", "consumer"]
STEPS = st.lists(
    st.sampled_from(["append", "append", "follow", "follow", *OTHER_STEPS]),
    max_size=30,
)


@given(steps=STEPS, seed=st.integers(0, 1 << 16))
@settings(max_examples=effort(25))
def test_a_replica_shows_what_was_shipped_last(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], seed: int
) -> None:
    copied = Copied(tmp_path_factory.mktemp("replica"))
    rng = random.Random(seed)
    for number, step in enumerate([*steps, "follow"]):
        take(copied, step, number, rng)
        if step == "follow":
            assert shown(copied.engine) == shown(copied.primary.engine)
    copied.close()


def take(copied: Copied, step: str, number: int, rng: random.Random) -> None:
    primary = copied.primary
    name = rng.choice("ab")
    if step == "append":
        values = [record_of(f"{number}:{i}", tag=rng.choice("pq")) for i in range(rng.randint(1, 9))]
        primary.append(rng.choice(("a", "b")), *values)
        primary.append("jobs", {"job": number}, jobs={0: JobMembers(priority=number % 3)})
    elif step == "delete" and primary.engine.has_topic(name):
        primary.delete(name, match="p")
    elif step == "drop":
        primary.delete_topic("b")
    elif step == "checkpoint":
        primary.checkpoint()
    elif step == "crash":
        primary.crash()
    elif step == "shipper":
        copied.shipper = copied.new_shipper()
    elif step == "consumer" and primary.engine.has_topic("b"):
        primary.wait_for(primary.engine.consumers.put("b", "c").commit)
        head = primary.state("b").head_seq
        primary.wait_for(primary.engine.consumers.commit("b", "c", head).commit)
    elif step in ("claim", "ack"):
        claimed = primary.engine.claim("jobs", "worker", 1, lease_ms=3_600_000)
        primary.wait_for(claimed.commit)
        if step == "ack" and claimed.leases:
            primary.wait_for(primary.engine.ack("jobs", "worker", list(claimed.leases)).commit)
    elif step == "follow":
        copied.follow()


def test_a_waiter_is_called_when_a_later_view_has_something_new(tmp_path: Path) -> None:
    copied = Copied(tmp_path)
    copied.primary.append("b", 1)
    copied.follow()
    calls: list[str] = []
    copied.engine.on_change("b", lambda: calls.append("changed"))
    copied.engine.on_topic_created(calls.append)
    copied.primary.append("a", "of another topic")
    copied.follow()
    copied.engine.poll()
    assert calls == [], "a topic that has not changed wakes no waiter"
    copied.primary.append("b", 2)
    copied.primary.put("later")
    copied.follow()
    copied.engine.poll()
    assert calls == ["later", "changed"]
    copied.engine.on_change("b", lambda: calls.append("deleted"))
    copied.primary.delete_topic("b")
    copied.follow()
    assert calls == ["later", "changed", "deleted"]
    copied.close()


def test_files_that_no_view_needs_are_removed(tmp_path: Path) -> None:
    copied = Copied(tmp_path)
    wal, primary = tmp_path / "copy" / "wal", copied.primary
    for number in range(40):
        primary.append("b", *[f"{number}:{i}" * 50 for i in range(8)])
        primary.checkpoint()
        copied.follow()
    copied.replica.refresh()
    assert len(list(wal.rglob("*.log"))) <= len(list(primary.data_dir.glob("wal/*.log"))) + 1
    primary.delete_topic("b")
    primary.checkpoint(2)
    copied.follow()
    copied.replica.refresh()
    kept = {path.parent.name for path in (tmp_path / "copy" / "topics").rglob("*.data")}
    assert kept <= {path.parent.name for path in (primary.data_dir / "topics").rglob("*.data")}
    copied.close()


def test_a_directory_that_follows_is_opened_by_nothing_else(tmp_path: Path) -> None:
    copied = Copied(tmp_path)
    copy = tmp_path / "copy"
    with pytest.raises(DataDirInUse):
        Restorer(open_store(copied.url), str(copy), UnsyncedFs()).restore()
    copied.close()
    with pytest.raises(Io, match="everlog promote"):
        Engine.open(copy, EngineSettings(shards=1))
    Restorer(open_store(copied.url), str(copy), UnsyncedFs()).restore()
    Engine.open(copy, EngineSettings(shards=1)).close()


def test_a_shipment_that_cannot_be_read_leaves_the_view_and_is_shown(tmp_path: Path) -> None:
    copied = Copied(tmp_path)
    copied.primary.append("b", 1)
    copied.shipper.round()
    newest = max((tmp_path / "bucket" / "log").iterdir())
    content = newest.read_bytes()
    newest.write_bytes(content[:-1])
    assert copied.replica.refresh() is None
    assert copied.engine.storage_health().failing.keys() == {"backup"}
    assert not copied.engine.has_topic("b")
    newest.write_bytes(content)
    copied.follow()
    assert copied.engine.storage_health().status == "ok"
    assert shown(copied.engine) == shown(copied.primary.engine)
    copied.close()
