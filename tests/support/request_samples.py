"""Valid requests and messages of the server: what fuzzing starts from."""

from __future__ import annotations

import json

from tests.support.watch_servers import upgrade_request

INTERESTING = (
    *(
        b"\0",
        b"\r\n",
        b"\r\n\r\n",
        b"\n",
        b" ",
        b":",
        b"%00",
        b"%",
        b"\xff",
        b"\xed\xa0\x80",
        b"/../",
        b"?",
        b"#",
    ),
    *(b"{" * 200, b"[" * 200, b"NaN", b"1e999", b"-1", b"18446744073709551616", b'"\\ud800"'),
    *(b"Transfer-Encoding: chunked\r\n", b"Content-Length: 99999999999\r\n", b"Expect: 100-continue\r\n"),
    *(b"A", b"X-Y: z\r\n", b"[", b'{"a":'),
)
RECORD = {"data": {"id": 1, "text": "ä\u2028"}, "tag": "t", "node": "n", "meta": {"k": [1, None]}}
SOCKET_MESSAGES = tuple(
    json.dumps(message).encode()
    for message in (
        {"op": "ping", "request_id": 7},
        {"op": "publish", "topic": "fuzzed", "records": [RECORD, {"data": None}], "request_id": "a"},
        {
            "op": "publish",
            "topic": "fuzzed",
            "records": [RECORD],
            "idempotency_key": "k",
            "return_seqs": False,
        },
        {"op": "subscribe", "topic": "fuzzed", "from_seq": 0, "limit": 5, "request_id": [1]},
        {"op": "subscribe", "topics": {"fuzzed": {"tail": True}, "b": {}}, "lenient": True, "node": ["n"]},
        {"op": "unsubscribe", "topics": ["fuzzed", "b"], "request_id": None},
    )
)


def request(method: str, path: str, body: object = None, *headers: str) -> bytes:
    """A proper request."""
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join([*lines, "", ""]).encode() + content


def socket_frame(first_byte: int, payload: bytes) -> bytes:
    """A frame of a WebSocket client; the mask changes nothing."""
    size = len(payload)
    length = bytes((0x80 | size,)) if size < 126 else bytes((0xFE,)) + size.to_bytes(2, "big")
    return bytes((first_byte,)) + length + bytes(4) + payload


REQUESTS = (
    request("GET", "/v0/health"),
    request("GET", "/v0/metrics", None, "Accept: application/json"),
    request("GET", "/v0/topics?prefix=a&page_size=5&cursor=eyJhZnRlciI6ImEifQ=="),
    request("PUT", "/v0/topics/fuzzed", {"cap_records": 5, "ttl_ms": 1000, "durability": "memory"}),
    request("POST", "/v0/topics/fuzzed", {"records": [RECORD, RECORD], "idempotency_key": "k"}),
    request("POST", "/v0/topics/fuzzed/diff", {"from_seq": 0, "limit": 3, "node": ["n"], "wait_ms": 1}),
    request("POST", "/v0/topics/fuzzed/delete", {"before_seq": 2, "match": ["tag", "Glob", "t*"]}),
    request("DELETE", "/v0/topics/fuzzed?if_empty=true"),
    request("POST", "/v0/watch?lenient=true", {"topics": {"fuzzed": {"tail": True}, "b": {}}}),
    request("GET", "/v0/watch/wid_0123456789012345678901", None, "Last-Event-ID: eyJhIjoxfQ"),
    request("PUT", "/v0/routers/r", {"source": "fuzzed", "dest": "copy"}),
    request("POST", "/v0/topics/fuzzed/claim", {"node": "w", "max": 3}),
    request("OPTIONS", "/v0/topics/fuzzed", None, "Origin: http://a.example"),
    b"POST /v0/topics/fuzzed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b'Transfer-Encoding: chunked\r\n\r\n9\r\n{"records\r\n9\r\n":[{"data\r\n6\r\n":1}]}\r\n0\r\n\r\n',
    # A conversation over a WebSocket: whole messages, one in three frames with a ping between them, the end.
    upgrade_request() + b"".join(socket_frame(0x81, message) for message in SOCKET_MESSAGES),
    upgrade_request()
    + socket_frame(0x01, SOCKET_MESSAGES[1][:20])
    + socket_frame(0x89, b"ping")
    + socket_frame(0x00, SOCKET_MESSAGES[1][20:30])
    + socket_frame(0x80, SOCKET_MESSAGES[1][30:])
    + socket_frame(0x88, b"\x03\xe8"),
)
