"""`everlog backup`, `restore`, `standby`, `promote` as processes beside a running server."""

from __future__ import annotations

import json
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from everlog.client import Client, NewRecord
from everlog.objects import open_store
from everlog.topics.storage.shipping import read_manifest, take_epoch
from tests.support.command_lines import run, started
from tests.support.files import tree
from tests.support.processes import eventually
from tests.support.server_processes import running_server


def append(url: str, *values: object) -> None:
    with Client(url) as client:
        records = [NewRecord(value) for value in values]
        client.append_many("t", records, config={"durability": "fsync"})


def values_of(url: str) -> list[object]:
    with Client(url) as client:
        return [found.data for found in client.diff("t", limit=1000).records]


def served(folder: Path) -> list[object]:
    """What a server on a restored directory answers."""
    with running_server(folder) as server:
        return values_of(server.url)


def restored(target: Path, url: str, *flags: object, command: str = "restore") -> list[object]:
    target.mkdir()
    result = run("everlog", command, target / "data", "--from", url, "--json", *flags)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["errors"] == []
    return served(target)


def test_a_running_server_is_backed_up_and_restored_also_to_an_earlier_time(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    with running_server(tmp_path) as server:
        append(server.url, *range(10))
        first = run("everlog", "backup", tmp_path / "data", "--to", url, "--json")
        assert first.returncode == 0, first.stderr
        moment = datetime.now(UTC).isoformat()
        time.sleep(0.01)  # the next shipment is of a later millisecond
        append(server.url, *range(10, 20))
        assert run("everlog", "backup", tmp_path / "data", "--to", url).returncode == 0
    assert restored(tmp_path / "now", url) == list(range(20))
    assert restored(tmp_path / "earlier", url, "--at", moment) == list(range(10))


def test_a_follower_ships_until_it_is_stopped_and_a_standby_is_promoted(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    copy = tmp_path / "copy"
    copy.mkdir()
    with running_server(tmp_path) as server:
        append(server.url, "first")
        with started(
            "everlog", "backup", tmp_path / "data", "--to", url, "--follow", "--interval", "0.05"
        ) as ship:
            eventually("there is a base", lambda: any(open_store(url).list("base")))
            with started(
                "everlog", "standby", copy / "data", "--from", url, "--interval", "0.05", "--json"
            ) as standby:
                assert standby.line() == "{"  # the first copy is there
                append(server.url, "second")
                log = copy / "data" / "wal"
                eventually(
                    "the standby has it", lambda: any(b"second" in f.read_bytes() for f in log.rglob("*.log"))
                )
                assert standby.end(signal.SIGTERM)[0] == 0
            result = run("everlog", "promote", copy / "data", "--from", url, "--json")
            assert result.returncode == 0, result.stderr
            append(server.url, "after the takeover")
            code, _, errors = ship.wait()
            assert code != 0 and "belongs to a later server" in errors
    assert served(copy) == ["first", "second"]


@pytest.mark.parametrize("command", ["restore", "promote"])
def test_a_directory_with_data_is_never_touched(tmp_path: Path, command: str) -> None:
    url = f"file://{tmp_path}/bucket"
    with running_server(tmp_path) as server:
        append(server.url, 1)
    assert run("everlog", "backup", tmp_path / "data", "--to", url).returncode == 0
    result = run("everlog", command, tmp_path / "data", "--from", url)
    assert result.returncode == 1
    assert "is not empty" in result.stderr
    assert served(tmp_path) == [1]


def test_a_takeover_that_cannot_be_done_leaves_the_primary_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/bucket"
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").write_text("mine")
    monkeypatch.setenv("TOPICS_BACKUP_URL", url)
    monkeypatch.setenv("TOPICS_ACK", "shipped")
    with running_server(tmp_path) as server:
        append(server.url, 1)
        before = read_manifest(open_store(url))
        assert "is not empty" in run("everlog", "promote", full, "--from", url).stderr
        with started(
            "everlog", "standby", tmp_path / "copy", "--from", url, "--port", "0", "--json"
        ) as standby:
            assert standby.line() == "{"
            told = run("everlog", "promote", tmp_path / "copy", "--from", url).stderr
            assert f"process {standby.process.pid} has" in told
            assert standby.end(signal.SIGTERM)[0] == 0
        assert read_manifest(open_store(url)) == before
        append(server.url, 2)
    assert "holds no backup" in run("everlog", "promote", tmp_path / "x", "--from", f"{url}/typo").stderr
    assert not (tmp_path / "bucket" / "typo").exists() and not (tmp_path / "x").exists()


def test_a_url_with_the_backup_of_another_directory_is_refused(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        with running_server(tmp_path / name) as server:
            append(server.url, name)
            server.stop()
    first = run("everlog", "backup", tmp_path / "one" / "data", "--to", url)
    assert first.returncode == 0, first.stderr
    before = tree(tmp_path / "bucket")
    refused = run("everlog", "backup", tmp_path / "other" / "data", "--to", url)
    assert refused.returncode == 1 and "the backup of another data directory" in refused.stderr
    assert tree(tmp_path / "bucket") == before
    assert run("everlog", "backup", tmp_path / "one" / "data", "--to", url).returncode == 0
    copy = tmp_path / "copy"
    assert restored(copy, url) == ["one"]
    assert run("everlog", "backup", copy / "data", "--to", url).returncode == 0, "a copy has the same topics"


def test_what_has_nothing_to_ship_or_to_restore_changes_nothing(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    (tmp_path / "empty").mkdir()
    assert "no snapshot yet" in run("everlog", "backup", tmp_path / "empty", "--to", url).stderr
    assert "holds no backup" in run("everlog", "restore", tmp_path / "x", "--from", url).stderr
    assert "holds no backup" in run("everlog", "standby", tmp_path / "x", "--from", url).stderr
    assert tree(tmp_path) == {"empty": None}


def test_a_url_that_a_server_ships_to_is_not_taken_from_it(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    take_epoch(open_store(url), "http://primary:4000")
    (tmp_path / "data").mkdir()
    result = run("everlog", "backup", tmp_path / "data", "--to", url)
    assert result.returncode == 1
    assert "http://primary:4000" in result.stderr


def test_a_moment_that_is_none_is_refused(tmp_path: Path) -> None:
    result = run("everlog", "restore", tmp_path / "x", "--from", f"file://{tmp_path}/bucket", "--at", "noon")
    assert result.returncode == 1
    assert "--at is 'noon'" in result.stderr
    assert not (tmp_path / "x").exists()
