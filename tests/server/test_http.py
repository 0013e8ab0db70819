"""The HTTP server from the outside: requests in, responses out, over real sockets on both event loops."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.clock import NS_PER_S, TestClock
from tests.support.effort import effort
from tests.support.http_peers import HOST, LOOPS, EchoServer, Peer, play, poll_sockets, request_bytes, until

pytestmark = pytest.mark.parametrize("loop", LOOPS)
UPGRADE = b"Connection: Upgrade\r\nUpgrade: echo\r\n"


def test_a_request_may_be_cut_anywhere(loop: str) -> None:
    whole = request_bytes(b"/cut?x=1", b"body", extra=b"A: b\r\nEmpty:\r\n")

    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        for cut in range(1, len(whole)):
            await peer.send(whole[:cut])
            await poll_sockets()
            await peer.send(whole[cut:])
            assert (await peer.response()).body == b"POST /cut x=1 body"
        assert [request.header(b"empty") for request in echo.application.requests] == [b""] * (len(whole) - 1)

    play(loop, scenario)


def test_a_request_may_come_byte_by_byte(loop: str) -> None:
    chunked = (
        b"POST /slow HTTP/1.1\r\n"
        + HOST
        + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    )

    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        for whole, body in ((request_bytes(b"/slow", b"12"), b"12"), (chunked, b"abc")):
            for byte in whole:
                await peer.send(bytes((byte,)))
                await poll_sockets()
            assert (await peer.response()).body == b"POST /slow  " + body

    play(loop, scenario)


def test_the_head_of_a_response_says_what_it_must_and_no_more(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        response = await peer.ask(request_bytes(b"/"))
        assert response.status == 200
        assert response.headers == {
            b"date": b"Tue, 14 Nov 2023 22:13:20 GMT",
            b"content-type": b"application/json",
            b"content-length": b"7",
        }

    play(loop, scenario, clock=TestClock(1_700_000_000 * NS_PER_S))


def test_a_connection_does_not_wait_to_fill_packets(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        await echo.connect()
        (connection,) = echo.server._connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    play(loop, scenario)


@settings(max_examples=effort(15))
@given(order=st.permutations(range(5)))
def test_responses_come_in_the_order_of_requests(loop: str, order: list[int]) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        await peer.send(b"".join(request_bytes(b"/later?%d" % number) for number in range(5)))
        await until(lambda: len(echo.application.later) == 5)
        for number in order:
            echo.application.later[number].respond(200, b"%d" % number)
        assert [(await peer.response()).body for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
        assert (await peer.ask(request_bytes(b"/after"))).status == 200

    play(loop, scenario)


def test_an_answer_at_once_waits_for_an_earlier_one(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        await peer.send(request_bytes(b"/later") + request_bytes(b"/now") + b"NOT HTTP\r\n\r\n")
        await until(lambda: len(echo.application.requests) == 2)
        await poll_sockets()
        with pytest.raises(BlockingIOError):
            peer.sock.recv(1)
        echo.application.later[0].respond(201, b"first")
        assert [(await peer.response()).status for _ in range(3)] == [201, 200, 400]
        assert await peer.rest() == b""

    play(loop, scenario)


def test_head_gets_the_head_alone(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        response = await peer.ask(request_bytes(b"/x", method=b"HEAD"))
        assert (response.status, response.headers[b"content-length"]) == (200, b"9")
        assert (await peer.ask(request_bytes(b"/next"))).body == b"GET /next  "

    play(loop, scenario)


@pytest.mark.parametrize("status", [204, 304])
def test_some_statuses_have_no_body(loop: str, status: int) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        await peer.send(request_bytes(b"/later"))
        await until(lambda: bool(echo.application.later))
        echo.application.later[0].respond(status, b"not sent")
        response = await peer.response()
        assert response.status == status
        assert b"content-length" not in response.headers
        assert (await peer.ask(request_bytes(b"/next"))).body == b"GET /next  "

    play(loop, scenario)


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"])
def test_every_method_is_the_applications(loop: str, method: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        assert (
            await peer.ask(request_bytes(b"/m", method=method.encode()))
        ).body == method.encode() + b" /m  "

    play(loop, scenario)


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/a%2Fb//c?x=1?y", b"/a%2Fb//c", b"x=1?y"),
        (b"/?", b"/", b""),
        (b"http://else.where:80/a/b?c", b"/a/b", b"c"),
        (b"HTTPS://else.where", b"/", b""),
        (b"http://else.where?x=/y", b"/", b"x=/y"),
        (b"http://else.where/?http://z/", b"/", b"http://z/"),
        (b"*", b"*", b""),
    ],
)
def test_a_target_is_split_and_not_decoded(loop: str, target: bytes, path: bytes, query: bytes) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        await peer.ask(request_bytes(target))
        request = echo.application.requests[0]
        assert (request.path, request.query) == (path, query)

    play(loop, scenario)


def test_headers_are_lower_case_trimmed_and_joined(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        await peer.ask(
            request_bytes(b"/", extra=b"X-A: 1 \t\r\nx-b:\r\nX-a:\t2\r\nX-A: \r\nX-Latin: \xe9\r\n")
        )
        request = echo.application.requests[0]
        assert request.headers == {b"host": b"localhost", b"x-a": b"1, 2, ", b"x-b": b"", b"x-latin": b"\xe9"}
        assert request.header(b"x-none") is None
        assert request.peer == "{}:{}".format(*peer.sock.getsockname())

    play(loop, scenario)


@pytest.mark.parametrize(
    ("head", "connection"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", b"close"),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", b"close"),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Connection: x, Close\r\n\r\n", b"close"),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", b"keep-alive"),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Connection: keep-alive\r\n\r\n", None),
    ],
)
def test_a_connection_is_kept_as_the_request_says(loop: str, head: bytes, connection: bytes | None) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        response = await peer.ask(head)
        assert response.headers.get(b"connection") == connection
        if connection == b"close":
            assert await peer.rest() == b""
        else:
            assert (await peer.ask(head)).status == 200

    play(loop, scenario)


def test_nothing_is_read_after_a_request_that_closes(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        await peer.send(request_bytes(b"/later", extra=b"Connection: close\r\n") + request_bytes(b"/never"))
        await until(lambda: bool(echo.application.later))
        await poll_sockets()
        echo.application.later[0].respond(200, b"bye")
        assert (await peer.response()).body == b"bye"
        assert await peer.rest() == b""
        assert len(echo.application.requests) == 1

    play(loop, scenario)


def test_a_body_is_asked_for_when_the_client_waits(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        await peer.send(request_bytes(b"/later"))
        await until(lambda: bool(echo.application.later))
        head, body = request_bytes(b"/big", b"body", extra=b"Expect: 100-Continue\r\n").split(b"\r\n\r\n")
        await peer.send(head + b"\r\n\r\n")
        await poll_sockets()
        # Only after the response that is due before it.
        echo.application.later[0].respond(200, b"first")
        assert [(await peer.response()).status for _ in range(2)] == [200, 100]
        assert (await peer.ask(body)).body == b"POST /big  body"
        await peer.send(head + b"\r\n\r\n")
        assert (await peer.response()).status == 100
        assert (await peer.ask(body)).status == 200

    play(loop, scenario)


def test_a_refused_head_is_answered_without_asking_for_the_body(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        response = await peer.ask(
            b"POST /refused HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n"
        )
        assert (response.status, response.headers[b"connection"]) == (401, b"close")
        assert await peer.rest() == b""
        assert echo.application.requests == []

    play(loop, scenario)


@pytest.mark.parametrize("body", [b"", b"short", b"x" * 65536])
def test_a_short_body_is_read_before_the_application_is_asked(loop: str, body: bytes) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        assert (await peer.ask(request_bytes(b"/refused", body))).status == 200
        assert [request.body for request in echo.application.requests] == [body]

    play(loop, scenario)


@pytest.mark.parametrize("framing", [b"Content-Length: 65537", b"Transfer-Encoding: chunked"])
def test_a_refused_head_with_a_long_body_ends_the_connection(loop: str, framing: bytes) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        response = await peer.ask(b"POST /refused HTTP/1.1\r\n" + HOST + framing + b"\r\n\r\n")
        assert (response.status, response.headers[b"connection"]) == (401, b"close")
        assert echo.application.requests == []

    play(loop, scenario)


@pytest.mark.parametrize(("path", "body"), [(b"/broken", b""), (b"/broken-head", b"x" * 65537)])
def test_an_application_that_fails_gives_a_500(
    loop: str, path: bytes, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        response = await peer.ask(request_bytes(path, body))
        assert response.status == 500
        assert b'{"error":{"code":"internal"' in response.body
        assert (await (await echo.connect()).ask(request_bytes(b"/next"))).status == 200

    play(loop, scenario)
    assert "on purpose" in caplog.text


def test_an_exchange_is_answered_once(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        await peer.send(request_bytes(b"/later") * 2)
        await until(lambda: len(echo.application.later) == 2)
        for exchange in echo.application.later:
            with pytest.raises(ValueError, match="line break"):
                exchange.respond(200, b"", headers=((b"X", b"a\r\nSet-Cookie: b"),))
            exchange.respond(200, b"once")
            with pytest.raises(RuntimeError, match="a second time"):
                exchange.respond(200, b"twice")
        assert [(await peer.response()).body for _ in range(2)] == [b"once", b"once"]
        assert (await peer.ask(request_bytes(b"/next"))).status == 200
        assert echo.application.gone == []

    play(loop, scenario)


def test_a_long_body_comes_whole_both_ways(loop: str) -> None:
    body = bytes(range(256)) * 12_000

    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        await peer.send(request_bytes(b"/long", body) + request_bytes(b"/next"))
        assert (await peer.response()).body == b"POST /long  " + body
        assert (await peer.response()).body == b"GET /next  "

    play(loop, scenario)


# --- Going away ---


def phases() -> Iterator[tuple[str, bytes]]:
    """What a client has sent when it goes, by what the server is doing then."""
    yield "new", b""
    yield "head", b"GET / HTTP"
    yield "body", request_bytes(b"/x", b"12345")[:-2]
    yield "waiting", request_bytes(b"/later")
    yield "pipelined", request_bytes(b"/later") * 3
    yield "stream", request_bytes(b"/stream")
    yield "upgraded", request_bytes(b"/upgrade", extra=UPGRADE)


@pytest.mark.parametrize("manner", ["close", "reset"])
@pytest.mark.parametrize(("phase", "sent"), list(phases()))
def test_a_client_that_goes_is_told_of_once(loop: str, phase: str, sent: bytes, manner: str) -> None:
    expected = {"waiting": 1, "pipelined": 3, "stream": 1, "upgraded": 1}.get(phase, 0)

    async def scenario(echo: EchoServer) -> None:
        application = echo.application
        peer = await echo.connect()
        await peer.send(sent)
        await until(lambda: len(application.requests) >= expected)
        await poll_sockets()
        getattr(peer, manner)()
        await until(lambda: echo.server.connections == 0)
        assert len(application.gone) == expected
        for exchange in application.later:
            exchange.respond(200, b"not received")
        for channel in application.channels():
            assert channel.is_closed
            channel.write(b"not received")
            channel.close()
        await poll_sockets()
        assert len(application.gone) == expected

    play(loop, scenario)


def test_a_client_that_only_stops_sending_gets_its_answers(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        echo.application.watch_gone = False
        peer = await echo.connect()
        await peer.send(request_bytes(b"/later") + request_bytes(b"/now") + b"GET /half")
        peer.end_sending()
        await until(lambda: len(echo.application.requests) == 2)
        await poll_sockets()
        echo.application.later[0].respond(200, b"late")
        assert [(await peer.response()).body for _ in range(2)] == [b"late", b"GET /now  "]
        assert await peer.rest() == b""

    play(loop, scenario)


def test_an_exchange_that_was_answered_hears_no_more(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        application = echo.application
        peer = await echo.connect()
        await peer.send(request_bytes(b"/later?1") + request_bytes(b"/later?2"))
        await until(lambda: len(application.later) == 2)
        application.later[1].on_gone = lambda: application.gone.append(b"answered")
        application.later[1].respond(200, b"held back")
        peer.close()
        await until(lambda: echo.server.connections == 0)
        assert application.gone == [b"/later"]

    play(loop, scenario)


def test_an_answer_that_waits_does_not_end_a_connection_that_is_half_closed(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        later = echo.application.later
        peer = await echo.connect()
        await peer.send(request_bytes(b"/later") * 2)
        await until(lambda: len(later) == 2)
        later[0].on_gone = None
        later[1].respond(200, b"second")
        peer.end_sending()
        await poll_sockets()
        later[0].respond(200, b"first")
        assert [(await peer.response()).body for _ in range(2)] == [b"first", b"second"]
        assert await peer.rest() == b""
        assert echo.application.gone == []

    play(loop, scenario)


# --- Streams ---


def test_a_stream_goes_out_piece_by_piece(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        await peer.send(request_bytes(b"/stream") + request_bytes(b"/ignored"))
        head = await peer.head()
        assert head.headers[b"content-type"] == b"text/event-stream"
        assert (head.headers[b"transfer-encoding"], head.headers[b"connection"]) == (b"chunked", b"close")
        (stream,) = echo.application.streams
        for piece in (b"a", b"b" * 1000):
            stream.write(b"")
            stream.write(piece)
            assert await peer.chunk() == piece
        stream.close()
        stream.close()
        stream.write(b"late")
        assert await peer.chunk() == b""
        assert await peer.rest() == b""
        assert len(echo.application.requests) == 1
        assert echo.application.gone == []

    play(loop, scenario)


def test_a_stream_over_http_1_0_ends_with_its_connection(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        await peer.send(b"GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert b"transfer-encoding" not in (await peer.head()).headers
        echo.application.streams[0].write(b"as it is")
        echo.application.streams[0].close()
        assert await peer.rest() == b"as it is"

    play(loop, scenario)


def test_a_stream_waits_for_earlier_responses(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        await peer.send(request_bytes(b"/later") + request_bytes(b"/stream"))
        await until(lambda: bool(echo.application.streams))
        (stream,) = echo.application.streams
        writable: list[bool] = []
        stream.on_writable = lambda: writable.append(stream.is_writable)
        stream.write(b"held")
        assert stream.buffered > 4
        assert not stream.is_writable
        echo.application.later[0].respond(200, b"first")
        assert (await peer.response()).body == b"first"
        await peer.head()
        assert await peer.chunk() == b"held"
        await until(lambda: bool(writable))
        assert (writable, stream.buffered) == ([True], 0)
        stream.write(b"live")
        stream.close()
        assert await peer.chunk() == b"live"
        assert await peer.rest() == b"0\r\n\r\n"

    play(loop, scenario)


def test_a_stream_that_ended_before_its_turn_is_sent_whole(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        await peer.send(request_bytes(b"/later") + request_bytes(b"/stream"))
        await until(lambda: bool(echo.application.streams))
        echo.application.streams[0].write(b"all")
        echo.application.streams[0].close()
        echo.application.later[0].respond(200, b"first")
        assert [(await peer.response()).body for _ in range(2)] == [b"first", b"all"]
        assert await peer.rest() == b""

    play(loop, scenario)


def test_a_stream_for_head_is_closed_from_the_start(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        await peer.ask(request_bytes(b"/stream", method=b"HEAD"))
        assert echo.application.streams[0].is_closed
        assert await peer.rest() == b""

    play(loop, scenario)


def test_an_aborted_channel_is_over_at_once(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        await peer.send(request_bytes(b"/stream"))
        await peer.head()
        echo.application.streams[0].abort()
        await until(lambda: echo.server.connections == 0)
        assert await peer.rest() == b""
        assert echo.application.gone == []

    play(loop, scenario)


# --- Leaving HTTP ---


@pytest.mark.parametrize("before", [0, 1, 3])
def test_an_upgrade_hands_over_the_connection(loop: str, before: int) -> None:
    async def scenario(echo: EchoServer) -> None:
        application = echo.application
        peer = await echo.connect()
        await peer.send(
            request_bytes(b"/later") * before + request_bytes(b"/upgrade", extra=UPGRADE) + b"early"
        )
        await until(lambda: len(application.later) == before)
        await poll_sockets()
        assert bool(application.upgraded) == (before == 0)
        for exchange in application.later:
            exchange.respond(200, b"")
            assert (await peer.response()).status == 200
        head = await peer.head()
        assert (head.status, head.headers[b"connection"], head.headers[b"upgrade"]) == (
            101,
            b"Upgrade",
            b"echo",
        )
        (upgraded,) = application.upgraded
        assert upgraded.received == b"early"
        assert upgraded.transport is not None
        upgraded.on_data = upgraded.write
        await peer.send(b"GET / HTTP/1.1\r\n\r\n")
        assert await peer._take(18) == b"GET / HTTP/1.1\r\n\r\n"
        upgraded.write(b"bye")
        upgraded.close()
        assert await peer.rest() == b"bye"
        assert application.gone == []

    play(loop, scenario)


@pytest.mark.parametrize("body", [b"", b"0123456789"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_an_upgrade_need_not_be_taken(loop: str, body: bytes, framing: str) -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    whole = request_bytes(b"/plain", body, extra=offer)
    if framing == "chunked":
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
        whole = request_bytes(b"/plain", method=b"POST", extra=offer + b"Transfer-Encoding: chunked\r\n")
        whole += chunks + b"0\r\nTrailer: x\r\n\r\n"

    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        for _ in range(2):
            await peer.send(whole + request_bytes(b"/next"))
            assert (await peer.response()).body.endswith(b" /plain  " + body)
            assert (await peer.response()).body == b"GET /next  "
        assert echo.application.requests[0].header(b"trailer") is None

    play(loop, scenario)


def test_only_an_offer_can_be_taken(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        await peer.send(request_bytes(b"/later"))
        await until(lambda: bool(echo.application.later))
        with pytest.raises(RuntimeError, match="offers no upgrade"):
            echo.application.later[0].upgrade(())
        echo.application.later[0].respond(200, b"ok")
        assert (await peer.response()).body == b"ok"

    play(loop, scenario)


# --- Stopping ---


def test_draining_ends_idle_connections_and_finishes_the_others(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        application = echo.application
        new, idle, busy, pipelined, half = [await echo.connect() for _ in range(5)]
        await idle.ask(request_bytes(b"/"))
        await busy.send(request_bytes(b"/later"))
        await pipelined.send(request_bytes(b"/later") * 2)
        await half.send(b"GET / HTTP/1.1\r\n")
        await until(lambda: len(application.later) == 3)
        draining = echo.server.loop.create_task(echo.server.drain(10))
        assert await new.rest() == await idle.rest() == b""
        await half.send(HOST + b"\r\n")
        assert (await half.response()).headers[b"connection"] == b"close"
        for exchange in application.later:
            exchange.respond(200, b"done")
        assert (await busy.response()).headers[b"connection"] == b"close"
        assert [b"connection" in (await pipelined.response()).headers for _ in range(2)] == [False, True]
        assert await busy.rest() == await pipelined.rest() == await half.rest() == b""
        await draining
        with pytest.raises(ConnectionRefusedError):
            await echo.connect()

    play(loop, scenario)


def test_draining_ends_what_does_not_end_by_itself(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peers = [await echo.connect() for _ in range(2)]
        await peers[0].send(request_bytes(b"/later"))
        await peers[1].send(request_bytes(b"/stream"))
        await until(lambda: len(echo.application.requests) == 2)
        await echo.server.drain(0.01)
        assert echo.server.connections == 0
        assert sorted(echo.application.gone) == [b"/later", b"/stream"]

    play(loop, scenario)


def test_who_slips_in_while_draining_is_sent_away(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(echo: EchoServer) -> None:
        busy = await echo.connect()
        await busy.send(request_bytes(b"/later"))
        await until(lambda: bool(echo.application.later))
        with monkeypatch.context() as patch:
            patch.setattr(echo.server, "stop_accepting", lambda: None)
            draining = echo.server.loop.create_task(echo.server.drain(10))
            await poll_sockets()
            late = await Peer.connect(echo.address)
            response = await late.response()
        assert response.status == 503
        assert b'"code":"shutting_down"' in response.body
        echo.application.later[0].respond(200, b"")
        await draining

    play(loop, scenario)


def test_connections_that_are_open_go_on_when_no_new_ones_are_taken(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        echo.server.stop_accepting()
        assert (await peer.ask(request_bytes(b"/"))).status == 200

    play(loop, scenario)
