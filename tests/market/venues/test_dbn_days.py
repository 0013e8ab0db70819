"""DBN files of several instruments: what lies between records, whose book it is, and the books."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everlog.errors import InvalidSource
from everlog.market.book_set import BookSet, BookSettings
from everlog.market.books import L3Book
from everlog.market.protocol import TRADE, TRADE_SIDE_UNKNOWN, TypeId, crypto_market_id, symbol_hash
from everlog.market.venues import archives
from everlog.market.venues.interface import ImportOptions
from tests.market.venues.dbn_files import (
    F_MAYBE_BAD_BOOK,
    INSTRUMENTS,
    MAPPING_RTYPE,
    MBP0_RTYPE,
    MBP1_RTYPE,
    OHLCV_RTYPE,
    START_NS,
    STATISTICS_RTYPE,
    SYSTEM_RTYPE,
    TICK,
    UNDEFINED,
    dbn_file,
    made_up_day,
    mbo,
    order,
    package,
    records,
)
from tests.market.venues.peer_books import PeerBook, needs_peer
from tests.support.import_runs import (
    import_into,
    l2_event,
    l3_records_of,
    messages_of,
    payloads_of,
    run_importer,
)

ADD = order(b"A", 7, b"B", 4800 * 10**9, 3)
OF_OTHER = {"instrument_id": 42}


def ids_of(path: Path, options: ImportOptions | None = None) -> list[int]:
    """The market ids of a file's events."""
    ids: list[int] = l3_records_of(run_importer("dbn", [path], options).blocks)["header"][
        "market_id"
    ].tolist()
    return ids


def books_after_each(path: Path) -> Iterator[dict[int, L3Book]]:
    """The books by market id after each event of a file."""
    # The other library lets an order that becomes larger keep its place.
    books = BookSet(BookSettings(priority="keep"))
    for block in run_importer("dbn", [path]).blocks:
        for payload in payloads_of(block):
            books.apply(payload)
            yield {market.market_id: book for market, book in books.books.items()}  # type: ignore[misc]


def sides_of(book: L3Book) -> list[list[tuple[int, int]]]:
    return [
        [
            (price // TICK, size)
            for price, size in zip(*(side[n].tolist() for n in ("price", "size")), strict=True)
        ]
        for side in book.depth(10**6)
    ]


@pytest.mark.parametrize("suffix", [".dbn", ".dbn.zst"])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_all_versions_of_the_format_give_the_same_events(tmp_path: Path, version: int, suffix: str) -> None:
    body = mbo(made_up_day(3, 200))
    wanted = l3_records_of(run_importer("dbn", [dbn_file(tmp_path, "mbo", body)]).blocks)
    path = dbn_file(tmp_path, "mbo", body, version=version, suffix=suffix)
    assert l3_records_of(run_importer("dbn", [path]).blocks).tobytes() == wanted.tobytes()
    assert len(wanted) == len(body) // 56


@needs_peer
def test_books_of_two_instruments_equal_another_librarys_after_every_record(tmp_path: Path) -> None:
    rows = made_up_day(seed=5, count=3000)
    peers = {crypto_market_id(name): PeerBook(TICK) for name in INSTRUMENTS}
    ids = {number: crypto_market_id(name) for name, number in INSTRUMENTS.items()}
    assert {row["action"] for row in rows} == {b"A", b"C", b"M", b"T", b"F", b"R"}
    for row, books in zip(rows, books_after_each(dbn_file(tmp_path, "mbo", mbo(rows))), strict=True):
        market = ids[row["instrument_id"]]
        peers[market].apply(row)
        book = books[market]
        assert sides_of(book) == list(peers[market].levels()), row
        if row["sequence"] % 50 == 0:
            bids, asks = (side["price"].tolist() for side in book.depth(10**6))
            queues = [book.queue(1, price) for price in bids] + [book.queue(2, price) for price in asks]
            assert queues == peers[market].queues()


def test_books_of_two_instruments_equal_a_plain_replay(tmp_path: Path) -> None:
    rows = made_up_day(seed=6, count=3000)
    orders: dict[int, dict[int, tuple[bytes, int, int]]] = {number: {} for number in INSTRUMENTS.values()}
    for row in rows:
        mine, number = orders[row["instrument_id"]], row["order_id"]
        if row["action"] in (b"A", b"M"):
            mine[number] = (row["side"], row["price"], row["size"])
        elif row["action"] == b"R":
            mine.clear()
        elif row["action"] == b"C":
            side, price, size = mine.pop(number)
            if size > row["size"]:
                mine[number] = (side, price, size - row["size"])
    *_, books = books_after_each(dbn_file(tmp_path, "mbo", mbo(rows)))
    for name, instrument in INSTRUMENTS.items():
        found = {
            int(row["order_id"]): (b"B" if row["side"] == 1 else b"A", int(row["price"]), int(row["qty"]))
            for row in books[crypto_market_id(name)].orders()
        }
        assert found == orders[instrument]


@pytest.mark.parametrize("block_bytes", [7, 100, 1 << 20])
def test_records_of_the_same_length_but_another_kind_are_not_mistaken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(archives, "BLOCK_BYTES", block_bytes)
    bars = records(package.OHLCVMsg, OHLCV_RTYPE, [{"open": 1}])
    rows = [mbo([order(b"A", number + 1, price=10**9, size=1)]) for number in range(100)]
    body = b"".join(row + (bars if number % 3 == 0 else b"") for number, row in enumerate(rows))
    blocks, tally = run_importer("dbn", [path := dbn_file(tmp_path, "mbo", body)])
    assert l3_records_of(blocks)["event"]["order_id"].tolist() == list(range(1, 101))
    assert tally.notes == [f"{path}: 34 records of other kinds were not imported: 34 ohlcv-1s"]
    quote = records(package.MBP1Msg, MBP1_RTYPE, [{"action": b"A", "side": b"N", "price": UNDEFINED}])
    system = records(package.SystemMsgV1, SYSTEM_RTYPE, [{"msg": b"Heartbeat"}])
    statistic = records(package.StatMsg, STATISTICS_RTYPE, [{"price": 3}])
    assert len(quote) == len(system) == len(statistic)
    body = system + quote + statistic + quote + statistic
    _, tally = run_importer("dbn", [path := dbn_file(tmp_path, "mbp-1", body, version=1)])
    assert tally.rows == 2
    assert tally.notes == [f"{path}: 3 records of other kinds were not imported: 2 statistics, 1 system"]


@pytest.mark.parametrize("layout", ["SymbolMappingMsg", "SymbolMappingMsgV1"])
def test_a_mapping_record_renames_an_instrument_from_there_on(tmp_path: Path, layout: str) -> None:
    names = {"stype_in_symbol": b"ES.FUT", "stype_out_symbol": b"ESM4"}
    renamed = records(getattr(package, layout), MAPPING_RTYPE, [names])
    path = dbn_file(tmp_path, "mbo", mbo([ADD]) + renamed + mbo([ADD]))
    assert ids_of(path) == [crypto_market_id("ESH4"), crypto_market_id("ESM4")]


def test_symbols_are_found_whichever_way_round_the_file_maps_them(tmp_path: Path) -> None:
    path = dbn_file(tmp_path, "mbo", mbo([ADD]), mappings=[("17077", "ESH4")])
    assert ids_of(path) == [crypto_market_id("ESH4")]


def test_an_instrument_without_a_symbol_is_called_by_its_number_and_noted(tmp_path: Path) -> None:
    next_day = ADD | {"ts_recv": START_NS + 86_400 * 10**9}
    path = dbn_file(tmp_path, "mbo", mbo([ADD, next_day, ADD | {"instrument_id": 9}]))
    blocks, tally = run_importer("dbn", [path])
    names = ["ESH4", "17077", "9"]
    assert l3_records_of(blocks)["header"]["market_id"].tolist() == [crypto_market_id(name) for name in names]
    assert tally.notes == [f"{path}: no symbol is known of 9, 17077; the number is used instead"]


def test_one_symbol_can_be_picked_out_of_a_file(tmp_path: Path) -> None:
    path = dbn_file(tmp_path, "mbo", mbo([ADD, ADD | OF_OTHER, ADD | {"order_id": 8}]))
    blocks, tally = run_importer("dbn", [path], ImportOptions(symbol="ESH4"))
    assert l3_records_of(blocks)["event"]["order_id"].tolist() == [7, 8]
    assert (tally.symbol, tally.rows) == ("ESH4", 2)
    assert tally.notes == [f"{path}: 1 records of other symbols than ESH4 were left out"]
    with pytest.raises(InvalidSource, match="holds ESH4, NQH4, not 'CLH4' as the command says"):
        run_importer("dbn", [path], ImportOptions(symbol="CLH4"))
    unnamed = dbn_file(tmp_path, "mbo", mbo([ADD]), mappings=[])
    with pytest.raises(InvalidSource, match="holds no record of 'ESH4'"):
        run_importer("dbn", [unnamed], ImportOptions(symbol="ESH4"))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (ADD | {"publisher_id": 2}, "another publisher's book of the same instrument"),
        (ADD | {"order_id": 0}, "an add without an order"),
    ],
)
def test_what_would_spoil_a_book_is_refused_or_set_aside(tmp_path: Path, row: Any, reason: str) -> None:
    body = mbo([ADD, ADD | OF_OTHER | {"publisher_id": 2}, row])
    path = dbn_file(tmp_path, "mbo", body)
    with pytest.raises(InvalidSource, match=f":3: {reason}"):
        run_importer("dbn", [path])
    _, tally = run_importer("dbn", [path], quarantine=tmp_path / "quarantine.csv")
    assert (tally.rows, tally.quarantined) == (2, 1)
    assert "ESH4" in (tmp_path / "quarantine.csv").read_text()


def test_trades_of_another_publisher_are_no_harm(tmp_path: Path) -> None:
    trade = order(b"T", 0, b"N", 10**9, 1, publisher_id=2)
    assert len(ids_of(dbn_file(tmp_path, "mbo", mbo([ADD, trade])))) == 2


def test_books_that_are_not_sure_are_noted(tmp_path: Path) -> None:
    rows = [ADD, ADD | {"order_id": 8, "flags": F_MAYBE_BAD_BOOK}]
    path = dbn_file(tmp_path, "mbo", mbo(rows))
    _, tally = run_importer("dbn", [path], quarantine=tmp_path / "quarantine.csv")
    assert tally.notes == [
        f"{path}: 1 records are marked as of a book that may be wrong (F_MAYBE_BAD_BOOK)",
    ]


def test_a_record_without_a_time_of_arrival_has_that_of_the_exchange(tmp_path: Path) -> None:
    path = dbn_file(tmp_path, "mbo", mbo([ADD | {"ts_recv": 2**64 - 1}]))
    assert run_importer("dbn", [path]).tally.min_ts_ns == START_NS


def test_trades_are_imported_field_by_field(tmp_path: Path) -> None:
    rows = [
        {"action": b"T", "side": b"A", "price": 4800_250000000, "size": 3},
        {"action": b"T", "side": b"N", "price": 10**9, "size": 1} | OF_OTHER,
    ]
    path = dbn_file(tmp_path, "trades", records(package.TradeMsg, MBP0_RTYPE, rows))
    (block,), tally = run_importer("dbn", [path])
    assert block.type_id == TypeId.TRADE and tally.stream == "trades"
    assert block.flags is not None and block.flags.tolist() == [0, TRADE_SIDE_UNKNOWN]
    assert block.payloads["price"].tolist() == [4800.25, 1.0]
    assert block.payloads["qty"].tolist() == [3.0, 1.0]
    assert block.payloads["is_buyer_maker"].tolist() == [1, 0]
    assert block.payloads["symbol_hash"].tolist() == [symbol_hash(name) for name in ("ESH4", "NQH4")]
    path = dbn_file(
        tmp_path, "trades", records(package.TradeMsg, MBP0_RTYPE, [rows[0] | {"price": UNDEFINED}])
    )
    with pytest.raises(InvalidSource, match=":1: a trade without a price"):
        run_importer("dbn", [path])


def test_levels_and_trades_of_several_instruments_keep_their_order(tmp_path: Path) -> None:
    choose = np.random.default_rng(4)
    rows: list[dict[str, Any]] = []
    for number in range(500):
        bid = 4800 + int(choose.integers(0, 9))
        rows.append(
            {"action": b"T" if choose.random() < 0.3 else b"A", "side": b"B", "sequence": number + 1}
            | {"price": bid * 10**9, "size": number + 1, "bid_px_00": bid * 10**9, "bid_sz_00": 2}
            | {"ask_px_00": UNDEFINED if number % 7 == 0 else (bid + 1) * 10**9, "ask_sz_00": 5}
            | {"instrument_id": int(choose.choice(list(INSTRUMENTS.values())))}
        )
    path = dbn_file(tmp_path, "mbp-1", records(package.MBP1Msg, MBP1_RTYPE, rows))
    import_into(tmp_path / "queue", "dbn", path)
    found = iter(messages_of(tmp_path / "queue"))
    names = {number: name for name, number in INSTRUMENTS.items()}
    for row in rows:
        symbol = names[row["instrument_id"]]
        if row["action"] == b"T":
            trade = np.frombuffer(next(found).payload, TRADE, 1)[0]
            assert (trade["qty"], trade["symbol_hash"]) == (row["size"], symbol_hash(symbol))
        event = l2_event(next(found).payload)
        assert event.header["native_seq"] == row["sequence"]
        assert event.header["market_id"] == crypto_market_id(symbol)
        assert event.bids == [(row["bid_px_00"], 2)]
        assert event.asks == ([] if row["ask_px_00"] == UNDEFINED else [(row["ask_px_00"], 5)])
    assert next(found, None) is None


def test_a_file_of_several_schemas_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSource, match="holds records of several schemas; imported are mbo, mbp-1"):
        run_importer("dbn", [dbn_file(tmp_path, None, mbo([ADD]))])


def test_a_record_shorter_than_its_header_is_damage(tmp_path: Path) -> None:
    path = dbn_file(tmp_path, "mbo", mbo([ADD]) + bytes([1, 0, 0, 0]) * 30)
    with pytest.raises(InvalidSource, match="record 2 has 4 bytes, a header alone has 16"):
        run_importer("dbn", [path])


def test_an_archive_of_compressed_files_and_what_comes_with_them(tmp_path: Path) -> None:
    first = dbn_file(tmp_path, "mbo", mbo([ADD]), suffix="-20231224.dbn.zst")
    second = dbn_file(tmp_path, "mbo", mbo([ADD, ADD | OF_OTHER]), suffix="-20231225.dbn.zst")
    path = tmp_path / "GLBX-20231224.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in (first, second):
            archive.write(file, file.name)
        archive.writestr("condition.json", "[]")
        archive.writestr("metadata.json", "{}")
    (result,) = import_into(tmp_path / "queue", "dbn", path)
    assert (result.entry.rows, len(messages_of(tmp_path / "queue"))) == (3, 3)
    assert [note for note in result.notes if "condition" in note] == [
        f"{path}!condition.json is not market data; it was left out"
    ]
