"""Schedules over the wire (section 3 of the additions)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.http_cases import PATIENCE_S, Api, Reply, assert_error, taken

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
