"""The watcher: follows the market topic over server-sent events and notes what came, and when.

    python -m examples.demo.watcher ROOT URL

It ends when the feed's good-bye has come. A connection that breaks is resumed by the client.
"""

from __future__ import annotations

import sys
import time

from everlog import Client
from everlog.bus import IpcLayout
from everlog.client import Records
from everlog.queue import Queue
from examples.demo.bridged import SourceSeqs, type_id_of
from examples.demo.records import (
    CONFIG,
    MARKET_TOPIC,
    SEEN,
    SEEN_TYPE_ID,
    SESSION_END_TYPE_ID,
    WATCHER,
    notes_dir,
)


def run(root: str, url: str) -> None:
    """Watch from the first record to the end of the session."""
    sources = SourceSeqs()
    notes = Queue.open_publisher(notes_dir(IpcLayout(root), WATCHER), CONFIG)
    with notes, Client(url) as client:
        for event in client.watch({MARKET_TOPIC: "earliest"}):
            received_ns = time.time_ns()
            if not isinstance(event, Records):
                continue
            together = len(event.records)
            for record in event.records:
                source_seq = sources.of(record.seq, record.meta)
                is_end = type_id_of(record.meta) == SESSION_END_TYPE_ID
                seen = (record.seq, source_seq, record.ts_ms, received_ns, together, is_end, notes.epoch, 0)
                notes.append(SEEN_TYPE_ID, SEEN.pack(*seen))
                if is_end:
                    return


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2])
