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
from tests.support.http_api import ApiFailed, HttpApi
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


@pytest.mark.parametrize(("name", "other"), [("source", "dest"), ("dest", "source")])
def test_a_server_that_lost_a_segment_at_one_end_of_a_router_serves_the_other_and_can_be_repaired(
    tmp_path: Path, name: str, other: str
) -> None:
    def send(api: HttpApi, topic: str, number: int) -> None:
        api.call("POST", f"/topics/{topic}", Any, body={"records": [{"data": number}]})

    def read(api: HttpApi, topic: str) -> tuple[list[int], Any]:
        page = api.call("POST", f"/topics/{topic}/diff", dict[str, Any], body={"from_seq": 0})
        return [record["data"] for record in page["records"]], page.get("tombstone")

    with running_server(tmp_path) as server:
        with HttpApi(server.url) as api:
            api.call("PUT", "/topics/source", Any, body={"durability": "fsync"})
            api.call("PUT", "/topics/dest", Any, body={"durability": "fsync"})
            api.call("PUT", "/routers/r", Any, body={"source": "source", "dest": "dest"})
            for number in range(5):
                send(api, "source", number)
            assert read(api, "dest")[0] == list(range(5))
        server.stop()
    sizes = {path: path.stat().st_size for path in (tmp_path / "data" / "topics").rglob("*.data")}
    source_path, dest_path = sorted(sizes, key=lambda path: path.parent.name)
    (source_path if name == "source" else dest_path).unlink()
    with running_server(tmp_path) as server:
        with HttpApi(server.url) as api:
            with pytest.raises(ApiFailed) as refused:
                read(api, name)
            assert refused.value.status == 503
            assert read(api, other) == (list(range(5)), None)
            send(api, other, 5)
            storage = api.get("/health", dict[str, Any])["storage"]
            assert (storage["damaged_topics"], storage["paused_routers"]) == (1, 1)
            assert api.get("/routers/r", dict[str, Any])["paused"] is True
            assert api.get("/routers", dict[str, Any])["routers"][0]["paused"] is True
        assert everlog("status", "--url", server.url, code=1)["storage"]["paused_routers"] == 1
        _, _, logged = server.stop()
    assert f"router r is paused: topic {name} is damaged" in logged
    document = everlog("repair", "--accept-loss", tmp_path / "data")
    assert document["may_lack_acked"] is True
    with running_server(tmp_path) as server, HttpApi(server.url) as api:
        records, tombstone = read(api, name)
        assert (tombstone["gap_from"], tombstone["gap_to"], tombstone["reason"]) == (1, 5, "corrupt")
        assert records == ([] if name == "source" else [5])
        send(api, "source", 6)
        assert read(api, "dest")[0][-2:] == [5, 6]
        assert "paused" not in api.get("/routers/r", dict[str, Any])
