"""`everlog schedule` against a real server: what is put fires, is shown, and goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.command_lines import TopicCommands
from tests.support.http_api import HttpApi
from tests.support.http_cases import wait_for
from tests.support.server_processes import running_server


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TopicCommands, HttpApi]]:
    """The commands, and a client; one server that all tests of this file share."""
    with (
        running_server(tmp_path_factory.mktemp("server"), "--memory") as server,
        HttpApi(server.url) as api,
    ):
        for name, kind in (("log", "log"), ("q", "queue")):
            api.call("PUT", f"/topics/{name}", dict[str, Any], body={"type": kind})
        yield TopicCommands(server.url, "schedule"), api


def test_a_schedule_fires_and_says_so(commands: tuple[TopicCommands, HttpApi]) -> None:
    schedule, api = commands
    put = schedule("put", "tick", "log", "* * * * * *", "-d", '{"n":1.50}', "--tag", "t")
    assert put.startswith("tick: fires next 20")
    wait_for(lambda: schedule.json("show", "tick")["fired_total"] > 0)
    found = api.call("POST", "/topics/log/diff", dict[str, Any], body={"include_tags": True})["records"][0]
    assert (found["data"], found["$tag"], found["meta"]["$schedule"]) == ({"n": 1.5}, "t", "tick")
    shown = schedule("show", "tick")
    assert "* * * * * * (UTC)" in shown
    assert "seq " in shown
    assert schedule("rm", "tick") == "tick: deleted\n"
    assert schedule.error("rm", "tick")["code"] == "schedule_not_found"
    assert schedule.error("show", "tick")["code"] == "schedule_not_found"


def test_schedules_are_listed_with_what_they_append(commands: tuple[TopicCommands, HttpApi]) -> None:
    schedule, _ = commands
    options = ("--priority", 5, "--unique-key", "u", "--timezone", "Europe/Berlin", "--catch-up", "none")
    schedule("put", "ls.a", "q", "0 3 * * *", *options)
    assert schedule("put", "ls.b", "q", "0 3 * * *", "--paused") == "ls.b: paused\n"
    first, second = schedule.json("ls", "--prefix", "ls.")["schedules"]
    assert first["record"] == {"data": None, "priority": 5, "unique_key": "u"}
    assert (first["timezone"], first["catch_up"], first["paused"]) == ("Europe/Berlin", "none", False)
    assert (second["name"], second["paused"], second["next_ts"]) == ("ls.b", True, None)
    rows = schedule("ls", "--prefix", "ls.").splitlines()
    assert rows[2].split()[:2] == ["ls.a", "q"]
    assert " paused " in rows[3]
    assert schedule("ls", "--prefix", "none") == f"no schedules that begin with none on {schedule.url}\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("put", "s", "absent", "* * * * *"), "topic_not_found"),
        (("put", "s", "log", "never"), "invalid_request"),
        (("put", "s", "log", "* * * * *", "-d", "{"), "invalid_record"),
        (("put", "s", "log", "* * * * *", "--priority", "1"), "not_a_queue"),
    ],
)
def test_what_cannot_work_is_refused(
    commands: tuple[TopicCommands, HttpApi], words: tuple[str, ...], code: str
) -> None:
    schedule, _ = commands
    assert schedule.error(*words)["code"] == code
    assert schedule.error("show", "s")["code"] == "schedule_not_found"
