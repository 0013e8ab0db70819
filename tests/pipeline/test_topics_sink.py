"""How rows become appends: the same appends under the same keys, whatever the Arrow batches are."""

from __future__ import annotations

import json
from itertools import pairwise
from types import TracebackType
from typing import Any, Self, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.client import Client, RetryPolicy
from everlog.client.flows import Call
from everlog.errors import InvalidConfig
from everlog.pipeline.sources import topics_sink
from everlog.pipeline.sources.topics_sink import TopicsWrite, write_task
from everlog.pipeline.topic_ranges import ServerAddress


class Recorder:
    """A server that only remembers what it is sent."""

    def __init__(self) -> None:
        self.appends: list[tuple[str, dict[str, Any]]] = []

    def connect(self) -> Client:
        """Be the connection as well."""
        return cast(Client, self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open."""

    def call(self, call: Call[Any], retry: RetryPolicy) -> None:
        """Take an append."""
        assert (call.method, call.may_repeat) == ("POST", True)
        self.appends.append((call.path.removesuffix("?return_seqs=false"), json.loads(call.body or b"")))


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "topic": st.sampled_from(("a", "b")),
            "data": st.one_of(st.integers(), st.text(max_size=30), st.lists(st.none(), max_size=3)),
            "tag": st.sampled_from((None, "t")),
            "node": st.sampled_from((None, "n")),
            "meta": st.sampled_from((None, {"m": 1})),
        }
    ),
    max_size=40,
)


def as_batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Rows as Spark hands them over."""
    texts = [
        {
            **row,
            "data": json.dumps(row["data"]),
            "meta": None if row["meta"] is None else json.dumps(row["meta"]),
        }
        for row in rows
    ]
    names = ("topic", "data", "tag", "node", "meta")
    return pa.RecordBatch.from_pylist(texts, pa.schema([(name, pa.string()) for name in names]))


def expected_appends(rows: list[dict[str, Any]], records: int, size: int) -> list[tuple[str, str, list[Any]]]:
    """What a loop over the rows gives: topic, key and records of each append."""
    appends = []
    for topic in ("a", "b"):
        pending: list[Any] = []
        number = taken = 0
        mine = [row for row in rows if row["topic"] == topic]
        for place, row in enumerate(mine):
            fields = {name: row[name] for name in ("tag", "node", "meta") if row[name] is not None}
            pending.append({"data": row["data"], **fields})
            taken += len(json.dumps(row["data"]))
            if len(pending) == records or taken >= size or place == len(mine) - 1:
                appends.append((f"/topics/{topic}", f"spark:job:0:{number}", pending))
                pending, number, taken = [], number + 1, 0
    return appends


@given(rows=ROWS, cuts=st.lists(st.integers(0, 40), max_size=3), records=st.integers(1, 9))
def test_appends_and_keys_depend_on_the_rows_alone(
    rows: list[dict[str, Any]], cuts: list[int], records: int
) -> None:
    size = 60
    server = Recorder()
    write = TopicsWrite(cast(ServerAddress, server), None, records, 1.0, {}, "job")
    edges = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
    batches = [as_batch(rows[first:end]) for first, end in pairwise(edges)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topics_sink, "BYTES_PER_APPEND", size)
        assert write_task(write, iter(batches), "job").rows == len(rows)
    found = [(path, body["idempotency_key"], body["records"]) for path, body in server.appends]
    assert sorted(found, key=lambda append: append[:2]) == sorted(
        expected_appends(rows, records, size), key=lambda append: append[:2]
    )


@pytest.mark.parametrize("text", ["", "{", "1,2", "1 2", '1},{"data":2', "nan"])
@pytest.mark.parametrize("name", ["data", "meta"])
def test_a_text_that_is_not_one_json_value_is_refused_by_name(name: str, text: str) -> None:
    columns = {"data": pa.array(["1", "2"]), name: pa.array(["{}", text])}
    write = TopicsWrite(cast(ServerAddress, Recorder()), "t", 10, 1.0, {}, "job")
    with pytest.raises(InvalidConfig, match="is not JSON"):
        write_task(write, iter([pa.RecordBatch.from_pydict(columns)]), "job")


@pytest.mark.parametrize("name", ["data", "topic"])
def test_a_row_without_topic_or_data_is_refused(name: str) -> None:
    columns = {"data": pa.array(["1"]), "topic": pa.array(["t"]), name: pa.array([None], pa.string())}
    write = TopicsWrite(cast(ServerAddress, Recorder()), None, 10, 1.0, {}, "job")
    with pytest.raises(InvalidConfig, match="filter it out"):
        write_task(write, iter([pa.RecordBatch.from_pydict(columns)]), "job")
