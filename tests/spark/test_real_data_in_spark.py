"""Books of real venues inside Spark: those of one machine, and those of the independent plain book."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from everlog.market import BookSet, BookSettings, Outputs
from everlog.market.protocol import L3_RECORD, BookEventType, BookMode, TypeId
from everlog.market.replay import Replay
from everlog.pipeline.jobs.replay import replay_books
from everlog.pipeline.lake import LakeTable
from tests.support.book_twins import L2Twin, L3Twin, Top
from tests.support.import_runs import L2Event, import_into, l2_event, messages_of, real_file
from tests.support.quotes import COLUMNS, top_of

pytestmark = pytest.mark.timeout(600)

FILES = [
    ("bybit", "xrpusdt-ob500.data.zip", BookMode.L2),
    ("dbn", "esh4-glbx-mdp3-20231224.mbo.dbn.zst", BookMode.L3),
    ("lobster", "AAPL_2012-06-21_message_50.first-25000.csv.gz", BookMode.L3),
]
EVERY = 199
SETTINGS = BookSettings(unknown_orders="skip")


def tops_of_one_machine(queue: Path) -> dict[int, Top]:
    """The top of the book after each event, from the replay on one machine."""
    books, tops = BookSet(SETTINGS), {}
    for some in Replay(str(queue)).types(TypeId.BOOK_EVENT).batches():
        for events, result in books.apply_packed(some.packed, Outputs()).values():
            assert result.top is not None
            tops.update(zip(some.seq[events].tolist(), result.top.tolist(), strict=True))
    return tops


def apply_plainly(book: L2Twin, event: L2Event) -> None:
    """Apply an event of price levels to the plain book."""
    if event.header["event_type"] == BookEventType.SNAPSHOT:
        book.clear()
    for side, changes in ((1, event.bids), (2, event.asks)):
        for price, size in changes:
            book.update(side, price, size)


def tops_of_the_plain_book(queue: Path, mode: BookMode) -> dict[int, Top]:
    """The same from dictionaries, without any code of the books, after some of the events."""
    levels, orders, tops = L2Twin(), L3Twin(), {}
    for number, message in enumerate(messages_of(queue)):
        if message.type_id != TypeId.BOOK_EVENT:
            continue
        if mode is BookMode.L2:
            apply_plainly(levels, l2_event(bytes(message.payload)))
        else:
            orders.apply(np.frombuffer(message.payload, L3_RECORD, 1)[0])
        # The plain book of orders looks at all of them for its top.
        if number % EVERY == 0:
            tops[message.seq] = (levels if mode is BookMode.L2 else orders).top()
    return tops


@pytest.mark.parametrize(("format_name", "name", "mode"), FILES)
def test_real_books_in_spark_are_those_of_one_machine_and_of_the_plain_book(
    spark: SparkSession, tmp_path: Path, format_name: str, name: str, mode: BookMode
) -> None:
    queue = tmp_path / "queue"
    import_into(queue, format_name, real_file(name))
    replay_books(spark, str(queue), str(tmp_path / "lake"), "tops", settings=SETTINGS, partitions=2)
    rows = LakeTable(tmp_path / "lake", "tops").read(spark).select(*COLUMNS).collect()
    found = {row.seq: top_of(row.asDict()) for row in rows}
    assert len(found) == len(rows) >= 50
    assert found == tops_of_one_machine(queue)
    plain = tops_of_the_plain_book(queue, mode)
    assert plain
    assert {seq: found[seq] for seq in plain} == plain
