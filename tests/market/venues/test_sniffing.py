"""What files look like: every format is known by its beginning, and the wrong one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlog.errors import InvalidConfig, InvalidSource
from everlog.market.importing import FORMATS
from everlog.market.venues.archives import open_members
from everlog.market.venues.binance_files import KLINES
from everlog.market.venues.sniffing import looks_like
from everlog.market.venues.szse_channels import COLUMNS
from tests.market.venues.tardis_files import BOOK_HEADER, TRADE_HEADER
from tests.support.import_runs import import_into, real_file, write_archive

BEGINNINGS = {
    "tardis-book": f"{BOOK_HEADER}\n",
    "tardis-trades": f"{TRADE_HEADER}\n",
    "szse": ",".join(COLUMNS) + "\n",
    "dbn": "DBN\x03",
    "lobster": "34200.004241176,1,16113575,18,5853300,1\n",
    "bybit": '{"topic":"orderbook.500.XRPUSDT","type":"snapshot"}\n',
    "tardis-quotes": "exchange,symbol,timestamp,local_timestamp,ask_amount,ask_price,bid_price,bid_amount\n",
    "tardis-snapshots": "exchange,symbol,timestamp,local_timestamp,asks[0].price,asks[0].amount,"
    "bids[0].price,bids[0].amount\n",
    "itch": "\x00\x0cS\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01O",
    "binance-trades": "id,price,qty,quote_qty,time,is_buyer_maker\n",
    "binance-agg-trades": "agg_trade_id,price,quantity,first_trade_id,last_trade_id,transact_time,"
    "is_buyer_maker\n",
    "binance-book-depth": "timestamp,percentage,depth,notional\n",
    "binance-klines": "open_time,open,high,low,close,volume,close_time,quote_volume,count\n",
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_known_by_its_beginning(name: str) -> None:
    start = BEGINNINGS[name].encode()
    assert looks_like(start) == name
    if name not in ("dbn", "itch"):
        assert looks_like(b"\xef\xbb\xbf" + start) == name


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("wrong", FORMATS)
def test_the_wrong_format_is_refused_by_what_the_file_looks_like(
    tmp_path: Path, name: str, wrong: str
) -> None:
    path = tmp_path / "file_2024-01-02_000001.data"
    path.write_text(BEGINNINGS[name])
    if name == wrong:
        return
    with pytest.raises(InvalidSource, match=f"looks like {name}, not {wrong}: import it as {name}"):
        import_into(tmp_path / "queue", wrong, path)
    assert not (tmp_path / "queue").exists()


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"PAR1\x15\x04", "a Parquet file"),
        (b"\xff\xfee\0x\0", "text in UTF-16, to be converted to UTF-8 first"),
        (b"\x01\x02\0", "binary data of an unknown kind"),
        (b"<!DOCTYPE html><html>", "an HTML or XML document"),
        (b"exchange,symbol,timestamp,local_timestamp,funding_rate\n", "a Tardis file of another kind"),
        (b"ts_recv,ts_event,rtype,publisher_id\n", "DBN that was written as CSV"),
        (b'{"e":"depthUpdate"}\n', "JSON of another kind"),
    ],
)
def test_other_files_are_called_by_name(tmp_path: Path, start: bytes, kind: str) -> None:
    assert looks_like(start) == kind
    path = tmp_path / "AAPL_2012-06-21_x.csv"
    path.write_bytes(start)
    with pytest.raises(InvalidSource, match=f"is {kind}, not lobster"):
        import_into(tmp_path / "queue", "lobster", path)


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_without_data_is_refused_and_one_without_rows_is_not(tmp_path: Path, name: str) -> None:
    names = {"szse": "order_new_STK_SZ_20240102/000001.csv", "lobster": "AAPL_2012-06-21_message_1.csv"}
    if name.startswith("binance"):
        names[name] = "BTCUSDT-trades-2024-01-02.csv"
    path = tmp_path / names.get(name, "binance_2024-01-02_BTCUSDT.data")
    path.parent.mkdir(exist_ok=True)
    for nothing in (b"", b"\n \r\n", b"\xef\xbb\xbf"):
        path.write_bytes(nothing)
        with pytest.raises(InvalidSource, match="is empty, without even a header; fetch it again"):
            import_into(tmp_path / "queue", name, path)
        assert not (tmp_path / "queue").exists()
    if name in ("lobster", "bybit"):
        return  # without a header there is no file without rows
    if name == "dbn":
        with open_members(str(real_file("esh4-glbx-mdp3-20231224.mbo.dbn.zst"))) as (member,):
            start = member.peek(1 << 20)
        path.write_bytes(start[: 8 + int.from_bytes(start[4:8], "little")])
    elif name == "binance-klines":
        path.write_text(f"{','.join(KLINES)}\n")
    else:
        path.write_text(BEGINNINGS[name])
    (result,) = import_into(tmp_path / "queue", name, path)
    assert (result.imported, result.entry.rows, result.notes) == (True, 0, ("the file has no rows",))


def test_an_empty_file_of_an_archive_is_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "AAPL_2012-06-21_message_1.csv").write_text(BEGINNINGS["lobster"])
    (tmp_path / "MSFT_2012-06-21_message_1.csv").write_bytes(b"")
    write_archive(tmp_path / "day.zip", sorted(tmp_path.glob("*.csv")))
    (result,) = import_into(tmp_path / "queue", "lobster", tmp_path / "day.zip")
    assert result.entry.symbol == "AAPL"
    assert "MSFT_2012-06-21_message_1.csv is empty" in result.notes[0]


@pytest.mark.parametrize("start", [b"", b"\n", b"hello", b"1,2,3\n", b"34200,9,1,1,1,1\n"])
def test_files_of_unknown_formats_are_not_named(start: bytes) -> None:
    assert looks_like(start) is None


def test_files_that_cannot_be_read_are_named_before_the_first_import(tmp_path: Path) -> None:
    good = tmp_path / "AAPL_2012-06-21_x.csv"
    good.write_text(BEGINNINGS["lobster"])
    with pytest.raises(InvalidConfig, match="it is a directory; name the files in it"):
        import_into(tmp_path / "queue", "lobster", good, tmp_path)
    assert not (tmp_path / "queue").exists()
