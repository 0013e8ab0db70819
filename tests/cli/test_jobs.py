"""`everlog jobs` against a real server: what its commands show, and what redriving promises."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from everlog.api_types import Appended, RecordsDeleted, TopicConfig, TopicState
from tests.support.command_lines import TopicCommands
from tests.support.http_api import HttpApi
from tests.support.server_processes import running_server
from tests.support.tcp_peers import ScriptedServer, http_answer


@dataclass(frozen=True)
class Desk:
    """The commands, and a client to set the scene."""

    jobs: TopicCommands
    topic: TopicCommands
    api: HttpApi

    def queue(self, name: str, *values: object, **config: object) -> None:
        """A queue with these jobs."""
        self.api.call("PUT", f"/topics/{name}", dict[str, Any], body={"type": "queue", **config})
        if values:
            self.append(name, *[{"data": value} for value in values])

    def append(self, name: str, *records: dict[str, object]) -> None:
        self.api.call("POST", f"/topics/{name}", dict[str, Any], body={"records": list(records)})

    def post(self, name: str, verb: str, **body: object) -> Any:
        return self.api.call("POST", f"/topics/{name}/{verb}", dict[str, Any], body=body)

    def give_up(self, name: str) -> None:
        """Let every job of a queue fail once more than it may."""
        claimed = self.post(name, "claim", node="w", max=1000)["claimed"]
        self.post(name, "nack", node="w", seqs=[job["$seq"] for job in claimed])
        assert self.post(name, "claim", node="w", max=1000)["count"] == 0

    def records(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.post(name, "diff", include_tags=True, limit=1000)["records"]
        return found


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """One server that all tests of this file share; each uses its own names."""
    with (
        running_server(tmp_path_factory.mktemp("server"), "--memory") as server,
        HttpApi(server.url) as api,
    ):
        yield Desk(TopicCommands(server.url, "jobs"), TopicCommands(server.url), api)


def test_queues_are_listed_and_logs_are_not(desk: Desk) -> None:
    desk.queue("ls.a", 1, 2, 3, 4, dead_letter="ls.dead")
    desk.queue("ls.b")
    desk.append("ls.log", {"data": 1})
    desk.post("ls.a", "claim", node="w", max=2)
    desk.post("ls.a", "nack", node="w", seqs=[2], delay_ms=60_000)
    listed = desk.jobs.json("ls", "--prefix", "ls.")
    assert listed["queues"] == [
        {
            "queue": "ls.a",
            "ready": 2,
            "in_flight": 1,
            "dead_lettered": 0,
            "delayed": 1,
            "dead_letter": "ls.dead",
        },
        {"queue": "ls.b", "ready": 0, "in_flight": 0, "dead_lettered": 0, "delayed": 0, "dead_letter": None},
    ]
    shown = desk.jobs("ls", "--prefix", "ls.").splitlines()
    assert shown[0] == f"queues of {desk.jobs.url}"
    assert shown[2].split() == ["ls.a", "2", "1", "1", "0", "ls.dead"]
    assert desk.jobs("ls", "--prefix", "none.") == f"no queues that begin with none. on {desk.jobs.url}\n"


def test_peeking_claims_nothing(desk: Desk) -> None:
    desk.queue("peek")
    desk.append("peek", {"data": {"a": "b\n"}, "tag": "t"}, {"data": 2}, {"data": 3})
    peeked = desk.jobs.json("peek", "peek", "--count", 2)
    assert [job["$seq"] for job in peeked["jobs"]] == [1, 2]
    assert (peeked["ready"], peeked["in_flight"]) == (3, 0)
    shown = desk.jobs("peek", "peek").splitlines()
    assert shown[0] == "peek: 3 ready, 0 in flight, 0 delayed"
    assert shown[3].split()[0] == "1"
    assert shown[3].rstrip().endswith('t    {"a":"b\\n"}')
    assert desk.post("peek", "claim", node="w", max=9)["claimed"][0]["deliveries"] == 1


def test_peeking_at_a_log_is_refused(desk: Desk) -> None:
    desk.append("peek.log", {"data": 1})
    assert desk.jobs.error("peek", "peek.log")["code"] == "invalid_request"
    assert desk.jobs.error("peek", "peek.none")["code"] == "topic_not_found"


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_given_up_jobs_go_back_to_their_queues_as_they_were(desk: Desk, kind: str) -> None:
    dead = f"back.{kind}.dead"
    if kind == "queue":
        desk.queue(dead)
    for name in (f"back.{kind}.1", f"back.{kind}.2"):
        desk.queue(name, max_deliveries=1, dead_letter=dead)
        desk.append(name, {"data": {"n": 1.50}, "tag": "t", "node": "p", "meta": {"m": [1]}}, {"data": None})
        desk.give_up(name)
        assert desk.records(name) == []
    assert len(desk.records(dead)) == 4
    assert desk.jobs.json("redrive", dead, "--max", 1) == {
        "topic": dead,
        "redriven": 1,
        "queues": {f"back.{kind}.1": 1},
    }
    assert desk.jobs("redrive", dead).splitlines() == [
        f"1 job brought back to back.{kind}.1",
        f"2 jobs brought back to back.{kind}.2",
    ]
    for name in (f"back.{kind}.1", f"back.{kind}.2"):
        first, second = desk.records(name)
        assert (first["data"], first["$tag"], first["$node"], first["meta"]) == (
            {"n": 1.5},
            "t",
            "p",
            {"m": [1]},
        )
        assert "meta" not in second
    assert desk.records(dead) == []
    assert desk.jobs("redrive", dead) == f"{dead}: nothing was brought back\n"


def test_all_can_be_sent_to_one_queue(desk: Desk) -> None:
    desk.append("one.dead", {"data": 1}, {"data": 2, "meta": {"$dead_letter_from": "elsewhere"}})
    desk.queue("one.q")
    assert desk.jobs.json("redrive", "one.dead", "--to", "one.q")["redriven"] == 2
    assert [record["data"] for record in desk.records("one.q")] == [1, 2]


def test_a_letter_without_a_queue_stops_it_and_stays(desk: Desk) -> None:
    desk.queue("stop.q")
    known = {"$dead_letter_from": "stop.q"}
    desk.append("stop.dead", {"data": 1, "meta": known}, {"data": 2}, {"data": 3, "meta": known})
    out, err = desk.jobs.run("redrive", "stop.dead", code=1)
    assert out == "1 job brought back to stop.q\n"
    assert "record 2 of stop.dead" in err
    assert [record["data"] for record in desk.records("stop.dead")] == [2, 3]


def test_a_queue_that_holds_no_letters_is_left_alone(desk: Desk) -> None:
    desk.queue("live.q", 1, 2)
    assert "does not say which queue" in desk.jobs.error("redrive", "live.q")["message"]
    claimed = desk.post("live.q", "claim", node="w", max=9)["claimed"]
    assert [job["deliveries"] for job in claimed] == [1, 1]


def test_a_missing_queue_is_not_created(desk: Desk) -> None:
    desk.append("gone.dead", {"data": 1, "meta": {"$dead_letter_from": "gone.q"}})
    assert desk.jobs.error("redrive", "gone.dead")["code"] == "topic_not_found"
    assert len(desk.records("gone.dead")) == 1
    desk.queue("gone.dead.q", 1)
    assert desk.jobs.error("redrive", "gone.dead.q", "--to", "gone.q")["code"] == "topic_not_found"
    assert desk.post("gone.dead.q", "claim", node="w")["count"] == 1, "what was claimed for it is free again"


def test_running_it_again_after_a_lost_delete_appends_nothing_twice(tmp_path: Path) -> None:
    """The delete is not answered; the second run sends the same key and deletes then."""
    config = TopicConfig()
    dead = TopicState("dead", config.type, 7, 7, 8, 1, 9, config, 0, None, None)
    state = http_answer(200, msgspec.json.encode(dead))
    letter = {"$seq": 7, "$ts": 99, "data": 1, "meta": {"$dead_letter_from": "q"}}
    page = http_answer(200, json.dumps({"records": [letter]}).encode())
    taken = http_answer(200, msgspec.json.encode(Appended("q", 1, 1, 1, 1, False, False)))
    refused = http_answer(503, b'{"error":{"code":"not_ready","message":"soon"}}')
    empty = http_answer(200, b'{"records":[]}')
    deleted = http_answer(200, msgspec.json.encode(RecordsDeleted("dead", 1, 8, 7, 0, 0)))
    with ScriptedServer([state, page, taken, refused], [state, page, taken, deleted, empty]) as server:
        jobs = TopicCommands(server.url, "jobs")
        jobs.run("redrive", "dead", code=1)
        jobs.run("redrive", "dead")
        sent = [request for request in server.requests if request.startswith(b"POST /v0/topics/q?")]
        assert len(sent) == 2
        keys = [json.loads(request.partition(b"\r\n\r\n")[2])["idempotency_key"] for request in sent]
        assert keys[0] == keys[1]
