"""What files look like: every format is known by its beginning, and the wrong one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlog.errors import InvalidConfig, InvalidSource
from everlog.market.importing import FORMATS
from everlog.market.venues.sniffing import looks_like
from everlog.market.venues.szse_channels import COLUMNS
from tests.market.venues.tardis_files import BOOK_HEADER, TRADE_HEADER
from tests.support.import_runs import import_into

BEGINNINGS = {
    "tardis-book": f"{BOOK_HEADER}\n",
    "tardis-trades": f"{TRADE_HEADER}\n",
    "szse": ",".join(COLUMNS) + "\n",
    "dbn": "DBN\x03",
    "lobster": "34200.004241176,1,16113575,18,5853300,1\n",
    "bybit": '{"topic":"orderbook.500.XRPUSDT","type":"snapshot"}\n',
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_known_by_its_beginning(name: str) -> None:
    start = BEGINNINGS[name].encode()
    assert looks_like(start) == name
    if name != "dbn":
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


@pytest.mark.parametrize("start", [b"", b"\n", b"hello", b"1,2,3\n", b"34200,9,1,1,1,1\n"])
def test_files_of_unknown_formats_are_not_named(start: bytes) -> None:
    assert looks_like(start) is None


def test_files_that_cannot_be_read_are_named_before_the_first_import(tmp_path: Path) -> None:
    good = tmp_path / "AAPL_2012-06-21_x.csv"
    good.write_text(BEGINNINGS["lobster"])
    with pytest.raises(InvalidConfig, match="it is a directory; name the files in it"):
        import_into(tmp_path / "queue", "lobster", good, tmp_path)
    assert not (tmp_path / "queue").exists()
