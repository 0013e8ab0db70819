"""What venues do differently: places in queues, runs of snapshots, days, events of several messages; and
where a book may begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from everlog.market.book_feed import BookFeed
from everlog.market.book_results import Outputs
from everlog.market.book_set import BookSet, BookSettings, Market
from everlog.market.books import L3Book
from everlog.market.feature_rows import GlobalTime, mid_price
from everlog.market.protocol import BookEventType, MessageFlags, TypeId, crypto_market_id
from everlog.market.replay import Replay
from everlog.market.triggers import Always, EveryMessage, Trigger
from everlog.market.venues.interface import ImportOptions
from everlog.market.venues.szse import in_continuous_trading
from everlog.queue import Queue
from tests.market.venues.dbn_files import F_LAST, F_SNAPSHOT, dbn_file, mbo, order
from tests.market.venues.szse_day import SzseDay
from tests.support.book_twins import L3Row, l2_record, l3_records
from tests.support.import_runs import import_into, messages_of, packed, real_file

ES = Market(5, crypto_market_id("ESH4"))
PRICE = 4800 * 10**9
CME, SZSE = 5, 2
MODIFY = 3


def book_of(queue: Path, market: Market, settings: BookSettings | None = None) -> L3Book:
    books = BookSet(settings)
    books.apply_packed(packed([message.payload for message in messages_of(queue)]))
    book = books.books[market]
    assert isinstance(book, L3Book)
    return book


def queue_after(venue: int, *changes: tuple[int, int, int], **settings: Any) -> list[int]:
    """The ids at price 100 after orders 1, 2, 3 of size 10 there, and modifies of (id, price, size)."""
    rows: list[L3Row] = [(1, 1, number, 0, 0, 100, 10, 0) for number in (1, 2, 3)]
    rows += [(MODIFY, 1, number, 0, 0, price, size, 0) for number, price, size in changes]
    records = l3_records(rows)
    records["header"]["venue_id"] = venue
    whole, single = L3Book(**settings), L3Book(**settings)
    whole.apply_array(records)
    for record in records:
        single.apply(record.tobytes())
    assert whole.queue(1, 100) == single.queue(1, 100)
    return whole.queue(1, 100)


# --- Places in queues ------------------------------------------------------------------------------------


def test_a_larger_order_goes_to_the_back_at_cme_and_stays_at_szse() -> None:
    assert queue_after(CME, (1, 100, 11)) == [2, 3, 1]
    assert queue_after(SZSE, (1, 100, 11)) == [1, 2, 3]
    assert queue_after(CME, (1, 100, 9)) == [1, 2, 3]
    assert queue_after(CME, (1, 100, 10)) == [1, 2, 3]
    for venue in (CME, SZSE):
        assert queue_after(venue, (1, 99, 5), (1, 100, 5)) == [2, 3, 1]


def test_one_rule_may_be_chosen_for_all_venues() -> None:
    assert queue_after(SZSE, (1, 100, 11), priority="lose_on_increase") == [2, 3, 1]
    assert queue_after(CME, (1, 100, 11), priority="keep") == [1, 2, 3]


def test_a_dbn_file_of_cme_follows_the_rule_of_cme(tmp_path: Path) -> None:
    rows = [order(b"A", number, b"B", PRICE, 10, flags=F_LAST) for number in (1, 2, 3)]
    rows += [order(b"M", 1, b"B", PRICE, 11, flags=F_LAST), order(b"M", 2, b"B", PRICE, 4, flags=F_LAST)]
    import_into(tmp_path / "queue", "dbn", dbn_file(tmp_path, "mbo", mbo(rows)))
    assert book_of(tmp_path / "queue", ES).queue(1, PRICE) == [2, 3, 1]


# --- Snapshot runs and days ------------------------------------------------------------------------------


def test_a_day_that_opens_with_a_snapshot_leaves_no_order_of_the_day_before(tmp_path: Path) -> None:
    import_into(tmp_path / "queue", "dbn", real_file("esh4-glbx-mdp3-20231224.mbo.dbn.zst"))
    snapshot = [order(b"A", number, b"B", PRICE, number, flags=F_SNAPSHOT) for number in (1, 2)]
    snapshot[-1]["flags"] |= F_LAST
    other = [order(b"A", 9, b"B", PRICE, 1, instrument_id=42, flags=F_LAST)]
    later = [order(b"A", 3, b"B", PRICE, 3, flags=F_LAST), order(b"A", 4, b"B", PRICE, 4, flags=F_LAST)]
    second = dbn_file(tmp_path, "mbo", mbo(snapshot[:1] + other + snapshot[1:] + later))
    import_into(tmp_path / "queue", "dbn", second)
    book = book_of(tmp_path / "queue", ES)
    assert book.queue(1, PRICE) == [1, 2, 3, 4]
    assert book.order_count == 4
    assert book_of(tmp_path / "queue", Market(5, crypto_market_id("NQH4"))).order_count == 1


def test_a_second_snapshot_within_a_file_begins_anew_too(tmp_path: Path) -> None:
    runs = [
        [order(b"A", number + add, b"B", PRICE, 1, flags=F_SNAPSHOT) for add in (0, 1)] for number in (1, 5)
    ]
    between = [order(b"A", 3, b"B", PRICE, 1, flags=F_LAST)]
    import_into(tmp_path / "queue", "dbn", dbn_file(tmp_path, "mbo", mbo(runs[0] + between + runs[1])))
    assert book_of(tmp_path / "queue", ES).queue(1, PRICE) == [5, 6]


@pytest.mark.parametrize("full_channel", [True, False])
def test_two_days_of_szse_in_one_queue_give_the_books_of_the_second(
    tmp_path: Path, full_channel: bool
) -> None:
    channels = {2011: ("000001", "000002")}
    for number, date in enumerate(("20240102", "20240103")):
        day = SzseDay(channels, seed=number, orders_per_symbol=150, date=date)
        paths = [Path(path) for path in day.write(str(tmp_path / date))]
        options = ImportOptions(full_channel=full_channel)
        import_into(tmp_path / "queue", "szse", *paths, options=options)
    for symbol, truth in day.truth.items():
        book = book_of(tmp_path / "queue", Market(SZSE, int(symbol)))
        found = {int(row["order_id"]): int(row["qty"]) for row in book.orders()}
        assert found == {number: one.rest for number, one in truth.orders.items()}


def test_files_of_one_symbol_have_gaps_by_nature_and_full_channels_have_not(tmp_path: Path) -> None:
    day = SzseDay({2011: ("000001", "000002")}, orders_per_symbol=100)
    paths = [Path(path) for path in day.write(str(tmp_path / "files")) if "000001" in path]
    import_into(tmp_path / "queue", "szse", *paths)
    payloads = [message.payload for message in messages_of(tmp_path / "queue")]
    books = BookSet()
    books.apply_packed(packed(payloads))
    assert not books.channel_gaps
    single = L3Book()
    for payload in payloads:
        single.apply(payload)
    book = books.books[Market(SZSE, 1)]
    assert isinstance(book, L3Book) and book.order_count == single.order_count


# --- Events of several messages --------------------------------------------------------------------------


def rows_of(queue: Path, trigger: Trigger, settings: BookSettings | None = None) -> NDArray[np.void]:
    replay = Replay(str(queue)).features([GlobalTime(), mid_price()], settings).trigger(trigger)
    return np.concatenate([table.rows for table in replay.tables()])


def test_no_szse_event_of_continuous_trading_ends_with_a_crossed_book(tmp_path: Path) -> None:
    day = SzseDay({2011: ("000001", "000002"), 2013: ("300750",)}, orders_per_symbol=600)
    paths = [Path(path) for path in day.write(str(tmp_path / "files"))]
    import_into(tmp_path / "queue", "szse", *paths, options=ImportOptions(full_channel=True))
    messages = messages_of(tmp_path / "queue")
    results = BookSet().apply_packed(packed([one.payload for one in messages]), Outputs())
    stamps = np.array([message.timestamp_ns for message in messages], dtype=np.uint64)
    with Queue.open_subscriber(tmp_path / "queue", None, "earliest") as reader:
        is_last = np.array([bool(view.flags & MessageFlags.LAST_OF_EVENT) for view in reader])
    crossed_between = 0
    for events, result in results.values():
        assert result.top is not None
        both = (result.top["bid_size"] > 0) & (result.top["ask_size"] > 0)
        crossed = both & (result.top["bid_price"] >= result.top["ask_price"])
        crossed &= in_continuous_trading(stamps[events])
        crossed_between += int(crossed.sum())
        assert not (crossed & is_last[events]).any()
    assert crossed_between > 100, "orders that meet others are crossed until their trades have come"
    trades = sum(truth.trades for truth in day.truth.values())
    assert len(messages) - is_last.sum() > trades / 2
    assert len(rows_of(tmp_path / "queue", Always())) == is_last.sum()
    assert len(rows_of(tmp_path / "queue", EveryMessage(Always()))) == len(messages)


# --- Where a book may begin ------------------------------------------------------------------------------


def write_levels(path: Path, *payloads: bytes) -> None:
    with Queue.open_publisher(path, segment_size=1 << 16) as writer:
        for stamp, payload in enumerate(payloads, start=1):
            writer.append(TypeId.BOOK_EVENT, payload, timestamp_ns=stamp)


def level_events() -> list[bytes]:
    """A snapshot at 1 ns, diffs of update ids 2 to 6, then another snapshot and diff, at 7 and 8 ns."""
    events = [l2_record(BookEventType.SNAPSHOT, [(100, 1)], [(110, 1)], native_seq=1, times_ns=(1, 1))]
    for number in range(2, 7):
        events.append(
            l2_record(
                BookEventType.DIFF,
                [(100 + number, 1)],
                [],
                ids=(number, number, number - 1),
                times_ns=(number, number),
            )
        )
    events.append(l2_record(BookEventType.SNAPSHOT, [(90, 1)], [(92, 1)], native_seq=7, times_ns=(7, 7)))
    events.append(l2_record(BookEventType.DIFF, [], [(91, 1)], ids=(8, 8, 7), times_ns=(8, 8)))
    return events


def mids(replay: Replay, settings: BookSettings | None = None) -> list[tuple[int, float]]:
    chosen = [GlobalTime(), mid_price()]
    tables = [table.rows for table in replay.features(chosen, settings).tables()]
    return [(int(row["ingest_ts_ns"]), float(row["mid_price"])) for rows in tables for row in rows]


def test_a_time_range_has_the_books_of_all_events_before_it(tmp_path: Path) -> None:
    write_levels(tmp_path / "queue", *level_events())
    whole = mids(Replay(str(tmp_path / "queue")))
    assert whole[:3] == [(1, 105.0), (2, 106.0), (3, 106.5)]
    part = mids(Replay(str(tmp_path / "queue"), batch_messages=2).between(3, 6))
    assert part == [row for row in whole if 3 <= row[0] < 6]


def test_a_replay_that_begins_in_the_middle_has_rows_from_the_next_snapshot_on(tmp_path: Path) -> None:
    write_levels(tmp_path / "queue", *level_events())
    whole = mids(Replay(str(tmp_path / "queue")))
    assert mids(Replay(str(tmp_path / "queue"), from_seq=3)) == whole[6:]
    with Queue.open_subscriber(tmp_path / "queue", None, "earliest") as reader:
        reader.seek_seq(3)
        feed = BookFeed(reader, BookSet())
        while feed.advance(2):
            pass
    assert feed.books.unanchored == {Market(1, 7): 3}
    assert feed.books.books[Market(1, 7)].top() == (90, 1, 91, 1)


def test_orders_begin_in_the_middle_with_a_reset(tmp_path: Path) -> None:
    rows: list[L3Row] = [(1, 1, 1, 0, 0, 100, 10, 0), (5, 0, 0, 0, 0, 0, 0, 0), (1, 1, 2, 0, 0, 90, 10, 0)]
    payloads = [record.tobytes() for record in l3_records(rows)]
    books = BookSet()
    books.begin_in_middle()
    books.apply_packed(packed(payloads[:1]))
    assert not books.books
    books.apply_packed(packed(payloads[1:]))
    book = books.books[Market(SZSE, 1)]
    assert isinstance(book, L3Book) and book.queue(1, 90) == [2]
    assert books.unanchored == {Market(SZSE, 1): 1}


def test_a_quarantined_book_has_no_rows_until_its_next_snapshot(tmp_path: Path) -> None:
    events = level_events()
    del events[2]  # update id 3
    write_levels(tmp_path / "queue", *events)
    rows = mids(Replay(str(tmp_path / "queue")), BookSettings(gap_policy="quarantine"))
    assert [stamp for stamp, _ in rows] == [1, 2, 7, 8]
