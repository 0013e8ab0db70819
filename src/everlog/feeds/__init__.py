"""Live capture: WebSocket feeds of exchanges into queues of the bus.

`session` holds the rules without any I/O: frames in, book events, gaps and requests out. `connection` runs
one session over a WebSocket and REST, `supervisor` one process per connection. A venue is one file in
`venues`. `recordings` and `rehearsal` play recorded frames back on loopback, with faults. Raw frames go to a
queue of their own, byte for byte, so everything that was decoded can be decoded again.
"""

from everlog.feeds.config import FeedConfig, FeedsConfig, read_config
from everlog.feeds.session import FeedSession
from everlog.feeds.venue import BookDiff, BookSnapshot, Quote, TradePrint, Venue
from everlog.feeds.venues import VENUES

__all__ = [
    "VENUES",
    "BookDiff",
    "BookSnapshot",
    "FeedConfig",
    "FeedSession",
    "FeedsConfig",
    "Quote",
    "TradePrint",
    "Venue",
    "read_config",
]
