"""Section 1 and 0.10 over the wire: create, configure, report, list and delete topics."""

from __future__ import annotations

import base64
import string

import pytest

from tests.support.http_cases import (
    Api,
    ConfigDefaults,
    Reply,
    RunningServer,
    assert_error,
    running,
    taken,
)

U64_MAX = 2**64 - 1
LIST_FIELDS = {
    "topic",
    "head_seq",
    "earliest_seq",
    "count",
    "bytes",
    "durable",
    "effective_priority",
    "type",
    "durability",
}


def config_of(api: Api, topic: str) -> dict[str, object]:
    config: dict[str, object] = taken(api.state(topic))["config"]
    return config


# --- PUT -------------------------------------------------------------------------------------------------


def test_a_put_creates_an_absent_topic_with_201(api: Api) -> None:
    body = taken(api.put("t"), 201)
    assert set(body) == {"topic", "created", "config", "performance"}
    assert (body["topic"], body["created"]) == ("t", True)
    assert body["performance"]["server_total_ms"] >= 0


def test_a_put_on_a_present_topic_answers_200_and_created_false(api: Api) -> None:
    api.put("t")
    assert taken(api.put("t"))["created"] is False


def test_a_config_is_returned_complete_with_its_defaults(api: Api) -> None:
    assert taken(api.put("t"), 201)["config"] == ConfigDefaults


def test_a_put_with_an_empty_body_and_no_type_means_the_defaults(api: Api) -> None:
    reply = api.request("PUT", "/v0/topics/t", b"", Content_Type=None)
    assert taken(reply, 201)["config"] == ConfigDefaults


def test_a_put_replaces_the_whole_config_and_omitted_fields_return_to_defaults(api: Api) -> None:
    api.put("t", ttl_ms=5000, priority=7, dead_letter="dead")
    assert taken(api.put("t", cap_records=3))["config"] == ConfigDefaults | {"cap_records": 3}
    assert config_of(api, "t") == ConfigDefaults | {"cap_records": 3}


def test_every_config_field_is_stored_and_echoed(api: Api) -> None:
    sent = {
        "type": "queue",
        "ttl_ms": 1_000_000,
        "cap_records": U64_MAX,
        "cap_bytes": 12,
        "discard": "reject",
        "durable": True,
        "durability": "fsync",
        "priority": -5,
        "auto_priority": False,
        "auto_create": False,
        "idempotency_window_ms": 1,
        "dedupe_node": False,
        "lease_ms": 500,
        "claim_jitter_ms": 50,
        "max_deliveries": 4,
        "dead_letter": "dead",
        "leases_durable": True,
        "concurrency_limit": 3,
        "rate_limit": {"count": 5, "per_ms": 1000, "by": "key"},
        "retry": {"base_ms": 10, "factor": 2.0, "max_ms": 1000, "jitter": 0.5},
        "unique_window_ms": 60_000,
        "paused": True,
    }
    assert set(sent) == set(ConfigDefaults)
    assert taken(api.put("t", **sent), 201)["config"] == sent
    assert config_of(api, "t") == sent


def test_queue_fields_are_accepted_and_echoed_on_a_log(api: Api) -> None:
    sent: dict[str, object] = {
        "lease_ms": 500,
        "claim_jitter_ms": 5,
        "max_deliveries": 1,
        "dead_letter": "d",
        "leases_durable": True,
    }
    assert taken(api.put("t", **sent), 201)["config"] == ConfigDefaults | sent


@pytest.mark.parametrize(
    ("sent", "durability"),
    [
        ({}, "disk"),
        ({"durable": False}, "disk"),
        ({"durable": True}, "fsync"),
        ({"durability": "ephemeral", "durable": True}, "ephemeral"),
        ({"durability": "memory"}, "memory"),
        ({"durability": "disk", "durable": True}, "disk"),
        ({"durability": "fsync", "durable": False}, "fsync"),
    ],
)
def test_an_explicit_durability_wins_and_durable_is_reported_from_it(
    api: Api, sent: dict[str, object], durability: str
) -> None:
    config = taken(api.put("t", **sent), 201)["config"]
    assert (config["durability"], config["durable"]) == (durability, durability == "fsync")


def test_the_durability_may_be_changed_by_a_put(api: Api) -> None:
    for durability in ("ephemeral", "fsync", "memory", "disk"):
        api.put("t", durability=durability)
        assert config_of(api, "t")["durability"] == durability


@pytest.mark.parametrize(
    ("field", "sent", "stored"),
    [
        ("lease_ms", 0, 100),
        ("lease_ms", 99, 100),
        ("lease_ms", 86_400_001, 86_400_000),
        ("lease_ms", U64_MAX, 86_400_000),
        ("claim_jitter_ms", 5001, 5000),
        ("priority", 5000, 5000),
        ("priority", -(2**31), -(2**31)),
        ("priority", 2**31 - 1, 2**31 - 1),
        ("priority", None, None),
        ("dead_letter", None, None),
        ("ttl_ms", U64_MAX, U64_MAX),
    ],
)
def test_values_at_the_edge_are_clamped_or_kept(api: Api, field: str, sent: object, stored: object) -> None:
    assert taken(api.put("t", **{field: sent}), 201)["config"][field] == stored


@pytest.mark.parametrize("field", [name for name, value in ConfigDefaults.items() if type(value) is int])
@pytest.mark.parametrize("value", [-1, 1.5, 2**64, 10**30, "1", True, None, []])
def test_a_number_that_is_no_u64_is_refused(api: Api, field: str, value: object) -> None:
    assert_error(api.put("t", **{field: value}), 400, "invalid_request")
    assert_error(api.state("t"), 404, "topic_not_found")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", 2**31),
        ("priority", -(2**31) - 1),
        ("priority", 0.5),
        ("priority", "high"),
        ("type", "stack"),
        ("type", None),
        ("type", 1),
        ("discard", "new"),
        ("durability", "disc"),
        ("durability", ""),
        ("durable", "true"),
        ("durable", 1),
        ("auto_create", None),
        ("dead_letter", ""),
        ("dead_letter", "-x"),
        ("dead_letter", "a/b"),
        ("dead_letter", "t"),
        ("dead_letter", 5),
    ],
)
def test_a_config_value_that_cannot_be_is_refused(api: Api, field: str, value: object) -> None:
    assert_error(api.put("t", **{field: value}), 400, "invalid_request")


def test_the_type_cannot_be_changed(api: Api) -> None:
    api.put("log")
    api.put("queue", type="queue")
    told = {"existing_type": "log", "requested_type": "queue"}
    assert_error(api.put("log", type="queue"), 409, "topic_exists_incompatible", **told)
    told = {"existing_type": "queue", "requested_type": "log"}
    assert_error(api.put("queue"), 409, "topic_exists_incompatible", **told)
    assert taken(api.put("queue", type="queue", ttl_ms=1))["config"]["ttl_ms"] == 1


def test_a_refused_put_changes_nothing(api: Api) -> None:
    api.put("t", cap_records=7)
    api.put("t", cap_records=1, type="queue")
    assert config_of(api, "t")["cap_records"] == 7


def test_a_put_leaves_stored_records_alone(api: Api) -> None:
    api.fill("t", 1, 2, 3)
    api.put("t", priority=1)
    assert api.values("t") == [1, 2, 3]


def test_a_tighter_cap_is_applied_at_once(api: Api) -> None:
    api.fill("t", 1, 2, 3)
    api.put("t", cap_records=1)
    state = taken(api.state("t"))
    assert (state["count"], state["earliest_seq"], state["head_seq"]) == (1, 3, 3)


def test_a_tighter_ttl_is_applied_at_once(server: RunningServer, api: Api) -> None:
    api.fill("t", 1, 2)
    server.clock.advance_ms(10_000)
    api.put("t", ttl_ms=5000)
    assert taken(api.state("t"))["count"] == 0


def test_of_concurrent_creates_exactly_one_creates(server: RunningServer) -> None:
    replies = server.at_once(8, lambda api, _: api.put("t"))
    assert sorted(reply.result().status for reply in replies) == [200] * 7 + [201]


# --- Names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["a", "0", "Z", "a" * 255, "a" + string.ascii_letters + string.digits + "._:-", "a..", "v0"]
)
def test_every_allowed_name_can_be_used(api: Api, name: str) -> None:
    assert taken(api.put(name), 201)["topic"] == name
    assert taken(api.append(name))["topic"] == name
    assert taken(api.state(name))["topic"] == name


@pytest.mark.parametrize(
    "name", ["-a", ".a", "_a", ":a", "a" * 256, "a b", "a/b", "é", "a>b", "a\n", "a\0", "%"]
)
def test_a_name_that_is_not_allowed_cannot_be_created(api: Api, name: str) -> None:
    assert_error(api.put(name), 400, "invalid_request")
    assert_error(api.append(name), 400, "invalid_request")
    assert_error(api.append(name, create=True), 400, "invalid_request")


@pytest.mark.parametrize(
    "path", ["%FF", "%C3%28", "%ED%A0%80", "a%00", "%", "%zz", "", "..%2F..", "a" * 5000]
)
def test_a_bad_name_on_a_read_is_just_not_found(api: Api, path: str) -> None:
    assert_error(api.request("GET", f"/v0/topics/{path}"), 404, "topic_not_found")
    assert_error(api.request("POST", f"/v0/topics/{path}/diff", {}), 404, "topic_not_found")
    assert_error(api.request("POST", f"/v0/topics/{path}/delete", {"before_seq": 1}), 404, "topic_not_found")
    assert_error(api.request("PUT", f"/v0/topics/{path}", {}), 400, "invalid_request")
    assert taken(api.request("DELETE", f"/v0/topics/{path}"))["deleted"] is False


def test_a_name_may_be_percent_encoded(api: Api) -> None:
    taken(api.request("PUT", "/v0/topics/%61%3a%2Db", {}), 201)
    assert taken(api.state("a:-b"))["topic"] == "a:-b"
    assert taken(api.request("GET", "/v0/topics/a:-b"))["topic"] == "a:-b"


def test_names_are_case_sensitive(api: Api) -> None:
    api.put("Name")
    assert_error(api.state("name"), 404, "topic_not_found", topic="name")


# --- GET -------------------------------------------------------------------------------------------------


def test_the_state_of_a_new_topic(api: Api) -> None:
    api.put("t")
    state = taken(api.state("t", touch="false"))
    performance = state.pop("performance")
    assert set(performance) == {"server_total_ms"}
    assert state == {
        "topic": "t",
        "type": "log",
        "config": ConfigDefaults,
        "head_seq": 0,
        "earliest_seq": 1,
        "next_seq": 1,
        "count": 0,
        "bytes": 0,
        "effective_priority": 0,
        "last_write_ts": None,
        "last_read_ts": None,
    }


def test_the_state_counts_live_records_and_their_bytes(api: Api) -> None:
    api.append("t", [{"data": "abc"}, {"data": [1, 2], "meta": {"k": 1}}, {"data": None, "meta": None}])
    state = taken(api.state("t"))
    assert (state["count"], state["bytes"]) == (3, len('"abc"') + len('[1,2]{"k":1}') + len("null"))
    assert (state["head_seq"], state["earliest_seq"], state["next_seq"]) == (3, 1, 4)
    api.delete("t", before_seq=3)
    state = taken(api.state("t"))
    assert (state["count"], state["bytes"], state["earliest_seq"]) == (1, len("null"), 3)
    api.delete("t", before_seq=4)
    state = taken(api.state("t"))
    assert (state["count"], state["bytes"], state["earliest_seq"], state["head_seq"]) == (0, 0, 4, 3)


def test_a_state_never_creates(api: Api) -> None:
    assert_error(api.state("t"), 404, "topic_not_found", topic="t")
    assert taken(api.topics())["topics"] == []


def test_a_state_touches_unless_told_not_to(server: RunningServer, api: Api) -> None:
    api.put("t")
    assert taken(api.state("t", touch="0"))["last_read_ts"] is None
    first = taken(api.state("t"))["last_read_ts"]
    assert isinstance(first, int)
    server.clock.advance_ms(1000)
    assert taken(api.state("t", touch="false"))["last_read_ts"] == first
    assert taken(api.state("t", touch="nonsense"))["last_read_ts"] >= first + 1000


def test_last_write_ts_is_the_time_of_the_last_append(server: RunningServer, api: Api) -> None:
    api.append("t")
    first = taken(api.state("t"))["last_write_ts"]
    server.clock.advance_ms(1000)
    api.append("t")
    assert taken(api.state("t"))["last_write_ts"] >= first + 1000
    assert taken(api.diff("t"))["records"][0]["$ts"] == first


def test_a_given_priority_is_clamped_in_effect_only(api: Api) -> None:
    api.put("t", priority=100_000)
    state = taken(api.state("t"))
    assert (state["effective_priority"], state["config"]["priority"]) == (1000, 100_000)
    api.put("t", priority=-100_000)
    assert taken(api.state("t"))["effective_priority"] == -1000


def test_recent_reading_raises_the_priority_unless_that_is_off(api: Api) -> None:
    api.put("t")
    assert taken(api.state("t", touch="false"))["effective_priority"] == 0
    api.diff("t")
    assert taken(api.state("t", touch="false"))["effective_priority"] > 0
    api.put("t", auto_priority=False)
    assert taken(api.state("t"))["effective_priority"] == 0


# --- Lists -----------------------------------------------------------------------------------------------


def names(reply: Reply) -> list[str]:
    return [topic["topic"] for topic in taken(reply)["topics"]]


def test_a_list_of_nothing_has_no_cursor(api: Api) -> None:
    body = taken(api.topics())
    assert set(body) == {"topics", "performance"}
    assert body["topics"] == []


def test_a_list_tells_of_each_topic(api: Api) -> None:
    api.append("t", [{"data": "x"}], config={"durable": True})
    (topic,) = taken(api.topics())["topics"]
    assert set(topic) == LIST_FIELDS
    expected = {"topic": "t", "head_seq": 1, "earliest_seq": 1, "count": 1, "bytes": 3, "durable": True}
    assert {name: topic[name] for name in expected} == expected


def test_a_list_is_sorted_by_the_bytes_of_the_names(api: Api) -> None:
    for name in ("b", "a", "B", "a.", "a-", "a0", "aa", "a:", "a_", "0"):
        api.put(name)
    assert names(api.topics()) == ["0", "B", "a", "a-", "a.", "a0", "a:", "a_", "aa", "b"]


def test_a_list_can_be_narrowed_by_prefix(api: Api) -> None:
    for name in ("a", "ab", "abc", "b"):
        api.put(name)
    assert names(api.topics(prefix="ab")) == ["ab", "abc"]
    assert names(api.topics(prefix="")) == ["a", "ab", "abc", "b"]
    assert names(api.topics(prefix="é")) == []


def test_pages_follow_each_other_without_gap_or_repeat(api: Api) -> None:
    expected = [f"t{number:02}" for number in range(11)]
    for name in expected:
        api.put(name)
    found: list[str] = []
    query: dict[str, object] = {"page_size": 4}
    for size in (4, 4, 3):
        page = taken(api.topics(**query))
        assert len(page["topics"]) == size
        found += [topic["topic"] for topic in page["topics"]]
        assert ("next_cursor" in page) == (size == 4)
        query["cursor"] = page.get("next_cursor")
    assert found == expected


def test_the_last_page_has_no_cursor_even_if_it_is_full(api: Api) -> None:
    for name in "abcd":
        api.put(name)
    assert "next_cursor" in taken(api.topics(page_size=3))
    assert "next_cursor" not in taken(api.topics(page_size=4))


def test_a_cursor_goes_on_behind_a_topic_that_is_gone(api: Api) -> None:
    for name in "abcd":
        api.put(name)
    cursor = taken(api.topics(page_size=2))["next_cursor"]
    api.drop("b")
    assert names(api.topics(cursor=cursor)) == ["c", "d"]


def test_the_page_size_is_clamped_and_defaults_to_100(api: Api) -> None:
    for number in range(1003):
        api.put(f"t{number:04}")
    lengths = {"0": 1, "1": 1, "-1": 1, "7": 7, "": 100, "x": 100, "1.5": 100, "1000": 1000, "1000000": 1000}
    assert {size: len(names(api.topics(page_size=size))) for size in lengths} == lengths
    assert len(names(api.topics())) == 100


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "!!!",
        "é",
        "AAAA",
        base64.b64encode(b"{}").decode(),
        base64.b64encode(b'{"after":5}').decode(),
        base64.b64encode(b'["after"]').decode(),
        base64.b64encode(b'{"after":"\xff"}').decode(),
    ],
)
def test_a_corrupt_cursor_is_refused(api: Api, cursor: str) -> None:
    assert_error(api.topics(cursor=cursor), 400, "invalid_request")


def test_an_empty_cursor_is_ignored(api: Api) -> None:
    api.put("t")
    assert names(api.topics(cursor="")) == ["t"]


def test_a_list_touches_only_if_told_to(api: Api) -> None:
    api.put("t")
    api.topics()
    assert taken(api.state("t", touch="false"))["last_read_ts"] is None
    api.topics(touch="true")
    assert taken(api.state("t", touch="false"))["last_read_ts"] is not None


def test_a_list_shows_no_expired_records(server: RunningServer, api: Api) -> None:
    api.append("t", config={"ttl_ms": 1000})
    server.clock.advance_ms(5000)
    (topic,) = taken(api.topics())["topics"]
    assert (topic["count"], topic["earliest_seq"], topic["head_seq"]) == (0, 2, 1)


# --- DELETE ----------------------------------------------------------------------------------------------


def test_a_topic_can_be_deleted(api: Api) -> None:
    api.fill("t", 1, 2)
    body = taken(api.drop("t"))
    assert set(body) == {"topic", "deleted", "routers_removed", "performance"}
    assert (body["topic"], body["deleted"], body["routers_removed"]) == ("t", True, [])
    assert_error(api.state("t"), 404, "topic_not_found", topic="t")


def test_deleting_what_is_absent_is_no_error(api: Api) -> None:
    assert taken(api.drop("t"))["deleted"] is False
    assert taken(api.drop("t", if_empty="true"))["deleted"] is False


def test_if_empty_keeps_a_topic_with_live_records(api: Api) -> None:
    api.fill("t", 1, 2)
    assert_error(api.drop("t", if_empty="true"), 409, "topic_not_empty", topic="t", count=2)
    assert_error(api.drop("t", if_empty="1"), 409, "topic_not_empty", topic="t", count=2)
    assert api.values("t") == [1, 2]
    api.delete("t", before_seq=3)
    assert taken(api.drop("t", if_empty="true"))["deleted"] is True


def test_without_if_empty_records_do_not_keep_a_topic(api: Api) -> None:
    for word in ("false", "0", "nonsense"):
        api.fill("t", 1)
        assert taken(api.drop("t", if_empty=word))["deleted"] is True


def test_a_recreated_topic_starts_at_seq_1_without_memory_of_keys(api: Api) -> None:
    api.append("t", [{"data": 1}, {"data": 2}], idempotency_key="k")
    api.drop("t")
    body = taken(api.append("t", idempotency_key="k"), 201)
    assert (body["seqs"], body["deduped"]) == ([1], False)


def test_a_reader_of_a_recreated_topic_is_told(api: Api) -> None:
    api.fill("t", 1, 2, 3)
    api.drop("t")
    api.fill("t", "new")
    body = taken(api.diff("t", from_seq=3))
    assert body["tombstone"]["reason"] == "recreated"
    assert [record["data"] for record in body["records"]] == ["new"]


# --- Caps on topics --------------------------------------------------------------------------------------


def test_no_more_topics_than_the_cap_can_be_created() -> None:
    with running(max_topics=2) as server:
        api = server.api()
        api.put("a")
        api.append("b")
        for refused in (api.put("c"), api.append("c")):
            assert_error(refused, 429, "throttled", limit="max_topics", max=2)
        taken(api.put("a", ttl_ms=5))
        taken(api.append("b"))
        api.drop("a")
        taken(api.put("c"), 201)


# --- Account ---------------------------------------------------------------------------------------------


def test_an_account_tells_live_deleted_and_evicted_seqs_apart(api: Api) -> None:
    api.put("t", cap_records=6)
    for tag in ("a", "b", "a", "b"):
        api.append("t", [{"data": 1, "tag": tag}, {"data": 2, "tag": tag}])
    taken(api.delete("t", match=["tag", "Eq", "b"]))
    body = taken(api.request("GET", "/v0/topics/t/account"))
    assert body.pop("performance")["server_total_ms"] >= 0
    assert body.pop("epoch") > 0
    assert body == {
        "topic": "t", "from_seq": 0, "to_seq": 8, "live": 2, "deleted": 4, "evicted": 2, "expired": 0,
        "holes": 0, "evict_floor": 3, "head_seq": 8,
    }  # fmt: skip
    part = taken(api.request("GET", "/v0/topics/t/account?from_seq=3&to_seq=6"))
    assert [part[name] for name in ("from_seq", "to_seq", "live", "deleted")] == [3, 6, 2, 1]


@pytest.mark.parametrize(
    "query", ["from_seq=-1", "to_seq=1e3", "from_seq=x", f"to_seq={2**64}", "to_seq=%C2%B2"]
)
def test_bounds_of_an_account_must_be_seqs(api: Api, query: str) -> None:
    api.put("t")
    assert_error(api.request("GET", f"/v0/topics/t/account?{query}"), 400, "invalid_request")


def test_an_absent_topic_has_no_account(api: Api) -> None:
    assert_error(api.request("GET", "/v0/topics/absent/account"), 404, "topic_not_found")
