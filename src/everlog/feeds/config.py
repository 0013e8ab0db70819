"""`feeds.toml`: which venues and symbols are captured, and where to.

Owns the file's fields and their checks. A venue with more symbols than one connection may carry becomes
several connections, each with a process and queues of its own.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

import msgspec

from everlog.errors import InvalidConfig
from everlog.feeds.venue import Venue
from everlog.feeds.venues import VENUES
from everlog.queue.config import MIB
from everlog.queue.faults import io_errors
from everlog.queue.names import check_component

CHANNELS: Final = ("book", "trades", "quotes")


class FeedConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """One `[[feed]]`: a venue and symbols; after `connections` each is one connection."""

    venue: str
    symbols: list[str]
    name: str = ""
    """Names its queues; the venue's name by default."""
    channels: tuple[str, ...] = ("book", "trades")
    url: str = ""
    rest_url: str = ""
    segment_mib: int = 32
    stale_s: float = 0.0
    """Without a frame for this long it connects anew; 0: as the venue wants it."""
    max_age_s: float = 0.0
    backoff_max_s: float = 60.0
    retry_s: float = 2.0
    """Between two requests to REST for the same book."""

    def made_venue(self) -> Venue:
        """Return the venue of this feed."""
        return VENUES[self.venue]()


class FeedsConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """The whole file."""

    root: str
    """Root of the bus; a relative path is below the folder of the file."""
    feed: list[FeedConfig]

    def connections(self) -> list[FeedConfig]:
        """Return one feed per connection, named apart where a venue needs several."""
        made: list[FeedConfig] = []
        for feed in self.feed:
            most = VENUES[feed.venue].symbols_max
            parts = [feed.symbols[at : at + most] for at in range(0, len(feed.symbols), most)]
            name = feed.name or feed.venue
            for number, symbols in enumerate(parts, start=1):
                part_name = name if len(parts) == 1 else f"{name}-{number}"
                made.append(msgspec.structs.replace(feed, name=part_name, symbols=symbols))
        return made


def read_config(path: Path) -> FeedsConfig:
    """Return the checked content of a `feeds.toml`."""
    with io_errors(f"read {path}"):
        data = path.read_bytes()
    try:
        config = msgspec.convert(tomllib.loads(data.decode()), FeedsConfig)
    except (ValueError, msgspec.ValidationError) as error:
        raise InvalidConfig(f"{path}: {error}; see `everlog feed run -h`") from None
    for feed in config.feed:
        _check(feed, path)
    names = [feed.name for feed in config.connections()]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidConfig(f"{path}: two feeds are named {repeated[0]!r}; give each a `name` of its own")
    return msgspec.structs.replace(config, root=str(path.parent / config.root))


def _check(feed: FeedConfig, path: Path) -> None:
    if feed.venue not in VENUES:
        raise InvalidConfig(f"{path}: unknown venue {feed.venue!r}; valid are {', '.join(VENUES)}")
    if not feed.symbols or len(set(feed.symbols)) != len(feed.symbols):
        raise InvalidConfig(f"{path}: the symbols of {feed.venue} are empty or named twice")
    wrong = [channel for channel in feed.channels if channel not in CHANNELS]
    if wrong or not feed.channels:
        raise InvalidConfig(f"{path}: channels are some of {', '.join(CHANNELS)}, got {list(feed.channels)}")
    if not 1 <= feed.segment_mib * MIB <= 1 << 32:
        raise InvalidConfig(f"{path}: segment_mib is {feed.segment_mib}; 1 to 4096 are possible")
    check_component(feed.name or feed.venue, "name")
