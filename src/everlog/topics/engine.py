"""The topics engine: ordered logs with four durability classes, as a library.

Owns the public operations and the turn of the loop (`write`, `poll`). One thread owns an engine and
everything in it; disk work that can wait runs in the lanes of a `SyncRunner`. How a batch gets in is in
`append`, how records get out in `reading`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from everlog.api_types import Durability, StorageHealth, StorageStatus, TopicAccount
from everlog.clock import Clock, SystemClock
from everlog.errors import Closed, EverlogError, Io, StorageFailed
from everlog.fs import Fs, OsFs
from everlog.job_types import JobMembers
from everlog.native.topics.log import RecordBatch
from everlog.topics import append, catalogue, deletion, reading, retention
from everlog.topics.append import ByteQuota
from everlog.topics.commits import COMMITTED, Commit
from everlog.topics.config import U64_MAX, EngineSettings, TopicConfig
from everlog.topics.core import NS_PER_MS, Core
from everlog.topics.counting import TopicCount
from everlog.topics.delivery.consumers import Consumers
from everlog.topics.delivery.delivery import BUDGET_NS, Delivery, Drain, RouterWork
from everlog.topics.delivery.scheduler import TopicSchedule
from everlog.topics.due_work import run_due
from everlog.topics.filters import Filter
from everlog.topics.jobs.job_admin import JobAdmin
from everlog.topics.jobs.job_calls import JobCalls
from everlog.topics.jobs.schedules import Schedules
from everlog.topics.jobs.steps import Steps
from everlog.topics.records import AnyRecord
from everlog.topics.results import (
    Appended,
    Diff,
    EngineCounts,
    EngineVitals,
    RecordsDeleted,
    TopicDeleted,
    TopicPut,
)
from everlog.topics.routing import routers
from everlog.topics.routing.definitions import RouterConfig, RouterDeleted, RouterPut, RouterState
from everlog.topics.routing.forwarding import COPIES_PER_TURN, Forwarder
from everlog.topics.storage.checkpoint import Checkpointer
from everlog.topics.storage.failures import WRITE_FAILURES, cause_of
from everlog.topics.storage.recovery import Progress, open_store
from everlog.topics.storage.store import RecoveryReport, Store, lanes_for
from everlog.topics.storage.syncs import WINDOW_MIN_NS, InlineSyncs, SyncRunner, ThreadSyncs
from everlog.topics.summaries import Summaries
from everlog.topics.topic import Topic, TopicState
from everlog.topics.vitals import vitals_of, wal_metrics

NS_PER_S: Final = 1_000_000_000
T = TypeVar("T")


class Engine(JobCalls):
    """All topics of one data directory, or of none: then everything is in memory only.

    Answers carry a `commit`: an answer may be shown once that is done without an error.
    """

    def __init__(
        self, core: Core, store: Store | None, syncs: SyncRunner, *, primary: str | None = None
    ) -> None:
        """With `primary` the directory is a copy that only its owner changes; see `replica`."""
        self.primary = primary
        """Where writes belong, as far as it is known; None: they belong here."""
        self._core = core
        self.delivery: Delivery = core.delivery
        self._store = store
        self._syncs = syncs
        self._closed = False
        self._is_distrusted = False
        self._commit_floor_ns = self.delivery.commit_floor_ns
        self._forwarder = core.forwarder = Forwarder(core, self._load_segment)
        self._router_work = RouterWork(core.totals.unforwarded.values, self.forward_turn)
        has_log = store is not None and primary is None
        self._checkpointer = Checkpointer(core, store, syncs) if store is not None and has_log else None
        if primary is not None:
            self._forwarder.stop()
        self.schedules = Schedules(core, self._check_open)
        self.jobs = JobAdmin(core, self._check_open, self._fetch_segment, self._forwarder.forward_pending)
        self.consumers = Consumers(core, self._check_open, self._forwarder.forward_pending)
        self.summaries = Summaries(self._core, self._check_open)

    @classmethod
    def open(
        cls,
        data_dir: str | os.PathLike[str] | None,
        settings: EngineSettings | None = None,
        *,
        clock: Clock | None = None,
        fs: Fs | None = None,
        syncs: SyncRunner | None = None,
        wake: Callable[[], None] | None = None,
        progress: Callable[[Progress], None] | None = None,
        fills_later: bool = False,
    ) -> Engine:
        """Open a data directory, recovering what it holds, or start in memory.

        `syncs` defaults to one thread per shard, one for checkpoints and one for cold reads; `wake` is
        called from these threads when `poll` has something to do. `progress` is called during recovery.
        With `fills_later` topics of class `memory` are loaded by later polls, and refused with `NotReady`
        until they are; and if recovery cannot do without an object store that is away, it waits for it.
        """
        settings = settings or EngineSettings()
        core = Core(settings, clock or SystemClock(), fs or OsFs())
        if data_dir is None:
            return cls(core, None, syncs or InlineSyncs())
        runner = syncs or ThreadSyncs(lanes_for(settings), wake)
        try:
            store = open_store(core, os.fspath(data_dir), runner, progress, fills_later=fills_later)
        except BaseException:
            runner.close()
            raise
        try:
            store.begin_shipping(wake)
        except BaseException:
            store.abandon()
            runner.close()
            raise
        return cls(core, store, runner)

    # --- Topics ------------------------------------------------------------------------------------------

    def put_topic(self, name: str, config: TopicConfig | None = None) -> TopicPut:
        """Create a topic, or replace the whole configuration of an existing one."""
        return self.run_steps(self.put_steps(name, config))

    def put_steps(self, name: str, config: TopicConfig | None = None) -> Steps[TopicPut]:
        """Begin a `put_topic`: its steps are short, however many records a change of the class has to log."""
        self._check_open()
        return catalogue.put_steps(self._core, name, config or TopicConfig())

    def delete_topic(self, name: str, *, if_empty: bool = False) -> TopicDeleted:
        """Delete a topic and all it holds; an absent one is no error. The next one starts at seq 1."""
        self._check_open()
        return catalogue.delete_topic(self._core, name, if_empty)

    def state(self, name: str, *, touch: bool = True) -> TopicState:
        """Report a topic; without `touch` that does not count as consuming it."""
        self._check_open()
        topic = catalogue.find(self._core, name)
        if topic.routes.feeders:
            self._forwarder.forward_pending(topic)
        now_ms = self._core.now_ms()
        retention.sweep(self._core, topic, now_ms)
        if touch:
            self._touch(topic, now_ms)
        return topic.state(now_ms)

    def account(self, name: str, from_seq: int = 0, to_seq: int = U64_MAX) -> TopicAccount:
        """Account for the seqs behind `from_seq`; does not count as consuming the topic."""
        self._check_open()
        topic = catalogue.find(self._core, name)
        if topic.routes.feeders:
            self._forwarder.forward_pending(topic)
        retention.sweep(self._core, topic, self._core.now_ms())
        return retention.account(topic, from_seq, to_seq)

    def has_topic(self, name: str) -> bool:
        """Whether there is a topic of this name."""
        return name in self._core.topics

    def durability_of(self, name: str) -> Durability | None:
        """Return the class of a topic, None if there is none."""
        topic = self._core.topics.get(name)
        return None if topic is None else topic.durability

    def commit_times_ns(self, name: str) -> tuple[int, int]:
        """How long the last write and the last sync took that commits to this topic waited for; 0 if none."""
        topic = self._core.topics.get(name)
        if topic is None or not self._core.is_logged(topic):
            return 0, 0
        metrics = self._core.shards[topic.shard].wal.metrics
        # Syncs are measured in microseconds; one that took less was still made.
        synced_ns = max(metrics.fsync_ns_last, 1000) if topic.durability is Durability.FSYNC else 0
        return metrics.write_ns_last, synced_ns

    def topics(self, prefix: str = "", after: str | None = None, limit: int = 100) -> list[TopicState]:
        """Report topics in byte order of their names, beginning behind the name `after`."""
        self._check_open()
        return [self._report(topic) for topic in catalogue.list_topics(self._core, prefix, after, limit)]

    def _report(self, topic: Topic) -> TopicState:
        if topic.routes.feeders:
            self._forwarder.forward_pending(topic)
        now_ms = self._core.now_ms()
        retention.sweep(self._core, topic, now_ms)
        return topic.state(now_ms)

    def on_topic_created(self, callback: Callable[[str], None]) -> None:
        """Call back with the name of every topic that is created from now on, as soon as it is committed.

        That may be the middle of a change: the callback only notes it.
        """
        self._core.created.append(callback)

    @property
    def checkpoint_ns(self) -> int:
        """How long the last checkpoint took; 0 if there was none."""
        return 0 if self._checkpointer is None else self._checkpointer.last_duration_ns

    @property
    def key_count(self) -> int:
        """How many idempotency keys are remembered."""
        return self._core.totals.keys

    @property
    def topic_count(self) -> int:
        """How many topics there are."""
        return len(self._core.topics)

    def count_topics(self, is_shown: Callable[[str], bool], limit: int) -> TopicCount:
        """Begin to count all topics; `limit` of those that `is_shown` are reported by themselves."""
        self._check_open()
        return TopicCount(self._core, self._report, is_shown, limit)

    def counts(self, counted: TopicCount | None = None) -> EngineCounts:
        """Count topics, live records and what the log has done; looks at every topic without `counted`."""
        if counted is None:
            counted = TopicCount(self._core, self._report, lambda _: False, 0)
            while not counted.step():
                pass
        return EngineCounts(
            topics=counted.topics,
            by_class=counted.by_class,
            records_live=counted.records_live,
            bytes_live=counted.bytes_live,
            read_only=sum(shard.wal.read_only is not None for shard in self._core.shards),
            queue_depth=sum(shard.depth for shard in self._core.shards),
            queue_depth_peak=sum(shard.depth_peak for shard in self._core.shards),
            queue_refused=sum(shard.refused for shard in self._core.shards),
            queue_topics=counted.queue_topics,
            queue_leases_in_flight=counted.queue_leases_in_flight,
            wal=wal_metrics(self._core),
        )

    def vitals(self) -> EngineVitals:
        """Count what can be counted without looking at each topic."""
        return vitals_of(self._core)

    def floor_commit(self, name: str) -> Commit:
        """What a report about this topic has to wait for before it is shown."""
        return retention.floor_commit(catalogue.find(self._core, name))

    def synced_commit(self, name: str) -> Commit:
        """A commit that is done when a power loss cannot undo what can be read now.

        Records of an ephemeral topic are never synced, so there is nothing to wait for.
        """
        self._check_open()
        topic = catalogue.find(self._core, name)
        if topic.durability is Durability.FSYNC or not self._core.is_logged(topic):
            return COMMITTED
        if topic.routes.order is None:
            return self._core.sync([self._core.shards[topic.shard]])
        return self._core.sync(self._core.shards)  # copies are made again from the shards of their sources

    # --- Records -----------------------------------------------------------------------------------------

    def append(
        self,
        name: str,
        records: list[AnyRecord] | RecordBatch,
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        create: bool | None = None,
        config: TopicConfig | None = None,
        disable_backpressure: bool = False,
        jobs: Mapping[int, JobMembers] | None = None,
        quota: ByteQuota | None = None,
    ) -> Appended:
        """Append a batch: contiguous seqs in order, all of it or nothing.

        A missing topic is created if `create` is true, or if it is None and `config.auto_create` is.
        A key that was used within the topic's window gives the first batch's seqs again.
        With `disable_backpressure` it is not refused for pressure, only for limits. `jobs` has what records
        of a job queue say about their jobs, by their place in the batch. `quota` bounds the live bytes of
        some topics together.
        """
        self._check_open()
        return append.append(
            self._core,
            name,
            records,
            node,
            idempotency_key,
            create,
            config,
            disable_backpressure,
            jobs,
            quota=quota,
        )

    def diff(  # noqa: PLR0913
        self,
        name: str,
        from_seq: int = 0,
        limit: int = 0,
        *,
        node: str | Sequence[str] = (),
        include_tags: bool = False,
        include_meta: bool = True,
        include_data: bool = True,
        max_batch_bytes: int = 0,
        filter: Filter | None = None,
        touch: bool = True,
        block: bool = True,
        after: Diff | None = None,
    ) -> Diff:
        """Read records behind `from_seq`; those of `node`, deleted and expired ones are passed over.

        So are those that do not pass `filter`; of these at most 100,000 are looked at. Without `block` a cold
        segment is fetched in the background, and a filter works in slices: see `Diff`. `after` is the answer
        that was `incomplete` or `paused`: this one goes on from there and has both.
        """
        self._check_open()
        topic = catalogue.find(self._core, name)
        if touch:
            self._touch(topic, self._core.now_ms())
        if topic.routes.feeders:
            self._forward_pending(topic, block)
        options = reading.ReadOptions(
            limit,
            max_batch_bytes,
            (node,) if isinstance(node, str) else tuple(node),
            include_tags=include_tags,
            include_meta=include_meta,
            include_data=include_data,
            filter=filter,
        )
        load = self._load_segment if block else self._fetch_segment
        diff = reading.diff(self._core, topic, from_seq, options, load, after)
        while block and diff.paused:
            diff = reading.diff(self._core, topic, from_seq, options, load, diff)
        if diff.delivered and self._store is not None:
            self._store.touch_segment(topic, diff.next_from_seq)
        return diff

    def first_of_time(self, name: str, time_ms: int) -> int:
        """The cursor from which a read begins with the first record of this time or later."""
        self._check_open()
        return reading.first_of_time(self._core, catalogue.find(self._core, name), time_ms)

    def delete_records(
        self,
        name: str,
        *,
        before_seq: int | None = None,
        match: str | Sequence[Any] | None = None,
        dry_run: bool = False,
    ) -> RecordsDeleted:
        """Delete records for good: below a seq, by tag, or both; later records are never touched.

        `dry_run` says how many these are and changes nothing.
        """
        return self.run_steps(self.delete_steps(name, before_seq=before_seq, match=match, dry_run=dry_run))

    def delete_steps(
        self,
        name: str,
        *,
        before_seq: int | None = None,
        match: str | Sequence[Any] | None = None,
        dry_run: bool = False,
    ) -> Steps[RecordsDeleted]:
        """Begin a `delete_records`: its steps are short, and the last one removes all the records at once."""
        self._check_open()
        topic = catalogue.find(self._core, name)
        load = self._fetch_segment
        return deletion.delete_records(self._core, topic, before_seq, match, load, dry_run=dry_run)

    # --- Waiting -----------------------------------------------------------------------------------------

    def on_change(self, name: str, callback: Callable[[], None]) -> None:
        """Call back once when the topic has something new or is deleted; register before looking.

        The same callback registered twice is called once.
        """
        self._check_open()
        catalogue.find(self._core, name).schedule.waiters[callback] = None

    def forget_change(self, name: str, callback: Callable[[], None]) -> None:
        """Cancel an `on_change` that has not been called; an absent topic is no error."""
        topic = self._core.topics.get(name)
        if topic is not None:
            topic.schedule.waiters.pop(callback, None)

    def _touch(self, topic: Topic, now_ms: int) -> None:
        """The topic is being consumed."""
        topic.schedule.last_read_ts = now_ms
        self.delivery.reconsider(topic.schedule)

    # --- Routers -----------------------------------------------------------------------------------------

    def put_router(self, name: str, config: RouterConfig) -> RouterPut:
        """Copy what comes to a topic to another one from now on, or change how an existing router does so.

        Missing topics are created, the destination only if `config.create_dest`.
        """
        self._check_open()
        return routers.put_router(self._core, name, config)

    def delete_router(self, name: str) -> RouterDeleted:
        """Delete a router, if there is one; it copies nothing more, and what it has copied stays."""
        self._check_open()
        return routers.delete_router(self._core, name)

    def has_router(self, name: str) -> bool:
        """Whether there is a router of this name."""
        return name in self._core.routers.by_name

    def router(self, name: str) -> RouterState:
        """Report a router; it is brought up to date before."""
        self._check_open()
        router = routers.find(self._core, name)
        self._forwarder.forward_pending(router.dest)
        return router.state()

    def routers(
        self,
        prefix: str = "",
        source: str | None = None,
        dest: str | None = None,
        after: str | None = None,
        limit: int = 100,
        is_shown: Callable[[str], bool] = lambda _: True,
    ) -> list[RouterState]:
        """Report routers in byte order of their names, beginning behind the name `after`.

        Only those whose name and ends are shown.
        """
        self._check_open()
        listed = routers.list_routers(self._core, prefix, source, dest, after, limit, is_shown)
        return [router.state() for router in listed]

    @property
    def router_count(self) -> int:
        """How many routers there are."""
        return len(self._core.routers)

    @property
    def dirty_sources(self) -> list[str]:
        """The topics that have records which their routers have not copied yet."""
        return [topic.name for topic in self._core.totals.unforwarded.values()]

    def forward(self, name: str) -> Commit:
        """Copy to a topic what its routers have pending, so that the next read sees everything.

        Done at once if that is all. Otherwise call it again when the commit is done. An absent topic is no
        error.
        """
        topic = self._core.topics.get(name)
        return COMMITTED if topic is None else self._forwarder.forward_pending(topic)

    def forward_turn(self, budget: int = COPIES_PER_TURN) -> int:
        """Copy for routers what is due, about `budget` records; returns how many were copied."""
        if not self._core.totals.unforwarded:
            return 0
        copied = self._forwarder.turn(budget)
        self.write()
        return copied

    def _forward_pending(self, topic: Topic, block: bool) -> None:
        commit = self._forwarder.forward_pending(topic)
        while block and not commit.done:
            # What cannot be copied now is copied later; what is there can be read.
            with suppress(StorageFailed):
                self.wait_for(commit)
            if commit.error is not None:
                return
            commit = self._forwarder.forward_pending(topic)

    # --- The turn of the loop ----------------------------------------------------------------------------

    def write(self) -> bool:
        """Write what was gathered since the last turn, one call per shard; whether there was anything."""
        has_written = False
        for shard in self._core.shards:
            has_written |= shard.write()
        return has_written

    def poll(self, drain: Drain | None = None) -> None:
        """Take finished syncs, start those that are due, go on with checkpoints, and `deliver`."""
        self._syncs.poll()
        for shard in self._core.shards:
            shard.wal.poll()
            if shard.wal.read_only is not None and self._store is not None and not self._is_distrusted:
                self._is_distrusted = True
                self._store.distrust_page_cache()
        first_ms = self._first_due_ms()
        if first_ms is not None and first_ms <= (now_ms := self._core.now_ms()):
            run_due(self._core, now_ms)
        if self._core.totals.unreclaimed:
            self._core.totals.unreclaimed.popitem()[1].reclaim()
        if self._core.totals.evicted or self.consumers.is_looking:
            self.consumers.warn()
        if self._store is not None and self._store.fill is not None:
            self._store.fill.poll(self._syncs)
        elif self._checkpointer is not None:
            self._checkpointer.poll()
        self._mark_routers()
        self.deliver(drain=drain)

    def _first_due_ms(self) -> int | None:
        """When time alone changes something; in a copy the log of the primary says so."""
        return None if self.primary is not None else self._core.totals.due.first_ms

    @property
    def is_quiet(self) -> bool:
        """Whether `poll` can wait a little: no sync has to start, nothing is to be delivered or copied.

        A sync that has started wakes the loop when it is over.
        """
        delivery, core = self.delivery, self._core
        if delivery.scheduler.count or delivery.is_unfinished or core.totals.unforwarded:
            return False
        if core.totals.unreclaimed:
            return False
        return not self._wants_sync()

    @property
    def holds_sync(self) -> bool:
        """Whether a sync waits only for more writers that could share it; see `start_held_syncs`."""
        return self._commit_floor_ns <= WINDOW_MIN_NS and self._wants_sync()

    def _wants_sync(self) -> bool:
        """Whether an entry waits for a sync that is not started."""
        return any(shard.wal.wants_sync for shard in self._core.shards)

    def start_held_syncs(self) -> None:
        """Start the syncs that wait for more writers, because no other write is about to come."""
        for shard in self._core.shards:
            shard.wal.sync_now()

    def _mark_routers(self) -> None:
        """Schedule the copying of routers if something is to be copied now."""
        due_ns = self._forwarder.due_ns()
        if due_ns is not None and due_ns <= self._core.clock.monotonic_ns():
            self.delivery.mark_router(self._router_work, self._core.now_ms())

    def deliver(self, budget_ns: int = BUDGET_NS, drain: Drain | None = None) -> None:
        """Call the waiters of topics that have something new, for a while, in the order of priority.

        `drain` is called between two topics with the time to stop at, to finish what a callback only began;
        as long as it returns False no other topic is served. What is left over is due at once.
        """
        self.delivery.turn(budget_ns, drain)
        floor_ns = self.delivery.commit_floor_ns
        if floor_ns != self._commit_floor_ns:
            self._commit_floor_ns = floor_ns
            for shard in self._core.shards:
                shard.wal.window.floor_ns = floor_ns

    def paused_topics(self) -> list[str]:
        """The topics that have something new for their waiters and are not served because of pressure."""
        if not self.delivery.scheduler.paused:
            return []
        works = self.delivery.scheduler.waiting(0)
        return [work.name for work in works if isinstance(work, TopicSchedule)]

    def due_ns(self) -> int | None:
        """When `poll` has to be called next, on the monotonic clock; None if nothing is due."""
        times = [due for shard in self._core.shards if (due := shard.wal.due_ns()) is not None]
        if self._checkpointer is not None:
            times.append(self._checkpointer.due_ns())
        if (first_ms := self._first_due_ms()) is not None:
            wait_ms = max(0, first_ms - self._core.now_ms())
            times.append(self._core.clock.monotonic_ns() + wait_ms * NS_PER_MS)
        if (delivery_ns := self.delivery.due_ns()) is not None:
            times.append(delivery_ns)
        if (forward_ns := self._forwarder.due_ns()) is not None:
            times.append(forward_ns)
        return min(times, default=None)

    def wait_for(self, commit: Commit, timeout_s: float = 30.0) -> None:
        """Write and wait until `commit` is done; raise what it failed with."""
        clock = self._core.clock
        deadline_ns = clock.monotonic_ns() + int(timeout_s * NS_PER_S)
        while not commit.done:
            self.write()
            self.poll()
            now_ns = clock.monotonic_ns()
            if now_ns > deadline_ns:
                raise EverlogError(f"the commit is not done after {timeout_s} s; is the disk stuck?")
            self._wait_for_work(commit, now_ns, deadline_ns)
        self.deliver()
        if commit.error is not None:
            raise commit.error

    def run_steps(self, steps: Steps[T]) -> T:
        """Do work that comes in steps to its end."""
        while True:
            try:
                commit = next(steps)
            except StopIteration as done:
                result: T = done.value
                return result
            if commit is None:
                self.write()
                self.poll()
            else:
                self.wait_for(commit)

    def _wait_for_work(self, commit: Commit, now_ns: int, deadline_ns: int) -> None:
        if commit.done:
            return
        due = [shard.wal.due_ns() for shard in self._core.shards]
        next_ns = min((at for at in due if at is not None), default=None)
        if next_ns is not None and next_ns > now_ns:
            self._core.clock.sleep_ns(min(next_ns, deadline_ns) - now_ns)
        elif next_ns is None:
            self._syncs.wait(deadline_ns - now_ns)

    # --- Storage -----------------------------------------------------------------------------------------

    @property
    def recovery(self) -> RecoveryReport | None:
        """What was found when the data directory was opened; None in memory."""
        return None if self._store is None else self._store.report

    @property
    def backup_lag_ms(self) -> int:
        """How far the backup is behind; 0 if nothing is shipped."""
        return 0 if self._store is None else self._store.backup_lag_ms

    def storage_health(self) -> StorageHealth:
        """Report what has failed and what recovery found damaged."""
        core, report = self._core, self.recovery
        closed = {
            str(shard.wal.number): cause_of(shard.wal.read_only)
            for shard in core.shards
            if shard.wal.read_only is not None
        }
        failing = core.failures.current()
        damage = Counter[str](found.kind for found in report.damage) if report is not None else {}
        paused = self._paused_routers()
        has_damage = bool(damage or core.damaged or paused)
        status: StorageStatus = "damaged" if has_damage else "degraded" if failing else "ok"
        if closed or not WRITE_FAILURES.isdisjoint(failing):
            status = "failing"
        return StorageHealth(
            status=status,
            closed_shards=closed,
            failing=failing,
            errors=dict(core.failures.counts),
            damage=dict(damage),
            may_lack_acked=report is not None and report.may_lack_acked,
            damaged_topics=len(core.damaged),
            paused_routers=len(paused),
            filling_topics=len(core.filling),
        )

    def _paused_routers(self) -> set[str]:
        """The routers that have a damaged topic at one of their ends, or have come to a damaged record."""
        routers = self._core.routers
        stuck = {router.name for router in routers.stuck.values() if router.is_stuck}
        return stuck | {
            each.name for topic in self._core.damaged.values() for each in routers.touching(topic)
        }

    @property
    def filling_topics(self) -> int:
        """How many topics of class `memory` are still being loaded."""
        return len(self._core.filling)

    def wait_filled(self) -> None:
        """Load the topics that were left for later, and wait for that; raises what went wrong."""
        while self._store is not None and (fill := self._store.fill) is not None:
            fill.poll(self._syncs)
            if not self._syncs.poll():
                self._syncs.wait(NS_PER_S)
            if fill.error is not None:
                number = getattr(fill.error, "errno", None)
                raise Io(f"topics of class memory cannot be loaded: {fill.error}", number) from fill.error

    def checkpoint(self) -> None:
        """Save everything that is committed in segments and a snapshot, and trim the log; blocks."""
        self._check_open()
        self.wait_filled()
        if self._checkpointer is not None:
            self.write()
            self._checkpointer.run()

    def relocate(self) -> int:
        """Move old sealed segments to the cold directory; returns how many were moved. Blocks."""
        self._check_open()
        return 0 if self._checkpointer is None else self._checkpointer.relocate()

    def begin_close(self, timeout_s: float) -> None:
        """Give up the writes that still wait for the backup after so long; everything else goes on."""
        if self._store is not None and self._store.shipping is not None:
            self._store.shipping.begin_close(int(timeout_s * NS_PER_S))

    def close(self) -> None:
        """Write everything, leave one final snapshot, and unlock the directory.

        If a shard is read-only, or the snapshot fails, the log stays as it is for the next start, and this
        raises once everything is closed. The log stays, too, while topics of class `memory` are being loaded,
        and while copies in it cannot be made because a segment of their source is lost.
        """
        if self._closed:
            return
        finished = False
        shipping = None if self._store is None else self._store.shipping
        try:
            if shipping is not None:
                shipping.begin_close()
            if self._checkpointer is not None:
                self._sync_shards()
                while self._core.totals.unforwarded and self._forwarder.forward_all():
                    self._sync_shards()
                for shard in self._core.shards:
                    if shard.wal.read_only is not None:
                        raise shard.wal.refusal(shard.wal.read_only)
                if self._store is not None and self._store.fill is not None:
                    self._store.fill.cancel()
                elif self._store is None or not self._store.keeps_log:
                    self._checkpointer.finish()
                    finished = True
        finally:
            self._closed = True
            if self._store is not None:
                self._store.close(remove_log=finished)
            self._syncs.close()
            if shipping is not None:
                shipping.close()
            self._dismiss()

    def _dismiss(self) -> None:
        """Call the waiters of marked topics, which find the engine closed."""
        dirty = [work for work in self.delivery.scheduler.drain() if isinstance(work, TopicSchedule)]
        for waiter in [waiter for schedule in dirty for waiter in schedule.waiters]:
            with suppress(Closed):
                waiter()

    def _sync_shards(self) -> None:
        for shard in self._core.shards:
            shard.write()
            commit = Commit()
            shard.wal.sync(commit.finish)
            with suppress(StorageFailed):
                self.wait_for(commit)

    def abandon(self) -> None:
        """Close everything without writing, as a crash would."""
        self._closed = True
        self.delivery.scheduler.drain()
        if self._store is not None and self._store.fill is not None:
            self._store.fill.cancel()
        if self._store is not None:
            self._store.abandon()
        self._syncs.abandon()

    def _load_segment(self, source: int) -> bool:
        assert self._store is not None, "without a data directory there are no segments"
        return self._store.load_segment(source)

    def _fetch_segment(self, source: int) -> bool:
        assert self._store is not None, "without a data directory there are no segments"
        if self._store.map_segment(source):
            return False
        raise reading.ColdRead(self._store.fetch_segment(source))

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this engine is closed; open a new one")

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
