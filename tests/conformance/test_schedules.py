"""Schedules over the wire (section 3 of the additions)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_cases import PATIENCE_S, Api, Reply, assert_error, running, taken, wait_for

FIELDS = {
    *("name", "topic", "cron", "timezone", "record", "catch_up", "paused", "paused_reason", "next_ts"),
    *("last_ts", "last_seq", "fired_total", "created_ts", "performance"),
}


def put(api: Api, name: str = "s", **fields: object) -> Reply:
    body: dict[str, Any] = {"topic": "t", "cron": "0 0 1 1 *", "record": {"data": 1}} | fields
    return api.request("PUT", f"/v0/schedules/{name}", body)


def test_a_schedule_is_created_replaced_shown_listed_and_deleted(api: Api) -> None:
    api.put("t")
    record = {"data": {"a": 1}, "tag": "x", "meta": {"k": 1}}
    created = taken(put(api, record=record), 201)
    assert set(created) == FIELDS
    assert (created["record"], created["catch_up"], created["timezone"]) == (record, "one", "UTC")
    assert taken(put(api, catch_up="none", paused=True))["next_ts"] is None
    assert taken(api.request("GET", "/v0/schedules/s"))["catch_up"] == "none"
    put(api, "r")
    page = taken(api.request("GET", "/v0/schedules?page_size=1"))
    assert [each["name"] for each in page["schedules"]] == ["r"]
    page = taken(api.request("GET", f"/v0/schedules?cursor={page['next_cursor']}"))
    assert [each["name"] for each in page["schedules"]] == ["s"]
    for was_there in (True, False):
        assert taken(api.request("DELETE", "/v0/schedules/s"))["deleted"] is was_there
    reply = api.request("GET", "/v0/schedules/s")
    assert_error(reply, 404, "schedule_not_found")
    assert reply.json["error"]["detail"] == {"name": "s"}


@pytest.mark.parametrize(
    "fields",
    [{"cron": "* *"}, {"cron": 5}, {"timezone": "x/y"}, {"catch_up": "two"}, {"record": {}}, {"paused": 1}],
)
def test_a_wrong_schedule_is_400(api: Api, fields: dict[str, object]) -> None:
    api.put("t")
    assert_error(put(api, **fields), 400, "invalid_request")


@pytest.mark.parametrize("missing", ["topic", "cron", "record"])
def test_topic_cron_and_record_are_required(api: Api, missing: str) -> None:
    api.put("t")
    body = {"topic": "t", "cron": "* * * * *", "record": {"data": 1}}
    del body[missing]
    assert_error(api.request("PUT", "/v0/schedules/s", body), 400, "invalid_request")


@pytest.mark.parametrize(
    "fields",
    [
        *({"cron": cron} for cron in ("", "60 * * * *", "* * * * * * *", "@daily", "0 0 30 2 *")),
        *({"timezone": timezone} for timezone in ("", "Berlin", "../UTC", 5)),
        *({"record": {"data": 1, **member}} for member in ({"tag": "x" * 257}, {"meta": []}, {"tag": 5})),
        *({"record": []}, {"record": {"data": 1, "meta": {str(n): n for n in range(63)}}}),
        *({"paused": None}, {"catch_up": None}, {"topic": 5}),
    ],
)
def test_a_schedule_out_of_bounds_is_400_and_is_not_created(api: Api, fields: dict[str, object]) -> None:
    api.put("t")
    assert_error(put(api, **fields), 400, "invalid_request")
    assert taken(api.request("GET", "/v0/schedules"))["schedules"] == []


def test_a_record_of_a_job_queue_may_have_members_of_jobs(api: Api) -> None:
    api.put("q", type="queue")
    members = {"priority": 5, "delay_ms": 10, "unique_key": "u", "concurrency_key": "c", "max_deliveries": 2}
    created = taken(put(api, topic="q", record={"data": 1, **members}), 201)
    assert created["record"] == {"data": 1, **members}
    assert_error(put(api, topic="q", record={"data": 1, "priority": 1001}), 400, "invalid_request")


def test_a_schedule_whose_topic_is_deleted_pauses_and_says_why(api: Api) -> None:
    api.put("t")
    taken(put(api), 201)
    api.drop("t")
    api.put("t")
    state = taken(api.request("GET", "/v0/schedules/s"))
    assert (state["paused"], state["next_ts"]) == (True, None)
    assert "deleted" in state["paused_reason"]
    again = taken(put(api))
    assert (again["paused"], again["paused_reason"]) == (False, None)
    assert again["next_ts"] is not None


@pytest.mark.parametrize(("catch_up", "records"), [("none", 0), ("one", 1), ("all", 100)])
def test_instants_missed_over_a_restart_follow_catch_up(tmp_path: Path, catch_up: str, records: int) -> None:
    with running(memory=False, data_dir=str(tmp_path)) as server:
        server.clock.advance_ms(-200 * 60_000)
        api = server.api()
        api.put("t")
        taken(put(api, cron="* * * * *", catch_up=catch_up), 201)
        assert taken(api.state("t"))["count"] == 0
    with running(memory=False, data_dir=str(tmp_path)) as server:
        api = server.api()
        wait_for(lambda: taken(api.state("t"))["count"] >= records)
        found = taken(api.diff("t"))["records"]
        instants = [each["meta"]["$scheduled_ts"] for each in found]
        # A minute may begin while the test runs.
        assert len(instants) in (records, records + 1)
        assert instants == sorted(set(instants))
        state = taken(api.request("GET", "/v0/schedules/s"))
        assert (state["fired_total"], state["last_seq"]) == (len(instants), len(instants) or None)


def test_its_topic_must_be_there_and_take_its_record(api: Api) -> None:
    assert_error(put(api), 404, "topic_not_found")
    api.put("t")
    assert_error(put(api, record={"data": 1, "priority": 1}), 409, "not_a_queue", topic="t")


def test_a_schedule_fires_by_itself(api: Api) -> None:
    api.put("t")
    taken(put(api, cron="* * * * * *"), 201)
    deadline = time.monotonic() + PATIENCE_S
    while not taken(api.state("t"))["count"] and time.monotonic() < deadline:
        time.sleep(0.05)
    first = taken(api.diff("t"))["records"][0]
    assert first["meta"]["$schedule"] == "s"
    assert 0 <= first["$ts"] - first["meta"]["$scheduled_ts"] < 1000
    state = taken(api.request("GET", "/v0/schedules/s"))
    assert state["fired_total"] >= 1
    assert state["last_seq"] >= 1
