"""The short way to a request: whatever it takes, the full parser takes too, and makes the same of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.native.http_request import SPECIAL_HEADERS, Request, read_plain
from everlog.server.http_limits import HttpLimits
from everlog.server.http_messages import Refusal
from everlog.server.http_reading import RequestReader

LIMITS = HttpLimits(max_body_bytes=200, max_target_bytes=60, max_header_bytes=400, max_headers=6)
GOOD = (
    b"POST /v0/topics/a?x=1 HTTP/1.1\r\nHost: here\r\n"
    b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
)


@dataclass
class Oracle:
    """The full parser, and what it found."""

    requests: list[Request] = field(default_factory=list)

    def head_received(self, request: Request, body_bytes: int | None) -> None:
        """Nothing to do: bodies are looked at when they are complete."""

    def body_received(self, size: int) -> None:
        """Nothing to do."""

    def request_received(self, request: Request) -> None:
        """Keep it."""
        self.requests.append(request)

    @classmethod
    def read(cls, data: bytes) -> list[Request] | None:
        """All requests in `data`; None if it is refused or not at an end."""
        oracle = cls()
        reader = RequestReader(LIMITS, oracle, "peer")
        position = 0
        try:
            while position < len(data):
                position = reader.feed(data, position)
        except Refusal:
            return None
        finally:
            reader.close()
        return oracle.requests


def short_way(data: bytes) -> Request | None:
    """What the short way makes of it."""
    return read_plain(
        data,
        "peer",
        LIMITS.max_target_bytes,
        LIMITS.max_header_bytes,
        LIMITS.max_headers,
        LIMITS.max_body_bytes,
    )


def facts(request: Request) -> dict[str, object]:
    """All that is known about a request."""
    names = ("method", "path", "query", "headers", "peer", "body", "context", "keep_alive")
    return {name: getattr(request, name) for name in (*names, "is_http_1_0", "offers_upgrade", "is_plain")}


def assert_same_as_the_full_parser(data: bytes) -> bool:
    """Compare both; whether the short way took it."""
    request = short_way(data)
    if request is not None:
        found = Oracle.read(data)
        assert found is not None, data
        assert [facts(one) for one in found] == [facts(request)]
    return request is not None


names = st.sampled_from([b"Host", b"host", b"X-A", b"accept", b"Content-Type", b"AUTHORIZATION", b"x_y.z~"])
odd_names = st.sampled_from([b"X A", b"", b"X:", b" X", b"X\t", b"\xe4", *sorted(SPECIAL_HEADERS)])
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


@settings(max_examples=500, deadline=None)
@given(messages())
def test_what_the_short_way_takes_the_full_parser_takes_as_the_same(data: bytes) -> None:
    assert_same_as_the_full_parser(data)


@settings(max_examples=500, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=0, max_size=2), st.integers(0, 3))
def test_a_request_with_a_spoilt_place_is_never_taken_for_another_one(
    place: int, instead: bytes, gone: int
) -> None:
    assert_same_as_the_full_parser(GOOD[:place] + instead + GOOD[place + gone :])


@pytest.mark.parametrize("size", range(len(GOOD)))
def test_a_request_that_is_not_whole_is_left_to_the_full_parser(size: int) -> None:
    assert short_way(GOOD[:size]) is None


@pytest.mark.parametrize("name", sorted(SPECIAL_HEADERS))
def test_a_header_that_changes_the_reading_is_left_to_the_full_parser(name: bytes) -> None:
    assert short_way(GOOD.replace(b"Content-Type", name.title())) is None


@pytest.mark.parametrize("method", [b"GET", b"PUT", b"POST", b"DELETE"])
@pytest.mark.parametrize("body", [b"", b"x", b"x" * 200])
def test_usual_requests_go_the_short_way(method: bytes, body: bytes) -> None:
    head = b"%b /v0/topics/t HTTP/1.1\r\nhost:h\r\nAccept: */*\r\nUser-Agent: x\r\n" % method
    assert assert_same_as_the_full_parser(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def test_bounds_are_met_to_the_byte() -> None:
    assert short_way(b"GET /%b HTTP/1.1\r\nHost: h\r\n\r\n" % (b"t" * 59)) is not None
    assert short_way(b"GET /%b HTTP/1.1\r\nHost: h\r\n\r\n" % (b"t" * 60)) is None
    lines = b"".join(b"X-%d: y\r\n" % number for number in range(5))
    assert short_way(b"GET /aaaaaaaa HTTP/1.1\r\nHost: h\r\n%b\r\n" % lines) is not None
    assert short_way(b"GET /aaaaaaaa HTTP/1.1\r\nHost: h\r\n%bX-5: y\r\n\r\n" % lines) is None
    body = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b"
    assert short_way(body % (200, b"x" * 200)) is not None
    assert short_way(body % (201, b"x" * 201)) is None


def test_a_request_made_by_hand_has_its_defaults() -> None:
    request = Request("GET", b"/", b"", {b"a": b"b"}, "peer")
    assert (request.body, request.keep_alive, request.context) == (b"", True, None)
    assert (request.is_http_1_0, request.offers_upgrade, request.is_plain) == (False, False, False)
    assert (request.header(b"a"), request.header(b"c")) == (b"b", None)
