"""Section 6 over the wire: routers, what they copy, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.http_cases import Api, RunningServer, assert_error, running, taken

DEFINITION: dict[str, Any] = {
    "source": "a",
    "dest": "b",
    "preserve_node": True,
    "preserve_tag": True,
    "filter": None,
    "allow_cycle": False,
    "guarantee": "at_least_once",
}


def shown(body: dict[str, Any]) -> dict[str, Any]:
    assert "server_total_ms" in body.pop("performance")
    return body


def records(api: Api, topic: str, **fields: Any) -> list[dict[str, Any]]:
    return list(taken(api.diff(topic, include_tags=True, **fields))["records"])


# --- Definitions -----------------------------------------------------------------------------------------


def test_a_new_router_is_reported_whole_and_creates_its_topics(api: Api) -> None:
    reply = api.put_router("r", "a", "b")
    assert shown(taken(reply, 201)) == {"router": "r", "created": True, **DEFINITION}
    assert [topic["topic"] for topic in taken(api.topics())["topics"]] == ["a", "b"]


def test_the_same_router_again_is_no_new_one(api: Api) -> None:
    api.put_router("r", "a", "b")
    assert shown(taken(api.put_router("r", "a", "b"))) == {"router": "r", "created": False, **DEFINITION}


def test_a_router_is_reported_with_what_it_has_copied(api: Api) -> None:
    api.put_router("r", "a", "b")
    api.fill("a", 1, 2)
    assert shown(taken(api.router("r"))) == {"router": "r", **DEFINITION, "forwarded_total": 2}


def test_a_changed_router_keeps_its_place_and_its_total(api: Api) -> None:
    api.put_router("r", "a", "b")
    api.fill("a", 1, 2)
    assert taken(api.router("r"))["forwarded_total"] == 2
    taken(api.put_router("r", "a", "b", preserve_tag=False, guarantee="exactly_once"))
    api.fill("a", 3)
    assert api.values("b") == [1, 2, 3]
    assert taken(api.router("r"))["forwarded_total"] == 3


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (None, None),
        ("x", ["tag", "Eq", "x"]),
        ("x*", ["tag", "Glob", "x*"]),
        (["tag", "Glob", "x*"], ["tag", "Glob", "x*"]),
    ],
)
def test_the_filter_is_told_in_its_full_form(api: Api, sent: object, told: object) -> None:
    assert taken(api.put_router("r", "a", "b", filter=sent), 201)["filter"] == told


@pytest.mark.parametrize("name", ["r", "a>b", "R.1_x:y-z", "r" * 255])
def test_router_names_may_have_an_arrow(api: Api, name: str) -> None:
    assert taken(api.put_router(name, "a", "b"), 201)["router"] == name
    assert taken(api.router(name))["router"] == name
    assert taken(api.drop_router(name))["deleted"] is True


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"source": "a"},
        {"dest": "b"},
        {"source": "a", "dest": "a"},
        {"source": "a>b", "dest": "b"},
        {"source": "a", "dest": ""},
        {"source": 1, "dest": "b"},
        {"source": "a", "dest": "b", "preserve_node": "yes"},
        {"source": "a", "dest": "b", "guarantee": "maybe"},
        {"source": "a", "dest": "b", "filter": ["node", "Lt", "x"]},
        {"source": "a", "dest": "b", "filter": ["tag", "Ne", "x"]},
        {"source": "a", "dest": "b", "filter": []},
        {"source": "a", "dest": "b", "filter": ["tag", "Glob", "x"]},
        {"source": "a", "dest": "b", "filter": 7},
    ],
)
def test_what_makes_no_sense_is_refused_and_leaves_no_topic(api: Api, body: object) -> None:
    assert_error(api.request("PUT", "/v0/routers/r", body), 400, "invalid_request")
    assert taken(api.topics())["topics"] == []


@pytest.mark.parametrize("name", ["-r", "r%20s", "r" * 256, "%3E"])
def test_a_bad_router_name_is_refused(api: Api, name: str) -> None:
    body = {"source": "a", "dest": "b"}
    assert_error(api.request("PUT", f"/v0/routers/{name}", body), 400, "invalid_request")


def test_an_absent_destination_may_be_required(api: Api) -> None:
    assert_error(api.put_router("r", "a", "b", create_dest=False), 404, "topic_not_found", topic="b")
    assert taken(api.topics())["topics"] == []
    api.fill("b", 1)
    assert taken(api.put_router("r", "a", "b", create_dest=False), 201)["created"] is True


def test_a_second_source_for_a_destination_is_refused(api: Api) -> None:
    api.put_router("r", "a", "b")
    reply = api.put_router("s", "c", "b")
    assert_error(reply, 409, "topic_exists_incompatible", reason="router_dest_fan_in")
    assert [topic["topic"] for topic in taken(api.topics())["topics"]] == ["a", "b"]


def test_two_routers_may_have_the_same_ends(api: Api) -> None:
    api.put_router("r", "a", "b", filter="x")
    taken(api.put_router("s", "a", "b"), 201)
    api.append("a", [{"data": 1, "tag": "x"}, {"data": 2}])
    assert sorted(api.values("b"), key=str) == [1, 1, 2]


def test_the_ends_of_a_router_cannot_be_moved(api: Api) -> None:
    api.put_router("r", "a", "b")
    for source, dest in (("a", "c"), ("c", "b")):
        reply = api.put_router("r", source, dest)
        assert_error(
            reply,
            409,
            "topic_exists_incompatible",
            reason="router_repoint_forbidden",
            existing_source="a",
            existing_dest="b",
        )


def test_a_cycle_is_refused_and_named(api: Api) -> None:
    api.put_router("ab", "a", "b")
    api.put_router("bc", "b", "c")
    assert_error(api.put_router("ca", "c", "a"), 409, "router_cycle", cycle=["c", "a", "b", "c"])
    assert_error(api.put_router("ba", "b", "a"), 409, "router_cycle", cycle=["b", "a", "b"])
    taken(api.put_router("ca", "c", "a", allow_cycle=True), 201)


def test_a_cycle_is_cut_by_the_hop_limit(api: Api) -> None:
    api.put_router("ab", "a", "b")
    api.put_router("ba", "b", "a", allow_cycle=True)
    api.fill("a", 1)
    assert api.values("b") == [1] * 4
    assert api.values("a") == [1] * 5
    assert taken(api.router("ab"))["forwarded_total"] == 4


def test_the_cap_of_routers_comes_before_any_topic(api: Api) -> None:
    with running(max_routers=1) as server:
        other = server.api()
        taken(other.put_router("r", "a", "b"), 201)
        assert_error(other.put_router("s", "c", "d"), 429, "throttled", limit="max_routers", max=1)
        assert len(taken(other.topics())["topics"]) == 2
        taken(other.put_router("r", "a", "b"))
        taken(other.drop_router("r"))
        taken(other.put_router("s", "c", "d"), 201)


def test_an_unknown_router_is_not_found(api: Api) -> None:
    assert_error(api.router("r"), 404, "router_not_found", router="r")
    assert shown(taken(api.drop_router("r"))) == {"router": "r", "deleted": False}


def test_a_deleted_router_copies_no_more_and_its_copies_stay(api: Api) -> None:
    api.put_router("r", "a", "b")
    api.fill("a", 1)
    assert api.values("b") == [1]
    assert shown(taken(api.drop_router("r"))) == {"router": "r", "deleted": True}
    api.fill("a", 2)
    assert api.values("b") == [1]


def test_routers_are_listed_by_name_in_pages(api: Api) -> None:
    for number in range(5):
        api.put_router(f"r{number}", "a", f"d{number}")
    api.put_router("x", "d0", "y")
    first = taken(api.routers(prefix="r", page_size=3))
    assert [router["router"] for router in first["routers"]] == ["r0", "r1", "r2"]
    assert first["routers"][0] == {
        "router": "r0",
        "source": "a",
        "dest": "d0",
        "guarantee": "at_least_once",
        "forwarded_total": 0,
    }
    rest = taken(api.routers(prefix="r", page_size=3, cursor=first["next_cursor"]))
    assert [router["router"] for router in rest["routers"]] == ["r3", "r4"]
    assert "next_cursor" not in rest
    by_end = [taken(api.routers(**query))["routers"] for query in ({"source": "d0"}, {"dest": "d2"})]
    assert [[router["router"] for router in found] for found in by_end] == [["x"], ["r2"]]
    assert_error(api.routers(cursor="%%%"), 400, "invalid_request")


def test_deleting_a_topic_deletes_the_routers_at_its_ends(api: Api) -> None:
    api.put_router("z", "a", "b")
    api.put_router("y", "b", "c")
    api.put_router("x", "c", "d")
    assert taken(api.drop("b"))["routers_removed"] == ["y", "z"]
    assert [router["router"] for router in taken(api.routers())["routers"]] == ["x"]
    assert taken(api.drop("b"))["routers_removed"] == []


# --- Copies ----------------------------------------------------------------------------------------------


def test_copying_begins_behind_the_head(api: Api) -> None:
    api.fill("a", 1, 2)
    api.put_router("r", "a", "b")
    api.fill("a", 3)
    assert [(record["$seq"], record["data"]) for record in records(api, "b")] == [(1, 3)]


def test_a_read_right_after_the_write_sees_the_copy(api: Api) -> None:
    api.put_router("r", "a", "b")
    api.put_router("s", "b", "c")
    for value in range(20):
        api.fill("a", value)
        assert taken(api.state("c"))["head_seq"] == value + 1
        assert api.values("c")[-1] == value


def test_a_copy_carries_everything(api: Api) -> None:
    api.put_router("r", "a", "b")
    api.append("a", [{"data": {"k": 1}, "tag": "t", "node": "n", "meta": {"m": [1]}}])
    (copy,) = records(api, "b")
    assert copy.pop("$ts") > 0
    assert copy == {"$seq": 1, "$node": "n", "$tag": "t", "meta": {"m": [1]}, "data": {"k": 1}}


def test_node_and_tag_may_be_dropped(api: Api) -> None:
    api.put_router("r", "a", "b", preserve_node=False, preserve_tag=False)
    api.append("a", [{"data": 1, "tag": "t", "node": "n"}])
    (copy,) = records(api, "b")
    assert set(copy) == {"$seq", "$ts", "data"}


def test_a_filter_takes_only_matching_tags(api: Api) -> None:
    api.put_router("r", "a", "b", filter="x*")
    api.append("a", [{"data": place, "tag": tag} for place, tag in enumerate(("x", "y", "x:1"))])
    api.append("a", [{"data": 9}])
    assert api.values("b") == [0, 2]
    assert api.seqs("b") == [1, 2]


def test_direct_writes_to_a_destination_are_allowed(api: Api) -> None:
    api.put_router("r", "a", "b")
    api.fill("a", 1)
    api.fill("b", "own")
    api.fill("a", 2)
    assert sorted(map(str, api.values("b"))) == ["1", "2", "own"]
    assert api.seqs("b") == [1, 2, 3]


def test_exactly_once_copies_say_where_they_are_from(api: Api) -> None:
    api.put_router("r", "a", "b", guarantee="exactly_once")
    api.append("a", [{"data": 1, "meta": {"own": True}}])
    (copy,) = records(api, "b")
    mark = copy["meta"].pop("_topics_router")
    assert copy["meta"] == {"own": True}
    key = f"router:r:{mark['source_topic_id']}:{mark['source_epoch']}:1"
    assert (mark["idempotency_key"], mark["router"], mark["source_topic"]) == (key, "r", "a")
    assert mark["source_seq"] == 1


def test_a_full_meta_moves_aside(api: Api) -> None:
    api.put_router("r", "a", "b", guarantee="exactly_once")
    meta = {f"k{number}": number for number in range(64)}
    api.append("a", [{"data": 1, "meta": meta}])
    (copy,) = records(api, "b")
    assert set(copy["meta"]) == {"_topics_router", "_topics_original_meta"}
    assert copy["meta"]["_topics_original_meta"] == meta


def test_a_known_key_is_not_copied_again(api: Api) -> None:
    api.put_router("r", "a", "b", guarantee="exactly_once")
    api.fill("a", 1)
    (copy,) = records(api, "b")
    mark = copy["meta"]["_topics_router"]
    forged = {**mark, "idempotency_key": mark["idempotency_key"][:-1] + "2"}
    api.append("b", [{"data": "known", "meta": {"_topics_router": forged}}])
    api.fill("a", 2, 3)
    assert api.values("b") == [1, "known", 3]


def test_a_full_destination_holds_its_router_back(api: Api) -> None:
    api.put("b", cap_records=2, discard="reject")
    api.put_router("r", "a", "b")
    api.fill("a", 1, 2, 3, 4)
    assert api.values("b") == [1, 2]
    assert taken(api.router("r"))["forwarded_total"] == 2
    taken(api.delete("b", before_seq=2))
    assert api.values("b") == [2, 3]
    taken(api.delete("b", before_seq=9))
    assert api.values("b") == [4]


def test_a_destination_that_evicts_always_takes_copies(api: Api) -> None:
    api.put("b", cap_records=2)
    api.put_router("r", "a", "b")
    api.fill("a", 1, 2, 3)
    body = taken(api.diff("b"))
    assert [record["data"] for record in body["records"]] == [2, 3]
    assert body["tombstone"]["reason"] == "cap"


def test_what_the_source_lost_is_a_hole_that_is_told(api: Api) -> None:
    api.put("a", cap_records=2)
    api.put_router("r", "a", "b")
    api.fill("b", "own")
    api.fill("a", 1, 2, 3, 4, 5)
    first = taken(api.diff("b"))
    assert [record["data"] for record in first["records"]] == ["own"]
    assert (first["tombstone"], first["next_from_seq"], first["caught_up"]) == (None, 1, False)
    then = taken(api.diff("b", from_seq=1))
    gap = then["tombstone"]
    assert (gap["gap_from"], gap["gap_to"], gap["reason"], gap["missed_estimate"]) == (2, 4, "source_trim", 3)
    assert [(record["$seq"], record["data"]) for record in then["records"]] == [(5, 4), (6, 5)]
    assert taken(api.router("r"))["forwarded_total"] == 5
    taken(api.delete("b", before_seq=2))
    gap = taken(api.diff("b"))["tombstone"]
    assert (gap["gap_from"], gap["gap_to"], gap["reason"]) == (1, 4, "source_trim")


def test_deleted_source_records_are_passed_over(api: Api) -> None:
    api.put("b", cap_records=1, discard="reject")
    api.put_router("r", "a", "b")
    api.fill("a", 1, 2, 3)
    assert api.values("b") == [1]
    taken(api.delete("a", before_seq=3))
    taken(api.delete("b", before_seq=2))
    body = taken(api.diff("b"))
    assert ([record["data"] for record in body["records"]], body["tombstone"]) == ([3], None)
    assert api.seqs("b") == [2]


def test_deleting_the_source_leaves_the_copies(api: Api) -> None:
    api.put_router("r", "a", "b")
    api.fill("a", 1, 2)
    assert api.values("b") == [1, 2]
    taken(api.delete("a", before_seq=9))
    assert api.values("b") == [1, 2]
    taken(api.drop("a"))
    assert api.values("b") == [1, 2]


def test_a_record_that_was_not_copied_before_its_topic_went_is_copied(api: Api) -> None:
    api.put_router("r", "a", "b")
    api.fill("a", 1)
    taken(api.drop("a"))
    assert api.values("b") == [1]


def test_the_age_of_a_copy_counts_from_its_own_time(server: RunningServer, api: Api) -> None:
    server.clock.freeze()
    api.put("b", ttl_ms=100, cap_records=1, discard="reject")
    api.put_router("r", "a", "b")
    api.fill("a", 1, 2)
    assert api.values("b") == [1]
    server.clock.advance_ms(101)
    assert api.values("b") == [2]
    server.clock.advance_ms(99)
    assert api.values("b") == [2]


def test_a_long_poll_on_a_destination_is_woken_by_the_source(server: RunningServer, api: Api) -> None:
    api.put_router("r", "a", "b")
    waiting = server.background(server.api(), lambda other: other.diff("b", wait_ms=20_000))
    server.until_parked("b")
    api.fill("a", 1)
    assert [record["data"] for record in taken(waiting.result(20))["records"]] == [1]


def test_metrics_count_routers_and_their_lag(api: Api) -> None:
    api.put("b", cap_records=1, discard="reject")
    api.put_router("r>1", "a", "b")
    api.fill("a", 1, 2, 3)
    api.values("b")
    assert taken(api.request("GET", "/v0/metrics", accept="application/json"))["routers"] == 1
    text = api.request("GET", "/v0/metrics").text
    assert "topics_routers 1.0\n" in text
    assert 'topics_router_lag{router="r>1"} 2.0\n' in text
    assert 'topics_router_forwarded_total{router="r>1"} 1.0\n' in text


# --- On disk ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_a_copy_is_read_at_once_and_after_a_restart(tmp_path: Path, durability: str) -> None:
    data_dir = str(tmp_path / "data")
    with running(data_dir=data_dir, memory=False) as server:
        api = server.api()
        api.put("b", durability=durability)
        api.put_router("r", "a", "b")
        api.put_router("s", "b", "c", guarantee="exactly_once")
        for value in range(5):
            api.fill("a", value)
            assert api.values("c")[-1] == value
        before = [records(api, topic) for topic in "abc"]
    with running(data_dir=data_dir, memory=False) as server:
        api = server.api()
        assert [records(api, topic) for topic in "abc"] == before
        assert taken(api.router("r"))["forwarded_total"] == 5
        api.fill("a", "more")
        assert api.values("c") == [0, 1, 2, 3, 4, "more"]


def test_the_log_has_one_frame_per_record_whatever_the_fan_out(tmp_path: Path) -> None:
    with running(data_dir=str(tmp_path / "data"), memory=False) as server:
        api = server.api()
        for number in range(20):
            api.put_router(f"r{number}", "a", f"d{number}")
        before = _frames(api)
        api.fill("a", *range(100))
        assert api.values("d7", limit=1000) == list(range(100))
        # The records, a reserve of seqs, and one frame for the pass.
        assert _frames(api) - before <= 103


def _frames(api: Api) -> int:
    body = taken(api.request("GET", "/v0/metrics", accept="application/json"))
    return int(body["wal"]["frames"])


# --- Keys ------------------------------------------------------------------------------------------------


def test_scopes_and_prefixes_cover_routers() -> None:
    keys = "root,reader:r,writer:rw,part::p.|q>"
    with running(keys=keys) as server:
        root, reader, writer, part = (server.api(key) for key in ("root", "reader", "writer", "part"))
        taken(root.put_router("r", "a", "b"), 201)
        taken(reader.router("r"))
        taken(reader.routers())
        assert_error(reader.put_router("s", "a", "c"), 403, "forbidden")
        assert_error(writer.put_router("s", "a", "c"), 403, "forbidden")
        assert_error(writer.drop_router("r"), 403, "forbidden")
        assert_error(part.put_router("r", "p.a", "p.b"), 403, "forbidden", topic="r")
        assert_error(part.put_router("p.r", "a", "p.b"), 403, "forbidden", topic="a")
        assert_error(part.put_router("p.r", "p.a", "b"), 403, "forbidden", topic="b")
        taken(part.put_router("p.r", "p.a", "p.b"), 201)
        taken(root.put_router("p.mixed", "a", "p.c"), 201)
        for reply in (
            part.router("p.mixed"),
            part.put_router("p.mixed", "p.a", "p.c"),
            part.drop_router("p.mixed"),
        ):
            assert_error(reply, 403, "forbidden", router="p.mixed")
        assert [router["router"] for router in taken(part.routers())["routers"]] == ["p.r"]
        assert [router["router"] for router in taken(root.routers())["routers"]] == ["p.mixed", "p.r", "r"]


@pytest.mark.parametrize(
    ("filter", "copied"),
    [
        (["node", "Eq", "n1"], [1, 3]),
        (["tag", "In", ["eu", "us"]], [1, 2]),
        (["and", ["tag", "Glob", "e*"], ["data.price", "Gt", 1]], [4]),
        (["or", ["meta.k", "Eq", "v"], ["data.price", "Lt", 2]], [1, 3]),
    ],
)
def test_a_router_takes_the_filters_of_reads(api: Api, filter: list[Any], copied: list[int]) -> None:
    assert taken(api.put_router("r", "a", "b", filter=filter), 201)["filter"] == filter
    records = [
        {"data": {"price": 1}, "tag": "eu", "node": "n1"},
        {"data": {"price": 2}, "tag": "us"},
        {"data": {"price": 3}, "node": "n1", "meta": {"k": "v"}},
        {"data": {"price": 4}, "tag": "ea"},
    ]
    taken(api.request("POST", "/v0/topics/a", {"records": records}), 200)
    found = taken(api.request("POST", "/v0/topics/b/diff", {}))["records"]
    assert [record["data"]["price"] for record in found] == copied
    assert taken(api.request("GET", "/v0/routers/r"))["filter"] == filter
