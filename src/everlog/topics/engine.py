"""The topics engine: ordered logs with four durability classes, as a library.

Owns the public operations and the turn of the loop (`write`, `poll`). One thread owns an engine and
everything in it; disk work that can wait runs in the lanes of a `SyncRunner`. How a batch gets in is in
`appending`, how records get out in `reading`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from everlog.clock import Clock, SystemClock
from everlog.errors import Closed, EverlogError, ReadOnly, StorageFailed
from everlog.fs import Fs, OsFs
from everlog.topics import appending, catalogue, deletion, reading
from everlog.topics.commits import KEPT, Commit
from everlog.topics.config import Durability, EngineSettings, TopicConfig
from everlog.topics.core import Core, floor_commit
from everlog.topics.records import AnyRecord
from everlog.topics.results import Appended, Diff, EngineCounts, RecordsDeleted, TopicDeleted, TopicPut
from everlog.topics.storage.checkpoint import Checkpointer
from everlog.topics.storage.recovery import Progress, open_store
from everlog.topics.storage.store import RecoveryReport, Store
from everlog.topics.storage.syncs import InlineSyncs, SyncRunner, ThreadSyncs
from everlog.topics.storage.wal import WalMetrics
from everlog.topics.topic import TopicState

NS_PER_S: Final = 1_000_000_000


class Engine:
    """All topics of one data directory, or of none: then everything is in memory only.

    Answers carry a `commit`: what they say may be told to others once it is done without an error.
    """

    def __init__(self, core: Core, store: Store | None, syncs: SyncRunner) -> None:
        self._core = core
        self._store = store
        self._syncs = syncs
        self._closed = False
        self._is_distrusted = False
        self._checkpointer = None if store is None else Checkpointer(core, store, syncs)

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
    ) -> Engine:
        """Open a data directory, recovering what it holds, or start in memory.

        `syncs` defaults to one thread per shard, one for checkpoints and one for cold reads; `wake` is
        called from these threads when `poll` has something to do. `progress` is told how far recovery is.
        """
        settings = settings or EngineSettings()
        core = Core(settings, clock or SystemClock(), fs or OsFs())
        if data_dir is None:
            return cls(core, None, syncs or InlineSyncs())
        runner = syncs or ThreadSyncs(settings.shards + 2, wake)
        try:
            store = open_store(core, os.fspath(data_dir), runner, progress)
        except BaseException:
            runner.close()
            raise
        return cls(core, store, runner)

    # --- Topics ------------------------------------------------------------------------------------------

    def put_topic(self, name: str, config: TopicConfig | None = None) -> TopicPut:
        """Create a topic, or replace the whole configuration of an existing one."""
        self._check_open()
        return catalogue.put_topic(self._core, name, config or TopicConfig())

    def delete_topic(self, name: str, *, if_empty: bool = False) -> TopicDeleted:
        """Delete a topic and all it holds; an absent one is no error. The next one starts at seq 1."""
        self._check_open()
        return catalogue.delete_topic(self._core, name, if_empty)

    def state(self, name: str, *, touch: bool = True) -> TopicState:
        """Report a topic; without `touch` that does not count as consuming it."""
        self._check_open()
        topic = catalogue.find(self._core, name)
        now_ms = self._core.now_ms()
        self._core.sweep(topic, now_ms)
        if touch:
            topic.last_read_ts = now_ms
        return topic.state(now_ms)

    def has_topic(self, name: str) -> bool:
        """Tell whether there is a topic of this name."""
        return name in self._core.topics

    def durability_of(self, name: str) -> Durability | None:
        """Return the class of a topic, None if there is none."""
        topic = self._core.topics.get(name)
        return None if topic is None else topic.durability

    def topics(self, prefix: str = "", after: str | None = None, limit: int = 100) -> list[TopicState]:
        """Report topics in byte order of their names, beginning behind the name `after`."""
        self._check_open()
        now_ms = self._core.now_ms()
        listed = catalogue.list_topics(self._core, prefix, after, limit)
        for topic in listed:
            self._core.sweep(topic, now_ms)
        return [topic.state(now_ms) for topic in listed]

    def counts(self) -> EngineCounts:
        """Count topics, live records and what the log has done; looks at every topic."""
        topics = self._core.topics.values()
        wal = WalMetrics()
        for shard in self._core.shards:
            wal.add(shard.shard.metrics)
        return EngineCounts(
            topics=len(topics),
            by_class=Counter(topic.durability for topic in topics),
            records_live=sum(topic.count for topic in topics),
            bytes_live=sum(topic.bytes for topic in topics),
            read_only=sum(shard.shard.read_only is not None for shard in self._core.shards),
            queue_depth=sum(shard.depth for shard in self._core.shards),
            queue_depth_peak=sum(shard.depth_peak for shard in self._core.shards),
            queue_refused=sum(shard.refused for shard in self._core.shards),
            wal=wal,
        )

    def floor_commit(self, name: str) -> Commit:
        """What a report about this topic has to wait for before it is shown."""
        return floor_commit(catalogue.find(self._core, name))

    def synced_commit(self, name: str) -> Commit:
        """What a reader has to wait for who wants nothing that a power loss could take back.

        It covers the records that can be read now. Those of an ephemeral topic are never synced, so there is
        nothing to wait for.
        """
        self._check_open()
        topic = catalogue.find(self._core, name)
        if topic.durability is Durability.FSYNC or not self._core.is_logged(topic):
            return KEPT
        shard = self._core.shards[topic.shard].shard
        if shard.position <= shard.synced:
            return KEPT
        commit = Commit()
        shard.sync(commit.finish)
        return commit

    # --- Records -----------------------------------------------------------------------------------------

    def append(
        self,
        name: str,
        records: list[AnyRecord],
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        create: bool | None = None,
        config: TopicConfig | None = None,
    ) -> Appended:
        """Append a batch: contiguous seqs in order, all of it or nothing.

        A missing topic is created if `create` is true, or if it is None and `config.auto_create` is.
        A key that was used within the topic's window gives the first batch's seqs again.
        """
        self._check_open()
        return appending.append(self._core, name, records, node, idempotency_key or None, create, config)

    def diff(
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
        touch: bool = True,
        block: bool = True,
    ) -> Diff:
        """Read records behind `from_seq`; those of `node`, deleted and expired ones are passed over.

        Without `block` a cold segment is fetched in the background: see `Diff.incomplete`.
        """
        self._check_open()
        topic = catalogue.find(self._core, name)
        if touch:
            topic.last_read_ts = self._core.now_ms()
        options = reading.ReadOptions(
            limit,
            max_batch_bytes,
            (node,) if isinstance(node, str) else tuple(node),
            include_tags=include_tags,
            include_meta=include_meta,
            include_data=include_data,
        )
        load = self._load_segment if block else self._fetch_segment
        diff = reading.diff(self._core, topic, from_seq, options, load)
        if diff.delivered and self._store is not None:
            self._store.touch_segment(topic, diff.next_from_seq)
        return diff

    def delete_records(
        self, name: str, *, before_seq: int | None = None, match: str | Sequence[Any] | None = None
    ) -> RecordsDeleted:
        """Delete records for good: below a seq, by tag, or both; later records are never touched."""
        self._check_open()
        return deletion.delete_records(self._core, catalogue.find(self._core, name), before_seq, match)

    def on_change(self, name: str, callback: Callable[[], None]) -> None:
        """Call back once when the topic has something new or is deleted; register before looking.

        The same callback registered twice is called once.
        """
        self._check_open()
        catalogue.find(self._core, name).waiters[callback] = None

    def forget_change(self, name: str, callback: Callable[[], None]) -> None:
        """Take back an `on_change` that has not been called; an absent topic is no error."""
        topic = self._core.topics.get(name)
        if topic is not None:
            topic.waiters.pop(callback, None)

    # --- The turn of the loop ----------------------------------------------------------------------------

    def write(self) -> None:
        """Write what was gathered since the last turn: one call per shard that has something."""
        for shard in self._core.shards:
            shard.write()

    def poll(self) -> None:
        """Take finished syncs, start those that are due, go on with checkpoints."""
        self._syncs.poll()
        for shard in self._core.shards:
            shard.shard.poll()
            if shard.shard.read_only is not None and self._store is not None and not self._is_distrusted:
                self._is_distrusted = True
                self._store.distrust_memory()
        if self._checkpointer is not None:
            self._checkpointer.poll()

    def due_ns(self) -> int | None:
        """When `poll` has to be called next, on the monotonic clock; None if nothing is due."""
        times = [due for shard in self._core.shards if (due := shard.shard.due_ns()) is not None]
        if self._checkpointer is not None:
            times.append(self._checkpointer.due_ns())
        return min(times, default=None)

    def settle(self, commit: Commit, timeout_s: float = 30.0) -> None:
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
        if commit.error is not None:
            raise commit.error

    def _wait_for_work(self, commit: Commit, now_ns: int, deadline_ns: int) -> None:
        if commit.done:
            return
        due = [shard.shard.due_ns() for shard in self._core.shards]
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

    def checkpoint(self) -> None:
        """Bring everything that is committed into segments and a snapshot, and trim the log; blocks."""
        self._check_open()
        if self._checkpointer is not None:
            self.write()
            self._checkpointer.run()

    def relocate(self) -> int:
        """Move old sealed segments to the cold directory; returns how many were moved. Blocks."""
        self._check_open()
        return 0 if self._checkpointer is None else self._checkpointer.relocate()

    def close(self) -> None:
        """Write everything, leave one final snapshot, and give the directory back.

        If a shard is read-only, or the snapshot fails, the log stays as it is for the next start, and this
        raises once everything is closed.
        """
        if self._closed:
            return
        finished = False
        try:
            if self._checkpointer is not None:
                self._settle_shards()
                for shard in self._core.shards:
                    if shard.shard.read_only is not None:
                        raise ReadOnly(str(shard.shard.read_only), shard.shard.read_only.errno)
                self._checkpointer.finish()
                finished = True
        finally:
            self._closed = True
            if self._store is not None:
                self._store.close(remove_log=finished)
            self._syncs.close()

    def _settle_shards(self) -> None:
        for shard in self._core.shards:
            shard.write()
            commit = Commit()
            shard.shard.sync(commit.finish)
            with suppress(StorageFailed):
                self.settle(commit)

    def abandon(self) -> None:
        """Let go without writing anything, as a crash would."""
        self._closed = True
        if self._store is not None:
            self._store.abandon()
        self._syncs.abandon()

    def _load_segment(self, source: int) -> bool:
        assert self._store is not None, "without a data directory there are no segments"
        return self._store.load_segment(source)

    def _fetch_segment(self, source: int) -> bool:
        assert self._store is not None, "without a data directory there are no segments"
        if self._store.loaded.load(source):
            return False
        raise reading.ColdRead(self._store.fetch_segment(source))

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this engine is closed; open a new one")

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
