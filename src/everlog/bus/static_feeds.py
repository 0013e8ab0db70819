"""Static feeds: the market data queues that a router must have, as `router.toml` names them.

Owns the file and the check at start. Feeds define what a router sees of the world, so they are configured and
their absence is an error at once; strategies come and go and are discovered (`RouterDiscovery`). The file::

    [feeds]
    required = ["binance_spot", "coinbase_pro"]   # venues: <root>/streams/raw/<venue>/queue
    wait_s = 5.0                                  # how long they may take to appear; 0 if left out
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from everlog.bus.layout import IpcLayout
from everlog.clock import NS_PER_S, Clock, SystemClock
from everlog.errors import InvalidConfig, QueueNotFound
from everlog.fs import Fs, OsFs
from everlog.queue.control import ControlBlock
from everlog.queue.faults import io_errors

ROUTER_FILE: Final = "router.toml"
_LOOK_INTERVAL_NS: Final = 5_000_000
_WAIT_S_MAX: Final = 3600.0


@dataclass(frozen=True, slots=True)
class StaticFeeds:
    """The feeds of a router."""

    required: tuple[str, ...]
    wait_s: float = 0.0

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> StaticFeeds:
        """Read `router.toml`; InvalidConfig names what is wrong with it."""
        where = os.fspath(path)
        try:
            with open(where, "rb") as file:
                document = tomllib.load(file)
        except OSError as error:
            raise InvalidConfig(
                f"cannot read {where}: {error.strerror}; it names the required feeds"
            ) from error
        except tomllib.TOMLDecodeError as error:
            raise InvalidConfig(f"{where} is not TOML: {error}") from error
        return cls._checked(where, document)

    @classmethod
    def _checked(cls, where: str, document: dict[str, Any]) -> StaticFeeds:
        given = document.get("feeds")
        feeds: dict[str, Any] = given if isinstance(given, dict) else {}
        unknown = sorted((document.keys() - {"feeds"}) | (feeds.keys() - {"required", "wait_s"}))
        if unknown:
            raise InvalidConfig(
                f"{where} has unknown names {', '.join(unknown)}; valid are feeds.required and feeds.wait_s"
            )
        names = feeds.get("required")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise InvalidConfig(f'{where} needs [feeds] with required = ["venue", ...], got {given!r}')
        wait_s = feeds.get("wait_s", 0)
        if isinstance(wait_s, bool) or not isinstance(wait_s, int | float) or not 0 <= wait_s <= _WAIT_S_MAX:
            raise InvalidConfig(
                f"{where}: wait_s must be a number of seconds up to {_WAIT_S_MAX:.0f}, got {wait_s!r}"
            )
        for name in names:
            IpcLayout("").streams().raw_queue_dir(name)  # refuses what cannot be part of a path
        return cls(tuple(dict.fromkeys(names)), float(wait_s))

    def require(
        self, layout: IpcLayout, *, clock: Clock | None = None, fs: Fs | None = None
    ) -> dict[str, Path]:
        """Return the queue of every feed; QueueNotFound lists all that are missing when the wait is over."""
        time, files = clock or SystemClock(), fs or OsFs()
        places = {name: layout.streams().raw_queue_dir(name) for name in self.required}
        deadline_ns = time.monotonic_ns() + int(self.wait_s * NS_PER_S)
        while True:
            with io_errors(f"look for the feeds below {layout.root}"):
                missing = [
                    name for name in places if not ControlBlock.is_ready(files, os.fspath(places[name]))
                ]
            if not missing:
                return places
            if time.monotonic_ns() >= deadline_ns:
                listed = ", ".join(f"{name} ({places[name]})" for name in missing)
                raise QueueNotFound(
                    f"{len(missing)} of {len(places)} required feeds are missing: {listed}; start them "
                    f"first, or take them out of {ROUTER_FILE}"
                )
            time.sleep_ns(_LOOK_INTERVAL_NS)
