"""From the log into segments and a snapshot, after which the log may be trimmed.

Owns the order of these steps: records are in synced segments, then the snapshot says so, then what no
kept snapshot needs is removed. The owner thread plans and applies, the disk work runs in one lane of
the `SyncRunner`; a step that fails leaves the log untouched and is tried again at the next turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from everlog.errors import EverlogError, StorageFailed, TopicDamaged
from everlog.native.topics.log import FrameBuffer, next_live
from everlog.topics.due_work import schedule
from everlog.topics.storage import snapshot
from everlog.topics.storage.control import Rows, SnapshotBody, encode_in_pieces
from everlog.topics.storage.remote import RemoteTier
from everlog.topics.storage.segments import (
    AppendPiece,
    AppendPlan,
    MarkPlan,
    Relocation,
    SegmentInfo,
    SegmentSet,
    write_piece,
)
from everlog.topics.storage.syncs import SyncRunner
from everlog.topics.storage.tier import TopicTier
from everlog.topics.storage.topic_records import StoredTopic, at_this_moment, collect
from everlog.topics.topic import Topic

if TYPE_CHECKING:
    from everlog.topics.core import Core
    from everlog.topics.storage.store import Coverage, Store

NS_PER_MS: Final = 1_000_000
# With more topics, one sync of the file system is cheaper than four of files and directories each.
_FEW_TOPICS: Final = 64
# How many records are taken over between two turns of the owner's loop, which then takes some 2 ms; what a
# topic costs besides its records is as much as so many of them.
_RECORDS_A_TURN: Final = 40_000
_TURN_NS: Final = 3 * NS_PER_MS
_RECORDS_A_TOPIC: Final = 500
_RECORDS_A_ROW: Final = 40  # a key, a lease
_RECORDS_A_KNOWN_TOPIC: Final = 20  # one whose record in the last snapshot is still right
_HOLES_LEFT_OUT: Final = 32_768  # seqs in a row without a record; fewer get entries in an index
_TOPICS_A_LOOK: Final = 256  # of those with sealed segments, to find one to move
_WAIT_SLICE_NS: Final = 100 * NS_PER_MS
_CHECK_INTERVAL_NS: Final = 5_000 * NS_PER_MS
# On a full disk a checkpoint follows this soon after a change, so that what was deleted makes room; one that
# takes long is not repeated all the time.
_FULL_DISK_INTERVAL_MS: Final = 1_000
_FULL_DISK_SHARE: Final = 5


class _Written(msgspec.Struct, frozen=True):
    """One piece that is in its segment."""

    piece: AppendPiece
    data_bytes: int
    index: bytes
    checksums: tuple[int, int]  # of the whole index, and its identity


class _TopicWork:
    """What a checkpoint does for one topic: planned and applied by the owner, done by the worker."""

    def __init__(
        self, topic: Topic, tier: TopicTier, append: AppendPlan | None, marks: list[MarkPlan], last_seq: int
    ) -> None:
        self.topic = topic
        self.last_seq = last_seq  # saved when all pieces of `append` are, the last of which may end before it
        self.tier = tier
        self.append = append
        self.marks = marks
        self.written: list[_Written] = []
        self.live_after: list[tuple[int, int]] = []
        self._has_begun = False

    def is_over(self) -> bool:
        """Whether there is nothing left to take over for: the topic was deleted."""
        return self.topic.gone

    def run(self, sources: Any, *, sync: bool) -> None:
        """Worker: write and sync; what is in `written` and `live_after` is durable, also after a failure.

        Marks first, and applied first: they count the live records of segments as they were planned.
        """
        for mark in self.marks:
            self.live_after.append(mark.write(self.tier))
        if self.append is not None:
            self._has_begun = True
            self.append.prepare(self.tier)
            for piece in self.append.pieces:
                data, index = FrameBuffer(), FrameBuffer()
                last_seq = piece.first_seq + piece.count - 1
                self.topic.log.copy_to_segment(
                    sources, piece.first_seq, last_seq, piece.data_offset, data, index
                )
                index_bytes = index.tobytes()
                checksums = write_piece(self.tier.hot, piece, data.tobytes(), index_bytes, sync=sync)
                self.written.append(_Written(piece, len(data), index_bytes, checksums))

    def withdraw(self) -> None:
        """Worker: on a full disk, give back what pieces that are not in `written` have taken."""
        if self.append is None or not self._has_begun:
            return
        for piece in self.append.pieces[len(self.written) :]:
            # What cannot be removed now is removed or cut by the next attempt.
            with suppress(EverlogError):
                if piece.creates:
                    self.tier.hot.delete([piece.segment_id])
                else:
                    self.tier.hot.trim(piece.segment_id, piece.data_offset, piece.index_offset)


class Checkpointer:
    """Runs checkpoints, one at a time."""

    def __init__(self, core: Core, store: Store, syncs: SyncRunner) -> None:
        self._core = core
        self._store = store
        self._syncs = syncs
        self._lane = store.checkpoint_lane
        self._busy = False
        self.last_duration_ns = 0  # of the last checkpoint that was completed
        self._lasted_ns = 0  # the last one, also if it failed
        self._is_repeated = False  # the last one found the disk full
        self._moving = False  # a segment to the object store, in a lane of its own
        self._last_ns = core.clock.monotonic_ns()
        self._bytes_at_last = self._log_bytes()
        self._next_look_ns = self._last_ns + _CHECK_INTERVAL_NS
        self.last_error: BaseException | None = None
        self.relocated = 0
        # Files that the previous snapshot may still need; removed when it is gone.
        self._drops: list[Callable[[], None]] = []
        self._drops_next: list[Callable[[], None]] = []
        self._coverage: Coverage | None = None
        self._coverage_ahead: Coverage | None = None  # of the checkpoint that is being prepared

    # --- When --------------------------------------------------------------------------------------------

    def due_ns(self) -> int:
        """When to look again."""
        wait_ns = _FULL_DISK_INTERVAL_MS * NS_PER_MS if self._store.reserve.is_short else _CHECK_INTERVAL_NS
        return self._core.clock.monotonic_ns() + wait_ns

    def poll(self) -> None:
        """Start a checkpoint if enough was logged or enough time has passed since the last one."""
        if self._busy or self._store.keeps_log:
            return
        settings = self._core.settings
        now_ns = self._core.clock.monotonic_ns()
        elapsed_ms = (now_ns - self._last_ns) // NS_PER_MS
        logged = self._log_bytes() - self._bytes_at_last
        forwarder = self._core.forwarder
        if (
            logged >= settings.snapshot_log_bytes
            or (elapsed_ms >= self._interval_ms() and (logged or self._has_leftovers()))
            or (forwarder is not None and forwarder.wants_checkpoint)
        ):
            if self._store.reserve.is_short:
                self._shorten_log()
            if self._is_prepared():
                self.start()
        elif now_ns >= self._next_look_ns and not self._moving and not self._start_relocation(_TOPICS_A_LOOK):
            self._next_look_ns = now_ns + (0 if self._core.totals.sealed else _CHECK_INTERVAL_NS)
            if not self._core.totals.sealed:
                self._start_collection()

    def _interval_ms(self) -> int:
        """How long after the last checkpoint the next one is due if little was logged."""
        usual_ms = self._core.settings.snapshot_interval_ms
        if not self._store.reserve.is_short:
            return usual_ms
        share_ms = _FULL_DISK_SHARE * self._lasted_ns // NS_PER_MS
        return min(usual_ms, max(_FULL_DISK_INTERVAL_MS, share_ms))

    def _shorten_log(self) -> None:
        """Let the next snapshots trim the log files that are being written; without room they stay."""
        for shard in self._core.shards:
            shard.write()
            with suppress(StorageFailed):
                shard.wal.shorten()

    def _has_leftovers(self) -> bool:
        """Whether only the snapshot before the last one needs some of the files, or the last one failed."""
        return self._is_repeated or bool(self._drops) or self._store.has_log_before(self._coverage)

    def run(self) -> None:
        """Checkpoint and wait for it; raises what went wrong."""
        if self._store.keeps_log:
            raise TopicDamaged(
                "there is no checkpoint while copies in the log cannot be made, because a segment of their "
                "source is lost; stop the server, restore the file or run `everlog repair`, and start again"
            )
        self.wait_idle()
        self.last_error = None
        self._prepare()
        self.start()
        self.wait_idle()
        if self.last_error is not None:
            raise self.last_error

    def _is_prepared(self) -> bool:
        """Whether a checkpoint can begin: no copies of routers are on their way. Asks for that if not.

        From the first time it was asked for, routers copy only what will be in the log behind the snapshot.
        """
        forwarder = self._core.forwarder
        if forwarder is None:
            return True
        is_prepared = forwarder.prepare_checkpoint()
        if self._coverage_ahead is None:
            self._coverage_ahead = self._store.coverage()
        return is_prepared

    def _prepare(self) -> None:
        """Wait until a checkpoint can begin."""
        while not self._is_prepared():
            for shard in self._core.shards:
                shard.write()
                shard.wal.sync_now()
            if not self._syncs.poll() and not self._is_prepared():
                self._syncs.wait(_WAIT_SLICE_NS)

    def wait_idle(self, *, moves: bool = False) -> None:
        """Wait until no checkpoint is running; with `moves`, nor a move to the object store."""
        while self._busy or (moves and self._moving):
            for shard in self._core.shards:
                shard.wal.sync_now()
            if not self._syncs.poll() and (self._busy or self._moving):
                self._syncs.wait(_WAIT_SLICE_NS)

    def _log_bytes(self) -> int:
        logged = 0
        for shard in self._core.shards:  # no sum(): every turn of the loop asks
            logged += shard.wal.metrics.bytes_written
        return logged

    # --- The steps ---------------------------------------------------------------------------------------

    def start(self, *, clean: bool = False) -> None:
        """Begin: everything committed so far will be in segments and in the next snapshot."""
        core = self._core
        coverage, self._coverage_ahead = self._coverage_ahead or self._store.coverage(), None
        works: list[_TopicWork] = []
        unsaved, core.totals.unsaved = core.totals.unsaved, {}
        # What routers copy is consistent at this moment only; other topics do not know each other.
        for topic_id in [end.topic_id for router in core.routers for end in (router.source, router.dest)]:
            for _ in self._plan(unsaved.pop(topic_id), works) if topic_id in unsaved else ():
                pass
        self._busy = True
        self._is_repeated = False
        self._last_ns = core.clock.monotonic_ns()
        self._bytes_at_last = self._log_bytes()
        if core.forwarder is not None:
            core.forwarder.checkpoint_begun()

        def job() -> None:
            one_sync = len(works) > _FEW_TOPICS
            try:
                for work in works:
                    work.run(core.sources, sync=not one_sync)
                if one_sync:
                    core.fs.sync_file_system(self._store.data_dir)
            except BaseException as error:
                for work in works if one_sync else ():  # nothing that was appended is certain
                    work.written.clear()
                for work in works if self._store.reserve.note(error) else ():
                    work.withdraw()
                raise

        def applied(error: BaseException | None) -> None:
            if error is not None:
                self._give_up(error)
            else:
                self._snapshot(coverage, clean)

        def done(error: BaseException | None) -> None:
            self._in_turns(chain.from_iterable(map(self._apply, works)), lambda: applied(error))

        plans = chain.from_iterable(self._plan(topic, works) for topic in unsaved.values())
        self._in_turns(
            chain((_RECORDS_A_TURN,), plans),  # what is behind has been enough for one turn
            lambda: self._when_synced(lambda: self._syncs.start(self._lane, job, done), done),
        )

    def _when_synced(
        self, then: Callable[[], None], otherwise: Callable[[BaseException | None], None]
    ) -> None:
        """Go on when all that is written is synced: nothing may be safer than its frame in the log."""
        left = len(self._core.shards)

        def synced(error: StorageFailed | None) -> None:
            nonlocal left
            left -= 1
            failures.extend([error] if error is not None else [])
            if left:
                return
            if failures:
                otherwise(failures[0])
            else:
                then()

        failures: list[StorageFailed] = []
        for shard in self._core.shards:
            shard.wal.sync(synced)

    def _plan(self, topic: Topic, works: list[_TopicWork]) -> Iterator[int]:
        """Add the work for one topic, if there is any; yields what that costs, in records."""
        if topic.gone:
            return
        now_ms = self._core.now_ms()
        first_seq = max(topic.storage.saved_seq + 1, topic.earliest_seq)  # all below is dead
        if topic.storage.logged_seq:
            # Nothing below the first entry is left to be saved, but its seqs were assigned.
            topic.storage.saved_seq = max(topic.storage.saved_seq, min(first_seq - 1, topic.visible))
            topic.snapshot_record = None
        last_seq = min(topic.visible, topic.storage.logged_seq)
        stretches = list(_stretches(topic, first_seq, last_seq))
        flips, topic.storage.unmarked = topic.storage.unmarked, []
        append = None
        saved = topic.storage.segments
        if stretches:
            saved = self._store.segments_of(topic)
            append = saved.plan_stretches(stretches, now_ms)
        elif last_seq >= first_seq:
            topic.storage.saved_seq = last_seq  # no record behind what is saved, but seqs were assigned
        marks = saved.plan_marks(np.concatenate(flips)) if saved is not None and flips else []
        if append is not None or marks:
            works.append(_TopicWork(topic, self._store.tier_of(topic.topic_id), append, marks, last_seq))
        yield _RECORDS_A_TOPIC

    def _in_turns(self, steps: Iterator[int], then: Callable[[], None]) -> None:
        """Run some steps, let the owner's loop turn, go on: requests need not wait for all of them."""
        clock = self._core.clock

        def go_on(_: BaseException | None) -> None:
            left, until_ns = _RECORDS_A_TURN, clock.monotonic_ns() + _TURN_NS
            for records in steps:
                left -= records
                if left <= 0 or clock.monotonic_ns() >= until_ns:
                    self._syncs.start(self._lane, _do_nothing, go_on)
                    return
            then()

        go_on(None)

    def _apply(self, work: _TopicWork) -> Iterator[int]:
        """Take over what became durable of a topic's work; the rest is planned again next time.

        Yields the records of each step; between two of them anything may happen to the topic.
        """
        topic, saved = work.topic, work.topic.storage.segments
        if saved is None or work.is_over():
            return
        now_ms = self._core.now_ms()
        for mark, result in zip(work.marks, work.live_after, strict=False):
            dropped = saved.apply_marks(mark, result)
            if dropped is not None:
                self._drop_segment(work.tier, dropped)
            elif not result[0]:
                self._core.totals.shrunk[topic.topic_id] = topic
        for mark in work.marks[len(work.live_after) :]:
            saved.abandon(mark)
            topic.storage.unmarked.append(mark.positions.astype(np.uint64) + np.uint64(mark.segment_id))
        for written in work.written:
            assert work.append is not None
            info = saved.apply_append(work.append, written.piece, written.data_bytes, written.index, now_ms)
            info.index_checksum, info.identity = written.checksums
            self._place(topic, work.tier, info, written)
            yield written.piece.count
            if work.is_over():
                return
        if work.append is not None and len(work.written) == len(work.append.pieces):
            topic.storage.saved_seq = max(topic.storage.saved_seq, work.last_seq)
        if min(topic.visible, topic.storage.logged_seq) > topic.storage.saved_seq or topic.storage.unmarked:
            self._core.totals.unsaved[topic.topic_id] = topic
        if topic.storage.chunks is not None and self._core.is_logged(topic):
            if topic.storage.saved_seq >= topic.storage.chunks.last_seq:
                topic.storage.chunks.clear()
                topic.storage.chunks = None
            else:
                while not topic.storage.chunks.drop_below(topic.storage.saved_seq + 1):
                    pass  # each step is bounded, and so is what one checkpoint takes over
        topic.snapshot_record = None
        if len(saved) > 1:
            self._core.totals.sealed[topic.topic_id] = topic
        schedule(self._core, topic)
        yield _RECORDS_A_TOPIC

    def _place(self, topic: Topic, tier: TopicTier, info: SegmentInfo, written: _Written) -> None:
        piece = written.piece
        if info.source:
            self._store.loaded.unload(info.source)  # it grew
        else:
            self._store.loaded.add(tier, info)
        last_seq = piece.first_seq + piece.count - 1
        if last_seq >= topic.log.base_seq:
            topic.log.set_segment(piece.first_seq, written.index, info.source)
            died = self._died_meanwhile(topic, piece, written.index)
            if len(died):
                topic.storage.unmarked.append(died)
        topic.storage.saved_seq = last_seq

    def _died_meanwhile(self, topic: Topic, piece: AppendPiece, index: bytes) -> NDArray[np.uint64]:
        """Records that were deleted while they were copied: the segment has them, so they must be marked."""
        first_seq = max(piece.first_seq, topic.log.base_seq)
        last_seq = piece.first_seq + piece.count - 1
        dead = topic.log.dead_seqs(first_seq, last_seq)
        if not len(dead):
            return dead
        sizes = np.frombuffer(index, dtype="<u4").reshape(-1, 5)[:, 1]
        stored = sizes[(dead - np.uint64(piece.first_seq)).astype(np.int64)] > 0
        return dead[stored & (dead >= np.uint64(topic.evict_floor))]

    def _snapshot(self, coverage: Coverage, clean: bool) -> None:
        """Collect the records of all topics, then write them.

        The log behind `coverage` has everything that happens meanwhile, and to apply it a second time changes
        nothing, so topics may be collected one after the other. Routers and their topics are at one moment.
        """
        records: dict[int, StoredTopic] = {}
        steps = chain(self._drop_dead_segments(), self._collect(records, clean))
        self._in_turns(steps, lambda: self._write_snapshot(coverage, records, clean))

    def _collect(self, records: dict[int, StoredTopic], clean: bool) -> Iterator[int]:
        core = self._core
        topics = [*core.topics.values(), *core.damaged.values(), *core.deleting.values()]
        yield _RECORDS_A_TURN
        for topic in topics:
            # What is certainly there: neither a topic being created nor without one being deleted.
            if topic.gone or topic.storage.create_pending:
                continue
            is_known = topic.snapshot_record is not None and not clean
            records[topic.topic_id] = yield from collect(topic, clean, _RECORDS_A_ROW)
            yield _RECORDS_A_KNOWN_TOPIC if is_known else _RECORDS_A_TOPIC

    def _write_snapshot(self, coverage: Coverage, records: dict[int, StoredTopic], clean: bool) -> None:
        core, store = self._core, self._store
        for router in core.routers:
            for topic in (router.source, router.dest):
                if (stored := records.get(topic.topic_id)) is not None:  # otherwise it is new, and in the log
                    records[topic.topic_id] = at_this_moment(topic, clean, stored)
        number = store.snapshot_number + 1
        body = SnapshotBody(
            clean=clean,
            next_topic_id=core.next_topic_id,
            next_epoch=core.next_epoch,
            next_file_number=coverage.next_file_number,
            starts=coverage.starts,
            topics=[],
            routers=[router.record() for router in core.routers if router.is_committed],
            next_router_id=core.routers.next_id,
            has_synced_file=True,
            schedules=list(core.schedules.values()),
            number=number,
        )
        if core.forwarder is not None:
            core.forwarder.checkpoint_over()
        drops, self._drops, self._drops_next = self._drops, self._drops_next, []

        def job() -> None:
            topics = Rows(len(records), [piece for stored in records.values() for piece in stored.pieces])
            snapshot.write(core.fs, store.meta_dir, number, encode_in_pieces(body, {"topics": topics}))

        def done(error: BaseException | None) -> None:
            if error is not None:
                self._drops_next = self._drops + self._drops_next
                self._drops = drops
                self._give_up(error)
                return
            store.snapshot_number = number
            # The log stays from where the snapshot before this one begins: it may be needed instead.
            previous, self._coverage = self._coverage, coverage
            self._clean_up(drops, previous)

        # What came while the segments were written may be in the body, but not yet certain in the log.
        self._when_synced(lambda: self._syncs.start(self._lane, job, done), done)

    def _drop_dead_segments(self) -> Iterator[int]:
        """Drop segments without a live record, of topics that have lost records since the last checkpoint.

        Yields what each topic costs, in records.
        """
        shrunk, self._core.totals.shrunk = self._core.totals.shrunk, {}
        for topic in shrunk.values():
            saved = topic.storage.segments
            if saved is None or topic.gone:
                continue
            yield _RECORDS_A_TOPIC
            dead = saved.drop_dead(topic.earliest_seq)
            tier = self._store.tier_of(topic.topic_id)
            for info in dead:
                self._drop_segment(tier, info)
            if dead:
                topic.snapshot_record = None
            if any(info.last_seq < topic.earliest_seq for info in saved.infos[:1]):
                self._core.totals.shrunk[topic.topic_id] = topic  # it is being moved: the next time
        dropped, self._core.dropped = self._core.dropped, []
        for topic in dropped:
            self._drop_topic(topic)
            yield _RECORDS_A_TOPIC

    def _drop_segment(self, tier: TopicTier, info: SegmentInfo) -> None:
        if info.source:
            self._store.loaded.remove(info.source)
        self._drops_next.append(lambda: tier.delete([info.first_seq]))

    def _drop_topic(self, topic: Topic) -> None:
        store = self._store
        for info in topic.storage.segments.infos if topic.storage.segments is not None else ():
            if info.source:
                store.loaded.remove(info.source)
        for root in store.topic_roots:
            self._drops_next.append(lambda root=root: store.delete_topic(root, topic.topic_id))  # type: ignore[misc]

    def _clean_up(self, drops: list[Callable[[], None]], previous: Coverage | None) -> None:
        """Remove what the snapshot before the last one was the last to need."""
        core, store = self._core, self._store
        log_files = store.release_log(previous) if previous is not None else []

        def job() -> None:
            if store.boot_pending:
                store.note_boot()
            store.delete_files(log_files)
            for drop in drops:
                drop()
            snapshot.prune(core.fs, store.meta_dir, keep=2)
            store.refill_reserve()

        def done(error: BaseException | None) -> None:
            if error is not None:
                self._drops = drops + self._drops
                self._give_up(error)
            else:
                store.boot_pending = False
                self._busy = False
                self.last_duration_ns = self._lasted_ns = core.clock.monotonic_ns() - self._last_ns
                core.failures.succeeded("checkpoint")

        self._syncs.start(self._lane, job, done)

    def _give_up(self, error: BaseException) -> None:
        self._busy = False
        if self._core.forwarder is not None:
            self._core.forwarder.checkpoint_over()
        if not isinstance(error, Exception):
            raise error
        self._core.failures.report("checkpoint", error, self._store.data_dir)
        self._lasted_ns = self._core.clock.monotonic_ns() - self._last_ns
        reserve = self._store.reserve
        self._is_repeated = reserve.note(error)
        if self._is_repeated and reserve.is_held:
            reserve.release()  # the next attempt has this room
        elif self._is_repeated:
            self._store.refill_reserve()  # it did not help: what deletes need it for comes first
        self.last_error = _as_everlog_error(error, "the checkpoint failed")

    # --- The cold tier -----------------------------------------------------------------------------------

    def relocate(self) -> int:
        """Move all segments that need not stay hot to the cold tier and wait; returns how many."""
        before = self.relocated
        self.wait_idle(moves=True)
        self.last_error = None
        while self._core.totals.sealed:
            self._start_relocation(_TOPICS_A_LOOK)
            self.wait_idle(moves=True)
            if self.last_error is not None:
                raise self.last_error
        self._start_collection()
        self.wait_idle(moves=True)
        return self.relocated - before

    def _start_relocation(self, limit: int) -> bool:
        """Begin to move one segment in the lane; False if none of `limit` topics has one to move."""
        sealed = self._core.totals.sealed
        if len(self._store.topic_roots) == 1:
            sealed.clear()
        for topic in list(islice(sealed.values(), limit)):
            saved = self._store.segments_of(topic)
            for plan in () if topic.deleted else saved.plan_relocations(1):
                self._set_moving(True)
                self._copy(topic, saved, self._store.tier_of(topic.topic_id), plan)
                return True
            del sealed[topic.topic_id]
        return False

    @property
    def _move_lane(self) -> int:
        """Where segments are moved: a store that hangs holds up no checkpoint."""
        return self._lane if self._store.remote is None else self._store.move_lane

    def _set_moving(self, moving: bool) -> None:
        """A move begins or is over; one between directories counts as a checkpoint."""
        if self._store.remote is None:
            self._busy = moving
        else:
            self._moving = moving

    def _move_failed(self, error: BaseException) -> None:
        """A move is tried again at the next look."""
        self._set_moving(False)
        if not isinstance(error, Exception):
            raise error
        self._next_look_ns = self._core.clock.monotonic_ns() + _CHECK_INTERVAL_NS
        remote = self._store.remote
        where = self._store.topic_roots[-1] if remote is None else remote.objects.url
        self._core.failures.report("relocation", error, where)
        self.last_error = _as_everlog_error(error, "a segment could not be moved")

    def _start_collection(self) -> None:
        """Begin to remove objects that are not referenced any more."""
        remote = self._store.remote
        if remote is None:
            self._core.failures.succeeded("relocation")  # nothing is left that could fail
            return

        def done(error: BaseException | None) -> None:
            if error is not None:
                self._move_failed(error)
            else:
                self._set_moving(False)
                self._core.failures.succeeded("relocation")

        self._set_moving(True)
        self._syncs.start(self._move_lane, lambda: _collect_all(remote), done)

    def _copy(self, topic: Topic, saved: SegmentSet, tier: TopicTier, plan: Relocation) -> None:
        def done(error: BaseException | None) -> None:
            info = None
            if error is not None:
                saved.abandon(plan)
                self._move_failed(error)
                return
            if not topic.gone:
                info = saved.apply_copied(plan)
            if info is None:
                self._set_moving(False)
            else:
                self._store.loaded.unload(info.source)  # read from the cold copy from now on
                self._delete_hot(saved, tier, plan)

        self._syncs.start(self._move_lane, lambda: plan.copy(tier), done)

    def _delete_hot(self, saved: SegmentSet, tier: TopicTier, plan: Relocation) -> None:
        def done(error: BaseException | None) -> None:
            self._set_moving(False)
            if error is not None:
                saved.abandon(plan)
                self._move_failed(error)
            else:
                saved.apply_moved(plan)
                self.relocated += 1
                self._core.failures.succeeded("relocation")

        self._syncs.start(self._move_lane, lambda: plan.delete_hot(tier), done)

    # --- The end -----------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Leave one clean snapshot, after which the log is not needed; all commits must be done."""
        self.wait_idle(moves=True)
        self._store.reserve.release()
        for clean in (False, True):
            # The first saves the records in segments, the second has nothing left to do but to
            # say so; then no older snapshot needs what is removed.
            self.last_error = None
            self._prepare()
            self.start(clean=clean)
            self.wait_idle()
            if self.last_error is not None:
                raise self.last_error
        try:
            for drop in self._drops + self._drops_next:
                drop()
        except OSError as error:
            raise StorageFailed(f"old segments cannot be removed: {error}", error.errno) from error
        snapshot.prune(self._core.fs, self._store.meta_dir, keep=1)
        snapshot.copy(self._core.fs, self._store.meta_dir, self._store.snapshot_number)


def _stretches(topic: Topic, first_seq: int, last_seq: int) -> Iterator[tuple[int, NDArray[np.uint32]]]:
    """Yield the seqs to save, as first seq and sizes of frames, without long rows that have no record."""
    log, begin, at = topic.log, first_seq, first_seq
    while at <= last_seq:
        end = at + _HOLES_LEFT_OUT
        if end > last_seq + 1 or log.live_in(at, end)[0]:
            at = end
            continue
        if at > begin:
            yield begin, log.sizes(begin, at - begin)
        begin = at = min(next_live(log, at), last_seq + 1)
    if begin <= last_seq:
        yield begin, log.sizes(begin, last_seq + 1 - begin)


def _as_everlog_error(error: Exception, what: str) -> EverlogError:
    number = getattr(error, "errno", None)
    return error if isinstance(error, EverlogError) else StorageFailed(f"{what}: {error}", number)


def _collect_all(remote: RemoteTier) -> None:
    """Worker: remove all objects that are not referenced any more."""
    while remote.collect():
        pass


def _do_nothing() -> None:
    """A job that only lets the owner's loop turn."""
