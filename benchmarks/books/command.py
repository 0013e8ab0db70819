"""The command line of the book benchmark: what is measured, rounds, the table, exit code."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.books import contenders, events, frames
from benchmarks.books.contenders import PEER_EVENTS_MAX, FeatureQueue, Missing, Timed
from benchmarks.books.imports import IMPORTS, ImportFiles
from benchmarks.books.merges import MergeQueues
from benchmarks.queue import machine

ROUNDS = 7
TABLE_WIDTH = 150
PEERS = ("hftbacktest", "nautilus_trader", "order-book", "cryptofeed")
RATIO_TARGET = 4.0
FRAMES_RATIO_TARGET = 3.0


@dataclass(frozen=True)
class Sizes:
    """How many events; peers that need a Python object per event get fewer of the same."""

    updates: int = 3_000_000
    records: int = 2_000_000
    calls: int = 300_000
    small_book: int = 10_000
    large_book: int = 1_000_000
    imported: int = 1_000_000
    featured: int = 500_000
    merged: int = 4_000_000
    queues: tuple[int, int] = (10, 1000)


QUICK = Sizes(300_000, 200_000, 50_000, 10_000, 100_000, 100_000, 50_000, 100_000)


@dataclass
class Row:
    """One measurement: contenders by name, and the target for everlog in events per second."""

    label: str
    target: float | None
    count: int
    everlog: Callable[[], Timed]
    peers: dict[str, tuple[int, Callable[[], Timed]]] = field(default_factory=dict)
    rates: dict[str, list[float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    ratio_target: float = RATIO_TARGET

    def best(self, name: str) -> float | None:
        """The fastest round."""
        return max(self.rates[name]) if self.rates.get(name) else None

    def ratio(self) -> float | None:
        """Everlog against the fastest peer."""
        own = self.best("everlog")
        others = [rate for name in PEERS if (rate := self.best(name)) is not None]
        return own / max(others) if own and others else None

    def is_missed(self) -> bool:
        """Whether everlog is below its target or too near to a peer."""
        own, ratio = self.best("everlog") or 0.0, self.ratio()
        return (self.target is not None and own < self.target) or (
            ratio is not None and ratio < self.ratio_target
        )

    def target_text(self) -> str | None:
        """The target in words: a rate, or how far ahead of the fastest peer."""
        if self.target is not None:
            return f">= {self.target / 1e6:g}"
        return f"{self.ratio_target:g}x" if self.ratio_target != RATIO_TARGET else None

    def as_json(self) -> dict[str, Any]:
        """The fastest rounds in million events a second, and every rate of every round."""
        fastest = {name: self.best(name) for name in ("everlog", *PEERS)}
        return {
            "section": "Best bid and ask after every event; rows of imports",
            "row": self.label,
            "number": self.label,
            "unit": "M/s",
            "target": self.target_text(),
            "verdict": "" if self.target_text() is None else "MISSED" if self.is_missed() else "ok",
            "values": {name: rate / 1e6 for name, rate in fastest.items() if rate is not None},
            "rates": self.rates,
            "missing": self.missing,
        }


def book_rows(sizes: Sizes) -> list[Row]:
    """What books do."""
    near = events.l2_updates(sizes.updates)
    part = near[: min(PEER_EVENTS_MAX, sizes.updates)]
    coarse = events.l2_updates(sizes.updates, tick=250_000_000, jump=2000)
    wide = events.scattered_l2_updates(sizes.updates, 1_000_000)
    small = events.l3_records(sizes.small_book, sizes.records, 200)
    large = events.l3_records(sizes.large_book, sizes.records, 2000)
    calls, live = near[: sizes.calls], sizes.small_book
    short = small[: live + min(PEER_EVENTS_MAX, sizes.records)]
    l2_peers = {
        "hftbacktest": (len(near), lambda: contenders.hftbacktest_l2(near)),
        "nautilus_trader": (len(part), lambda: contenders.nautilus_l2(part)),
        "order-book": (len(part), lambda: contenders.order_book_l2(part)),
    }
    l3_peers = {"nautilus_trader": (len(short) - live, lambda: contenders.nautilus_l3(short, live))}
    call_peers = {name: peer for name, peer in l2_peers.items() if name != "hftbacktest"}
    return [
        Row("L2 updates", 80e6, len(near), lambda: contenders.everlog_l2(near), l2_peers),
        Row(
            "L2, fresh memory for every result",
            None,
            len(near),
            lambda: contenders.everlog_l2(near, fresh_memory=True),
        ),
        Row("L2, tick 0.25 at 9 decimals, jumps", 80e6, len(coarse), lambda: contenders.everlog_l2(coarse)),
        Row("L2, prices all over 2 M ticks", None, len(wide), lambda: contenders.everlog_l2(wide)),
        Row(
            f"L3, {live} orders, queue positions",
            25e6,
            sizes.records,
            lambda: contenders.everlog_l3(small, live, places=True),
            l3_peers,
        ),
        Row(
            f"L3, {live} orders",
            None,
            sizes.records,
            lambda: contenders.everlog_l3(small, live, places=False),
        ),
        Row(
            f"L3, {sizes.large_book} orders",
            10e6,
            sizes.records,
            lambda: contenders.everlog_l3(large, sizes.large_book, places=False),
        ),
        Row(
            "L2, one update per call", 2e6, len(calls), lambda: contenders.everlog_l2_calls(calls), call_peers
        ),
        Row(
            "L3, one event per call",
            2e6,
            len(short) - live,
            lambda: contenders.everlog_l3_calls(short, live),
            l3_peers,
        ),
    ]


def feature_rows(sizes: Sizes, queue: FeatureQueue) -> list[Row]:
    """What features cost: messages of a queue a second of processor time, with and without them."""
    count = sizes.featured
    chosen = {
        "standard features": "standard",
        "standard, trades, 10 levels, order flow of 5": "standard,trades,depth:10,ofi_levels:5,volatility",
    }
    return [
        Row("Queue to books, 5 levels a side", None, count, partial(queue.books, count)),
        *(
            Row(f"Queue to {label}", None, count, partial(queue.features, count, text))
            for label, text in chosen.items()
        ),
    ]


def import_rows(sizes: Sizes, files: ImportFiles) -> list[Row]:
    """What imports do: rows of text a second of processor time."""
    return [Row(label, 1e6, sizes.imported, partial(files.timed, label, sizes.imported)) for label in IMPORTS]


def merge_rows(sizes: Sizes, queues: MergeQueues) -> list[Row]:
    """What merges do: the same events in few and in many queues."""
    return [
        Row(f"merge of {count} queues", 1e6, sizes.merged, partial(queues.timed, count, sizes.merged))
        for count in sizes.queues
    ]


def frame_rows() -> list[Row]:
    """What feeds do: frames of books a second of processor time, to events."""
    table = []
    for label, source in frames.SOURCES.items():
        try:
            read = frames.Frames(source)
        except Missing:
            continue  # no recordings, no rows
        count = len(read.frames)
        own, peer = partial(read.timed, read.everlog), partial(read.timed, read.cryptofeed)
        row = Row(f"frames of {label} to events", None, count, own, {"cryptofeed": (count, peer)})
        row.ratio_target = FRAMES_RATIO_TARGET
        table.append(row)
    return table


def measure(table: list[Row], rounds: int) -> None:
    """Interleaved rounds, so that noise hits all alike."""
    runs: list[tuple[Row, str, int, Timed]] = []
    for row in table:
        chosen = {"everlog": (row.count, row.everlog), **row.peers}
        for name, (count, prepare) in chosen.items():
            try:
                runs.append((row, name, count, prepare()))
            except (Missing, ImportError) as error:
                row.missing[name] = str(error)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=rounds * len(runs))
        for number in range(1, rounds + 1):
            for row, name, count, run in runs:
                progress.update(task, description=f"round {number}/{rounds}: {row.label}, {name}")
                row.rates.setdefault(name, []).append(count / run())
                progress.advance(task)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.books", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds; the fastest counts (default 7)")
    parser.add_argument("--quick", action="store_true", help="small sizes; noisier")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write every number to this file")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    options = parser.parse_args(arguments)
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    before = machine.CpuTime.now()
    sizes = QUICK if options.quick else Sizes()
    files, queue, queues = ImportFiles(), FeatureQueue(), MergeQueues()
    try:
        table = [
            *book_rows(sizes),
            *feature_rows(sizes, queue),
            *import_rows(sizes, files),
            *merge_rows(sizes, queues),
            *frame_rows(),
        ]
        measure(table, options.rounds)
    finally:
        files.close()
        queue.close()
        queues.close()
    facts = machine.describe() | {
        "noise": machine.CpuTime.now().noise_since(before),
        "pinned": f"everything on core {core}",
        "rounds": f"fastest of {options.rounds}, interleaved",
    }
    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH, highlight=False)
    console.print(drawn(table))
    for fact, value in facts.items():
        console.print(f"{fact + ':':<13}{value}", soft_wrap=True)
    if options.json:
        document = {"machine": facts, "rows": [row.as_json() for row in table]}
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 1 if options.check and any(row.is_missed() for row in table) else 0


def drawn(table: list[Row]) -> Table:
    """The table: million events per second, the best bid and ask known after every one; rows of imports."""
    shown = Table(title="Million events (imports: rows) per second, best bid and ask after every event")
    for column in ("", "target", "everlog", *PEERS, "times the fastest peer", ""):
        shown.add_column(column, justify="left" if not column else "right")
    for row in table:
        cells = [_rate(row, name) for name in ("everlog", *PEERS)]
        ratio = row.ratio()
        shown.add_row(
            row.label,
            row.target_text() or "",
            *cells,
            "" if ratio is None else f"{ratio:.1f}",
            "" if row.target_text() is None else "MISSED" if row.is_missed() else "ok",
        )
    return shown


def _rate(row: Row, name: str) -> str:
    best = row.best(name)
    return row.missing.get(name, "-") if best is None else f"{best / 1e6:.3g}"
