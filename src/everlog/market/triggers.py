"""When a row of features is written: triggers over batches of events.

Owns only that decision. Features see every message; a trigger picks those after which a row is kept, among
the last messages of the venue's events. A trigger remembers what it needs between batches, so that cutting a
day into batches changes no row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from everlog.errors import InvalidConfig
from everlog.market.features import Booleans
from everlog.market.protocol import MessageFlags

Timestamps = npt.NDArray[np.uint64]

TRADE_MESSAGE: Final = 5
"""`event_type` of a message that is a trade and no book event; the others are those of `BookEventType`."""


class Events(NamedTuple):
    """What triggers look at: one value per event in each array."""

    ingest_ts_ns: Timestamps
    exchange_ts_ns: Timestamps
    event_type: npt.NDArray[np.uint8]
    flags: npt.NDArray[np.uint16] | None = None
    """`protocol.MessageFlags` of each message; None: each is the last of its event."""
    seq: npt.NDArray[np.uint64] | None = None
    """The number of each message in its queue."""

    @property
    def is_last(self) -> Booleans:
        """Which messages end an event of the venue: the book between them is a state it never published."""
        if self.flags is None:
            return np.ones(len(self.event_type), dtype=np.bool_)
        ends: Booleans = (self.flags & MessageFlags.LAST_OF_EVENT) != 0
        return ends

    def take(self, chosen: npt.NDArray[Any]) -> Events:
        """Return some of them, by index or mask."""
        columns = (None if column is None else column[chosen] for column in self)
        return Events(*columns)  # type: ignore[arg-type]

    def joined(self, later: Events) -> Events:
        """Return these and then the others; both have flags and numbers."""
        return Events(*(np.concatenate(pair) for pair in zip(self, later, strict=True)))  # type: ignore[arg-type]


class Trigger(Protocol):
    """Picks events."""

    def fires(self, events: Events) -> Booleans:
        """Return for each event of the next batch whether a row is written after it."""
        ...


class Always:
    """A row after every event."""

    def fires(self, events: Events) -> Booleans:
        """Every event."""
        return np.ones(len(events.event_type), dtype=np.bool_)


class TimeBar:
    """A row after the first event, then after the first event of each later bucket of `interval_ns`.

    The bucket of an event is `floor(timestamp / interval)` of the clock that is chosen; an event whose
    timestamp is 0 has none and never fires. An event that falls back into an earlier bucket does not fire.
    """

    def __init__(self, interval_ns: int, clock: str = "ingest") -> None:
        if interval_ns <= 0:
            raise InvalidConfig(f"the interval is {interval_ns} ns; it must be more than 0")
        if clock not in ("ingest", "exchange"):
            raise InvalidConfig(f"the clock is {clock!r}; it must be 'ingest' or 'exchange'")
        self.interval_ns = interval_ns
        self.clock = clock
        self._last_bucket = -1

    def fires(self, events: Events) -> Booleans:
        """The first event of each bucket that is later than all before."""
        timestamps = events.ingest_ts_ns if self.clock == "ingest" else events.exchange_ts_ns
        if not len(timestamps):
            return np.zeros(0, dtype=np.bool_)
        buckets = (timestamps // np.uint64(self.interval_ns)).astype(np.int64)
        buckets[timestamps == 0] = -1
        latest = np.maximum.accumulate(np.concatenate(([self._last_bucket], buckets)))
        self._last_bucket = int(latest[-1])
        return buckets > latest[:-1]


class MarketBars:
    """A `TimeBar` of ingest time for each of many markets, of which a batch may have a few events each."""

    def __init__(self, interval_ns: int) -> None:
        self.interval_ns = interval_ns
        self.last: dict[tuple[int, int], int] = {}
        """The latest bucket of each market so far, by venue and market."""

    def fires(
        self, markets: Sequence[tuple[int, int]], counts: npt.NDArray[np.int64], ingest_ts_ns: Timestamps
    ) -> Booleans:
        """Return which events fire; those of a market follow each other, `counts` of each."""
        buckets = (ingest_ts_ns // np.uint64(self.interval_ns)).astype(np.int64)
        buckets[ingest_ts_ns == 0] = -1
        known = np.fromiter((self.last.get(market, -1) for market in markets), np.int64, len(markets))
        # The bucket that each market had before stands before its events.
        buckets = np.insert(buckets, np.cumsum(counts) - counts, known)
        begins = np.cumsum(counts + 1) - (counts + 1)
        self.last.update(zip(markets, np.maximum.reduceat(buckets, begins).tolist(), strict=True))
        low, high = int(buckets.min()), int(buckets.max())
        if (high - low + 1) * len(markets) > np.iinfo(np.int64).max:
            buckets = np.unique(buckets, return_inverse=True)[1]
            low, high = 0, len(buckets)
        # Every bucket of a market is above those of the markets before it, so one pass is enough for all.
        above = np.repeat(np.arange(len(markets)) * (high - low + 1), counts + 1) + (buckets - low)
        latest = np.maximum.accumulate(above)
        is_event = np.ones(len(above), dtype=np.bool_)
        is_event[begins] = False
        events = np.flatnonzero(is_event)
        fired: Booleans = above[events] > latest[events - 1]
        return fired


class EventTypes:
    """A row after every event of these types."""

    def __init__(self, *event_types: int) -> None:
        if not event_types:
            raise InvalidConfig("a trigger by event type needs at least one type")
        self.event_types = event_types

    def fires(self, events: Events) -> Booleans:
        """The events of the chosen types."""
        return np.isin(events.event_type, self.event_types)


class EveryMessage:
    """Lets another trigger see every message, in the middle of the venue's events too."""

    def __init__(self, trigger: Trigger) -> None:
        self.trigger = trigger

    def fires(self, events: Events) -> Booleans:
        """What the trigger says."""
        return self.trigger.fires(events)


def fires_at_ends(trigger: Trigger, events: Events) -> Booleans:
    """Return after which messages the trigger fires; it is shown ends of events, unless it asks for all."""
    ends = events.is_last
    if isinstance(trigger, EveryMessage) or ends.all():
        return trigger.fires(events)
    fired = np.zeros(len(ends), dtype=np.bool_)
    fired[ends] = trigger.fires(events.take(ends))
    return fired


class AnyOf:
    """A row where at least one of several triggers fires; each of them sees every event."""

    def __init__(self, triggers: Sequence[Trigger]) -> None:
        if not triggers:
            raise InvalidConfig("a choice of triggers needs at least one")
        self.triggers = tuple(triggers)

    def fires(self, events: Events) -> Booleans:
        """The events at which one of them fires."""
        fired: Booleans = np.logical_or.reduce([trigger.fires(events) for trigger in self.triggers])
        return fired
