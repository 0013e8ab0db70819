"""Consumers over the wire: where they may begin, bounds, owners over time, holds, and exact lags."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from tests.conformance.test_consumers import ask, post, put_records, refused, seqs
from tests.support.http_cases import Api, RunningServer, running

CALLS: list[tuple[str, str, object]] = [
    ("GET", "", None),
    ("POST", "/read", {}),
    ("POST", "/commit", {"seq": 0}),
    ("POST", "/acquire", {"owner": "one"}),
    ("POST", "/reset", {"to": "latest"}),
]


@pytest.mark.parametrize(("method", "path", "body"), [*CALLS, ("PUT", "", {}), ("DELETE", "", None)])
def test_every_call_about_a_consumer_of_an_absent_topic_is_404(
    api: Api, method: str, path: str, body: object
) -> None:
    reply = ask(api, method, f"/consumers/c{path}", body)
    assert refused(reply, 404, "topic_not_found")["topic"] == "orders"
    assert api.state("orders").status == 404


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
def test_every_call_about_an_absent_consumer_names_it(api: Api, method: str, path: str, body: object) -> None:
    put_records(api, 1)
    assert refused(ask(api, method, f"/consumers/c{path}", body), 404, "consumer_not_found")["name"] == "c"


@pytest.mark.parametrize(
    "body",
    [
        *({"start": start} for start in ("middle", 5, {}, None, {"seq": 1, "time_ms": 1}, {"seq": -1})),
        *({"start": start} for start in ({"seq": 1.5}, {"time_ms": -1}, {"seq": 99})),
        *(
            {"hold": 1},
            {"hold_max_ms": -1},
            {"hold_max_ms": "1"},
            {"filter": "x"},
            {"filter": []},
            {"node": 5},
        ),
    ],
)
def test_a_wrong_consumer_is_400_and_is_not_created(api: Api, body: dict[str, object]) -> None:
    put_records(api, 3)
    refused(ask(api, "PUT", "/consumers/c", body), 400, "invalid_request")
    assert ask(api, "GET", "/consumers").json["consumers"] == []


@pytest.mark.parametrize("name", ["-a", "a>b", "x" * 256, "ä"])
def test_names_of_consumers_follow_the_rule_of_topics(api: Api, name: str) -> None:
    put_records(api, 1)
    refused(ask(api, "PUT", f"/consumers/{quote(name)}"), 400, "invalid_request")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *(("read", {"limit": -1}), ("read", {"max_bytes": -1}), ("read", {"wait_ms": -1})),
        *(("read", {"commit": 4}), ("read", {"commit": -1}), ("read", {"owner_epoch": "1"})),
        *(("commit", {}), ("commit", {"seq": -1}), ("commit", {"seq": 4}), ("commit", {"seq": "1"})),
        *(("acquire", {"owner": "o", "ttl_ms": ttl_ms}) for ttl_ms in (999, 3_600_001, -1, "x")),
        *(("reset", {}), ("reset", {"to": "x"}), ("reset", {"to": {"seq": -1}})),
        ("reset", {"to": "latest", "dry_run": "x"}),
    ],
)
def test_a_wrong_call_of_a_consumer_is_400_and_moves_nothing(
    api: Api, path: str, body: dict[str, Any]
) -> None:
    put_records(api, 3)
    ask(api, "PUT", "/consumers/c")
    refused(post(api, f"c/{path}", **body), 400, "invalid_request")
    state = ask(api, "GET", "/consumers/c").json
    assert (state["cursor"], state["owner_epoch"], state["committed_ts"]) == (0, 0, None)


def test_a_consumer_begins_where_its_start_says(api: Api) -> None:
    put_records(api, 3)
    ts = ask(api, "POST", "/diff", {}).json["records"][0]["$ts"]
    starts: list[tuple[object, int]] = [
        *(("earliest", 0), ("latest", 3), ({"seq": 0}, 0), ({"seq": 3}, 2), ({"seq": 4}, 3)),
        *(({"time_ms": 0}, 0), ({"time_ms": ts}, 0), ({"time_ms": ts + 10**9}, 3)),
    ]
    for number, (start, cursor) in enumerate(starts):
        state = ask(api, "PUT", f"/consumers/c{number}", {"start": start}).json
        assert (state["cursor"], state["next_seq"]) == (cursor, cursor + 1), start


def test_filter_and_node_of_a_consumer_choose_what_it_reads_and_change_no_lag(api: Api) -> None:
    records = [{"data": n, "tag": f"t{n % 2}", "node": f"n{n % 3}"} for n in range(12)]
    ask(api, "POST", "", {"records": records})
    ask(api, "PUT", "/consumers/c", {"filter": ["tag", "Eq", "t1"], "node": ["n0"]})
    read = post(api, "c/read", limit=2)
    assert seqs(read) == [2, 6]
    assert read.json["consumer"]["lag_records"] == 12
    rest = post(api, "c/read", commit=read.json["next_from_seq"])
    assert (seqs(rest), rest.json["caught_up"], rest.json["next_from_seq"]) == ([8, 12], True, 12)
    assert "filter" not in ask(api, "PUT", "/consumers/c").json


def test_lags_are_exact_after_deletes_and_expiry(server: RunningServer, api: Api) -> None:
    put_records(api, 6, ttl_ms=10_000)
    server.clock.advance_ms(6000)
    put_records(api, 2)
    ask(api, "PUT", "/consumers/c")
    ask(api, "POST", "/delete", {"match": "t0"})  # of both appends
    state = ask(api, "GET", "/consumers/c").json
    assert state["lag_records"] == 4
    assert 6000 <= state["lag_ms"] < 9000
    server.clock.advance_ms(6000)
    state = ask(api, "GET", "/consumers/c").json
    assert state["lag_records"] == 1
    assert 6000 <= state["lag_ms"] < 9000
    post(api, "c/commit", seq=8)
    state = ask(api, "GET", "/consumers/c").json
    assert (state["lag_records"], state["lag_ms"], state["cursor"]) == (0, 0, 8)
    assert state["committed_ts"] is not None


def test_an_ownership_is_renewed_by_its_use_and_ends(server: RunningServer, api: Api) -> None:
    put_records(api, 3)
    ask(api, "PUT", "/consumers/c")
    epoch = post(api, "c/acquire", owner="one", ttl_ms=5000).json["owner_epoch"]
    server.clock.advance_ms(4000)
    assert post(api, "c/commit", seq=1, owner_epoch=epoch).status == 200
    server.clock.advance_ms(4000)
    assert seqs(post(api, "c/read", owner_epoch=epoch)) == [2, 3]
    server.clock.advance_ms(4000)
    assert ask(api, "GET", "/consumers/c").json["owner"] == "one"
    server.clock.advance_ms(2000)
    state = ask(api, "GET", "/consumers/c").json
    assert (state["owner"], state["owner_epoch"]) == (None, epoch)
    refused(post(api, "c/read"), 409, "fenced")
    assert post(api, "c/read", owner_epoch=epoch).json["consumer"]["owner"] == "one"


def test_a_hold_lets_go_after_its_time_and_leaves_a_tombstone(server: RunningServer, api: Api) -> None:
    put_records(api, 3, cap_records=3)
    ask(api, "PUT", "/consumers/b", {"hold": True, "start": {"seq": 2}})
    ask(api, "PUT", "/consumers/c", {"hold": True, "hold_max_ms": 60_000})
    new = {"records": [{"data": 1}, {"data": 2}]}
    detail = refused(ask(api, "POST", "", new), 422, "topic_full")
    assert detail == {
        **{"topic": "orders", "cap_records": 3, "cap_bytes": 0, "head_seq": 3, "earliest_seq": 1},
        "held_by": ["b", "c"],
    }
    server.clock.advance_ms(60_001)
    assert ask(api, "POST", "", {"records": [{"data": 1}]}).status == 200
    read = post(api, "c/read").json
    gap = read["tombstone"]
    assert (gap["gap_from"], gap["gap_to"], gap["reason"]) == (1, 1, "cap")
    assert read["consumer"]["at_risk"] is True
    assert post(api, "b/read").json["tombstone"] is None


def test_a_hold_keeps_expired_records_until_they_are_committed(server: RunningServer, api: Api) -> None:
    put_records(api, 2, ttl_ms=1000)
    ask(api, "PUT", "/consumers/c", {"hold": True})
    server.clock.advance_ms(5000)
    assert seqs(post(api, "c/read")) == [1, 2]
    post(api, "c/commit", seq=1)
    assert api.state("orders").json["count"] == 1
    post(api, "c/commit", seq=2)
    assert api.state("orders").json["count"] == 0


def test_consumers_end_with_their_topic(api: Api) -> None:
    put_records(api, 1)
    ask(api, "PUT", "/consumers/c", {"start": "latest"})
    api.drop("orders")
    put_records(api, 1)
    assert ask(api, "GET", "/consumers").json["consumers"] == []


def test_so_many_consumers_and_schedules_there_may_be_and_known_ones_change_at_the_cap() -> None:
    with running(max_consumers=1, max_schedules=1) as server:
        api = server.api()
        put_records(api, 1)
        schedule = {"topic": "orders", "cron": "0 0 1 1 *", "record": {"data": 1}}
        for path, body, limit in (
            ("/v0/topics/orders/consumers/", {}, "max_consumers"),
            ("/v0/schedules/", schedule, "max_schedules"),
        ):
            assert api.request("PUT", path + "a", body).status == 201
            reply = api.request("PUT", path + "b", body)
            assert refused(reply, 429, "throttled") == {"limit": limit, "max": 1}
            assert reply.headers["retry-after"] == "1"
            assert api.request("PUT", path + "a", body).status == 200
            assert api.request("DELETE", path + "a").json["deleted"]
            assert api.request("PUT", path + "b", body).status == 201


@pytest.mark.parametrize("durability", ["ephemeral", "disk"])
def test_consumers_are_as_durable_as_their_topic(tmp_path: Any, durability: str) -> None:
    with running(memory=False, data_dir=str(tmp_path)) as server:
        api = server.api()
        put_records(api, 3, durability=durability)
        ask(api, "PUT", "/consumers/c", {"filter": ["tag", "Eq", "t0"], "hold": True, "node": "n"})
        epoch = post(api, "c/acquire", owner="one", ttl_ms=3_600_000).json["owner_epoch"]
        before = post(api, "c/commit", seq=2, owner_epoch=epoch).json
    with running(memory=False, data_dir=str(tmp_path)) as server:
        after = ask(server.api(), "GET", "/consumers/c")
        if durability == "ephemeral":
            refused(after, 404, "consumer_not_found")
        else:
            names = before.keys() - {"performance", "lag_ms", "ignored"}
            assert {name: after.json[name] for name in names} == {name: before[name] for name in names}
