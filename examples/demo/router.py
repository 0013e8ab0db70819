"""The router: requires its feed, finds strategies, merges their orders by time, answers each with one fill.

    python -m examples.demo.router ROOT STRATEGIES

An order id that was answered before is dropped: ids of one strategy only rise, except where it
was restarted and repeats itself. The last id answered is in the last fill, so a restart of the
router forgets nothing. It ends when as many strategies as announced have come and gone.

One thread does everything here. `examples/sidecar.py` shows how a router keeps discovery away
from its hot thread.
"""

from __future__ import annotations

import sys
import time

from everlog.bus import Added, IpcLayout, RouterChannel, RouterDiscovery, RouterEvent, StaticFeeds
from everlog.bus.static_feeds import ROUTER_FILE
from everlog.queue import FanInReader, MessageView
from examples.demo.records import COMMIT_EVERY, CONFIG, FILL, ORDER, last_payload

IDLE_WAIT_S = 0.05
DISCOVERY_INTERVAL_NS = 20_000_000


class Router:
    """The channels to the strategies and what was answered on each."""

    def __init__(self, layout: IpcLayout, strategies: int) -> None:
        self._layout = layout
        self._remaining = strategies
        self._channels: list[RouterChannel] = []
        self._answered: dict[str, int] = {}
        self._leaving: set[str] = set()
        self._orders = FanInReader()

    def run(self) -> None:
        """Route orders until the last strategy has left."""
        with RouterDiscovery(self._layout) as discovery:
            looked_ns = 0
            while self._remaining:
                if time.monotonic_ns() - looked_ns >= DISCOVERY_INTERVAL_NS:
                    for event in discovery.poll():
                        self._follow(event)
                    looked_ns = time.monotonic_ns()
                if not self._channels:
                    discovery.wait(IDLE_WAIT_S)
                    continue
                item = self._orders.next()
                if item is not None:
                    self._answer(*item, time.time_ns())
                elif self._leaving:
                    self._let_go()
                else:
                    self._orders.wait(IDLE_WAIT_S)

    def close(self) -> None:
        """Close every channel that is still open."""
        for channel in self._channels:
            channel.close()

    def _follow(self, event: RouterEvent) -> None:
        if not isinstance(event, Added):
            self._leaving.add(event.strategy)
            return
        channel = RouterChannel.try_open(self._layout, event.strategy, config=CONFIG)
        assert channel is not None, "READY is marked only on a queue that can be opened"
        assert channel.inbox is not None
        fill = last_payload(channel.endpoints.orders_in, channel.outbox.next_seq)
        self._answered[event.strategy] = -1 if fill is None else FILL.unpack(fill)[0]
        self._channels.append(channel)
        self._orders.add(channel.inbox)

    def _answer(self, source: int, order: MessageView, received_ns: int) -> None:
        channel = self._channels[source]
        order_id, _, _, _, catching_up, side, price, quantity = ORDER.unpack(order)
        if order_id > self._answered[channel.strategy]:
            self._answered[channel.strategy] = order_id
            fill = FILL.pack(
                order_id, order.seq, order.timestamp_ns, received_ns, catching_up, side, price, quantity
            )
            channel.send_fill(fill)
        if order.seq % COMMIT_EVERY == COMMIT_EVERY - 1:
            self._orders.commit(source, durable=False)

    def _let_go(self) -> None:
        """Close the channels of those who left; every order has been read, so none is held back."""
        self._orders.commit_all()
        staying = [channel for channel in self._channels if channel.strategy not in self._leaving]
        for channel in self._channels:
            if channel.strategy in self._leaving:
                channel.close()
                self._remaining -= 1
        self._leaving.clear()
        self._channels = staying
        self._orders = FanInReader(channel.inbox for channel in staying if channel.inbox is not None)


def open_and_run(root: str, strategies: int) -> None:
    """Run a router and close what it opened; without a feed that `router.toml` requires it does not start."""
    layout = IpcLayout(root)
    StaticFeeds.load(layout.root / ROUTER_FILE).require(layout)
    router = Router(layout, strategies)
    try:
        router.run()
    finally:
        router.close()


if __name__ == "__main__":
    open_and_run(sys.argv[1], int(sys.argv[2]))
