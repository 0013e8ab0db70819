"""Broadcast of shared batches: order, slow clients, and connections that end in between."""

from __future__ import annotations

import asyncio
import re
import socket
from itertools import pairwise
from operator import length_hint
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.clock import SystemClock
from everlog.server.http_connection import HttpConnection
from everlog.server.socket_session import SocketSession
from everlog.server.watch_stream import WatchStream
from tests.support.effort import effort
from tests.support.http_peers import poll_sockets, request_bytes, until
from tests.support.watch_servers import Frame, SseClient, WatchServer, WebSocketClient, play

KIB = 1024
# The smallest buffers that the kernel gives: nearly everything is taken in part.
TINY_BYTES = 2 * KIB
LOOPS = ["uvloop", "asyncio"]
JSON = b"Content-Type: application/json\r\n"


class HurriedClock(SystemClock):
    """A clock on which every slice of time is over when it is looked at."""

    def __init__(self) -> None:
        self._ahead_ns = 0

    def monotonic_ns(self) -> int:
        """Later than ever."""
        self._ahead_ns += 10_000_000
        return super().monotonic_ns() + self._ahead_ns


def connections_of(server: WatchServer) -> list[HttpConnection]:
    """All connections of the server."""
    return list(server.http._connections)


async def live_clients(server: WatchServer, count: int, receive_buffer_bytes: int = 0) -> list[SseClient]:
    """So many watchers of topic `a` that are at the head."""
    clients = []
    for _ in range(count):
        wid = await server.session({"a": {"tail": True}})
        client = await server.open(wid, receive_buffer_bytes=receive_buffer_bytes)
        await client.take("caught-up")
        clients.append(client)
    return clients


def count_deliveries(
    monkeypatch: pytest.MonkeyPatch, kind: type[WatchStream] | type[SocketSession] = WatchStream
) -> list[Any]:
    """The watchers that are delivered to on their own from now on."""
    delivered: list[Any] = []
    deliver = kind.deliver

    def counted(watcher: Any) -> None:
        delivered.append(watcher)
        deliver(watcher)

    monkeypatch.setattr(kind, "deliver", counted)
    return delivered


@pytest.mark.parametrize("loop", LOOPS)
def test_watchers_at_the_head_share_a_batch(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("a")
        clients = await live_clients(server, 20)
        delivered = count_deliveries(monkeypatch)
        for seq in (1, 2):
            server.append("a")
            frames = [(await client.take("record"))[0] for client in clients]
            assert len({frame.text for frame in frames}) == 1
            assert (frames[0].seqs, frames[0].id) == ([seq], {"a": seq})
        assert delivered == []
        # Only one of the two loops has transports whose sockets may be written to directly.
        watching = [connection for connection in connections_of(server) if connection._exchanges]
        assert {connection.is_direct for connection in watching} == {loop == "uvloop"}

    play(scenario, loop=loop)


def test_others_are_asked_and_get_what_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("a")
        await server.put("b")
        first, last = await live_clients(server, 1), await live_clients(server, 1)
        both = await server.follow({"a": {"tail": True}, "b": {"tail": True}})
        await both.take("caught-up", "caught-up")
        bare = await server.follow({"a": {"tail": True}}, include_data=False, node="me")
        await bare.take("caught-up")
        delivered = count_deliveries(monkeypatch)
        server.append("a", node="me")
        assert (await both.take("record"))[0].id == {"a": 1, "b": 0}
        server.append("a")
        for client in (*first, *last):
            assert [frame.seqs for frame in await client.take("record", "record")] == [[1], [2]]
        (frame,) = await bare.take("record")
        assert frame.seqs == [2] and "data" not in frame.data["records"][0]
        assert {len(watch._cursors) for watch in delivered} == {1, 2}

    play(scenario)


def records_of(frames: list[Frame]) -> list[int]:
    """The seqs of all records, which must follow each other from frame to frame."""
    records = [frame for frame in frames if frame.event == "record"]
    for before, after in pairwise(records):
        assert after.data["from_seq"] == before.data["to_seq"]
    assert all(frame.id == {"a": frame.data["to_seq"]} for frame in records)
    return [seq for frame in records for seq in frame.seqs]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3), st.sampled_from([10, 3000, 40_000])),
        st.tuples(st.just("read"), st.integers(0, 3), st.integers(1, 5)),
        st.tuples(st.just("settle"), st.just(0), st.just(0)),
    ),
    min_size=5,
    max_size=40,
)


@settings(max_examples=effort(15), deadline=None)
@given(steps=STEPS)
def test_readers_of_any_speed_get_every_record_once_and_in_order(steps: list[tuple[str, int, int]]) -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("a")
        clients = await live_clients(server, 4, TINY_BYTES)
        for connection in connections_of(server):
            accepted = connection.transport.get_extra_info("socket")
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, TINY_BYTES)
        taken: list[list[Frame]] = [[] for _ in clients]
        head_seq = 0
        for kind, number, size in steps:
            if kind == "append":
                server.append("a", number, data=b'"%b"' % (b"x" * size))
                head_seq += number
                await poll_sockets()
            elif kind == "read":
                for _ in range(size):
                    if len(records_of(taken[number])) < head_seq:
                        taken[number].append(await clients[number].next())
            else:
                await poll_sockets()
        for client, frames in zip(clients, taken, strict=True):
            while len(records_of(frames)) < head_seq:
                frames.append(await client.next())
            assert records_of(frames) == list(range(1, head_seq + 1))

    play(scenario)


def test_connections_that_end_in_the_middle_of_a_broadcast_end_alone() -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("a")
        clients = await live_clients(server, 40)
        fan_out = server.watch.fan_out
        watchers = list(fan_out._topics["a"].watchers)
        server.append("a")
        while not fan_out._unserved or not 24 <= length_hint(fan_out._unserved[0][1]) <= 32:
            assert all(watch.at_head is not None for watch in watchers[20:]), "the broadcast goes on"
            await asyncio.sleep(0)
        # One is let go by the server, one resets its connection, and one has a new client on its number.
        aborted, reset, closed = watchers[30], clients[31], watchers[32]
        assert isinstance(aborted, WatchStream) and isinstance(closed, WatchStream)
        aborted._stream.abort()
        reset.peer.reset()
        closed.shut_down()
        fresh = await server.connect()
        for number, client in enumerate(clients):
            if number not in (30, 31, 32):
                (frame,) = await client.take("record")
                assert frame.seqs == [1]
        (error,) = await clients[32].take("error")
        assert error.data["code"] == "server_shutting_down"
        assert await clients[30].peer.rest() == b""
        answer = await fresh.ask(request_bytes(b"/v0/topics/a"))
        assert answer.status == 200 and fresh.received == b"", "a stranger gets nothing of it"
        aborted.end()
        await until(lambda: len(server.watch.streams) == 37)

    play(scenario, clock=HurriedClock())


def test_a_client_that_was_reset_does_not_hold_up_the_others() -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("a")
        clients = await live_clients(server, 3)
        clients[1].peer.reset()
        # In the same turn: the server does not know of the reset when it sends.
        server.append("a")
        for client in (clients[0], clients[2]):
            assert (await client.take("record"))[0].seqs == [1]
        await until(lambda: len(server.watch.streams) == 2)

    play(scenario)


def test_a_session_goes_on_behind_what_was_passed_to_its_stream() -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("a")
        wid = await server.session({"a": {}})
        first = await server.open(wid)
        await first.take("caught-up")
        server.append("a", 2)
        await first.take("record")
        # A second stream takes over while the first one is open.
        second = await server.open(wid)
        (caught_up,) = await second.take("caught-up")
        assert caught_up.id == {"a": 2}
        server.append("a")
        for client in (first, second):
            (record,) = await client.take("record")
            assert (record.seqs, record.id) == ([3], {"a": 3})
        await server.leave(first)
        await server.leave(second)
        server.append("a")
        third = await server.open(wid)
        assert (await third.take("record", "caught-up"))[0].seqs == [4]

    play(scenario)


def test_a_frame_of_another_kind_tells_how_far_the_passed_ones_were() -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("a")
        (client,) = await live_clients(server, 1)
        server.append("a", 3)
        await client.take("record")
        server.delete("a")
        (deleted,) = await client.take("topic-deleted")
        assert deleted.id == {"a": 3} and deleted.data["head_seq"] == 3

    play(scenario)


def test_answers_of_appends_keep_their_order_for_a_client_that_does_not_read() -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("a")
        peer = await server.connect(TINY_BYTES)
        await until(lambda: any(not connection._exchanges for connection in connections_of(server)))
        for connection in connections_of(server):
            accepted = connection.transport.get_extra_info("socket")
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, TINY_BYTES)
        requests = 700
        # Long answers: each names the seqs of all its records.
        body = b'{"records":[%b]}' % b",".join([b'{"data":1}'] * 150)

        async def send_all() -> None:
            for _ in range(requests):
                await peer.send(request_bytes(b"/v0/topics/a", body, extra=JSON))
                await asyncio.sleep(0)

        sending = asyncio.create_task(send_all())
        await until(lambda: any(connection.is_write_paused for connection in connections_of(server)))
        firsts = []
        for _ in range(requests):
            answer = await peer.response()
            found = re.search(rb'"first_seq":(\d+)', answer.body)
            assert found is not None, answer
            firsts.append(int(found[1]))
        await sending
        assert firsts == list(range(1, 150 * requests, 150))

    play(scenario)


# --- WebSockets ------------------------------------------------------------------------------------------


async def live_sockets(
    server: WatchServer, count: int, receive_buffer_bytes: int = 0
) -> list[WebSocketClient]:
    """So many sockets that are at the head of topic `a`."""
    clients = []
    for _ in range(count):
        client = await server.talk(receive_buffer_bytes=receive_buffer_bytes)
        await client.send("subscribe", topic="a")
        await client.take("subscribed", "caught_up")
        clients.append(client)
    return clients


def test_sockets_at_the_head_share_a_batch_with_streams_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("a")
        sockets = await live_sockets(server, 3)
        streams = await live_clients(server, 2)
        sockets += await live_sockets(server, 3)
        delivered = count_deliveries(monkeypatch, SocketSession)
        for seq in (1, 2):
            server.append("a")
            for socket_client in sockets:
                (record,) = await socket_client.take("record")
                assert (record["from_seq"], record["to_seq"]) == (seq - 1, seq)
            for stream in streams:
                assert (await stream.take("record"))[0].id == {"a": seq}
        assert delivered == []
        # After a command the next record is delivered to this socket on its own.
        assert (await sockets[0].ask("ping"))["op"] == "pong"
        for seq in (3, 4):
            server.append("a")
            (record,) = await sockets[0].take("record")
            assert record["to_seq"] == seq
        assert len(delivered) == 1
        for stream in streams:
            stream.close()

    play(scenario)


def test_the_reply_to_a_publish_comes_before_its_own_record() -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("a")
        (client,) = await live_sockets(server, 1)
        for seq in (1, 2, 3):
            await client.send("publish", topic="a", records=[{"data": seq}])
            acknowledged, record = await client.take("ack", "record")
            assert acknowledged["last_seq"] == record["to_seq"] == seq

    play(scenario)


def test_a_socket_that_left_a_topic_during_a_broadcast_gets_nothing_of_it() -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("a")
        await server.put("b")
        client = await server.talk()
        await client.send("subscribe", topic="b")
        await client.take("subscribed", "caught_up")
        session = server.only_session()
        cursor = session.at_head
        assert cursor is not None
        server.append("a")
        await poll_sockets()
        fan_out = server.watch.fan_out
        fan_out._unserved.append(("a", iter([session])))
        # Except for the name its cursor is valid in the other topic.
        epoch, cursor.epoch = cursor.epoch, server.engine.state("a").epoch
        assert fan_out.drain(1 << 62)
        cursor.epoch = epoch
        server.append("b")
        (record,) = await client.take("record")
        assert record["topic"] == "b"
        await client.expect_quiet()

    play(scenario)


def test_nothing_comes_behind_the_frame_that_ends_a_conversation(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("a")
        (client,) = await live_sockets(server, 1)
        session = server.only_session()
        assert session.at_head is not None
        # A reserved opcode: the server says so and closes, and waits for nothing.
        await client.peer.send(b"\x8b\x80\0\0\0\0")
        await until(lambda: session._socket._is_closing)
        for _ in range(3):
            server.append("a")
            await poll_sockets()
        assert await client.closed() == 1002

    play(scenario)
    assert caplog.records == [], "no send was tried"


def test_a_socket_of_a_slow_client_gets_every_record_in_order() -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("a")
        slow, quick = await live_sockets(server, 1, TINY_BYTES), await live_sockets(server, 1)
        for connection in connections_of(server):
            accepted = connection.transport.get_extra_info("socket")
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, TINY_BYTES)
        for size in (10, 60_000, 10, 60_000, 10, 10, 60_000, 10):
            server.append("a", data=b'"%b"' % (b"x" * size))
            await quick[0].take("record")
        seqs: list[int] = []
        while len(seqs) < 8:
            (message,) = await slow[0].take("record")
            assert message["from_seq"] == len(seqs)
            seqs += [record["$seq"] for record in message["records"]]
        assert seqs == list(range(1, 9))

    play(scenario)
