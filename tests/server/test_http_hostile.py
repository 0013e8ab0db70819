"""Input that is no request, or pretends to be two: refused with a reason, never a traceback or a hang."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from everlog.server.http import HttpLimits, Request
from everlog.server.http_exchange import Refusal, Targets
from everlog.server.http_reading import RequestReader
from tests.support.effort import effort
from tests.support.http_peers import (
    HOST,
    LOOPS,
    EchoServer,
    play,
    poll_sockets,
    request_bytes,
    run_on,
    serving,
)

START = b"POST / HTTP/1.1\r\n" + HOST
CHUNKED = START + b"Transfer-Encoding: chunked\r\n\r\n"
BAD_REQUESTS = {
    "no method": b"/ HTTP/1.1\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "version 0.9": b"GET / HTTP/0.9\r\n\r\n",
    "version 1.2": b"GET / HTTP/1.2\r\n" + HOST + b"\r\n",
    "version 2.0": b"GET / HTTP/2.0\r\n" + HOST + b"\r\n",
    "version 2.0 kept alive": b"GET / HTTP/2.0\r\n" + HOST + b"Connection: keep-alive\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "no Host": b"GET / HTTP/1.1\r\n\r\n",
    "two Hosts": b"GET / HTTP/1.1\r\n" + HOST + b"hOST: other\r\n\r\n",
    "bare line feeds": b"GET / HTTP/1.1\nHost: x\n\n",
    "bare carriage return": b"GET / HTTP/1.1\r\n" + HOST + b"A: b\rc\r\n\r\n",
    "NUL in target": b"GET /\0 HTTP/1.1\r\n" + HOST + b"\r\n",
    "NUL in name": b"GET / HTTP/1.1\r\n" + HOST + b"A\0: b\r\n\r\n",
    "NUL in value": b"GET / HTTP/1.1\r\n" + HOST + b"A: \0\r\n\r\n",
    "control in value": b"GET / HTTP/1.1\r\n" + HOST + b"A: \x01\r\n\r\n",
    "high byte in target": b"GET /\xe9 HTTP/1.1\r\n" + HOST + b"\r\n",
    "blank in target": b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n",
    "fragment in target": b"GET /a#b HTTP/1.1\r\n" + HOST + b"\r\n",
    "folded header": b"GET / HTTP/1.1\r\n" + HOST + b"A: b\r\n c\r\n\r\n",
    "blank before colon": b"GET / HTTP/1.1\r\n" + HOST + b"A : b\r\n\r\n",
    "blank before first header": b"GET / HTTP/1.1\r\n A: b\r\n" + HOST + b"\r\n",
    "no colon": b"GET / HTTP/1.1\r\n" + HOST + b"header\r\n\r\n",
    "no name": b"GET / HTTP/1.1\r\n" + HOST + b": b\r\n\r\n",
    "length and chunks": START + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": START + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": START + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": START + b"Content-Length: 3, 3\r\n\r\nabc",
    "signed length": START + b"Content-Length: +3\r\n\r\nabc",
    "negative length": START + b"Content-Length: -1\r\n\r\n",
    "hexadecimal length": START + b"Content-Length: 0x3\r\n\r\nabc",
    "empty length": START + b"Content-Length:\r\n\r\n",
    "length beyond 64 bits": START + b"Content-Length: 18446744073709551616\r\n\r\n",
    "unknown coding": START + b"Transfer-Encoding: gzip\r\n\r\n",
    "coding in front of chunks": START + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
    "coding behind chunks": START + b"Transfer-Encoding: chunked, identity\r\n\r\n",
    "chunks twice": START + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    "almost chunked": START + b"Transfer-Encoding: xchunked\r\n\r\n",
    "chunks over HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk size is no number": CHUNKED + b"zz\r\n",
    "signed chunk size": CHUNKED + b"-1\r\n",
    "no chunk size": CHUNKED + b"\r\n",
    "chunk size beyond 64 bits": CHUNKED + b"11111111111111111\r\n",
    "chunk longer than said": CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
    "chunk ends with a line feed": CHUNKED + b"3\r\nabc\n0\r\n\r\n",
    "chunk size ends with a line feed": CHUNKED + b"3\nabc\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_bad_request_gets_a_400_and_nothing_more(loop: str, name: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        # What follows would be a fine request, for a parser that sees one there.
        await peer.send(BAD_REQUESTS[name] + request_bytes(b"/smuggled"))
        response = await peer.response()
        assert (response.status, response.headers[b"connection"]) == (400, b"close")
        assert response.headers[b"content-type"] == b"application/json"
        error = msgspec.json.decode(response.body)["error"]
        assert error.keys() == {"code", "message"}
        assert error["code"] == "invalid_request"
        assert await peer.rest() == b""
        assert echo.application.requests == []
        peer.close()

    play(loop, scenario)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_huge_length_is_too_large_and_reserves_nothing(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        response = await peer.ask(START + b"Content-Length: 18446744073709551615\r\n\r\n")
        assert response.status == 413

    play(loop, scenario)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("method", [b"BREW", b"get", b"PROPFIND", b"X-Y"])
def test_an_unknown_method_is_405_with_the_methods_there_are(loop: str, method: bytes) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        response = await peer.ask(method + b" / HTTP/1.1\r\n" + HOST + b"\r\n")
        assert response.status == 405
        assert b'"method_not_allowed"' in response.body and method in response.body
        assert b"HEAD" in response.headers[b"allow"]

    play(loop, scenario)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"HTTP/2 is not spoken here"),
        (b"\x16\x03\x01\x00\x00", b"it does not begin with a method"),
        (b"GET / HTTP/9.1\r\n\r\n", b"the version must be HTTP/1.1"),
        (b"GET / HTTP/1.1\r\nno header\r\n\r\n", b"a header line must be"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", b"Content-Length is not a number"),
    ],
)
def test_what_is_no_request_is_refused_in_own_words(sent: bytes, words: bytes) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        response = await peer.ask(sent)
        assert response.status == 400
        assert words in response.body

    play("asyncio", scenario)


@pytest.mark.parametrize("loop", LOOPS)
def test_this_is_no_proxy(loop: str) -> None:
    async def scenario(echo: EchoServer) -> None:
        peer = await echo.connect()
        response = await peer.ask(b"CONNECT a:1 HTTP/1.1\r\n" + HOST + b"\r\nraw bytes")
        assert response.status == 405
        assert b'"method_not_allowed"' in response.body

    play(loop, scenario)


# --- Random input ---

PARTS = st.sampled_from(
    [
        b"GET / HTTP/1.1\r\n",
        b"POST /later HTTP/1.1\r\n",
        b"HEAD /stream HTTP/1.0\r\n",
        HOST,
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"Connection: Upgrade\r\nUpgrade: echo\r\n",
        b"Expect: 100-continue\r\n",
        b"\r\n",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"hello",
        b"\0",
        b"\n",
    ]
)
INPUTS = st.lists(st.one_of(PARTS, PARTS, PARTS, st.binary(max_size=40)), min_size=1, max_size=12)


@settings(max_examples=effort(120))
@given(pieces=INPUTS)
@example(pieces=[b"GET / HTTP/1.1\r\n", b"Connection: Upgrade\r\nUpgrade: echo\r\n", HOST, b"\r\n", b"\0"])
def test_no_input_gives_a_traceback_or_a_hang(pieces: list[bytes]) -> None:
    for loop in LOOPS:
        caught: list[bytes] = []

        async def scenario(caught: list[bytes] = caught) -> None:
            async with serving() as echo:
                peer = await echo.connect()
                with suppress(ConnectionResetError, BrokenPipeError):
                    for piece in pieces:
                        await peer.send(piece)
                        await poll_sockets()
                for exchange in echo.application.later:
                    exchange.respond(200, b"late")
                for channel in echo.application.channels():
                    channel.close()
                await poll_sockets()
                with suppress(OSError):
                    peer.end_sending()
                caught.append(await asyncio.wait_for(peer.rest(), 10))
                assert b" 500 " not in caught[0]

        run_on(loop, scenario())


# --- The reader alone, against a plain model ---

NAMES = st.text("abcXYZ-", min_size=1, max_size=6).map(lambda name: b"x-" + name.encode())
VALUES = st.binary(max_size=8).map(lambda raw: bytes(33 + byte % 94 for byte in raw))


@st.composite
def wire_requests(draw: st.DrawFn) -> tuple[bytes, tuple[object, ...]]:
    """A request as bytes, and what a reader must make of it."""
    method = draw(st.sampled_from(["GET", "POST", "PUT", "DELETE"]))
    path = b"/" + draw(st.text("abc%2F/", max_size=10)).encode()
    query = draw(st.text("ab=&?1", max_size=6)).encode()
    lines = [(b"Host", b"h"), *draw(st.lists(st.tuples(NAMES, VALUES), max_size=4))]
    body = draw(st.binary(max_size=50))
    chunk_bytes = draw(st.integers(0, 20))
    if chunk_bytes:
        lines.append((b"Transfer-Encoding", b"chunked"))
        pieces = [body[start : start + chunk_bytes] for start in range(0, len(body), chunk_bytes)]
        payload = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    else:
        lines.append((b"Content-Length", b"%d" % len(body)))
        payload = body
    if draw(st.booleans()):
        lines += [(b"Connection", b"upgrade"), (b"Upgrade", b"h2c")]
    headers: dict[bytes, bytes] = {}
    for name, value in lines:
        headers[name.lower()] = headers[name.lower()] + b", " + value if name.lower() in headers else value
    target = path + (b"?" + query if query else b"")
    head = b"".join(b"%b: %b\r\n" % line for line in lines)
    wire = b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method.encode(), target, head, payload)
    return wire, (method, path, query, headers, body)


class Heard:
    """Notes what a reader tells."""

    def __init__(self) -> None:
        self.heads: list[Request] = []
        self.requests: list[tuple[object, ...]] = []

    def head_received(self, request: Request, body_bytes: int | None) -> None:
        self.heads.append(request)

    def request_received(self, request: Request) -> None:
        assert self.heads[-1] is request
        self.requests.append((request.method, request.path, request.query, request.headers, request.body))


@given(st.lists(wire_requests(), min_size=1, max_size=5), st.data())
def test_requests_are_read_alike_however_they_are_cut(
    sent: list[tuple[bytes, tuple[object, ...]]], data: st.DataObject
) -> None:
    whole = b"".join(wire for wire, _ in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    heard = Heard()
    reader = RequestReader(HttpLimits(), heard, "peer", Targets())
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        piece, position = whole[start:end], 0
        while position < len(piece):
            before = len(heard.requests)
            position = reader.feed(piece, position)
            assert len(heard.requests) - before <= 2
    assert heard.requests == [expected for _, expected in sent]
    assert len(heard.heads) == len(sent)


def test_headers_are_bounded_also_right_behind_the_last_byte_of_a_request() -> None:
    limits = HttpLimits(max_header_bytes=500)
    reader = RequestReader(limits, Heard(), "peer", Targets())
    first = request_bytes(b"/")
    assert reader.feed(first[:-1], 0) == len(first) - 1
    with pytest.raises(Refusal) as refused:
        reader.feed(b"\n" + request_bytes(b"/", extra=b"A: " + b"a" * 500 + b"\r\n"), 0)
    assert refused.value.status == 431


@given(st.lists(st.one_of(PARTS, st.binary(max_size=30)), max_size=10))
def test_a_reader_raises_nothing_but_refusals(pieces: list[bytes]) -> None:
    reader = RequestReader(HttpLimits(max_body_bytes=3, max_headers=2), Heard(), "peer", Targets())
    try:
        for piece in pieces:
            position = 0
            while position < len(piece):
                after = reader.feed(piece, position)
                assert position < after <= len(piece)
                position = after
    except Refusal as refusal:
        assert refusal.status in (400, 405, 413, 431)
