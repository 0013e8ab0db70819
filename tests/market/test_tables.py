"""Events as tables and files: decoded, whole, and back into a queue."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from everlog.errors import InvalidConfig
from everlog.market import tables
from everlog.market.replay import Replay
from everlog.queue import Queue
from tests.support.market_queues import (
    DIFFS,
    MARKETS,
    SECOND_NS,
    START_NS,
    simulated_queue,
    write_market_queue,
)


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("tables") / "queue")
    write_market_queue(path)
    return path


def messages_with_flags(path: Path | str) -> list[tuple[int, int, int, bytes]]:
    found = []
    for some in Replay(str(path)).batches():
        rows = zip(
            some.timestamp_ns.tolist(), some.type_id.tolist(), some.flags.tolist(), some.packed, strict=True
        )
        found += [(when, kind, flags, bytes(payload)) for when, kind, flags, payload in rows]
    return found


def test_a_table_has_the_decoded_columns_of_one_kind(queue: str) -> None:
    book = tables.to_arrow(queue, "book")
    assert book.num_rows == DIFFS + len(MARKETS)
    assert book["bids"][0].as_py() == [
        {"price": 9990, "size": 5},
        {"price": 9980, "size": 7},
        {"price": 9970, "size": 9},
    ]
    assert set(book["market_id"].to_pylist()) == set(MARKETS)
    trades = tables.to_arrow(Replay(queue).between(START_NS, START_NS + 5 * SECOND_NS), "trade")
    assert trades.num_rows == 5
    assert (trades["ts_ns"].to_numpy() >= START_NS).all()
    frame = tables.to_pandas(queue, "trade")
    assert frame["price"].tolist() == tables.to_polars(queue, "trade")["price"].to_list()
    assert len(frame) == DIFFS // 10


def test_orders_have_a_table_too(tmp_path: Path) -> None:
    simulated_queue(tmp_path / "q", symbols=2, seconds=0.05, rate=10_000, kinds="l3")
    found = tables.to_arrow(tmp_path / "q", "l3")
    assert found.num_rows and set(found["side"].to_pylist()) <= {0, 1, 2}


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
def test_messages_come_back_from_a_file_with_their_bytes_times_types_and_flags(
    tmp_path: Path, ending: str
) -> None:
    simulated_queue(tmp_path / "q", symbols=3, seconds=0.1, rate=20_000, kinds="l2,l3,trades")
    path = str(tmp_path / f"events{ending}")
    assert tables.write_table([tmp_path / "q"], path) == len(messages_with_flags(tmp_path / "q"))
    tables.from_arrow(tables.read_table(path), str(tmp_path / "back"))
    assert messages_with_flags(tmp_path / "back") == messages_with_flags(tmp_path / "q")


def test_a_table_in_parts_becomes_the_same_queue(queue: str, tmp_path: Path) -> None:
    table = tables.to_arrow(queue).slice(7)
    parts = pa.Table.from_batches(table.to_batches(max_chunksize=10))
    assert tables.from_arrow(parts, str(tmp_path / "part")) == table.num_rows
    assert messages_with_flags(tmp_path / "part") == messages_with_flags(queue)[7:]


def test_a_csv_file_has_a_row_for_each_level_and_for_each_trade(queue: str, tmp_path: Path) -> None:
    tables.write_table([queue], str(tmp_path / "book.csv"), "book")
    with open(tmp_path / "book.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["side"], row["price"], row["size"]) for row in rows[:6]] == [
        ("bid", "9990", "5"),
        ("bid", "9980", "7"),
        ("bid", "9970", "9"),
        ("ask", "10010", "4"),
        ("ask", "10020", "6"),
        ("ask", "10030", "8"),
    ]
    assert tables.write_table([queue], str(tmp_path / "trades.csv"), "trade") == DIFFS // 10
    tables.write_table([queue], str(tmp_path / "raw.csv"))
    with open(tmp_path / "raw.csv", newline="") as file:
        payloads = [bytes.fromhex(row["payload"]) for row in csv.DictReader(file)]
    assert payloads == [row[3] for row in messages_with_flags(queue)]


def test_an_empty_queue_gives_an_empty_file_and_a_failed_one_leaves_none(queue: str, tmp_path: Path) -> None:
    Queue.open_publisher(tmp_path / "empty").close()
    assert tables.write_table([tmp_path / "empty"], str(tmp_path / "none.parquet"), "book") == 0
    assert pq.read_table(tmp_path / "none.parquet").schema.names == tables.schema_of("book").names
    assert tables.write_table([tmp_path / "empty"], str(tmp_path / "none.csv"), "book") == 0
    broken = Replay(queue).where(lambda some: 1 / np.zeros(0)[0])
    with pytest.raises(IndexError):
        tables.write_table([broken], str(tmp_path / "broken.parquet"))
    assert not list(tmp_path.glob("broken*"))


def test_kinds_endings_and_tables_that_do_not_fit_are_refused(queue: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="raw, book, trade, l3, quote, bar"):
        tables.to_arrow(queue, "quotation")
    with pytest.raises(InvalidConfig, match="tables end with"):
        tables.write_table([queue], str(tmp_path / "x.txt"))
    with pytest.raises(InvalidConfig, match="no column"):
        tables.from_arrow(tables.to_arrow(queue, "trade"), str(tmp_path / "q"))
    with pytest.raises(InvalidConfig, match="a queue is made of"):
        list(tables.read_table("x.csv"))
