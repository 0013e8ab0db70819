"""A strategy: one order for each trade of the venue, and books about its fills.

    python -m examples.demo.strategy ROOT NAME

It may be killed at any instant. What makes each tick count exactly once all the same:

* Ticks, which are the trades among the market data. The position is committed after the order was
  sent, never before, so a restart may read some ticks again but misses none. An order's id is the
  seq of its tick, so a tick that is read again gives the same order again, and the router drops
  what it knows.
* Fills. The books are a queue too. Their last record says which fill was booked last and what
  the strategy holds, so a restart goes on from there and drops the fills it has booked.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack

from everlog.bus import Connected, IpcLayout, StrategyChannel, SubscriberDiscovery
from everlog.market.views import TradeView
from everlog.queue import FanInReader, MessageView, Queue, QueueReader, QueueWriter
from examples.demo.records import (
    BOOKED,
    BOOKED_TYPE_ID,
    BUY,
    COMMIT_EVERY,
    CONFIG,
    FILL,
    ORDER,
    SELL,
    SESSION_END_TYPE_ID,
    TRADE_TYPE_ID,
    books_dir,
    last_payload,
    ticks_dir,
)

TICKS, FILLS = 0, 1  # the sources of the fan-in
IDLE_WAIT_S = 0.1
POLL_S = 0.001


class Strategy:
    """The state between two messages; `run` is the loop."""

    def __init__(self, channel: StrategyChannel, ticks: QueueReader, books: QueueWriter) -> None:
        self._channel = channel
        self._books = books
        self._run = channel.outbox.epoch  # rises by one with every start
        assert channel.inbox is not None
        self._sources = FanInReader([ticks, channel.inbox])
        self._catching_up = True
        self._session_over = False
        self._ordered_id = -1
        self._booked_fill, self._booked_id, self._position = _resume_books(books)

    def run(self) -> None:
        """Handle ticks and fills until the session is over and every order has its fill."""
        while not (self._session_over and self._booked_id >= self._ordered_id):
            item = self._sources.next()
            if item is None:
                self._catching_up = False
                self._sources.wait(IDLE_WAIT_S)
                continue
            received_ns = time.time_ns()
            source, message = item
            if source == TICKS:
                self._on_tick(message, received_ns)
            else:
                self._on_fill(message, received_ns)
        self._sources.commit_all()

    def _on_tick(self, message: MessageView, received_ns: int) -> None:
        if message.type_id == TRADE_TYPE_ID:
            self._order(message, received_ns)
        elif message.type_id == SESSION_END_TYPE_ID:
            self._session_over = True
        if message.seq % COMMIT_EVERY == COMMIT_EVERY - 1:
            # Not forced to disk: it has to survive this process, not a power cut.
            self._sources.commit(TICKS, durable=False)

    def _order(self, message: MessageView, received_ns: int) -> None:
        trade = TradeView(message)
        self._ordered_id = message.seq
        order = ORDER.pack(
            message.seq,
            message.timestamp_ns,
            received_ns,
            self._run,
            self._catching_up,
            SELL if trade.is_buyer_maker else BUY,
            trade.price,
            trade.qty,
        )
        self._channel.send_order(order)

    def _on_fill(self, message: MessageView, received_ns: int) -> None:
        order_id, _, _, _, catching_up, side, _, quantity = FILL.unpack(message)
        applied = message.seq > self._booked_fill
        if applied:
            self._booked_fill, self._booked_id = message.seq, order_id
            self._position += quantity if side == BUY else -quantity
        booked = BOOKED.pack(
            message.seq,
            order_id,
            message.timestamp_ns,
            received_ns,
            catching_up or self._catching_up,
            applied,
            self._run,
            self._position,
        )
        self._books.append(BOOKED_TYPE_ID, booked)
        if message.seq % COMMIT_EVERY == COMMIT_EVERY - 1:
            self._sources.commit(FILLS, durable=False)


def _resume_books(books: QueueWriter) -> tuple[int, int, float]:
    """Return the last booked fill, its order id and the position, as the books say."""
    payload = last_payload(books.path, books.next_seq)
    if payload is None:
        return -1, -1, 0.0
    fill_seq, order_id, _, _, _, _, _, position = BOOKED.unpack(payload)
    return fill_seq, order_id, position


def open_and_run(root: str, name: str) -> None:
    """Open everything in the order in which it appears, run, and close it again."""
    layout = IpcLayout(root)
    with ExitStack() as stack:
        books = stack.enter_context(Queue.open_publisher(books_dir(layout, name), CONFIG))
        channel = stack.enter_context(StrategyChannel.open(layout, name, config=CONFIG))
        while not channel.attach_inbox():  # until the router has found us
            time.sleep(POLL_S)
        discovery = SubscriberDiscovery(ticks_dir(layout), name, poll_interval_s=0)
        while not isinstance(event := discovery.poll(None)[0], Connected):  # until there is a feed
            time.sleep(POLL_S)
        ticks = stack.enter_context(event.reader)
        Strategy(channel, ticks, books).run()


if __name__ == "__main__":
    open_and_run(sys.argv[1], sys.argv[2])
