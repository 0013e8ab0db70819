"""What both bridges share while they run: requests, retries, counters and progress.

What is forwarded, and how it is exactly once, is in `queue_to_topic` and `topic_to_queue`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, Protocol, TypeVar

from everlog.bridge.metrics import BridgeMetrics
from everlog.client import ApiFailed, Client
from everlog.client.retrying import Backoff
from everlog.clock import NS_PER_S, Clock, StopEvent, SystemClock
from everlog.fs import Fs, OsFs

NOT_FOUND: Final = 404
READ_LIMIT: Final = 1000
READ_BYTES: Final = 8 << 20
PROGRESS_NS: Final = NS_PER_S // 2

Warn = Callable[[str, str], None]
T = TypeVar("T")


class Stopped(Exception):
    """The bridge was stopped while it waited for the server."""


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
        """The name of the bridge."""
        ...


Settings = TypeVar("Settings", bound=Named)


class Bridge(Generic[Settings]):
    """A bridge that runs until it is stopped, or once to the end of what is there."""

    direction: ClassVar[str]
    back_again: ClassVar[str]
    """The warning when the server answers again."""

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
        self.stop = StopEvent()
        self._client = client
        self._settings = settings
        self._metrics = metrics or BridgeMetrics(settings.name, self.direction)
        self._clock = clock or SystemClock()
        self._fs = fs or OsFs()
        self._warn = warn or (lambda code, message: None)
        self._on_progress = on_progress
        self._started_ns = 0
        self._shown_ns = 0
        self._is_away = False
        self._set_up()

    def _set_up(self) -> None:
        """Make what only this kind of bridge has."""

    def _until_answered(self, ask: Callable[[], T]) -> T:
        """Call `ask` until the server answers; raises `Stopped` if the bridge is stopped meanwhile."""
        backoff = Backoff()
        while True:
            try:
                answer = ask()
            except ApiFailed as error:
                if not self._may_pass(error):
                    raise
                self._pause(error, backoff)
                self._heartbeat()
            else:
                self._mark_connected()
                return answer

    def _heartbeat(self) -> None:
        """Keep the bridge's own reader or writer alive between two tries, if it needs that."""

    def _may_pass(self, error: ApiFailed) -> bool:
        """Whether a later request may succeed."""
        return error.is_busy or error.is_outage

    def _pause(self, error: ApiFailed, backoff: Backoff) -> None:
        """Wait before the next try, with a warning at the first; raises `Stopped`."""
        if not self._is_away:
            self._is_away = True
            self._metrics.connected.set(0)
            self._warn(error.code, f"{error}; trying again until it works")
        self.progress.retries += 1
        self._metrics.retries.inc()
        if self.stop.wait(backoff.pause_s(error)):
            raise Stopped

    def _mark_connected(self) -> None:
        self._metrics.connected.set(1)
        if self._is_away:
            self._is_away = False
            self._warn("server_back", self.back_again)

    def _count(self, records: int, last_seq: int | None, *, gaps: int = 0, deduplicated: int = 0) -> None:
        """Count a confirmed batch; `last_seq` is that of its last record in the source."""
        progress, metrics = self.progress, self._metrics
        progress.forwarded += records
        progress.batches += 1
        progress.gaps += gaps
        progress.deduplicated += deduplicated
        metrics.forwarded.inc(records)
        metrics.batches.inc()
        metrics.gaps.inc(gaps)
        metrics.deduplicated.inc(deduplicated)
        if last_seq is not None:
            progress.last_seq = last_seq
            metrics.last_seq.set(last_seq)

    def _measure_lag(self) -> None:
        """Update the lag before it is shown; a no-op if every read does so."""

    def _show_progress(self, *, is_last: bool = False) -> None:
        now_ns = self._clock.monotonic_ns()
        if not is_last and now_ns - self._shown_ns < PROGRESS_NS:
            return
        self._shown_ns = now_ns
        self._measure_lag()
        self.progress.elapsed_s = (now_ns - self._started_ns) / NS_PER_S
        if self._on_progress is not None:
            self._on_progress(self.progress)
