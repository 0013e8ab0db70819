"""When routers copy: in turns, before a destination is read, and not while a checkpoint begins.

Owns the order of passes, their pace and how much unsaved memory they may use; one pass is in `passes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from everlog.errors import Corrupt, LimitReached, StorageFailed
from everlog.topics.commits import COMMITTED, Commit
from everlog.topics.retention import sweep
from everlog.topics.routing.definitions import INTERVAL_NS, RECORDS_PER_PASS
from everlog.topics.routing.passes import Pass

if TYPE_CHECKING:
    from everlog.topics.core import Core
    from everlog.topics.routing.table import Router
    from everlog.topics.topic import Topic

COPIES_PER_TURN: Final = 4096
"""About two milliseconds of copying, after which requests get their turn."""
# Copies that are in no segment: so much memory asks for a checkpoint, and so much stops the copying.
MEMORY_SOFT: Final = 64 << 20
MEMORY_HARD: Final = 256 << 20
_PASSES_PER_READ: Final = 256
# A source is looked at again after so many times the duration of its last pass, so that copying one record
# to many destinations does not take all the time there is.
_PAUSE_FACTOR: Final = 4


class Forwarder:
    """The copying of one engine. `load` loads a segment that a pass has to read."""

    def __init__(self, core: Core, load: Callable[[int], object]) -> None:
        self._core = core
        self._load = load
        self._due_ns: dict[int, int] = {}
        self._is_running = False
        self._in_flight = 0
        self._resumed: Commit | None = None
        self._held: dict[int, int] = {}
        self.memory_bytes = 0
        self.passes = 0
        self.copies = 0
        self.last_error: Exception | None = None

    # --- Turns -------------------------------------------------------------------------------------------

    def due_ns(self) -> int | None:
        """When a turn has something to do, on the monotonic clock; None if nothing waits."""
        dirty = self._core.totals.unforwarded
        if not dirty:
            return None
        return min(self._due_ns.get(topic_id, 0) for topic_id in dirty)

    def stop(self) -> None:
        """Copy nothing: the topics are those of another server, which copies by itself."""
        self._is_running = True

    def turn(self, budget: int = COPIES_PER_TURN) -> int:
        """Copy what is due, about `budget` records; returns how many copies were made."""
        copied = 0
        clock = self._core.clock
        for source in list(self._core.totals.unforwarded.values()):
            start_ns = clock.monotonic_ns()
            if self._due_ns.get(source.topic_id, 0) > start_ns:
                continue
            made = self._run_pass(source, budget - copied)
            copied += made
            if source.topic_id in self._core.totals.unforwarded:
                pause_ns = 0 if made >= RECORDS_PER_PASS else INTERVAL_NS
                self._due_ns[source.topic_id] = start_ns + pause_ns
            else:
                pause_ns = min(INTERVAL_NS, _PAUSE_FACTOR * (clock.monotonic_ns() - start_ns))
                self._due_ns[source.topic_id] = start_ns + pause_ns
            if copied >= budget:
                break
        return copied

    def forward_pending(self, topic: Topic) -> Commit:
        """Copy everything that is pending for a topic.

        Done at once if its readers see all of it. Otherwise call again when the commit is done: more may be
        pending then.
        """
        if not topic.routes.feeders:
            return COMMITTED
        if self._resumed is not None:
            return self._resumed
        upstream = self._upstream(topic)
        for _ in range(_PASSES_PER_READ):
            if not sum(self._pass_and_write(source) for source in upstream):
                break
        for source in upstream:
            for router in source.routes.feeds:
                if not router.last_commit.done:
                    return router.last_commit
        return COMMITTED

    def forward_all(self) -> bool:
        """Copy everything that can be copied now; whether that was anything."""
        has_moved = False
        for _ in range(_PASSES_PER_READ):
            dirty = list(self._core.totals.unforwarded.values())
            if not sum(self._pass_and_write(source) for source in dirty):
                break
            has_moved = True
        return has_moved

    def forward_from(self, source: Topic) -> None:
        """Copy everything that is pending from a topic."""
        for _ in range(_PASSES_PER_READ):
            if not self._pass_and_write(source):
                return

    def _upstream(self, topic: Topic) -> list[Topic]:
        """The topics from which records can get here, those farthest away first."""
        found: dict[int, Topic] = {}

        def visit(dest: Topic) -> None:
            for router in dest.routes.feeders:
                source = router.source
                if source.topic_id not in found:
                    found[source.topic_id] = source
                    visit(source)

        visit(topic)
        return list(found.values())[::-1]

    def _pass_and_write(self, source: Topic) -> bool:
        """Make a pass and write it; whether a cursor moved."""
        if not any(router.is_behind for router in source.routes.feeds):
            return False
        before = [router.cursor for router in source.routes.feeds]
        self._run_pass(source, max(COPIES_PER_TURN, RECORDS_PER_PASS * len(before)))
        if self._core.shards:
            self._core.shards[source.shard].write()
        return before != [router.cursor for router in source.routes.feeds]

    # --- One pass ----------------------------------------------------------------------------------------

    def _run_pass(self, source: Topic, budget: int) -> int:
        """Make one pass over a source; returns how many copies were made."""
        routers = [router for router in source.routes.feeds if router.is_behind]
        if not routers or source.deleted:
            self._core.totals.unforwarded.pop(source.topic_id, None)
            return 0
        if self._is_running or self.memory_bytes >= MEMORY_HARD:
            return 0
        if self._resumed is not None and not source.routes.feeders:
            return 0  # a checkpoint is about to begin; only copies between routers go on
        self._is_running = True
        try:
            step = self._pass(source, routers, budget)
            if step.missing_source and not step.copied:
                self._load(step.missing_source)
                step = self._pass(source, routers, budget)
            return step.copied
        except (StorageFailed, LimitReached, Corrupt) as error:
            self.last_error = error  # the cursors are where they were; the next turn tries again
            return 0
        finally:
            self._is_running = False

    def _pass(self, source: Topic, routers: list[Router], budget: int) -> Pass:
        core = self._core
        now_ms = core.now_ms()
        sweep(core, source, now_ms)
        step = Pass(core, source, self._begun, self._over)
        limit = max(1, min(RECORDS_PER_PASS, budget // len(routers)))
        try:
            for router in routers:
                if self._may_run(router):
                    sweep(core, router.dest, now_ms)
                    step.advance(router, limit)
        finally:
            step.finish()
        self.passes += 1
        self.copies += step.copied
        self.memory_bytes += step.memory_bytes
        if not any(router.is_behind for router in source.routes.feeds):
            core.totals.unforwarded.pop(source.topic_id, None)
        return step

    def _may_run(self, router: Router) -> bool:
        if not router.is_active or router.cursor < self._held.get(router.source.topic_id, 0):
            return False
        order = router.dest.routes.order
        # Batches that the destination got before it had a router are visible first.
        return order is None or router.dest.visible >= order.start_seq - 1

    def _begun(self) -> None:
        self._in_flight += 1

    def _over(self) -> None:
        self._in_flight -= 1

    # --- Checkpoints -------------------------------------------------------------------------------------

    def prepare_checkpoint(self) -> bool:
        """Make no more passes until a checkpoint has begun; True when no copies are pending.

        A checkpoint saves the copies that are visible when it begins. If it is needed after a crash, later
        ones are made again from the log behind it. So the first call passes on what it can, and what is left
        of the records of that moment is not passed on before the snapshot is made.
        """
        is_first = self._resumed is None
        self.forward_all()
        if is_first:
            self._held = {router.source.topic_id: router.source.visible for router in self._core.routers}
            self._resumed = Commit()
        return self._in_flight == 0

    def checkpoint_begun(self) -> None:
        """What is visible now will be saved: passes may be made again."""
        # Copies are in no log, so of topics between two others this is the moment that counts.
        for router in self._core.routers:
            if router.source.routes.feeders:
                self._held[router.source.topic_id] = router.source.visible
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            resumed.finish()

    def checkpoint_over(self) -> None:
        """The snapshot is made, or there will be none: the records of before need not wait any longer."""
        self._held = {}
        self.measure()

    def measure(self) -> None:
        """Count the memory of copies that are in no segment."""
        core = self._core
        dests = {router.dest.topic_id: router.dest for router in core.routers}
        self.memory_bytes = sum(
            dest.storage.chunks.held_bytes
            for dest in dests.values()
            if dest.storage.chunks is not None and core.is_logged(dest)
        )

    @property
    def wants_checkpoint(self) -> bool:
        """Whether unsaved copies take much memory."""
        return self.memory_bytes >= MEMORY_SOFT
