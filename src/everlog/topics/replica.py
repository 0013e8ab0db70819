"""A read-only copy of a directory that another server ships: followed, and shown by an engine at a time.

Owns the views. A view is an engine on the files of the copy, made by the recovery that a start would do, so
what it shows is what a promotion would have. When more was shipped the next view is made beside it, on
another thread; then the watchers go over to it. It costs about as much as a start: the log since the last
checkpoint of the primary, and the indexes of all segments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from everlog.clock import Clock, SystemClock
from everlog.errors import EverlogError
from everlog.fs import Fs, OsFs
from everlog.objects import open_store
from everlog.topics.config import EngineSettings
from everlog.topics.core import NS_PER_MS, Core
from everlog.topics.delivery.delivery import Delivery
from everlog.topics.delivery.scheduler import NOT_WAITING
from everlog.topics.due_topics import DueTopics
from everlog.topics.engine import Engine
from everlog.topics.storage.bulk_view import ReadOnlyFs
from everlog.topics.storage.failures import StorageFailures
from everlog.topics.storage.recovery import recover_copy
from everlog.topics.storage.restoring import COPY_BOOT_ID, Restored, Restorer
from everlog.topics.storage.shipping import read_manifest
from everlog.topics.storage.store import Store, lanes_for
from everlog.topics.storage.syncs import ThreadSyncs

_FAILURE: Final = "backup"


class Replica:
    """Follows the shipments at `url` into `data_dir`. `open`, `refresh` and `close` block; one at a time."""

    def __init__(
        self,
        url: str,
        data_dir: str,
        settings: EngineSettings,
        *,
        clock: Clock | None = None,
        fs: Fs | None = None,
        wake: Callable[[], None] | None = None,
    ) -> None:
        fs = fs or OsFs()
        self._store = open_store(url, fs=fs)
        self._data_dir = data_dir
        self._settings = settings
        self._clock = clock or SystemClock()
        self._restorer = Restorer(self._store, data_dir, fs)
        self._syncs = ThreadSyncs(lanes_for(settings), wake)
        self._delivery = Delivery(self._clock)
        self._failures = StorageFailures(self._clock)
        self._followed_ns = 0
        self._engine: Engine | None = None
        self._shown: Restored | None = None
        self._view: Core | None = None
        self._earlier: Core | None = None

    def open(self) -> Engine:
        """Fill the directory, and show what it holds."""
        self._followed_ns = self._clock.monotonic_ns()
        self._restorer.restore(is_final=False)
        return self._show(self._primary())

    @property
    def restored(self) -> Restored:
        """What the directory holds."""
        return self._restorer.restored

    def refresh(self) -> Engine | None:
        """Take what was shipped since; a new view if that was anything. Store failures are reported."""
        assert self._engine is not None, "it is opened first"
        began_ns = self._clock.monotonic_ns()
        if self._earlier is not None:
            _discard(self._earlier)  # the watchers have left it a round ago
            self._earlier = None
        if self._shown is not None and self._shown.base == self.restored.base:
            self._restorer.prune()
        try:
            self._restorer.follow()
            self._engine.primary = self._primary()
            is_new = self.restored != self._shown
            view = self._show(self._engine.primary) if is_new else None
        except EverlogError as error:
            self._failures.report(_FAILURE, error, self._store.url)
            return None
        self._failures.succeeded(_FAILURE)
        self._followed_ns = began_ns
        return view

    def move_watchers(self) -> None:
        """On the thread of the engines: the watchers go over from the view before to the newest one."""
        if self._view is not None and self._earlier is not None:
            _move_watchers(self._earlier, self._view)

    def close(self) -> None:
        """Unlock the directory."""
        self._restorer.close()

    def _primary(self) -> str:
        """The address of the one who ships; empty if it has none."""
        found = read_manifest(self._store)
        return "" if found is None else found[0].address

    def _show(self, primary: str) -> Engine:
        core = Core(self._settings, self._clock, ReadOnlyFs(COPY_BOOT_ID), self._delivery)
        core.failures = self._failures
        store = Store(core, self._data_dir, self._syncs, is_copy=True)
        store.copy_lag_ms = self._lag_ms
        recover_copy(core, store)
        engine = Engine(core, store, self._syncs, primary=primary)
        self._earlier, self._view, self._engine = self._view, core, engine
        self._shown = self.restored
        return engine

    def _lag_ms(self) -> int:
        """How long ago the last round began that has found everything there was."""
        return (self._clock.monotonic_ns() - self._followed_ns) // NS_PER_MS


def _move_watchers(before: Core, core: Core) -> None:
    """Let those who wait for a change of a topic wait for the next one, or tell them that there was one."""
    core.created = before.created
    now_ms = core.now_ms()
    for topic in [topic for topic in before.topics.values() if topic.schedule.waiters]:
        waiting, found = topic.schedule, core.topics.get(topic.name)
        was_dirty = waiting.band != NOT_WAITING
        core.delivery.forget(waiting)
        if found is None or found.topic_id != topic.topic_id:
            waiting.serve()
            continue
        found.schedule.waiters, waiting.waiters = waiting.waiters, {}
        found.schedule.last_read_ts = waiting.last_read_ts
        if was_dirty or found.visible != topic.visible:
            found.schedule.mark_dirty(now_ms)
    for name, topic in core.topics.items() if core.created else ():
        known = before.topics.get(name)
        if known is None or known.topic_id != topic.topic_id:
            for tell in core.created:
                tell(name)


def _discard(core: Core) -> None:
    """Free the memory of a view: topics and totals refer to each other."""
    totals = core.totals
    core.topics.clear()
    core.by_id.clear()
    for topics in (totals.consumed, totals.evicted, totals.keyed, totals.sealed, totals.shrunk):
        topics.clear()
    totals.unreclaimed.clear()
    totals.unsaved.clear()
    totals.due = DueTopics()
