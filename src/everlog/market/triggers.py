"""When a row of features is written: triggers over batches of events.

Owns only that decision. Features see every event; a trigger picks the events after which a row is kept. A
trigger remembers what it needs between batches, so that cutting a day into batches changes no row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from everlog.errors import InvalidConfig
from everlog.market.features import Booleans

Timestamps = npt.NDArray[np.uint64]


class Events(NamedTuple):
    """What triggers look at: one value per event in each array."""

    ingest_ts_ns: Timestamps
    exchange_ts_ns: Timestamps
    event_type: npt.NDArray[np.uint8]


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


class EventTypes:
    """A row after every event of these types."""

    def __init__(self, *event_types: int) -> None:
        if not event_types:
            raise InvalidConfig("a trigger by event type needs at least one type")
        self.event_types = event_types

    def fires(self, events: Events) -> Booleans:
        """The events of the chosen types."""
        return np.isin(events.event_type, self.event_types)


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
