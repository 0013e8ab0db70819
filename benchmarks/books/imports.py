"""How fast files of venues become events: text that is made here, the real importers, a real queue.

Owns the text and the timed runs. A run imports a file into a new queue and returns the processor time of the
whole process, kernel included, so that a rate is one per core.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from everlog.market.importing import ImportRequest, ImportRun

Write = Callable[[Path, int], list[Path]]
FIRST_US = 1_704_186_000_000_000
SZSE_SYMBOLS = 10


def tardis_book(folder: Path, count: int) -> list[Path]:
    """An incremental book of one symbol: a short snapshot, then updates around a slow price."""
    path = folder / "sim_incremental_book_L2_2024-01-02_BTCUSDT.csv"
    with path.open("w") as file:
        file.write("exchange,symbol,timestamp,local_timestamp,is_snapshot,side,price,amount\n")
        for number in range(count):
            at_us = FIRST_US + 40 * number
            is_ask = number & 1
            price = 42000 + number % 97 if is_ask else 41999 - number % 89
            file.write(
                f"sim,BTCUSDT,{at_us},{at_us + 150},{'true' if number < 200 else 'false'},"
                f"{'ask' if is_ask else 'bid'},{price}.{number % 10},{number % 7}.{number % 1000:03d}\n"
            )
    return [path]


def tardis_trades(folder: Path, count: int) -> list[Path]:
    """Trades of one symbol."""
    path = folder / "sim_trades_2024-01-02_BTCUSDT.csv"
    with path.open("w") as file:
        file.write("exchange,symbol,timestamp,local_timestamp,id,side,price,amount\n")
        for number in range(count):
            at_us = FIRST_US + 40 * number
            file.write(
                f"sim,BTCUSDT,{at_us},{at_us + 150},{10_000_000 + number},{'sell' if number & 1 else 'buy'},"
                f"{42000 + number % 97}.{number % 10},{1 + number % 7}.{number % 1000:03d}\n"
            )
    return [path]


def lobster(folder: Path, count: int) -> list[Path]:
    """Messages of one symbol: every order is added, and deleted 50 messages later."""
    path = folder / "SIM_2012-06-21_34200000_57600000_message_10.csv"
    with path.open("w") as file:
        for number in range(count):
            at_s = 34200 + number * 20_000 / count
            kind, order = (1, number) if number % 2 == 0 or number < 50 else (3, number - 49)
            price, side = 5_850_000 + order % 500 * 100, 1 if order & 4 else -1
            file.write(f"{at_s:.9f},{kind},{16_000_000 + order},{100 + order % 9},{price},{side}\n")
    return [path]


def szse(folder: Path, count: int) -> list[Path]:
    """Orders of one channel in files of their symbols."""
    paths = [folder / f"order_{symbol:06d}.csv" for symbol in range(1, SZSE_SYMBOLS + 1)]
    files = [path.open("w") for path in paths]
    try:
        for file in files:
            file.write("ApplSeqNum,ChannelNo,Side,Price,OrderQty,OrdType,TransactTime,SendingTime\n")
        for number in range(count):
            at_ms = number * 6000 // max(1, count)
            at = 20240102_100000_000 + at_ms % 1000 + at_ms // 1000 % 60 * 1000
            files[number % SZSE_SYMBOLS].write(
                f"{1 + number},2011,{1 + number % 2},{10 + number % 9}.{number % 100:02d},"
                f"{100 * (1 + number % 20)},2,{at},{at}\n"
            )
    finally:
        for file in files:
            file.close()
    return paths


IMPORTS: dict[str, tuple[str, Write]] = {
    "import of Tardis books": ("tardis-book", tardis_book),
    "import of Tardis trades": ("tardis-trades", tardis_trades),
    "import of LOBSTER messages": ("lobster", lobster),
    "import of SZSE orders": ("szse", szse),
}


class ImportFiles:
    """The files of all runs, in a directory that goes away with it."""

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="everlog-bench-imports-"))

    def close(self) -> None:
        """Remove the files."""
        shutil.rmtree(self._root)

    def timed(self, label: str, count: int) -> Callable[[], float]:
        """Write so many rows now; the result imports them into a new queue and returns the seconds."""
        name, write = IMPORTS[label]
        folder = self._root / name
        folder.mkdir()
        paths = [os.fspath(path) for path in write(folder, count)]

        def run() -> float:
            queue = folder / "queue"
            started_s = time.process_time()
            (result,) = ImportRun(ImportRequest(format=name, paths=paths, queue=os.fspath(queue))).run()
            elapsed_s = time.process_time() - started_s
            if result.entry.rows != count:
                raise ValueError(f"{result.entry.rows} of {count} rows were imported")
            shutil.rmtree(queue)
            return elapsed_s

        return run
