"""Imports as a whole: once each, again with force, and nothing half done whatever happens."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from everlog.errors import BookGap, InvalidConfig, InvalidSource, Io, Unsupported, WriterAlreadyActive
from everlog.fs import OsFs
from everlog.market.book_feed import BookFeed
from everlog.market.book_set import BookSet, BookSettings
from everlog.market.importing import ImportRequest, ImportRun
from everlog.market.ledger import BegunEntry, Ledger
from everlog.market.removal import NEW_SUFFIX, OLD_SUFFIX
from everlog.market.sequences import SequenceValidator
from everlog.market.venues import archives, csv_blocks
from everlog.market.venues.archives import open_members
from everlog.market.venues.interface import ImportOptions
from everlog.queue import Message, Queue
from tests.support.import_runs import import_into, messages_of, small_archive, write_archive

LEDGER_KEYS = {
    "source_path",
    "file_hash",
    "rows",
    "groups",
    "segments",
    "min_ts_ns",
    "max_ts_ns",
    "imported_at_ns",
    "venue",
    "symbol",
    "date",
    "stream",
}


def lobster_file(folder: Path, rows: int, *, symbol: str = "AAPL", bad_row: int | None = None) -> Path:
    """A LOBSTER file with `rows` new orders."""
    path = folder / f"{symbol}_2012-06-21_message_1.csv"
    lines = [f"34200.{n:09d},1,{n + 1},100,5850000,1" for n in range(rows)]
    if bad_row is not None:
        lines[bad_row] = "oops"
    path.write_text("\n".join(lines) + "\n")
    return path


def bodies(messages: list[Message]) -> list[tuple[int, int, bytes]]:
    """What readers see of messages, apart from seq."""
    return [(message.type_id, message.timestamp_ns, bytes(message.payload)) for message in messages]


def test_a_file_is_imported_once_and_its_numbers_are_remembered(tmp_path: Path) -> None:
    path, queue = lobster_file(tmp_path, 50), tmp_path / "queue"
    (first,) = import_into(queue, "lobster", path)
    before = messages_of(queue)
    (second,) = import_into(queue, "lobster", path)
    assert (first.imported, second.imported) == (True, False)
    assert first.entry == second.entry
    assert messages_of(queue) == before
    ledger = queue / "imports" / "v1" / "lobster" / f"{first.entry.file_hash}.json"
    stored = json.loads(ledger.read_text())
    assert set(stored) >= LEDGER_KEYS
    assert (stored["rows"], stored["groups"], stored["symbol"]) == (50, 50, "AAPL")
    assert (stored["min_ts_ns"], stored["max_ts_ns"]) == (before[0].timestamp_ns, before[-1].timestamp_ns)


def test_another_name_for_the_same_bytes_is_the_same_file(tmp_path: Path) -> None:
    path, queue = lobster_file(tmp_path, 5), tmp_path / "queue"
    import_into(queue, "lobster", path)
    copy = tmp_path / "copy_2012-06-22_x.csv"
    copy.write_bytes(path.read_bytes())
    (again,) = import_into(queue, "lobster", copy)
    assert not again.imported


def test_other_options_are_noted_when_nothing_is_imported(tmp_path: Path) -> None:
    path, queue = lobster_file(tmp_path, 5), tmp_path / "queue"
    import_into(queue, "lobster", path)
    (again,) = import_into(queue, "lobster", path, options=ImportOptions(symbol="MSFT"))
    assert not again.imported and "--force" in again.notes[0]


def test_force_replaces_the_earlier_events_and_leaves_the_others_alone(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    files = [lobster_file(tmp_path, 30 + n, symbol=f"S{n}") for n in range(3)]
    import_into(queue, "lobster", *files)
    parts = bodies(messages_of(queue))
    first, second, third = parts[:30], parts[30:61], parts[61:]
    (forced,) = import_into(queue, "lobster", files[1], force=True)
    found = messages_of(queue)
    assert bodies(found) == first + third + second
    assert [message.seq for message in found] == list(range(93))
    entries = {entry.symbol: entry for entry in Ledger(OsFs(), str(queue)).all_finished()}
    assert {name: (entry.first_seq, entry.end_seq) for name, entry in entries.items()} == {
        "S0": (0, 30),
        "S2": (30, 62),
        "S1": (62, 93),
    }
    assert entries["S1"] == forced.entry
    assert sorted(os.listdir(tmp_path)) == sorted(["queue", *(file.name for file in files)])


def test_force_works_again_and_again(tmp_path: Path) -> None:
    path, queue = lobster_file(tmp_path, 20), tmp_path / "queue"
    for _ in range(3):
        import_into(queue, "lobster", path, force=True)
    assert len(messages_of(queue)) == 20


def test_a_failed_import_leaves_nothing_behind(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    import_into(queue, "lobster", lobster_file(tmp_path, 10, symbol="GOOD"))
    before = bodies(messages_of(queue))
    bad = lobster_file(tmp_path, 40_000, symbol="BAD", bad_row=39_999)
    with pytest.raises(InvalidSource, match=r"BAD_2012-06-21_message_1\.csv:40000: the row has another"):
        import_into(queue, "lobster", bad)
    assert bodies(messages_of(queue)) == before
    endless = tmp_path / f"{bad.name}.endless"
    endless.write_bytes(bad.read_bytes() + b"1" * (2 * archives.LINE_BYTES_MAX))
    for place in (queue, tmp_path / "new"):
        with pytest.raises(InvalidSource, match="is it text"):
            import_into(place, "lobster", endless, lenient=True)
    assert bodies(messages_of(queue)) == before
    assert not list((queue / "imports").rglob("*.begun.json"))
    assert not list((queue / "imports").rglob("*.csv")) and not (tmp_path / "new").exists()
    (result,) = import_into(queue, "lobster", bad, lenient=True)
    assert (result.entry.rows, result.entry.quarantined) == (39_999, 1)
    assert result.quarantine_path is not None
    assert "oops" in Path(result.quarantine_path).read_text()
    assert len(messages_of(queue)) == 10 + 39_999


@pytest.mark.parametrize("policy", ["panic", "quarantine"])
def test_rows_that_were_set_aside_stop_no_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr(csv_blocks, "BLOCK_BYTES", 3000)
    path, queue = lobster_file(tmp_path, 1000), tmp_path / "queue"
    lines = path.read_text().splitlines()
    lines[::7] = ["oops"] * len(lines[::7])  # also the first and the last of blocks
    path.write_text("\n".join(lines) + "\n")
    (result,) = import_into(queue, "lobster", path, lenient=True)
    assert result.entry.quarantined == 143
    assert [note for note in result.notes if "behind the bad rows that were set aside (143)" in note]
    with Queue.open_subscriber(queue, None, "earliest") as reader:
        feed = BookFeed(reader, BookSet(BookSettings(gap_policy=policy)))
        while feed.advance() is not None:
            pass
    (book,) = feed.books.books.values()
    assert len(book.orders()) == 1000 - 143
    assert not any(feed.gaps.values()) and not any(feed.skipped.values())


def test_a_hole_in_the_numbers_that_nobody_allowed_names_the_option() -> None:
    numbers = SequenceValidator()
    numbers.check(1)
    with pytest.raises(BookGap, match=r"choose gap policy quarantine or ignore \(--gaps\)"):
        numbers.check(3)


KILLED = """
import os, signal, sys
from everlog.market.book_feed import BookFeed
from everlog.market.book_set import BookSet, BookSettings
from everlog.market.importing import ImportRequest, ImportRun
from everlog.market.venues.interface import EventBlock
append = EventBlock.append_to
def append_and_die(block, writer):
    append(block, writer)
    os.kill(os.getpid(), signal.SIGKILL)
EventBlock.append_to = append_and_die
ImportRun(ImportRequest(format="lobster", paths=[sys.argv[1]], queue=sys.argv[2])).run()
"""


def test_a_killed_import_is_redone_from_the_start_by_the_next(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    import_into(queue, "lobster", lobster_file(tmp_path, 10, symbol="GOOD"))
    before = bodies(messages_of(queue))
    path = lobster_file(tmp_path, 100)
    killed = subprocess.run([sys.executable, "-c", KILLED, path, queue], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(messages_of(queue)) == 110, "it was killed after it had written events"
    (result,) = import_into(queue, "lobster", path)
    assert result.imported
    found = bodies(messages_of(queue))
    assert found[:10] == before
    assert len(found) == 110
    assert import_into(queue, "lobster", path)[0].imported is False


KILLED_WHILE_REMOVING = """
import os, signal, sys
from everlog.market import removal
from everlog.market.book_feed import BookFeed
from everlog.market.book_set import BookSet, BookSettings
from everlog.market.importing import ImportRequest, ImportRun
removal._copy_the_rest = lambda queue, new: os.kill(os.getpid(), signal.SIGKILL)
ImportRun(ImportRequest(format="lobster", paths=[sys.argv[1]], queue=sys.argv[2], force=True)).run()
"""


def test_a_removal_that_is_killed_too_is_redone_by_the_next_import(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    import_into(queue, "lobster", lobster_file(tmp_path, 10, symbol="GOOD"))
    path = lobster_file(tmp_path, 100)
    for program in (KILLED, KILLED_WHILE_REMOVING, KILLED_WHILE_REMOVING):
        killed = subprocess.run([sys.executable, "-c", program, path, queue], check=False)
        assert killed.returncode == -signal.SIGKILL
    (result,) = import_into(queue, "lobster", path)
    assert result.imported and len(messages_of(queue)) == 110


def test_any_later_import_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    subprocess.run([sys.executable, "-c", KILLED, lobster_file(tmp_path, 100), queue], check=False)
    import_into(queue, "lobster", lobster_file(tmp_path, 7, symbol="OTHER"))
    assert len(messages_of(queue)) == 7


def test_events_of_a_killed_import_that_cannot_be_told_apart_are_not_touched(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    path = lobster_file(tmp_path, 100)
    subprocess.run([sys.executable, "-c", KILLED, path, queue], check=False)
    with Queue.open_publisher(queue, small_archive()) as writer:
        writer.append(1, b"of another program")
    with pytest.raises(Unsupported, match="another writer has used the queue since"):
        import_into(queue, "lobster", path)
    assert len(messages_of(queue)) == 101


def test_an_import_killed_after_its_ledger_entry_is_complete(tmp_path: Path) -> None:
    path, queue = lobster_file(tmp_path, 5), tmp_path / "queue"
    (result,) = import_into(queue, "lobster", path)
    ledger = Ledger(OsFs(), str(queue))
    ledger.begin(
        BegunEntry(
            format="lobster",
            source_path=str(path),
            file_hash=result.entry.file_hash,
            first_seq=0,
            writer_epoch=1,
            begun_at_ns=1,
        )
    )
    assert import_into(queue, "lobster", path)[0].imported is False
    assert len(messages_of(queue)) == 5
    assert ledger.begun() == []


@pytest.mark.parametrize("moved", [False, True])
def test_a_rewriting_that_was_interrupted_is_settled_by_the_next_import(tmp_path: Path, moved: bool) -> None:
    path, queue = lobster_file(tmp_path, 5), tmp_path / "queue"
    import_into(queue, "lobster", path)
    new, old = Path(f"{queue}{NEW_SUFFIX}"), Path(f"{queue}{OLD_SUFFIX}")
    if moved:
        queue.rename(new)
        old.mkdir()
    else:
        new.mkdir()
    assert import_into(queue, "lobster", path)[0].imported is False
    assert len(messages_of(queue)) == 5
    assert not new.exists() and not old.exists()


def test_a_queue_with_an_open_writer_is_left_alone(tmp_path: Path) -> None:
    path, queue = lobster_file(tmp_path, 5), tmp_path / "queue"
    with Queue.open_publisher(queue, small_archive()), pytest.raises(WriterAlreadyActive):
        import_into(queue, "lobster", path)
    assert messages_of(queue) == []


def test_compressed_files_are_read_as_they_are(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    plain = lobster_file(tmp_path, 2000)
    data = plain.read_bytes()
    (tmp_path / f"{plain.name}.gz").write_bytes(gzip.compress(data[:900]) + gzip.compress(data[900:]))
    compress = zstandard.ZstdCompressor().compress
    (tmp_path / f"{plain.name}.zst").write_bytes(compress(data[:900]) + compress(data[900:]))
    for suffix in (".zip", ".7z"):
        write_archive(tmp_path / f"AAPL_2012-06-21_x{suffix}", [plain])
    import_into(tmp_path / "queue", "lobster", plain)
    expected = bodies(messages_of(tmp_path / "queue"))
    for name in (f"{plain.name}.gz", f"{plain.name}.zst", "AAPL_2012-06-21_x.zip", "AAPL_2012-06-21_x.7z"):
        import_into(tmp_path / name.replace(".", "-"), "lobster", tmp_path / name)
        assert bodies(messages_of(tmp_path / name.replace(".", "-"))) == expected


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_a_byte_order_mark_and_the_ends_of_lines_change_no_event(tmp_path: Path, ending: bytes) -> None:
    path = lobster_file(tmp_path, 20)
    import_into(tmp_path / "plain", "lobster", path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", ending))
    import_into(tmp_path / "marked", "lobster", path)
    assert bodies(messages_of(tmp_path / "marked")) == bodies(messages_of(tmp_path / "plain"))


def test_what_a_7z_was_unpacked_to_is_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = tmp_path / "room"
    room.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(room))
    path = tmp_path / "AAPL_2012-06-21_x.7z"
    write_archive(path, [lobster_file(tmp_path, 20)])
    with open_members(str(path)) as members:
        assert [member.name for member in members] == ["AAPL_2012-06-21_message_1.csv"]
        assert list(room.iterdir())
        assert members[0].read(10) + members[0].read() == (tmp_path / members[0].name).read_bytes()
    assert list(room.iterdir()) == []


def test_a_7z_that_would_fill_the_disk_is_refused_and_nothing_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = tmp_path / "room"
    room.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(room))
    zeros, path = tmp_path / "zeros.csv", tmp_path / "zeros.7z"
    zeros.write_bytes(bytes(20_000_000))
    write_archive(path, [zeros])

    def unpack() -> None:
        with open_members(str(path)):
            pass

    with pytest.raises(InvalidSource, match="would become 20000000, more than 1000 times"):
        unpack()
    monkeypatch.setattr(archives, "SEVEN_ZIP_RATIO_MAX", 1 << 40)
    usage = shutil.disk_usage(room)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=39_999_999))
    with pytest.raises(InvalidSource, match="has 39999999 free"):
        unpack()
    monkeypatch.setattr(archives, "SEVEN_ZIP_FILES_MAX", 0)
    with pytest.raises(InvalidSource, match="has 1 files"):
        unpack()
    assert list(room.iterdir()) == []


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".zip", ".7z"])
def test_a_compressed_file_that_was_cut_off_is_refused(tmp_path: Path, suffix: str) -> None:
    zstandard = pytest.importorskip("zstandard")
    plain = lobster_file(tmp_path, 2000)
    path = tmp_path / (plain.name + suffix)
    if suffix in (".zip", ".7z"):
        write_archive(path, [plain])
    else:
        whole = plain.read_bytes()
        path.write_bytes(
            gzip.compress(whole) if suffix == ".gz" else zstandard.ZstdCompressor().compress(whole)
        )
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InvalidSource, match=r"damaged or cut off|ends in the middle"):
        import_into(tmp_path / "queue", "lobster", path)
    assert not (tmp_path / "queue").exists()


def test_a_missing_file_and_an_unknown_format_are_named(tmp_path: Path) -> None:
    with pytest.raises(Io, match=r"nowhere\.csv"):
        import_into(tmp_path / "queue", "lobster", tmp_path / "nowhere.csv")
    with pytest.raises(InvalidConfig, match=r"tardis-book, tardis-trades, .*szse, dbn, lobster"):
        ImportRun(ImportRequest(format="parchment", paths=[], queue=str(tmp_path)))
