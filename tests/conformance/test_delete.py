"""Section 5 over the wire: records deleted by seq and by tag."""

from __future__ import annotations

import pytest

from tests.support.http_cases import Api, assert_error, taken

TAGS = ("a", "ab", "abc", "b", None, "*", "a*", "A", "é")


def fill_tags(api: Api) -> None:
    records = [{"data": place} | ({} if tag is None else {"tag": tag}) for place, tag in enumerate(TAGS, 1)]
    api.append("t", records)


def test_the_reply_says_what_is_left(api: Api) -> None:
    api.fill("t", "a", "b", "c")
    body = taken(api.delete("t", before_seq=3))
    assert set(body.pop("performance")) >= {"server_total_ms"}
    assert body == {"topic": "t", "deleted": 2, "earliest_seq": 3, "head_seq": 3, "count": 1, "bytes": 3}


def test_only_what_this_call_removed_is_counted(api: Api) -> None:
    api.fill("t", 1, 2, 3)
    assert taken(api.delete("t", before_seq=3))["deleted"] == 2
    assert taken(api.delete("t", before_seq=3))["deleted"] == 0
    assert taken(api.delete("t", before_seq=4))["deleted"] == 1


@pytest.mark.parametrize("before_seq", [0, 1])
def test_nothing_is_below_the_first_record(api: Api, before_seq: int) -> None:
    api.fill("t", 1)
    assert taken(api.delete("t", before_seq=before_seq))["deleted"] == 0


def test_a_delete_reaches_at_most_to_the_head(api: Api) -> None:
    api.fill("t", 1, 2)
    body = taken(api.delete("t", before_seq=2**64 - 1))
    assert (body["deleted"], body["earliest_seq"], body["head_seq"]) == (2, 3, 2)
    assert taken(api.append("t"))["seqs"] == [3]
    assert api.seqs("t") == [3]


@pytest.mark.parametrize(
    ("match", "removed"),
    [
        (["tag", "Eq", "a"], {1}),
        ("a", {1}),
        (["tag", "Glob", "a*"], {1, 2, 3, 7}),
        ("a*", {1, 2, 3, 7}),
        (["tag", "Eq", "a*"], {7}),
        (["tag", "Glob", "*"], {1, 2, 3, 4, 6, 7, 8, 9}),
        ("*", {1, 2, 3, 4, 6, 7, 8, 9}),
        (["tag", "Glob", "**"], {6}),
        ("**", {6}),
        (["tag", "Glob", "a**"], {7}),
        ("é", {9}),
        ("zzz", set()),
        (["tag", "Eq", ""], set()),
        ("", set()),
    ],
)
def test_a_predicate_selects_by_the_bytes_of_the_tag(api: Api, match: object, removed: set[int]) -> None:
    fill_tags(api)
    assert taken(api.delete("t", match=match))["deleted"] == len(removed)
    assert set(api.seqs("t")) == set(range(1, len(TAGS) + 1)) - removed


@pytest.mark.parametrize(
    "match",
    [
        [],
        ["tag"],
        ["tag", "Eq"],
        ["tag", "Eq", "a", "b"],
        ["node", "Eq", "a"],
        ["tag", "eq", "a"],
        ["tag", "Ne", "a"],
        ["tag", "Glob", "a"],
        ["tag", "Glob", "*a"],
        ["tag", "Glob", ""],
        ["tag", "Eq", 5],
        ["tag", "Eq", None],
        ["tag", "Eq", ["a"]],
        [["tag", "Eq", "a"]],
        5,
        True,
        {"tag": "a"},
    ],
)
def test_any_other_predicate_is_refused(api: Api, match: object) -> None:
    fill_tags(api)
    assert_error(api.delete("t", match=match), 400, "invalid_request")
    assert taken(api.state("t"))["count"] == len(TAGS)


@pytest.mark.parametrize(
    "body", [{}, {"before_seq": None}, {"match": None}, {"before_seq": None, "match": None}]
)
def test_a_delete_of_nothing_in_particular_is_refused(api: Api, body: dict[str, object]) -> None:
    api.fill("t", 1)
    assert_error(api.delete("t", **body), 400, "invalid_request")


@pytest.mark.parametrize("value", [-1, 0.5, 2**64, "1", True, []])
def test_a_seq_that_is_no_u64_is_refused(api: Api, value: object) -> None:
    api.fill("t", 1)
    assert_error(api.delete("t", before_seq=value), 400, "invalid_request")


def test_both_conditions_remove_the_intersection_only(api: Api) -> None:
    fill_tags(api)
    body = taken(api.delete("t", before_seq=3, match="a*"))
    assert (body["deleted"], body["earliest_seq"]) == (2, 3)
    assert api.seqs("t") == [3, 4, 5, 6, 7, 8, 9]
    assert taken(api.delete("t", before_seq=6, match="b"))["earliest_seq"] == 3
    assert api.seqs("t") == [3, 5, 6, 7, 8, 9]


def test_later_records_with_the_tag_survive(api: Api) -> None:
    api.append("t", [{"data": 1, "tag": "x"}])
    api.delete("t", match="x")
    api.append("t", [{"data": 2, "tag": "x"}])
    assert api.values("t") == [2]


def test_a_delete_moves_the_front_but_leaves_no_tombstone(api: Api) -> None:
    api.append("t", [{"data": 1, "tag": "x"}, {"data": 2, "tag": "x"}, {"data": 3}])
    assert taken(api.delete("t", match="x"))["earliest_seq"] == 3
    assert taken(api.diff("t"))["tombstone"] is None


def test_a_hole_in_the_middle_does_not_move_the_front(api: Api) -> None:
    api.append("t", [{"data": 1}, {"data": 2, "tag": "x"}, {"data": 3}])
    body = taken(api.delete("t", match="x"))
    assert (body["earliest_seq"], body["count"]) == (1, 2)


def test_a_delete_never_creates(api: Api) -> None:
    assert_error(api.delete("t", before_seq=1), 404, "topic_not_found", topic="t")
    assert_error(api.state("t"), 404, "topic_not_found")


def test_an_empty_body_is_no_delete(api: Api) -> None:
    api.fill("t", 1)
    reply = api.request("POST", "/v0/topics/t/delete", b"", Content_Type=None)
    assert_error(reply, 415, "unsupported_media_type")
    assert_error(api.request("POST", "/v0/topics/t/delete", b""), 400, "invalid_request")
