"""Prices of zero and below, from files to books and features; and data of version 3, which had none."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everlog.bridge.market_json import render
from everlog.errors import Unsupported
from everlog.market import BookSet, L2Book, L3Book, Market, SnapshotStore
from everlog.market.book_states import load_books, save_books
from everlog.market.books import L3_SNAPSHOT
from everlog.market.feature_rows import OrderFlowImbalance, microprice, mid_price, spread
from everlog.market.protocol import BookEventType, L3EventType, L3Flags, TypeId, crypto_market_id
from everlog.market.replay import Replay
from everlog.market.triggers import Always, EveryMessage
from everlog.queue import Queue
from tests.market.venues.dbn_files import (
    INSTRUMENTS,
    MBP1_RTYPE,
    TICK,
    UNDEFINED,
    dbn_file,
    made_up_day,
    mbo,
    order,
    package,
    records,
)
from tests.market.venues.tardis_files import BOOK_HEADER, TRADE_HEADER
from tests.support.book_twins import l2_record, l3_records
from tests.support.import_runs import import_into, l3_records_of, messages_of, run_importer

DIFF, SNAPSHOT = BookEventType.DIFF, BookEventType.SNAPSHOT
ADD, MODIFY = L3EventType.ORDER_ADD, L3EventType.ORDER_MODIFY
MIDDLE = 4800 * 4 * TICK
"""Around which the prices of a made-up day lie."""


def books_of(queue: Path) -> dict[int, Any]:
    """The books of a queue by market id."""
    books = BookSet()
    for message in messages_of(queue):
        if message.type_id == TypeId.BOOK_EVENT:
            books.apply(message.payload)
    return {market.market_id: book for market, book in books.books.items()}


def features_of(queue: Path) -> dict[int, np.ndarray[Any, Any]]:
    """All rows of features by market id."""
    chosen = [mid_price(), spread(), microprice(), OrderFlowImbalance()]
    parts: dict[int, list[np.ndarray[Any, Any]]] = {}
    replay = Replay(str(queue)).features(chosen).trigger(EveryMessage(Always()))
    for some in replay.tables():
        parts.setdefault(some.market.market_id, []).append(some.rows)
    return {market: np.concatenate(rows) for market, rows in parts.items()}


# --- Files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [-MIDDLE, -2 * MIDDLE])
def test_a_dbn_day_around_or_below_zero_gives_the_books_and_features_of_the_same_day_above(
    tmp_path: Path, shift: int
) -> None:
    rows = made_up_day(seed=11, count=2000)
    moved = [row if row["price"] == UNDEFINED else row | {"price": row["price"] + shift} for row in rows]
    for name, day in (("above", rows), ("moved", moved)):
        (tmp_path / name).mkdir()
        import_into(tmp_path / name / "q", "dbn", dbn_file(tmp_path / name, "mbo", mbo(day)))
    above, below = (books_of(tmp_path / name / "q") for name in ("above", "moved"))
    assert above.keys() == below.keys() == {crypto_market_id(name) for name in INSTRUMENTS}
    for market, book in above.items():
        wanted, found = book.orders(), below[market].orders()
        wanted["price"] += shift
        assert found.tolist() == wanted.tolist()
        bids, asks = below[market].depth(10**6)
        assert len(bids) and len(asks) and (np.diff(bids["price"]) < 0).all()
    high, low = (features_of(tmp_path / name / "q") for name in ("above", "moved"))
    for market, table in high.items():
        is_whole = table["mid_price"] != 0
        assert is_whole.sum() > 100
        for name in ("mid_price", "microprice"):
            assert low[market][name][is_whole] == pytest.approx(table[name][is_whole] + shift / 1e9)
        assert low[market]["spread"] == pytest.approx(table["spread"])
        assert low[market]["order_flow_imbalance"].tolist() == table["order_flow_imbalance"].tolist()


def test_levels_of_a_dbn_file_may_be_zero_and_below(tmp_path: Path) -> None:
    row = {"action": b"A", "side": b"B", "price": -TICK, "bid_px_00": -TICK, "bid_sz_00": 3}
    rows = [row | {"ask_px_00": 0, "ask_sz_00": 5}, row | {"ask_px_00": UNDEFINED}]
    path = dbn_file(tmp_path, "mbp-1", records(package.MBP1Msg, MBP1_RTYPE, rows))
    import_into(tmp_path / "q", "dbn", path)
    (book,) = books_of(tmp_path / "q").values()
    assert (book.best_bid, book.best_ask) == ((-TICK, 3), None)
    (table,) = features_of(tmp_path / "q").values()
    assert table["mid_price"].tolist() == [-0.125, 0.0]
    assert table["spread"].tolist() == [0.25, 0.0]


def test_a_dbn_modify_without_a_price_keeps_the_orders_price(tmp_path: Path) -> None:
    rows = [order(b"A", 1, b"B", -TICK, 5), order(b"M", 1, b"B", UNDEFINED, 2)]
    rows += [order(b"A", 2, b"A", UNDEFINED, 4), order(b"M", 2, b"A", 0, 4)]
    events = l3_records_of(run_importer("dbn", [dbn_file(tmp_path, "mbo", mbo(rows))]).blocks)
    book = L3Book()
    assert book.apply_array(events).top.tolist() == [  # type: ignore[union-attr]
        (-TICK, 5, 0, 0),
        (-TICK, 2, 0, 0),
        (-TICK, 2, 0, 0),
        (-TICK, 2, 0, 4),
    ]


def test_negative_prices_of_text_become_books_and_trades(tmp_path: Path) -> None:
    path = tmp_path / "ice_incremental_book_L2_2024-01-02_WTI.csv"
    texts = ["bid,-37.63,2", "bid,-38,1", "bid,0,0", "ask,-37.5,4", "ask,0.0,7", "ask,0.25,1"]
    rows = [f"ice,WTI,1,{1 + (n > 3)},true,{text}" for n, text in enumerate(texts)]
    path.write_text("\n".join([BOOK_HEADER, *rows, "ice,WTI,9,9,false,ask,-37.5,0"]) + "\n")
    trades = tmp_path / "ice_trades_2024-01-02_WTI.csv"
    trades.write_text(f"{TRADE_HEADER}\nice,WTI,1,1,7,buy,-37.63,2\nice,WTI,2,2,8,sell,0,1\n")
    import_into(tmp_path / "book", "tardis-book", path)
    (book,) = books_of(tmp_path / "book").values()
    bids, asks = ([(book.render_price(p), s) for p, s in side.tolist()] for side in book.depth(9))
    assert (bids, asks) == ([("-37.63", 2), ("-38", 1)], [("0", 7), ("0.25", 1)])
    (block,), _ = run_importer("tardis-trades", [trades])
    assert block.payloads["price"].tolist() == [-37.63, 0.0]


# --- Files of books ---------------------------------------------------------------------------------------


def test_books_below_zero_are_saved_and_loaded_as_they_are(tmp_path: Path) -> None:
    levels, orders = L2Book(), L3Book()
    levels.apply(l2_record(SNAPSHOT, [(-1, 2), (-(2**63), 1)], [(0, 3)], scales=(1, 0)))
    orders.apply_array(
        l3_records(
            [
                (ADD, 1, 1, 0, 0, -5, 2, 0),
                (ADD, 2, 2, 0, 0, 0, 3, 0),
                (ADD, 2, 3, 0, 0, 0, 4, int(L3Flags.NO_PRICE)),
            ]
        )
    )
    store = SnapshotStore(tmp_path)
    for number, book in enumerate((levels, orders)):
        info = store.write(book, Market(1, number), 7)
        loaded = store.load(info)
        assert info.version == 2
        assert (loaded.top(), loaded.snapshot_payload()) == (book.top(), book.snapshot_payload())
    assert orders.top() == (-5, 2, 0, 3)
    books = BookSet()
    books.books |= {Market(1, 0): levels, Market(1, 1): orders}
    again = load_books(save_books(books))
    assert [book.top() for book in again.books.values()] == [levels.top(), orders.top()]


def test_a_snapshot_of_orders_of_version_1_has_orders_without_a_price_where_it_is_zero() -> None:
    head = np.zeros(1, L3_SNAPSHOT)
    head["version"], head["order_count"] = 1, 2
    rows = [struct.pack("<4QIBB2x", order_id, price, 5, 9, 0, 1, 2) for order_id, price in ((1, 0), (2, 8))]
    book = L3Book()
    book.load_payload(head.tobytes() + b"".join(rows))
    assert (book.top(), book.order_count, book.queue_place(1)) == ((8, 5, 0, 0), 2, None)
    beyond = struct.pack("<4QIBB2x", 3, 2**63, 5, 9, 0, 1, 2)
    with pytest.raises(Unsupported, match="above 2"):
        L3Book().load_payload(head.tobytes() + rows[1] + beyond)


def test_json_shows_prices_below_zero_as_decimals() -> None:
    text = render(TypeId.BOOK_EVENT, 0, l2_record(DIFF, [(-5, 1)], [(0, 2)], scales=(2, 0)))
    assert text is not None and b'"bids":[["-0.05","1"]],"asks":[["0","2"]]' in text
    record = l3_records([(ADD, 1, 1, 0, 0, -150, 2, 0)])
    record["event"]["price_scale"] = 2
    assert b'"price":"-1.5"' in (render(TypeId.BOOK_EVENT, 0, record.tobytes()) or b"")
    old = render(TypeId.BOOK_EVENT, 0, l2_record(DIFF, [(2**64 - 1, 1)], [], version=3))
    assert old is not None and b'"bids":[["18446744073709551615","1"]]' in old


# --- Version 3 --------------------------------------------------------------------------------------------


def old_header(length: int, seq: int, kind: int, mode: int, market: int) -> bytes:
    """The first 64 bytes of a payload as a writer of version 3 laid them out."""
    start = struct.pack("<HHIBBHIII", 3, 0, length, 0, 0, 2, market, 5, 0)
    numbers = struct.pack("<4Q", 1000 + seq, 1000 + seq, seq if mode else 0, 0)
    return start + numbers + struct.pack("<BBHI", kind, mode, 0, 0)


def old_levels(seq: int, kind: int, *levels: tuple[int, int], bids: int) -> bytes:
    """A snapshot (1) or diff (2) of version 3 at scales 2 and 0."""
    rows = b"".join(struct.pack("<QQ", price, size) for price, size in levels)
    head = struct.pack("<BBHII", 2, 0, 0, bids, len(levels) - bids)
    if kind == 2:
        head = struct.pack("<3QBBHHH", 0, 0, 0, 2, 0, 1, bids, len(levels) - bids)
    return old_header(64 + len(head) + len(rows), seq, kind, 0, 7) + head + rows


def old_order(seq: int, kind: int, side: int, order_id: int, price: int, qty: int, flags: int = 0) -> bytes:
    """An order event of version 3 at scales 3 and 0."""
    body = struct.pack("<6BHIIQQQQQQ", kind, side, 2, 0, 3, 0, 0, flags, 0, order_id, 0, 0, price, qty, 0)
    return old_header(128, seq, 2, 1, 9) + body


OLD = [
    (old_levels(1, 1, (10050, 3), (10040, 1), (10060, 2), bids=2), (10050, 3, 10060, 2)),
    (old_levels(2, 2, (10050, 0), (0, 4), (2**63 - 1, 5), bids=2), (10040, 1, 10060, 2)),
    (old_order(1, 1, 1, 11, 5000, 4), (5000, 4, 0, 0)),
    (old_order(2, 1, 2, 12, 0, 6), (5000, 4, 0, 0)),  # without a price
    (old_order(3, 3, 1, 11, 0, 2), (5000, 2, 0, 0)),  # its price is unchanged
    (old_order(4, 3, 2, 12, 0, 7), (5000, 2, 0, 0)),  # it still has none
    (old_order(5, 1, 2, 13, 5010, 1), (5000, 2, 5010, 1)),
    (old_order(6, 3, 2, 12, 5005, 7), (5000, 2, 5005, 7)),
    (old_order(7, 1, 1, 14, 0, 9, flags=1), (5000, 2, 5005, 7)),  # a market order
    (old_order(8, 3, 1, 14, 0, 8), (5000, 2, 5005, 7)),  # no longer, and without a price
]
"""Payloads of version 3 and the best prices after each."""


def test_a_queue_of_version_3_reads_as_it_always_did(tmp_path: Path) -> None:
    with Queue.open_publisher(tmp_path / "q") as writer:
        for payload, _ in OLD:
            writer.append(TypeId.BOOK_EVENT, payload, 5)
    books = BookSet()
    tops = []
    for message in messages_of(tmp_path / "q"):
        books.apply(message.payload)
        is_l3 = message.payload[57] == 1
        tops.append(books.books[Market(2, 9 if is_l3 else 7)].top())
    assert tops == [top for _, top in OLD]
    hashes = {market.market_id: book.book_hash().hex() for market, book in books.books.items()}
    assert hashes == {7: "f21f0a6edb330d1287bc4df00fdcbc74", 9: "123a529f0211ca616b832547cc416530"}
    by_market = features_of(tmp_path / "q")
    assert by_market[7]["mid_price"].tolist() == [100.55, 100.5]
    assert by_market[9]["mid_price"] == pytest.approx([0, 0, 0, 0, 5.005, 5.0025, 5.0025, 5.0025])


def test_old_orders_give_the_same_book_one_by_one_in_an_array_and_beside_new_ones() -> None:
    old = np.frombuffer(b"".join(payload for payload, _ in OLD[2:]), dtype=l3_records([]).dtype)
    single, array = L3Book(), L3Book()
    for record in old:
        single.apply(record.tobytes())
    array.apply_array(old)
    assert single.book_hash() == array.book_hash()
    new = l3_records([(MODIFY, 2, 12, 0, 0, 0, 7, 0), (ADD, 1, 15, 0, 0, -3, 1, 0)], first_seq=9)
    new["event"]["price_scale"] = 3
    result = array.apply_array(new)
    assert result.top is not None and result.top.tolist() == [(5000, 2, 0, 7), (5000, 2, 0, 7)]


@pytest.mark.parametrize("price", [2**63, 2**64 - 1])
def test_a_price_of_version_3_that_is_no_signed_number_is_refused_and_never_negative(price: int) -> None:
    levels, orders = L2Book(), L3Book()
    with pytest.raises(Unsupported, match="64 bits"):
        levels.apply(old_levels(1, 1, (price, 3), bids=1))
    with pytest.raises(Unsupported, match="64 bits"):
        orders.apply(old_order(1, 1, 1, 11, price, 4))
    assert levels.top() == orders.top() == (0, 0, 0, 0)
