"""`everlog repair` and `everlog status`: what they print and change; and what a damaged server reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from everlog.cli.main import app
from tests.support.command_lines import run
from tests.support.files import flip_bit, tree
from tests.support.http_api import HttpApi
from tests.support.server_processes import running_server

RECORDS = 50


def everlog(*arguments: object, code: int = 0) -> Any:
    """Run a command in this process and return its JSON document."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout) if result.stdout else json.loads(result.stderr)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """The data of a server that was killed after acknowledged appends, with one flipped bit in its log."""
    with running_server(tmp_path, "--shards", 1) as server:
        with HttpApi(server.url) as api:
            api.call("PUT", "/topics/t", Any, body={"durability": "fsync"})
            for number in range(RECORDS):
                api.call("POST", "/topics/t", Any, body={"records": [{"data": f"record {number}"}]})
        server.kill()
    path = max((tmp_path / "data" / "wal").rglob("wal-*.log"))
    flip_bit(path, path.read_bytes().index(b"record 20"))
    return tmp_path / "data"


def test_a_server_does_not_start_on_a_damaged_log_and_names_the_command(damaged: Path) -> None:
    before = tree(damaged)
    ended = run("everlog", "serve", "--port", 0, "--data-dir", damaged)
    assert ended.returncode == 7
    assert f"everlog repair --accept-loss {damaged}" in ended.stderr
    assert tree(damaged) == before
    assert run("everlog", "verify", damaged).returncode == 1


def test_repair_gives_nothing_up_unless_told_to(damaged: Path) -> None:
    before = tree(damaged)
    assert everlog("repair", damaged, code=1)["error"]["code"] == "damaged_data"
    assert tree(damaged) == before
    document = everlog("repair", "--accept-loss", damaged)
    assert (document["may_lack_acked"], len(document["damage"])) == (True, 1)
    again = everlog("repair", damaged)
    assert (again["may_lack_acked"], again["damage"]) == (False, [])


def test_a_server_that_serves_damage_shows_it_everywhere(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_ON_DAMAGE", "serve")
    with running_server(damaged.parent, "--shards", 1) as server:
        with HttpApi(server.url) as api:
            page = api.call("POST", "/topics/t/diff", dict[str, Any], body={"from_seq": 20})
            assert (page["tombstone"]["reason"], page["tombstone"]["gap_from"]) == ("corrupt", 21)
            assert page["head_seq"] == RECORDS
            health = api.get("/health", dict[str, Any])
            assert (health["status"], health["storage"]["status"]) == ("ok", "damaged")
            assert health["storage"]["damage"] == {"log": 1}
            assert api.get("/ready", dict[str, Any])["storage"]["may_lack_acked"] is True
            assert str(damaged) not in json.dumps(health)
            metrics = api.fetch("GET", "/metrics").decode()
        assert 'topics_recovery_damage_total{kind="log"} 1.0' in metrics
        assert everlog("status", "--url", server.url, code=1)["storage"]["damage"] == {"log": 1}
        _, _, logged = server.stop()
    assert "damage (log)" in logged
    assert "acknowledged records may be lost" in logged
    monkeypatch.delenv("TOPICS_ON_DAMAGE")
    with running_server(damaged.parent, "--shards", 1) as server:
        assert everlog("status", "--url", server.url)["storage"]["status"] == "ok"
