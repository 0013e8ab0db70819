"""The commands of `everlog book`: show, watch, top.

Owns what they print. The books are those of `everlog.market`; the queue is read without a name, so nothing
is left behind and retention is not held up.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import IO, Annotated, Any, Final

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Group
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from everlog.cli import output
from everlog.cli.book_options import book_settings
from everlog.cli.book_plot import plot_command
from everlog.cli.options import AsJson, QueuePath
from everlog.cli.output import Table, group, reporting
from everlog.errors import InvalidConfig
from everlog.market.book_feed import BookFeed, FeedStep
from everlog.market.book_results import Outputs
from everlog.market.book_set import Book, BookSet, Market, OtherModes
from everlog.market.books import L3Book
from everlog.market.decimals import render_scaled
from everlog.market.protocol import BookMode, crypto_market_id
from everlog.market.symbols import SymbolCatalogue, load_nearby
from everlog.market.venues.registry import VENUE_NAMES
from everlog.queue import Queue, Sleep, StartMode

WAIT_SLICE_S: Final = 0.25
LOOK_INTERVAL_US: Final = 1000
CSV_HEADER: Final = "seq,timestamp_ns,exchange_ts_ns,symbol,bid_price,bid_size,ask_price,ask_size\n"

Symbol = Annotated[
    str | None,
    typer.Option(
        "--symbol", metavar="S", help="Only this market: the exchange's symbol, or the number of the market."
    ),
]
Levels = Annotated[int, typer.Option("--levels", "-n", min=1, max=1000, help="Levels of each side.")]
Every = Annotated[int, typer.Option("--every", metavar="K", min=1, help="A row after every K-th event.")]
Mode = Annotated[
    str | None,
    typer.Option(
        "--mode",
        metavar="l2|l3",
        help="Books of price levels, or of orders. Default: for each market what its first event is of.",
    ),
]
CsvPath = Annotated[str, typer.Option("--csv", metavar="OUT", help="File to write; - is standard output.")]

app = group("Order books of the market data in a queue.", "everlog book show ./queue --symbol BTCUSDT")


app.command(
    "plot", epilog="Example: everlog book plot ./queue --symbol BTCUSDT --kind depth --out depth.svg"
)(plot_command)


class _Names:
    """Symbols to market ids and back: the messages hold only the ids, the catalogue knows the names."""

    def __init__(self, symbol: str | None, path: str) -> None:
        self.market_ids: set[int] | None = None
        self.symbol = symbol
        self._path = path
        if symbol is not None:
            self.market_ids = {crypto_market_id(symbol), crypto_market_id(symbol, compatible=True)}
            if symbol.isascii() and symbol.isdigit() and int(symbol) < 2**32:
                self.market_ids.add(int(symbol))

    @cached_property
    def _catalogue(self) -> SymbolCatalogue:
        return load_nearby(self._path)

    def of(self, market: Market) -> str:
        """Return the symbol as the catalogue has it, else as it was asked for, else the market's number."""
        known = self._catalogue.symbol_of(market.venue_id, market.market_id)
        return known or self.symbol or str(market.market_id)

    def venue_of(self, market: Market) -> str:
        """Return the name of the venue, or its number."""
        return VENUE_NAMES.get(market.venue_id) or str(market.venue_id)


@contextmanager
def _feed(path: str, names: _Names, mode: str | None) -> Iterator[tuple[Any, BookFeed]]:
    # A look from outside must not stop at a gap, nor at a market that has books of two kinds: it shows one.
    settings = replace(book_settings("ignore", "skip", mode), other_modes=OtherModes.SKIP)
    strategy = Sleep(LOOK_INTERVAL_US)
    with Queue.open_subscriber(path, None, StartMode.EARLIEST, wait_strategy=strategy) as reader:
        yield reader, BookFeed(reader, BookSet(settings), names.market_ids)


def _check_found(books: BookSet, mode: str | None) -> None:
    """Say what there is if nothing is of the mode that was asked for."""
    if mode is None or books.books or not books.passed_over:
        return
    there = ", ".join(f"{count} of {kind.name.lower()}" for kind, count in sorted(books.passed_over.items()))
    raise InvalidConfig(f"no events of {mode} books are in this queue, but {there}; choose that with --mode")


@app.command(epilog="Example: everlog book show ./queue --symbol BTCUSDT --levels 5")
def show(
    path: QueuePath, symbol: Symbol = None, levels: Levels = 10, mode: Mode = None, as_json: AsJson = False
) -> None:
    """Print the depth ladder of every market as it is at the end of the queue."""
    names = _Names(symbol, path)
    with reporting(as_json=as_json), _feed(path, names, mode) as (_, feed):
        _catch_up(feed)
        _check_found(feed.books, mode)
        if as_json:
            output.print_json([_document(names, *entry, levels, feed) for entry in _sorted(feed.books)])
            return
        for market, book in _sorted(feed.books):
            output.print_table(_ladder(names, market, book, levels))
        _print_faults(names, feed)


@app.command(epilog="Example: everlog book watch ./queue --symbol BTCUSDT")
def watch(path: QueuePath, symbol: Symbol = None, levels: Levels = 10, mode: Mode = None) -> None:
    """Show the depth ladder live. Ctrl-C or SIGTERM ends it with exit code 0."""
    names = _Names(symbol, path)
    with reporting(as_json=False), _feed(path, names, mode) as (reader, feed), _ending_quietly():
        _catch_up(feed)
        with _shown(names, levels) as show_books:
            show_books(feed.books)
            while True:
                reader.wait(WAIT_SLICE_S)
                if _catch_up(feed):
                    show_books(feed.books)


def _catch_up(feed: BookFeed) -> bool:
    """Apply what is there; False if that was nothing."""
    moved = False
    while feed.advance(want=Outputs(top=False)) is not None:  # gaps are counted by the feed
        moved = True
    return moved


@contextmanager
def _shown(names: _Names, levels: int) -> Iterator[Callable[[BookSet], None]]:
    """Give a function that shows books: in place on a terminal, else one below the other."""
    if output.is_terminal():
        with Live(refresh_per_second=10) as live:
            yield lambda books: live.update(_drawn(names, books, levels))
        return

    def print_books(books: BookSet) -> None:
        for market, book in _sorted(books):
            output.print_table(_ladder(names, market, book, levels))
        sys.stdout.flush()

    yield print_books


@app.command(epilog="Example: everlog book top ./queue --symbol BTCUSDT --csv top.csv")
def top(path: QueuePath, csv: CsvPath, symbol: Symbol = None, every: Every = 1, mode: Mode = None) -> None:
    """Write the best bid and ask after every event as CSV; an empty side gives empty fields."""
    names = _Names(symbol, path)
    with reporting(as_json=False), _feed(path, names, mode) as (_, feed), _opened(csv) as target:
        target.write(CSV_HEADER)
        counted = 0
        while (step := feed.advance()) is not None:
            applied = _applied(step)
            first = (-counted - 1) % every
            counted += len(applied)
            target.writelines(_csv_lines(step, names, applied[first::every]))
        _check_found(feed.books, mode)
        _print_faults(names, feed)


def _faults_of(market: Market, book: Book | None, feed: BookFeed) -> dict[str, int]:
    """Return what is behind a book that makes it less than the venue's."""
    return {
        "gaps": feed.gaps[market],
        "unknown_orders": book.unknown_order_count if isinstance(book, L3Book) else 0,
        "skipped": feed.books.unanchored[market] + feed.skipped[market],
    }


def _is_crossed(book: Book | None) -> bool:
    """Whether a bid is at or above an ask: in an auction, or because events are missing."""
    best = (None, None) if book is None else (book.best_bid, book.best_ask)
    return best[0] is not None and best[1] is not None and best[0].price >= best[1].price


def _print_faults(names: _Names, feed: BookFeed) -> None:
    """Say on standard error what the books of a queue lack, or that there are none."""
    if not feed.books.books and not feed.books.unanchored:
        of = "" if names.symbol is None else f" of {names.symbol}"
        output.print_warning("no_books", f"no book events{of} are in this queue", as_json=False)
    for market in sorted({*feed.books.books, *feed.books.unanchored}):
        book = feed.books.books.get(market)
        faults = _faults_of(market, book, feed)
        if any(faults.values()) or _is_crossed(book):
            words = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in faults.items())
            if _is_crossed(book):
                words += "; the book is crossed: an auction, or events are missing"
            output.print_warning("book_faults", f"market {names.of(market)}: {words}", as_json=False)


def _applied(step: FeedStep) -> NDArray[np.intp]:
    """Return the events of a batch that changed a book, in order; those of another mode did not."""
    events = [result.events for result in step.results.values()]
    return np.sort(np.concatenate(events)) if events else np.zeros(0, dtype=np.intp)


@contextmanager
def _opened(csv: str) -> Iterator[IO[str]]:
    if csv == "-":
        yield sys.stdout
        return
    with open(csv, "w", encoding="utf-8", newline="") as target:
        yield target


@contextmanager
def _ending_quietly() -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise typer.Exit(0) from None


def _csv_lines(step: FeedStep, names: _Names, chosen: NDArray[np.intp]) -> list[str]:
    columns = [np.full(len(step.seq), "", dtype=object) for _ in range(5)]
    for market, (events, result) in step.results.items():
        assert result.top is not None
        columns[0][events] = names.of(market)
        for place, side in ((1, "bid"), (3, "ask")):
            sizes = result.top[f"{side}_size"]
            columns[place][events] = _texts(result.top[f"{side}_price"], result.price_scale, sizes)
            columns[place + 1][events] = _texts(sizes, result.size_scale, sizes)
    numbers = (step.seq, step.timestamp_ns, step.exchange_ts_ns)
    rows = zip(
        *(column[chosen].tolist() for column in numbers),
        *(column[chosen].tolist() for column in columns),
        strict=True,
    )
    return [",".join(map(str, row)) + "\n" for row in rows]


def _texts(values: NDArray[Any], scale: int, sizes: NDArray[Any]) -> NDArray[np.object_]:
    """Return decimal text, empty where the side is; each different number is rendered once."""
    different, where = np.unique(values, return_inverse=True)
    texts = np.array([render_scaled(value, scale) for value in different.tolist()], dtype=object)
    chosen: NDArray[np.object_] = texts[where]
    chosen[sizes == 0] = ""
    return chosen


def _mode_of(book: Book) -> str:
    return (BookMode.L3 if isinstance(book, L3Book) else BookMode.L2).name.lower()


def _sorted(books: BookSet) -> list[tuple[Market, Book]]:
    return sorted(books.books.items(), key=lambda entry: entry[0])


def _document(names: _Names, market: Market, book: Book, levels: int, feed: BookFeed) -> dict[str, Any]:
    bids, asks = book.depth(levels)
    return {
        "venue_id": market.venue_id,
        "venue": names.venue_of(market),
        "market_id": market.market_id,
        "symbol": names.of(market),
        "mode": _mode_of(book),
        "exchange_ts_ns": book.last_exchange_ts_ns,
        **_faults_of(market, book, feed),
        "is_crossed": _is_crossed(book),
        "bids": _rendered(book, bids),
        "asks": _rendered(book, asks),
    }


def _rendered(book: Book, levels: NDArray[np.void]) -> list[tuple[str, str]]:
    rows = zip(levels["price"].tolist(), levels["size"].tolist(), strict=True)
    return [(book.render_price(price), book.render_size(size)) for price, size in rows]


def _ladder(names: _Names, market: Market, book: Book, levels: int) -> Table:
    """Asks above, bids below, the spread between them."""
    bids, asks = (_rendered(book, side) for side in book.depth(levels))
    title = (
        f"market {names.of(market)} of venue {names.venue_of(market)}, {_mode_of(book)}: "
        f"{book.bid_count} bids, {book.ask_count} asks"
    )
    rows = [["ask", price, size] for price, size in reversed(asks)]
    rows += [["bid", price, size] for price, size in bids]
    return Table(title, ["side", "price>", "size>"], rows)


def _drawn(names: _Names, books: BookSet, levels: int) -> Group:
    parts = []
    for market, book in _sorted(books):
        ladder = _ladder(names, market, book, levels)
        table = RichTable(title=ladder.title, title_justify="left")
        for column in ladder.columns:
            table.add_column(column.rstrip(">"), justify="right" if column.endswith(">") else "left")
        for row in ladder.rows:
            table.add_row(*(Text(cell, style="red" if row[0] == "ask" else "green") for cell in row))
        parts.append(table)
    return Group(*parts) if parts else Group(Text("no book events yet"))
