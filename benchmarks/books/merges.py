"""Queues that the benchmark of merges reads: many of them, which have the same number of events in all."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from everlog.market.merge import merge
from everlog.market.protocol import TypeId, new_l3_records
from everlog.market.replay import Replay
from everlog.queue import Queue

START_NS = 1_700_000_000_000_000_000
SPAN_NS = 60_000_000_000
RECORD_BYTES = 192


class MergeQueues:
    """The queues of all runs, in a directory that goes away with it."""

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="everlog-bench-merges-"))

    def close(self) -> None:
        """Remove the queues."""
        shutil.rmtree(self._root)

    def timed(self, queues: int, count: int) -> Callable[[], float]:
        """Write events of orders to so many queues now; the result merges them and returns the seconds."""
        each = count // queues
        source = np.random.default_rng(queues)
        paths = [os.fspath(self._root / f"{queues}-{number}") for number in range(queues)]
        for number, path in enumerate(paths):
            rows = new_l3_records(each, venue_id=1, market_id=number)
            times = np.sort(source.integers(0, SPAN_NS, each)).astype(np.uint64) + np.uint64(START_NS)
            rows["header"]["ingest_ts_ns"] = times
            size = max(1 << 16, -(-each * RECORD_BYTES // 4096) * 4096 + 4096)
            with Queue.open_publisher(path, segment_size=min(size, 1 << 26)) as writer:
                writer.append_array(TypeId.BOOK_EVENT, rows, times)

        def run() -> float:
            started_s = time.process_time()
            merged = sum(len(one.key) for one in merge([Replay(path) for path in paths]))
            elapsed_s = time.process_time() - started_s
            if merged != each * queues:
                raise ValueError(f"{merged} of {each * queues} events were merged")
            return elapsed_s

        return run
