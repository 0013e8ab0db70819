"""`everlog backup --follow` and `everlog restore` are killed at random instants: no half of it is served."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from everlog.client import Client
from everlog.errors import Io
from everlog.fs import OsFs
from everlog.objects import open_store
from everlog.topics import Engine, EngineSettings, record_of
from everlog.topics.storage.layout import RESTORING_FILE
from everlog.topics.storage.restoring import Restorer
from everlog.topics.storage.verify import verify
from tests.support.command_lines import run, started
from tests.support.effort import effort
from tests.support.processes import PATIENCE_S, eventually
from tests.support.server_processes import running_server

KILLS = max(2, effort(4))


def values_in(data_dir: Path) -> list[int]:
    """What an engine on the directory shows of topic `t`."""
    found: list[int] = []
    with Engine.open(data_dir, EngineSettings(shards=1)) as engine:
        cursor = 0
        while not (page := engine.diff("t", cursor, 1000)).caught_up:
            found += [record["data"] for record in json.loads(page.records)]
            cursor = page.next_from_seq
        return found + [record["data"] for record in json.loads(page.records)]


def restored(url: str, target: Path) -> list[int]:
    Restorer(open_store(url), str(target), OsFs()).restore()
    assert verify(str(target), OsFs()).errors == []
    return values_in(target)


def test_a_follower_killed_at_any_instant_leaves_a_backup_that_is_a_state_that_was(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    rng = random.Random(11)
    words = ("everlog", "backup", tmp_path / "data", "--to", url, "--follow", "--interval", "0.05")
    written = 0
    with running_server(tmp_path) as server, Client(server.url) as client:
        client.append("t", 0, config={"durability": "fsync"})
        assert run("everlog", "backup", tmp_path / "data", "--to", url).returncode == 0
        for number in range(KILLS):
            with started(*words) as ship:
                end_s = time.monotonic() + rng.uniform(0.5, 3)
                while time.monotonic() < end_s:
                    written += 1
                    client.append("t", written)
                ship.process.kill()
                ship.process.wait(PATIENCE_S)
            found = restored(url, tmp_path / f"copy{number}")
            assert found == list(range(len(found))) and 0 < len(found) <= written + 1
        last = run("everlog", "backup", tmp_path / "data", "--to", url)
        assert last.returncode == 0, last.stderr
    assert restored(url, tmp_path / "copy") == list(range(written + 1))


def test_a_restore_killed_at_any_instant_is_refused_by_a_server_and_can_be_repeated(tmp_path: Path) -> None:
    url, rng = f"file://{tmp_path}/bucket", random.Random(5)
    with Engine.open(tmp_path / "data", EngineSettings(shards=1, segment_max_events=5)) as engine:
        for first in range(0, 2000, 100):
            batch = [record_of(value) for value in range(first, first + 100)]
            engine.wait_for(engine.append("t", batch).commit)
        engine.checkpoint()
    assert run("everlog", "backup", tmp_path / "data", "--to", url).returncode == 0
    interrupted = 0
    for number in range(KILLS):
        target = tmp_path / f"copy{number}"
        mark = target / RESTORING_FILE
        words = ("everlog", "restore", target, "--from", url, "--json")
        with started(*words) as restore:
            eventually(
                "it has begun",
                lambda m=mark, p=restore.process: m.exists() or p.poll() is not None,  # type: ignore[misc]
            )
            time.sleep(rng.uniform(0, 0.05))  # decides where it is killed, and nothing else
            restore.process.kill()
            restore.process.wait(PATIENCE_S)
        if mark.exists():
            interrupted += 1
            with pytest.raises(Io, match="is not restored completely"):
                Engine.open(target, EngineSettings(shards=1))
            restored(url, target)
        assert values_in(target) == list(range(2000))
    assert interrupted, "every restore was quicker than its kill"
