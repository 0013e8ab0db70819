"""What an engine knows of itself without looking at each topic. Owns how its counters are added up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everlog.topics.results import EngineVitals
from everlog.topics.storage.wal import WalMetrics

if TYPE_CHECKING:
    from everlog.topics.core import Core


def wal_metrics(core: Core) -> WalMetrics:
    """What all shards of the log have done together."""
    wal = WalMetrics()
    for shard in core.shards:
        wal.add(shard.wal.metrics)
    return wal


def vitals_of(core: Core) -> EngineVitals:
    """Counters and totals; takes as long with many topics as with few."""
    return EngineVitals(
        topics=len(core.topics),
        routers=len(core.routers),
        consumers=core.totals.consumers,
        appended=core.totals.appended,
        bytes_live=core.totals.bytes,
        read_only=sum(shard.wal.read_only is not None for shard in core.shards),
        queue_depth=sum(shard.depth for shard in core.shards),
        wal=wal_metrics(core),
    )
