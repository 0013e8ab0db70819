"""The bounds of the HTTP server: sizes at and one past the limit, time, memory and flow control."""

from __future__ import annotations

import gc
import resource
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest

from everlog.clock import NS_PER_S, TestClock
from everlog.server.http import HttpLimits
from everlog.server.http_connection import REQUESTS_PER_TURN, HttpConnection
from everlog.server.http_reading import RequestReader
from tests.support.effort import effort
from tests.support.http_peers import HOST, LOOPS, EchoServer, Peer, play, poll_sockets, request_bytes, until

pytestmark = pytest.mark.parametrize("loop", LOOPS)
SMALL = HttpLimits(max_body_bytes=1000, max_target_bytes=200, max_header_bytes=500, max_headers=10)
CHUNKED = b"POST /c HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
# What a kernel takes for a client that does not read: its own buffers, here and there.
KERNEL_BYTES = 8 * 1024 * 1024


def only_connection(echo: EchoServer) -> HttpConnection:
    """The server's side of the only client."""
    (connection,) = echo.server._connections
    return connection


async def refused(peer: Peer, status: int, code: str = "invalid_request") -> None:
    """The next response is this refusal, and the last one."""
    response = await peer.response()
    assert response.status == status
    assert response.body.startswith(b'{"error":{"code":"%b","message":"' % code.encode())
    assert response.headers[b"connection"] == b"close"
    assert await peer.rest() == b""


# --- Sizes ---


@pytest.mark.parametrize("excess", [0, 1])
def test_a_body_is_bounded_by_its_announced_length(loop: str, excess: int) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        head = b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % (1000 + excess)
        await peer.send(head)
        if excess:
            await refused(peer, 413, "payload_too_large")
            assert echo.application.requests == []
        else:
            assert (await peer.ask(b"x" * 1000)).status == 200

    play(loop, scenario, SMALL)


@pytest.mark.parametrize("piece_bytes", [1, 7, 1000])
@pytest.mark.parametrize("excess", [0, 1])
def test_a_chunked_body_is_bounded_while_it_comes(loop: str, piece_bytes: int, excess: int) -> None:
    body = b"y" * (1000 + excess)
    pieces = [body[start : start + piece_bytes] for start in range(0, len(body), piece_bytes)]

    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        await peer.send(CHUNKED + b"".join(b"%X\r\n%b\r\n" % (len(piece), piece) for piece in pieces))
        if excess:
            await refused(peer, 413, "payload_too_large")
            assert echo.application.requests == []
        else:
            assert (await peer.ask(b"0\r\n\r\n")).body == b"POST /c  " + body

    play(loop, scenario, SMALL)


def test_a_refused_body_is_read_over_so_that_the_answer_arrives(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        body = b"z" * (16 * 1024 * 1024)
        # The client does not read before it has sent everything.
        await peer.send(request_bytes(b"/big", body))
        await refused(peer, 413, "payload_too_large")

    play(loop, scenario, SMALL)


@pytest.mark.parametrize("excess", [0, 1])
@pytest.mark.parametrize("cut", [1, 100, 10_000])
def test_a_target_is_bounded(loop: str, excess: int, cut: int) -> None:
    whole = request_bytes(b"/" + b"t" * (199 + excess))

    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        await peer.send(whole[:cut])
        await poll_sockets()
        await peer.send(whole[cut:])
        if excess:
            await refused(peer, 414)
        else:
            assert (await peer.response()).status == 200

    play(loop, scenario, SMALL)


@pytest.mark.parametrize("excess", [0, 1])
@pytest.mark.parametrize("cut", [20, 400, 10_000])
def test_headers_are_bounded_in_bytes(loop: str, excess: int, cut: int) -> None:
    used = len("Host" + "localhost") + 4 + len("X") + 4
    whole = request_bytes(b"/", extra=b"X:" + b"h" * (500 - used + excess) + b"\r\n")

    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        await peer.send(whole[:cut])
        await poll_sockets()
        await peer.send(whole[cut:])
        if excess:
            await refused(peer, 431)
        else:
            assert (await peer.response()).status == 200

    play(loop, scenario, SMALL)


@pytest.mark.parametrize("excess", [0, 1])
def test_headers_are_bounded_in_number(loop: str, excess: int) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        await peer.send(request_bytes(b"/", extra=b"A: b\r\n" * (9 + excess)))
        if excess:
            await refused(peer, 431)
        else:
            assert (await peer.response()).status == 200

    play(loop, scenario, SMALL)


@pytest.mark.parametrize(
    "opening",
    [
        b"GET / HTTP/1.1\r\nX: ",
        b"GET / HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nX:",
        b"",
        CHUNKED + b"0\r\nTrailer: ",
    ],
    ids=["value", "name", "blanks", "line-breaks", "trailer"],
)
def test_a_head_without_an_end_is_refused(loop: str, opening: bytes) -> None:
    filling = b"\r\n" if not opening else b" " if opening.endswith(b":") else b"a"

    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        await peer.send(opening)
        await poll_sockets()
        await peer.send(filling * 4000)
        await refused(peer, 431)

    play(loop, scenario, SMALL)


@pytest.mark.parametrize("trailers", [b"A: b\r\n" * 11, b"A: " + b"b" * 500 + b"\r\n"])
def test_trailers_are_bounded_like_headers(loop: str, trailers: bytes) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        assert (await peer.ask(CHUNKED + b"0\r\nA: b\r\n\r\n")).status == 200
        await peer.send(CHUNKED + b"0\r\n" + trailers + b"\r\n")
        await refused(peer, 431)

    play(loop, scenario, SMALL)


def test_a_connection_too_many_is_told_so(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        kept = [await echo.connect() for _ in range(2)]
        extra = await Peer.connect(echo.address)
        response = await extra.response()
        assert (response.status, response.headers[b"retry-after"]) == (503, b"1")
        assert b'"code":"throttled"' in response.body
        assert await extra.rest() == b""
        assert (await kept[0].ask(request_bytes(b"/"))).status == 200
        kept[1].close()
        await until(lambda: echo.server.connections == 1)
        assert (await (await echo.connect()).ask(request_bytes(b"/"))).status == 200

    play(loop, scenario, HttpLimits(max_connections=2))


# --- Flow ---


def test_only_so_many_requests_are_unanswered(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        later = echo.application.later
        peer = await echo.connect()
        await peer.send(b"".join(request_bytes(b"/later?%d" % number) for number in range(100)))
        for number in range(100):
            await until(lambda: len(later) >= min(100, number + 16))  # noqa: B023
            await poll_sockets()
            assert len(later) == min(100, number + 16)
            later[number].respond(200, b"%d" % number)
            assert (await peer.response()).body == b"%d" % number

    play(loop, scenario)


def test_many_requests_in_one_piece_leave_turns_to_others(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        requests = echo.application.requests
        peer = await echo.connect()
        count = 5 * REQUESTS_PER_TURN
        only_connection(echo).data_received(request_bytes(b"/") * count)
        assert len(requests) == REQUESTS_PER_TURN
        for _ in range(count):
            assert (await peer.response()).status == 200
        assert (await peer.ask(request_bytes(b"/next"))).body == b"GET /next  "

    play(loop, scenario)


def test_a_refusal_among_requests_that_had_to_wait_is_read_over(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        later = echo.application.later
        peer = await echo.connect()
        await peer.send(request_bytes(b"/later") * 16 + b"NOT HTTP\r\n\r\n")
        await until(lambda: len(later) == 16)
        await poll_sockets()
        for exchange in later:
            exchange.respond(200, b"")
        assert [(await peer.response()).status for _ in range(17)] == [200] * 16 + [400]
        # The client may stop before this is read.
        await peer.send(b"x" * 16 * 1024 * 1024)
        peer.end_sending()
        assert await peer.rest() == b""

    play(loop, scenario)


def test_a_client_that_does_not_read_is_not_read_from(loop: str) -> None:
    count = 3000

    async def scenario(echo: EchoServer) -> None:
        application = echo.application
        application.reply = b"r" * 10_000
        peer = await echo.connect(receive_buffer_bytes=4096)
        unsent = request_bytes(b"/flood") * count
        while True:
            unsent = unsent[peer.send_what_fits(unsent[:65536]) :]
            handled = len(application.requests)
            await poll_sockets()
            if only_connection(echo).is_write_paused and handled == len(application.requests):
                break
        # What waits: the buffer up to its limit, and the responses of the requests that were under way.
        connection = only_connection(echo)
        assert connection.buffered <= 64 * 1024 + 16 * 11_000
        assert len(application.requests) * 10_000 <= KERNEL_BYTES
        assert len(application.requests) < count
        sending = echo.server.loop.create_task(peer.send(unsent))
        for _ in range(count):
            assert len((await peer.response()).body) == 10_000
        await sending
        assert len(application.requests) == count

    play(loop, scenario)


def test_a_stream_waits_for_its_reader(loop: str) -> None:
    piece = b"s" * 1000

    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect(receive_buffer_bytes=4096)
        await peer.send(request_bytes(b"/stream"))
        await peer.head()
        (stream,) = echo.application.streams
        written = 0
        resumed: list[int] = []
        stream.on_writable = lambda: resumed.append(stream.buffered if stream.is_writable else -1)
        while stream.is_writable:
            stream.write(piece)
            written += 1
            if stream.buffered:
                await poll_sockets()
        assert 64 * 1024 < stream.buffered <= 64 * 1024 + 2000
        assert written * 1000 <= KERNEL_BYTES
        assert resumed == []
        read = 0
        while not resumed:
            assert await peer.chunk() == piece
            read += 1
            await poll_sockets()
        assert 0 <= resumed[0] <= 64 * 1024
        stream.close()
        for _ in range(written - read):
            assert await peer.chunk() == piece
        assert await peer.rest() == b"0\r\n\r\n"

    play(loop, scenario)


# --- Time ---


class Times:
    """A server whose clock stands still, and a client of it."""

    def __init__(self, echo: EchoServer, clock: TestClock, peer: Peer) -> None:
        self.echo = echo
        self.clock = clock
        self.peer = peer

    def pass_s(self, duration_s: float) -> None:
        """Let time pass and the server look at it."""
        self.clock.advance_ns(int(duration_s * NS_PER_S))
        self.echo.server.sweep()

    async def lives(self) -> None:
        """The server keeps the connection."""
        await poll_sockets()
        assert self.echo.server.connections == 1
        assert not only_connection(self.echo).transport.is_closing()


def play_in_time(loop: str, scenario: Callable[[Times], Awaitable[None]]) -> None:
    """Play a scenario that takes `Times`, with a client that is connected."""
    clock = TestClock()

    async def whole(echo: EchoServer) -> None:
        await scenario(Times(echo, clock, await echo.connect(receive_buffer_bytes=4096)))

    play(loop, whole, clock=clock)


def test_a_silent_connection_is_closed(loop: str) -> None:
    async def scenario(times: Times) -> None:
        times.pass_s(59.9)
        await times.lives()
        times.pass_s(0.1)
        assert await times.peer.rest() == b""

    play_in_time(loop, scenario)


def test_slow_headers_are_refused_however_they_trickle(loop: str) -> None:
    async def scenario(times: Times) -> None:
        times.pass_s(50)
        for byte in b"GET / HTT":
            await times.peer.send(bytes((byte,)))
            await poll_sockets()
            times.pass_s(6.6)
            await times.lives()
        times.pass_s(0.6)
        await refused(times.peer, 408)

    play_in_time(loop, scenario)


def test_slow_headers_of_a_later_request_are_refused_in_their_turn(loop: str) -> None:
    async def scenario(times: Times) -> None:
        await times.peer.send(request_bytes(b"/later") + b"GET")
        await until(lambda: bool(times.echo.application.later))
        times.pass_s(60)
        await poll_sockets()
        times.echo.application.later[0].respond(200, b"first")
        assert (await times.peer.response()).body == b"first"
        await refused(times.peer, 408)

    play_in_time(loop, scenario)


@pytest.mark.parametrize(
    "head", [CHUNKED + b"FFFF\r\n", CHUNKED.replace(b"Transfer-Encoding: chunked", b"Content-Length: 50000")]
)
def test_a_body_must_make_progress(loop: str, head: bytes) -> None:
    async def scenario(times: Times) -> None:
        await times.peer.send(head)
        await poll_sockets()
        for _ in range(19):
            times.pass_s(29.9)
            await times.lives()
            await times.peer.send(b"x")
            await poll_sockets()
        times.pass_s(30)
        await refused(times.peer, 408)

    play_in_time(loop, scenario)


def test_a_body_must_come_to_an_end(loop: str) -> None:
    async def scenario(times: Times) -> None:
        await times.peer.send(request_bytes(b"/", b"x" * 1000)[:-900])
        await poll_sockets()
        for _ in range(29):
            times.pass_s(20)
            await times.lives()
            await times.peer.send(b"x")
            await poll_sockets()
        times.pass_s(20)
        await refused(times.peer, 408)

    play_in_time(loop, scenario)


def test_an_idle_connection_is_closed_later_than_a_silent_one(loop: str) -> None:
    async def scenario(times: Times) -> None:
        for _ in range(2):
            await times.peer.ask(request_bytes(b"/"))
            times.pass_s(74.9)
            await times.lives()
        times.pass_s(0.1)
        assert await times.peer.rest() == b""

    play_in_time(loop, scenario)


@pytest.mark.parametrize("path", [b"/later", b"/stream", b"/upgrade"])
def test_the_application_may_take_its_time(loop: str, path: bytes) -> None:
    async def scenario(times: Times) -> None:
        await times.peer.send(request_bytes(path, extra=b"Connection: Upgrade\r\nUpgrade: echo\r\n"))
        await until(lambda: bool(times.echo.application.requests))
        await poll_sockets()
        times.pass_s(100_000)
        await times.lives()
        for exchange in times.echo.application.later:
            exchange.respond(200, b"late")
            assert (await times.peer.response()).body == b"late"
            times.pass_s(74)
            await times.lives()

    play_in_time(loop, scenario)


@pytest.mark.parametrize("path", [b"/plain", b"/later", b"/stream"])
def test_output_that_is_not_read_ends_the_connection(loop: str, path: bytes) -> None:
    flood = b"f" * 8 * 1024 * 1024

    async def scenario(times: Times) -> None:
        application = times.echo.application
        application.reply = flood
        await times.peer.send(request_bytes(path))
        await until(lambda: bool(application.requests))
        for exchange in application.later:
            exchange.respond(200, flood)
        for stream in application.streams:
            stream.write(flood)
            stream.close()
        await poll_sockets()
        times.pass_s(1)
        times.pass_s(59)
        await poll_sockets()
        assert times.echo.server.connections == 1
        assert len(await times.peer._loop.sock_recv(times.peer.sock, 1000)) == 1000
        times.pass_s(1)
        await until(lambda: times.echo.server.connections == 0)

    play_in_time(loop, scenario)


def test_output_that_is_taken_slowly_does_not(loop: str) -> None:
    async def scenario(times: Times) -> None:
        await times.peer.send(request_bytes(b"/stream"))
        await times.peer.head()
        (stream,) = times.echo.application.streams
        stream.write(b"f" * 8 * 1024 * 1024)
        for _ in range(10):
            stream.write(b"f" * 4 * 1024 * 1024)
            before = stream.buffered
            while stream.buffered == before:
                await times.peer._loop.sock_recv(times.peer.sock, 65536)
                await poll_sockets()
            times.pass_s(59)
            await times.lives()

    play_in_time(loop, scenario)


def test_a_refused_client_that_goes_on_sending_is_cut_off(loop: str) -> None:
    async def scenario(times: Times) -> None:
        await times.peer.send(b"NOT HTTP\r\n\r\n")
        assert (await times.peer.response()).status == 400
        for _ in range(6):
            times.pass_s(4.9)
            await times.lives()
            await times.peer.send(b"more")
            await poll_sockets()
        times.pass_s(0.6)
        await until(lambda: times.echo.server.connections == 0)

    play_in_time(loop, scenario)


def test_a_refused_client_that_stops_without_a_word_is_cut_off(loop: str) -> None:
    async def scenario(times: Times) -> None:
        await times.peer.send(b"NOT HTTP\r\n\r\n")
        assert (await times.peer.response()).status == 400
        times.pass_s(5)
        await until(lambda: times.echo.server.connections == 0)

    play_in_time(loop, scenario)


def test_time_while_reading_is_paused_is_not_the_clients(loop: str) -> None:
    async def scenario(times: Times) -> None:
        later = times.echo.application.later
        await times.peer.send(request_bytes(b"/later") * 16 + b"GET /half")
        await until(lambda: len(later) == 16)
        await poll_sockets()
        times.pass_s(1000)
        await times.lives()
        for exchange in later:
            exchange.respond(200, b"")
        await poll_sockets()
        times.pass_s(59)
        await times.lives()
        for _ in range(16):
            await times.peer.response()
        assert (await times.peer.ask(b" HTTP/1.1\r\n" + HOST + b"\r\n")).body == b"GET /half  "

    play_in_time(loop, scenario)


def test_a_body_may_wait_while_its_client_reads_slowly(loop: str) -> None:
    async def scenario(times: Times) -> None:
        flood = b"f" * 8 * 1024 * 1024
        await times.peer.send(request_bytes(b"/later") + request_bytes(b"/b", b"body")[:-2])
        await until(lambda: bool(times.echo.application.later))
        times.echo.application.later[0].respond(200, flood)
        assert only_connection(times.echo).is_write_paused
        times.pass_s(50)
        await times.lives()
        assert (await times.peer.response()).body == flood
        await until(lambda: not only_connection(times.echo).is_write_paused)
        await poll_sockets()
        times.pass_s(29)
        await times.lives()
        assert (await times.peer.ask(b"dy")).body == b"POST /b  body"

    play_in_time(loop, scenario)


def test_idle_time_begins_with_the_last_of_several_answers(loop: str) -> None:
    async def scenario(times: Times) -> None:
        later = times.echo.application.later
        await times.peer.send(request_bytes(b"/later") * 2)
        await until(lambda: len(later) == 2)
        times.pass_s(1000)
        for exchange in reversed(later):
            exchange.respond(200, b"")
        times.pass_s(74)
        await times.lives()
        times.pass_s(1)
        await until(lambda: times.echo.server.connections == 0)

    play_in_time(loop, scenario)


def test_the_loop_itself_sweeps_and_keeps_the_date(loop: str) -> None:
    clock = TestClock()

    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        before = (await peer.ask(request_bytes(b"/"))).headers[b"date"]
        clock.advance_ns(60 * NS_PER_S)
        date_line = echo.server.date_line
        await until(lambda: echo.server.date_line != date_line)
        assert (await peer.ask(request_bytes(b"/"))).headers[b"date"] != before
        clock.advance_ns(75 * NS_PER_S)
        assert await peer.rest() == b""

    play(loop, scenario, HttpLimits(sweep_interval_s=0.01), clock)


# --- Memory ---


def test_idle_connections_are_small(loop: str) -> None:
    count = effort(1000)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft > 2 * count + 100, "this test needs two files for each connection; raise `ulimit -n`"

    async def scenario(echo: EchoServer) -> None:
        peers = [await echo.connect() for _ in range(10)]
        gc.collect()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(count):
            peer = await echo.connect()
            await peer.ask(request_bytes(b"/"))
            peer.received = b""
            peers.append(peer)
        echo.application.requests.clear()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/everlog/server/*")])
        tracemalloc.stop()
        assert echo.server.connections == count + 10
        # All of it includes the client, the transport and the loop.
        assert (after - before) / count < 8 * 1024
        assert sum(trace.size for trace in ours.traces) / count < 2 * 1024

    play(loop, scenario)


def test_connections_that_are_over_leave_nothing_for_the_collector(loop: str) -> None:
    def leftovers() -> int:
        return sum(isinstance(thing, HttpConnection | RequestReader) for thing in gc.get_objects())

    async def scenario(echo: EchoServer) -> None:
        for sent in (
            b"",
            b"GET",
            b"BAD\r\n\r\n",
            request_bytes(b"/"),
            request_bytes(b"/later"),
            request_bytes(b"/stream"),
        ):
            peer = await echo.connect()
            await peer.send(sent)
            await poll_sockets()
            peer.close()
            await until(lambda: echo.server.connections == 0)
        await poll_sockets()
        echo.application.later.clear()
        echo.application.streams.clear()
        assert leftovers() == 0

    gc.collect()
    gc.disable()
    try:
        play(loop, scenario)
    finally:
        gc.enable()


def test_a_body_of_tiny_chunks_costs_no_more_than_its_size(loop: str) -> None:
    body_bytes = 400_000

    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        chunk = b"2\r\nab\r\n" * 1000
        connection = only_connection(echo)
        connection.data_received(CHUNKED)
        tracemalloc.start()
        for _ in range(body_bytes // 2000):
            connection.data_received(chunk)
        held_bytes, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held_bytes < 2 * body_bytes
        assert peak_bytes < 4 * body_bytes
        assert len((await peer.ask(b"0\r\n\r\n")).body) == body_bytes + len(b"POST /c  ")

    play(loop, scenario)
