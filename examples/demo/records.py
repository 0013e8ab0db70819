"""What the processes of the demonstration say to each other: payload layouts, names, places.

Owns no state and opens nothing. Each payload of its own has 64 bytes, so that a whole queue can be
looked at as one NumPy array; market data is laid out as `everlog.market.protocol` says.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from everlog.bus import IpcLayout
from everlog.market.protocol import TypeId
from everlog.queue import Queue, WriterConfig
from everlog.queue.config import MIB

VENUE = "simulated"
STRATEGIES = ("arbitrage", "maker")
WORKERS = ("worker-1", "worker-2")
WATCHER = "watcher"

SETTLED_STRATEGY = STRATEGIES[1]
"""Whose fills are settled by the workers."""

MARKET_TOPIC = "market"
JOBS_TOPIC = "settlement"
MARKET_BRIDGE = "market"
FILLS_BRIDGE = "fills"
LEASE_MS = 2000
CONCURRENCY = 8
"""Jobs that one worker does at a time."""

TRADE_TYPE_ID = int(TypeId.TRADE)
SESSION_END_TYPE_ID = 0x4000
BOOKED_TYPE_ID = 0x4001
SEEN_TYPE_ID = 0x4002
DONE_TYPE_ID = 0x4003

BUY, SELL = 1, 2

# Messages between two commits of a reader: at most so many are read again after a crash.
COMMIT_EVERY = 1000

# `archive` deletes nothing, so that the audit can read everything again. Small segments, so that
# a few seconds roll several times; sealed ones are synced by a worker, not inside an append.
CONFIG = WriterConfig.archive().replace(segment_size=1 * MIB, defer_seal_sync=True)


class Record:
    """One payload layout, for single messages (`pack`, `unpack`) and for arrays (`dtype`)."""

    def __init__(self, **fields: str) -> None:
        """Take the fields in order; `Q` is an unsigned 64-bit integer, `d` a 64-bit float."""
        layout = struct.Struct("<" + "".join(fields.values()))
        if layout.size != 64:
            raise ValueError(f"a record of the demonstration has 64 bytes, these fields have {layout.size}")
        self.pack = layout.pack
        self.unpack = layout.unpack
        self.dtype = np.dtype([(name, f"<{code}") for name, code in fields.items()])


# The last message of the feed: what the venue has sent before it, by kind.
SESSION_END = Record(
    messages="Q",
    l3_events="Q",
    l2_events="Q",
    trades="Q",
    started_ns="Q",
    ended_ns="Q",
    symbols="Q",
    seed="Q",
)

# `order_id` is the seq of the trade that caused the order: a strategy that reads that trade again sends the
# same id again, and the router knows it. `run` counts how often the strategy was started.
ORDER = Record(
    order_id="Q",
    tick_timestamp_ns="Q",
    received_ns="Q",
    run="Q",
    catching_up="Q",
    side="Q",
    price="d",
    quantity="d",
)

FILL = Record(
    order_id="Q",
    order_seq="Q",
    order_timestamp_ns="Q",
    received_ns="Q",
    catching_up="Q",
    side="Q",
    price="d",
    quantity="d",
)

# The strategy's books: one record for each fill it received. `applied` is 0 if the fill had been
# booked before, and `position` is what the strategy holds afterwards.
BOOKED = Record(
    fill_seq="Q",
    order_id="Q",
    fill_timestamp_ns="Q",
    received_ns="Q",
    catching_up="Q",
    applied="Q",
    run="Q",
    position="d",
)

# What the watcher got over server-sent events: a record of the topic, the queue's message that it
# carries, and how many records came together.
SEEN = Record(
    seq="Q",
    source_seq="Q",
    server_ms="Q",
    received_ns="Q",
    together="Q",
    is_end="Q",
    run="Q",
    reserved="Q",
)

# What a worker did: a job, the order whose fill it settled, and what it computed.
DONE = Record(
    job_seq="Q",
    order_id="Q",
    server_ms="Q",
    started_ns="Q",
    done_ns="Q",
    deliveries="Q",
    run="Q",
    notional="d",
)


def ticks_dir(layout: IpcLayout) -> Path:
    """Return the queue the feed writes."""
    return layout.streams().raw_queue_dir(VENUE)


def books_dir(layout: IpcLayout, strategy: str) -> Path:
    """Return the queue in which a strategy keeps its books."""
    return layout.root / "books" / strategy / "queue"


def notes_dir(layout: IpcLayout, name: str) -> Path:
    """Return the queue in which the watcher or a worker notes what it got."""
    return layout.root / "notes" / name / "queue"


def truth_file(root: Path) -> Path:
    """Return the file in which the venue tells its books at the end of the session."""
    return root / "venue.json"


def last_payload(path: str | Path, next_seq: int) -> bytes | None:
    """Return the newest payload of a queue whose next seq is `next_seq`; None if it is empty."""
    if next_seq == 0:
        return None
    with Queue.open_subscriber(path, None) as reader:
        reader.seek_seq(next_seq - 1)
        message = reader.next()
        return None if message is None else bytes(message)
