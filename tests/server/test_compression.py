"""Bodies may be compressed where that is switched on: both directions, bounds, and what is refused."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.server.compression import COMPRESSED_BYTES_MIN, packed, takes_gzip, unpack_body
from everlog.server.errors import ApiError
from everlog.server.http import Request, Target
from tests.support.http_cases import Api, RunningServer, settings_of

BODY = b'{"records":[{"data":1}]}'
MAX_BODY = 5000


def request_with(body: bytes, coding: bytes = b"gzip", accept: bytes | None = None) -> Request:
    """A request with a body in this coding."""
    headers = {b"content-encoding": coding}
    if accept is not None:
        headers[b"accept-encoding"] = accept
    request = Request(Target("POST", b"/v0/topics/t", b""), headers, "test")
    request.body = body
    return request


def unpacked(request: Request, *, is_allowed: bool = True) -> bytes:
    """Its body, unpacked."""
    unpack_body(request, is_allowed, MAX_BODY)
    return request.body


@given(st.binary(max_size=MAX_BODY))
def test_a_compressed_body_is_what_was_compressed(body: bytes) -> None:
    assert unpacked(request_with(gzip.compress(body))) == body


@pytest.mark.parametrize("coding", [b"identity", b"", b" Identity "])
def test_a_body_that_is_not_coded_stays_as_it_is(coding: bytes) -> None:
    assert unpacked(request_with(BODY, coding), is_allowed=False) == BODY


@pytest.mark.parametrize(
    ("coding", "is_allowed"),
    [(b"gzip", False), (b"deflate", True), (b"gzip, gzip", True), (b"br", True)],
)
def test_an_unknown_coding_and_one_that_is_switched_off_are_refused(coding: bytes, is_allowed: bool) -> None:
    with pytest.raises(ApiError) as refused:
        unpacked(request_with(gzip.compress(BODY), coding), is_allowed=is_allowed)
    assert (refused.value.status, refused.value.code) == (415, "unsupported_media_type")
    assert "b'" not in str(refused.value) and "accepted here" in str(refused.value)


@pytest.mark.parametrize("excess", [0, 1, 100 * 1024 * 1024])
def test_a_bomb_is_bounded_by_the_length_of_a_body(excess: int) -> None:
    request = request_with(gzip.compress(b" " * (MAX_BODY + excess)))
    if not excess:
        assert unpacked(request) == b" " * MAX_BODY
        return
    with pytest.raises(ApiError) as refused:
        unpacked(request)
    assert (refused.value.status, refused.value.code) == (413, "payload_too_large")


@pytest.mark.parametrize(
    "body",
    [b"no gzip", gzip.compress(BODY)[:-1], gzip.compress(BODY) + b"x", gzip.compress(b"") * 2],
    ids=["other", "cut", "more", "members"],
)
def test_what_is_not_exactly_one_gzip_member_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        unpacked(request_with(body))
    assert (refused.value.status, refused.value.code) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("accept", "takes"),
    [
        (None, False),
        (b"", False),
        (b"gzip", True),
        (b"deflate, GZIP;q=0.5", True),
        (b"br;q=1.0, *", True),
        (b"gzip;q=0", False),
        (b"gzip; q=0.000, *", False),
        (b"*;q=0", False),
        (b"identity", False),
        (b"gzip;q=x", True),
    ],
)
def test_gzip_is_sent_to_whom_takes_it(accept: bytes | None, takes: bool) -> None:
    assert takes_gzip(accept) is takes
    body, headers = packed(request_with(b"", accept=accept), b"x" * 2000)
    assert (b"Vary", b"Accept-Encoding") in headers
    assert ((b"Content-Encoding", b"gzip") in headers) is takes
    assert (gzip.decompress(body) if takes else body) == b"x" * 2000


# --- A server --------------------------------------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["off", "on"])
def api(request: pytest.FixtureRequest) -> Iterator[tuple[Api, bool]]:
    """A client of a server that has it switched off or on."""
    server = RunningServer(settings_of(gzip=request.param))
    try:
        yield server.api(), request.param
    finally:
        server.stop()


def test_a_server_speaks_gzip_only_if_it_is_switched_on(api: tuple[Api, bool]) -> None:
    client, is_on = api
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    body = gzip.compress(json.dumps({"records": [{"data": "x" * COMPRESSED_BYTES_MIN}]}).encode())
    reply = client.http.request("POST", "/v0/topics/t", body, headers)
    assert reply.status == (201 if is_on else 415)
    client.fill("t", "x" * COMPRESSED_BYTES_MIN)
    body = json.dumps({"from_seq": 0}).encode()
    headers = {"Content-Type": "application/json", "Accept-Encoding": "gzip"}
    reply = client.http.request("POST", "/v0/topics/t/diff", body, headers)
    assert reply.headers.get("content-encoding") == ("gzip" if is_on else None)
    assert reply.json["records"][-1]["data"] == "x" * COMPRESSED_BYTES_MIN


def test_short_answers_and_errors_are_never_compressed(api: tuple[Api, bool]) -> None:
    client, _ = api
    headers = {"Accept-Encoding": "gzip"}
    for path, status in (("/v0/health", 200), ("/v0/topics/absent", 404)):
        reply = client.http.request("GET", path, None, headers)
        assert reply.status == status
        assert "content-encoding" not in reply.headers
