"""Section 2 and 0.4 over the wire: what an append takes, refuses and answers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.http_cases import Api, ConfigDefaults, RunningServer, assert_error, running, taken

REPLY_FIELDS = {
    "topic",
    "first_seq",
    "last_seq",
    "seqs",
    "head_seq",
    "count",
    "created",
    "deduped",
    "performance",
}
MIB = 1 << 20


def first_record(api: Api, topic: str = "t", **fields: object) -> dict[str, object]:
    record: dict[str, object] = taken(api.diff(topic, **fields))["records"][0]
    return record


# --- Replies ---------------------------------------------------------------------------------------------


def test_the_first_append_creates_the_topic_and_answers_201(api: Api) -> None:
    body = taken(api.append("t", [{"data": 1}, {"data": 2}]), 201)
    assert set(body) == REPLY_FIELDS
    performance = body.pop("performance")
    assert body == {
        "topic": "t",
        "first_seq": 1,
        "last_seq": 2,
        "seqs": [1, 2],
        "head_seq": 2,
        "count": 2,
        "created": True,
        "deduped": False,
    }
    assert set(performance) == {"server_total_ms", "wal_append_ms", "fsync_ms"}
    assert performance["fsync_ms"] == 0.0
    assert performance["wal_append_ms"] == 0.0, "a server in memory writes no log"


def test_later_appends_answer_200_with_contiguous_seqs(api: Api) -> None:
    api.append("t")
    body = taken(api.append("t", [{"data": value} for value in range(5)]))
    assert (body["seqs"], body["count"], body["head_seq"], body["created"]) == ([2, 3, 4, 5, 6], 5, 6, False)
    assert api.values("t", from_seq=1) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("word", "suppressed"), [("false", True), ("0", True), ("true", False), ("x", False)]
)
def test_seqs_can_be_suppressed(api: Api, word: str, suppressed: bool) -> None:
    body = taken(api.request("POST", f"/v0/topics/t?return_seqs={word}", {"records": [{"data": 1}]}), 201)
    assert set(body) == (REPLY_FIELDS - {"seqs"} if suppressed else REPLY_FIELDS)
    assert (body["first_seq"], body["last_seq"], body["count"]) == (1, 1, 1)


def test_replies_are_compact_json(api: Api) -> None:
    for reply in (api.append("t"), api.diff("t"), api.state("t"), api.topics(), api.put("t"), api.state("x")):
        outside_strings = re.sub(r'"[^"]*"', "", reply.text)
        assert not re.search(r"\s", outside_strings), reply.text


# --- Creating --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "creates"),
    [
        ({}, True),
        ({"create": True}, True),
        ({"create": False}, False),
        ({"create": None}, True),
        ({"config": None}, True),
        ({"config": {}}, True),
        ({"config": {"auto_create": True}}, True),
        ({"config": {"auto_create": False}}, False),
        ({"config": {"auto_create": False}, "create": True}, True),
        ({"config": {"auto_create": True}, "create": False}, False),
    ],
)
def test_create_decides_and_auto_create_if_it_is_missing(
    api: Api, fields: dict[str, Any], creates: bool
) -> None:
    reply = api.append("t", **fields)
    if creates:
        assert taken(reply, 201)["created"] is True
    else:
        assert_error(reply, 404, "topic_not_found", topic="t")
        assert_error(api.state("t"), 404, "topic_not_found")


def test_the_config_is_taken_when_the_topic_comes_into_being(api: Api) -> None:
    api.append("t", config={"cap_records": 5, "durability": "memory"})
    expected = ConfigDefaults | {"cap_records": 5, "durability": "memory"}
    assert taken(api.state("t"))["config"] == expected


def test_a_config_for_a_present_topic_is_without_effect(api: Api) -> None:
    api.put("t", cap_records=5)
    taken(api.append("t", config={"cap_records": 1, "type": "queue", "auto_create": False}))
    assert taken(api.state("t"))["config"]["cap_records"] == 5


@pytest.mark.parametrize("config", [{"ttl_ms": -1}, {"type": "x"}, {"dead_letter": "t"}, 5, [], "x"])
def test_a_bad_config_refuses_the_whole_append(api: Api, config: object) -> None:
    assert_error(api.append("t", config=config), 400, "invalid_request")
    assert_error(api.state("t"), 404, "topic_not_found")


def test_create_false_works_on_a_present_topic(api: Api) -> None:
    api.put("t")
    assert taken(api.append("t", create=False))["created"] is False


def test_a_refused_append_creates_no_topic(api: Api) -> None:
    refused = api.append("t", [{"data": 1}, {"data": 2}], config={"discard": "reject", "cap_records": 1})
    assert_error(refused, 400, "record_too_large")
    assert_error(api.state("t"), 404, "topic_not_found")


# --- Shape -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"records": None},
        {"records": {}},
        {"records": []},
        {"records": [1]},
        {"records": [None]},
        {"records": [[]]},
        {"records": [{}]},
        {"records": [{"tag": "x"}]},
        {"records": [{"data": 1}, {"meta": {}}]},
        {"records": [{"data": 1, "tag": 5}]},
        {"records": [{"data": 1, "node": ["n"]}]},
        {"records": [{"data": 1, "meta": []}]},
        {"records": [{"data": 1, "meta": "x"}]},
        {"records": [{"data": 1, "meta": 5}]},
        {"records": [{"data": 1, "meta": False}]},
        {"records": [{"data": 1}], "node": 5},
        {"records": [{"data": 1}], "create": "true"},
        {"records": [{"data": 1}], "create": 1},
        {"records": [{"data": 1}], "idempotency_key": 5},
        {"records": [{"data": 1}], "disable_backpressure": "no"},
        [],
        "records",
        None,
        5,
    ],
)
def test_a_body_of_the_wrong_shape_is_refused(api: Api, body: object) -> None:
    data = b"null" if body is None else body
    assert_error(api.request("POST", "/v0/topics/t", data), 400, "invalid_request")
    assert taken(api.topics())["topics"] == []


def test_unknown_fields_and_query_parameters_are_ignored(api: Api) -> None:
    record = {"data": 1, "$seq": 900, "$ts": 1, "extra": {}}
    reply = api.request("POST", "/v0/topics/t?what=ever&x", {"records": [record], "extra": [1], "seq": 5})
    assert taken(reply, 201)["seqs"] == [1]
    assert set(first_record(api)) == {"$seq", "$ts", "data"}


def test_disable_backpressure_is_accepted(api: Api) -> None:
    taken(api.append("t", disable_backpressure=True), 201)


@pytest.mark.parametrize(
    "value",
    [None, True, False, 0, -1, 1.5, "", "text", "é\u2028𝄞\0", [], {}, [[{"a": [None]}]], {"": {"b": 1}}],
)
def test_data_may_be_any_json(api: Api, value: object) -> None:
    api.append("t", [{"data": value}])
    assert first_record(api)["data"] == value


# --- Records ---------------------------------------------------------------------------------------------


def test_a_reader_gets_seq_ts_node_tag_and_meta(api: Api) -> None:
    api.append("t", [{"data": 1, "node": "n", "tag": "g", "meta": {"k": [1]}}])
    record = first_record(api, include_tags=True)
    assert isinstance(record.pop("$ts"), int)
    assert record == {"$seq": 1, "$node": "n", "$tag": "g", "meta": {"k": [1]}, "data": 1}


def test_what_is_absent_or_null_is_left_out(api: Api) -> None:
    api.append("t", [{"data": None}, {"data": None, "node": None, "tag": None, "meta": None}])
    for record in taken(api.diff("t", include_tags=True))["records"]:
        assert set(record) == {"$seq", "$ts", "data"}
        assert record["data"] is None


def test_a_node_of_a_record_overrides_that_of_the_batch(api: Api) -> None:
    api.append("t", [{"data": 1}, {"data": 2, "node": "own"}, {"data": 3, "node": None}], node="batch")
    assert [record["$node"] for record in taken(api.diff("t"))["records"]] == ["batch", "own", "batch"]


def test_times_never_decrease_with_the_seq(server: RunningServer, api: Api) -> None:
    api.append("t")
    server.clock.advance_ms(-60_000)
    api.append("t")
    first, second = (record["$ts"] for record in taken(api.diff("t"))["records"])
    assert first <= second


def test_an_empty_meta_object_is_kept(api: Api) -> None:
    api.append("t", [{"data": 1, "meta": {}}])
    assert first_record(api)["meta"] == {}


# --- Sizes -----------------------------------------------------------------------------------------------


def test_ten_thousand_records_are_taken_and_one_more_is_not(api: Api) -> None:
    records = [{"data": 1}] * 10_000
    assert taken(api.append("t", records), 201)["count"] == 10_000
    for more in ([{"data": 1}], [{"data": 1, "unknown": 1}]):  # scanned, and decoded
        reply = api.append("t", [*records, *more])
        assert_error(reply, 400, "batch_too_large", records=10_001, max=10_000)
    assert taken(api.state("t"))["head_seq"] == 10_000


@pytest.mark.parametrize(("field", "limit"), [("tag", 256), ("node", 128)])
def test_tag_and_node_are_limited_in_bytes(api: Api, field: str, limit: int) -> None:
    taken(api.append("t", [{"data": 1, field: "x" * limit}]), 201)
    taken(api.append("t", [{"data": 1, field: "é" * (limit // 2)}]))
    assert_error(api.append("t", [{"data": 1, field: "x" * (limit + 1)}]), 400, "invalid_request")
    assert_error(api.append("t", [{"data": 1, field: "é" * (limit // 2) + "x"}]), 400, "invalid_request")


def test_the_node_of_a_batch_is_limited_as_well(api: Api) -> None:
    taken(api.append("t", node="x" * 128), 201)
    assert_error(api.append("t", node="x" * 129), 400, "invalid_request")


def test_meta_is_limited_to_64_keys_and_16_kib(api: Api) -> None:
    def sent(meta: object) -> int:
        return api.append("t", [{"data": 1, "meta": meta}]).status

    assert sent({str(key): [1, {"a": 1, "b": 2}] for key in range(64)}) == 201
    assert sent({"k": "x" * (16384 - len('{"k":""}'))}) == 200
    over = api.append("t", [{"data": 1, "meta": {str(key): 1 for key in range(65)}}])
    assert_error(over, 400, "invalid_request")
    over = api.append("t", [{"data": 1, "meta": {"k": "x" * (16385 - len('{"k":""}'))}}])
    assert_error(over, 400, "invalid_request")


def test_data_and_meta_of_a_record_are_limited_to_one_mib(api: Api) -> None:
    taken(api.append("t", [{"data": "x" * (MIB - 2)}]), 201)
    taken(api.append("t", [{"data": "x" * (MIB - 2 - 8), "meta": {"k": 10}}]))
    assert_error(api.append("t", [{"data": "x" * (MIB - 1)}]), 400, "record_too_large")
    assert_error(api.append("t", [{"data": "x" * (MIB - 2 - 7), "meta": {"k": 10}}]), 400, "record_too_large")
    assert taken(api.state("t"))["bytes"] == 2 * MIB


def test_blanks_between_tokens_do_not_count_for_the_limit(api: Api) -> None:
    taken(api.append_text("t", "[" + " " * MIB + "1]"), 201)
    assert taken(api.state("t"))["bytes"] == 3


def test_one_bad_record_refuses_the_whole_batch_and_uses_no_seq(api: Api) -> None:
    api.append("t")
    assert_error(api.append("t", [{"data": 1}, {"data": 2, "tag": "x" * 257}]), 400, "invalid_request")
    assert_error(api.append("t", [{"data": 1}, {"data": "x" * MIB}]), 400, "record_too_large")
    assert taken(api.append("t"))["seqs"] == [2]


# --- Caps ------------------------------------------------------------------------------------------------


def test_a_rejecting_topic_that_is_full_answers_422(api: Api) -> None:
    api.put("t", discard="reject", cap_records=3)
    api.fill("t", 1, 2)
    told = {"topic": "t", "cap_records": 3, "cap_bytes": 0, "head_seq": 2, "earliest_seq": 1}
    assert_error(api.append("t", [{"data": 3}, {"data": 4}]), 422, "topic_full", **told)
    assert taken(api.append("t"))["seqs"] == [3]
    assert_error(api.append("t"), 422, "topic_full", head_seq=3)
    api.delete("t", before_seq=2)
    assert taken(api.append("t"))["seqs"] == [4]


def test_a_full_topic_reports_what_is_stored_without_the_refused_batch(api: Api) -> None:
    api.put("t", discard="reject", cap_records=3)
    api.fill("t", 1, 22)
    refused = api.append("t", [{"data": 3}, {"data": 4}])
    assert_error(refused, 422, "topic_full")
    assert "holds 2 records with 3 bytes" in refused.json["error"]["message"]


def test_a_rejecting_topic_counts_bytes_too(api: Api) -> None:
    api.put("t", discard="reject", cap_bytes=10)
    api.fill("t", "12345678")
    assert_error(api.append("t"), 422, "topic_full", cap_bytes=10, cap_records=0)


def test_a_batch_that_can_never_fit_is_400_even_when_the_topic_is_full(api: Api) -> None:
    api.put("t", discard="reject", cap_records=2)
    api.fill("t", 1, 2)
    assert_error(api.append("t", [{"data": 1}] * 3), 400, "record_too_large")
    api.put("t", discard="reject", cap_bytes=2)
    assert_error(api.append("t", [{"data": "abc"}]), 400, "record_too_large")


def test_a_topic_that_discards_takes_a_batch_beyond_its_cap_and_evicts_the_oldest(api: Api) -> None:
    api.put("t", cap_records=2)
    assert taken(api.append("t", [{"data": value} for value in range(5)]))["count"] == 5
    assert api.values("t", from_seq=3) == [3, 4]
    state = taken(api.state("t"))
    assert (state["count"], state["earliest_seq"], state["head_seq"]) == (2, 4, 5)


def test_whichever_cap_is_hit_first_acts(api: Api) -> None:
    api.put("t", cap_records=100, cap_bytes=6)
    api.fill("t", "ab", "cd", "ef")
    assert taken(api.state("t"))["count"] == 1
    api.put("t", cap_records=1, cap_bytes=1000)
    api.fill("t", "gh", "ij")
    assert taken(api.state("t"))["count"] == 1


def test_expired_records_make_room_in_a_rejecting_topic(server: RunningServer, api: Api) -> None:
    api.put("t", discard="reject", cap_records=1, ttl_ms=1000)
    api.append("t")
    assert_error(api.append("t"), 422, "topic_full")
    server.clock.advance_ms(2000)
    assert taken(api.append("t"))["seqs"] == [2]


def test_the_total_bytes_of_all_topics_may_reach_the_quota_and_no_more() -> None:
    with running(max_total_bytes=10) as server:
        api = server.api()
        api.fill("a", "123")
        api.fill("b", "123")
        assert_error(api.append("b"), 429, "throttled", limit="max_total_bytes", max=10)
        assert_error(api.append("new"), 429, "throttled", limit="max_total_bytes", max=10)
        assert_error(api.state("new"), 404, "topic_not_found")
        assert taken(api.state("b"))["head_seq"] == 1
        api.delete("a", before_seq=2)
        assert taken(api.append("b", [{"data": 12345}]))["seqs"] == [2]
        api.drop("b")
        taken(api.append("c", [{"data": "12345678"}]), 201)


def test_evictions_give_bytes_back_to_the_quota() -> None:
    with running(max_total_bytes=10) as server:
        api = server.api()
        api.put("t", cap_records=1)
        for _ in range(5):
            api.fill("t", "12345678")
        assert taken(api.state("t"))["bytes"] == 10


def test_a_full_topic_answers_422_before_the_quota_is_looked_at() -> None:
    with running(max_total_bytes=3) as server:
        api = server.api()
        api.put("t", discard="reject", cap_records=1)
        api.fill("t", "x")
        assert_error(api.append("t"), 422, "topic_full")
