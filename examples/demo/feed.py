"""The feed: writes trades of an invented venue to its queue at a steady rate, then says good-bye.

    python -m examples.demo.feed ROOT TICKS RATE

Owns the tick queue and knows nobody who reads it.
"""

from __future__ import annotations

import random
import sys
import time

from everlog.bus import IpcLayout, mark_ready
from everlog.queue import Queue
from examples.demo.parent import Parent
from examples.demo.records import CONFIG, SESSION_END_TYPE_ID, TRADE, TRADE_TYPE_ID, ticks_dir

SYMBOL_HASH = 0x5D41402ABC4B2A76
PAUSE_S = 0.0001


def run(root: str, ticks: int, rate_per_s: int) -> None:
    """Write `ticks` trades, as many per second as asked for, and the end of the session."""
    layout = IpcLayout(root)
    dice = random.Random(7)  # the same market every time
    price = 100.0
    parent = Parent()
    with Queue.open_publisher(ticks_dir(layout), CONFIG) as writer:
        mark_ready(ticks_dir(layout))
        started_ns = time.monotonic_ns()
        number = 0
        while number < ticks:
            due = (time.monotonic_ns() - started_ns) * rate_per_s // 1_000_000_000 + 1
            while number < min(due, ticks):
                price += dice.choice((-0.01, 0.0, 0.01))
                quantity = float(dice.randint(1, 9))
                buyer_is_maker = dice.getrandbits(1)
                trade = TRADE.pack(
                    time.time_ns(),
                    price,
                    quantity,
                    number,
                    2 * number,
                    2 * number + 1,
                    buyer_is_maker,
                    SYMBOL_HASH,
                )
                writer.append(TRADE_TYPE_ID, trade)
                number += 1
            parent.check()
            time.sleep(PAUSE_S)  # sets the pace; how late it wakes decides nothing
        end = TRADE.pack(time.time_ns(), price, 0.0, ticks, 0, 0, 0, SYMBOL_HASH)
        writer.append(SESSION_END_TYPE_ID, end)
        writer.flush_sync()


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
