"""Section 0.8 over the wire: a repeated write is recognised by its key."""

from __future__ import annotations

import pytest

from tests.support.http_cases import Api, Reply, RunningServer, assert_error, running, taken

SAME = ("first_seq", "last_seq", "seqs", "count", "head_seq")


def append_with_header(api: Api, key: str, **fields: object) -> Reply:
    return api.request("POST", "/v0/topics/t", {"records": [{"data": 1}], **fields}, Idempotency_Key=key)


def test_a_repeat_gives_the_first_answer_and_appends_nothing(api: Api) -> None:
    first = taken(api.append("t", [{"data": 1}, {"data": 2}], idempotency_key="k"), 201)
    api.append("t")
    again = taken(api.append("t", [{"data": "something else"}], idempotency_key="k"))
    assert {field: again[field] for field in SAME} == {field: first[field] for field in SAME}
    assert (again["deduped"], again["created"]) == (True, False)
    assert (first["deduped"], first["created"]) == (False, True)
    assert api.values("t") == [1, 2, 1]


def test_a_repeat_may_suppress_its_seqs(api: Api) -> None:
    api.append("t", idempotency_key="k")
    body = {"records": [{"data": 1}], "idempotency_key": "k"}
    assert "seqs" not in taken(api.request("POST", "/v0/topics/t?return_seqs=false", body))


def test_the_key_may_come_in_a_header_and_that_of_the_body_wins(api: Api) -> None:
    taken(append_with_header(api, "header"), 201)
    assert taken(append_with_header(api, "header"))["deduped"] is True
    assert taken(append_with_header(api, "header", idempotency_key="body"))["deduped"] is False
    assert taken(api.append("t", idempotency_key="body"))["deduped"] is True
    assert taken(append_with_header(api, "header", idempotency_key=None))["deduped"] is True


def test_keys_belong_to_their_topic(api: Api) -> None:
    api.append("t", idempotency_key="k")
    assert taken(api.append("u", idempotency_key="k"), 201)["deduped"] is False


def test_writes_without_a_key_are_never_deduped(api: Api) -> None:
    api.append("t")
    assert taken(api.append("t"))["deduped"] is False


@pytest.mark.parametrize("key", ["x" * 256, "é" * 128])
def test_a_key_may_have_256_bytes(api: Api, key: str) -> None:
    taken(api.append("t", idempotency_key=key), 201)
    assert taken(api.append("t", idempotency_key=key))["deduped"] is True


@pytest.mark.parametrize("key", ["x" * 257, "é" * 129])
def test_a_longer_key_is_refused(api: Api, key: str) -> None:
    assert_error(api.append("t", idempotency_key=key), 400, "invalid_request")
    assert_error(api.state("t"), 404, "topic_not_found")


def test_an_empty_key_is_refused(api: Api) -> None:
    assert_error(api.append("t", idempotency_key=""), 400, "invalid_request")
    assert_error(append_with_header(api, ""), 400, "invalid_request")
    assert_error(api.state("t"), 404, "topic_not_found")


def test_a_longer_key_in_the_header_is_refused_too(api: Api) -> None:
    assert_error(append_with_header(api, "x" * 257), 400, "invalid_request")


def test_a_key_in_the_header_that_is_not_utf_8_is_refused(api: Api) -> None:
    # The standard client writes header text as Latin-1: this is the single byte FF.
    assert_error(append_with_header(api, "\xff"), 400, "invalid_request")


def test_the_key_is_forgotten_after_the_window(server: RunningServer, api: Api) -> None:
    api.put("t", idempotency_window_ms=5000)
    api.append("t", idempotency_key="k")
    server.clock.advance_ms(4000)
    assert taken(api.append("t", idempotency_key="k"))["deduped"] is True
    server.clock.advance_ms(2000)
    assert taken(api.append("t", idempotency_key="k"))["seqs"] == [2]


def test_the_window_is_two_minutes_by_default(server: RunningServer, api: Api) -> None:
    api.append("t", idempotency_key="k")
    server.clock.advance_ms(119_000)
    assert taken(api.append("t", idempotency_key="k"))["deduped"] is True
    server.clock.advance_ms(2000)
    assert taken(api.append("t", idempotency_key="k"))["deduped"] is False


def test_a_refused_write_leaves_no_key_behind(api: Api) -> None:
    api.put("t", discard="reject", cap_records=1)
    api.append("t")
    assert_error(api.append("t", idempotency_key="k"), 422, "topic_full")
    api.delete("t", before_seq=2)
    assert taken(api.append("t", idempotency_key="k"))["deduped"] is False


def test_a_repeat_is_recognised_before_the_caps_are_looked_at() -> None:
    with running(max_total_bytes=3) as server:
        api = server.api()
        api.put("t", discard="reject", cap_records=1)
        taken(api.append("t", [{"data": "x"}], idempotency_key="k"))
        assert taken(api.append("t", [{"data": "x"}], idempotency_key="k"))["deduped"] is True


def test_the_shape_of_a_repeat_is_still_checked(api: Api) -> None:
    api.append("t", idempotency_key="k")
    assert_error(api.append("t", [], idempotency_key="k"), 400, "invalid_request")


@pytest.mark.parametrize("durability", ["ephemeral", "fsync"])
def test_concurrent_writers_with_one_key_produce_one_batch(durability: str, tmp_path: object) -> None:
    with running(memory=False, data_dir=str(tmp_path)) as server:
        server.api().put("t", durability=durability)
        replies = server.at_once(8, lambda api, _: api.append("t", [{"data": 1}] * 3, idempotency_key="k"))
        bodies = [taken(reply.result()) for reply in replies]
        assert sorted(body["deduped"] for body in bodies) == [False] + [True] * 7
        assert all(body["seqs"] == [1, 2, 3] for body in bodies)
        assert taken(server.api().state("t"))["head_seq"] == 3
