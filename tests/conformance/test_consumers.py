"""Consumers and filters over the wire: shapes, codes and rules."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.http_cases import Api, Reply, RunningServer

ROOT = "/v0/topics/orders"
STATE_FIELDS = {
    *("name", "topic", "cursor", "next_seq", "head_seq", "lag_records", "lag_ms", "at_risk", "hold"),
    *("owner", "owner_epoch", "created_ts", "committed_ts", "hold_max_ms", "performance"),
}


def ask(api: Api, method: str, path: str, body: object = None) -> Reply:
    return api.client.request(method, ROOT + path, body)


def post(api: Api, path: str, **body: Any) -> Reply:
    return ask(api, "POST", f"/consumers/{path}", body)


def put_records(api: Api, count: int, **config: object) -> None:
    records = [{"data": {"n": n, "price": n / 10}, "tag": f"t{n % 2}"} for n in range(count)]
    body = {"records": records, "config": config} if config else {"records": records}
    assert ask(api, "POST", "", body).status in (200, 201)


def seqs(reply: Reply) -> list[int]:
    assert reply.status == 200, reply.text
    return [record["$seq"] for record in reply.json["records"]]


def refused(reply: Reply, status: int, code: str) -> dict[str, Any]:
    assert (reply.status, reply.json["error"]["code"]) == (status, code)
    detail: dict[str, Any] = reply.json["error"].get("detail") or {}
    return detail


def test_a_consumer_is_created_shown_listed_and_deleted(api: Api) -> None:
    refused(ask(api, "PUT", "/consumers/c"), 404, "topic_not_found")
    put_records(api, 3)
    created = ask(api, "PUT", "/consumers/c", {"start": {"seq": 2}})
    assert created.status == 201
    assert set(created.json) == STATE_FIELDS
    assert (created.json["cursor"], created.json["next_seq"], created.json["lag_records"]) == (1, 2, 2)
    assert created.json["committed_ts"] is None
    again = ask(api, "PUT", "/consumers/c", {"start": "latest", "hold": True})
    assert (again.status, again.json["cursor"], again.json["hold"]) == (200, 1, True)
    assert ask(api, "PUT", "/consumers/b").json["cursor"] == 0
    page = ask(api, "GET", "/consumers?page_size=1").json
    assert [each["name"] for each in page["consumers"]] == ["b"]
    rest = ask(api, "GET", f"/consumers?cursor={page['next_cursor']}").json
    assert [each["name"] for each in rest["consumers"]] == ["c"]
    assert "next_cursor" not in rest
    assert refused(ask(api, "GET", "/consumers/none"), 404, "consumer_not_found")["name"] == "none"
    assert ask(api, "DELETE", "/consumers/c").json["deleted"]
    assert not ask(api, "DELETE", "/consumers/c").json["deleted"]
    refused(ask(api, "PUT", "/consumers/-c"), 400, "invalid_request")


def test_reads_begin_at_the_cursor_which_commits_move(api: Api) -> None:
    put_records(api, 5)
    ask(api, "PUT", "/consumers/c")
    first = post(api, "c/read", limit=2)
    assert seqs(first) == [1, 2]
    assert first.json["consumer"]["cursor"] == 0
    assert seqs(post(api, "c/read", limit=2)) == [1, 2]
    assert seqs(post(api, "c/read", limit=2, commit=2)) == [3, 4]
    state = post(api, "c/commit", seq=4).json
    assert (state["cursor"], state["lag_records"]) == (4, 1)
    assert post(api, "c/commit", seq=4).status == 200
    refused(post(api, "c/commit", seq=3), 409, "cursor_backwards")
    refused(post(api, "c/commit", seq=6), 400, "invalid_request")
    reset = post(api, "c/reset", to="earliest", dry_run=True).json
    assert (reset["cursor_before"], reset["cursor"], reset["records"]) == (4, 0, 4)
    assert post(api, "c/reset", to={"seq": 2}).json["cursor"] == 1
    assert seqs(post(api, "c/read")) == [2, 3, 4, 5]


def test_an_owner_is_fenced_by_the_next(api: Api) -> None:
    put_records(api, 2)
    ask(api, "PUT", "/consumers/c")
    refused(post(api, "c/read", owner_epoch=1), 409, "fenced")
    first = post(api, "c/acquire", owner="one").json
    assert set(first) == {"owner_epoch", "expires_ts", "performance"}
    refused(post(api, "c/commit", seq=1), 409, "fenced")
    assert post(api, "c/commit", seq=1, owner_epoch=first["owner_epoch"]).json["owner"] == "one"
    second = post(api, "c/acquire", owner="two").json["owner_epoch"]
    refused(post(api, "c/read", owner_epoch=first["owner_epoch"]), 409, "fenced")
    assert seqs(post(api, "c/read", owner_epoch=second)) == [2]
    for body in ({"owner": ""}, {"owner": "x" * 129}, {"owner": "x", "ttl_ms": 999}, {}):
        refused(post(api, "c/acquire", **body), 400, "invalid_request")


def test_an_append_that_would_pass_a_hold_is_refused(api: Api) -> None:
    put_records(api, 3, cap_records=3)
    ask(api, "PUT", "/consumers/c", {"hold": True})
    refusal = ask(api, "POST", "", {"records": [{"data": 1}]})
    assert refused(refusal, 422, "topic_full")["held_by"] == ["c"]
    post(api, "c/commit", seq=1)
    assert ask(api, "POST", "", {"records": [{"data": 1}]}).status == 200


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        (["tag", "Eq", "t0"], [1, 3, 5]),
        (["tag", "Glob", "t*"], [1, 2, 3, 4, 5, 6]),
        (["tag", "In", ["t1", "x"]], [2, 4, 6]),
        (["data.price", "Eq", 0.1], [2]),
        (["and", ["tag", "Eq", "t0"], ["data.n", "Ge", 2]], [3, 5]),
        (["or", ["data.n", "Lt", 1], ["not", ["data.n", "Le", 4]]], [1, 6]),
        (["data.x", "Ne", 1], [1, 2, 3, 4, 5, 6]),
        (["data.x", "Eq", None], []),
        (["data.n", "Exists", True], [1, 2, 3, 4, 5, 6]),
        (["data.n", "Eq", "1"], []),
    ],
)
def test_a_filter_passes_over_what_does_not_match(api: Api, filter: list[Any], expected: list[int]) -> None:
    put_records(api, 6)
    reply = ask(api, "POST", "/diff", {"filter": filter})
    assert seqs(reply) == expected
    assert (reply.json["next_from_seq"], reply.json["caught_up"]) == (6, True)
    ask(api, "PUT", "/consumers/c", {"filter": filter})
    assert seqs(post(api, "c/read")) == expected
    if len(expected) > 1:
        assert seqs(ask(api, "POST", "/diff", {"filter": filter, "limit": 1})) == expected[:1]
        from_seq = expected[0]
        assert seqs(ask(api, "POST", "/diff", {"filter": filter, "from_seq": from_seq})) == expected[1:]


def test_filters_are_bounded_and_typed(api: Api) -> None:
    put_records(api, 1)
    leaf = ["tag", "Eq", "x"]
    deep: list[Any] = leaf
    for _ in range(8):
        deep = ["not", deep]
    for filter in (
        *(
            [],
            ["and"],
            ["not", leaf, leaf],
            ["tag", "Lt", "x"],
            ["seq", "Eq", 1],
            ["data.", "Eq", 1],
            ["data.n", "Like", 1],
            "x",
            5,
        ),
        *(["data.n", "Glob", "x"], ["tag", "Eq", 1], ["data.n", "Gt", None], ["or", *[leaf] * 65], deep),
        ["tag", "Eq", "x" * 4096],
    ):
        refused(ask(api, "POST", "/diff", {"filter": filter}), 400, "invalid_request")
    assert ask(api, "POST", "/diff", {"filter": ["or", *[leaf] * 64]}).status == 200
    assert ask(api, "POST", "/diff", {"filter": None}).status == 200


def test_a_read_begins_with_the_first_record_of_a_time(api: Api) -> None:
    put_records(api, 3)
    first_ts = ask(api, "POST", "/diff", {}).json["records"][0]["$ts"]
    assert seqs(ask(api, "POST", "/diff", {"from_time_ms": first_ts})) == [1, 2, 3]
    late = ask(api, "POST", "/diff", {"from_time_ms": first_ts + 10**9})
    assert (seqs(late), late.json["next_from_seq"]) == ([], 3)
    both = ask(api, "POST", "/diff", {"from_time_ms": 0, "from_seq": 0})
    refused(both, 400, "invalid_request")


@pytest.mark.parametrize(
    ("method", "path", "body", "answer"),
    [
        ("DELETE", "", None, (404, "consumer_not_found")),
        ("POST", "/acquire", {"owner": "next"}, (409, "fenced")),
        ("POST", "/reset", {"to": {"seq": 2}}, (200, [2, 3])),
    ],
)
def test_a_read_that_waits_hears_at_once_what_becomes_of_its_consumer(
    server: RunningServer, api: Api, method: str, path: str, body: object, answer: tuple[int, object]
) -> None:
    put_records(api, 3)
    ask(api, "PUT", "/consumers/c", {"start": "latest"})
    began_s = time.monotonic()
    reading = server.background(server.api(), lambda other: post(other, "c/read", wait_ms=30_000))
    server.until_parked("orders")
    assert ask(api, method, f"/consumers/c{path}", body).status == 200
    reply = reading.result()
    assert time.monotonic() - began_s < 15
    if reply.status == 200:
        assert (200, seqs(reply)) == answer
    else:
        assert (reply.status, reply.json["error"]["code"]) == answer
