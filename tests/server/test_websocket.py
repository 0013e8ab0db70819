"""The WebSocket protocol over real sockets: handshake, frames, limits, flow control and every kind of end."""

from __future__ import annotations

import base64
import struct
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wsproto.events import TextMessage

from everlog.server import websocket
from everlog.server.auth import KeyRing
from everlog.server.http_exchange import HttpLimits
from everlog.server.settings import ServerSettings
from everlog.server.socket_session import UNANSWERED_MAX
from everlog.server.websocket import JOINED_BYTES, QUEUE_MESSAGES, text_frame
from tests.support.effort import effort
from tests.support.http_peers import LOOPS, poll_sockets, until
from tests.support.watch_servers import WatchServer, WebSocketClient, bearer, play, upgrade_request

KEYED = ServerSettings(api_keys=KeyRing.parse("alpha,beta:r:b"))
PING = '{"op":"ping","request_id":7}'
PONG = {"op": "pong", "request_id": 7}
MASK = b"\0\0\0\0"


def raw_frame(first_byte: int, payload: bytes = b"", *, masked: bool = True) -> bytes:
    """A frame with any first byte; the mask changes nothing."""
    size = len(payload)
    flag = 0x80 if masked else 0
    length = bytes((flag | size,)) if size < 126 else bytes((flag | 126,)) + struct.pack("!H", size)
    return bytes((first_byte,)) + length + (MASK if masked else b"") + payload


# --- Handshake -------------------------------------------------------------------------------------------


def protocols(*words: str) -> dict[str, str | None]:
    return {"Sec-WebSocket-Protocol": ", ".join(words)}


def key_protocol(secret: str) -> str:
    return "everlog.key." + base64.urlsafe_b64encode(secret.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    ("headers", "status", "chosen"),
    [
        (protocols("everlog", key_protocol("alpha")), 101, b"everlog"),
        (protocols(key_protocol("alpha"), "everlog"), 101, b"everlog"),
        (protocols(key_protocol("alpha")), 101, None),
        (protocols("everlog"), 401, None),
        (protocols("everlog", key_protocol("wrong")), 401, None),
        (protocols("everlog", "everlog.key.!"), 401, None),
        (protocols("everlog", "everlog.key."), 401, None),
        ({**bearer("alpha"), **protocols("everlog")}, 101, b"everlog"),
        ({**bearer("wrong"), **protocols("everlog", key_protocol("alpha"))}, 401, None),
        ({}, 401, None),
    ],
)
def test_a_key_may_come_as_a_subprotocol(
    headers: dict[str, str | None], status: int, chosen: bytes | None
) -> None:
    async def scenario(server: WatchServer) -> None:
        response = await server.upgrade(headers)
        assert response.status == status
        assert response.headers.get(b"sec-websocket-protocol") == chosen
        assert (await server.upgrade(None, "/v0/ws?token=alpha")).status == 401

    play(scenario, settings=KEYED)


@pytest.mark.parametrize("loop", LOOPS)
def test_an_upgrade_is_accepted_with_the_token_of_the_key(loop: str) -> None:
    async def scenario(server: WatchServer) -> None:
        response = await server.upgrade()
        assert response.status == 101
        assert response.headers[b"upgrade"].lower() == b"websocket"
        assert response.headers[b"connection"].lower() == b"upgrade"
        assert response.headers[b"sec-websocket-accept"] == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        assert b"sec-websocket-extensions" not in response.headers
        await server.until_no_sockets()

    play(scenario, loop=loop)


@pytest.mark.parametrize(
    "headers",
    [
        {"Upgrade": None},
        {"Upgrade": "h2c"},
        {"Connection": "keep-alive"},
        {"Sec-WebSocket-Key": None},
        {"Sec-WebSocket-Key": "dG9vIHNob3J0"},
        {"Sec-WebSocket-Key": "!" * 24},
        {"Sec-WebSocket-Version": None},
        {"Sec-WebSocket-Version": "8"},
    ],
)
def test_what_is_no_handshake_is_refused_and_takes_no_slot(headers: dict[str, str | None]) -> None:
    async def scenario(server: WatchServer) -> None:
        response = await server.upgrade(headers)
        assert response.status == 400
        assert msgspec.json.decode(response.body)["error"]["code"] == "invalid_request"
        assert (b"sec-websocket-version" in response.headers) == ("Sec-WebSocket-Version" in headers)
        assert server.sockets.slots.taken == 0

    play(scenario)


def test_only_get_upgrades() -> None:
    async def scenario(server: WatchServer) -> None:
        assert (await server.upgrade(method="HEAD")).status == 400
        assert (await server.upgrade(method="POST")).status == 405

    play(scenario)


def test_the_upgrade_needs_a_key_in_the_header_and_none_in_the_url() -> None:
    async def scenario(server: WatchServer) -> None:
        for headers, target, status in (
            ({}, "/v0/ws", 401),
            ({}, "/v0/ws?token=alpha", 401),
            (bearer("wrong"), "/v0/ws", 401),
            (bearer("wrong"), "/v0/ws?token=alpha", 401),
            (bearer("alpha"), "/v0/ws", 101),
        ):
            response = await server.upgrade(headers, target)
            assert response.status == status, (headers, target)
            if status == 401:
                assert msgspec.json.decode(response.body)["error"]["code"] == "unauthorized"

    play(scenario, settings=KEYED)


@pytest.mark.parametrize(
    ("origin", "allowed", "status"),
    [
        ("http://localhost", (), 101),
        ("https://page.example", (), 403),
        ("null", (), 403),
        ("http://[", (), 403),
        ("https://page.example", ("https://page.example",), 101),
        ("https://other.example", ("https://page.example",), 403),
        ("https://page.example", ("*",), 101),
    ],
)
def test_pages_of_other_sites_connect_only_if_they_are_allowed(
    origin: str, allowed: tuple[str, ...], status: int
) -> None:
    async def scenario(server: WatchServer) -> None:
        assert (await server.upgrade({"Origin": origin})).status == status

    play(scenario, settings=ServerSettings(cors_origins=allowed))


@pytest.mark.parametrize(
    ("limited", "limit"),
    [
        (ServerSettings(api_keys=KEYED.api_keys, max_sse_connections=2), "max_sse_connections"),
        (
            ServerSettings(api_keys=KEYED.api_keys, max_sse_connections_per_key=2),
            "max_sse_connections_per_key",
        ),
    ],
)
def test_sockets_and_watch_streams_share_the_caps_and_give_slots_back(
    limited: ServerSettings, limit: str
) -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("b")
        headers = {"Authorization": "Bearer beta"}
        stream = await server.open(await server.session({"b": {}}, token="beta"), headers)
        client = await server.talk(bearer("beta"))
        response = await server.upgrade(bearer("beta"))
        assert response.status == 429
        assert response.headers[b"retry-after"] == b"1"
        assert msgspec.json.decode(response.body)["error"]["detail"] == {"limit": limit, "max": 2}
        other = await server.upgrade(bearer("alpha"))
        assert other.status == (101 if limit.endswith("per_key") else 429)
        client.peer.reset()
        await until(lambda: server.sockets.open_sockets == 0)
        again = await server.talk(bearer("beta"))
        await again.expect_quiet()
        await again.close()
        await server.leave(stream)

    play(scenario, settings=limited)


def test_what_comes_behind_the_request_is_read() -> None:
    async def scenario(server: WatchServer) -> None:
        peer = await server.connect()
        client = WebSocketClient(peer)
        await peer.send(upgrade_request() + client.masked(TextMessage(data=PING)))
        assert (await peer.head()).status == 101
        assert await client.next() == PONG

    play(scenario)


# --- Frames ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 125, 126, 127, 65535, 65536, 200_000])
def test_a_frame_says_its_length_in_the_shortest_form(size: int) -> None:
    async def scenario(server: WatchServer) -> None:
        client = await server.talk()
        text = "x" * size
        assert (await client.ask("ping", request_id=text))["request_id"] == text

    frame = text_frame(b"x" * size)
    assert frame[0] == 0x81
    heads = {size <= 125: 2, 125 < size <= 65535: 4, size > 65535: 10}
    assert len(frame) == size + heads[True]
    play(scenario)


@settings(max_examples=effort(25), deadline=None)
@given(st.data())
def test_a_message_may_come_in_any_fragments_and_any_pieces(data: st.DataObject) -> None:
    text = data.draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
    message = msgspec.json.encode({"op": "ping", "request_id": text})
    cuts = sorted(data.draw(st.lists(st.integers(0, len(message)), max_size=5)))
    bounds = [0, *cuts, len(message)]
    wire = b""
    for number, (start, end) in enumerate(pairwise(bounds)):
        is_last = number == len(cuts)
        wire += raw_frame((0x80 if is_last else 0) | (number == 0), message[start:end])
        if data.draw(st.booleans()):
            wire += raw_frame(0x89, b"between")
    steps = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=5)))

    async def scenario(server: WatchServer) -> None:
        client = await server.talk()
        for start, end in zip([0, *steps], [*steps, len(wire)], strict=True):
            await client.peer.send(wire[start:end])
        assert await client.next() == {"op": "pong", "request_id": text}

    play(scenario)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_ping_gets_its_payload_back(loop: str) -> None:
    async def scenario(server: WatchServer) -> None:
        client = await server.talk()
        await client.ping(b"are you there")
        await client.until_pong(b"are you there")
        await client.expect_quiet()

    play(scenario, loop=loop)


def test_a_binary_message_is_answered_with_an_error_and_the_socket_stays_open() -> None:
    async def scenario(server: WatchServer) -> None:
        client = await server.talk()
        await client.send_binary(PING.encode())
        await client.peer.send(raw_frame(0x02, b"in two") + raw_frame(0x80, b" parts"))
        for _ in range(2):
            error = await client.next()
            assert error.keys() == {"op", "request_id", "code", "message"}
            assert (error["op"], error["code"], error["request_id"]) == ("error", "unsupported_message", None)
        await client.expect_quiet()

    play(scenario)


def test_a_message_above_the_limit_is_not_kept_and_the_socket_stays_open() -> None:
    async def scenario(server: WatchServer) -> None:
        client = await server.talk()
        fits = PING + " " * (1000 - len(PING))
        await client.send_text(fits)
        assert await client.next() == PONG
        await client.send_text(fits + " ")
        assert (await client.next())["code"] == "payload_too_large"
        await client.peer.send(raw_frame(0x01, b"[" * 100))
        for _ in range(15):
            await client.peer.send(raw_frame(0x00, b"[" * 100))
            await client.ping(b"kept")
            await client.until_pong(b"kept")
            client.pongs.clear()
            assert len(server.only_session()._socket._pieces or b"") <= 1000
        await client.peer.send(raw_frame(0x80, b"]"))
        assert (await client.next())["code"] == "payload_too_large"
        await client.expect_quiet()

    play(scenario, settings=ServerSettings(max_body_bytes=1000))


# --- The end ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("code", [1000, 1001, 4321])
def test_a_close_is_answered_with_its_code_and_ends_the_connection(loop: str, code: int) -> None:
    async def scenario(server: WatchServer) -> None:
        client = await server.talk()
        assert await client.close(code) == code
        await server.until_no_sockets()

    play(scenario, loop=loop)


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (raw_frame(0x81, b"{}", masked=False), "a frame was not masked"),
        (raw_frame(0x83, b"{}"), "a frame had an unknown opcode"),
        (raw_frame(0xC1, b"{}"), "a reserved bit was set, and no extension was agreed on"),
        (raw_frame(0x80, b"{}"), "a message was continued that had not begun"),
        (
            raw_frame(0x01, b"{") + raw_frame(0x81, b"}"),
            "a message began before the one before it was complete",
        ),
        (raw_frame(0x09, b"{"), "a control frame was fragmented"),
        (raw_frame(0x89, b"x" * 126), "a control frame had more than 125 bytes"),
        (raw_frame(0x88, b"x"), "a close frame had an invalid code or reason"),
        (raw_frame(0x88, struct.pack("!H", 1005)), "a close frame had an invalid code or reason"),
        (b"\x81\xff" + struct.pack("!Q", 1 << 63) + MASK, "the length of a frame was not valid"),
    ],
)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_broken_protocol_ends_the_connection_with_the_reason(wire: bytes, reason: str, loop: str) -> None:
    async def scenario(server: WatchServer) -> None:
        client = await server.talk()
        # What comes behind it is not understood, and must not keep the reason from the client.
        await client.peer.send(wire + b"\xff" * 100_000)
        assert (await client.closed(), client.close_reason) == (1002, reason)
        await server.until_no_sockets()

    play(scenario, loop=loop)


def test_unfinished_messages_count_as_bodies_do_and_are_given_back() -> None:
    async def scenario(server: WatchServer) -> None:
        server.http.limits = HttpLimits(max_bodies_bytes=100_000)
        first, second = await server.talk(), await server.talk()
        await first.peer.send(raw_frame(0x01, b" " * 60_000))
        await until(lambda: server.http.bodies_bytes == 60_000)
        await second.peer.send(raw_frame(0x01, b" " * 60_000) + raw_frame(0x80, b'{"op":"ping"}'))
        assert (await second.next())["code"] == "throttled"
        assert server.http.bodies_bytes == 60_000
        await first.peer.send(raw_frame(0x80, b'{"op":"ping"}'))
        assert (await first.next())["op"] == "pong"
        assert server.http.bodies_bytes == 0
        await second.peer.send(raw_frame(0x01, b" " * 60_000))
        await until(lambda: server.http.bodies_bytes == 60_000)
        second.peer.close()
        await until(lambda: server.http.bodies_bytes == 0)

    play(scenario)


def test_all_sockets_of_a_key_hold_so_many_bytes_together() -> None:
    async def scenario(server: WatchServer) -> None:
        clients = [await server.talk(bearer("alpha")) for _ in range(3)]
        other = await server.talk(bearer("beta"))
        for client in clients[:2]:
            await client.peer.send(raw_frame(0x01, b" " * 900))
        await until(lambda: server.http.bodies_bytes == 1800)
        ends = raw_frame(0x01, b" " * 900) + raw_frame(0x80, b'{"op":"ping"}')
        await clients[2].peer.send(ends)
        assert (await clients[2].next())["code"] == "throttled"
        await other.peer.send(ends)
        assert (await other.next())["op"] == "pong"

    keys = KeyRing.parse("alpha,beta")
    play(scenario, settings=ServerSettings(api_keys=keys, max_body_bytes=1000))


def test_a_message_that_is_not_completed_in_time_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "MESSAGE_TIMEOUT_S", 0.05)

    async def scenario(server: WatchServer) -> None:
        client = await server.talk()
        await client.peer.send(raw_frame(0x01, b'{"op":"pi') + raw_frame(0x00, b"ng"))
        assert "was not complete" in (await client.next())["message"]
        assert await client.closed() == 1008
        await server.until_no_sockets()
        assert server.http.bodies_bytes == 0

    play(scenario)


@pytest.mark.parametrize("text", [b"\xff", b'"\xed\xa0\x80"', b"\xc3"])
def test_text_that_is_not_utf_8_is_told_and_ends_the_connection(text: bytes) -> None:
    async def scenario(server: WatchServer) -> None:
        client = await server.talk()
        await client.peer.send(raw_frame(0x81, text))
        assert (await client.next())["code"] == "invalid_json"
        assert await client.closed() == 1007
        await server.until_no_sockets()

    play(scenario)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("how", ["close", "reset", "end_sending"])
def test_a_client_that_goes_away_leaves_nothing_behind(loop: str, how: str) -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("t", 1000, data=b'"%b"' % (b"x" * 1000))
        client = await server.talk(receive_buffer_bytes=4096)
        await client.send("subscribe", topic="t")
        await client.take("subscribed", "record")
        await client.send("publish", topic="t", records=[{"data": 1}])
        getattr(client.peer, how)()
        await server.until_no_sockets()
        assert server.watch.fan_out._topics == {}
        server.append("t")
        client.peer.close()

    play(scenario, loop=loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_server_that_stops_says_so_and_closes(loop: str) -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("t")
        client = await server.talk()
        await client.send("subscribe", topic="t")
        await client.take("subscribed", "record", "caught_up")
        await client.send("publish", topic="t", records=[{"data": 1}], request_id="last")
        await until(lambda: server.engine.state("t").head_seq == 2)
        server.sockets.shut_down()
        server.append("t")
        messages = await client.until_op("error")
        assert messages[-1]["code"] == "server_shutting_down"
        assert messages[-1]["request_id"] is None
        assert [m["request_id"] for m in messages if m["op"] == "ack"] == ["last"]
        assert await client.closed() == 1001
        await server.until_no_sockets()

    play(scenario, loop=loop)


def test_a_client_that_does_not_agree_to_the_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlog.server.websocket.CLOSE_TIMEOUT_S", 0.01)

    async def scenario(server: WatchServer) -> None:
        client = await server.talk()
        server.sockets.shut_down()
        await server.until_no_sockets()
        await client.peer.rest()

    play(scenario)


# --- Slow clients ----------------------------------------------------------------------------------------


def waiting(server: WatchServer) -> tuple[int, int]:
    """Messages in the queue of the only socket, and bytes that its transport has."""
    socket = server.only_session()._socket
    return len(socket._queue), socket._channel.buffered


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_that_does_not_read_delays_no_other_and_costs_a_few_messages(loop: str) -> None:
    batches, size = 60, 100_000

    async def scenario(server: WatchServer) -> None:
        slow = await server.talk(receive_buffer_bytes=4096)
        server.append("t")
        await slow.send("subscribe", topic="t", max_batch_bytes=1)
        await slow.take("subscribed", "record", "caught_up")
        session = server.only_session()
        quick = await server.talk()
        await quick.send("subscribe", topic="t")
        await quick.take("subscribed", "record", "caught_up")
        for number in range(batches):
            server.append("t", data=b'"%b"' % (b"x" * size))
            messages = await quick.until_op("record")
            assert messages[-1]["to_seq"] == number + 2
            queued, buffered = len(session._socket._queue), session._socket._channel.buffered
            assert queued <= QUEUE_MESSAGES
            assert buffered <= size + 1000
        assert len(session._socket._queue) == QUEUE_MESSAGES - 2, "no room for all that a read can give"
        await quick.close()
        seqs: list[int] = []
        while len(seqs) < batches:
            message = await slow.next()
            if message["op"] == "record":
                assert message["from_seq"] == (seqs[-1] if seqs else 1)
                seqs += [record["$seq"] for record in message["records"]]
        assert seqs == list(range(2, batches + 2))
        assert await slow.take("caught_up")
        await slow.expect_quiet()

    play(scenario, loop=loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_commands_of_a_client_that_does_not_read_stay_in_the_kernel(loop: str) -> None:
    async def scenario(server: WatchServer) -> None:
        client = await server.talk(receive_buffer_bytes=4096)
        session = server.only_session()
        text = "x" * 20_000
        wire = client.masked(TextMessage(data=f'{{"op":"ping","request_id":"{text}"}}'))
        sent = 0
        rest = b""
        # Until nothing goes out any more though the server had every chance to take it.
        while not (session._unanswered == UNANSWERED_MAX and rest):
            rest = rest or wire
            taken = client.peer.send_what_fits(rest)
            rest = rest[taken:]
            sent += taken > 0 and not rest
            assert session._unanswered <= UNANSWERED_MAX
            queued, buffered = waiting(server)
            assert queued <= QUEUE_MESSAGES and buffered <= JOINED_BYTES
            await poll_sockets()
        answered = 0
        while answered < sent:
            assert (await client.next())["request_id"] == text
            answered += 1
        await client.peer.send(rest)
        assert (await client.next())["request_id"] == text
        await client.expect_quiet()

    play(scenario, loop=loop)


def test_pings_of_a_client_that_does_not_read_are_not_piled_up() -> None:
    async def scenario(server: WatchServer) -> None:
        client = await server.talk(receive_buffer_bytes=4096)
        server.append("t", 300, data=b'"%b"' % (b"x" * 100_000))
        await client.send("subscribe", topic="t", max_batch_bytes=1)
        await until(lambda: waiting(server)[1] > 0)
        for number in range(2000):
            await client.ping(b"%d" % number)
        socket = server.only_session()._socket
        await until(lambda: socket._pong is not None and socket._pong.endswith(b"1999"))
        assert waiting(server)[1] <= 101_000
        await client.until_pong(b"1999")
        assert len(client.pongs) < 1000

    play(scenario)


def test_many_commands_at_once_are_all_answered() -> None:
    async def scenario(server: WatchServer) -> None:
        client = await server.talk()
        count = 5 * UNANSWERED_MAX
        commands: list[dict[str, Any]] = [
            {"op": "publish", "topic": "t", "create": True, "records": [{"data": n}], "request_id": n}
            for n in range(count)
        ]
        wire = b"".join(client.masked(TextMessage(data=msgspec.json.encode(c).decode())) for c in commands)
        await client.peer.send(wire)
        acks = await client.take(*["ack"] * count)
        assert sorted(ack["request_id"] for ack in acks) == list(range(count))
        assert all(ack["first_seq"] == ack["request_id"] + 1 for ack in acks)

    play(scenario)
