"""All bodies together have a bound: many clients that send half of one do not use up the memory."""

from __future__ import annotations

import pytest

from everlog.server.http import HttpLimits
from tests.support.http_peers import HOST, LOOPS, EchoServer, Peer, play, until

pytestmark = pytest.mark.parametrize("loop", LOOPS)
BODY = 1000
FEW = HttpLimits(max_body_bytes=BODY, max_bodies_bytes=2500, uncounted_body_bytes=100)


def post(path: bytes, length: int = BODY) -> bytes:
    """The head of a request with a body of this length."""
    return b"POST %b HTTP/1.1\r\n" % path + HOST + b"Content-Length: %d\r\n\r\n" % length


async def half_sent(echo: EchoServer, size: int) -> Peer:
    """A client that has sent so much of its body and the server has it."""
    before = echo.server.bodies_bytes
    peer = await echo.connect()
    await peer.send(post(b"/half") + b"x" * size)
    await until(lambda: echo.server.bodies_bytes == before + size)
    return peer


async def assert_throttled(peer: Peer) -> None:
    """The next response says that there is no room for the body now."""
    response = await peer.response()
    assert response.status == 429
    assert response.headers[b"retry-after"] == b"1"
    assert b'"code":"throttled"' in response.body
    assert b'"detail":{"limit":"max_bodies_bytes","max":2500}' in response.body


@pytest.mark.parametrize("whole", [False, True])
def test_a_body_that_finds_no_room_is_refused_and_the_others_go_on(loop: str, whole: bool) -> None:
    async def scenario(echo: EchoServer) -> None:
        first, second = await half_sent(echo, 900), await half_sent(echo, 900)
        third = await echo.connect()
        await third.send(post(b"/third") + b"x" * (BODY if whole else 900))
        await assert_throttled(third)
        for peer in (first, second):
            assert (await peer.ask(b"x" * 100)).status == 200
        assert (await (await echo.connect()).ask(post(b"/again") + b"x" * BODY)).status == 200
        assert [request.path for request in echo.application.requests] == [b"/half", b"/half", b"/again"]

    play(loop, scenario, FEW)


def test_a_chunked_body_counts_as_it_comes(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        others = [await half_sent(echo, 900) for _ in range(2)]
        peer = await echo.connect()
        await peer.send(b"POST /c HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
        await peer.send(b"384\r\n" + b"x" * 900 + b"\r\n")
        await assert_throttled(peer)
        assert all([(await other.ask(b"x" * 100)).status == 200 for other in others])

    play(loop, scenario, FEW)


def test_small_bodies_are_served_when_there_is_no_room_for_large_ones(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        others = [await half_sent(echo, 999) for _ in range(2)]
        peer = await echo.connect()
        assert (await peer.ask(post(b"/small", 100) + b"x" * 100)).status == 200
        assert all([(await other.ask(b"x")).status == 200 for other in others])

    play(loop, scenario, FEW)


@pytest.mark.parametrize("leave", ["close", "reset"])
def test_the_room_of_a_client_that_goes_away_is_free_again(loop: str, leave: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await half_sent(echo, 900)
        getattr(peer, leave)()
        await until(lambda: echo.server.bodies_bytes == 0)

    play(loop, scenario, FEW)


def test_a_body_holds_its_room_until_it_is_answered(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        for _ in range(2):
            await peer.send(post(b"/later") + b"x" * BODY)
        await until(lambda: len(echo.application.later) == 2)
        assert echo.server.bodies_bytes == 2 * BODY
        other = await echo.connect()
        await other.send(post(b"/other") + b"x" * BODY)
        await assert_throttled(other)
        for exchange in echo.application.later:
            exchange.respond(200, b"done")
        assert echo.server.bodies_bytes == 0

    play(loop, scenario, FEW)


def test_a_request_that_becomes_a_stream_gives_its_room_back(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        await peer.send(post(b"/stream") + b"x" * BODY)
        await until(lambda: bool(echo.application.streams))
        assert echo.server.bodies_bytes == 0

    play(loop, scenario, FEW)


# --- Heads -----------------------------------------------------------------------------------------------

FEW_HEADS = HttpLimits(max_heads_bytes=20_000)


async def head_begun(echo: EchoServer, size: int) -> Peer:
    """A client that has sent so much of a head and the server has it."""
    before = echo.server.heads_bytes
    peer = await echo.connect()
    start = b"GET / HTTP/1.1\r\n" + HOST + b"X: "
    await peer.send(start + b"x" * (size - len(start)))
    await until(lambda: echo.server.heads_bytes == before + size)
    return peer


def test_heads_that_are_not_complete_have_a_bound_together(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        first, second = await head_begun(echo, 9000), await head_begun(echo, 9000)
        third = await echo.connect()
        await third.send(b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 5000)
        refused = await third.response()
        assert refused.status == 429
        assert b'"detail":{"limit":"max_heads_bytes","max":20000}' in refused.body
        small = await echo.connect()
        assert (await small.ask(b"GET /small HTTP/1.1\r\n" + HOST + b"\r\n")).status == 200
        for peer in (first, second):
            assert (await peer.ask(b"\r\n\r\n")).status == 200
        assert echo.server.heads_bytes == 0

    play(loop, scenario, FEW_HEADS)


@pytest.mark.parametrize("leave", ["close", "reset"])
def test_a_client_that_leaves_gives_the_room_of_its_head_back(loop: str, leave: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        for _ in range(5):
            peer = await head_begun(echo, 15_000)
            getattr(peer, leave)()
            await until(lambda: echo.server.heads_bytes == 0)

    play(loop, scenario, FEW_HEADS)
