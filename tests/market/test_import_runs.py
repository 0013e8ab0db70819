"""Files that were imported in another order than that of time: replays take them in the order of time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from everlog.market import BookSettings
from everlog.market.feature_choice import parse_features
from everlog.market.merge import merge
from everlog.market.protocol import TypeId
from everlog.market.replay import Replay
from everlog.market.venues.interface import ImportOptions
from everlog.market.venues.simulated import SimulatedVenue
from everlog.market.warm_start import books_at
from everlog.queue import Queue
from tests.market.venues.tardis_files import write_tardis_files
from tests.support.import_runs import import_into

SETTINGS = BookSettings(gap_policy="quarantine")


def day_files(folder: Path, start_ns: int, seed: int = 3) -> tuple[Path, Path]:
    """A book file and a file of trades that begin at a time."""
    folder.mkdir(parents=True)
    venue = SimulatedVenue(1, seed=seed, rate=1000, start_ns=start_ns, kinds=["l2", "trades"])
    return write_tardis_files(venue, 3000, folder)


def queue_of(path: Path, *files: tuple[str, Path]) -> Path:
    for kind, file in files:
        import_into(path, kind, file, options=ImportOptions(date="2024-01-02"))
    return path


def table(replays: Sequence[Replay], names: str = "time,best,trades,ofi") -> NDArray[np.void]:
    """Everything but the seq: the same events have other numbers in another queue."""
    features = replays[0].features(parse_features(names), SETTINGS).also(*replays[1:])
    return np.concatenate([one.rows for one in features.tables()])


def messages(replay: Replay) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The seqs and times of a replay."""
    parts = [(some.seq.copy(), some.timestamp_ns.astype(np.int64)) for some in replay.batches()]
    seqs, times = zip(*parts, strict=True)
    return np.concatenate(seqs), np.concatenate(times)


def span_of(path: Path) -> tuple[int, int]:
    _, times = messages(Replay(str(path)))
    return int(times.min()), int(times.max())


@pytest.fixture
def days(tmp_path: Path) -> tuple[Path, Path, Path, Path]:
    """The book and the trades of two days."""
    first, second = (day_files(tmp_path / f"day{n}", n * 86_400 * 10**9) for n in (1, 2))
    return *first, *second


def test_trades_imported_behind_the_book_stand_beside_the_book_of_their_time(
    tmp_path: Path, days: tuple[Path, Path, Path, Path]
) -> None:
    book, trades = ("tardis-book", days[0]), ("tardis-trades", days[1])
    apart = [Replay(str(queue_of(tmp_path / str(n), one))) for n, one in enumerate((book, trades))]
    together = Replay(str(queue_of(tmp_path / "both", book, trades)))
    expected = table(apart)
    assert expected["trades"].sum() > 100
    np.testing.assert_array_equal(table([together]), expected)


def test_days_imported_in_any_order_give_the_features_of_those_imported_in_order(
    tmp_path: Path, days: tuple[Path, Path, Path, Path]
) -> None:
    kinds = ("tardis-book", "tardis-trades") * 2
    files = list(zip(kinds, days, strict=True))
    first_ns, last_ns = span_of(queue_of(tmp_path / "first", *files[:2]))
    in_order = Replay(str(queue_of(tmp_path / "in_order", files[0], files[1], files[2], files[3])))
    reversed_ = Replay(str(queue_of(tmp_path / "reversed", files[3], files[2], files[0], files[1])))
    assert (len(in_order.runs()), len(reversed_.runs())) == (3, 4)
    np.testing.assert_array_equal(table([reversed_]), table([in_order]))
    middle_ns = (first_ns + last_ns) // 2
    for start_ns, end_ns in ((first_ns, middle_ns), (middle_ns, last_ns + 86_400 * 10**9), (last_ns, 2**63)):
        expected = table([in_order.between(start_ns, end_ns)])
        assert len(expected)
        np.testing.assert_array_equal(table([reversed_.between(start_ns, end_ns)]), expected)
    keys = np.concatenate([batch.timestamp_ns for batch in merge([reversed_])])
    assert (np.diff(keys.astype(np.int64)) >= 0).all(), "a merge is in the order of time"
    books = [books_at([one], middle_ns, SETTINGS) for one in (in_order, reversed_)]
    hashes = [[(m, b.book_hash()) for m, b in one.books.items()] for one in books if one is not None]
    assert len(hashes) == 2 and hashes[0] == hashes[1] != []


def test_a_time_range_has_the_messages_of_every_import(
    tmp_path: Path, days: tuple[Path, Path, Path, Path]
) -> None:
    files = (("tardis-book", days[2]), ("tardis-trades", days[1]), ("tardis-book", days[0]))
    path = queue_of(tmp_path / "queue", *files)
    seqs, times = messages(Replay(str(path)))
    for start_ns in np.quantile(times, [0.0, 0.2, 0.5, 0.9], method="lower").tolist():
        found, _ = messages(Replay(str(path)).between(start_ns, start_ns + 10**9))
        expected = seqs[(times >= start_ns) & (times < start_ns + 10**9)]
        np.testing.assert_array_equal(found, expected)


def test_a_time_range_of_rows_out_of_order_has_all_of_them(
    tmp_path: Path, days: tuple[Path, Path, Path, Path]
) -> None:
    head, *rows = days[1].read_text().splitlines()
    late = tmp_path / "simulated_trades_2024-01-02_SIM0000.csv"
    late.write_text("\n".join([head, *rows[100:], *rows[:100]]) + "\n")
    path = tmp_path / "queue"
    import_into(path, "tardis-trades", late, options=ImportOptions(allow_unordered=True))
    first_ns, _ = span_of(path)
    # A replay that ended with the first message behind the range would lack those that came too late.
    before = Replay(str(path)).between(first_ns, first_ns + 10**6)
    far = Replay(str(path), batch_messages=16).between(0, first_ns + 1)
    assert before.for_each(lambda some: None).written and far.for_each(lambda some: None).written


def test_a_copy_of_a_queue_is_in_the_order_of_time(
    tmp_path: Path, days: tuple[Path, Path, Path, Path]
) -> None:
    path = queue_of(tmp_path / "queue", ("tardis-book", days[2]), ("tardis-book", days[0]))
    done = Replay(str(path)).to_queue(str(tmp_path / "copy"))
    _, times = messages(Replay(str(tmp_path / "copy")))
    assert done.written == done.read == len(times)
    assert (np.diff(times) >= 0).all()


def test_books_that_begin_behind_a_batch_of_other_messages_are_whole(tmp_path: Path) -> None:
    venue = SimulatedVenue(1, seed=5, rate=1000, kinds=["l3"])
    path = tmp_path / "queue"
    with Queue.open_publisher(path, segment_size=1 << 20) as writer:
        for _ in range(40):
            writer.append(TypeId.RAW_FRAME, b"x" * 16, timestamp_ns=1)
        for block in venue.blocks(500):
            block.append_to(writer)
    rows = [len(table([Replay(str(path), batch_messages=size)], "best")) for size in (8, 16384)]
    assert rows[0] == rows[1] > 0
