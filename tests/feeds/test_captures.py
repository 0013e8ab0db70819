"""Raw captures as imports: the same messages as the live feed writes, and what is left out is said."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import msgspec
import pytest

from everlog.errors import InvalidSource
from everlog.feeds.captures import IMPORTERS, Capture
from everlog.feeds.recordings import read_frames
from everlog.feeds.session import FeedSession
from everlog.feeds.venues import VENUES
from everlog.market.book_feed import BookFeed
from everlog.market.book_set import BookSet
from everlog.market.feature_choice import parse_features
from everlog.market.importing import ImportRequest, ImportResult, ImportRun
from everlog.market.replay import Replay
from everlog.market.symbols import load_symbols
from everlog.market.venues.interface import ImportOptions
from everlog.market.venues.sniffing import looks_like
from everlog.queue import Queue
from tests.support.import_runs import real_file

SPOT, USDM = "binance-spot-btcusdt-20240808.raw.gz", "binance-usdm-ethusdt-20240808.raw.gz"


def import_capture(queue: Path, path: Path, **options: object) -> ImportResult:
    (result,) = import_all(queue, path, **options)
    return result


def import_all(queue: Path, *paths: Path, **options: object) -> list[ImportResult]:
    request = ImportRequest(
        format="capture",
        paths=[str(path) for path in paths],
        queue=str(queue),
        options=ImportOptions(**options),  # type: ignore[arg-type]
    )
    return ImportRun(request, importers=IMPORTERS).run()


def diff(symbol: str, first: int, last: int, bid: str = "1.5") -> bytes:
    data = {"e": "depthUpdate", "E": last, "s": symbol, "U": first, "u": last, "b": [[bid, "2"]], "a": []}
    return msgspec.json.encode({"stream": f"{symbol.lower()}@depth@100ms", "data": data})


def rest(last: int) -> bytes:
    return msgspec.json.encode({"lastUpdateId": last, "bids": [["1.0", "1"]], "asks": [["2.0", "1"]]})


def capture_file(folder: Path, *frames: tuple[int, bytes]) -> Path:
    path = folder / "capture_2024-08-08.raw"
    path.write_bytes(b"".join(b"%d %s\n" % (10**18 + at, frame) for at, frame in frames))
    return path


@pytest.mark.parametrize(
    ("name", "venue", "symbol"), [(SPOT, "binance", "BTCUSDT"), (USDM, "binance-futures", "ETHUSDT")]
)
def test_a_real_capture_gives_what_the_live_feed_makes_of_its_frames(
    tmp_path: Path, name: str, venue: str, symbol: str
) -> None:
    path = real_file(name)
    with gzip.open(path) as file:
        lines = [next(file) for _ in range(3000)]
    short = tmp_path / "btc_2024-08-08.raw.gz"
    with gzip.open(short, "wb") as file:
        file.writelines(lines)
    session = FeedSession(VENUES[venue](), [symbol])
    session.connected(0, is_continued=False)
    wanted = []
    for one in read_frames(short):
        take = session.snapshot(symbol, one.body, one.received_ns) if one.kind == "rest" else None
        messages = session.frame(one.body, one.received_ns) if take is None else take
        wanted += [(kind, payload, flags, one.received_ns) for kind, payload, flags in messages]
    result = import_capture(tmp_path / "queue", short)
    with Queue.open_subscriber(tmp_path / "queue", None, "earliest") as reader:
        found = [(view.type_id, bytes(view), view.flags, view.timestamp_ns) for view in reader]
    assert found == wanted and len(found) > 1000
    assert (result.entry.venue, result.entry.symbol, result.entry.date) == (venue, symbol, "2024-08-08")
    assert result.entry.rows == 3000
    assert [row.exchange_symbol for row in load_symbols(tmp_path / "queue").versions] == [symbol]


def test_several_symbols_find_their_snapshots_by_update_id(tmp_path: Path) -> None:
    frames = [
        diff("AUSDT", 5, 9),
        diff("BUSDT", 100, 109),
        rest(7),
        rest(104),
        diff("AUSDT", 10, 11),
        rest(999),
    ]
    path = capture_file(tmp_path, *enumerate(frames))
    assert looks_like(path.read_bytes()) == "capture"
    result = import_capture(tmp_path / "queue", path)
    assert result.entry.symbol == "MULTI"
    assert any("1 answers of REST fit to none or several" in note for note in result.notes)
    with Queue.open_subscriber(tmp_path / "queue", None, "earliest") as reader:
        feed = BookFeed(reader, BookSet())
        while feed.advance() is not None:
            pass
    assert [book.best_bid for book in feed.books.books.values()].count(None) == 0
    assert len(feed.books.books) == 2
    result = import_capture(tmp_path / "one", path, symbol="AUSDT")
    assert any("frames of other symbols were left out" in note for note in result.notes)


def test_frames_that_are_missing_twice_or_unreadable_are_counted(tmp_path: Path) -> None:
    frames = [
        diff("AUSDT", 1, 4),
        diff("AUSDT", 5, 9),
        rest(7),
        diff("AUSDT", 5, 9),
        diff("AUSDT", 15, 16),
        b'{"stream":"a@depth"}',
    ]
    result = import_capture(tmp_path / "queue", capture_file(tmp_path, *enumerate(frames)))
    text = " ".join(result.notes)
    assert result.entry.gaps == 2
    assert "1 updates are older than the book of REST" in text
    assert "1 frames could not be decoded" in text and "1 updates and trades were there twice" in text


def test_lines_out_of_order_and_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = capture_file(tmp_path, (5, diff("AUSDT", 1, 2)), (4, rest(1)))
    with pytest.raises(InvalidSource, match=":2: the time goes back"):
        import_capture(tmp_path / "queue", path)
    assert import_capture(tmp_path / "queue", path, allow_unordered=True).entry.rows == 2
    path.write_bytes(path.read_bytes() + b"nonsense\n")
    with pytest.raises(InvalidSource, match=r":3: .*neither a frame nor a mark"):
        import_capture(tmp_path / "other", path, allow_unordered=True)


def test_answers_of_rest_in_a_file_of_their_own_belong_to_the_frames(tmp_path: Path) -> None:
    names = ("binance-spot-depth-20211012.frames.gz", "binance-spot-depth-20211012.snapshots.gz")
    frames, answers = map(real_file, names)
    okx = real_file("okx-books-20220513.frames.gz")
    (result,) = import_all(tmp_path / "queue", answers, frames)
    assert (result.entry.dropped_rows, result.entry.gaps, result.entry.date) == (0, 0, "2021-10-12")
    with zipfile.ZipFile(tmp_path / "both.zip", "w") as archive:
        for path in (frames, answers):
            archive.write(path, path.name)
    (zipped,) = import_all(tmp_path / "zipped", tmp_path / "both.zip")
    assert zipped.entry.groups == result.entry.groups > 250
    assert [one.imported for one in import_all(tmp_path / "queue", frames, answers)] == [False]
    # Of several files of frames, it is the one that is named like the answers.
    groups = Capture().groups([str(okx), str(answers), str(frames)])
    assert groups == [[str(okx)], [str(frames), str(answers)]]


def test_an_answer_of_rest_before_the_first_frame_begins_the_book(tmp_path: Path) -> None:
    path = capture_file(tmp_path, (0, rest(7)), (1, diff("AUSDT", 8, 9)), (2, diff("AUSDT", 10, 11)))
    result = import_capture(tmp_path / "queue", path)
    assert (result.entry.groups, result.entry.dropped_rows, result.notes) == (3, 0, ())
    unreadable = capture_file(tmp_path, (1, diff("AUSDT", 8, 9)), (2, b'{"lastUpdateId":"x"}'))
    result = import_capture(tmp_path / "other", unreadable)
    assert any("1 answers of REST could not be decoded" in note for note in result.notes)


def test_a_capture_without_a_book_says_that_an_older_one_stands(tmp_path: Path) -> None:
    path = capture_file(tmp_path, (0, rest(7)), (1, diff("AUSDT", 8, 9)))
    assert not import_capture(tmp_path / "queue", path).notes
    path.write_bytes(b"%d %s\n" % (2 * 10**18, diff("AUSDT", 100, 101)))
    notes = import_capture(tmp_path / "queue", path).notes
    assert any(
        "it has no book of AUSDT; in this queue that of an earlier import stands" in one for one in notes
    )
    assert not any("earlier import" in one for one in import_capture(tmp_path / "new", path).notes)


def test_times_that_no_queue_can_hold_are_refused(tmp_path: Path) -> None:
    path = capture_file(tmp_path, (0, rest(7)))
    path.write_bytes(b"99999999999999999999 %s\n" % rest(7))
    with pytest.raises(InvalidSource, match=":1: the line is neither a frame"):
        import_capture(tmp_path / "queue", path)
    assert not (tmp_path / "queue").exists()


def test_a_line_that_was_set_aside_ends_books_of_a_venue_without_numbers(tmp_path: Path) -> None:
    book = {"type": "snapshot", "product_id": "A-B", "bids": [["1", "1"]], "asks": [["2", "1"]]}
    change = {"type": "l2update", "product_id": "A-B", "changes": [["buy", "1.5", "1"]]}
    frames = [msgspec.json.encode(one) for one in (book, change)]
    path = tmp_path / "coinbase.raw"
    path.write_bytes(b"%d %s\nnonsense\n%d %s\n" % (10**18, frames[0], 10**18 + 5, frames[1]))
    request = ImportRequest(
        format="capture",
        paths=[str(path)],
        queue=str(tmp_path / "queue"),
        options=ImportOptions(venue="coinbase"),
        lenient=True,
    )
    (result,) = ImportRun(request, importers=IMPORTERS).run()
    entry = result.entry
    assert (entry.rows, entry.quarantined, entry.gaps, entry.dropped_rows) == (2, 1, 1, 1)
    with Queue.open_subscriber(tmp_path / "queue", None, "earliest") as reader:
        feed = BookFeed(reader, BookSet())
        while feed.advance() is not None:
            pass
    assert [one.best_bid for one in feed.books.books.values()] == [None]


def test_captures_of_two_days_give_the_same_rows_in_any_order_of_imports(tmp_path: Path) -> None:
    days = []
    for day in (1, 2):
        frames = [rest(7), diff("AUSDT", 8, 9, f"1.{day}"), diff("AUSDT", 10, 11, "1.7")]
        path = tmp_path / f"2024-08-0{day}.raw"
        path.write_bytes(b"".join(b"%d %s\n" % (day * 10**18 + at, one) for at, one in enumerate(frames)))
        days.append(path)
    rows = []
    for name, paths in (("forth", days), ("back", days[::-1])):
        for path in paths:
            import_capture(tmp_path / name, path)
        replay = Replay(str(tmp_path / name)).features(parse_features("time,best"))
        rows.append([row for part in replay.tables() for row in part.rows.tolist()])
    assert rows[0] == rows[1] and len(rows[0]) == 4


@pytest.mark.parametrize(
    ("name", "venue"),
    [
        ("kraken-book1000-20210417.frames.gz", "kraken"),
        ("okx-books-20220513.frames.gz", "okex"),
        ("coinbase-level2-20210417.frames.gz", "coinbase"),
        (SPOT, "binance"),
        (USDM, "binance-futures"),
    ],
)
def test_the_venue_of_a_recording_shows_in_its_frames(tmp_path: Path, name: str, venue: str) -> None:
    with gzip.open(real_file(name)) as file:
        lines = [next(file) for _ in range(60)]
    path = tmp_path / "recording.frames"
    path.write_bytes(b"".join(lines))
    result = import_capture(tmp_path / "queue", path)
    assert result.entry.venue == venue and result.entry.groups > 0


def test_frames_that_no_venue_understands_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.frames"
    path.write_bytes(b'1618678132.8: {"a":1}\n')
    with pytest.raises(InvalidSource, match=r"its first frames hold no market data of binance, .*--venue"):
        import_capture(tmp_path / "queue", path)
    with pytest.raises(InvalidSource, match="holds no market data of kraken; is --venue right"):
        import_capture(tmp_path / "queue", path, venue="kraken")
    with pytest.raises(InvalidSource, match="holds no frame of 'NOPE' of binance"):
        import_capture(tmp_path / "queue", capture_file(tmp_path, (1, diff("AUSDT", 8, 9))), symbol="NOPE")
    assert not (tmp_path / "queue").exists()


def test_best_levels_that_are_sent_again_and_again_are_no_diffs(tmp_path: Path) -> None:
    partial = diff("AUSDT", 10, 11, "1.9").replace(b"ausdt@depth@", b"ausdt@depth20@")
    path = capture_file(tmp_path, (0, rest(7)), (1, diff("AUSDT", 8, 9)), (2, partial))
    result = import_capture(tmp_path / "queue", path)
    assert (result.entry.rows, result.entry.groups, result.entry.gaps) == (3, 2, 0)
