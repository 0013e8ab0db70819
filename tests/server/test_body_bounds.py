"""Bodies that would take much memory are refused before they do."""

import tracemalloc

import msgspec
import pytest

from everlog.errors import BatchTooLarge
from everlog.server.bodies import NODES_MAX, AckBody, AppendBody, DiffBody, WatchBody, decode_text
from everlog.server.body_checks import unknown_members
from everlog.server.errors import ApiError
from everlog.server.socket_commands import BadCommand, decode_command


def test_an_append_of_too_many_records_is_refused_at_the_first_too_many() -> None:
    body = b'{"records":[' + b",".join([b'{"data":1}'] * 500_000) + b"]}"
    tracemalloc.start()
    try:
        with pytest.raises(BatchTooLarge, match="more than 10000 records"):
            decode_text(body, AppendBody)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000  # all of them take 70 MB


def test_the_count_begins_anew_with_every_body() -> None:
    body = b'{"records":[' + b",".join([b'{"data":1}'] * 9000) + b"]}"
    for _ in range(3):
        assert len(decode_text(body, AppendBody).records) == 9000


MANY = 1_000_000
OTHER_MEMBERS = b",".join(b'"u%d":1' % number for number in range(MANY // 2))


@pytest.mark.parametrize(
    ("kind", "body", "refusal"),
    [
        (AppendBody, b'{"records":[' + b"{}," * MANY + b"{}]}", r"records\[0\] is not what is taken there"),
        (AppendBody, b"{" + OTHER_MEMBERS + b"}", "it is not what is taken there"),
        (DiffBody, b'{"node":[' + b'"a",' * MANY + b'"a"]}', "more than 100000 values"),
        (WatchBody, b'{"topics":{' + OTHER_MEMBERS.replace(b"1", b"{}") + b"}}", "more than 100000 values"),
        (AckBody, b'{"node":"n","seqs":[' + b"1," * MANY + b"1]}", "more than 100000 values"),
    ],
    ids=["bad records", "no records", "nodes", "topics", "seqs"],
)
def test_a_body_of_very_many_values_is_refused_in_little_memory(
    kind: type[msgspec.Struct], body: bytes, refusal: str
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ApiError, match=refusal):
            decode_text(body, kind)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(body)


def test_a_socket_message_of_very_many_values_is_refused_in_little_memory() -> None:
    body = b'{"op":"subscribe","topics":{' + OTHER_MEMBERS.replace(b"1", b"{}") + b"}}"
    tracemalloc.start()
    try:
        with pytest.raises(BadCommand, match="more than 100000 values"):
            decode_command(body, is_strict=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(body)
    numbers = b",".join([b"1"] * 200_000)
    message = b'{"op":"publish","topic":"t","records":[{"data":[' + numbers + b"]}]}"
    command, _ = decode_command(message, is_strict=True)
    assert bytes(command.records[0].data) == b"[" + numbers + b"]"


def test_very_many_unknown_members_are_refused() -> None:
    with pytest.raises(ApiError, match="the body has 500001 members; at most 100000 are looked at"):
        unknown_members(b"{" + OTHER_MEMBERS + b',"records":[{"data":1}]}', AppendBody)


@pytest.mark.parametrize("kind", [DiffBody, WatchBody])
def test_a_reader_leaves_out_a_bounded_number_of_nodes(kind: type[DiffBody | WatchBody]) -> None:
    def read(node: str | list[str]) -> DiffBody | WatchBody:
        return decode_text(msgspec.json.encode({"topics": {}, "node": node}), kind)

    names = [f"n{number}" for number in range(NODES_MAX)]
    assert read(names).node == names
    for refused in ([*names, "one more"], "x" * 200_000, ["x" * 200_000]):
        with pytest.raises(ApiError, match="node has") as error:
            read(refused)
        assert (error.value.status, error.value.code) == (400, "invalid_request")
