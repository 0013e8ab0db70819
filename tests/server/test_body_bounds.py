"""Bodies that would take much memory are refused before they do."""

import tracemalloc

import msgspec
import pytest

from everlog.errors import BatchTooLarge
from everlog.server.bodies import NODES_MAX, AppendBody, DiffBody, WatchBody, decode_text
from everlog.server.errors import ApiError


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
