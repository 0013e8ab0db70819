"""What the Spark benchmark reads: a queue of plain records, one of orders, and a topics server.

Owns how they are made; measures nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.books.events import l3_records
from everlog.market.protocol import TypeId
from everlog.queue import Queue
from everlog.queue.config import MIB, WriterConfig

PAYLOAD_BYTES = 64
TYPE_ID = 7
BLOCK_RECORDS = 1 << 16
LIVE_ORDERS = 10_000
LEVELS = 200
SERVER_START_S = 60.0
SEGMENT_SIZE = 64 * MIB
READ_BYTES = 8 * MIB


def write_plain_queue(path: str, records: int) -> None:
    """Write records of 64 bytes; the time of record n is n."""
    payloads = np.random.default_rng(1).integers(0, 256, (BLOCK_RECORDS, PAYLOAD_BYTES), dtype=np.uint8)
    block = payloads.view(f"V{PAYLOAD_BYTES}").reshape(-1)
    with Queue.open_publisher(path, WriterConfig.archive().replace(segment_size=SEGMENT_SIZE)) as writer:
        for first in range(0, records, BLOCK_RECORDS):
            count = min(BLOCK_RECORDS, records - first)
            stamps = np.arange(first, first + count, dtype=np.uint64)
            writer.append_array(TYPE_ID, block[:count], stamps)


def write_order_queue(path: str, events: int, markets: int) -> int:
    """Write order-by-order events of several markets, each on a channel of its own; return how many."""
    records = l3_records(LIVE_ORDERS, events // markets, LEVELS)
    with Queue.open_publisher(path, WriterConfig.archive().replace(segment_size=SEGMENT_SIZE)) as writer:
        for market in range(markets):
            records["header"]["market_id"] = records["header"]["stream_id"] = 1 + market
            writer.append_array(TypeId.BOOK_EVENT, records, np.arange(len(records), dtype=np.uint64))
    return markets * len(records)


def fetch(path: str) -> None:
    """Read all files of a queue, so that none is read from the disk while something is timed.

    Some machines page out memory that was unused for a minute, which is less than a round takes.
    """
    block = bytearray(READ_BYTES)
    for file in sorted(Path(path).glob("*.q")):
        with open(file, "rb", buffering=0) as opened:
            while opened.readinto(block):
                pass


@contextmanager
def running_server(folder: Path) -> Iterator[str]:
    """A topics server in memory; yields its URL."""
    port_file = Path(tempfile.mkdtemp(dir=folder)) / "port"
    command = [os.path.join(os.path.dirname(sys.executable), "everlog"), "serve", "--memory"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--port-file", str(port_file)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline_s = time.monotonic() + SERVER_START_S
        while not (port_file.exists() and port_file.read_text().strip()):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise OSError("the server did not start")
            time.sleep(0.05)
        yield f"http://{port_file.read_text().strip()}"
    finally:
        process.terminate()
        process.wait()
