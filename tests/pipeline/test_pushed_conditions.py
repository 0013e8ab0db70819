"""What a condition becomes at the source: every row for which it holds is read, whatever it says.

Spark evaluates the condition again, so a row too many is no fault. DuckDB is the oracle of what holds.
"""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.pipeline.predicates import known_terms
from everlog.pipeline.read import pushed_options
from everlog.pipeline.sources.queue import QueueFormat
from everlog.queue import Queue

MESSAGES = 40
BASE_NS = 1_700_000_000_000_000_000

numbers = st.integers(-3, MESSAGES + 3)
compared = st.builds(
    "{} {} {}".format,
    st.sampled_from(["seq", "type_id", "SEQ"]),
    st.sampled_from(["<", "<=", ">", ">=", "=", "==", "!=", "<>"]),
    numbers,
)
exchanged = st.builds("{} {} seq".format, numbers, st.sampled_from(["<", "<=", ">", ">=", "="]))
between = st.builds("seq between {} and {}".format, numbers, numbers)
listed = st.builds(
    lambda name, some: f"{name} in ({', '.join(map(str, some))})",
    st.sampled_from(["seq", "type_id"]),
    st.lists(numbers, min_size=1, max_size=4),
)
times = st.builds(
    lambda op, number: f"ts_ns {op} {BASE_NS + number}", st.sampled_from(["<", "<=", ">", ">=", "="]), numbers
)
others = st.sampled_from(
    [
        "seq % 2 = 0",
        "not seq < 9",
        "seq + 1 < 9",
        "seq < 3 + 9",
        "(seq < 5) = false",
        "type_id + 1 between 1 and seq",
    ]
)
terms = st.one_of(compared, exchanged, between, listed, times, others)
joined = st.recursive(
    terms,
    lambda some: st.builds(
        "{}{} {} {}{}".format,
        st.sampled_from(["(", "not ("]),
        some,
        st.sampled_from(["and", "AND", "or"]),
        some,
        st.just(")"),
    ),
    max_leaves=4,
)
conditions = st.lists(joined, min_size=1, max_size=3).map(" and ".join) | st.lists(
    terms, min_size=2, max_size=4
).map(" or ".join)


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Messages of four types, one of them with a time above 2^63, which is negative in Spark."""
    path = tmp_path_factory.mktemp("pushed") / "queue"
    with Queue.open_publisher(str(path), segment_size=1 << 14) as writer:
        for number in range(MESSAGES):
            time_ns = 2**63 + 5 if number == 7 else BASE_NS + number
            writer.append(number % 4, b"%d" % number, time_ns)
    return str(path)


def rows(path: str, options: dict[str, str]) -> pa.Table:
    """Read a queue as the tasks of a query do."""
    source = QueueFormat({"path": path, "columns": "seq,ts_ns,type_id", **options}).source()
    batches = [batch for task in source.plan() for batch in source.batches(*task)]
    return pa.Table.from_batches(batches, source.arrow_schema)


@given(where=conditions)
def test_every_row_for_which_a_condition_holds_is_read(queue: str, where: str) -> None:
    source = QueueFormat({"path": queue}).source()
    messages = rows(queue, {})
    expected = duckdb.query(f"SELECT seq FROM messages WHERE {where}").fetchall()
    read = rows(queue, pushed_options(source, known_terms(where), lambda _: None))
    assert {seq for (seq,) in expected} <= set(read.column("seq").to_pylist()), messages.num_rows


def test_a_range_of_seqs_and_a_type_are_all_that_is_read(queue: str) -> None:
    where = "seq >= 4 and seq < 12 and type_id in (1, 2) and payload is not null"
    options = pushed_options(QueueFormat({"path": queue}).source(), known_terms(where), lambda _: None)
    assert options == {"fromSeq": "4", "toSeq": "11", "typeId": "1,2"}
    assert rows(queue, options).column("seq").to_pylist() == [5, 6, 9, 10]
