"""Rows out of order, repeated, or with digits that cannot be kept; failed imports; what views say of it."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from everlog.cli.main import app
from everlog.errors import InvalidSource
from everlog.market.importing import ImportRequest, import_files
from everlog.market.protocol import BookEventType, TypeId
from everlog.market.venues.interface import ImportOptions
from everlog.queue import Queue
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
