"""Reading requests: the same request comes out however its bytes were cut, and bounds hold to the byte."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.server.http_exchange import HttpLimits, Refusal, Request, Target, Targets
from everlog.server.http_reading import RequestReader
from tests.support.effort import effort

LIMITS = HttpLimits(max_body_bytes=200, max_target_bytes=60, max_header_bytes=400, max_headers=6)
GOOD = (
    b"POST /v0/topics/a?x=1 HTTP/1.1\r\nHost: here\r\n"
    b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
)


SPECIAL_HEADERS = [b"connection", b"expect", b"te", b"trailer", b"transfer-encoding", b"upgrade"]


@dataclass
class Listener:
    """Keeps the requests that a reader found."""

    requests: list[Request] = field(default_factory=list)

    def head_received(self, request: Request, body_bytes: int | None) -> None:
        """As a connection does: a body that is stated to be too long is refused."""
        if body_bytes is not None and body_bytes > LIMITS.max_body_bytes:
            raise Refusal.because(413, "too long")

    def body_received(self, size: int) -> None:
        """Nothing to do."""

    def request_received(self, request: Request) -> None:
        """Keep it."""
        self.requests.append(request)


def read(*pieces: bytes) -> list[dict[str, object]] | None:
    """All that is known of the requests in these pieces; None if they are refused."""
    listener = Listener()
    reader = RequestReader(LIMITS, listener, "peer", Targets())
    try:
        for piece in pieces:
            position = 0
            while position < len(piece):
                position = reader.feed(piece, position)
    except Refusal:
        return None
    finally:
        reader.close()
    return [facts(request) for request in listener.requests]


def facts(request: Request) -> dict[str, object]:
    names = ("method", "path", "query", "headers", "peer", "body", "keep_alive")
    return {name: getattr(request, name) for name in (*names, "is_http_1_0", "offers_upgrade", "is_plain")}


names = st.sampled_from([b"Host", b"host", b"X-A", b"accept", b"Content-Type", b"AUTHORIZATION", b"x_y.z~"])
odd_names = st.sampled_from([b"X A", b"", b"X:", b" X", b"X\t", b"\xe4", *SPECIAL_HEADERS])
values = st.sampled_from([b"here", b"", b"  a b  ", b"\ta\t", b"a/b", b"\xe4\xff", b'a,b;c="d"'])
odd_values = st.sampled_from([b"a\rb", b"a\nb", b"a\0b", b"\x7f", b"a\r\n b", b"chunked", b"close", b"1"])
targets = st.sampled_from([b"/", b"/a/b", b"/a?x=1&y=2", b"/a??", b"/%20?%00", b"/" + b"t" * 59])
odd_targets = st.sampled_from([b"*", b"a", b"http://h/a", b"/#f", b"/a b", b"/\xe4", b"", b"/" + b"t" * 60])
methods = st.sampled_from([b"GET", b"POST", b"PUT", b"DELETE"])
odd_methods = st.sampled_from([b"HEAD", b"OPTIONS", b"get", b"PATCH", b"CONNECT", b"", b"POSTS"])
versions = st.sampled_from([b"HTTP/1.1"] * 6 + [b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"http/1.1", b""])
ends = st.sampled_from([b"\r\n"] * 8 + [b"\n", b"\r", b"\r\r\n"])


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Requests that are good, or odd in one or several places."""
    end = draw(ends)
    body = draw(st.sampled_from([b"", b"{}", b"x" * 200, b"x" * 201]))
    odd_lengths = [b"1", b"+2", b"2 ", b"0x2", b"", b"99999999999"]
    stated = draw(st.sampled_from([b"%d" % len(body)] * 5 + odd_lengths))
    pairs = draw(st.lists(st.tuples(names | odd_names, values | odd_values), max_size=3))
    pairs += draw(st.lists(st.tuples(names, values), max_size=5))
    headers = [(b"Host", b"here")] * draw(st.sampled_from([1, 1, 1, 0, 2]))
    if body or draw(st.booleans()):
        headers.append((b"Content-Length", stated))
    headers += pairs if draw(st.booleans()) else []
    blank = draw(st.sampled_from([b" "] * 5 + [b"", b"\t", b"   "]))
    lines = [draw(methods | odd_methods) + b" " + draw(targets | odd_targets) + b" " + draw(versions)]
    lines += [name + b":" + blank + value for name, value in headers]
    behind = draw(st.sampled_from([b""] * 6 + [b"GET / HTTP/1.1", b"\r\n"]))
    return end.join(lines) + end + end + body + behind


@settings(max_examples=effort(300), deadline=None)
@given(messages(), st.data())
def test_a_request_is_the_same_however_it_is_cut(data: bytes, draw: st.DataObject) -> None:
    cut = draw.draw(st.integers(0, len(data)))
    assert read(data) == read(data[:cut], data[cut:])


@settings(max_examples=effort(300), deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=0, max_size=2), st.integers(0, 3))
def test_a_request_with_a_spoilt_place_is_the_same_byte_by_byte(
    place: int, instead: bytes, gone: int
) -> None:
    spoilt = GOOD[:place] + instead + GOOD[place + gone :]
    assert read(spoilt) == read(*(spoilt[at : at + 1] for at in range(len(spoilt))))


@pytest.mark.parametrize("size", range(len(GOOD)))
def test_a_request_that_is_not_whole_is_not_received(size: int) -> None:
    assert read(GOOD[:size]) == []


@pytest.mark.parametrize("method", [b"GET", b"PUT", b"POST", b"DELETE"])
@pytest.mark.parametrize("body", [b"", b"x", b"x" * 200])
def test_a_request_has_its_parts(method: bytes, body: bytes) -> None:
    head = b"%b /v0/topics/t?a=b HTTP/1.1\r\nhost:h\r\nAccept: */* \r\n" % method
    found = read(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert found is not None
    (request,) = found
    assert request["method"] == method.decode()
    assert (request["path"], request["query"], request["body"]) == (b"/v0/topics/t", b"a=b", body)
    assert request["headers"] == {b"host": b"h", b"accept": b"*/*", b"content-length": b"%d" % len(body)}


def test_bounds_are_met_to_the_byte() -> None:
    assert read(b"GET /%b HTTP/1.1\r\nHost: h\r\n\r\n" % (b"t" * 59))
    assert read(b"GET /%b HTTP/1.1\r\nHost: h\r\n\r\n" % (b"t" * 60)) is None
    lines = b"".join(b"X-%d: y\r\n" % number for number in range(5))
    assert read(b"GET /aaaaaaaa HTTP/1.1\r\nHost: h\r\n%b\r\n" % lines)
    assert read(b"GET /aaaaaaaa HTTP/1.1\r\nHost: h\r\n%bX-5: y\r\n\r\n" % lines) is None
    body = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b"
    assert read(body % (200, b"x" * 200))
    assert read(body % (201, b"x" * 201)) is None


def test_a_request_made_by_hand_has_its_defaults() -> None:
    request = Request(Target("GET", b"/", b""), {b"a": b"b"}, "peer")
    assert (request.body, request.keep_alive) == (b"", True)
    assert (request.is_http_1_0, request.offers_upgrade, request.is_plain) == (False, False, False)
    assert (request.header(b"a"), request.header(b"c")) == (b"b", None)


def test_targets_are_taken_apart_once_within_bounds_and_without_secrets() -> None:
    targets = Targets()
    known = targets.find(b"POST", b"/v0/topics/t?return_seqs=false")
    assert targets.find(b"POST", b"/v0/topics/t?return_seqs=false") is known
    assert targets.find(b"GET", b"/v0/topics/t?return_seqs=false") is not known
    assert (known.method, known.path, known.query) == ("POST", b"/v0/topics/t", b"return_seqs=false")
    for raw in (b"/v0/watch/w?token=secret", b"/" + b"t" * Targets.BYTES_MAX):
        assert targets.find(b"GET", raw) is not targets.find(b"GET", raw)
    for number in range(Targets.COUNT_MAX):
        targets.find(b"GET", b"/%d" % number)
    assert len(targets._known) <= Targets.COUNT_MAX
