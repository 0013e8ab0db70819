"""The bus: where queues live, how they are found, and which process serves them.

A thin layer over `everlog.queue`: directory layout, READY and LEASE markers, discovery, reader
registration and order channels. It starts no process, supervises nothing and takes no trading
decision. Nothing here belongs on a hot thread except the queues it opens.
"""

from everlog.bus.channels import (
    FILL_TYPE_ID,
    ORDER_TYPE_ID,
    ROUTER_READER,
    OrderChannel,
    RouterChannel,
    StrategyChannel,
)
from everlog.bus.discovery import (
    Added,
    Connected,
    Disconnected,
    Removed,
    RouterDiscovery,
    RouterEvent,
    SubscriberDiscovery,
    SubscriberEvent,
    Waiting,
)
from everlog.bus.layout import IpcLayout, OrdersLayout, StrategyEndpoints, StreamsLayout
from everlog.bus.markers import Lease, clear_ready, is_ready, mark_ready, read_lease, write_lease
from everlog.bus.registration import ReaderRegistration
from everlog.bus.sidecar import HandOff
from everlog.bus.static_feeds import StaticFeeds

__all__ = [
    "FILL_TYPE_ID",
    "ORDER_TYPE_ID",
    "ROUTER_READER",
    "Added",
    "Connected",
    "Disconnected",
    "HandOff",
    "IpcLayout",
    "Lease",
    "OrderChannel",
    "OrdersLayout",
    "ReaderRegistration",
    "Removed",
    "RouterChannel",
    "RouterDiscovery",
    "RouterEvent",
    "StaticFeeds",
    "StrategyChannel",
    "StrategyEndpoints",
    "StreamsLayout",
    "SubscriberDiscovery",
    "SubscriberEvent",
    "Waiting",
    "clear_ready",
    "is_ready",
    "mark_ready",
    "read_lease",
    "write_lease",
]
