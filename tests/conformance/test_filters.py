"""Filters and times of reads over the wire: what operators find, what is refused, how far a call looks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.http_cases import Api, assert_error, taken

COUNT = 12


def stored(api: Api) -> None:
    records = [
        {
            "data": {"a": {"b": [n]}, "s": f"é{n}", "even": n % 2 == 0, "none": None},
            "meta": {"k": n},
            "tag": f"x{n % 3}" if n % 4 else None,
            "node": f"n{n % 2}" if n % 5 else None,
        }
        for n in range(COUNT)
    ]
    api.append("t", records)


@pytest.mark.parametrize(
    ("filter", "matches"),
    [
        (["tag", "Eq", "x1"], lambda n: n % 4 and n % 3 == 1),
        (["tag", "Glob", "x*"], lambda n: n % 4),
        (["tag", "In", ["x0", "x2"]], lambda n: n % 4 and n % 3 != 1),
        (["node", "Eq", "n1"], lambda n: n % 5 and n % 2),
        (["node", "Glob", "n*"], lambda n: n % 5),
        (["node", "In", ["n0"]], lambda n: n % 5 and n % 2 == 0),
        (["meta.k", "Ge", 5], lambda n: n >= 5),
        (["meta.k", "In", [1, 2.0, 3e0]], lambda n: n in (1, 2, 3)),
        (["data.a.b.0", "Lt", 3], lambda n: n < 3),
        (["data.a.b.0", "Le", 3.0], lambda n: n <= 3),
        (["data.a.b.0", "Eq", 3.0], lambda n: n == 3),
        (["data.a.b.1", "Exists", True], lambda n: False),
        (["data.a.b.1", "Exists", False], lambda n: True),
        (["data.a.b.1", "Ne", 5], lambda n: True),
        (["data.a.b.1", "Lt", 5], lambda n: False),
        (["data.s", "Glob", "é1*"], lambda n: n in (1, 10, 11)),
        (["data.s", "Gt", "é5"], lambda n: 6 <= n <= 9),
        (["data.s", "Ne", "é1"], lambda n: n != 1),
        (["data.s", "Lt", 5], lambda n: False),
        (["data.even", "Eq", True], lambda n: n % 2 == 0),
        (["data.none", "Eq", None], lambda n: True),
        (["data.none", "Exists", True], lambda n: True),
        (["data.absent", "Ne", None], lambda n: True),
        (["not", ["tag", "Eq", "x1"]], lambda n: not (n % 4 and n % 3 == 1)),
        (
            ["and", ["meta.k", "Gt", 2], ["or", ["data.even", "Eq", False], ["tag", "Eq", "x0"]]],
            lambda n: n > 2 and (n % 2 or (n % 4 and n % 3 == 0)),
        ),
    ],
)
def test_each_operator_finds_what_it_says(api: Api, filter: list[Any], matches: Any) -> None:
    stored(api)
    assert [seq - 1 for seq in api.seqs("t", filter=filter)] == [n for n in range(COUNT) if matches(n)]


@pytest.mark.parametrize(
    "filter",
    [
        *(
            ["tag", "Ne", "x"],
            ["tag", "Eq"],
            ["tag", "Glob", "x"],
            ["tag", "In", "x"],
            ["node", "Exists", True],
        ),
        *(["foo", "Eq", 1], ["meta.", "Eq", 1], ["data.a", "Exists", 1], ["meta.k", "In", 5]),
        *(["meta.k", "Glob", 5], ["and"], ["or"], ["not"], ["xor", ["tag", "Eq", "x"]], [["tag", "Eq", "x"]]),
        *({"a": 1}, "tag", True, 5),
    ],
)
def test_a_wrong_filter_is_400_wherever_filters_are_taken(api: Api, filter: object) -> None:
    stored(api)
    api.put("q", type="queue")
    for method, path, body in (
        ("POST", "/v0/topics/t/diff", {"filter": filter}),
        ("PUT", "/v0/topics/t/consumers/c", {"filter": filter}),
        ("POST", "/v0/watch", {"topics": {"t": {"filter": filter}}}),
        ("POST", "/v0/topics/q/jobs/cancel", {"filter": filter}),
        ("POST", "/v0/topics/q/purge", {"filter": filter}),
        ("POST", "/v0/topics/t/redrive", {"filter": filter}),
    ):
        assert_error(api.request(method, path, body), 400, "invalid_request")


def test_numbers_compare_as_exact_decimals(api: Api) -> None:
    api.append_text("t", "9007199254740993")
    api.append_text("t", "9007199254740992.0")
    api.append_text("t", "0.1")
    api.append_text("t", "1e-400")
    raw = b'{"filter":["data","Eq",9007199254740993]}'
    assert [each["$seq"] for each in taken(api.request("POST", "/v0/topics/t/diff", raw))["records"]] == [1]
    assert api.seqs("t", filter=["data", "Eq", 0.1]) == [3]
    assert api.seqs("t", filter=["data", "Gt", 0]) == [1, 2, 3, 4]


def test_one_call_looks_at_100_000_records_and_says_that_there_are_more(api: Api) -> None:
    for _ in range(11):
        api.append("t", [{"data": 0}] * 10_000)
    api.append("t", [{"data": 1}])
    first = taken(api.diff("t", filter=["data", "Eq", 1]))
    assert (first["records"], first["next_from_seq"], first["caught_up"]) == ([], 100_000, False)
    rest = taken(api.diff("t", filter=["data", "Eq", 1], from_seq=first["next_from_seq"]))
    assert ([each["$seq"] for each in rest["records"]], rest["caught_up"]) == ([110_001], True)


@pytest.mark.parametrize(
    "options",
    [
        *({"from_time_ms": -1}, {"from_time_ms": "1"}, {"from_time_ms": 1, "from_seq": 0}),
        *(
            {"from_time_ms": 1, "tail": True},
            {"consumer": "c", "from_seq": 0},
            {"consumer": "c", "tail": True},
        ),
        *({"consumer": "c", "from_time_ms": 1}, {"consumer": 5}),
    ],
)
def test_a_watch_begins_at_one_place_only(api: Api, options: dict[str, object]) -> None:
    stored(api)
    api.request("PUT", "/v0/topics/t/consumers/c")
    assert_error(api.request("POST", "/v0/watch", {"topics": {"t": options}}), 400, "invalid_request")


def test_a_watch_tells_where_it_begins(api: Api) -> None:
    stored(api)
    ts = taken(api.diff("t"))["records"][4]["$ts"]
    api.request("PUT", "/v0/topics/t/consumers/c", {"start": {"seq": 8}})
    before = [each["$seq"] for each in taken(api.diff("t"))["records"] if each["$ts"] < ts]
    for options, from_seq in (({"consumer": "c"}, 7), ({"from_time_ms": ts}, len(before)), ({}, 0)):
        told = taken(api.request("POST", "/v0/watch", {"topics": {"t": options}}))["topics"]["t"]
        assert (told["from_seq"], told["head_seq"], told["earliest_seq"]) == (from_seq, COUNT, 1)
    reply = api.request("POST", "/v0/watch", {"topics": {"t": {"consumer": "none"}}})
    assert_error(reply, 404, "consumer_not_found", name="none")


def test_a_name_that_ends_in_a_star_watches_every_topic_of_the_prefix(api: Api) -> None:
    for name in ("a.1", "a.2", "b"):
        api.put(name)
    told = taken(api.request("POST", "/v0/watch", {"topics": {"a.*": {}, "b": {"tail": True}}}))
    assert sorted(told["topics"]) == ["a.1", "a.2", "b"]
    assert taken(api.request("POST", "/v0/watch", {"topics": {"none.*": {}}}))["topics"] == {}
    reply = api.request("POST", "/v0/watch", {"topics": {"a.*": {"consumer": "c"}}})
    assert_error(reply, 400, "invalid_request")
