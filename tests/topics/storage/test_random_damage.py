"""Random damage to every kind of file of the topics plane: never silent, and no seq comes twice.

`EVERLOG_DAMAGE_TRIALS` sets how many trials there are, `EVERLOG_DAMAGE_SEED` which ones.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from everlog.clock import TestClock
from everlog.errors import Corrupt, EverlogError, TopicDamaged
from everlog.topics import Engine, EngineSettings, TopicConfig, record_of
from everlog.topics.storage import layout
from everlog.topics.storage.syncs import InlineSyncs
from everlog.topics.storage.verify import verify
from tests.support.files import UnsyncedFs

TRIALS = int(os.environ.get("EVERLOG_DAMAGE_TRIALS", "60"))
SEED = int(os.environ.get("EVERLOG_DAMAGE_SEED", "20261118"))
TOPICS = {"fsync.a": "fsync", "fsync.b": "fsync", "disk.a": "disk", "disk.b": "disk"}
HARMLESS = {layout.LOCK_FILE, layout.BOOT_FILE}
"""Files without anything that a topic needs: a lost one makes recovery more careful, and no more."""


class Written(NamedTuple):
    """What a topic holds for certain: the data of its records by seq, its head, and what was deleted."""

    records: dict[int, Any]
    head: int
    deleted: set[int]


def open_engine(data_dir: Path, **settings: Any) -> Engine:
    """Open an engine with small files."""
    return Engine.open(
        data_dir,
        EngineSettings(shards=2, file_bytes=4096, segment_max_events=8, **settings),
        clock=TestClock(),
        fs=UnsyncedFs(),
        syncs=InlineSyncs(),
    )


def fill(engine: Engine) -> dict[str, Written]:
    """Write, delete and checkpoint until there are files of every kind, everything synced."""
    seqs: dict[str, dict[int, Any]] = {name: {} for name in TOPICS}
    heads = dict.fromkeys(TOPICS, 0)
    deleted: dict[str, set[int]] = {name: set() for name in TOPICS}
    for name, durability in TOPICS.items():
        engine.wait_for(engine.put_topic(name, TopicConfig(durability=durability)).commit)  # type: ignore[arg-type]
    for step in range(60):
        for name in TOPICS:
            batch = [
                record_of(f"{name} {step} {part}" + "x" * (step % 30), tag=str(step % 7)) for part in (0, 1)
            ]
            answer = engine.append(name, batch)
            engine.wait_for(answer.commit)
            for part in (0, 1):
                seqs[name][answer.first_seq + part] = f"{name} {step} {part}" + "x" * (step % 30)
            heads[name] = answer.last_seq
        if step == 20:
            for name in TOPICS:
                engine.wait_for(engine.delete_records(name, match="3").commit)
                gone = {seq for seq, text in seqs[name].items() if int(text.split()[1]) % 7 == 3}
                deleted[name] |= gone
                seqs[name] = {seq: text for seq, text in seqs[name].items() if seq not in gone}
        if step in (10, 25, 40):
            engine.checkpoint()
    for name in TOPICS:
        engine.wait_for(engine.synced_commit(name))
    return {name: Written(seqs[name], heads[name], deleted[name]) for name in TOPICS}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, dict[str, Written]]]:
    """A directory whose process was killed, and one that was stopped in order."""
    found = []
    for how in ("killed", "stopped"):
        folder = tmp_path_factory.mktemp(how)
        engine = open_engine(folder / "data")
        written = fill(engine)
        engine.abandon() if how == "killed" else engine.close()
        found.append((folder / "data", written))
    return found


def damage(path: Path, rng: random.Random) -> str:
    """Damage a file in one of four ways; returns what was done."""
    content = bytearray(path.read_bytes())
    used = len(content.rstrip(b"\0")) or len(content)
    way = rng.choice(("flip", "flip", "cut", "zero", "lost"))
    if way == "lost" or not content:
        path.unlink()
        return "lost"
    at = rng.randrange(used)
    if way == "flip":
        content[at] ^= 1 << rng.randrange(8)
    elif way == "cut":
        del content[at:]
    else:
        end = min(at + rng.choice((1, 16, 512)), len(content))
        content[at:end] = bytes(end - at)
    path.write_bytes(content)
    return f"{way} at {at} of {used}"


def read_topic(engine: Engine, name: str) -> tuple[dict[int, Any], set[int], bool]:
    """The records of a topic, the seqs that tombstones cover, and whether reading ended with an error."""
    records: dict[int, Any] = {}
    lost: set[int] = set()
    at = 0
    while True:
        try:
            page = engine.diff(name, at)
        except Corrupt:
            return records, lost, True
        if page.tombstone is not None:
            lost |= set(range(page.tombstone.gap_from, page.tombstone.gap_to + 1))
        records |= {item["$seq"]: item["data"] for item in json.loads(page.records)}
        if page.caught_up:
            return records, lost, False
        at = page.next_from_seq


def check_topic(engine: Engine, name: str, written: Written, is_reported: bool) -> None:
    """Nothing is missing or changed without a word, and the next seq is a new one."""
    if not engine.has_topic(name):
        assert is_reported, f"{name} is gone without a word"
        return
    records, lost, has_failed = read_topic(engine, name)
    for seq, data in records.items():
        if seq in written.records:
            assert data == written.records[seq], f"{name} {seq} changed"
        else:
            assert seq in written.deleted and is_reported, f"{name} {seq} came back without a word"
    missing = set(written.records) - set(records) - lost
    assert not missing or has_failed, f"{name} lacks {sorted(missing)} without a word"
    assert not (lost & set(written.records)) or is_reported
    assert engine.append(name, [record_of("new")]).first_seq > written.head, f"{name} gives a seq again"


def trial(
    original: tuple[Path, dict[str, Written]], folder: Path, rng: random.Random, counts: Counter[str]
) -> None:
    """Damage one file of a copy, then hold `verify` and an engine against what was written."""
    source, written = original
    data_dir = folder / "data"
    shutil.copytree(source, data_dir)
    files: dict[str, list[Path]] = {}
    for each in sorted(data_dir.rglob("*")):
        if each.is_file():
            kind = each.name if each.name.startswith(".") and each.suffix != ".copy" else each.suffix
            files.setdefault(kind, []).append(each)
    kind = rng.choice(sorted(files))
    path = rng.choice(files[kind])
    what = f"{path.relative_to(data_dir)}: {damage(path, rng)}"
    errors = [] if path.name in HARMLESS else verify(str(data_dir), UnsyncedFs()).errors
    try:
        engine = open_engine(data_dir, on_damage="serve")
    except EverlogError:
        counts[f"{kind}: refused"] += 1
        assert errors, f"verify finds nothing, but the start is refused: {what}"
        return
    try:
        report = engine.recovery
        assert report is not None
        is_reported = bool(report.damage)
        counts[f"{kind}: {'reported' if is_reported else 'harmless'}"] += 1
        assert not is_reported or errors, f"verify finds nothing: {what}, {report.damage}"
        for name, truth in written.items():
            try:
                check_topic(engine, name, truth, is_reported)
            except TopicDamaged:
                assert is_reported
            except AssertionError as error:
                raise AssertionError(f"{what}: {error}; report {report.damage}") from error
    finally:
        engine.abandon()


@pytest.mark.timeout(60 + 3 * TRIALS)
def test_damage_to_any_file_is_never_silent_and_gives_no_seq_again(
    originals: list[tuple[Path, dict[str, Written]]],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    rng = random.Random(SEED)
    counts: Counter[str] = Counter()
    for number in range(TRIALS):
        folder = tmp_path / str(number)
        trial(originals[number % 2], folder, rng, counts)
        shutil.rmtree(folder)
    print(dict(counts))
    record_property("trials", json.dumps(counts, sort_keys=True))
