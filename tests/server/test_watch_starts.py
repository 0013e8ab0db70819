"""Where watches begin and what they follow: times, consumers, filters and names that end in `*`."""

from __future__ import annotations

import asyncio
import http.client
import time
from collections.abc import Awaitable
from typing import Any

import msgspec
import pytest

from everlog.api_types import ConsumerAtRisk, Durability
from everlog.server.auth import KeyRing
from everlog.server.settings import ServerSettings
from everlog.server.watch_journal import FRAMES_MAX, FrameJournal
from everlog.server.watch_starts import MATCHED_MAX
from everlog.topics import NewRecord, TopicConfig
from everlog.topics.delivery.consumers import Start
from tests.support.http_peers import until
from tests.support.timings import assert_short, repeated_if_slow
from tests.support.watch_servers import Frame, SseClient, WatchServer, bearer, play

KEYED = ServerSettings(api_keys=KeyRing.parse("alpha:r:a.,beta:rw"))
PRICED = ["data.price", "Gt", 2]


def append(server: WatchServer, name: str, *prices: int) -> None:
    records = [NewRecord(b'{"price":%d}' % price, "eu" if price % 2 else "us") for price in prices]
    server.engine.append(name, records)
    server.app.turn_soon()


async def records_of(client: SseClient) -> list[int]:
    """The seqs up to the end of the backlog of one topic."""
    frames = await client.until_event("caught-up")
    return [seq for frame in frames if frame.event == "record" for seq in frame.seqs]


@pytest.mark.parametrize(
    ("entry", "seqs"),
    [
        ({"from_time_ms": 0}, [1, 2, 3, 4]),
        ({"from_time_ms": 2**50}, []),
        ({"consumer": "c"}, [3, 4]),
        ({"consumer": "filtered"}, [3]),
        ({"filter": PRICED}, [3, 4]),
        ({"filter": ["tag", "Eq", "eu"]}, [1, 3]),
        ({"from_seq": 1, "filter": ["and", ["tag", "Eq", "eu"], PRICED]}, [3]),
        ({"filter": ["tag", "Eq", "none"]}, []),
    ],
)
@pytest.mark.parametrize("kind", ["stream", "socket"])
def test_an_entry_says_where_to_begin_and_what_is_wanted(
    entry: dict[str, Any], seqs: list[int], kind: str
) -> None:
    async def scenario(server: WatchServer) -> None:
        append(server, "t", 1, 2, 3, 4)
        server.engine.consumers.put("t", "c", Start(seq=3))
        server.engine.consumers.put("t", "filtered", filter='["tag","Eq","eu"]', start=Start(seq=2))
        if kind == "stream":
            stream = await server.follow({"t": entry})
            assert await records_of(stream) == seqs
            append(server, "t", 9)
            if "filter" not in entry or entry["filter"] != ["tag", "Eq", "none"]:
                (frame,) = await stream.take("record")
                assert frame.seqs == [5]
            stream.close()
            return
        client = await server.talk()
        await client.send("subscribe", topic="t", **entry)
        await client.take("subscribed")
        found = await client.until_op("caught_up")
        assert [each["$seq"] for push in found[:-1] for each in push["records"]] == seqs
        await client.close()

    play(scenario)


def test_what_does_not_match_moves_the_cursor_and_is_not_read_again() -> None:
    async def scenario(server: WatchServer) -> None:
        append(server, "t", 1, 1, 1)
        wid = await server.session({"t": {"filter": PRICED}})
        stream = await server.open(wid)
        (end,) = await stream.take("caught-up")
        assert end.id == {"t": 3}
        append(server, "t", 1)
        append(server, "t", 5)
        (frame,) = await stream.take("record")
        assert (frame.seqs, frame.data["from_seq"] <= 4, frame.data["to_seq"]) == ([5], True, 5)
        await server.leave(stream)
        session = server.watch.sessions.find(wid)
        assert session is not None and session.positions["t"].seq == 5

    play(scenario)


@pytest.mark.parametrize(
    "entry",
    [
        {"from_seq": 0, "from_time_ms": 0},
        {"tail": True, "from_time_ms": 0},
        {"consumer": "c", "from_seq": 0},
        {"consumer": "c", "tail": True},
        {"from_time_ms": -1},
        {"filter": ["tag", "Lt", "x"]},
        {"filter": 7},
    ],
)
def test_an_entry_that_contradicts_itself_is_refused(entry: dict[str, Any]) -> None:
    async def scenario(server: WatchServer) -> None:
        append(server, "t", 1)
        server.engine.consumers.put("t", "c")
        answer = await server.ask("POST", "/v0/watch", {"topics": {"t": entry}})
        assert (answer.status, answer.code) == (400, "invalid_request")
        client = await server.talk()
        assert (await client.ask("subscribe", topics={"t": entry}))["code"] == "invalid_request"
        await client.close()

    play(scenario)


def test_an_absent_consumer_is_not_found_and_a_pattern_has_none() -> None:
    async def scenario(server: WatchServer) -> None:
        append(server, "t", 1)
        answer = await server.ask("POST", "/v0/watch", {"topics": {"t": {"consumer": "none"}}})
        assert (answer.status, answer.code) == (404, "consumer_not_found")
        answer = await server.ask("POST", "/v0/watch", {"topics": {"t*": {"consumer": "none"}}})
        assert (answer.status, answer.code) == (400, "invalid_request")

    play(scenario)


# --- Patterns --------------------------------------------------------------------------------------------


async def frames_by_topic(client: SseClient, count: int) -> dict[str, list[Frame]]:
    found: dict[str, list[Frame]] = {}
    for _ in range(count):
        frame = await client.next()
        found.setdefault(frame.data["topic"], []).append(frame)
    return found


def events(frames: list[Frame]) -> list[str]:
    return [frame.event for frame in frames]


def test_topics_of_a_pattern_are_followed_and_later_ones_join() -> None:
    async def scenario(server: WatchServer) -> None:
        append(server, "a.1", 1)
        append(server, "b", 1)
        answer = await server.ask("POST", "/v0/watch", {"topics": {"a.*": {}}})
        assert list(answer.json["topics"]) == ["a.1"]
        stream = await server.open(answer.json["wid"])
        found = await frames_by_topic(stream, 2)
        assert events(found["a.1"]) == ["record", "caught-up"]
        append(server, "a.2", 1, 2)
        append(server, "b", 2)
        found = await frames_by_topic(stream, 3)
        assert events(found["a.2"]) == ["topic-created", "record", "caught-up"]
        assert found["a.2"][1].seqs == [1, 2]
        server.delete("a.1")
        assert events([await stream.next()]) == ["topic-deleted"]
        append(server, "a.1", 7)
        found = await frames_by_topic(stream, 3)
        assert events(found["a.1"]) == ["topic-created", "record", "caught-up"]
        stream.close()

    play(scenario)


def test_a_stream_of_a_pattern_goes_on_where_its_client_was_and_finds_what_came_meanwhile() -> None:
    async def scenario(server: WatchServer) -> None:
        append(server, "a.1", 1)
        append(server, "a.2", 1)
        wid = await server.session({"a.*": {}})
        stream = await server.open(wid)
        before = [await stream.next() for _ in range(4)]
        append(server, "a.3", 1)
        append(server, "a.1", 2)
        for _ in range(4):
            await stream.next()
        append(server, "a.4", 1)
        await server.leave(stream)
        last = before[-1].text.partition(b"id: ")[2].decode()
        stream = await server.open(wid, {"Last-Event-ID": last})
        found = await frames_by_topic(stream, 9)
        assert [frame.seqs for frame in found["a.1"] if frame.event == "record"] == [[2]]
        assert [frame.event for frame in found["a.2"]] == ["caught-up"]
        for name in ("a.3", "a.4"):
            assert events(found[name]) == ["topic-created", "record", "caught-up"]
        stream.close()

    play(scenario)


def test_a_pattern_without_a_topic_waits_for_one_and_ids_stay_small() -> None:
    async def scenario(server: WatchServer) -> None:
        stream = await server.follow({"x*": {"filter": PRICED}})
        for number in range(50):
            append(server, f"x{number:03}", 1, 5)
        seen: dict[str, list[int]] = {}
        while len(seen) < 50:
            frame = await stream.next()
            assert len(frame.text) < 400
            if frame.event == "record":
                seen[frame.data["topic"]] = frame.seqs
        assert all(seqs == [2] for seqs in seen.values())
        stream.close()

    play(scenario)


def test_a_key_with_prefixes_gets_only_its_topics_of_a_pattern() -> None:
    async def scenario(server: WatchServer) -> None:
        append(server, "a.1", 1)
        append(server, "b.1", 1)
        headers = {"Authorization": "Bearer alpha"}
        answer = await server.ask("POST", "/v0/watch", {"topics": {"*": {}}}, headers)
        assert list(answer.json["topics"]) == ["a.1"]
        answer = await server.ask("POST", "/v0/watch", {"topics": {"b*": {}}}, headers)
        assert (answer.status, answer.code) == (403, "forbidden")
        stream = await server.open(await server.session({"*": {}}, "alpha"), headers)
        await stream.take("record", "caught-up")
        append(server, "b.2", 1)
        append(server, "a.2", 1)
        (created,) = await stream.take("topic-created")
        assert created.data["topic"] == "a.2"
        stream.close()
        client = await server.talk(bearer("alpha"))
        assert (await client.ask("subscribe", topics={"b.*": {}}))["code"] == "forbidden"
        await client.close()

    play(scenario, settings=KEYED)


def test_a_socket_follows_patterns_until_it_unsubscribes() -> None:
    async def scenario(server: WatchServer) -> None:
        append(server, "a.1", 1)
        client = await server.talk()
        subscribed = await client.ask("subscribe", topics={"a.*": {}})
        assert list(subscribed["topics"]) == ["a.1"]
        await client.take("record", "caught_up")
        append(server, "a.2", 1)
        created, *_ = await client.take("topic_created", "record", "caught_up")
        assert created["topic"] == "a.2"
        assert (await client.ask("unsubscribe", topics=["a.*"]))["op"] == "unsubscribed"
        append(server, "a.3", 1)
        append(server, "a.1", 1)
        await client.expect_quiet()
        await client.close()

    play(scenario)


def test_many_topics_join_in_steps_and_more_than_the_bound_are_refused() -> None:
    async def scenario(server: WatchServer) -> None:
        for number in range(1000):
            server.engine.append(f"m.{number:05}", [NewRecord(b"1")])
        server.app.turn_soon()
        answer = await server.ask("POST", "/v0/watch", {"topics": {"m.*": {"tail": True}}})
        assert len(answer.json["topics"]) == 1000
        stream = await server.open(answer.json["wid"])
        caught_up = {(await stream.next()).data["topic"] for _ in range(1000)}
        assert len(caught_up) == 1000
        append(server, "m.00500", 1)
        (frame,) = await stream.take("record")
        assert (frame.data["topic"], frame.seqs) == ("m.00500", [2])
        await server.leave(stream)
        for number in range(1000, MATCHED_MAX + 1):
            server.engine.append(f"m.{number:05}", [NewRecord(b"1")])
        answer = await server.ask("POST", "/v0/watch", {"topics": {"m.*": {}}})
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert str(MATCHED_MAX) in answer.json["error"]["message"]
        await until(lambda: True)

    play(scenario)


def test_a_journal_that_has_forgotten_says_so() -> None:
    journal = FrameJournal()
    journal.begin({"a": (3, 1)})
    numbers = [journal.note("a", seq, 1) for seq in range(3, 10)]
    assert journal.before(numbers[-1]) == {}
    assert journal.before(numbers[2]) == {"a": (6, 1)}
    assert journal.before(0) == {"a": (3, 1)}
    for _ in range(FRAMES_MAX):
        journal.note("b", 1, 2)
    assert journal.before(0) is None
    assert journal.start == {"a": (3, 1)}
    last = journal.note("b", 2, 2)
    journal.begin({"a": (10, 1), "b": (2, 2)})
    assert journal.before(last - 5) == {}


def test_a_watch_of_a_consumer_is_warned_before_retention_passes_it() -> None:
    async def scenario(server: WatchServer) -> None:
        server.engine.put_topic("t", TopicConfig(cap_records=100))
        append(server, "t", *range(100))
        server.engine.consumers.put("t", "c", Start(seq=20))
        stream = await server.follow({"t": {"consumer": "c"}})
        plain = await server.follow({"t": {"tail": True}})
        await stream.until_event("caught-up")
        await plain.until_event("caught-up")
        append(server, "t", *range(12))
        warning = (await stream.until_event("consumer-at-risk"))[-1]
        risk = warning.data
        assert (risk["topic"], risk["consumer"], risk["cursor"]) == ("t", "c", 19)
        assert risk["evict_floor"] - 1 <= risk["cursor"], "nothing that it has not read is gone"
        assert warning.id is None, "it moves no cursor"
        late = await server.follow({"t": {"consumer": "c"}})
        assert [frame.data for frame in await late.take("consumer-at-risk")] == [risk]
        append(server, "t", 99)
        while 113 not in (await plain.take("record"))[0].seqs:
            pass
        for each in (stream, plain, late):
            each.close()

    play(scenario)


def test_a_socket_of_a_consumer_is_warned_before_retention_passes_it() -> None:
    async def scenario(server: WatchServer) -> None:
        server.engine.put_topic("t", TopicConfig(cap_records=100))
        append(server, "t", *range(100))
        server.engine.consumers.put("t", "c", Start(seq=20))
        client, plain = await server.talk(), await server.talk()
        await client.send("subscribe", topic="t", consumer="c")
        await plain.send("subscribe", topic="t", tail=True)
        await client.until_op("caught_up")
        await plain.until_op("caught_up")
        append(server, "t", *range(12))
        risk = (await client.until_op("consumer_at_risk"))[-1]
        assert (risk["topic"], risk["consumer"], risk["cursor"]) == ("t", "c", 19)
        assert risk["evict_floor"] - 1 <= risk["cursor"], "nothing that it has not read is gone"
        await client.send("subscribe", topic="t", consumer="c")
        again = await client.until_op("consumer_at_risk")
        assert (again[0]["op"], again[-1]) == ("subscribed", risk), "nothing comes before the reply"
        await client.send("unsubscribe", topic="t")
        await client.until_op("unsubscribed")
        server.engine.consumers.on_at_risk(ConsumerAtRisk("t", "c", 19, 20, 112))  # type: ignore[misc]
        await client.send("ping")
        await client.take("pong")
        await plain.send("ping")
        assert "consumer_at_risk" not in [push["op"] for push in await plain.until_op("pong")]
        await client.close()
        await plain.close()

    play(scenario)


# --- Many topics -----------------------------------------------------------------------------------------


async def longest_turn_ms(work: Awaitable[Any]) -> float:
    """The processor time of the longest turn of the loop until something is done."""
    task = asyncio.ensure_future(work)
    longest_ns, before_ns = 0, time.thread_time_ns()
    while not task.done():
        await asyncio.sleep(0)
        now_ns = time.thread_time_ns()
        longest_ns, before_ns = max(longest_ns, now_ns - before_ns), now_ns
    await task
    return longest_ns / 1e6


def post(address: tuple[str, int], path: str, body: bytes) -> int:
    """Send a request from another thread, whose time does not count."""
    connection = http.client.HTTPConnection(*address, timeout=60)
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


@repeated_if_slow
@pytest.mark.parametrize("kind", ["pattern", "names", "socket"])
def test_no_turn_of_the_loop_is_long_when_a_watch_of_10_000_topics_begins(kind: str) -> None:
    async def scenario(server: WatchServer) -> None:
        names = [f"many:{number:05}" for number in range(MATCHED_MAX - 1)]
        for name in names:
            server.engine.append(name, [NewRecord(b"1")], config=TopicConfig(durability=Durability.EPHEMERAL))
        wanted: dict[str, Any] = {"many:*": {}}
        if kind == "names":
            wanted |= {name: {"tail": True} for name in names}
        if kind == "socket":
            client = await server.talk()
            session = server.only_session()
            await client.send("subscribe", topics=wanted)
            followed = session._subscriptions
            longest_ms = await longest_turn_ms(
                until(lambda: len(followed) == len(names) and followed[names[-1]].is_active)
            )
            await client.until_op("subscribed")
            client.peer.close()
            await server.until_no_sockets()
        else:
            body = msgspec.json.encode({"topics": wanted})
            loop = asyncio.get_running_loop()
            posted = loop.run_in_executor(None, post, server.address, "/v0/watch", body)
            longest_ms = await longest_turn_ms(posted)
            assert (posted.result(), len(server.watch.sessions)) == (200, 1)
        assert_short([longest_ms])

    play(scenario)
