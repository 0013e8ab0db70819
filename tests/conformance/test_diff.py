"""Sections 3 and 4 over the wire: cursors, limits, filters, tombstones and long polls."""

from __future__ import annotations

import time

import pytest

from tests.support.http_cases import Api, RunningServer, assert_error, taken

U64_MAX = 2**64 - 1
REPLY_FIELDS = {
    "topic",
    "records",
    "next_from_seq",
    "head_seq",
    "earliest_seq",
    "caught_up",
    "tombstone",
    "lag",
    "performance",
}
PARKED_MS = 20_000


# --- Cursors ---------------------------------------------------------------------------------------------


def test_a_read_of_an_empty_topic(api: Api) -> None:
    api.put("t")
    body = taken(api.diff("t"))
    assert set(body) == REPLY_FIELDS
    assert set(body.pop("performance")) == {"server_total_ms", "records_scanned"}
    assert body == {
        "topic": "t",
        "records": [],
        "next_from_seq": 0,
        "head_seq": 0,
        "earliest_seq": 1,
        "caught_up": True,
        "tombstone": None,
        "lag": 0,
    }


def test_an_empty_body_without_a_type_reads_from_the_start(api: Api) -> None:
    api.fill("t", 1, 2)
    body = taken(api.request("POST", "/v0/topics/t/diff", b"", Content_Type=None))
    assert [record["data"] for record in body["records"]] == [1, 2]


def test_the_cursor_is_exclusive_and_lag_counts_what_is_left(api: Api) -> None:
    api.fill("t", *range(10))
    body = taken(api.diff("t", from_seq=2, limit=3))
    assert [record["$seq"] for record in body["records"]] == [3, 4, 5]
    assert (body["next_from_seq"], body["head_seq"], body["lag"], body["caught_up"]) == (5, 10, 5, False)
    body = taken(api.diff("t", from_seq=5))
    assert (body["next_from_seq"], body["lag"], body["caught_up"]) == (10, 0, True)
    assert body["performance"]["records_scanned"] == 5


def test_a_read_at_the_head_is_a_normal_tail(api: Api) -> None:
    api.fill("t", 1, 2)
    body = taken(api.diff("t", from_seq=2))
    assert (body["records"], body["caught_up"], body["tombstone"], body["next_from_seq"]) == (
        [],
        True,
        None,
        2,
    )


@pytest.mark.parametrize(
    ("limit", "delivered"), [(None, 256), (0, 256), (1, 1), (1000, 1000), (1001, 1000), (U64_MAX, 1000)]
)
def test_the_limit_is_clamped(api: Api, limit: int | None, delivered: int) -> None:
    api.fill("t", *range(1100))
    body = taken(api.diff("t") if limit is None else api.diff("t", limit=limit))
    assert len(body["records"]) == delivered
    assert body["next_from_seq"] == delivered


def test_a_read_stops_before_the_record_that_would_pass_the_byte_limit(api: Api) -> None:
    api.fill("t", "x" * 98, "x" * 98, "x" * 98)
    assert api.seqs("t", max_batch_bytes=250) == [1, 2]
    assert api.seqs("t", max_batch_bytes=1) == [1]


def test_the_byte_limit_defaults_to_1_mib_and_is_clamped_to_8(api: Api) -> None:
    for _ in range(20):
        api.fill("t", "x" * ((1 << 19) - 64))
    delivered = {0: 2, 2 << 20: 4, 8 << 20: 16, 9 << 20: 16, U64_MAX: 16}
    assert {size: len(api.seqs("t", max_batch_bytes=size)) for size in delivered} == delivered


@pytest.mark.parametrize("field", ["from_seq", "limit", "wait_ms", "max_batch_bytes"])
@pytest.mark.parametrize("value", [-1, 0.5, 2**64, "1", None, True, []])
def test_a_number_that_is_no_u64_is_refused(api: Api, field: str, value: object) -> None:
    api.put("t")
    assert_error(api.diff("t", **{field: value}), 400, "invalid_request")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("node", 5),
        ("node", [5]),
        ("node", {}),
        ("node", ["a", None]),
        ("include_tags", 1),
        ("include_tags", "true"),
        ("include_meta", None),
    ],
)
def test_a_field_of_the_wrong_type_is_refused(api: Api, field: str, value: object) -> None:
    api.put("t")
    assert_error(api.diff("t", **{field: value}), 400, "invalid_request")


def test_a_read_never_creates(api: Api) -> None:
    assert_error(api.diff("t"), 404, "topic_not_found", topic="t")
    assert_error(api.diff("t", wait_ms=1000), 404, "topic_not_found", topic="t")
    assert_error(api.state("t"), 404, "topic_not_found")


def test_the_body_is_checked_before_the_topic_is_looked_for(api: Api) -> None:
    assert_error(api.diff("absent", limit=-1), 400, "invalid_request")


def test_a_read_touches_the_topic(api: Api) -> None:
    api.put("t")
    api.diff("t")
    assert taken(api.state("t", touch="false"))["last_read_ts"] is not None


def test_tags_are_left_out_and_meta_is_there_unless_asked_otherwise(api: Api) -> None:
    api.append("t", [{"data": 1, "tag": "g", "meta": {"k": 1}}])
    (record,) = taken(api.diff("t"))["records"]
    assert ("$tag" in record, "meta" in record) == (False, True)
    (record,) = taken(api.diff("t", include_tags=True, include_meta=False))["records"]
    assert ("$tag" in record, "meta" in record) == (True, False)


# --- Skipping --------------------------------------------------------------------------------------------


def test_deleted_records_are_passed_in_silence(api: Api) -> None:
    api.append("t", [{"data": value, "tag": "odd" if value % 2 else "even"} for value in range(6)])
    api.delete("t", match="odd")
    body = taken(api.diff("t"))
    assert [record["data"] for record in body["records"]] == [0, 2, 4]
    assert (body["next_from_seq"], body["caught_up"], body["tombstone"]) == (6, True, None)


def test_a_deleted_prefix_leaves_no_tombstone(api: Api) -> None:
    api.fill("t", 1, 2, 3)
    api.delete("t", before_seq=3)
    body = taken(api.diff("t"))
    assert (body["tombstone"], body["earliest_seq"]) == (None, 3)
    assert [record["data"] for record in body["records"]] == [3]


def test_records_of_the_readers_own_node_are_left_out_but_passed(api: Api) -> None:
    api.append(
        "t", [{"data": 1, "node": "a"}, {"data": 2, "node": "b"}, {"data": 3}, {"data": 4, "node": "A"}]
    )
    assert api.values("t", node="a") == [2, 3, 4]
    assert api.values("t", node=["a", "b"]) == [3, 4]
    assert api.values("t", node=["x"]) == [1, 2, 3, 4]
    assert api.values("t", node=[]) == [1, 2, 3, 4]
    assert api.values("t", node=None) == [1, 2, 3, 4]
    body = taken(api.diff("t", from_seq=3, node="A"))
    assert (body["records"], body["next_from_seq"], body["caught_up"]) == ([], 4, True)


def test_the_limit_counts_delivered_records_or_the_cursor_moves(api: Api) -> None:
    api.append("t", [{"data": value, "node": "mine" if value < 10 else "other"} for value in range(12)])
    cursor, found = 0, []
    while True:
        body = taken(api.diff("t", from_seq=cursor, node="mine", limit=1))
        found += [record["data"] for record in body["records"]]
        assert body["next_from_seq"] > cursor
        cursor = body["next_from_seq"]
        if body["caught_up"]:
            break
    assert found == [10, 11]


def test_without_dedupe_node_nothing_is_filtered(api: Api) -> None:
    api.put("t", dedupe_node=False)
    api.append("t", [{"data": 1, "node": "a"}])
    assert api.values("t", node="a") == [1]
    api.put("t", dedupe_node=True)
    assert api.values("t", node="a") == []


# --- Tombstones ------------------------------------------------------------------------------------------


def test_evicted_records_are_told_of_by_a_cap_tombstone(api: Api) -> None:
    api.put("t", cap_records=2)
    api.fill("t", *range(5))
    body = taken(api.diff("t"))
    assert body["tombstone"] == {
        "gap_from": 1,
        "gap_to": 3,
        "reason": "cap",
        "missed_estimate": 3,
        "earliest_seq": 4,
        "head_seq": 5,
    }
    assert [record["$seq"] for record in body["records"]] == [4, 5]
    body = taken(api.diff("t", from_seq=1))
    assert (body["tombstone"]["gap_from"], body["tombstone"]["gap_to"]) == (2, 3)
    assert taken(api.diff("t", from_seq=3))["tombstone"] is None


def test_expired_records_are_told_of_by_a_ttl_tombstone(server: RunningServer, api: Api) -> None:
    api.put("t", ttl_ms=1000)
    api.fill("t", 1, 2)
    server.clock.advance_ms(5000)
    api.fill("t", 3)
    body = taken(api.diff("t"))
    assert (body["tombstone"]["reason"], body["tombstone"]["gap_to"]) == ("ttl", 2)
    assert [record["data"] for record in body["records"]] == [3]


def test_both_floors_give_a_mixed_tombstone(server: RunningServer, api: Api) -> None:
    api.put("t", ttl_ms=1000, cap_records=2)
    api.fill("t", 1, 2, 3)
    server.clock.advance_ms(5000)
    api.fill("t", 4)
    assert taken(api.diff("t"))["tombstone"]["reason"] == "mixed"
    assert taken(api.diff("t", from_seq=1))["tombstone"]["reason"] == "ttl"


def test_a_record_expires_only_after_its_time(server: RunningServer, api: Api) -> None:
    server.clock.freeze()
    api.put("t", ttl_ms=1000)
    api.fill("t", 1)
    server.clock.advance_ms(1000)
    assert api.values("t") == [1]
    server.clock.advance_ms(1)
    assert api.values("t") == []


@pytest.mark.parametrize("from_seq", [4, 100, U64_MAX])
def test_a_cursor_beyond_the_head_restarts_with_a_recreated_tombstone(api: Api, from_seq: int) -> None:
    api.fill("t", 1, 2, 3)
    api.delete("t", before_seq=2)
    body = taken(api.diff("t", from_seq=from_seq))
    assert body["tombstone"] == {
        "gap_from": 1,
        "gap_to": 3,
        "reason": "recreated",
        "missed_estimate": 3,
        "earliest_seq": 2,
        "head_seq": 3,
    }
    assert [record["$seq"] for record in body["records"]] == [2, 3]
    assert body["next_from_seq"] == 3


def test_beyond_the_head_of_an_empty_topic_nothing_is_missed(api: Api) -> None:
    api.put("t")
    body = taken(api.diff("t", from_seq=1))
    assert (body["tombstone"]["gap_from"], body["tombstone"]["gap_to"]) == (1, 0)
    assert (body["tombstone"]["missed_estimate"], body["next_from_seq"], body["caught_up"]) == (0, 0, True)


# --- Long polls ------------------------------------------------------------------------------------------


def test_a_long_poll_is_woken_by_an_append(server: RunningServer, api: Api) -> None:
    api.fill("t", 1)
    reader = server.api()
    answer = server.background(reader, lambda reader: reader.diff("t", from_seq=1, wait_ms=PARKED_MS))
    server.until_parked("t")
    api.fill("t", 2)
    body = taken(answer.result())
    assert ([record["data"] for record in body["records"]], body["next_from_seq"]) == ([2], 2)


def test_many_long_polls_are_woken_together(server: RunningServer, api: Api) -> None:
    api.put("t")
    answers = server.at_once(5, lambda reader, _: reader.diff("t", wait_ms=PARKED_MS))
    server.until_parked("t", 5)
    api.fill("t", "x")
    assert [taken(answer.result())["records"][0]["data"] for answer in answers] == ["x"] * 5


def test_a_long_poll_answers_even_if_everything_new_was_filtered(server: RunningServer, api: Api) -> None:
    api.put("t")
    reader = server.api()
    answer = server.background(reader, lambda reader: reader.diff("t", node="me", wait_ms=PARKED_MS))
    server.until_parked("t")
    api.append("t", node="me")
    body = taken(answer.result())
    assert (body["records"], body["next_from_seq"], body["caught_up"]) == ([], 1, True)


def test_a_long_poll_of_a_topic_that_is_deleted_is_404_at_once(server: RunningServer, api: Api) -> None:
    api.put("t")
    reader = server.api()
    answer = server.background(reader, lambda reader: reader.diff("t", wait_ms=PARKED_MS))
    server.until_parked("t")
    api.drop("t")
    assert_error(answer.result(), 404, "topic_not_found", topic="t")


def test_an_idle_long_poll_answers_empty_at_its_deadline(api: Api) -> None:
    api.fill("t", 1)
    started_s = time.monotonic()
    body = taken(api.diff("t", from_seq=1, wait_ms=60))
    assert time.monotonic() - started_s >= 0.06
    assert (body["records"], body["next_from_seq"], body["caught_up"], body["tombstone"]) == (
        [],
        1,
        True,
        None,
    )


def test_a_long_poll_with_something_to_say_does_not_wait(api: Api) -> None:
    api.put("t", cap_records=1)
    api.fill("t", 1, 2)
    api.put("empty")
    started_s = time.monotonic()
    for topic, from_seq in (("t", 0), ("t", 9), ("empty", 9)):
        body = taken(api.diff(topic, from_seq=from_seq, wait_ms=PARKED_MS))
        assert body["tombstone"] is not None
    taken(api.diff("t", from_seq=1, wait_ms=PARKED_MS))
    assert time.monotonic() - started_s < PARKED_MS / 2000


def test_a_wait_beyond_the_most_is_clamped_and_no_error(server: RunningServer, api: Api) -> None:
    api.put("t")
    reader = server.api()
    answer = server.background(reader, lambda reader: reader.diff("t", wait_ms=U64_MAX))
    server.until_parked("t")
    api.fill("t", 1)
    assert taken(answer.result())["lag"] == 0


def test_a_long_poller_that_goes_away_is_forgotten(server: RunningServer, api: Api) -> None:
    api.put("t")
    reader = server.api()
    answer = server.background(reader, lambda reader: reader.diff("t", wait_ms=PARKED_MS))
    server.until_parked("t")
    reader.http.leave()
    server.until_parked("t", 0)
    assert answer.exception() is not None
    api.fill("t", 1)
    assert api.values("t") == [1]
