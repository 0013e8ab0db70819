"""Watching topics over real sockets: sessions, the checks of a stream, and every kind of frame."""

from __future__ import annotations

from typing import Any

import pytest

from everlog.clock import NS_PER_S, TestClock
from everlog.server.auth import KeyRing
from everlog.server.settings import ServerSettings
from everlog.server.sse import event_id
from everlog.topics import NewRecord
from tests.support.http_peers import poll_sockets, until
from tests.support.watch_servers import HEARTBEAT, Frame, SseClient, WatchServer, play

KEYED = ServerSettings(api_keys=KeyRing.parse("alpha:r:a,beta:rw,gamma:w"))
ALPHA = {"Authorization": "Bearer alpha"}
BETA = {"Authorization": "Bearer beta"}


async def first_frames(client: SseClient, topic: str) -> list[Frame]:
    """Everything up to the end of the backlog of one topic."""
    frames = await client.until_event("caught-up")
    assert frames[-1].data["topic"] == topic
    return frames


# --- POST /v0/watch --------------------------------------------------------------------------------------


def test_a_session_says_where_each_topic_begins() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a", 5)
        server.append("b", 3)
        body = {"topics": {"a": {"from_seq": 2}, "b": {"tail": True, "from_seq": 1}}}
        answer = await server.ask("POST", "/v0/watch", body)
        assert answer.status == 200
        wid = answer.json["wid"]
        assert wid.startswith("wid_") and len(wid) == 26
        assert answer.json["stream_url"] == f"/v0/watch/{wid}"
        assert answer.json["session_ttl_ms"] == 300_000
        assert answer.json["topics"] == {
            "a": {"from_seq": 2, "head_seq": 5, "earliest_seq": 1},
            "b": {"from_seq": 3, "head_seq": 3, "earliest_seq": 1},
        }
        assert "server_total_ms" in answer.json["performance"]

    play(scenario)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"topics": {}},
        {"topics": {f"t{n}": {} for n in range(257)}},
        {"topics": {"a": {"from_seq": -1}}},
        {"topics": {"a": {"from_seq": 2**64}}},
        {"topics": {"a": {"from_seq": 1.5}}},
        {"topics": {"a": {}}, "limit": -1},
        {"topics": {"a": {}}, "heartbeat_ms": "soon"},
        {"topics": {"a": {}}, "consistency": "perhaps"},
        {"topics": ["a"]},
    ],
)
def test_a_watch_that_makes_no_sense_is_refused(body: dict[str, Any]) -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a")
        answer = await server.ask("POST", "/v0/watch", body)
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert len(server.watch.sessions) == 0

    play(scenario)


def test_an_absent_topic_is_refused_or_left_out_if_the_client_is_lenient() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a")
        both: dict[str, Any] = {"topics": {"a": {}, "absent": {}}}
        answer = await server.ask("POST", "/v0/watch", both)
        assert (answer.status, answer.code) == (404, "topic_not_found")
        assert answer.json["error"]["detail"] == {"topic": "absent"}
        answer = await server.ask("POST", "/v0/watch?lenient=true", both)
        assert list(answer.json["topics"]) == ["a"]
        answer = await server.ask("POST", "/v0/watch?lenient=1", {"topics": {"absent": {}}})
        assert (answer.status, answer.code) == (404, "topic_not_found")
        assert not server.engine.has_topic("absent")

    play(scenario)


def test_numbers_out_of_range_are_moved_into_it() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a")
        for wanted, kept in ((1, 1000), (2000, 2000), (10**6, 60_000)):
            wid = await server.session({"a": {}}, heartbeat_ms=wanted, limit=10**6, max_batch_bytes=10**9)
            session = server.watch.sessions.find(wid)
            assert session is not None
            assert session.heartbeat_ms == kept
            assert (session.options.limit, session.options.max_batch_bytes) == (1000, 8 << 20)
        session = server.watch.sessions.find(await server.session({"a": {}}, limit=0, max_batch_bytes=0))
        assert session is not None
        assert (session.options.limit, session.options.max_batch_bytes) == (256, 1 << 20)
        session = server.watch.sessions.find(await server.session({"a": {}}))
        assert session is not None
        assert (session.options.limit, session.options.max_batch_bytes) == (256, 262_144)
        assert session.heartbeat_ms == 15_000

    play(scenario)


def test_one_forbidden_topic_refuses_the_whole_watch() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a1")
        server.append("b1")
        answer = await server.ask("POST", "/v0/watch", {"topics": {"a1": {}, "b1": {}}}, ALPHA)
        assert (answer.status, answer.code) == (403, "forbidden")
        assert answer.json["error"]["detail"] == {"topic": "b1"}
        for headers, status in ((ALPHA, 200), ({"Authorization": "Bearer gamma"}, 403), ({}, 401)):
            answer = await server.ask("POST", "/v0/watch", {"topics": {"a1": {}}}, headers)
            assert answer.status == status

    play(scenario, settings=KEYED)


def test_sessions_beyond_the_cap_are_refused_until_one_expires() -> None:
    clock = TestClock()

    async def scenario(server: WatchServer) -> None:
        server.append("a")
        for _ in range(2):
            await server.session({"a": {}})
        answer = await server.ask("POST", "/v0/watch", {"topics": {"a": {}}})
        assert (answer.status, answer.code) == (429, "throttled")
        assert answer.json["error"]["detail"] == {"limit": "max_watch_sessions", "max": 2}
        assert answer.headers[b"retry-after"] == b"1"
        clock.advance_ns(301 * NS_PER_S)
        await server.session({"a": {}})
        assert len(server.watch.sessions) == 1

    play(scenario, settings=ServerSettings(max_watch_sessions=2), clock=clock)


def test_a_session_lives_as_long_as_its_stream_and_300_seconds_more() -> None:
    clock = TestClock()

    async def scenario(server: WatchServer) -> None:
        server.append("a")
        wid = await server.session({"a": {}})
        client = await server.open(wid)
        clock.advance_ns(1000 * NS_PER_S)
        other = await server.session({"a": {}})
        await server.leave(client)
        clock.advance_ns(299 * NS_PER_S)
        await server.leave(await server.open(wid))
        assert server.watch.sessions.find(other) is not None
        clock.advance_ns(2 * NS_PER_S)
        assert (await server.ask("GET", f"/v0/watch/{other}")).status == 404
        clock.advance_ns(299 * NS_PER_S)
        answer = await server.ask("GET", f"/v0/watch/{wid}")
        assert (answer.status, answer.code) == (404, "not_found")

    play(scenario, clock=clock)


# --- GET /v0/watch/:wid: the checks ----------------------------------------------------------------------


@pytest.mark.parametrize("accept", ["", "*/*", "text/event-stream", "text/html, TEXT/event-stream;q=0.5"])
def test_a_stream_opens_for_a_client_that_accepts_events(accept: str) -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a")
        client = await server.open(await server.session({"a": {}}), {"Accept": accept} if accept else {})
        assert client.headers[b"content-type"] == b"text/event-stream; charset=utf-8"
        assert client.headers[b"cache-control"] == b"no-store"
        assert client.headers[b"x-accel-buffering"] == b"no"

    play(scenario)


def test_the_checks_of_a_stream_come_in_order() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a1")
        wid = await server.session({"a1": {}}, "alpha")
        for path, headers, status in (
            ("/v0/watch/wid_unknown", {"Accept": "text/html"}, 406),
            (f"/v0/watch/{wid}", {"Accept": "text/html"}, 406),
            ("/v0/watch/wid_unknown", {}, 404),
            ("/v0/watch/wid_unknown", ALPHA, 404),
            ("/v0/watch/", {}, 404),
            (f"/v0/watch/{wid}", {}, 401),
            (f"/v0/watch/{wid}", BETA, 401),
            (f"/v0/watch/{wid}?token=beta", {}, 401),
            (f"/v0/watch/{wid}", {"Authorization": "Bearer wrong"}, 401),
        ):
            answer = await server.ask("GET", path, headers=headers)
            assert answer.status == status, (path, headers)
        server.watch.slots.take(None)
        assert (await server.ask("GET", f"/v0/watch/{wid}")).status == 401
        assert (await server.ask("GET", f"/v0/watch/{wid}", headers=ALPHA)).status == 429
        server.watch.slots.give_back(None)
        for headers, query in ((ALPHA, ""), ({}, "?x=1&token=alpha&token=beta"), ({}, "?token=%61lph%61")):
            await server.leave(await server.open(wid, headers, query))

    play(scenario, settings=ServerSettings(api_keys=KEYED.api_keys, max_sse_connections=1))


def test_a_wid_is_not_a_topic_name_for_prefixes() -> None:
    async def scenario(server: WatchServer) -> None:
        answer = await server.ask("DELETE", "/v0/watch/wid_x", headers=ALPHA)
        assert (answer.status, answer.code) == (405, "method_not_allowed")

    play(scenario, settings=KEYED)


def test_streams_beyond_a_cap_are_refused_until_one_ends() -> None:
    settings = ServerSettings(api_keys=KEYED.api_keys, max_sse_connections=3, max_sse_connections_per_key=2)

    async def scenario(server: WatchServer) -> None:
        server.append("a1")
        wid = await server.session({"a1": {}}, "alpha")
        other = await server.session({"a1": {}}, "beta")
        clients = [await server.open(wid, ALPHA) for _ in range(2)]
        answer = await server.ask("GET", f"/v0/watch/{wid}", headers=ALPHA)
        assert (answer.status, answer.code) == (429, "throttled")
        assert answer.json["error"]["detail"] == {"limit": "max_sse_connections_per_key", "max": 2}
        clients.append(await server.open(other, BETA))
        answer = await server.ask("GET", f"/v0/watch/{other}", headers=BETA)
        assert answer.json["error"]["detail"] == {"limit": "max_sse_connections", "max": 3}
        assert answer.headers[b"retry-after"] == b"1"
        await server.leave(clients[0])
        await server.open(wid, ALPHA)

    play(scenario, settings=settings)


def test_head_gets_the_head_of_a_stream_and_changes_nothing() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a")
        wid = await server.session({"a": {}})
        client = await server.open(wid)
        await client.take("record", "caught-up")
        resume = {"Last-Event-ID": event_id({"a": 0}).decode()}
        answer = await server.ask("HEAD", f"/v0/watch/{wid}", headers=resume)
        assert answer.status == 200
        assert answer.headers[b"content-type"] == b"text/event-stream; charset=utf-8"
        assert server.watch.slots.taken == 1
        server.append("a")
        await client.take("record")
        await server.leave(client)
        client = await server.open(wid)
        (caught_up,) = await client.take("caught-up")
        assert caught_up.id == {"a": 2}

    play(scenario)


# --- Frames ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_stream_begins_with_the_backlog_and_goes_on_live(loop: str) -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a", 3)
        client = await server.follow({"a": {"from_seq": 1}}, limit=1)
        second, third, caught_up = await client.take("record", "record", "caught-up")
        assert second.data["topic"] == "a"
        assert second.data["records"] == [
            {"$seq": 2, "$ts": second.data["records"][0]["$ts"], "meta": {"m": 1}, "data": 1}
        ]
        assert set(second.data) == {"topic", "records", "from_seq", "to_seq", "head_seq"}
        assert (second.data["from_seq"], second.data["to_seq"], second.data["head_seq"]) == (1, 2, 3)
        assert (third.data["from_seq"], third.data["to_seq"], third.id) == (2, 3, {"a": 3})
        assert (caught_up.data, caught_up.id) == ({"topic": "a", "head_seq": 3}, {"a": 3})
        for seq in (4, 5):
            server.append("a")
            (record,) = await client.take("record")
            assert (record.seqs, record.id) == ([seq], {"a": seq})

    play(scenario, loop=loop)


def test_the_text_of_a_frame_is_exactly_as_agreed() -> None:
    async def scenario(server: WatchServer) -> None:
        server.engine.append("a", [NewRecord(b' {"x" : [1, "\\n"] } ')])
        client = await server.follow({"a": {}}, include_meta=False)
        record, caught_up = await client.take("record", "caught-up")
        ts = record.data["records"][0]["$ts"]
        ident = event_id({"a": 1})
        assert record.text == (
            b'event: record\ndata: {"topic":"a","records":[{"$seq":1,"$ts":%d,"data":{"x":[1,"\\n"]}}],'
            b'"from_seq":0,"to_seq":1,"head_seq":1}\nid: %b'
        ) % (ts, ident)
        assert caught_up.text == b'event: caught-up\ndata: {"topic":"a","head_seq":1}\nid: %b' % ident

    play(scenario)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"meta", "data"}),
        ({"include_tags": True}, {"meta", "data", "$tag"}),
        ({"include_data": False}, {"meta"}),
        ({"include_meta": False, "include_data": False}, set()),
    ],
)
def test_a_record_has_the_fields_that_were_asked_for(options: dict[str, bool], expected: set[str]) -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a")
        client = await server.follow({"a": {}}, **options)
        (record,) = await client.take("record")
        assert set(record.data["records"][0]) == {"$seq", "$ts", *expected}

    play(scenario)


def test_own_records_are_passed_over_in_silence() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a", 3, node="me")
        client = await server.follow({"a": {}}, node=["me", "my other"])
        (caught_up,) = await client.take("caught-up")
        assert (caught_up.data["head_seq"], caught_up.id) == (3, {"a": 3})
        server.append("a", node="me")
        (session,) = server.watch.sessions._sessions.values()
        await until(lambda: session.owner._cursors["a"].seq == 4)
        server.append("a", node="you")
        (record,) = await client.take("record")
        assert (record.data["from_seq"], record.seqs, record.id) == (4, [5], {"a": 5})

    play(scenario)


def test_topics_that_ignore_nodes_deliver_everything() -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("a", dedupe_node=False)
        server.append("a", 2, node="me")
        client = await server.follow({"a": {}}, node="me")
        (record,) = await client.take("record")
        assert record.seqs == [1, 2]

    play(scenario)


def test_many_topics_share_one_cursor() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a", 3)
        server.append("b", 1)
        client = await server.follow({"a": {"from_seq": 1}, "b": {"tail": True}}, limit=1)
        frames = await client.take("record", "record", "caught-up", "caught-up")
        assert [frame.data["topic"] for frame in frames] == ["a", "a", "a", "b"]
        assert [frame.id for frame in frames] == [{"a": 2, "b": 1}, {"a": 3, "b": 1}, *[{"a": 3, "b": 1}] * 2]
        server.append("b")
        (record,) = await client.take("record")
        assert (record.data["topic"], record.id) == ("b", {"a": 3, "b": 2})

    play(scenario)


def test_a_long_backlog_does_not_keep_other_topics_waiting() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("long", 200)
        server.append("short", 1)
        client = await server.follow({"long": {}, "short": {}}, limit=1)
        frames = await client.until_event("caught-up")
        assert frames[-1].data["topic"] == "short"
        assert [frame.data["topic"] for frame in frames[:64]] == ["long"] * 64
        assert len(frames) == 66

    play(scenario)


def test_caught_up_is_said_once_per_backlog() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a")
        client = await server.follow({"a": {}}, limit=2)
        await client.take("record", "caught-up")
        server.append("a", 2)
        await client.take("record")
        server.append("a", 3)
        await client.take("record", "record", "caught-up")
        server.append("a")
        (record,) = await client.take("record")
        assert record.seqs == [7]

    play(scenario)


def test_an_empty_topic_is_caught_up_at_once() -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("a")
        client = await server.follow({"a": {}})
        (caught_up,) = await client.take("caught-up")
        assert (caught_up.data["head_seq"], caught_up.id) == (0, {"a": 0})

    play(scenario)


# --- Gaps ------------------------------------------------------------------------------------------------


def test_a_gap_found_on_connect_is_a_cursor_that_was_too_old() -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("a", cap_records=2)
        server.append("a", 5)
        client = await server.follow({"a": {"from_seq": 1}})
        tombstone, record, _ = await client.take("tombstone", "record", "caught-up")
        assert tombstone.data == {
            "topic": "a",
            "reason": "from_seq_too_old",
            "gap_from": 2,
            "gap_to": 3,
            "earliest_seq": 4,
            "head_seq": 5,
        }
        assert tombstone.id == {"a": 3}
        assert (record.data["from_seq"], record.seqs) == (3, [4, 5])
        server.append("a", 4)
        tombstone, record = await client.take("tombstone", "record")
        assert (tombstone.data["reason"], tombstone.data["gap_from"], tombstone.id) == ("cap", 6, {"a": 7})
        assert record.seqs == [8, 9]

    play(scenario)


def test_a_deleted_prefix_is_silent() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a", 5)
        server.engine.delete_records("a", before_seq=4)
        client = await server.follow({"a": {}})
        record, _ = await client.take("record", "caught-up")
        assert record.seqs == [4, 5]

    play(scenario)


def test_a_cursor_beyond_the_head_is_that_of_another_instance() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a", 2)
        client = await server.follow({"a": {"from_seq": 9}})
        tombstone, record, _ = await client.take("tombstone", "record", "caught-up")
        assert (tombstone.data["reason"], tombstone.data["gap_from"], tombstone.data["gap_to"]) == (
            "recreated",
            1,
            2,
        )
        assert tombstone.id == {"a": 0}, "the records of the new instance are still to come"
        assert record.seqs == [1, 2]

    play(scenario)


def test_a_topic_recreated_unnoticed_goes_on_with_a_tombstone() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a", 2)
        client = await server.follow({"a": {}})
        await client.take("record", "caught-up")
        server.delete("a")
        server.append("a", 4)  # in the same turn: no read in between
        tombstone, record = await client.take("tombstone", "record")
        assert (tombstone.data["reason"], tombstone.data["gap_to"]) == ("recreated", 4)
        assert record.seqs == [1, 2, 3, 4]
        server.append("a")
        (record,) = await client.take("record")
        assert record.seqs == [5]

    play(scenario)


def test_a_topic_recreated_between_two_streams_goes_on_with_a_tombstone() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a", 2)
        wid = await server.session({"a": {}})
        client = await server.open(wid)
        await client.take("record", "caught-up")
        await server.leave(client)
        server.delete("a")
        server.append("a", 4)
        client = await server.open(wid)
        tombstone, record, _ = await client.take("tombstone", "record", "caught-up")
        assert (tombstone.data["reason"], record.seqs) == ("recreated", [1, 2, 3, 4])

    play(scenario)


# --- Deletion --------------------------------------------------------------------------------------------


def test_deletion_wakes_the_stream_which_ends_with_its_last_topic() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a", 2)
        server.append("b", 1)
        client = await server.follow({"a": {}, "b": {}})
        await client.take("record", "caught-up", "record", "caught-up")
        server.delete("a")
        (deleted,) = await client.take("topic-deleted")
        assert deleted.data == {"topic": "a", "head_seq": 2, "reason": "deleted"}
        assert deleted.id == {"a": 2, "b": 1}
        server.append("a", 3)  # a new instance: silent until the client connects again
        server.append("b")
        (record,) = await client.take("record")
        assert record.data["topic"] == "b"
        server.delete("b")
        await client.take("topic-deleted")
        await client.expect_end()
        assert server.watch.slots.taken == 0

    play(scenario)


def test_a_topic_that_is_gone_before_the_stream_opens_is_told() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a", 2)
        wid = await server.session({"a": {"tail": True}})
        server.delete("a")
        client = await server.open(wid)
        (deleted,) = await client.take("topic-deleted")
        assert deleted.data["head_seq"] == 2
        await client.expect_end()
        server.append("a", 1)
        client = await server.open(wid)
        tombstone, record, _ = await client.take("tombstone", "record", "caught-up")
        assert (tombstone.data["reason"], record.seqs) == ("recreated", [1])

    play(scenario)


# --- Resume ----------------------------------------------------------------------------------------------


def test_a_session_goes_on_where_its_stream_ended() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a", 3)
        wid = await server.session({"a": {}})
        client = await server.open(wid)
        await client.take("record", "caught-up")
        await server.leave(client)
        server.append("a", 2)
        client = await server.open(wid)
        record, _ = await client.take("record", "caught-up")
        assert record.seqs == [4, 5]

    play(scenario)


@pytest.mark.parametrize(
    ("last_id", "resumed_at"),
    [
        (event_id({"a": 1, "b": 9, "unknown": 0}), {"a": 1, "b": 2}),
        (event_id({"a": 0}) + b"==", {"a": 0, "b": 2}),
        (event_id({"a": 99, "b": 0}), {"a": 3, "b": 0}),
        (event_id({}), {"a": 3, "b": 2}),
        (event_id({"a": 1, "b": -1}), {"a": 3, "b": 2}),
        (b"%%%", {"a": 3, "b": 2}),
        (b"Zm9v", {"a": 3, "b": 2}),
        (b"", {"a": 3, "b": 2}),
    ],
)
def test_the_last_event_id_only_goes_back(last_id: bytes, resumed_at: dict[str, int]) -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a", 3)
        server.append("b", 2)
        wid = await server.session({"a": {}, "b": {}})
        client = await server.open(wid)
        await client.take("record", "caught-up", "record", "caught-up")
        await server.leave(client)
        client = await server.open(wid, {"Last-Event-ID": last_id.decode()})
        for name, head_seq in (("a", 3), ("b", 2)):
            frames = await first_frames(client, name)
            seqs = [seq for frame in frames if frame.event == "record" for seq in frame.seqs]
            assert seqs == list(range(resumed_at[name] + 1, head_seq + 1))

    play(scenario)


def test_the_newest_stream_of_a_session_moves_its_cursor() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a", 3)
        wid = await server.session({"a": {}})
        old = await server.open(wid)
        await old.take("record", "caught-up")
        new = await server.open(wid, {"Last-Event-ID": event_id({"a": 1}).decode()})
        record, _ = await new.take("record", "caught-up")
        assert record.seqs == [2, 3]
        server.append("a")
        for client in (old, new):
            (record,) = await client.take("record")
            assert record.seqs == [4]
        await server.leave(new)
        server.append("a")
        await old.take("record")
        await server.leave(old)
        client = await server.open(wid)
        (record,) = await client.take("record")
        assert record.seqs == [5]

    play(scenario)


# --- Heartbeats, shutdown --------------------------------------------------------------------------------


def test_a_heartbeat_comes_after_silence_only() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a")
        client = await server.follow({"a": {}}, heartbeat_ms=1000)
        await client.take("record", "caught-up")
        server.timers.advance(0.9)
        server.append("a")
        await client.take("record")
        server.timers.advance(0.9)
        await poll_sockets()
        server.timers.advance(0.11)
        (heartbeat,) = await client.take(HEARTBEAT)
        assert heartbeat.text == b": hb"
        server.append("a")
        await client.take("record")
        for _ in range(3):
            server.timers.advance(1.0)
            await client.take(HEARTBEAT)

    play(scenario)


def test_tests_may_ask_for_quick_heartbeats() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a")
        client = await server.follow({"a": {"tail": True}}, heartbeat_ms=1)
        await client.take("caught-up")
        server.timers.advance(0.02)
        await client.take(HEARTBEAT)

    play(scenario, settings=ServerSettings(test_min_heartbeat_ms=20))


def test_a_server_that_stops_tells_every_stream() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a")
        wid = await server.session({"a": {}})
        clients = [await server.open(wid), *[await server.follow({"a": {}}) for _ in range(2)]]
        for client in clients:
            await client.take("record", "caught-up")
        server.app.is_draining = True
        server.watch.shut_down()
        for client in clients:
            (error,) = await client.take("error")
            assert error.data["code"] == "server_shutting_down"
            assert error.data["message"]
            await client.expect_end()
        assert (await server.ask("GET", f"/v0/watch/{wid}")).status == 503

    play(scenario)


def test_a_stream_without_a_working_engine_ends_with_the_reason() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a")
        client = await server.follow({"a": {}})
        await client.take("record", "caught-up")
        server.engine.append("a", [NewRecord(b"1")])
        server.engine.close()
        (error,) = await client.take("error")
        assert error.data["code"] == "server_shutting_down"
        await client.expect_end()

    play(scenario)


def test_a_page_of_an_allowed_origin_may_read_the_stream() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a")
        client = await server.open(await server.session({"a": {}}), {"Origin": "https://console.example"})
        assert client.headers[b"access-control-allow-origin"] == b"https://console.example"

    play(scenario, settings=ServerSettings(cors_origins=("https://console.example",)))
