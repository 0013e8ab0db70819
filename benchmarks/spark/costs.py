"""What a core does in a second, without Spark: the work that tasks do, in processor time of one process.

Owns these measurements. Processor time, because a plan for many machines needs what the work costs, not how
long it took beside something else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa

from everlog.market import BookSet, Outputs, ResultMemory
from everlog.market.venues.simulated import SimulatedVenue
from everlog.pipeline import queue_ranges
from everlog.pipeline.jobs.market_tasks import TaskFiles, TaskFilter, task_messages
from everlog.pipeline.jobs.refine import refine_symbols
from everlog.pipeline.jobs.replay import TOP, BookTables, ReplayPlan
from everlog.pipeline.lake_files import write_files
from everlog.pipeline.lake_places import LakePlace
from everlog.pipeline.refinery import Refinery, Symbols
from everlog.pipeline.sources.base import BatchReader
from everlog.pipeline.sources.queue import QueueSource
from everlog.queue import Queue
from everlog.seq_ranges import Gap, SeqRange

SYMBOLS = 20
MANY_SYMBOLS = 5000
COMPARED_SYMBOLS = 2000
Numbers = dict[str, float]


def _rate(work: Callable[[], int]) -> float:
    """Return how many records the work did in a second of processor time."""
    started_s = time.process_time()
    done = work()
    return done / (time.process_time() - started_s)


def _write_levels(path: str, events: int, symbols: int) -> tuple[str, ...]:
    """Write price levels and trades of so many symbols; return the symbols."""
    venue = SimulatedVenue(symbols, kinds=("l2", "trades"), rate=100_000.0, resting_orders=100)
    with Queue.open_publisher(path, segment_size=1 << 26) as writer:
        for block in venue.blocks(events):
            block.append_to(writer)
    return venue.symbols


def _read(path: str) -> int:
    count = 0
    for piece in queue_ranges.read(path, queue_ranges.bounds(path)):
        assert not isinstance(piece, Gap)
        count += len(piece)
    return count


def _decoded(path: str, **options: str) -> Iterator[pa.RecordBatch]:
    """Batches one after the other, as a task hands them on: to hold all of them is another work."""
    reader = BatchReader(QueueSource.parse({"path": path, **options}))
    for part in reader.partitions():
        yield from reader.read(part)


def _rows(path: str, **options: str) -> int:
    return sum(batch.num_rows for batch in _decoded(path, **options))


def replay(path: str, held: SeqRange) -> int:
    """Rebuild books of a range as the replay jobs do, with the top after each event; return the events."""
    books, want, memory, count = BookSet(), Outputs(), ResultMemory(), 0
    for some in task_messages(path, held, TaskFilter(1, 0), books):
        assert not isinstance(some, Gap)
        books.apply_packed(some.packed, want, memory)
        count += len(some.chosen)
    return count


def _replayed(path: str) -> int:
    return replay(path, queue_ranges.bounds(path))


def _tabled(path: str, folder: Path) -> int:
    """Write the tables of the job `replay`, as one task of it does; return the events."""
    plan, count = ReplayPlan(), 0
    specs = plan.tables(str(folder), "tops", path)
    files = {kind: TaskFiles(spec.table.place, spec.partition_by, spec.rows) for kind, spec in specs.items()}
    books = BookTables(plan, {kind: kind for kind in specs})
    for rows in books.replay(path, queue_ranges.bounds(path), TaskFilter(1, 0)):
        count += rows.batch.num_rows if rows.table == TOP else 0
        for _ in files[rows.table].write(rows.batch):
            pass
    for one in files.values():
        for _ in one.finish():
            pass
    return count


def _tables_of_many_markets(folder: Path, events: int) -> Numbers:
    """The rate of the tables of one market and of many, and what an event of many costs over one of one."""
    rates = []
    for symbols in (1, COMPARED_SYMBOLS):
        path = str(folder / f"symbols-{symbols}")
        _write_levels(path, events, symbols)
        rates.append(_rate(partial(_tabled, path, folder / f"tables-{symbols}")))
    return {
        "core_tables_one_per_s": rates[0],
        "core_tables_many_per_s": rates[1],
        "core_tables_many_cost": rates[0] / rates[1],
    }


def core_costs(folder: Path, orders: str, events: int) -> Numbers:
    """Measure everything once; `orders` is the queue of orders."""
    levels, refined = str(folder / "levels"), folder / "refined"
    symbols = Symbols("simulated", _write_levels(levels, events, SYMBOLS))
    many = str(folder / "many")
    _write_levels(many, events, MANY_SYMBOLS)
    end = queue_ranges.bounds(levels).end

    def refine() -> int:
        return sum(refine_symbols(levels, SeqRange(0, end), Refinery(str(refined), symbols, range(SYMBOLS))))

    numbers = {
        "core_read_per_s": _rate(lambda: _read(orders)),
        "core_decode_l3_per_s": _rate(lambda: _rows(orders, decode="l3")),
        "core_decode_two_per_s": _rate(lambda: _rows(orders, decode="l3", columns="price,qty")),
        "core_decode_book_per_s": _rate(lambda: _rows(levels, decode="book")),
        "core_replay_l3_per_s": _rate(lambda: _replayed(orders)),
        "core_replay_l2_per_s": _rate(lambda: _replayed(levels)),
        "core_replay_many_per_s": _rate(lambda: _replayed(many)),
        "core_refine_per_s": _rate(refine),
        **_tables_of_many_markets(folder, events),
    }
    # Last, since these are held in memory: nothing else should have to look for its own.
    batches = list(_decoded(orders))
    return numbers | {"core_parquet_per_s": _rate(lambda: _written(batches, folder / "files"))}


def _written(batches: list[pa.RecordBatch], folder: Path) -> int:
    for _ in write_files(iter(batches), LakePlace(str(folder)), ()):
        pass
    return sum(batch.num_rows for batch in batches)
