"""What the demonstration shows while it runs: a live book and counters on a terminal, else plain lines.

Owns the terminal until it is closed. The book is rebuilt here from the queue, by a reader without a
name: other processes do not notice it.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from everlog.market import BookSet, Outputs
from everlog.market.book_feed import BookFeed
from everlog.market.books import L2Book, L3Book
from everlog.market.protocol import BookMode, crypto_market_id
from everlog.queue import Queue, QueueReader
from examples.demo.rebuilt import book_settings
from examples.demo.session import Counts

PLAIN_WIDTH = 110
PLAIN_INTERVAL_S = 1.0
SHOWN_INTERVAL_S = 0.1
LEVELS = 6
BAR_WIDTH = 18
SYMBOL = "SIM0000"


def make_console(*, quiet: bool = False) -> Console:
    """Return a console: as wide as the terminal, or wide enough for the tables if there is none."""
    console = Console(quiet=quiet, highlight=False)
    return console if console.is_terminal else Console(quiet=quiet, highlight=False, width=PLAIN_WIDTH)


class LiveBook:
    """The book of one symbol, kept up to date from the queue."""

    def __init__(self, queue: Path) -> None:
        self._queue = queue
        self._reader: QueueReader | None = None
        self._feed: BookFeed | None = None

    def update(self) -> L2Book | L3Book | None:
        """Apply what is new and return the book; None while there is none."""
        if self._feed is None:
            self._reader = Queue.try_open_subscriber(self._queue, None)
            if self._reader is None:
                return None
            books = BookSet(book_settings(BookMode.L2))
            self._feed = BookFeed(self._reader, books, {crypto_market_id(SYMBOL)})
        while self._feed.advance(want=Outputs(top=False)) is not None:
            pass
        return next(iter(self._feed.books.books.values()), None)

    def close(self) -> None:
        """Let go of the queue."""
        if self._reader is not None:
            self._reader.close()


class Display:
    """Shows how a run goes on; a `Watcher` of the session."""

    def __init__(self, console: Console, queue: Path) -> None:
        self._console = console
        self._book = LiveBook(queue)
        self._started_s = time.monotonic()
        self._shown_s = self._started_s
        self._stage = ""
        self._previous = Counts()
        self._previous_s = self._started_s
        self._rates = Counts()
        self._is_closed = False
        self._live: Live | None = None
        if console.is_terminal and not console.quiet:
            self._live = Live(console=console, auto_refresh=False, transient=True)

    def note(self, text: str) -> None:
        """Tell what happened, and when."""
        self._console.print(f"{time.monotonic() - self._started_s:6.2f} s  {text}")

    def stage(self, name: str) -> None:
        """Tell which part of the run begins."""
        if name == self._stage:
            return
        self._stage = name
        if self._live is None:
            self.note(f"-- {name}")

    def progress(self, counts: Counts) -> None:
        """Draw the book and the counters anew, or print a line once a second; nothing once it is closed."""
        now_s = time.monotonic()
        interval_s = PLAIN_INTERVAL_S if self._live is None else SHOWN_INTERVAL_S
        if self._is_closed or now_s - self._shown_s < interval_s or self._console.quiet:
            return
        self._shown_s = now_s
        if now_s - self._previous_s >= 1.0:
            self._rates = _rates(self._previous, counts, now_s - self._previous_s)
            self._previous, self._previous_s = counts, now_s
        book = self._book.update()
        if self._live is not None:
            self._live.update(self._drawn(counts, book), refresh=True)
        elif self._stage == "trade":
            self.note(_line(counts, book))

    def _drawn(self, counts: Counts, book: L2Book | L3Book | None) -> Group:
        title = Text(f"{time.monotonic() - self._started_s:6.2f} s  {self._stage}", style="bold")
        grid = Table.grid(padding=(0, 4))
        grid.add_row(_ladder(book), _counters(counts, self._rates))
        return Group(title, grid)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed = True
        if self._live is not None:
            self._live.stop()
        self._book.close()


def _rates(before: Counts, after: Counts, elapsed_s: float) -> Counts:
    names = ("messages", "orders", "fills", "watched", "settled")
    return Counts(*(round((getattr(after, name) - getattr(before, name)) / elapsed_s) for name in names))


def _line(counts: Counts, book: L2Book | L3Book | None) -> str:
    text = (
        f"{counts.messages:,} messages, {counts.orders:,} orders, {counts.fills:,} fills, "
        f"{counts.watched:,} watched, {counts.settled:,} settled"
    )
    if book is None or book.best_bid is None or book.best_ask is None:
        return text
    bid, ask = book.render_price(book.best_bid.price), book.render_price(book.best_ask.price)
    return f"{text}; {SYMBOL} {bid} / {ask}"


def _counters(counts: Counts, rates: Counts) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="so far", title_justify="left")
    table.add_column("what")
    table.add_column("messages", justify="right")
    table.add_column("per second", justify="right")
    for name, label in (
        ("messages", "venue to queue"),
        ("orders", "orders of the strategies"),
        ("fills", "fills of the router"),
        ("watched", "records at the SSE watcher"),
        ("settled", "fills settled by the workers"),
    ):
        table.add_row(label, f"{getattr(counts, name):,}", f"{getattr(rates, name):,}")
    return table


def _ladder(book: L2Book | L3Book | None) -> Table:
    """Asks above, bids below, sizes as bars."""
    table = Table(box=box.SIMPLE_HEAD, title=f"book of {SYMBOL}, live", title_justify="left")
    table.add_column("price", justify="right")
    table.add_column("size", justify="right")
    table.add_column("", min_width=BAR_WIDTH)
    if book is None:
        for _ in range(2 * LEVELS):
            table.add_row("", "", "")
        return table
    bids, asks = book.depth(LEVELS)
    largest = max([1, *bids["size"].tolist(), *asks["size"].tolist()])
    for levels, style in ((asks[::-1], "red"), (bids, "green")):
        for _ in range(LEVELS - len(levels)):
            table.add_row("", "", "")
        for price, size in zip(levels["price"].tolist(), levels["size"].tolist(), strict=True):
            bar = "█" * max(1, round(BAR_WIDTH * size / largest))
            cells = (book.render_price(price), book.render_size(size), bar)
            table.add_row(*(Text(cell, style=style) for cell in cells))
    return table
