"""`everlog book`: the ladder, the live view and the best prices as CSV."""

from __future__ import annotations

import csv
import io
import json
import signal
from pathlib import Path

import pytest

from everlog.market.protocol import BookEventType, TypeId, crypto_market_id
from everlog.queue import Queue
from tests.support.book_twins import l2_record, l3_records
from tests.support.command_lines import run_here, started

BTC, ETH = crypto_market_id("BTCUSDT"), crypto_market_id("ETHUSDT")
DIFF, SNAPSHOT = BookEventType.DIFF, BookEventType.SNAPSHOT
HEADER = "seq,timestamp_ns,exchange_ts_ns,symbol,bid_price,bid_size,ask_price,ask_size"


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    path = tmp_path / "q"
    records = [
        l2_record(SNAPSHOT, [(1000, 25)], [], scales=(2, 1), market=(1, BTC), times_ns=(1, 11)),
        l2_record(DIFF, [(7, 7)], [(8, 8)], market=(1, ETH), times_ns=(2, 12)),
        l2_record(DIFF, [], [(10055, 5)], scales=(3, 0), market=(1, BTC), times_ns=(3, 13)),
        l2_record(DIFF, [(1000, 0)], [], scales=(2, 0), market=(1, BTC), times_ns=(4, 14)),
    ]
    with Queue.open_publisher(path, segment_size=1 << 16) as writer:
        for number, record in enumerate(records):
            writer.append(TypeId.BOOK_EVENT, record, timestamp_ns=100 + number)
            writer.append(TypeId.TRADE, bytes(64), timestamp_ns=100 + number)
    return path


def test_top_writes_decimal_text_after_every_event_and_leaves_empty_sides_empty(
    queue: Path, tmp_path: Path
) -> None:
    done = run_here("book", "top", queue, "--csv", tmp_path / "top.csv")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "top.csv").read_text().splitlines() == [
        HEADER,
        f"0,100,11,{BTC},10,2.5,,",
        f"2,101,12,{ETH},7,7,8,8",
        f"4,102,13,{BTC},10,2.5,10.055,5",
        f"6,103,14,{BTC},,,10.055,5",
    ]


def test_top_of_one_symbol_every_k_events(queue: Path) -> None:
    done = run_here("book", "top", queue, "--symbol", "BTCUSDT", "--every", "2", "--csv", "-")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [(row["seq"], row["symbol"], row["ask_price"]) for row in rows] == [("4", "BTCUSDT", "10.055")]


def test_top_of_single_orders(tmp_path: Path) -> None:
    records = l3_records([(1, 1, 1, 0, 0, 10, 5, 0), (1, 2, 2, 0, 0, 12, 6, 0), (2, 0, 1, 0, 0, 0, 2, 0)])
    with Queue.open_publisher(tmp_path / "q", segment_size=1 << 16) as writer:
        writer.append_array(TypeId.BOOK_EVENT, records)
    done = run_here("book", "top", tmp_path / "q", "--symbol", "000001", "--csv", "-")
    assert [line.split(",", 3)[3] for line in done.stdout.splitlines()[1:]] == [
        "000001,10,5,,",
        "000001,10,5,12,6",
        "000001,10,3,12,6",
    ]


def test_show_prints_a_ladder_for_each_market(queue: Path) -> None:
    done = run_here("book", "show", queue)
    assert done.returncode == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["ask", "10.055", "5"] in lines
    assert ["ask", "8", "8"] in lines
    assert lines.index(["ask", "8", "8"]) < lines.index(["bid", "7", "7"])


def test_show_as_json(queue: Path) -> None:
    done = run_here("book", "show", queue, "--symbol", "ETHUSDT", "--json")
    (document,) = json.loads(done.stdout)
    assert (document["symbol"], document["bids"], document["asks"]) == ("ETHUSDT", [["7", "7"]], [["8", "8"]])


def test_watch_ends_quietly_by_a_signal(queue: Path) -> None:
    with started("everlog", "book", "watch", queue, "--symbol", "ETHUSDT") as command:
        while "bid" not in command.line():
            pass
        command.process.send_signal(signal.SIGTERM)
        assert command.process.wait(20) == 0


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `everlog simulate` writes if nothing is said: every market has orders and price levels."""
    path = tmp_path_factory.mktemp("simulated") / "q"
    done = run_here("simulate", "--queue", path, "--symbols", "2", "--events", "2000")
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.parametrize(
    ("chosen", "shown"), [((), "l3"), (("--mode", "l2"), "l2"), (("--mode", "l3"), "l3")]
)
def test_a_market_with_orders_and_levels_is_shown_by_one_of_them(
    simulated: Path, chosen: tuple[str, ...], shown: str
) -> None:
    done = run_here("book", "show", simulated, "--json", *chosen)
    assert (done.returncode, done.stderr) == (0, "")
    books = json.loads(done.stdout)
    assert [book["mode"] for book in books] == [shown, shown]
    top = run_here("book", "top", simulated, "--csv", "-", *chosen)
    assert (top.returncode, top.stderr) == (0, "")
    rows = list(csv.DictReader(io.StringIO(top.stdout)))
    assert {row["symbol"] for row in rows} == {book["symbol"] for book in books}
    last = {row["symbol"]: (row["bid_price"], row["ask_price"]) for row in rows}
    for book in books:
        assert last[book["symbol"]] == (book["bids"][0][0], book["asks"][0][0])


def test_watch_shows_a_market_with_orders_and_levels(simulated: Path) -> None:
    with started("everlog", "book", "watch", simulated, "--mode", "l2") as command:
        assert ", l2: " in command.line()
        command.process.send_signal(signal.SIGTERM)
        assert command.process.wait(20) == 0


def test_a_mode_that_is_not_in_the_queue_is_an_error_that_says_what_is(queue: Path) -> None:
    for more in (("show", queue), ("top", queue, "--csv", "-")):
        done = run_here("book", *more, "--mode", "l3")
        assert done.returncode == 1
        assert "no events of l3 books are in this queue, but 4 of l2" in done.stderr
    wrong = run_here("book", "show", queue, "--mode", "l4")
    assert wrong.returncode == 1
    assert "'l4'; it must be l2 or l3" in wrong.stderr


def test_a_path_without_a_queue_is_an_error(tmp_path: Path) -> None:
    done = run_here("book", "show", tmp_path / "none")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
