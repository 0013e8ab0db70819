"""Market data: the protocol, order books and their snapshots, venues and importers."""

from everlog.market.bar_builder import BarBuilder
from everlog.market.book_results import L2_UPDATE, BookResult, EventStatus, Outputs
from everlog.market.book_set import BookSet, BookSettings, Market
from everlog.market.books import GapPolicy, L2Book, L3Book, Level, QueuePlace, UnknownOrders
from everlog.market.packing import PackedRecords
from everlog.market.replay import Replay
from everlog.market.result_memory import ResultMemory
from everlog.market.snapshots import SnapshotPlanner, SnapshotRetention, SnapshotStore, join_late, warm_start

__all__ = [
    "L2_UPDATE",
    "BarBuilder",
    "BookResult",
    "BookSet",
    "BookSettings",
    "EventStatus",
    "GapPolicy",
    "L2Book",
    "L3Book",
    "Level",
    "Market",
    "Outputs",
    "PackedRecords",
    "QueuePlace",
    "Replay",
    "ResultMemory",
    "SnapshotPlanner",
    "SnapshotRetention",
    "SnapshotStore",
    "UnknownOrders",
    "join_late",
    "warm_start",
]
