"""Replaying a queue: filters, books and features, in batches of any size."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from everlog.errors import BookGap, InvalidConfig
from everlog.market import BookSettings, features
from everlog.market.bar_builder import BarBuilder
from everlog.market.feature_rows import (
    Feature,
    GlobalTime,
    OrderFlowImbalance,
    book_imbalance,
    depth_slope,
    microprice,
    mid_price,
    row_dtype,
    spread_bps,
    standard_features,
)
from everlog.market.protocol import BookEventType, TypeId
from everlog.market.replay import Messages, Replay
from everlog.market.triggers import EventTypes, TimeBar
from everlog.queue import Queue
from tests.support.market_queues import DIFFS, MARKETS, SECOND_NS, START_NS, write_market_queue


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A queue of two markets."""
    path = str(tmp_path_factory.mktemp("replay") / "queue")
    write_market_queue(path)
    return path


def seqs(replay: Replay) -> list[int]:
    """Return the seqs of what passes."""
    found: list[int] = []
    replay.for_each(lambda some: found.extend(some.seq.tolist()))
    return found


def test_a_time_range_ends_before_its_end(queue: str) -> None:
    whole: dict[int, int] = {}

    def note(some: Messages) -> None:
        whole.update(zip(some.seq.tolist(), some.timestamp_ns.tolist(), strict=True))

    Replay(queue).for_each(note)
    end_ns = START_NS + SECOND_NS
    expected = [seq for seq, at_ns in whole.items() if START_NS <= at_ns < end_ns]
    assert expected
    assert seqs(Replay(queue).between(START_NS, end_ns)) == expected


@pytest.mark.parametrize("batch_messages", [1, 7, 16384])
def test_every_nth_counts_over_batches(queue: str, batch_messages: int) -> None:
    assert seqs(Replay(queue, batch_messages=batch_messages).every(30)) == list(range(29, 442, 30))


def test_filters_apply_in_the_order_in_which_they_are_named(queue: str) -> None:
    trades = seqs(Replay(queue).types(TypeId.TRADE))
    assert seqs(Replay(queue).types(TypeId.TRADE).every(4)) == trades[3::4]
    assert seqs(Replay(queue).every(4).types(TypeId.TRADE)) == [seq for seq in trades if seq % 4 == 3]


def test_markets_are_chosen_by_their_number(queue: str) -> None:
    rows = dict.fromkeys(MARKETS, 0)
    stats = (
        Replay(queue)
        .markets(9)
        .features([mid_price()])
        .for_each(lambda one: rows.update({one.market.market_id: rows[one.market.market_id] + len(one.rows)}))
    )
    assert rows == {7: 0, 9: DIFFS // 2 + 1}
    assert stats.written == DIFFS // 2 + 1
    assert stats.read == DIFFS + 2 + DIFFS // 10


def test_a_copied_queue_keeps_times_types_and_payloads(queue: str, tmp_path: Path) -> None:
    stats = Replay(queue, batch_messages=50).types(TypeId.TRADE).to_queue(str(tmp_path / "copy"))
    assert stats.written == DIFFS // 10

    def content(path: str) -> list[tuple[int, int, bytes]]:
        with Queue.open_subscriber(path, None, "earliest") as reader:
            return [(one.timestamp_ns, one.type_id, bytes(one)) for one in reader]

    assert content(str(tmp_path / "copy")) == [one for one in content(queue) if one[1] == TypeId.TRADE]


def test_a_list_of_messages_is_written_as_csv(queue: str, tmp_path: Path) -> None:
    Replay(queue).types(TypeId.TRADE).to_csv(str(tmp_path / "out.csv"))
    rows = list(csv.DictReader((tmp_path / "out.csv").open(encoding="utf-8")))
    assert list(rows[0]) == ["seq", "timestamp_ns", "type_id", "payload_len"]
    assert {(row["type_id"], row["payload_len"]) for row in rows} == {("4098", "64")}
    assert len(rows) == DIFFS // 10


def table(queue: str, batch_messages: int, chosen: list[Feature]) -> dict[int, bytes]:
    """Return all feature rows of each market as bytes."""
    parts: dict[int, list[bytes]] = {}
    replay = Replay(queue, batch_messages=batch_messages).features(chosen).trigger(TimeBar(SECOND_NS))
    replay.for_each(lambda one: parts.setdefault(one.market.market_id, []).append(one.rows.tobytes()))
    return {market: b"".join(rows) for market, rows in parts.items()}


def test_cutting_the_day_into_batches_changes_no_feature(queue: str) -> None:
    whole = table(queue, 16384, standard_features())
    assert set(whole) == set(MARKETS)
    assert table(queue, 13, standard_features()) == whole
    assert table(queue, 1, standard_features()) == whole


def test_features_are_those_of_a_plain_book(queue: str) -> None:
    """The replay agrees with books kept in dictionaries and the formulas applied one by one."""
    chosen: list[Feature] = [mid_price(), spread_bps(), book_imbalance(2), microprice()]
    rows: list[tuple[float, ...]] = []
    Replay(queue).markets(7).features(chosen).for_each(lambda one: rows.extend(map(tuple, one.rows)))
    assert len(rows) == DIFFS // 2 + 1
    bid, ask, bid_size, ask_size = 99.90, 100.10, 5.0, 4.0
    assert rows[0] == pytest.approx(
        (
            (bid + ask) / 2,
            (ask - bid) / 100.0 * 10_000,
            (12 - 10) / 22,
            (bid * ask_size + ask * bid_size) / (bid_size + ask_size),
        )
    )


def test_a_row_is_written_only_where_the_trigger_fires(queue: str) -> None:
    replay = Replay(queue).features([mid_price()]).trigger(EventTypes(BookEventType.SNAPSHOT))
    assert replay.for_each(lambda one: None).written == len(MARKETS)


def test_parquet_files_are_kept_by_day_and_symbol_and_appear_complete(queue: str, tmp_path: Path) -> None:
    replay = Replay(queue, batch_messages=64).features(standard_features())
    stats = replay.to_parquet(str(tmp_path), names=lambda market: {7: "seven", 9: "nine"}[market.market_id])
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*"))
    days = ("2024-10-03", "2024-10-04")
    assert files == [
        f"date={day}/symbol={name}/features.parquet" for day in days for name in ("nine", "seven")
    ]
    tables = [pq.read_table(tmp_path / file, partitioning=None) for file in files]
    assert sum(one.num_rows for one in tables) == stats.written == DIFFS + 2
    assert tables[0].column_names == [
        "ingest_ts_ns",
        "exchange_ts_ns",
        "mid_price",
        "spread_bps",
        "book_imbalance",
        "microprice",
        "order_flow_imbalance",
        "depth_slope",
    ]


def test_a_replay_that_fails_leaves_no_file(queue: str, tmp_path: Path) -> None:
    replay = Replay(queue).where(lambda some: some.seq != 30)
    with pytest.raises(BookGap):
        replay.features(standard_features(), BookSettings(gap_policy="panic")).to_parquet(str(tmp_path))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_choice_without_columns_or_with_one_twice_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="at least one feature"):
        row_dtype([])
    with pytest.raises(InvalidConfig, match="mid_price would be there twice"):
        row_dtype([mid_price(), GlobalTime(), mid_price()])
    with pytest.raises(InvalidConfig, match="at least one level"):
        depth_slope(0)
    assert OrderFlowImbalance().columns[0].name == "order_flow_imbalance"


@pytest.mark.parametrize(("kind", "size"), [("time", 3 * SECOND_NS), ("count", 7), ("volume", 9.5)])
def test_bars_do_not_depend_on_how_the_trades_come(queue: str, kind: str, size: float) -> None:
    def bars(batch_messages: int) -> bytes:
        builder, parts = BarBuilder(kind, size), []
        for batch in Replay(queue, batch_messages=batch_messages).trades():
            parts.append(builder.add(*batch))
        return np.concatenate([*parts, builder.finish()]).tobytes()

    whole = bars(16384)
    assert len(whole) > 3 * features.BAR_COLUMNS.itemsize
    assert bars(1) == bars(29) == whole
    assert np.frombuffer(whole, features.BAR_COLUMNS)["trades"].sum() == DIFFS // 10


def test_senseless_bars_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="time, count, volume"):
        BarBuilder("weight", 1)
    with pytest.raises(InvalidConfig, match="more than 0"):
        BarBuilder("count", 0)
