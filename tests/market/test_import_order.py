"""Rows out of order, repeated, or with digits that cannot be kept; failed imports; what views say of it."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from everlog.cli.main import app
from everlog.errors import InvalidSource
from everlog.market.importing import ImportRequest, import_files
from everlog.market.protocol import BookEventType, TypeId
from everlog.market.venues.archives import open_members
from everlog.market.venues.csv_blocks import RowBlock
from everlog.market.venues.interface import ImportContext, ImportOptions, Rejects, Tally, TimeOrder
from everlog.queue import Queue
from tests.market.venues.dbn_files import F_LAST, F_SNAPSHOT, START_NS, dbn_file, mbo, order
from tests.market.venues.szse_day import SzseDay
from tests.support.book_twins import l2_record
from tests.support.import_runs import (
    import_into,
    messages_of,
    real_file,
    run_importer,
    write_archive,
)

ALLOWED = ImportOptions(allow_unordered=True)
LOBSTER = "AAPL_2012-06-21_message_50.first-25000.csv.gz"
ORDERS = "ApplSeqNum,ChannelNo,Side,Price,OrderQty,OrdType,TransactTime,SendingTime"


def lobster_file(folder: Path, lines: list[str]) -> Path:
    path = folder / "AAPL_2012-06-21_message_50.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def szse_orders(folder: Path, *rows: str) -> Path:
    path = folder / "order_new_STK_SZ_20240102" / "000001.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([ORDERS, *rows]) + "\n")
    return path


def order_row(seq: int, price: str = "10.01", quantity: str = "100") -> str:
    return f"{seq},2011,1,{price},{quantity},2,20240102093000000,20240102093000000"


def test_a_repeated_block_of_a_real_lobster_file_is_refused_or_counted(tmp_path: Path) -> None:
    lines = gzip.decompress(real_file(LOBSTER).read_bytes()).decode().splitlines()[:3000]
    path = lobster_file(tmp_path, lines[:2000] + lines[1000:])
    with pytest.raises(InvalidSource, match=r":2001: time goes back.*--allow-unordered"):
        import_into(tmp_path / "queue", "lobster", path)
    blocks, tally = run_importer("lobster", [path], ALLOWED)
    assert sum(map(len, blocks)) == 4000
    assert tally.unordered == sum(line.split(",")[0] < lines[1999].split(",")[0] for line in lines[1000:])
    assert run_importer("lobster", [lobster_file(tmp_path, lines)]).tally.unordered == 0


@pytest.mark.parametrize("kind", [1, 2, 3, 4])
def test_a_repeated_lobster_row_of_one_time_is_refused_or_counted(tmp_path: Path, kind: int) -> None:
    row, other = f"34200.5,{kind},11,18,5853300,1", "34200.5,1,12,18,5853300,1"
    path = lobster_file(tmp_path, ["34200.1,1,11,80,5853300,1", row, other, row, "34201,5,0,5,5853300,1"])
    with pytest.raises(InvalidSource, match=r":4: time is that of an equal row: .*--allow-unordered"):
        run_importer("lobster", [path])
    blocks, tally = run_importer("lobster", [path], ALLOWED)
    assert (sum(map(len, blocks)), tally.unordered) == (5, 1)
    hidden = ["34201,5,0,5,5853300,1"] * 3
    assert len(run_importer("lobster", [lobster_file(tmp_path, hidden)]).blocks[0]) == 3


def test_a_trade_of_tardis_that_is_there_twice_is_refused_or_counted(tmp_path: Path) -> None:
    head = "exchange,symbol,timestamp,local_timestamp,id,side,price,amount"
    rows = [f"b,{symbol},1,{at},{number},buy,1,1" for at in (2, 3) for number in (8, 9) for symbol in "XY"]
    path = tmp_path / "trades.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    assert run_importer("tardis-trades", [path]).tally.unordered == 0
    path.write_text("\n".join([head, *rows, rows[-3], "b,X,1,3,,buy,1,1", "b,X,1,3,,buy,1,1"]) + "\n")
    with pytest.raises(InvalidSource, match=":10: local_timestamp is that of an equal row"):
        run_importer("tardis-trades", [path])
    assert run_importer("tardis-trades", [path], ALLOWED).tally.unordered == 1


@pytest.mark.parametrize("cut", range(1, 7))
def test_rows_are_there_twice_wherever_blocks_end(cut: int) -> None:
    tally = Tally()
    context = ImportContext(ALLOWED, tally, Rejects(None, tally))
    times, numbers = [1, 2, 2, 2, 3, 3], [5, 6, 7, 6, 7, 7]
    watched = TimeOrder("time", context)
    for some in (slice(cut), slice(cut, None)):
        columns = [np.array(column[some], np.uint64) for column in (times, numbers)]
        block = RowBlock("", {"time": columns[0]}, {}, np.arange(len(columns[0])), memoryview(b""), 0)
        watched.once(block, np.ones(len(block), np.bool_), columns[1:])
    assert tally.unordered == 2


def test_a_repeated_number_of_szse_is_refused_or_counted(tmp_path: Path) -> None:
    path = szse_orders(tmp_path, order_row(1), order_row(2), order_row(2), order_row(3))
    with pytest.raises(InvalidSource, match=":4: ApplSeqNum is there twice"):
        run_importer("szse", [path])
    blocks, tally = run_importer("szse", [path], ALLOWED)
    assert (sum(map(len, blocks)), tally.unordered) == (4, 1)
    (result,) = import_into(tmp_path / "queue", "szse", path, lenient=True)
    assert (result.entry.rows, result.entry.quarantined) == (3, 1)


@pytest.mark.parametrize(
    ("price", "quantity", "words"),
    [
        ("105.1234", "100", "Price has more than 3 decimals"),
        ("10", "10.5", "OrderQty has more than 0 decimals"),
    ],
)
def test_digits_that_szse_events_cannot_hold_are_refused(
    tmp_path: Path, price: str, quantity: str, words: str
) -> None:
    path = szse_orders(tmp_path, order_row(1, "10.0100", "200.00"), order_row(2, price, quantity))
    with pytest.raises(InvalidSource, match=f":3: {words}"):
        run_importer("szse", [path])
    good = szse_orders(tmp_path, order_row(1, "10.0100", "200.00"))
    (block,) = run_importer("szse", [good]).blocks
    assert (int(block.payloads["event"]["price"][0]), int(block.payloads["event"]["qty"][0])) == (10010, 200)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def test_a_failed_import_leaves_no_queue_and_spares_what_was_there(tmp_path: Path) -> None:
    good, bad = szse_orders(tmp_path, order_row(1)), tmp_path / "bad_2024-01-02_000001.csv"
    bad.write_text("nonsense\n1\n")
    queue = tmp_path / "queue"
    with pytest.raises(InvalidSource):
        import_into(queue, "szse", bad)
    assert not queue.exists()
    queue.mkdir()
    (queue / "notes.txt").write_text("mine")
    with pytest.raises(InvalidSource):
        import_into(queue, "szse", bad)
    assert (queue / "notes.txt").read_text() == "mine"
    import_into(queue, "szse", good)
    with pytest.raises(InvalidSource):
        import_into(queue, "szse", bad)
    assert len(messages_of(queue)) == 1


def test_a_small_import_makes_a_small_queue(tmp_path: Path) -> None:
    path = szse_orders(tmp_path, order_row(1), order_row(2))
    import_files(ImportRequest(format="szse", paths=[str(path)], queue=str(tmp_path / "queue")))
    assert size_of(tmp_path / "queue") < 4 << 20


def test_a_simulated_venue_is_not_written_behind_another(tmp_path: Path) -> None:
    command = ["simulate", "--queue", str(tmp_path / "queue"), "--symbols", "2", "--events", "100"]
    assert CliRunner().invoke(app, command).exit_code == 0
    count = len(messages_of(tmp_path / "queue"))
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 1 and "begins with empty books" in again.output
    assert len(messages_of(tmp_path / "queue")) == count


def test_views_say_how_many_gaps_and_skipped_events_are_behind_a_book(tmp_path: Path) -> None:
    events = [l2_record(BookEventType.SNAPSHOT, [(100, 1)], [(110, 1)], native_seq=5)]
    events += [
        l2_record(BookEventType.DIFF, [(101, 1)], [], ids=(number, number, number - 1)) for number in (4, 8)
    ]
    with Queue.open_publisher(tmp_path / "queue", segment_size=1 << 16) as writer:
        for payload in events:
            writer.append(TypeId.BOOK_EVENT, payload)
    shown = CliRunner().invoke(app, ["book", "show", str(tmp_path / "queue"), "--json"])
    (book,) = json.loads(shown.stdout)
    assert (book["gaps"], book["unknown_orders"], book["skipped"]) == (1, 0, 1)
    top = CliRunner().invoke(
        app, ["book", "top", str(tmp_path / "queue"), "--csv", str(tmp_path / "top.csv")]
    )
    assert "1 gaps, 0 unknown orders, 1 skipped" in top.output


def test_a_whole_day_has_nothing_out_of_order(tmp_path: Path) -> None:
    day = SzseDay({2011: ("000001",)}, orders_per_symbol=50)
    paths = [Path(path) for path in day.write(str(tmp_path / "files"))]
    assert run_importer("szse", paths).tally.unordered == 0


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".zip"])
def test_the_same_data_compressed_in_another_way_is_not_imported_again(tmp_path: Path, suffix: str) -> None:
    zstandard = pytest.importorskip("zstandard")
    lines = gzip.decompress(real_file(LOBSTER).read_bytes()).decode().splitlines()[:50]
    plain = lobster_file(tmp_path, lines)
    packed = tmp_path / f"{plain.name}{suffix}"
    if suffix == ".zip":
        write_archive(packed, [plain])
    else:
        data = plain.read_bytes()
        packed.write_bytes(
            gzip.compress(data) if suffix == ".gz" else zstandard.ZstdCompressor().compress(data)
        )
    (first,) = import_into(tmp_path / "queue", "lobster", packed)
    (second,) = import_into(tmp_path / "queue", "lobster", plain)
    assert (first.imported, second.imported) == (True, False)
    assert len(messages_of(tmp_path / "queue")) == 50
    (forced,) = import_into(tmp_path / "queue", "lobster", plain, force=True)
    assert forced.imported and len(messages_of(tmp_path / "queue")) == 50
    other = lobster_file(tmp_path, lines[:20])
    (third,) = import_into(tmp_path / "queue", "lobster", other)
    assert any("from another file already" in note for note in third.notes)


def test_an_import_of_an_earlier_version_is_found_by_the_hash_of_the_file(tmp_path: Path) -> None:
    lines = gzip.decompress(real_file(LOBSTER).read_bytes()).decode().splitlines()[:50]
    packed = tmp_path / "AAPL_2012-06-21_message_50.csv.gz"
    packed.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    (first,) = import_into(tmp_path / "queue", "lobster", packed)
    (entry,) = (tmp_path / "queue").rglob(f"{first.entry.file_hash}.json")
    old = hashlib.blake2b(packed.read_bytes(), digest_size=32).hexdigest()
    entry.with_name(f"{old}.json").write_text(entry.read_text().replace(first.entry.file_hash, old))
    entry.unlink()
    (again,) = import_into(tmp_path / "queue", "lobster", packed)
    assert not again.imported
    (forced,) = import_into(tmp_path / "queue", "lobster", packed, force=True)
    assert forced.imported and len(messages_of(tmp_path / "queue")) == 50


def live_orders(count: int) -> list[dict[str, Any]]:
    """Adds of two instruments, a microsecond apart."""
    return [
        order(
            b"A",
            number + 1,
            price=4799_000000000,
            size=1,
            instrument_id=(17077, 42)[number % 2],
            ts_recv=START_NS + 1000 * (number // 2),
            sequence=number,
            flags=F_LAST,
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("repeat", [(10, 30), (0, 40), (38, 40)])
def test_a_repeated_block_of_dbn_records_is_refused_or_counted(
    tmp_path: Path, repeat: tuple[int, int]
) -> None:
    rows = live_orders(40)
    again = rows[slice(*repeat)]
    path = dbn_file(tmp_path, "mbo", mbo([*rows, *again]))
    latest = {row["instrument_id"]: row["ts_recv"] for row in rows}
    late = sum(row["ts_recv"] < latest[row["instrument_id"]] for row in again)
    if late:
        with pytest.raises(InvalidSource, match=r":41: ts_recv goes back: .*--allow-unordered"):
            import_into(tmp_path / "queue", "dbn", path)
        assert not (tmp_path / "queue").exists()
    blocks, tally = run_importer("dbn", [path], ALLOWED)
    assert (sum(map(len, blocks)), tally.unordered) == (40 + len(again), late)
    assert run_importer("dbn", [dbn_file(tmp_path, "mbo", mbo(rows))]).tally.unordered == 0


def test_an_add_that_equals_the_record_before_is_refused_and_a_trade_is_not(tmp_path: Path) -> None:
    rows = live_orders(6)
    path = dbn_file(tmp_path, "mbo", mbo([*rows, rows[-1]]))
    with pytest.raises(InvalidSource, match=":7: the order is added twice"):
        run_importer("dbn", [path])
    (result,) = import_into(tmp_path / "queue", "dbn", path, lenient=True)
    assert (result.entry.rows, result.entry.quarantined) == (6, 1)
    trade = order(b"T", 0, price=4799_000000000, size=1, ts_recv=START_NS + 10**6)
    twice = dbn_file(tmp_path, "mbo", mbo([*rows, trade, trade]))
    assert sum(map(len, run_importer("dbn", [twice]).blocks)) == 8, "two trades may be alike"


def test_snapshot_records_and_wrong_times_of_arrival_have_no_place_in_the_order(tmp_path: Path) -> None:
    rows = live_orders(6)
    old = {"ts_recv": START_NS - 5, "price": 4798_000000000, "size": 1}
    parts = [order(b"R", side=b"N", flags=F_SNAPSHOT), order(b"A", 90, flags=F_SNAPSHOT, **old)]
    marked = order(b"A", 91, flags=F_LAST | 8, **old)
    path = dbn_file(tmp_path, "mbo", mbo([*rows, *parts, marked, *parts]))
    assert run_importer("dbn", [path]).tally.rows == 11
    path = dbn_file(tmp_path, "mbo", mbo([*rows, *parts, order(b"A", 92, flags=F_SNAPSHOT, **old), parts[1]]))
    with pytest.raises(InvalidSource, match=":10: the order is added twice"):
        run_importer("dbn", [path])


def test_a_repeated_block_of_the_real_dbn_snapshot_is_refused(tmp_path: Path) -> None:
    with open_members(str(real_file("esh4-glbx-mdp3-20231224.mbo.dbn.zst"))) as (member,):
        data = b"".join(member.blocks())
    begin = 8 + int.from_bytes(data[4:8], "little")
    size = data[begin] * 4
    path = tmp_path / "day.dbn"
    path.write_bytes(data[: begin + 200 * size] + data[begin + 100 * size :])
    with pytest.raises(InvalidSource, match=":201: the order is added twice"):
        run_importer("dbn", [path])
    path.write_bytes(data)
    assert run_importer("dbn", [path]).tally.unordered == 0


def bybit_file(folder: Path, messages: list[tuple[str, int, int]]) -> Path:
    lines = [
        json.dumps(
            {
                "topic": "orderbook.500.XRPUSDT",
                "type": kind,
                "ts": ts,
                "data": {"s": "XRPUSDT", "b": [["1", str(number)]], "a": [], "u": number},
            }
        )
        for kind, number, ts in messages
    ]
    path = folder / "2024-12-01_XRPUSDT_ob500.data"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_repeated_bybit_messages_are_refused_or_counted(tmp_path: Path) -> None:
    day = [("snapshot", 5, 100), *(("delta", number, 100 + number) for number in range(6, 20))]
    path = bybit_file(tmp_path, day[:10] + day[4:])
    with pytest.raises(InvalidSource, match=r":11: update id 9 follows 14: .*--allow-unordered"):
        import_into(tmp_path / "queue", "bybit", path)
    assert not (tmp_path / "queue").exists()
    blocks, tally = run_importer("bybit", [path], ALLOWED)
    assert (sum(map(len, blocks)), tally.unordered, tally.gaps) == (21, 6, 0)
    (result,) = import_into(tmp_path / "queue", "bybit", path, lenient=True)
    assert (result.entry.rows, result.entry.quarantined) == (15, 6)
    assert run_importer("bybit", [bybit_file(tmp_path, day)]).tally.unordered == 0


@pytest.mark.parametrize(
    ("snapshot", "is_refused"),
    [(("snapshot", 5, 100), True), (("snapshot", 7, 300), False), (("snapshot", 1, 50), False)],
    ids=["the same again", "sent again later", "a restart of the service"],
)
def test_a_second_bybit_snapshot_is_a_repetition_only_if_it_is_not_later(
    tmp_path: Path, snapshot: tuple[str, int, int], is_refused: bool
) -> None:
    path = bybit_file(tmp_path, [("snapshot", 5, 100), ("delta", 6, 101), ("delta", 7, 102), snapshot])
    if is_refused:
        with pytest.raises(InvalidSource, match=":4: update id 5 follows 7"):
            run_importer("bybit", [path])
    else:
        assert run_importer("bybit", [path]).tally.rows == 4


def test_a_repeated_block_of_the_real_bybit_file_is_refused(tmp_path: Path) -> None:
    with open_members(str(real_file("xrpusdt-ob500.data.zip"))) as (member,):
        lines = b"".join(member.blocks()).splitlines()
    path = tmp_path / "2024-12-01_XRPUSDT_ob500.data"
    path.write_bytes(b"\n".join(lines[:30] + lines[20:]) + b"\n")
    with pytest.raises(InvalidSource, match=":31: update id"):
        run_importer("bybit", [path])
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert run_importer("bybit", [path]).tally.unordered == 0
