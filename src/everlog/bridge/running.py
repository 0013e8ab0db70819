"""What both bridges have in common while they run: their parts, their patience, and what they tell.

Owns the state of the connection and the pace of progress; what is forwarded, and how it is exactly once, is
in `queue_to_topic` and `topic_to_queue`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, Protocol, TypeVar

from everlog.bridge.metrics import BridgeMetrics
from everlog.client import ApiFailed, Client
from everlog.client.retrying import Backoff
from everlog.clock import NS_PER_S, Clock, SystemClock
from everlog.fs import Fs, OsFs

PROGRESS_NS: Final = NS_PER_S // 2

Warn = Callable[[str, str], None]


@dataclass(slots=True)
class Progress:
    """What a run has done so far."""

    forwarded: int = 0
    batches: int = 0
    deduplicated: int = 0
    retries: int = 0
    gaps: int = 0
    last_seq: int | None = None
    lag: int = 0
    elapsed_s: float = 0.0
    is_in_doubt: bool = False


class Named(Protocol):
    """Settings of a bridge."""

    @property
    def name(self) -> str:
        """What the bridge is called."""
        ...


Settings = TypeVar("Settings", bound=Named)


class Bridge(Generic[Settings]):
    """A bridge that is run until it is stopped, or once to the end of what is there."""

    direction: ClassVar[str]
    back_again: ClassVar[str]
    """What is said when the server answers again."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        *,
        metrics: BridgeMetrics | None = None,
        clock: Clock | None = None,
        fs: Fs | None = None,
        warn: Warn | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.progress = Progress()
        self.stop = threading.Event()
        self._client = client
        self._settings = settings
        self._metrics = metrics or BridgeMetrics(settings.name, self.direction)
        self._clock = clock or SystemClock()
        self._fs = fs or OsFs()
        self._warn = warn or (lambda code, message: None)
        self._on_progress = on_progress
        self._started_ns = 0
        self._told_ns = 0
        self._is_away = False
        self._set_up()

    def _set_up(self) -> None:
        """Make what only this kind of bridge has."""

    def _wait_for_server(self, error: ApiFailed, backoff: Backoff) -> bool:
        """Tell that the server is away, once, and pause; whether the bridge was stopped meanwhile."""
        if not self._is_away:
            self._is_away = True
            self._metrics.connected.set(0)
            self._warn(error.code, f"{error}; trying again until it works")
        self.progress.retries += 1
        self._metrics.retries.inc()
        return self.stop.wait(backoff.pause_s(error))

    def _is_back(self) -> None:
        self._metrics.connected.set(1)
        if self._is_away:
            self._is_away = False
            self._warn("server_back", self.back_again)

    def _measure_lag(self) -> None:
        """Bring the lag up to date before it is told; nothing to do if every read does so."""

    def _show_progress(self, *, is_last: bool = False) -> None:
        now_ns = self._clock.monotonic_ns()
        if not is_last and now_ns - self._told_ns < PROGRESS_NS:
            return
        self._told_ns = now_ns
        self._measure_lag()
        self.progress.elapsed_s = (now_ns - self._started_ns) / NS_PER_S
        if self._on_progress is not None:
            self._on_progress(self.progress)
