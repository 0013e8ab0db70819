"""GET latest and GET histogram over the wire: shapes, codes and rules."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.http_cases import Api, Reply, assert_error, taken

ROOT = "/v0/topics/t"


def append(api: Api, *tags: str | None, **config: Any) -> None:
    records = [{"data": number, "tag": tag} for number, tag in enumerate(tags)]
    body: dict[str, Any] = {"records": records, "config": config} if config else {"records": records}
    assert api.request("POST", ROOT, body).status in (200, 201)


def latest(api: Api, query: str) -> list[tuple[str, int]]:
    found = taken(api.request("GET", f"{ROOT}/latest?{query}"))
    assert found["topic"] == "t"
    return [(record["$tag"], record["$seq"]) for record in found["records"]]


def test_the_newest_live_record_of_each_tag_is_given_by_tag(api: Api) -> None:
    append(api, "b", "a", "a", "b", None, "ab", cap_records=100)
    assert latest(api, "tag=b&tag=a") == [("a", 3), ("b", 4)]
    assert latest(api, "tag=none&tag=b") == [("b", 4)]
    assert latest(api, "tag=none") == []
    assert latest(api, "prefix=a") == [("a", 3), ("ab", 6)]
    assert latest(api, "prefix=") == [("a", 3), ("ab", 6), ("b", 4)]
    page = taken(api.request("GET", f"{ROOT}/latest?prefix=&limit=2"))
    assert [record["$tag"] for record in page["records"]] == ["a", "ab"]
    assert latest(api, f"prefix=&cursor={page['next_cursor']}") == [("b", 4)]
    assert set(page) == {"topic", "records", "next_cursor", "performance"}


def test_latest_is_exact_after_deletes_and_eviction(api: Api) -> None:
    append(api, "a", "b", "a", "c", cap_records=4)
    taken(api.request("POST", f"{ROOT}/delete", {"before_seq": 4, "match": "a"}))
    assert latest(api, "tag=a&tag=b&tag=c") == [("b", 2), ("c", 4)]
    append(api, "c", "c", "c", "d")
    assert latest(api, "prefix=") == [("c", 7), ("d", 8)]


@pytest.mark.parametrize(
    "query", ["", "tag=a&prefix=b", "limit=0&tag=a", "limit=1001&tag=a", "limit=x&tag=a", "cursor=x&tag=a"]
)
def test_a_question_for_the_latest_that_makes_no_sense_is_refused(api: Api, query: str) -> None:
    append(api, "a")
    assert_error(api.request("GET", f"{ROOT}/latest?{query}"), 400, "invalid_request")


def histogram(api: Api, query: str = "") -> dict[str, Any]:
    return taken(api.request("GET", f"{ROOT}/histogram{query}"))


def test_live_records_are_counted_by_time(api: Api) -> None:
    append(api, *["x"] * 10, cap_records=100)
    records = taken(api.request("POST", f"{ROOT}/diff", {}))["records"]
    first, last = records[0]["$ts"], records[-1]["$ts"]
    found = histogram(api, f"?from_ms={first}&to_ms={last + 1}&buckets=1")
    assert found["buckets"] == [{"from_ms": first, "records": 10, "bytes": 10}]
    assert (found["from_ms"], found["to_ms"]) == (first, last + 1)
    found = histogram(api, f"?from_ms={first - 1000}&to_ms={last + 1001}&buckets=1000")
    assert len(found["buckets"]) == 1000
    assert sum(bucket["records"] for bucket in found["buckets"]) == 10
    starts = [bucket["from_ms"] for bucket in found["buckets"]]
    assert starts == sorted(starts)
    taken(api.request("POST", f"{ROOT}/delete", {"before_seq": 4}))
    assert sum(bucket["records"] for bucket in histogram(api)["buckets"]) == 7
    assert histogram(api, f"?from_ms=0&to_ms={first}&buckets=2")["buckets"][1]["records"] == 0


@pytest.mark.parametrize("query", ["buckets=0", "buckets=1001", "from_ms=5&to_ms=5", "from_ms=x", "to_ms=-1"])
def test_a_histogram_that_makes_no_sense_is_refused(api: Api, query: str) -> None:
    append(api, "a")
    assert_error(api.request("GET", f"{ROOT}/histogram?{query}"), 400, "invalid_request")


def test_an_absent_topic_has_neither(api: Api) -> None:
    replies: list[Reply] = [
        api.request("GET", f"{ROOT}/latest?tag=a"),
        api.request("GET", f"{ROOT}/histogram"),
    ]
    for reply in replies:
        assert_error(reply, 404, "topic_not_found")


def test_an_empty_topic_has_empty_buckets(api: Api) -> None:
    taken(api.request("PUT", ROOT, {}), 201)
    found = histogram(api, "?buckets=3")
    assert [bucket["records"] for bucket in found["buckets"]] == [0, 0, 0]
    assert latest(api, "prefix=") == []
