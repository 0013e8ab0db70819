"""DBN files made record by record: every action, symbology, other records, damage."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from everlog.errors import InvalidSource, Unsupported
from everlog.market.books import L2Book, L3Book
from everlog.market.protocol import TRADE, L3EventType, Side, TypeId, crypto_market_id, symbol_hash
from everlog.market.venues import dbn
from tests.market.venues.dbn_files import (
    F_LAST,
    F_SNAPSHOT,
    MBO_RTYPE,
    MBP10_RTYPE,
    START_NS,
    SYSTEM_RTYPE,
    UNDEFINED,
    dbn_file,
    order,
    package,
    records,
)
from tests.support.import_runs import l2_event, l3_records_of, packed, payloads_of, run_importer

GOLDEN = [
    order(b"R", side=b"N", price=UNDEFINED),
    order(b"A", 1, b"B", 4799_000000000, 5, sequence=7, channel_id=3, flags=F_SNAPSHOT),
    order(b"A", 2, b"A", 4799_250000000, 4, flags=F_LAST),
    order(b"T", 9, b"B", 4799_250000000, 1),
    order(b"F", 2, b"A", 4799_250000000, 1),
    order(b"M", 2, b"A", 4799_250000000, 3, flags=F_LAST),
    order(b"C", 1, b"B", 4799_000000000, 2),
    order(b"A", 3, b"A", 16000_000000000, 1, instrument_id=42),
]


def test_every_action_gives_its_event(tmp_path: Path) -> None:
    path = dbn_file(tmp_path, "mbo", records(package.MBOMsg, MBO_RTYPE, GOLDEN))
    blocks, tally = run_importer("dbn", [path])
    found = l3_records_of(blocks)
    header, event = found["header"], found["event"]
    kinds = L3EventType
    assert event["event_type"].tolist() == [
        kinds.RESET,
        kinds.ORDER_ADD,
        kinds.ORDER_ADD,
        kinds.TRADE,
        kinds.HEARTBEAT,
        kinds.ORDER_MODIFY,
        kinds.ORDER_CANCEL,
        kinds.ORDER_ADD,
    ]
    assert bytes(event["exec_type"]) == b"RAATFMCA"
    assert event["order_id"].tolist() == [0, 1, 2, 0, 2, 2, 1, 3], "a trade names no resting order"
    assert event["side"].tolist() == [0, 1, 2, 1, 2, 2, 1, 2]
    assert event["price"].tolist()[:3] == [0, 4799_000000000, 4799_250000000]
    assert set(event["price_scale"].tolist()) == {9}
    assert (event["flags"] >> dbn.FLAGS_SHIFT).tolist() == [0, F_SNAPSHOT, F_LAST, 0, 0, F_LAST, 0, 0]
    assert (header["native_seq"][1], header["stream_id"][1]) == (7, 3)
    assert header["ingest_ts_ns"][0] == START_NS + 5 and header["exchange_ts_ns"][0] == START_NS
    assert (tally.venue, tally.symbol, tally.date, tally.rows) == ("cme", "MULTI", "2023-12-24", 8)
    names = ["ESH4"] * 7 + ["NQH4"]
    assert header["market_id"].tolist() == [crypto_market_id(name) for name in names]


def test_fills_and_trades_do_not_change_the_book_by_themselves(tmp_path: Path) -> None:
    path = dbn_file(tmp_path, "mbo", records(package.MBOMsg, MBO_RTYPE, GOLDEN[:7]))
    book = L3Book()
    book.apply_array(l3_records_of(run_importer("dbn", [path]).blocks))
    assert {int(row["order_id"]): int(row["qty"]) for row in book.orders()} == {1: 3, 2: 3}


def test_records_of_other_kinds_are_noted_and_not_imported(tmp_path: Path) -> None:
    first, second = (records(package.MBOMsg, MBO_RTYPE, [GOLDEN[place]]) for place in (1, 2))
    other = bytes([20, SYSTEM_RTYPE]) + bytes(78)
    path = dbn_file(tmp_path, "mbo", first + other + second + other)
    blocks, tally = run_importer("dbn", [path])
    assert len(l3_records_of(blocks)) == tally.rows == 2
    assert tally.notes == [f"{path}: 2 records of other kinds were not imported: 2 system"]


def test_sending_times_behind_the_records_are_skipped(tmp_path: Path) -> None:
    body = records(package.MBOMsg, MBO_RTYPE, GOLDEN, extra_bytes=8)
    blocks, _ = run_importer("dbn", [dbn_file(tmp_path, "mbo", body, ts_out=True)])
    assert l3_records_of(blocks)["event"]["order_id"].tolist() == [0, 1, 2, 0, 2, 2, 1, 3]


def test_records_that_the_protocol_cannot_hold_are_refused(tmp_path: Path) -> None:
    path = dbn_file(tmp_path, "mbo", records(package.MBOMsg, MBO_RTYPE, [GOLDEN[1], order(b"X", 1)]))
    with pytest.raises(InvalidSource, match=r":2: unknown action b'X'"):
        run_importer("dbn", [path])
    _, tally = run_importer("dbn", [path], quarantine=tmp_path / "quarantine.csv")
    assert (tally.rows, tally.quarantined) == (1, 1)


def test_a_file_that_is_cut_off_or_no_dbn_is_refused(tmp_path: Path) -> None:
    path = dbn_file(tmp_path, "mbo", records(package.MBOMsg, MBO_RTYPE, GOLDEN)[:-1])
    with pytest.raises(InvalidSource, match="ends in the middle of record 8"):
        run_importer("dbn", [path])
    path.write_bytes(b"PAR1 is something else")
    with pytest.raises(InvalidSource, match="is not a DBN file"):
        run_importer("dbn", [path])
    statistics = dbn_file(tmp_path, "statistics", b"")
    with pytest.raises(InvalidSource, match="holds statistics; imported are mbo, mbp-1, mbp-10, tbbo"):
        run_importer("dbn", [statistics])


def test_price_levels_are_snapshots_and_trades(tmp_path: Path) -> None:
    empty = {f"{side}_px_{n:02d}": UNDEFINED for side in ("bid", "ask") for n in range(10)}
    first = {"action": b"A", "side": b"B", "price": 10**9, "size": 2, "sequence": 1} | empty
    first |= {"bid_px_00": 100 * 10**9, "bid_sz_00": 7, "bid_px_01": 99 * 10**9, "bid_sz_01": 3}
    second = first | {"action": b"T", "side": b"A", "price": 100 * 10**9, "size": 2, "sequence": 2}
    third = first | {"ask_px_00": 101 * 10**9, "ask_sz_00": 4, "bid_sz_00": 5, "sequence": 3}
    path = dbn_file(tmp_path, "mbp-10", records(package.MBP10Msg, MBP10_RTYPE, [first, second, third]))
    blocks, tally = run_importer("dbn", [path])
    kinds = [int(kind) for block in blocks for kind in np.broadcast_to(np.asarray(block.type_id), len(block))]
    payloads = [payload for block in blocks for payload in payloads_of(block)]
    book, trade = TypeId.BOOK_EVENT, TypeId.TRADE
    assert kinds == [book, trade, book, book] and tally.rows == 3
    assert l2_event(payloads[0]).bids == [(100 * 10**9, 7), (99 * 10**9, 3)]
    assert l2_event(payloads[3]).asks == [(101 * 10**9, 4)]
    sold = np.frombuffer(payloads[1], TRADE, 1)[0]
    assert (sold["price"], sold["qty"], sold["is_buyer_maker"]) == (100.0, 2.0, 1)
    assert sold["symbol_hash"] == symbol_hash("ESH4")
    replayed = L2Book()
    replayed.apply_array(packed([payloads[0], payloads[2], payloads[3]]))
    assert replayed.bids().tolist() == [(100 * 10**9, 5), (99 * 10**9, 3)]
    assert replayed.size_at(Side.SELL, 101 * 10**9) == 4


def test_without_the_package_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = dbn_file(tmp_path, "mbo", b"")
    monkeypatch.setitem(sys.modules, "databento_dbn", None)
    with pytest.raises(Unsupported, match=r"pip install 'everlog\[market\]'"):
        run_importer("dbn", [path])
