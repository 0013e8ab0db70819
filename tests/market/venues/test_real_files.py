"""Real files of three venues through import, queue and books, against plain Python replays."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from everlog.market.book_results import Outputs
from everlog.market.books import L2Book, L3Book
from everlog.market.protocol import L3_RECORD, L3EventType, Side, TypeId
from everlog.market.venues import lobster
from tests.support.import_runs import import_into, l2_event, messages_of, packed, real_file

BYBIT = "xrpusdt-ob500.data.zip"
LOBSTER = "AAPL_2012-06-21_message_50.first-25000.csv.gz"
DBN = "esh4-glbx-mdp3-20231224.mbo.dbn.zst"


def test_the_bybit_book_equals_a_plain_dict_replay_after_every_message(tmp_path: Path) -> None:
    path = real_file(BYBIT)
    (result,) = import_into(tmp_path / "queue", "bybit", path)
    with zipfile.ZipFile(path) as archive:
        source = [json.loads(line) for line in archive.read(archive.namelist()[0]).splitlines()]
    messages = messages_of(tmp_path / "queue")
    assert len(messages) == len(source) == result.entry.rows == result.entry.groups
    book = L2Book()
    sides: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for message, wanted in zip(messages, source, strict=True):
        book.apply_array(packed([message.payload]))
        for plain, levels in zip(sides, (wanted["data"]["b"], wanted["data"]["a"]), strict=True):
            if wanted["type"] == "snapshot":
                plain.clear()
            for price, size in levels:
                plain.pop(price, None)
                if size != "0":
                    plain[price] = size
        for plain, levels, descending in ((sides[0], book.bids(), True), (sides[1], book.asks(), False)):
            found = [(book.render_price(price), book.render_size(size)) for price, size in levels.tolist()]
            expected = sorted(plain.items(), key=lambda level: float(level[0]), reverse=descending)
            assert found == [(_plain(price), _plain(size)) for price, size in expected]


def _plain(text: str) -> str:
    """The text without trailing zeros, as books render numbers."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def test_the_bybit_update_ids_have_no_gap(tmp_path: Path) -> None:
    (result,) = import_into(tmp_path / "queue", "bybit", real_file(BYBIT))
    events = [l2_event(message.payload) for message in messages_of(tmp_path / "queue")]
    ids = np.array([event.header["seq"] for event in events], dtype=np.int64)
    assert result.entry.gaps == 0
    assert (np.diff(ids) == 1).all()
    for event, previous in zip(events[1:], ids[:-1], strict=True):
        assert event.body["previous_update_id"] == previous
        assert event.body["last_update_id"] == previous + 1


def test_the_lobster_book_is_never_crossed_after_the_first_minute(tmp_path: Path) -> None:
    import_into(tmp_path / "queue", "lobster", real_file(LOBSTER))
    messages = messages_of(tmp_path / "queue")
    book = L3Book(unknown_orders="skip")
    result = book.apply_array(packed([message.payload for message in messages]), Outputs(top=True))
    assert result.top is not None
    stamps = np.array([message.timestamp_ns for message in messages], dtype=np.uint64)
    later = stamps >= stamps[0] + np.uint64(60 * 10**9)
    both = (result.top["bid_size"] > 0) & (result.top["ask_size"] > 0)
    assert later.sum() > 10_000
    assert both[later].all()
    assert (result.top["bid_price"] < result.top["ask_price"])[later & both].all()


def test_the_lobster_quantities_are_conserved(tmp_path: Path) -> None:
    path = real_file(LOBSTER)
    import_into(tmp_path / "queue", "lobster", path)
    records = np.frombuffer(b"".join(m.payload for m in messages_of(tmp_path / "queue")), dtype=L3_RECORD)
    book = L3Book(unknown_orders="skip")
    book.apply_array(records)
    rests: dict[int, int] = {}
    unknown = 0
    with gzip.open(path, "rt") as file:
        for line in file:
            _, kind, number, size, _, _ = line.split(",")
            order, quantity = int(number), int(size)
            if int(kind) == lobster.NEW:
                rests[order] = quantity
            elif int(kind) in (lobster.PARTIAL_CANCEL, lobster.DELETE, lobster.EXECUTION):
                if order in rests:
                    assert quantity <= rests[order]
                    rests[order] -= quantity
                else:
                    unknown += 1
    resting = {order: rest for order, rest in rests.items() if rest > 0}
    assert {int(row["order_id"]): int(row["qty"]) for row in book.orders()} == resting
    for side, levels in ((Side.BUY, book.depth(10**6)[0]), (Side.SELL, book.depth(10**6)[1])):
        rows = book.orders()
        assert int(levels["size"].sum()) == int(rows["qty"][rows["side"] == side].sum())
    assert unknown > 0, "the file is known to begin with orders that rested before"


def test_hidden_executions_of_the_lobster_file_are_trades_that_touch_no_order(tmp_path: Path) -> None:
    import_into(tmp_path / "queue", "lobster", real_file(LOBSTER))
    records = np.frombuffer(b"".join(m.payload for m in messages_of(tmp_path / "queue")), dtype=L3_RECORD)
    hidden = records["event"][records["event"]["exec_type"] == lobster.HIDDEN_EXECUTION]
    assert len(hidden) == 882
    assert (hidden["event_type"] == L3EventType.TRADE).all()
    for name in ("order_id", "bid_order_id", "ask_order_id"):
        assert (hidden[name] == 0).all()


def test_the_dbn_book_equals_a_plain_dict_replay(tmp_path: Path) -> None:
    databento_dbn = pytest.importorskip("databento_dbn")
    zstandard = pytest.importorskip("zstandard")
    path = real_file(DBN)
    (result,) = import_into(tmp_path / "queue", "dbn", path)
    with path.open("rb") as file:
        decoder = databento_dbn.DBNDecoder()
        decoder.write(zstandard.ZstdDecompressor().stream_reader(file).read())
        source = [record for record in decoder.decode() if type(record).__name__ == "MBOMsg"]
    orders: dict[int, tuple[str, int, int]] = {}
    for record in source:
        action = str(record.action)
        if action == "A":
            orders[record.order_id] = (str(record.side), record.price, record.size)
        elif action in "CMR":
            pytest.fail("the file is known to hold adds only")
    messages = messages_of(tmp_path / "queue")
    assert {message.type_id for message in messages} == {TypeId.BOOK_EVENT}
    assert len(messages) == len(source) == result.entry.rows
    assert (result.entry.venue, result.entry.symbol) == ("cme", "ESH4")
    book = L3Book()
    book.apply_array(packed([message.payload for message in messages]))
    found = {
        int(row["order_id"]): ("B" if row["side"] == Side.BUY else "A", int(row["price"]), int(row["qty"]))
        for row in book.orders()
    }
    assert found == orders
    assert [message.timestamp_ns for message in messages] == [record.ts_recv for record in source]
