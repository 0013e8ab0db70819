"""Sections 0.3 and 15 over the wire: which bodies are read, and what becomes of the text of a record."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import effort
from tests.support.http_cases import (
    Api,
    RunningServer,
    assert_error,
    assert_error_shape,
    running,
    taken,
)

APPEND = b'{"records":[{"data":1}]}'
ROUTES = [
    ("POST", "/v0/topics/t", APPEND),
    ("POST", "/v0/topics/t/diff", b"{}"),
    ("POST", "/v0/topics/t/delete", b'{"before_seq":1}'),
    ("PUT", "/v0/topics/t", b"{}"),
]


def stored(api: Api, data: str) -> str:
    """The text of the first record of `t` as it is sent to a reader."""
    text = api.diff("t").text
    start = text.index('"data":') + len('"data":')
    return text[start : text.index('}],"next_from_seq"')]


# --- Content type ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
@pytest.mark.parametrize(
    "content_type", [None, "", "text/plain", "application/x-www-form-urlencoded", "text/application/json"]
)
def test_a_body_that_is_not_called_json_is_refused(
    api: Api, method: str, path: str, body: bytes, content_type: str | None
) -> None:
    api.put("t")
    assert_error(api.request(method, path, body, Content_Type=content_type), 415, "unsupported_media_type")


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "application/json;charset=latin-1",
        "Application/JSON",
    ],
)
def test_the_type_must_only_begin_with_json(
    api: Api, method: str, path: str, body: bytes, content_type: str
) -> None:
    api.put("t")
    taken(api.request(method, path, body, Content_Type=content_type))


def test_the_type_is_looked_at_before_the_text(api: Api) -> None:
    api.put("t")
    for method, path, _ in ROUTES:
        reply = api.request(method, path, b"{", Content_Type="text/plain")
        assert_error(reply, 415, "unsupported_media_type")


def test_an_empty_body_is_no_append(api: Api) -> None:
    reply = api.request("POST", "/v0/topics/t", b"", Content_Type=None)
    assert_error(reply, 415, "unsupported_media_type")
    assert_error(api.request("POST", "/v0/topics/t", b""), 400, "invalid_request")


def test_blanks_are_not_an_empty_body(api: Api) -> None:
    api.put("t")
    for method, path in (("PUT", "/v0/topics/t"), ("POST", "/v0/topics/t/diff")):
        assert_error(api.request(method, path, b" ", Content_Type=None), 415, "unsupported_media_type")
        assert_error(api.request(method, path, b" "), 400, "invalid_request")
        taken(api.request(method, path, b""))


def test_a_body_on_a_get_or_delete_is_ignored(api: Api) -> None:
    api.put("t")
    taken(api.request("GET", "/v0/topics/t", b"{nonsense", Content_Type="text/plain"))
    taken(api.request("DELETE", "/v0/topics/t", b"{nonsense"))


# --- JSON that is none -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
@pytest.mark.parametrize(
    "value",
    [
        "",
        "NaN",
        "Infinity",
        "-Infinity",
        "nan",
        "undefined",
        "01",
        "+1",
        ".5",
        "1.",
        "1e",
        "0x10",
        "'a'",
        '"a',
        '"\n"',
        '"\t"',
        '"\\x41"',
        '"\\u12"',
        '"\\ud800"',
        '"\\udc00"',
        '"\\ud800x"',
        '"\\ud800\\ud800"',
        '"\\udc00\\ud800"',
        '{"\\ud800":1}',
        "[1,]",
        "[,1]",
        '{"a":1,}',
        "{a:1}",
        "[1 2]",
        "tru",
        "nulls",
        "/*c*/1",
        "1//",
        "[" * 100_000,
    ],
)
def test_what_is_no_json_is_refused_wherever_it_stands(
    api: Api, method: str, path: str, body: bytes, value: str
) -> None:
    api.put("t")
    unknown_field = body[:-1] + (b"," if body != b"{}" else b"") + b'"unknown":' + value.encode() + b"}"
    assert_error(api.request(method, path, unknown_field), 400, "invalid_request")
    if path == "/v0/topics/t":
        as_data = b'{"records":[{"data":' + value.encode() + b"}]}"
        assert_error(api.request("POST", path, as_data), 400, "invalid_request")
        as_meta = b'{"records":[{"data":1,"meta":{"k":' + value.encode() + b"}}]}"
        assert_error(api.request("POST", path, as_meta), 400, "invalid_request")


@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        b'{"records":[{"data":"\xff"}]}',
        b'{"records":[{"data":"\xed\xa0\x80"}]}',
        b'{"records":[{"data":"\xc0\x80"}]}',
        b'{"records":[{"data":1,"tag":"\xff"}]}',
        b'{"records":[{"data":1}],"\xff":1}',
        b"\xef\xbb\xbf" + APPEND,
        APPEND.decode().encode("utf-16"),
        APPEND + b"x",
        APPEND + APPEND,
        APPEND + b"\0",
        APPEND[:-1],
        b"\0",
    ],
)
def test_bytes_that_are_no_single_json_text_in_utf_8_are_refused(api: Api, body: bytes) -> None:
    assert_error(api.request("POST", "/v0/topics/t", body), 400, "invalid_request")
    assert_error(api.state("t"), 404, "topic_not_found")


def test_blanks_around_the_body_are_no_harm(api: Api) -> None:
    taken(api.request("POST", "/v0/topics/t", b" \r\n\t" + APPEND + b"\n"), 201)


@pytest.mark.parametrize(("levels", "status"), [(125, 201), (126, 400), (100_000, 400)])
def test_nesting_is_limited_to_128_levels_from_the_top_of_the_body(
    api: Api, levels: int, status: int
) -> None:
    # The body, its records and the record are three levels themselves.
    arrays = api.append_text("a", "[" * levels + "]" * levels)
    objects = api.append_text("b", '{"a":' * levels + "1" + "}" * levels)
    meta = api.append_text("c", "1", ',"meta":{"a":' + "[" * (levels - 1) + "]" * (levels - 1) + "}")
    assert [arrays.status, objects.status, meta.status] == [status] * 3


def test_brackets_inside_strings_are_no_levels(api: Api) -> None:
    taken(api.append_text("t", '"' + "[{" * 500 + '\\"' + '"'), 201)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v0/topics/t", b'{"records":[{"data":1}],"records":[{"data":2}]}'),
        ("/v0/topics/t", b'{"records":[{"data":1},{"data":1,"data":2}]}'),
        ("/v0/topics/t", b'{"records":[{"data":1,"d\\u0061ta":2}]}'),
        ("/v0/topics/t", b'{"records":[{"data":1,"tag":"a","tag":"a"}]}'),
        ("/v0/topics/t", b'{"records":[{"data":1,"node":"a","node":null}]}'),
        ("/v0/topics/t", b'{"records":[{"data":1,"meta":{},"meta":{}}]}'),
        ("/v0/topics/t", b'{"records":[{"data":1}],"node":"a","node":"b"}'),
        ("/v0/topics/t", b'{"records":[{"data":1}],"idempotency_key":"a","idempotency_key":"b"}'),
        ("/v0/topics/t", b'{"records":[{"data":1}],"config":{"ttl_ms":1,"ttl_ms":2}}'),
        ("/v0/topics/t/diff", b'{"limit":1,"limit":2}'),
        ("/v0/watch", b'{"topics":{"t":{"tail":true,"tail":false}}}'),
    ],
)
def test_a_member_that_comes_twice_is_refused(api: Api, path: str, body: bytes) -> None:
    api.put("t")
    reply = api.request("POST", path, body)
    assert_error(reply, 400, "invalid_request")
    assert "comes twice" in reply.json["error"]["message"]
    assert api.values("t") == []


def test_members_of_data_and_meta_may_come_twice(api: Api) -> None:
    body = b'{"records":[{"data":{"a":1,"a":2},"meta":{"b":[{"c":1,"c":2}],"b":3}}],"config":{}}'
    assert "ignored" not in taken(api.request("POST", "/v0/topics/t", body), 201)


# --- Unknown members -------------------------------------------------------------------------------------


def test_unknown_members_are_listed_in_the_answer(api: Api) -> None:
    body = {"records": [{"data": 1}, {"data": 2, "delay": 5}], "config": {"ttl": 1}, "prio": 2}
    answer = taken(api.request("POST", "/v0/topics/t", body), 201)
    assert answer["ignored"] == [
        {"path": "prio", "name": "prio"},
        {"path": "records[1].delay", "name": "delay"},
        {"path": "config.ttl", "name": "ttl"},
    ]
    assert api.values("t") == [1, 2]


def test_an_answer_lists_ten_unknown_members_at_most_and_cuts_their_names(api: Api) -> None:
    body = {"records": [{"data": 1, **{f"{'x' * 200}{number}": 1 for number in range(50)}}]}
    ignored = taken(api.request("POST", "/v0/topics/t", body), 201)["ignored"]
    assert [member["name"] for member in ignored] == ["x" * 100] * 10


STRICT = [
    ("POST", "/v0/topics/t", {"records": [{"data": 1, "tga": "x"}]}, "records[0].tga", "tag"),
    ("POST", "/v0/topics/t", {"records": [{"data": 1}], "idempotency-key": "k"}, None, "idempotency_key"),
    ("POST", "/v0/topics/t", {"records": [{"data": 1}], "config": {"ttl": 1}}, "config.ttl", "ttl_ms"),
    ("PUT", "/v0/topics/t", {"cap_record": 1}, "cap_record", "cap_records"),
    ("POST", "/v0/topics/t/diff", {"from": 1}, "from", "from_seq"),
    ("POST", "/v0/topics/t/delete", {"before_seq": 1, "macth": "a"}, "macth", "match"),
    ("POST", "/v0/topics/q/claim", {"node": "w", "lease": 1}, "lease", "lease_ms"),
    ("POST", "/v0/topics/q/ack", {"node": "w", "seqs": [], "lease_id": []}, "lease_id", "lease_ids"),
    ("POST", "/v0/topics/q/nack", {"node": "w", "seqs": [], "delay": 1}, "delay", "delay_ms"),
    ("POST", "/v0/topics/q/extend", {"node": "w", "seqs": [], "lease_ms": 1, "seq": 1}, "seq", "seqs"),
    ("PUT", "/v0/routers/r", {"source": "a", "dest": "b", "filtre": "x"}, "filtre", "filter"),
    ("POST", "/v0/watch", {"topics": {"t": {"tial": True}}}, "topics.t.tial", "tail"),
]


@pytest.mark.parametrize(("method", "path", "body", "member", "nearest"), STRICT)
def test_a_strict_request_with_an_unknown_member_is_refused(
    api: Api, method: str, path: str, body: dict[str, object], member: str | None, nearest: str
) -> None:
    api.put("t")
    api.put("q", type="queue")
    wanted = member or "idempotency-key"
    refused = api.request(method, f"{path}?strict=true", body)
    assert_error(refused, 400, "invalid_request", path=wanted, nearest=nearest)
    assert wanted in refused.json["error"]["message"] and nearest in refused.json["error"]["message"]
    loose = api.request(method, path, body)
    assert loose.status in (200, 201)
    assert [member["path"] for member in loose.json["ignored"]] == [wanted]


def test_a_strict_request_without_unknown_members_is_as_any_other(api: Api) -> None:
    answer = taken(api.request("POST", "/v0/topics/t?strict=true", APPEND), 201)
    assert "ignored" not in answer


def test_members_of_data_and_meta_are_the_users(api: Api) -> None:
    body = {"records": [{"data": {"tga": 1}, "meta": {"records": [{"x": 1}]}}], "config": {}}
    assert "ignored" not in taken(api.request("POST", "/v0/topics/t?strict=true", body), 201)


# --- What errors say -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("PUT", "/v0/topics/t", b'{"type":"Queue"}', 'type is "Queue"; it must be one of log, queue'),
        ("PUT", "/v0/topics/t", b'{"ttl_ms":"5"}', 'ttl_ms is "5"; it must be a whole number'),
        ("PUT", "/v0/topics/t", b'{"durable":1}', "durable is 1; it must be true or false"),
        ("PUT", "/v0/topics/t", b'{"priority":"x"}', 'priority is "x"; it must be a whole number or null'),
        ("PUT", "/v0/topics/t", b"[1]", "it is [1]; it must be an object"),
        ("POST", "/v0/topics/t", b"", "it is empty; send a JSON object"),
        ("POST", "/v0/topics/t", b"{}", "records is missing; it must be a list"),
        ("POST", "/v0/topics/t", b'{"records":[{"data":1},{"tag":"a"}]}', "records[1].data is missing"),
        ("POST", "/v0/topics/t", b'{"records":[{"data":1,"tag":7}]}', "records[0].tag is 7; it must be text"),
        ("POST", "/v0/topics/t", b'{"records":[{"data":1}', "its JSON is cut off after 22 bytes"),
        ("POST", "/v0/topics/t", b'{"records":[{"data":nope}]}', "it is not JSON from byte"),
        ("POST", "/v0/topics/t", b'{"records":7,}', "it is not JSON from byte 13 on: }"),
        ("POST", "/v0/topics/q/ack", b'{"node":"w","seqs":[1,"2"]}', 'seqs is [1,"2"]; it must be a list'),
        (
            "POST",
            "/v0/watch",
            b'{"topics":{"t":{}},"consistency":"x"}',
            'consistency is "x"; it must be one of eventual, strong',
        ),
        ("POST", "/v0/watch", b'{"topics":{"t":{"tail":0}}}', "topics.t.tail is 0; it must be true or false"),
    ],
)
def test_an_error_names_the_value_and_what_is_allowed(
    api: Api, method: str, path: str, body: bytes, message: str
) -> None:
    reply = api.request(method, path, body)
    assert_error(reply, 400, "invalid_request")
    assert message in reply.json["error"]["message"]


# --- Stored text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "1.0",
        "1e5",
        "1E+5",
        "-0",
        "-0.0",
        "1e999",
        "123456789012345678901234567890",
        "0.1000",
        '"\\u0041\\/\\b\\f\\n\\r\\t\\"\\\\"',
        '"\\ud834\\udd1e"',
        '"é\u2028\U0001d11e\x7f"',
        '{"b":1,"a":2,"b":3}',
        '{"":{"":[]}}',
        '" spaces  stay "',
        '[[],{},null,true,false,""]',
    ],
)
def test_the_text_of_data_stays_as_it_was_sent(api: Api, text: str) -> None:
    api.append_text("t", text)
    assert stored(api, text) == text
    assert taken(api.state("t"))["bytes"] == len(text.encode())


def test_blanks_between_tokens_are_not_stored(api: Api) -> None:
    api.append_text("t", ' { "a b" :\n[ 1 ,\t2.50 , "\\n  " ] ,\r\n"a b":{ } } ')
    compact = '{"a b":[1,2.50,"\\n  "],"a b":{}}'
    assert stored(api, compact) == compact
    assert taken(api.state("t"))["bytes"] == len(compact)


def test_the_text_of_meta_stays_too_without_its_blanks(api: Api) -> None:
    api.append_text("t", "1", ',"meta": { "z": 1.0, "a": "\\u00e9", "z": 2 }')
    compact = '{"z":1.0,"a":"\\u00e9","z":2}'
    assert f'"meta":{compact}' in api.diff("t").text
    assert taken(api.state("t"))["bytes"] == 1 + len(compact)


@pytest.mark.parametrize("null", ["null", " null ", "\nnull\t"])
def test_meta_of_null_is_no_meta_however_it_is_written(api: Api, null: str) -> None:
    api.append_text("t", "1", f',"meta":{null}')
    assert '"meta"' not in api.diff("t").text
    assert taken(api.state("t"))["bytes"] == 1


def test_a_reply_has_no_line_break_whatever_is_stored(api: Api) -> None:
    api.append_text("t", '[\n1,\r\n"\\n"\n]\n', ',\n"meta":{\n"a":\r1}')
    assert not set("\r\n") & set(api.diff("t").text)


# --- Size ------------------------------------------------------------------------------------------------


def test_a_body_above_the_limit_is_413_before_it_is_parsed() -> None:
    with running(max_body_bytes=1000) as server:
        api = server.api()
        fits = b'{"records":[{"data":"' + b"x" * (1000 - 25) + b'"}]}'
        assert len(fits) == 1000
        taken(api.request("POST", "/v0/topics/t", fits), 201)
        for body in (fits + b" ", b"x" * 1001, b"x" * 5_000_000):
            reply = api.request("POST", "/v0/topics/t", body, Content_Type="text/plain")
            assert_error(reply, 413, "payload_too_large")
        assert taken(api.state("t"))["count"] == 1


# --- Anything --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[RunningServer]:
    """One server for all examples: it has to survive them."""
    with running() as started:
        started.api().put("t", type="queue")
        yield started


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
FIELDS = [
    "records",
    "data",
    "tag",
    "node",
    "meta",
    "idempotency_key",
    "create",
    "config",
    "disable_backpressure",
    "from_seq",
    "limit",
    "include_tags",
    "include_meta",
    "wait_ms",
    "max_batch_bytes",
    "before_seq",
    "match",
    "type",
    "ttl_ms",
    "cap_records",
    "cap_bytes",
    "discard",
    "durable",
    "durability",
    "priority",
    "lease_ms",
    "dead_letter",
]
near_values = (
    st.sampled_from(
        [0, 1, -1, 2**63, 2**64 - 1, 2**64, "x", "*", "fsync", "reject", [], {}, ["tag", "Eq", "x"]]
    )
    | json_values
)
records = st.dictionaries(st.sampled_from(["data", "tag", "node", "meta"]), near_values, max_size=4)
# A parked reader would wait its time out, so the examples do not wait for long.
near_bodies = st.dictionaries(
    st.sampled_from([field for field in FIELDS if field != "wait_ms"]), near_values, max_size=5
) | st.fixed_dictionaries({"records": st.lists(records, max_size=3)}, optional={"config": near_values})


@settings(max_examples=effort(150))
@given(body=st.binary(max_size=40) | st.text(max_size=40).map(str.encode) | near_bodies | json_values)
def test_no_body_whatsoever_makes_the_server_fail(fuzzed: RunningServer, body: object) -> None:
    api = fuzzed.api()
    sent = b"null" if body is None else body
    for method, path, _ in ROUTES:
        reply = api.request(method, path, sent)
        assert reply.status < 500, reply.text
        if reply.status >= 300:
            assert_error_shape(reply)
    api.client.close()


@settings(max_examples=effort(100))
@given(
    method=st.sampled_from(["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"]),
    name=st.binary(max_size=12),
    rest=st.sampled_from(["", "/diff", "/delete", "/x", "//"]),
    query=st.text(alphabet="%&=+;aé1\0", max_size=12).map(lambda text: text.encode()),
)
def test_no_path_or_query_whatsoever_makes_the_server_fail(
    fuzzed: RunningServer, method: str, name: bytes, rest: str, query: bytes
) -> None:
    api = fuzzed.api()
    spelled = "".join(f"%{byte:02x}" for byte in name)
    parameters = "".join(chr(byte) if byte > 32 and byte < 127 else f"%{byte:02X}" for byte in query)
    reply = api.request(
        method,
        f"/v0/topics/{spelled}{rest}?cursor={parameters}&page_size={parameters}&touch={parameters}",
        b"{}",
    )
    assert reply.status < 500, reply.text
    listed = api.request("GET", f"/v0/topics?cursor={parameters}&prefix={parameters}&page_size={parameters}")
    assert listed.status in (200, 400)
    api.client.close()
