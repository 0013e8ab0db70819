"""Where every queue of a bus lives: paths, endpoint names, and the group that may use them.

One bus is one directory tree (the root is the user's choice)::

    <root>/streams/raw/<venue>/queue/                       live market data, all symbols
    <root>/streams/frames/<connection>/queue/               frames of a live feed, byte for byte
    <root>/streams/clean/<venue>/<symbol>/<stream>/queue/   the same, one queue per symbol and stream
    <root>/orders/queue/<strategy>/orders_out/              strategy -> router
    <root>/orders/queue/<strategy>/orders_in/               router -> strategy

Every name that comes from outside is checked before it becomes part of a path, so no venue,
symbol, stream or strategy id can lead out of the tree.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from everlog.fs import share_with_group
from everlog.queue.names import check_component

ORDERS_OUT = "orders_out"
ORDERS_IN = "orders_in"


@dataclass(frozen=True, slots=True)
class StrategyEndpoints:
    """The two queue directories of one strategy, named from the strategy's point of view."""

    strategy: str
    orders_out: Path
    orders_in: Path


@dataclass(frozen=True, slots=True)
class StreamsLayout:
    """The market data queues below one root."""

    root: Path

    def raw_queue_dir(self, venue: str) -> Path:
        """Return the live queue of a venue, which carries all its symbols."""
        return self.root / "raw" / check_component(venue, "venue") / "queue"

    def frames_queue_dir(self, connection: str) -> Path:
        """Return the queue of the frames that a connection to a venue received."""
        return self.root / "frames" / check_component(connection, "connection") / "queue"

    def clean_queue_dir(self, venue: str, symbol: str, stream: str) -> Path:
        """Return the queue of one stream (`book`, `trades`, ...) of one symbol."""
        return (
            self.root
            / "clean"
            / check_component(venue, "venue")
            / check_component(symbol, "symbol")
            / check_component(stream, "stream")
            / "queue"
        )


@dataclass(frozen=True, slots=True)
class OrdersLayout:
    """The order queues below one root: one directory per strategy, two queues in each."""

    root: Path

    @property
    def queue_root(self) -> Path:
        """The directory whose entries are the strategies."""
        return self.root / "queue"

    def strategy_endpoints(self, strategy_id: str) -> StrategyEndpoints:
        """Return both queue directories of a strategy; they need not exist."""
        directory = self.queue_root / check_component(strategy_id, "strategy id")
        return StrategyEndpoints(strategy_id, directory / ORDERS_OUT, directory / ORDERS_IN)


class IpcLayout:
    """All queue directories of the bus at `root`.

    Queues are created for their user only (0700, files 0600). With `group` the root is created or changed so
    that what is created below it belongs to the group and is open to it (0770, files 0660).
    """

    def __init__(self, root: str | os.PathLike[str], group: str | None = None) -> None:
        self.root = Path(root)
        if group is not None:
            share_with_group(os.fspath(root), group)

    def __repr__(self) -> str:
        return f"IpcLayout({os.fspath(self.root)!r})"

    def streams(self) -> StreamsLayout:
        """Return the market data half of the tree."""
        return StreamsLayout(self.root / "streams")

    def orders(self) -> OrdersLayout:
        """Return the order half of the tree."""
        return OrdersLayout(self.root / "orders")
