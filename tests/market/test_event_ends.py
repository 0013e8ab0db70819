"""Events of several messages: flags from importers to rows, sums between rows, unknown sides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from everlog.errors import InvalidConfig
from everlog.market import features
from everlog.market.bar_builder import BarBuilder
from everlog.market.feature_rows import GlobalTime, OrderFlowImbalance, mid_price
from everlog.market.protocol import (
    TRADE,
    BookFlags,
    MessageFlags,
    Side,
    TypeId,
    new_l3_records,
)
from everlog.market.replay import Replay
from everlog.market.triggers import Always, EveryMessage, TimeBar, Trigger
from everlog.queue import Queue
from tests.support.import_runs import import_into, real_file

LAST = int(MessageFlags.LAST_OF_EVENT)


def write_orders(path: Path, ends: list[bool], *, marked: bool = True) -> None:
    """One order a message, bids rising from 100 and one ask at 200; `ends` says what ends an event."""
    records = new_l3_records(len(ends), venue_id=5, market_id=1)
    event = records["event"]
    event["event_type"], event["side"], event["qty"] = 1, Side.BUY, 10
    event["order_id"] = np.arange(1, len(ends) + 1)
    event["price"] = 100 + np.arange(len(ends))
    event["side"][0], event["price"][0] = Side.SELL, 200
    stamps = np.arange(1, len(ends) + 1, dtype=np.uint64)
    records["header"]["ingest_ts_ns"] = stamps
    if marked:
        records["header"]["flags"] = BookFlags.MARKS_EVENT_ENDS
    flags = np.array(ends, dtype=np.uint16) * np.uint16(LAST)
    offsets = np.arange(1, len(ends) + 1, dtype=np.uint64) * np.uint64(128)
    with Queue.open_publisher(path, segment_size=1 << 16) as writer:
        writer.append_packed(TypeId.BOOK_EVENT, records.view(np.uint8), offsets, stamps, flags)


def flags_of(path: Path) -> list[int]:
    with Queue.open_subscriber(path, None, "earliest") as reader:
        return [view.flags for view in reader]


def rows_of(path: Path, trigger: Trigger, batch_messages: int = 16384) -> NDArray[np.void]:
    chosen = [GlobalTime(), mid_price(), OrderFlowImbalance()]
    replay = Replay(str(path), batch_messages=batch_messages).features(chosen).trigger(trigger)
    tables = [table.rows for table in replay.tables()]
    return np.concatenate(tables) if tables else np.zeros(0)


def times_of(path: Path, trigger: Trigger, **settings: Any) -> list[int]:
    rows = rows_of(path, trigger, **settings)
    return rows["ingest_ts_ns"].tolist() if len(rows) else []


def test_rows_are_written_at_ends_of_events_whatever_the_trigger(tmp_path: Path) -> None:
    write_orders(tmp_path / "q", [False, True, False, False, True, False])
    assert times_of(tmp_path / "q", Always()) == [2, 5]
    # The first end of a bucket, not an end that happens to be its first message.
    assert times_of(tmp_path / "q", TimeBar(2)) == [2, 5]
    assert times_of(tmp_path / "q", EveryMessage(Always())) == [1, 2, 3, 4, 5, 6]


def test_messages_of_writers_that_mark_no_ends_are_events_by_themselves(tmp_path: Path) -> None:
    write_orders(tmp_path / "q", [False] * 4, marked=False)
    assert times_of(tmp_path / "q", Always()) == [1, 2, 3, 4]


@pytest.mark.parametrize("batch_messages", [1, 2, 3, 7])
def test_order_flow_is_summed_between_rows_however_batches_are_cut(
    tmp_path: Path, batch_messages: int
) -> None:
    write_orders(tmp_path / "q", [False, True, False, False, True, True])
    single = rows_of(tmp_path / "q", EveryMessage(Always()))["order_flow_imbalance"]
    summed = rows_of(tmp_path / "q", Always(), batch_messages)["order_flow_imbalance"]
    assert single.tolist() == [0.0, 10.0, 10.0, 10.0, 10.0, 10.0]
    assert summed.tolist() == [10.0, 30.0, 10.0]


def test_a_row_of_the_cme_file_stands_only_where_the_exchange_ends_an_event(tmp_path: Path) -> None:
    import_into(tmp_path / "q", "dbn", real_file("esh4-glbx-mdp3-20231224.mbo.dbn.zst"))
    flags = np.array(flags_of(tmp_path / "q"))
    # The file is one snapshot: only its last record carries F_LAST.
    assert np.flatnonzero(flags & LAST).tolist() == [len(flags) - 1]
    assert (flags & MessageFlags.SNAPSHOT_PART).all()
    assert len(times_of(tmp_path / "q", Always())) == 1
    assert len(times_of(tmp_path / "q", EveryMessage(Always()))) == len(flags)


def test_every_row_of_a_lobster_file_is_an_event(tmp_path: Path) -> None:
    import_into(tmp_path / "q", "lobster", real_file("AAPL_2012-06-21_message_50.first-25000.csv.gz"))
    assert set(flags_of(tmp_path / "q")) == {LAST}


def test_copies_keep_flags(tmp_path: Path) -> None:
    write_orders(tmp_path / "q", [False, True, False])
    Replay(str(tmp_path / "q")).to_queue(str(tmp_path / "copy"), segment_size=1 << 16)
    assert flags_of(tmp_path / "copy") == [0, LAST, 0]


def test_a_trade_of_unknown_side_is_neither_bought_nor_sold(tmp_path: Path) -> None:
    trades = np.zeros(3, TRADE)
    trades["price"], trades["qty"], trades["is_buyer_maker"] = 100, [3, 1, 8], [0, 1, 0]
    flags = np.array([0, 0, MessageFlags.SIDE_UNKNOWN], dtype=np.uint16)
    ends = np.arange(1, 4, dtype=np.uint64) * np.uint64(TRADE.itemsize)
    with Queue.open_publisher(tmp_path / "q", segment_size=1 << 16) as writer:
        stamps = np.arange(1, 4, dtype=np.uint64)
        writer.append_packed(TypeId.TRADE, trades.view(np.uint8), ends, stamps, flags)
    (batch,) = Replay(str(tmp_path / "q")).trades()
    assert batch.side.tolist() == [Side.BUY, Side.SELL, Side.UNKNOWN]
    builder = BarBuilder("count", 3)
    assert len(builder.add(*batch)) == 0
    bar = builder.finish()[0]
    assert (bar["volume"], bar["trade_imbalance"]) == (12.0, 0.5)


def test_a_boolean_side_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="not a boolean"):
        features.trade_imbalance(np.ones(1), np.ones(1, dtype=bool), np.zeros(1, dtype=np.int64))
