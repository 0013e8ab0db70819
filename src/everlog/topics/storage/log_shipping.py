"""The shipper of a running engine: a thread that ships the log, and what is known of how far it is.

Owns the thread. The engine asks whether a place of the log is in the store (`end_of`) and whether another
server has taken over (`failure`); both answer at once. A store that fails is tried again for as long as the
engine runs: with `ack = "shipped"` writes wait meanwhile, otherwise they go on and the lag grows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from everlog.clock import NS_PER_S, Clock
from everlog.errors import EverlogError, StorageFailed, Superseded
from everlog.topics.storage.failures import StorageFailures
from everlog.topics.storage.shipping import Shipper

RETRY_NS: Final = NS_PER_S
CLOSE_NS: Final = 10 * NS_PER_S
INTERVAL_MS_MAX: Final = 3_600_000
_NS_PER_MS: Final = 1_000_000


class LogShipping:
    """Ships every `interval_ms`, or as soon as it is asked to. `wake` is called when something is shipped."""

    def __init__(
        self,
        shipper: Shipper,
        clock: Clock,
        failures: StorageFailures,
        *,
        interval_ms: int,
        url: str,
        wake: Callable[[], None] | None = None,
    ) -> None:
        self._shipper = shipper
        self._clock = clock
        self._failures = failures
        self._interval_ns = min(interval_ms, INTERVAL_MS_MAX) * _NS_PER_MS
        self._url = url
        self._wake = wake
        self._requested = threading.Event()
        self._stopping = threading.Event()
        self._is_abandoned = False
        self._deadline_ns = 0
        self._ends: dict[int, int] = {}
        self._shipped_ns = clock.monotonic_ns()
        self.superseded: Superseded | None = None
        self._thread = threading.Thread(target=self._run, name="everlog-ship", daemon=True)

    def start(self) -> None:
        """Begin to ship."""
        self._thread.start()

    def request(self) -> None:
        """Something waits for what is in the log now. May be called on any thread."""
        self._requested.set()

    def end_of(self, file_number: int) -> int:
        """Up to where a log file is in the store."""
        return self._ends.get(file_number, 0)

    @property
    def failure(self) -> StorageFailed | None:
        """Why nothing more can be acknowledged: another server has taken over, or this one is closing."""
        if self.superseded is None and self._deadline_ns and self._clock.monotonic_ns() > self._deadline_ns:
            return StorageFailed(f"{self._url} did not answer while the engine was closed; see its log")
        return self.superseded

    def begin_close(self, timeout_ns: int = CLOSE_NS) -> None:
        """Writes that still wait are given up after so long; a later call counts from then on."""
        self._deadline_ns = self._clock.monotonic_ns() + timeout_ns

    @property
    def lag_ms(self) -> int:
        """How long ago the last round began that has shipped everything there was."""
        return (self._clock.monotonic_ns() - self._shipped_ns) // _NS_PER_MS

    def close(self, timeout_s: float = 10.0) -> None:
        """Stop after one more round, or without it if the store does not answer in time."""
        self._stopping.set()
        self._requested.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def abandon(self) -> None:
        """Stop without another round, as a crash would; one that is running may still end."""
        self._is_abandoned = True
        self.close(0)

    def _run(self) -> None:
        while self.superseded is None and not self._is_abandoned:
            is_last = self._stopping.is_set()
            self._requested.clear()
            has_shipped = self._round()
            if is_last:
                return
            if has_shipped:
                self._clock.wait(self._requested, self._interval_ns)
            else:
                self._clock.wait(self._stopping, RETRY_NS)  # requests do not hurry the next try

    def _round(self) -> bool:
        """Ship once; False if that has to be tried again."""
        began_ns = self._clock.monotonic_ns()
        try:
            report = self._shipper.round()
        except Superseded as error:
            self.superseded = error
            self._failures.report("backup", error, self._url)
            self._wake_owner()
            return True
        except EverlogError as error:
            self._failures.report("backup", error, self._url)
            return False
        self._failures.succeeded("backup")
        # Only now, when a base is there as well: what waits is told that it can be restored.
        self._ends = dict(self._shipper.shipped)
        self._shipped_ns = began_ns
        if report.shipments:
            self._wake_owner()
        return True

    def _wake_owner(self) -> None:
        if self._wake is not None:
            # The owner's loop may be closed already.
            with suppress(Exception):
                self._wake()
