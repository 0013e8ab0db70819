"""Answers about the server as a whole and about queues, as types: what the console is made from.

Owns names, fields and their order; computes nothing. The documents of the API are generated from these.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from everlog.answer_types import Answer
from everlog.api_types import StorageHealth
from everlog.bus.feed_status import FeedStatus
from everlog.lake_reports import ArchiveProgress, AuditSummary


class PressureState(msgspec.Struct, frozen=True):
    """How busy the server is, and what it does about it."""

    pressure: float
    busy: float
    rungs: list[str]
    """The measures that are taken now, the cheapest first."""
    throttled_total: int


class RecoverySummary(msgspec.Struct, frozen=True):
    """What the last start found in the data directory."""

    snapshot_number: int
    rejected_snapshots: int
    topics: int
    segments: int
    records_from_segments: int
    log_files: int
    records_from_log: int
    cut_bytes: int
    damage: list[str]
    """What no crash can have left, in words; the first ones."""


class DiskSpace(msgspec.Struct, frozen=True):
    """The file system of the data directory."""

    free_bytes: int
    total_bytes: int


class Alert(msgspec.Struct, frozen=True):
    """Something that a person should know."""

    level: Literal["warning", "error"]
    code: str
    message: str


class Overview(Answer, frozen=True, omit_defaults=True, kw_only=True):
    """How a server is."""

    version: str
    uptime_ms: int
    has_keys: bool
    is_memory: bool
    topics: int
    routers: int
    consumers: int
    bytes_live: int
    appended_total: int
    sse_connections: int
    watch_sessions: int
    pressure: PressureState
    storage: StorageHealth
    recovery: RecoverySummary | None
    disk: DiskSpace | None
    alerts: list[Alert]


class Samples(Answer, frozen=True, omit_defaults=True, kw_only=True):
    """What the server measured of itself."""

    step_ms: int
    fields: list[str]
    rows: list[list[float]]


class QueueReaderState(msgspec.Struct, frozen=True):
    """A reader of a queue; in a list of queues only the one that is most behind has its lag in messages."""

    name: str
    next_seq: int | None
    lag_messages: int | None
    lag_ms: int | None
    lag_bytes: int | None
    heartbeat_ms: int | None
    error: str | None


class QueueState(msgspec.Struct, frozen=True):
    """A queue below the bus directory."""

    queue: str
    ready: bool
    writer: Literal["alive", "dead", "none"]
    writer_heartbeat_ms: int | None
    head_segment: int | None
    segments: int
    bytes_on_disk: int
    first_seq: int | None
    last_seq: int | None
    readers: list[QueueReaderState]
    error: str | None


class QueueList(Answer, frozen=True, omit_defaults=True, kw_only=True):
    """The queues below the bus directory."""

    root: str | None
    queues: list[QueueState]


class QueueMessage(msgspec.Struct, frozen=True):
    """A message of a queue; of a long one the beginning."""

    seq: int
    timestamp_ns: int
    type_id: int
    length: int
    payload_hex: str
    payload_text: str | None


class QueueMessages(Answer, frozen=True, omit_defaults=True, kw_only=True):
    """Messages of a queue."""

    first_seq: int | None
    last_seq: int | None
    messages: list[QueueMessage]


class FeedList(Answer, frozen=True, omit_defaults=True, kw_only=True):
    """The connections of live capture that write to the bus directory."""

    root: str | None
    time_ms: int
    feeds: list[FeedStatus]


class MarketName(msgspec.Struct, frozen=True):
    """A market of a queue; `symbol` is null if only its number is known."""

    venue_id: int
    venue: str | None
    market_id: int
    symbol: str | None


class MarketList(Answer, frozen=True, omit_defaults=True, kw_only=True):
    """Markets whose events are in a queue or topic."""

    markets: list[MarketName]
    is_whole: bool


class DepthColumn(msgspec.Struct, frozen=True, array_like=True):
    """The best levels at the end of one step of time; price and size in turn, from the best on."""

    time_ms: int
    bids: list[float]
    asks: list[float]


class MarketTrade(msgspec.Struct, frozen=True):
    """A trade of a market; `side` is the taker's."""

    seq: int
    time_ms: int
    price: float
    size: float
    side: Literal["buy", "sell", "unknown"]


class MarketBook(Answer, frozen=True, omit_defaults=True, kw_only=True):
    """The book of a market at one time, with its depth before and its last trades."""

    venue_id: int | None
    """Null if no event of the market was found so far."""
    market_id: int | None
    mode: Literal["l2", "l3"] | None
    time_ms: int
    """Of the last message that was looked at."""
    first_ms: int
    last_ms: int
    is_there: bool
    """False while the server is still on its way to the time that was asked for: ask again."""
    progress: float
    bid_count: int
    ask_count: int
    bids: list[tuple[str, str]]
    """Price and size as exact decimals, from the best on."""
    asks: list[tuple[str, str]]
    gaps: int
    unknown_orders: int
    columns: list[DepthColumn]
    trades: list[MarketTrade]
    error: str | None


class LakeTableState(msgspec.Struct, frozen=True):
    """A table of the lake, and what the jobs that fill and check it last reported."""

    table: str
    version: int
    files: int
    bytes_on_disk: int
    is_counted: bool
    archive: ArchiveProgress | None
    audit: AuditSummary | None


class LakeState(Answer, frozen=True, omit_defaults=True, kw_only=True):
    """The tables of the lake."""

    root: str | None
    tables: list[LakeTableState]


class ServerIndex(msgspec.Struct, frozen=True):
    """What answers at the root of a server."""

    name: str
    version: str
    links: dict[str, str]
