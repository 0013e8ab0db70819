"""`everlog jobs` against a real server: what its commands show, and what redriving promises."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

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
    assert shown[0] == f"job queues of {desk.jobs.url}"
    assert shown[2].split() == ["ls.a", "2", "1", "1", "0", "ls.dead"]
    assert desk.jobs("ls", "--prefix", "none.") == f"no job queues that begin with none. on {desk.jobs.url}\n"


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
        "left": 3,
    }
    assert desk.jobs("redrive", dead, "--dry-run").splitlines() == [
        f"1 job would be brought back to back.{kind}.1",
        f"2 jobs would be brought back to back.{kind}.2",
    ]
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
            {"m": [1], "$redriven_from": dead},
        )
        assert second["meta"] == {"$redriven_from": dead}
    assert desk.records(dead) == []
    assert desk.jobs("redrive", dead) == f"{dead}: nothing was brought back\n"


def test_all_can_be_sent_to_one_queue(desk: Desk) -> None:
    desk.append("one.dead", {"data": 1}, {"data": 2, "meta": {"$dead_letter_from": "elsewhere"}})
    desk.queue("one.q")
    assert desk.jobs.json("redrive", "one.dead", "--to", "one.q")["redriven"] == 2
    assert [record["data"] for record in desk.records("one.q")] == [1, 2]


def test_a_letter_without_a_queue_stays_and_is_told(desk: Desk) -> None:
    desk.queue("stop.q")
    known = {"$dead_letter_from": "stop.q"}
    desk.append("stop.dead", {"data": 1, "meta": known}, {"data": 2}, {"data": 3, "meta": known})
    out, err = desk.jobs.run("redrive", "stop.dead", code=1)
    assert out == "2 jobs brought back to stop.q\n"
    assert "1 job of stop.dead cannot be brought back" in err
    assert [record["data"] for record in desk.records("stop.dead")] == [2]


def test_a_queue_that_holds_no_letters_is_left_alone(desk: Desk) -> None:
    desk.queue("live.q", 1, 2)
    out, err = desk.jobs.run("redrive", "live.q", code=1)
    assert out == "live.q: nothing was brought back\n"
    assert "2 jobs of live.q cannot be brought back" in err
    claimed = desk.post("live.q", "claim", node="w", max=9)["claimed"]
    assert [job["deliveries"] for job in claimed] == [1, 1]


def test_a_missing_queue_is_not_created(desk: Desk) -> None:
    desk.append("gone.dead", {"data": 1, "meta": {"$dead_letter_from": "gone.q"}})
    assert "that queue does not exist" in desk.jobs.run("redrive", "gone.dead", code=1)[1]
    assert len(desk.records("gone.dead")) == 1
    desk.queue("gone.dead.q", 1)
    assert desk.jobs.error("redrive", "gone.dead.q", "--to", "gone.q")["code"] == "topic_not_found"
    assert desk.post("gone.dead.q", "claim", node="w")["count"] == 1, "what was claimed for it is free again"


def test_what_the_server_has_no_time_for_is_brought_back_by_the_next_call() -> None:
    answers = [(3, 4, {"a": 1, "b": 2}), (4, 0, {"b": 4})]
    texts = [
        http_answer(
            200, json.dumps({"topic": "dead", "moved": moved, "left": left, "queues": queues}).encode()
        )
        for moved, left, queues in answers
    ]
    with ScriptedServer(texts) as server:
        done = TopicCommands(server.url, "jobs").json("redrive", "dead", "--max", 9)
        assert done == {"topic": "dead", "redriven": 7, "queues": {"a": 1, "b": 6}, "left": 0}
        limits = [json.loads(each.partition(b"\r\n\r\n")[2])["limit"] for each in server.requests]
        assert limits == [9, 6]


# --- Jobs of one job queue --------------------------------------------------------------------------------


def failing(desk: Desk, name: str) -> None:
    """A job queue with one job in each state: 1 failed, 2 leased, 3 ready, 4 delayed."""
    desk.queue(name)
    desk.append(
        name,
        {"data": 1, "tag": "eu"},
        {"data": 2, "concurrency_key": "c"},
        {"data": 3, "priority": -500},
        {"data": 4, "delay_ms": 600_000},
    )
    assert desk.post(name, "claim", node="w1", max=2)["count"] == 2
    error = {"type": "Timeout", "message": "no bank\x1b[31m", "trace": "line 1\nline 2"}
    desk.post(name, "nack", node="w1", seqs=[1], delay_ms=500_000, error=error)


def states(desk: Desk, name: str, *options: object) -> dict[int, str]:
    return {job["$seq"]: job["state"] for job in desk.jobs.json("ls", name, *options)["jobs"]}


def test_the_jobs_of_a_queue_are_listed_by_state_tag_key_and_filter(desk: Desk) -> None:
    failing(desk, "of")
    assert states(desk, "of") == {1: "failed", 2: "leased", 3: "ready", 4: "delayed"}
    assert states(desk, "of", "--state", "delayed") == {4: "delayed"}
    assert states(desk, "of", "--tag", "eu") == {1: "failed"}
    assert states(desk, "of", "--job-key", "c") == {2: "leased"}
    assert states(desk, "of", "--filter", '["data","Ge",3]') == {3: "ready", 4: "delayed"}
    assert states(desk, "of", "--count", 2) == {1: "failed", 2: "leased"}
    shown = desk.jobs("ls", "of").splitlines()
    assert shown[0] == "of: 1 ready, 1 delayed, 1 leased, 1 failed, 0 done"
    assert "Timeout: no bank\\x1b[31m" in shown[3]
    assert shown[4].endswith("  w1") and "lease ends 20" in shown[4]
    assert desk.jobs("ls", "of", "--tag", "none").splitlines() == shown[:1]


def test_one_job_is_shown_with_its_attempts(desk: Desk) -> None:
    failing(desk, "show")
    job = desk.jobs.json("show", "show", 1)
    assert (job["$seq"], job["data"], job["attempts"][0]["outcome"]) == (1, 1, "nacked")
    shown = desk.jobs("show", "show", 1)
    assert "state       failed, due 20" in shown
    assert "nacked" in shown and "Timeout: no bank" in shown
    assert shown.endswith("line 1\nline 2\n")
    assert "concurrency key" in desk.jobs("show", "show", 2)
    assert desk.jobs.error("show", "show", 9)["code"] == "job_not_found"


def test_jobs_are_cancelled_and_made_due_by_seq_or_filter(desk: Desk) -> None:
    failing(desk, "change")
    assert desk.jobs.json("retry", "change", 4)["retried"] == 1
    assert desk.jobs("retry", "change", "--filter", '["data","Eq",1]') == "change: 1 job made due\n"
    assert states(desk, "change") == {1: "failed", 2: "leased", 3: "ready", 4: "ready"}
    assert desk.jobs("cancel", "change", 1, 2) == "change: 2 jobs cancelled\n"
    assert desk.jobs.json("cancel", "change", "--filter", '["data","Eq",3]')["cancelled"] == 1
    assert states(desk, "change") == {2: "leased", 4: "ready"}  # until its lease ends
    for verb in ("cancel", "retry"):
        desk.jobs.run(verb, "change", code=2)
        desk.jobs.run(verb, "change", 1, "--filter", '["data","Eq",1]', code=2)
    desk.jobs.run("ls", "--state", "ready", code=2)
    desk.jobs.run("ls", "change", "--prefix", "c", code=2)


def test_a_paused_queue_gives_nothing_until_it_is_resumed(desk: Desk) -> None:
    desk.queue("hold", 1)
    assert desk.jobs("pause", "hold") == "hold: paused\n"
    assert desk.post("hold", "claim", node="w")["count"] == 0
    assert desk.jobs.json("resume", "hold")["paused"] is False
    assert desk.post("hold", "claim", node="w")["count"] == 1


def test_jobs_are_added_with_their_options(desk: Desk) -> None:
    desk.queue("add")
    assert (
        desk.jobs("add", "add", '{"to":"ann"}', "--unique-key", "ann", "--delay", 60) == "add: job 1 added\n"
    )
    assert desk.jobs("add", "add", '{"to":"ann"}', "--unique-key", "ann") == "add: job 1 was there already\n"
    assert desk.jobs.json(
        "add", "add", "2", "--at", "2000-01-01T00:00:00Z", "--priority", -5, "--tag", "t"
    ) == {
        "queue": "add",
        "seq": 2,
        "added": 1,
    }
    desk.jobs("add", "add", "3", "--concurrency-key", "c", "--max-deliveries", 7)
    assert states(desk, "add") == {1: "delayed", 2: "ready", 3: "ready"}
    second, third = (desk.jobs.json("show", "add", seq) for seq in (2, 3))
    assert (second["priority"], second["$tag"], second["data"]) == (-5, "t", 2)
    assert (third["concurrency_key"], third["max_deliveries"]) == ("c", 7)
    for wrong in (["{"], ["1", "--delay", "1", "--at", "2000-01-01"], ["1", "--at", "soon"]):
        desk.jobs.run("add", "add", *wrong, code=2)
    desk.append("add.log", {"data": 1})
    assert desk.jobs.error("add", "add.log", "1")["code"] == "not_a_queue"
    assert desk.jobs.error("add", "add.none", "1")["code"] == "topic_not_found"


def test_purging_needs_to_be_told_what_and_can_be_tried(desk: Desk) -> None:
    desk.queue("purge", 1, 2, 3)
    desk.jobs.run("purge", "purge", code=2)
    assert desk.jobs("purge", "purge", "--all", "--dry-run") == "purge: 3 jobs would be deleted\n"
    assert desk.jobs.json("purge", "purge", "--filter", '["data","Lt",3]')["purged"] == 2
    assert [record["data"] for record in desk.records("purge")] == [3]
    assert desk.jobs("purge", "purge", "--all") == "purge: 1 job deleted\n"
    assert desk.records("purge") == []
