"""What a WebSocket client can say and what it is told: commands, replies and pushes over real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.errors import Corrupt, StorageFailed
from everlog.server import fan_out
from everlog.server.auth import KeyRing
from everlog.server.settings import ServerSettings
from everlog.topics import Commit, Diff, Engine, NewRecord, TopicConfig
from tests.support.effort import effort
from tests.support.engines import HeldSyncs
from tests.support.http_peers import until
from tests.support.watch_servers import WatchServer, WebSocketClient, bearer, play, play_on_disk

KEYS = "all,reader:r:a,writer:w:a,maker:w+a:a,lister:r"
KEYED = ServerSettings(api_keys=KeyRing.parse(KEYS))
ACK_FIELDS = {
    "op",
    "request_id",
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
ONE = [{"data": 1}]


def seqs_of(messages: list[Any]) -> list[int]:
    """The seqs of all records in these messages."""
    return [
        record["$seq"] for message in messages if message["op"] == "record" for record in message["records"]
    ]


async def subscribe(client: WebSocketClient, **fields: object) -> list[Any]:
    """Subscribe and take everything up to the end of the backlog of one topic."""
    await client.send("subscribe", **fields)
    await client.take("subscribed")
    return await client.until_op("caught_up")


async def expect_error(client: WebSocketClient, code: str, op: str, **fields: object) -> str:
    """A command that is refused with this code; returns the message."""
    error = await client.ask(op, request_id="bad", **fields)
    assert error.keys() == {"op", "request_id", "code", "message"}
    assert (error["op"], error["request_id"], error["code"]) == ("error", "bad", code), error
    return str(error["message"])


# --- Messages --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "request_id"),
    [
        ("", "invalid_json", None),
        ("ping", "invalid_json", None),
        ('{"op":"ping","request_id":1', "invalid_json", None),
        ('{"op":"ping","request_id":NaN}', "invalid_json", None),
        ('{"op":"ping","x":Infinity,"request_id":1}', "invalid_json", None),
        ('{"op":"ping","request_id":"\\ud800"}', "invalid_json", None),
        ('{"op":"what","x":"\\udc00"}', "invalid_json", None),
        ('{"op":"ping","request_id":' + "[" * 128 + "]" * 128 + "}", "invalid_json", None),
        ('{"op":"publish","topic":"t","records":[{"data":' + "[" * 100_000, "invalid_json", None),
        ('{"op":"what","request_id":1', "invalid_json", None),
        ("[]", "invalid_request", None),
        ("null", "invalid_request", None),
        ("{}", "invalid_request", None),
        ('{"request_id":[1, 2]}', "invalid_request", [1, 2]),
        ('{"op":"what","request_id":5}', "invalid_request", 5),
        ('{"op":5,"request_id":5}', "invalid_request", 5),
        ('{"op":null,"request_id":5}', "invalid_request", 5),
        ('{"op":"PING","request_id":5}', "invalid_request", 5),
    ],
)
def test_a_message_that_is_no_command_is_refused_and_the_socket_stays_open(
    text: str, code: str, request_id: object
) -> None:
    async def scenario(server: WatchServer) -> None:
        client = await server.talk()
        await client.send_text(text)
        error = await client.next()
        assert error.keys() == {"op", "request_id", "code", "message"}
        assert (error["op"], error["code"], error["request_id"]) == ("error", code, request_id)
        await client.expect_quiet()

    play(scenario)


@settings(max_examples=effort(40), deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab \n"), inner, max_size=3),
        max_leaves=6,
    )
)
def test_a_request_id_is_any_json_and_comes_back_compact(request_id: Any) -> None:
    async def scenario(server: WatchServer) -> None:
        client = await server.talk()
        compact = msgspec.json.encode(request_id).decode()
        loose = msgspec.json.format(compact, indent=2)
        await client.send_text(f'{{ "op" : "ping" , "request_id" : {loose} }}')
        assert await client.next_text() == f'{{"op":"pong","request_id":{compact}}}'

    play(scenario)


def test_a_missing_request_id_is_null() -> None:
    async def scenario(server: WatchServer) -> None:
        client = await server.talk()
        assert await client.ask("ping") == {"op": "pong", "request_id": None}

    play(scenario)


def test_a_reply_lists_the_unknown_members_of_its_command() -> None:
    async def scenario(server: WatchServer) -> None:
        client = await server.talk()
        ignored = [{"path": "more", "name": "more"}]
        assert await client.ask("ping", more=1) == {"op": "pong", "request_id": None, "ignored": ignored}
        ack = await client.ask("publish", topic="t", records=[{"data": 1}, {"data": 2, "prio": 3}])
        assert ack["ignored"] == [{"path": "records[1].prio", "name": "prio"}]
        subscribed = await client.ask("subscribe", topics={"t": {"tial": True}})
        assert subscribed["ignored"] == [{"path": "topics.t.tial", "name": "tial"}]

    play(scenario)


def test_a_strict_socket_refuses_unknown_members() -> None:
    async def scenario(server: WatchServer) -> None:
        client = await server.talk(target="/v0/ws?strict=true")
        refused = await client.ask("publish", topic="t", request_id=7, records=[{"data": 1, "tga": "x"}])
        assert (refused["op"], refused["code"], refused["request_id"]) == ("error", "invalid_request", 7)
        assert "records[0].tga" in refused["message"] and "'tag'" in refused["message"]
        assert (await client.ask("ping"))["op"] == "pong"

    play(scenario)


@pytest.mark.parametrize("topics", ['"t":{},"t":{"tail":true}', '"t":{},"\\u0074":{}'])
def test_a_topic_that_a_subscription_names_twice_is_refused(topics: str) -> None:
    async def scenario(server: WatchServer) -> None:
        client = await server.talk()
        await client.send_text('{"op":"subscribe","topics":{' + topics + "}}")
        (refused,) = await client.take("error")
        assert refused["code"] == "invalid_request" and "topics.t comes twice" in refused["message"]

    play(scenario)


@pytest.mark.parametrize("twice", ['"topic":"t","topic":"t"', '"topic":"t","op":"publish"'])
def test_a_member_of_a_command_that_comes_twice_is_refused(twice: str) -> None:
    async def scenario(server: WatchServer) -> None:
        client = await server.talk()
        await client.send_text('{"op":"publish","records":[{"data":1}],' + twice + "}")
        (refused,) = await client.take("error")
        assert refused["code"] == "invalid_request" and "comes twice" in refused["message"]

    play(scenario)


# --- publish ---------------------------------------------------------------------------------------------


def test_a_publish_is_answered_as_an_append_is() -> None:
    async def scenario(server: WatchServer) -> None:
        client = await server.talk()
        records = [{"data": {"x": [1, None]}, "tag": "t", "meta": {"m": 1}}, {"data": None, "node": "other"}]
        body = {"records": records, "node": "me", "create": True}
        ack = await client.ask("publish", topic="ws", request_id="r", **body)
        answer = (await server.ask("POST", "/v0/topics/http", body)).json
        assert ack.keys() == ACK_FIELDS
        assert answer.keys() == ACK_FIELDS - {"op", "request_id"}
        assert ack.pop("performance").keys() == answer.pop("performance").keys()
        assert ack == {**answer, "op": "ack", "request_id": "r", "topic": "ws"}
        assert ack["seqs"] == [1, 2] and ack["created"] and not ack["deduped"]
        ways = [
            (await server.ask("POST", f"/v0/topics/{t}/diff", {"include_tags": True})).json
            for t in ("ws", "http")
        ]
        stored = [[{**record, "$ts": 0} for record in way["records"]] for way in ways]
        assert stored[0] == stored[1]
        assert [record["$node"] for record in stored[0]] == ["me", "other"]

    play(scenario)


def test_a_publish_can_leave_out_the_seqs_and_is_done_once_per_key() -> None:
    async def scenario(server: WatchServer) -> None:
        client = await server.talk()
        first = await client.ask(
            "publish", topic="t", records=ONE * 3, idempotency_key="k", create=True, return_seqs=False
        )
        assert first["seqs"] is None
        again = await client.ask("publish", topic="t", records=ONE * 3, idempotency_key="k")
        assert (again["deduped"], again["created"], again["seqs"]) == (True, False, [1, 2, 3])
        assert server.engine.state("t").head_seq == 3

    play(scenario)


def test_a_publish_fails_with_the_codes_of_an_append() -> None:
    async def scenario(server: WatchServer) -> None:
        server.engine.put_topic("full", TopicConfig(cap_records=1, discard="reject"))  # type: ignore[arg-type]
        server.append("full")
        client = await server.talk()
        big = [{"data": "x" * (1 << 20)}]
        cases: list[tuple[str, dict[str, Any]]] = [
            ("invalid_request", {"topic": "t"}),
            ("invalid_request", {"records": ONE}),
            ("invalid_request", {"topic": "t", "records": []}),
            ("invalid_request", {"topic": "t", "records": [{}]}),
            ("invalid_request", {"topic": "t", "records": ONE, "config": {"ttl_ms": -1}}),
            ("invalid_request", {"topic": "t", "records": [{"data": 1, "meta": 5}]}),
            ("invalid_request", {"topic": "not a name", "records": ONE, "create": True}),
            ("invalid_request", {"topic": "t", "records": ONE, "idempotency_key": "k" * 257}),
            ("batch_too_large", {"topic": "t", "records": ONE * 10_001}),
            ("record_too_large", {"topic": "t", "records": big}),
            ("topic_not_found", {"topic": "t", "records": ONE, "create": False}),
            ("topic_not_found", {"topic": "t", "records": ONE, "config": {"auto_create": False}}),
            ("topic_full", {"topic": "full", "records": ONE}),
            ("throttled", {"topic": "t", "records": ONE, "create": True}),
        ]
        for code, fields in cases:
            await expect_error(client, code, "publish", **fields)
        assert not server.engine.has_topic("t")
        await client.expect_quiet()

    limited = ServerSettings(max_topics=1)
    play(scenario, settings=limited, engine=lambda: Engine.open(None, limited.engine_settings()))


def test_an_ack_waits_for_the_commit_and_others_pass_it(tmp_path: Path) -> None:
    async def scenario(server: WatchServer, syncs: HeldSyncs) -> None:
        await server.put("synced", durability="fsync")
        await server.put("quick", durability="ephemeral")
        client = await server.talk()
        await subscribe(client, topic="synced")
        syncs.is_held = True
        await client.send("publish", topic="synced", records=ONE, request_id=1)
        await client.send("publish", topic="quick", records=ONE, request_id=2)
        assert (await client.next())["request_id"] == 2
        await client.expect_quiet()
        syncs.release()
        messages = {message["op"]: message for message in [await client.next(), await client.next()]}
        assert messages["ack"]["request_id"] == 1
        assert seqs_of([messages["record"]]) == [1]
        assert messages["ack"]["performance"]["fsync_ms"] > 0

    play_on_disk(scenario, tmp_path / "data", ServerSettings())


def test_the_ack_of_a_publish_comes_before_the_goodbye(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everlog.server.websocket.CLOSE_TIMEOUT_S", 1000.0)

    async def scenario(server: WatchServer, syncs: HeldSyncs) -> None:
        await server.put("synced", durability="fsync")
        client = await server.talk()
        syncs.is_held = True
        await client.send("publish", topic="synced", records=ONE, request_id=1)
        await until(lambda: server.only_session()._unanswered == 1)
        server.sockets.shut_down()
        await client.send("publish", topic="synced", records=ONE, request_id=2)
        await until(lambda: server.only_session()._socket._is_read_paused)
        syncs.release()
        ack, goodbye = await client.take("ack", "error")
        assert (ack["request_id"], goodbye["code"]) == (1, "server_shutting_down")
        assert await client.closed() == 1001
        assert server.engine.state("synced").head_seq == 1, "nothing is taken after the goodbye"

    play_on_disk(scenario, tmp_path / "data", ServerSettings())


# --- Keys ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "op", "fields", "is_allowed"),
    [
        ("all", "subscribe", {"topic": "b"}, True),
        ("reader", "subscribe", {"topic": "a"}, True),
        ("reader", "subscribe", {"topic": "b"}, False),
        ("reader", "subscribe", {"topics": {"a": {}, "b": {}}}, False),
        ("reader", "subscribe", {"topics": {"a": {}, "b": {}}, "lenient": True}, False),
        ("reader", "publish", {"topic": "a", "records": ONE}, False),
        ("writer", "subscribe", {"topic": "a"}, False),
        ("writer", "publish", {"topic": "a", "records": ONE}, True),
        ("writer", "publish", {"topic": "b", "records": ONE}, False),
        ("writer", "publish", {"topic": "a", "records": ONE, "config": {}}, False),
        ("maker", "publish", {"topic": "a", "records": ONE, "config": {}}, True),
        ("maker", "publish", {"topic": "b", "records": ONE, "config": {}}, False),
        ("writer", "unsubscribe", {"topic": "b"}, True),
        ("lister", "ping", {}, True),
    ],
)
def test_each_command_needs_its_scope_and_a_name_within_the_prefixes(
    key: str, op: str, fields: dict[str, Any], is_allowed: bool
) -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a")
        server.append("b")
        client = await server.talk(bearer(key))
        if is_allowed:
            assert (await client.ask(op, **fields))["op"] != "error"
        else:
            await expect_error(client, "forbidden", op, **fields)
            await client.expect_quiet()
            assert server.engine.state("a").head_seq == server.engine.state("b").head_seq == 1

    play(scenario, settings=KEYED)


# --- subscribe -------------------------------------------------------------------------------------------


def test_a_subscription_gives_the_backlog_then_caught_up_once_then_what_comes() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("t", 3)
        client = await server.talk()
        reply = await client.ask("subscribe", topic="t", from_seq=1, request_id={"a": 1})
        assert reply == {
            "op": "subscribed",
            "request_id": {"a": 1},
            "topics": {"t": {"from_seq": 1, "head_seq": 3, "earliest_seq": 1}},
        }
        record, caught_up = await client.take("record", "caught_up")
        assert record.keys() == {"op", "topic", "from_seq", "to_seq", "head_seq", "records"}
        assert (record["topic"], record["from_seq"], record["to_seq"], record["head_seq"]) == ("t", 1, 3, 3)
        assert [r["$seq"] for r in record["records"]] == [2, 3]
        assert record["records"][0].keys() == {"$seq", "$ts", "data", "meta"}
        assert caught_up == {"op": "caught_up", "topic": "t", "head_seq": 3}
        for head_seq in (4, 5):
            server.append("t")
            (record,) = await client.take("record")
            assert (record["from_seq"], record["to_seq"]) == (head_seq - 1, head_seq)
        await client.expect_quiet()

    play(scenario)


def test_several_topics_begin_where_each_is_asked_to() -> None:
    async def scenario(server: WatchServer) -> None:
        for name in "abc":
            server.append(name, 5)
        client = await server.talk()
        topics = {"a": {"tail": True, "from_seq": 1}, "b": {"from_seq": 3}}
        reply = await client.ask("subscribe", topic="c", tail=True, topics=topics)
        assert {name: known["from_seq"] for name, known in reply["topics"].items()} == {
            "a": 5,
            "b": 3,
            "c": 5,
        }
        messages = [await client.next() for _ in range(4)]
        assert sorted(m["topic"] for m in messages if m["op"] == "caught_up") == ["a", "b", "c"]
        assert seqs_of(messages) == [4, 5]
        server.append("c")
        assert seqs_of(await client.take("record")) == [6]

    play(scenario)


def test_options_decide_what_is_in_a_record_and_how_many_are_in_a_message() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("t", 3)
        server.append("t", 2, node="me")
        client = await server.talk()
        options = {
            "include_data": False,
            "include_meta": False,
            "include_tags": True,
            "limit": 2,
            "node": "me",
        }
        messages = await subscribe(client, topic="t", **options)
        assert [m["op"] for m in messages] == ["record", "record", "caught_up"]
        assert [len(m["records"]) for m in messages[:-1]] == [2, 1]
        assert all(r.keys() == {"$seq", "$ts", "$tag"} for m in messages[:-1] for r in m["records"])
        assert messages[-1]["head_seq"] == 5
        server.append("t", 1, node="me")
        await client.expect_quiet()
        server.append("t", 1)
        (record,) = await client.take("record")
        assert (record["from_seq"], record["to_seq"], seqs_of([record])) == (6, 7, [7])
        alone = await subscribe(client, topic="t", max_batch_bytes=1, node=["me", "you"])
        assert [len(m["records"]) for m in alone[:-1]] == [1] * 4

    play(scenario)


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        ("invalid_request", {}),
        ("invalid_request", {"topics": {}}),
        ("invalid_request", {"topics": {f"t{n}": {} for n in range(257)}}),
        ("invalid_request", {"topics": ["t"]}),
        ("invalid_request", {"topic": 5}),
        ("invalid_request", {"topic": "t", "from_seq": -1}),
        ("invalid_request", {"topic": "t", "from_seq": 2**64}),
        ("invalid_request", {"topic": "t", "from_seq": 1.5}),
        ("invalid_request", {"topics": {"t": {"from_seq": -1}}}),
        ("invalid_request", {"topic": "t", "limit": -1}),
        ("invalid_request", {"topic": "t", "max_batch_bytes": "x"}),
        ("invalid_request", {"topic": "t", "node": 5}),
        ("topic_not_found", {"topic": "absent"}),
        ("topic_not_found", {"topics": {"t": {}, "absent": {}}}),
        ("topic_not_found", {"topic": "absent", "lenient": True}),
    ],
)
def test_a_subscription_that_makes_no_sense_changes_nothing(code: str, fields: dict[str, Any]) -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("t")
        client = await server.talk()
        await subscribe(client, topic="t")
        await expect_error(client, code, "subscribe", **fields)
        assert not server.engine.has_topic("absent")
        server.append("t")
        assert seqs_of(await client.take("record")) == [2]

    play(scenario)


def test_a_lenient_subscription_leaves_out_what_is_absent() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("t")
        client = await server.talk()
        reply = await client.ask("subscribe", topics={"t": {}, "absent": {}}, lenient=True)
        assert list(reply["topics"]) == ["t"]

    play(scenario)


def test_a_socket_follows_as_many_topics_as_a_watch() -> None:
    async def scenario(server: WatchServer) -> None:
        for number in range(257):
            server.append(f"t{number}")
        client = await server.talk()
        tails = {f"t{number}": {"tail": True} for number in range(256)}
        await client.send("subscribe", topics=tails)
        await client.take("subscribed", *["caught_up"] * 256)
        await expect_error(client, "invalid_request", "subscribe", topic="t256")
        assert len(await subscribe(client, topic="t255")) == 2, "one that is followed can be reset"

    play(scenario)


def test_subscribing_again_begins_again() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("t", 4)
        client = await server.talk()
        assert seqs_of(await subscribe(client, topic="t")) == [1, 2, 3, 4]
        assert seqs_of(await subscribe(client, topic="t", from_seq=2)) == [3, 4]
        assert seqs_of(await subscribe(client, topic="t", tail=True)) == []
        server.append("t")
        assert seqs_of(await client.take("record")) == [5]
        await client.expect_quiet()

    play(scenario)


@settings(max_examples=effort(20), deadline=None)
@given(
    batches=st.lists(
        st.tuples(st.integers(1, 8), st.sampled_from([None, "me", "you"])), min_size=1, max_size=8
    ),
    from_seq=st.integers(0, 10),
    limit=st.integers(1, 5),
    node=st.sampled_from([None, "me"]),
    subscribe_after=st.integers(0, 8),
)
def test_every_record_behind_the_cursor_is_pushed_once_and_in_order(
    batches: list[tuple[int, str | None]], from_seq: int, limit: int, node: str | None, subscribe_after: int
) -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("t", durability="memory")
        client = await server.talk()
        nodes: list[str | None] = []
        start = 0
        for number, (count, writer) in enumerate(batches):
            if number == min(subscribe_after, len(batches) - 1):
                start = min(from_seq, len(nodes))
                await client.send("subscribe", topic="t", from_seq=start, limit=limit, node=node)
                await client.take("subscribed")
            server.append("t", count, node=writer)
            nodes += [writer] * count
        wanted = [seq for seq, writer in enumerate(nodes, 1) if seq > start and (not node or writer != node)]
        messages: list[Any] = []
        while seqs_of(messages) != wanted:
            messages.append(await client.next())
        cursor = start
        for message in messages:
            if message["op"] == "record":
                assert cursor <= message["from_seq"] < message["records"][0]["$seq"]
                assert message["records"][-1]["$seq"] <= message["to_seq"] <= message["head_seq"]
                assert len(message["records"]) <= limit
                cursor = message["to_seq"]

    play(scenario)


# --- Gaps, deletion, unsubscribe ---------------------------------------------------------------------------


def test_a_gap_is_told_with_the_reason_that_a_diff_gives() -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("t", cap_records=2)
        server.append("t", 5)
        client = await server.talk()
        tombstone, record, _ = await subscribe(client, topic="t", from_seq=1)
        assert tombstone == {
            "op": "tombstone",
            "topic": "t",
            "reason": "cap",
            "gap_from": 2,
            "gap_to": 3,
            "earliest_seq": 4,
            "head_seq": 5,
        }
        assert (record["from_seq"], seqs_of([record])) == (3, [4, 5])
        tombstone, record, _ = await subscribe(client, topic="t", from_seq=9)
        assert (tombstone["reason"], tombstone["gap_from"], tombstone["gap_to"]) == ("recreated", 1, 5)
        assert seqs_of([record]) == [4, 5]

    play(scenario)


def test_a_deleted_topic_is_told_at_once_and_stays_silent_until_it_is_subscribed_again() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("t", 2)
        server.append("other")
        client = await server.talk()
        await subscribe(client, topic="t")
        await subscribe(client, topic="other")
        server.delete("t")
        (deleted,) = await client.take("topic_deleted")
        assert deleted == {"op": "topic_deleted", "topic": "t", "head_seq": 2, "reason": "deleted"}
        server.append("t")
        server.append("other")
        (record,) = await client.take("record")
        assert record["topic"] == "other"
        await client.expect_quiet()
        assert seqs_of(await subscribe(client, topic="t")) == [1]

    play(scenario)


def test_a_topic_that_is_recreated_before_it_was_noticed_goes_on_with_a_tombstone() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("t", 3)
        client = await server.talk()
        await subscribe(client, topic="t")
        server.delete("t")
        server.append("t", 4)
        tombstone, record = await client.take("tombstone", "record")
        assert tombstone["reason"] == "recreated"
        assert seqs_of([record]) == [1, 2, 3, 4]
        server.append("t")
        assert seqs_of(await client.take("record")) == [5]

    play(scenario)


def test_nothing_of_a_topic_comes_after_it_is_unsubscribed() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a", 2000, data=b'"%b"' % (b"x" * 100))
        server.append("b", 2000)
        client = await server.talk()
        await client.send("subscribe", topics={"a": {}, "b": {}}, limit=10)
        await client.take("subscribed", "record")
        await client.send("unsubscribe", topic="a", topics=["b", "a", "never"], request_id=4)
        reply = (await client.until_op("unsubscribed"))[-1]
        assert reply == {"op": "unsubscribed", "request_id": 4, "topics": ["a", "b", "never"]}
        server.append("a")
        server.append("b")
        await client.expect_quiet()
        assert server.watch.fan_out._topics == {}
        await expect_error(client, "invalid_request", "unsubscribe")

    play(scenario)


def test_a_topic_that_cannot_be_read_is_given_up_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("bad")
        server.append("good")
        whole = server.engine.diff

        def diff(name: str, *args: Any, **more: Any) -> Any:
            if name == "bad":
                raise Corrupt("record 1 does not match its checksum")
            return whole(name, *args, **more)

        monkeypatch.setattr(server.engine, "diff", diff)
        client = await server.talk()
        await client.send("subscribe", topic="bad")
        _, error = await client.take("subscribed", "error")
        assert (error["code"], error["request_id"]) == ("internal", None)
        assert "bad" in error["message"]
        assert seqs_of(await subscribe(client, topic="good")) == [1]
        server.append("bad")
        await client.expect_quiet()

    play(scenario)


# --- What may not be told yet ----------------------------------------------------------------------------


def gate_reads(server: WatchServer, monkeypatch: pytest.MonkeyPatch) -> list[Commit]:
    """Let every read from now on wait for a commit, which the test finishes."""
    gates: list[Commit] = []
    whole = server.engine.diff

    def diff(*args: Any, **more: Any) -> Diff:
        gates.append(Commit())
        return msgspec.structs.replace(whole(*args, **more), commit=gates[-1])

    monkeypatch.setattr(server.engine, "diff", diff)
    return gates


def test_what_was_read_is_told_when_its_commit_is_done_and_what_came_meanwhile_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("t")
        client = await server.talk()
        await subscribe(client, topic="t")
        gates = gate_reads(server, monkeypatch)
        server.append("t")
        await until(lambda: len(gates) == 1)
        server.append("t")
        await client.expect_quiet()
        assert len(gates) == 1
        gates[0].finish()
        assert seqs_of(await client.take("record")) == [2]
        await until(lambda: len(gates) == 2)
        gates[1].finish()
        assert seqs_of(await client.take("record")) == [3]

    play(scenario)


def test_what_was_read_for_a_subscription_that_is_over_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("t")
        client = await server.talk()
        await subscribe(client, topic="t")
        gates = gate_reads(server, monkeypatch)
        server.append("t")
        await until(lambda: len(gates) == 1)
        await client.ask("unsubscribe", topic="t")
        gates[0].finish()
        await client.expect_quiet()

    play(scenario)


def test_a_read_whose_commit_fails_ends_the_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("t")
        client = await server.talk()
        await subscribe(client, topic="t")
        gates = gate_reads(server, monkeypatch)
        server.append("t")
        await until(lambda: len(gates) == 1)
        gates[0].finish(StorageFailed("the disk is gone"))
        (error,) = await client.take("error")
        assert error["code"] == "internal"
        server.append("t")
        await client.expect_quiet()

    play(scenario)


@pytest.mark.parametrize("fails", [False, True])
def test_a_subscription_is_silent_until_its_reply_may_be_given(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("t")
        client = await server.talk()
        await subscribe(client, topic="t")
        session = server.only_session()
        other = await server.talk()
        await subscribe(other, topic="t")
        gate = Commit()
        monkeypatch.setattr(server.engine, "floor_commit", lambda _: gate)
        await client.send("subscribe", topic="t", request_id="again")
        await until(lambda: session._unanswered == 1)
        server.append("t")
        await other.take("record")
        await client.expect_quiet()
        gate.finish(StorageFailed("the disk is gone") if fails else None)
        if fails:
            (error,) = await client.take("error")
            assert (error["code"], error["request_id"]) == ("internal", "again")
            server.append("t")
        else:
            messages = await client.take("subscribed", "record", "caught_up")
            assert seqs_of(messages) == [1, 2]
        await client.expect_quiet()

    play(scenario)


def test_subscribing_again_ends_the_old_backlog_before_its_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("t", 500, data=b'"%b"' % (b"x" * 50_000))
        client = await server.talk(receive_buffer_bytes=4096)
        await client.send("subscribe", topic="t", limit=1)
        await client.take("subscribed", "record")
        gate = Commit()
        monkeypatch.setattr(server.engine, "floor_commit", lambda _: gate)
        await client.send("subscribe", topic="t", tail=True)
        await until(lambda: server.only_session()._unanswered == 1)
        await client.send("ping")
        assert len(await client.until_op("pong")) < 400
        await client.expect_quiet()
        gate.finish()
        await client.take("subscribed", "caught_up")

    play(scenario)


# --- Storage ---------------------------------------------------------------------------------------------


def test_a_cold_read_holds_up_neither_commands_nor_other_topics(tmp_path: Path) -> None:
    tiered = ServerSettings(
        segment_max_events=4, hot_retain_segments=0, cold_dir=str(tmp_path / "cold"), wal_shards=1
    )

    async def scenario(server: WatchServer, syncs: HeldSyncs) -> None:
        await server.put("cold")
        await server.put("warm", durability="memory")
        for number in range(4):
            appended = server.engine.append("cold", [NewRecord(b"%d" % number) for _ in range(4)])
            server.engine.wait_for(appended.commit)
        server.engine.checkpoint()
        assert server.engine.relocate() > 0
        client = await server.talk()
        syncs.is_held = True
        await client.send("subscribe", topics={"cold": {}, "warm": {}})
        await client.take("subscribed")
        server.append("warm")
        assert seqs_of(await client.until_op("record")) == [1]
        await client.expect_quiet()
        syncs.release()
        messages: list[Any] = []
        while not any(m["op"] == "caught_up" and m["topic"] == "cold" for m in messages):
            messages.append(await client.next())
        assert seqs_of(messages) == list(range(1, 17))

    play_on_disk(scenario, tmp_path / "data", tiered)


def test_many_sockets_share_what_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    framed: list[str] = []
    frame_of = fan_out.push_frame

    def push_frame(op: str, lines: bytes) -> bytes:
        framed.append(op)
        return frame_of(op, lines)

    monkeypatch.setattr(fan_out, "push_frame", push_frame)

    async def scenario(server: WatchServer) -> None:
        server.append("t")
        clients = [await server.talk() for _ in range(20)]
        for client in clients:
            await subscribe(client, topic="t")
        before = server.watch.fan_out.batches.rendered
        framed.clear()
        server.append("t", 5)
        frames = await asyncio.gather(*(client.next_text() for client in clients))
        assert len(set(frames)) == 1
        assert server.watch.fan_out.batches.rendered == before + 1
        assert framed == ["record"]

    play(scenario)
