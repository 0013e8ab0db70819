"""Finding the queues of others: strategies for a router, one queue for a subscriber.

Owns what was last seen, and when. Looks at directories and opens readers; takes no safety
action and keeps no state machine: it reports, the application decides. All of it belongs on a
sidecar thread, never on the hot one. Each object is for one thread at a time.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeAlias

from everlog.bus.layout import ORDERS_OUT, IpcLayout
from everlog.bus.markers import is_ready
from everlog.bus.watch import DirectoryWatches
from everlog.clock import NS_PER_S, Clock, SystemClock
from everlog.errors import Closed, InvalidConfig, InvalidName, Io
from everlog.fs import Fs, OsFs
from everlog.queue import DisconnectReason, Queue, QueueReader, StartMode, WaitStrategy
from everlog.queue.layout import READY_FILE

RESCAN_INTERVAL_S = 0.5
POLL_INTERVAL_S = 0.5
WRITER_TTL_S = 5.0

# Two watches per strategy and three above them: room for two thousand strategies, and far
# below the kernel's usual limit per user.
MAX_WATCHES = 4096


@dataclass(frozen=True, slots=True)
class Added:
    """A strategy has become ready; `orders_out` is the queue to read its orders from."""

    strategy: str
    orders_out: Path


@dataclass(frozen=True, slots=True)
class Removed:
    """A strategy has withdrawn its READY marker or its directory: drain and close its reader."""

    strategy: str


RouterEvent: TypeAlias = Added | Removed


class RouterDiscovery:
    """Which strategies are ready, as a stream of differences.

    A strategy is known while `orders/queue/<id>/orders_out/READY` is a regular file. `poll`
    returns what changed since the previous `poll`; two polls without a change in between return
    nothing the second time, however often the watch fired. A strategy that vanished and came
    back between two polls is not reported by `poll`; its reader notices.

    The directories are looked at again when inotify reports a change (on the bus root, `orders`,
    `orders/queue`, every strategy and every `orders_out`) and, whatever inotify says, once
    `rescan_interval_s` has passed. Every directory is watched before it is looked at, so a
    marker that appears during the look is reported by the watch.
    """

    def __init__(
        self,
        layout: IpcLayout,
        *,
        rescan_interval_s: float = RESCAN_INTERVAL_S,
        max_watches: int = MAX_WATCHES,
        clock: Clock | None = None,
        fs: Fs | None = None,
    ) -> None:
        self._layout = layout
        self._orders = layout.orders()
        self._rescan_interval_ns = _interval_ns("rescan_interval_s", rescan_interval_s)
        self._clock: Clock = clock or SystemClock()
        self._fs: Fs = fs or OsFs()
        self._watches = DirectoryWatches(max_watches)
        self._known: set[str] = set()
        self._scanned_ns: int | None = None  # None: never, or the last scan failed
        self._closed = False

    @property
    def known(self) -> frozenset[str]:
        """The strategies reported as added and not yet as removed."""
        return frozenset(self._known)

    @property
    def degraded_reason(self) -> str | None:
        """None while inotify watches everything; otherwise why changes may wait for the rescan.

        Not an error: nothing is missed, it only takes up to `rescan_interval_s` to be seen.
        Every rescan tries again.
        """
        return self._watches.degraded_reason

    @property
    def watch_count(self) -> int:
        """Number of directories under watch, at most `max_watches`."""
        return self._watches.count

    def poll(self) -> list[RouterEvent]:
        """Return what was removed and added since the last poll, in order of strategy id.

        Never sleeps. If the directories cannot be read, `Io` is raised, nothing is considered
        removed, and the next poll looks again.
        """
        self._check_open()
        fired = self._watches.fired()
        now_ns = self._clock.monotonic_ns()
        if not fired and self._until_rescan_ns(now_ns) > 0:
            return []
        self._scanned_ns = None
        ready = self._scan()
        self._scanned_ns = now_ns
        events: list[RouterEvent] = [Removed(strategy) for strategy in sorted(self._known - ready.keys())]
        events += [Added(strategy, ready[strategy]) for strategy in sorted(ready.keys() - self._known)]
        self._known = set(ready)
        return events

    def wait(self, timeout_s: float) -> None:
        """Sleep until a watch fires, a rescan is due, or `timeout_s` is over. Then `poll`."""
        self._check_open()
        due_ns = self._until_rescan_ns(self._clock.monotonic_ns())
        timeout_ns = max(0, min(due_ns, int(timeout_s * NS_PER_S)))
        if self._watches.watching:
            self._watches.wait(timeout_ns / 1_000_000)
        else:
            self._clock.sleep_ns(timeout_ns)

    def close(self) -> None:
        """Stop watching. The readers that were opened after `Added` are not touched."""
        self._closed = True
        self._watches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this RouterDiscovery was closed; create a new one to go on")

    def _until_rescan_ns(self, now_ns: int) -> int:
        if self._scanned_ns is None:
            return 0
        return self._scanned_ns + self._rescan_interval_ns - now_ns

    def _scan(self) -> dict[str, Path]:
        """Renew every watch, and return the `orders_out` of each strategy that is ready."""
        queue_root = self._orders.queue_root
        self._watches.begin()
        self._watches.watch(os.fspath(self._layout.root), self._orders.root.name)
        self._watches.watch(os.fspath(self._orders.root), queue_root.name)
        self._watches.watch(os.fspath(queue_root), None)
        ready: dict[str, Path] = {}
        for strategy in self._strategies():
            try:
                orders_out = self._orders.strategy_endpoints(strategy).orders_out
            except InvalidName:
                continue  # not a valid strategy id: some other directory
            self._watches.watch(os.fspath(orders_out.parent), ORDERS_OUT)
            self._watches.watch(os.fspath(orders_out), READY_FILE)
            if is_ready(orders_out):
                ready[strategy] = orders_out
        self._watches.end()
        return ready

    def _strategies(self) -> list[str]:
        root = os.fspath(self._orders.queue_root)
        try:
            return self._fs.listdir(root)
        except (FileNotFoundError, NotADirectoryError):
            return []  # the bus does not exist yet
        except OSError as error:
            raise Io(f"cannot list {root}: {error.strerror}; check its permissions", error.errno) from error


@dataclass(frozen=True, slots=True)
class Connected:
    """The queue could be opened; the application now owns `reader` and closes it."""

    reader: QueueReader


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The writer behind the current reader is lost or silent, or its segment was deleted."""

    reason: DisconnectReason


@dataclass(frozen=True, slots=True)
class Waiting:
    """There is no queue to open yet."""


SubscriberEvent: TypeAlias = Connected | Disconnected | Waiting


class SubscriberDiscovery:
    """Watches one queue for a subscriber, and reports when to connect or to disconnect.

    The application owns the state machine: it passes the reader it has (or None), acts on what
    it gets, and takes the safety action that fits (a strategy should cancel all orders when it
    is disconnected). A typical turn on a sidecar thread::

        for event in discovery.poll(reader):
            match event:
                case Connected(opened): reader = opened
                case Disconnected(reason): cancel_all(); reader.close(); reader = None
                case Waiting(): pass

    Close the old reader before the next poll: a reader name can be open only once. `Connected`
    says that the queue can be read, also when its writer is dead (there may be unread records);
    ask `reader.writer_status()` before relying on new ones, and if `writer_epoch` changed or
    the sequence has a gap, rebuild from a snapshot.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        reader: str | None,
        *,
        start: StartMode | str = StartMode.RESUME_STRICT,
        poll_interval_s: float = POLL_INTERVAL_S,
        writer_ttl_s: float = WRITER_TTL_S,
        wait_strategy: WaitStrategy | None = None,
        clock: Clock | None = None,
        fs: Fs | None = None,
    ) -> None:
        self._path = os.fspath(path)
        self._reader = reader
        self._start = start
        self._poll_interval_ns = _interval_ns("poll_interval_s", poll_interval_s)
        self._writer_ttl_s = writer_ttl_s
        self._wait_strategy = wait_strategy
        self._clock = clock
        self._time: Clock = clock or SystemClock()
        self._fs = fs
        self._polled_ns: int | None = None

    def poll(self, current: QueueReader | None) -> list[SubscriberEvent]:
        """Look once, unless the last look is less than `poll_interval_s` ago (then: nothing).

        With a reader: `[Disconnected(reason)]`, or nothing while all is well. Without one:
        `[Connected(reader)]` or `[Waiting()]`. What `Queue.try_open_subscriber` raises (a
        missing segment under `resume-strict`, a name in use) is raised here too.
        """
        now_ns = self._time.monotonic_ns()
        if self._polled_ns is not None and now_ns - self._polled_ns < self._poll_interval_ns:
            return []
        self._polled_ns = now_ns
        if current is not None:
            reason = current.detect_disconnect(self._writer_ttl_s)
            return [] if reason is None else [Disconnected(reason)]
        reader = Queue.try_open_subscriber(
            self._path,
            self._reader,
            self._start,
            wait_strategy=self._wait_strategy,
            clock=self._clock,
            fs=self._fs,
        )
        return [Waiting()] if reader is None else [Connected(reader)]


def _interval_ns(name: str, interval_s: float) -> int:
    if not (math.isfinite(interval_s) and interval_s >= 0):
        raise InvalidConfig(f"{name} is {interval_s}; it must be 0 (always) or a number of seconds above 0")
    return int(interval_s * NS_PER_S)
