"""Random damage to several files: consumers, jobs, schedules, keys and routers do not change without a word.

`EVERLOG_DAMAGE_TRIALS` sets how many trials there are, `EVERLOG_DAMAGE_SEED` which ones.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from everlog.clock import TestClock
from everlog.errors import EverlogError
from everlog.job_types import JobMembers
from everlog.topics import Engine, EngineSettings, TopicConfig, record_of
from everlog.topics.delivery.consumers import Start
from everlog.topics.routing.definitions import RouterConfig
from everlog.topics.storage import layout
from everlog.topics.storage.syncs import InlineSyncs
from everlog.topics.storage.verify import verify
from tests.support.files import UnsyncedFs
from tests.topics.storage.test_random_damage import HARMLESS, SEED, TRIALS, damage, read_topic

TOPICS = ("source", "copies", "jobs")


def open_engine(data_dir: Path) -> Engine:
    """Open an engine with small files, at any price."""
    return Engine.open(
        data_dir,
        EngineSettings(shards=2, file_bytes=4096, segment_max_events=8, on_damage="serve"),
        clock=TestClock(),
        fs=UnsyncedFs(),
        syncs=InlineSyncs(),
    )


def fill(engine: Engine) -> None:
    """Write until there are files and state of every kind, everything synced."""
    wait = engine.wait_for
    jobs = TopicConfig(type="queue", durability="fsync", leases_durable=True, unique_window_ms=1 << 40)  # type: ignore[arg-type]
    wait(engine.put_topic("source", TopicConfig(durability="fsync", idempotency_window_ms=1 << 40)).commit)  # type: ignore[arg-type]
    wait(engine.put_topic("copies", TopicConfig(durability="fsync")).commit)  # type: ignore[arg-type]
    wait(engine.put_topic("jobs", jobs).commit)
    wait(engine.put_router("r", RouterConfig(source="source", dest="copies")).commit)
    for step in range(40):
        wait(
            engine.append("source", [record_of(f"{step}" + "x" * 20)] * 2, idempotency_key=f"k{step}").commit
        )
        wait(engine.consumers.put("source", f"c{step % 5}", Start(seq=step + 1), hold=step % 2 == 0).commit)
        wait(engine.consumers.commit("source", f"c{step % 5}", 2 * step).commit)
        members = JobMembers(unique_key=f"u{step}", priority=step % 3, delay_ms=(step % 4) * 1_000_000)
        wait(engine.append("jobs", [record_of(step)], jobs={0: members}).commit)
        claimed = engine.claim("jobs", "n", 1, 1 << 40)
        wait(claimed.commit)
        if step % 3 == 0 and claimed.leases:
            wait(engine.nack("jobs", "n", list(claimed.leases), delay_ms=1 << 30).commit)
        wait(engine.schedules.put(f"s{step % 4}", "source", f"{step} 0 1 1 *", record_of(step)).commit)
        wait(engine.forward("copies"))
        if step in (8, 20, 31):
            engine.checkpoint()


def state_of(engine: Engine) -> dict[str, Any]:
    """What a user may see, apart from times."""
    core = engine._core
    state: dict[str, Any] = {name: read_topic(engine, name) for name in TOPICS}
    source, jobs = core.topics["source"], core.topics["jobs"]
    consumers = source.consumers.by_name.values() if source.consumers is not None else ()
    state["keys"] = sorted((each.key, each.first_seq) for _, keys in source.keys.slices() for each in keys)
    state["consumers"] = [(each.name, each.cursor, each.hold) for each in consumers]
    if jobs.leases is not None and jobs.leases.board is not None:
        state["leases"] = sorted(jobs.leases.stored())
        state["options"] = sorted(jobs.leases.board.options.items())
        state["unique"] = sorted(jobs.leases.board.unique)
    state["schedules"] = sorted((name, each.cron) for name, each in core.schedules.items())
    state["routers"] = [(each.name, each.committed_cursor) for each in core.routers]
    state["heads"] = {name: core.topics[name].visible for name in TOPICS}
    return state


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, dict[str, Any]]]:
    """A directory whose process was killed, and one that was stopped in order; what they hold."""
    found = []
    for how in ("killed", "stopped"):
        data_dir = tmp_path_factory.mktemp(how) / "data"
        engine = open_engine(data_dir)
        fill(engine)
        engine.abandon() if how == "killed" else engine.close()
        shutil.copytree(data_dir, data_dir.with_name("looked at"))
        engine = open_engine(data_dir.with_name("looked at"))
        found.append((data_dir, state_of(engine)))
        engine.abandon()
    return found


def trial(original: tuple[Path, dict[str, Any]], data_dir: Path, rng: random.Random) -> str:
    """Damage some files of a copy, then start twice."""
    source, before = original
    shutil.copytree(source, data_dir)
    files = [each for each in sorted(data_dir.rglob("*")) if each.is_file() and each.name not in HARMLESS]
    kinds = sorted({each.suffix or each.name for each in files})
    done = []
    for _ in range(rng.choice((1, 2, 2, 3))):
        kind = rng.choice(kinds)
        path = rng.choice([each for each in files if (each.suffix or each.name) == kind])
        if path.exists():
            done.append(f"{path.relative_to(data_dir)}: {damage(path, rng)}")
    # Where the log ended is nowhere else, so a start without it is refused unless someone takes the loss.
    is_blind = any(each.startswith(layout.SYNCED_FILE) for each in done)
    errors = verify(str(data_dir), UnsyncedFs()).errors
    was_reported, heads = False, dict(before["heads"])
    for start in ("first", "second"):
        try:
            engine = open_engine(data_dir)
        except EverlogError:
            assert errors or was_reported, f"verify finds nothing, the {start} start is refused: {done}"
            return "refused"
        try:
            report = engine.recovery
            assert report is not None
            was_reported |= bool(report.damage)
            assert not was_reported or errors, f"verify finds nothing: {done}, {report.damage}"
            if was_reported:
                for name in TOPICS:
                    if engine.has_topic(name) and name not in engine._core.damaged:
                        answer = engine.append(name, [record_of("new")])
                        engine.wait_for(answer.commit)
                        if not is_blind:
                            assert answer.first_seq > heads[name], f"{name} gives a seq again: {done}"
                        heads[name] = answer.last_seq
            else:
                found = state_of(engine)
                for name in TOPICS:
                    if found[name][2]:  # a reader is told
                        found[name] = before[name]
                wrong = [part for part in before if found.get(part) != before[part]]
                assert not wrong, f"{wrong} differ without a word at the {start} start: {done}"
        finally:
            engine.abandon()
    return "reported" if was_reported else "harmless"


@pytest.mark.timeout(60 + 3 * TRIALS)
def test_damage_to_several_files_changes_no_state_without_a_word(
    originals: list[tuple[Path, dict[str, Any]]], tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    counts: Counter[str] = Counter()
    for number in range(TRIALS):
        counts[trial(originals[number % 2], tmp_path / "data", rng)] += 1
        shutil.rmtree(tmp_path / "data")
    print(dict(counts))
    assert counts["reported"] and counts["refused"]
