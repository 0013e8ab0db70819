"""The snapshotter: follows a queue, keeps L2 and L3 books and writes snapshots of them beside the queue.

Owns when snapshots are written and how the process goes on after a restart. When they are due, every book
that has changed is written at the same seq, and only then is the reader's position committed. So the books at
that position are the newest snapshots before it, whatever was killed. A market without a snapshot begins at
its next snapshot or reset, in a queue that is whole also with its first event. As long as all books are
followed from the first message on, a set names the snapshots that together are the books of the queue.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Final, Self

from everlog.clock import Clock, SystemClock
from everlog.errors import Corrupt, EverlogError, Unsupported, UnsupportedVersion
from everlog.fs import Fs, OsFs
from everlog.market.book_feed import BookFeed
from everlog.market.book_results import Outputs
from everlog.market.book_set import BookSet, BookSettings, Market, OtherModes
from everlog.market.books import GapPolicy, UnknownOrders
from everlog.market.snapshots import SnapshotInfo, SnapshotPlanner, SnapshotRetention, SnapshotStore
from everlog.market.warm_start import SnapshotSets
from everlog.queue import Queue, QueueReader, StartMode
from everlog.queue.seq_bounds import SeqBounds

READER: Final = "snapshotter"
BATCH_MESSAGES: Final = 4096
_NOTHING: Final = Outputs(top=False)
_SETTINGS: Final = BookSettings(
    gap_policy=GapPolicy.QUARANTINE, unknown_orders=UnknownOrders.SKIP, other_modes=OtherModes.SKIP
)


class Snapshotter:
    """Keeps the books of a queue and snapshots of them. Use it from one thread."""

    def __init__(
        self,
        queue: str | os.PathLike[str],
        *,
        planner: SnapshotPlanner | None = None,
        retention: SnapshotRetention | None = None,
        markets: Collection[Market] | None = None,
        start: StartMode | str = StartMode.RESUME_SNAPSHOT,
        reader: str = READER,
        clock: Clock | None = None,
        fs: Fs | None = None,
    ) -> None:
        """Open the queue, load the newest snapshots before the reader's position and stand there.

        `markets` chooses some; None takes all. The planner counts over all of them.
        """
        self.queue = os.fspath(queue)
        self._fs, self._clock = fs or OsFs(), clock or SystemClock()
        self._planner = planner or SnapshotPlanner()
        self._markets = None if markets is None else frozenset(markets)
        self.store = SnapshotStore(self.queue, retention, fs=self._fs, clock=self._clock)
        self.reader: QueueReader = Queue.open_subscriber(
            self.queue, reader, start, clock=self._clock, fs=self._fs
        )
        self._sets = SnapshotSets(self.store, self._fs)
        self._books = BookSet(_SETTINGS)
        self._snapshot_seqs: dict[Market, int] = {}
        self._is_whole = False
        """Whether the books are those of all messages from the first on."""
        try:
            self._restore()
        except BaseException:
            self.reader.close()
            raise
        ids = None if self._markets is None else {market.market_id for market in self._markets}
        self._feed = BookFeed(self.reader, self._books, ids, is_whole=self._is_whole)
        self._changed: dict[Market, tuple[int, int]] = {}
        self._last_seq: int | None = None
        self.written = self.events = 0

    def _restore(self) -> None:
        """Load the books at the reader's position."""
        message = self.reader.next()
        if message is not None:
            self.reader.seek_seq(message.seq)
        limit = None if message is None else message.seq - 1
        if self._markets is None and self._restore_set(limit):
            return
        for market in self.store.markets():
            if self._markets is not None and market not in self._markets:
                continue
            usable = [one for one in self.store.of_market(market) if limit is None or one.seq <= limit]
            for info in reversed(usable):
                try:
                    book = self._books.new_book(info.mode)
                    self._books.books[market] = self.store.load(info, book)
                    break
                except (Corrupt, Unsupported, UnsupportedVersion):
                    continue  # an older one may be sound

    def _restore_set(self, limit: int | None) -> bool:
        """Load the set of all books at the reader's position; False if there is none."""
        if limit is None:
            with Queue.open_subscriber(self.queue, None, StartMode.EARLIEST, fs=self._fs) as reader:
                limit = SeqBounds(reader).last
        self._is_whole = limit in (None, -1)
        if limit is None or limit not in self._sets.seqs():
            return self._is_whole
        try:
            self._books = self._sets.load(limit, _SETTINGS)
            self._snapshot_seqs = self._sets.snapshots(limit)
        except EverlogError:
            return False  # single snapshots may be sound
        self._is_whole = True
        return True

    def run_once(self) -> bool:
        """Apply what is there, at most one batch, and write what is due; False if nothing was there."""
        limit = min(BATCH_MESSAGES, self._planner.min_records or BATCH_MESSAGES)
        step = self._feed.advance(limit, _NOTHING)
        if step is not None:
            for market, (events, _) in step.results.items():
                if self._markets is None or market in self._markets:
                    first = int(events[0])
                    begun = (int(step.timestamp_ns[first]), int(step.exchange_ts_ns[first]))
                    self._changed.setdefault(market, begun)
                    self._planner.note(int(step.length[events].sum()), len(events))
                    self.events += len(events)
            if len(step.seq):
                self._last_seq = int(step.seq[-1])
        if self._changed and self._planner.is_due(self._clock.wall_ns()):
            self.write()
        return step is not None

    def write(self) -> list[SnapshotInfo]:
        """Write a snapshot of every book that has changed, then commit the position."""
        written = []
        for market, (ingest_ns, exchange_ns) in self._changed.items():
            book = self._books.books.get(market)
            if book is not None and self._last_seq is not None:
                written.append(
                    self.store.write(
                        book,
                        market,
                        self._last_seq,
                        ingest_ts_start_ns=ingest_ns,
                        exchange_ts_start_ns=exchange_ns,
                    )
                )
                self._snapshot_seqs[market] = self._last_seq
        if self._is_whole and written and (next_seq := self.reader.expected_seq) is not None:
            self._sets.write(next_seq - 1, self._books, self._snapshot_seqs)
        self._changed.clear()
        self._planner.taken(self._clock.wall_ns())
        self.reader.commit()
        self.written += len(written)
        return written

    def close(self) -> None:
        """Close the reader; what was not due is written by the next run."""
        self.reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
