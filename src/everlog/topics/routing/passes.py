"""One pass over a source: what is new there is copied to all its destinations, and one frame says so.

Owns the copying and the frame. When a pass is made, and what is tried again, is decided in `forwarding`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from everlog.api_types import Discard, Durability, Guarantee
from everlog.errors import Corrupt, EverlogError, LimitReached, StorageFailed
from everlog.native.topics.log import Selection, copy_records, select_records
from everlog.topics import ack_policy
from everlog.topics.append import frame_ceiling, reserve_floor
from everlog.topics.commits import COMMITTED, BatchEntry, ChangeEntry, Commit
from everlog.topics.config import U64_MAX
from everlog.topics.core import CONTROL_ROOM, Core
from everlog.topics.memory import MemoryChunks
from everlog.topics.retention import EvictionPlan, has_caps, held_floor, plan_caps
from everlog.topics.routing.copying import (
    Copying,
    HopRun,
    copy_to_memory,
    drops_of,
    forget_hops_below,
    metas_of,
    note_hops,
    split_by_hops,
)
from everlog.topics.routing.definitions import HOP_LIMIT
from everlog.topics.routing.exactly_once import Evidence, Origin
from everlog.topics.routing.table import Router
from everlog.topics.scanning import matching_runs
from everlog.topics.storage.control import Forward, ForwardEntry, encode
from everlog.topics.storage.layout import FLAG_BATCH_CONTINUES, FLAG_DURABLE, FrameType

if TYPE_CHECKING:
    from collections.abc import Callable

    from everlog.topics.commits import Entry
    from everlog.topics.topic import Topic

HOLES_PER_PASS: Final = 1 << 20
_LOOK_AHEAD: Final = 16  # records looked at for each that may be copied: a filter may want none of them


class RouterStep(NamedTuple):
    """What one router has to do to get to `cursor`: leave so many holes, or copy the runs.

    A run is the first source seq, how many, and the hops of the copies. That of holes begins at seq 0.
    """

    cursor: int
    holes: int = 0
    runs: tuple[HopRun, ...] = ()
    copies: int = 0
    frame_bytes: int = 0


class CopyEntry(BatchEntry):
    """Copies that one router made in one pass, visible when the frame of the pass is committed."""

    __slots__ = ("_cursor_before", "_on_over", "_router", "_step", "originals")

    def __init__(
        self,
        router: Router,
        step: RouterStep,
        first_seq: int,
        size: int,
        ts: int,
        on_over: Callable[[], None],
    ) -> None:
        super().__init__(router.dest, first_seq, step.copies, size, ts, None)
        self._router = router
        self._step = step
        self._cursor_before = router.cursor
        self._on_over = on_over
        self.originals = COMMITTED
        """Done when the records that were copied are as durable as the copies have to be."""
        router.cursor = step.cursor
        router.total += step.copies + step.holes
        router.pending += 1
        router.last_commit = self.commit

    def on_commit(self) -> None:
        """Publish the copies, once nothing can take away the records that they are made from."""
        self.originals.on_done(self._on_originals)

    def _on_originals(self, commit: Commit) -> None:
        if commit.error is None:
            super().on_commit()
        else:
            self.on_abort(commit.error, True)

    def publish(self) -> None:
        """Let readers see the copies; from now on the router need not go back."""
        router, dest, step = self._router, self.topic, self._step
        router.pending -= 1
        # What was only skipped since then counts as soon as nothing before it can be withdrawn.
        router.committed_cursor = (
            max(router.committed_cursor, step.cursor) if router.pending else router.cursor
        )
        router.committed_total += step.copies + step.holes
        if step.holes:
            dest.note_trim(self.first_seq - step.holes, self.first_seq - 1)
        note_copies(dest, self.first_seq - step.holes, step.runs)
        super().publish()
        self._on_over()

    def on_abort(self, error: EverlogError, written: bool) -> None:
        """Go back to where the router was; the seqs stay empty, since others may be behind them.

        What could not be synced may still be there after a restart, so it is copied neither further nor a
        second time before that.
        """
        router, dest = self._router, self.topic
        if written:
            dest.routes.uncertain_seq = min(dest.routes.uncertain_seq or self.first_seq, self.first_seq)
            router.is_uncertain = True
        router.pending -= 1
        router.cursor = min(router.cursor, self._cursor_before)
        router.total -= self._step.copies + self._step.holes
        super().on_abort(error, True)
        self._on_over()


class WrittenCopyEntry(CopyEntry):
    """Copies in the log of their destination itself: no frame of a pass says what they push out."""

    __slots__ = ()

    def publish(self) -> None:
        """Publish the copies; the next operation enforces the caps and logs that."""
        self.topic.floors.caps_due |= has_caps(self.topic)
        super().publish()


def note_copies(dest: Topic, first_seq: int, runs: tuple[HopRun, ...]) -> None:
    """Remember the hops of the copies, as long as a router may copy them again."""
    feeds = dest.routes.feeds
    if not feeds:
        dest.routes.hop_runs.clear()
        return
    forget_hops_below(dest.routes.hop_runs, min(router.committed_cursor for router in feeds) + 1)
    for _, count, hop_count in runs:
        note_hops(dest.routes.hop_runs, first_seq, first_seq + count - 1, hop_count)
        first_seq += count


class Pass:
    """One pass. `advance` each router, then `finish`: the copies are then gathered, or withdrawn."""

    def __init__(
        self, core: Core, source: Topic, on_begun: Callable[[], None], on_over: Callable[[], None]
    ) -> None:
        self._core = core
        self._source = source
        self._on_begun = on_begun
        self._on_over = on_over
        self._now_ms = core.now_ms()
        self._selections: dict[tuple[int, int, object], Selection] = {}
        self._entries: list[ForwardEntry] = []
        self._copies: list[CopyEntry] = []
        self._at_once: list[CopyEntry] = []
        self._companions: list[ChangeEntry] = []
        self.copied = 0
        self.memory_bytes = 0  # of copies that will be in segments
        self.missing_source = 0

    # --- What to copy ------------------------------------------------------------------------------------

    def advance(self, router: Router, limit: int) -> None:
        """Copy what is new for one router, at most `limit` records and what its destination has room for."""
        step = self._choose(router, limit)
        if step is None:
            return
        if not step.copies and not step.holes:
            self._skip(router, step.cursor)
        elif (
            step.copies
            and self._source.storage.logged_seq < step.cursor
            and self._core.is_logged(router.dest)
        ):
            self._write_out(router, step)
        else:
            self._copy(router, step)
        self.copied += step.copies

    def _skip(self, router: Router, cursor: int) -> None:
        """Move the cursor over what is not copied; logged, so that a later loss there leaves no gap."""
        router.cursor = cursor
        if not router.pending:
            router.committed_cursor = cursor
        if self._source.storage.logged_seq >= cursor:
            self._entries.append(
                ForwardEntry(router.router_id, router.dest.topic_id, cursor, router.total, 0, 0, [])
            )

    def _choose(self, router: Router, limit: int) -> RouterStep | None:
        source = self._source
        start, end = router.cursor + 1, source.visible + 1
        if source.log.is_live(router.stuck_seq):
            end = min(end, router.stuck_seq)  # what is before it is copied
        if router.is_uncertain:
            return None  # until a restart shows what is there
        if source.routes.uncertain_seq:
            end = min(end, source.routes.uncertain_seq)
            if end <= start:
                return None
        lost_to = source.evict_floor - 1
        for first_seq, last_seq, _ in source.floors.gaps():
            if last_seq >= start:
                if first_seq <= start:
                    lost_to = max(lost_to, last_seq)
                else:
                    end = min(end, first_seq)
                    break
        if lost_to >= start:
            return self._choose_holes(start, min(lost_to, source.visible, router.cursor + HOLES_PER_PASS) + 1)
        # An expression is applied to one record after the other, and a pass must not take long.
        is_slow = router.filter is not None and not router.filter.is_tag_only
        end = min(end, start + limit * (1 if is_slow else _LOOK_AHEAD))
        if start <= source.storage.logged_seq:
            end = min(end, source.storage.logged_seq + 1)  # those behind are in no log and go another way
        return self._choose_records(router, start, end, limit)

    def _choose_holes(self, start: int, end: int) -> RouterStep:
        """Leave a hole for each record that the source has lost; a hole has hops as a record has."""
        first_seq, end_seq, hop_count = next(split_by_hops(self._source.routes.hop_runs, start, end))
        count = end_seq - first_seq
        if hop_count >= HOP_LIMIT:
            return RouterStep(end_seq - 1)
        return RouterStep(end_seq - 1, count, ((0, count, hop_count + 1),))

    def _choose_records(self, router: Router, start: int, end: int, limit: int) -> RouterStep | None:
        count_left, bytes_left = self._room(router.dest, limit)
        runs: list[HopRun] = []
        frame_bytes = 0
        for first_seq, end_seq, hop_count in split_by_hops(self._source.routes.hop_runs, start, end):
            if hop_count >= HOP_LIMIT:
                continue
            found = self._select(router, first_seq, end_seq, count_left, bytes_left)
            runs += [(seq, length, hop_count + 1) for seq, length in found.runs]
            frame_bytes += found.frame_bytes
            count_left -= found.records
            bytes_left -= found.payload
            if found.next_seq < end_seq:
                end = found.next_seq
                self.missing_source = self.missing_source or found.missing_source
                if found.corrupt_seq:
                    self._note_stuck(router, found.corrupt_seq)
                break
        if end <= start:
            return None
        if runs and router.guarantee is Guarantee.EXACTLY_ONCE:
            runs = self._without_known(router, runs)
        return RouterStep(end - 1, 0, tuple(runs), sum(length for _, length, _ in runs), frame_bytes)

    def _select(self, router: Router, first_seq: int, end_seq: int, count: int, size: int) -> Selection:
        """Ask the kernel, once for all routers that want the same."""
        selection = router.filter
        match = None if selection is None else selection.tag
        key = (first_seq, end_seq, selection)
        known = self._selections.get(key)
        if known is not None and known.records <= count and known.payload <= size:
            return known
        found = select_records(
            self._core.sources,
            self._source.log,
            first_seq,
            end_seq,
            None if match is None else match.tag,
            match is not None and match.prefix,
            count,
            size,
        )
        if selection is not None and not selection.is_tag_only:
            runs = matching_runs(self._core, self._source, selection, found.runs)
            found = found._replace(runs=runs, records=sum(length for _, length in runs))
        if found.next_seq >= end_seq:
            self._selections[key] = found
        return found

    def _room(self, dest: Topic, limit: int) -> tuple[int, int]:
        """How many records and bytes the destination, and the engine, can take now."""
        config, log = dest.config, dest.log
        count, size = limit, U64_MAX
        if config.discard is Discard.REJECT:
            if config.cap_records:
                count = min(count, max(0, config.cap_records - log.live_count))
            if config.cap_bytes:
                size = max(0, config.cap_bytes - log.live_bytes)
        elif has_caps(dest) and (held := held_floor(dest, self._now_ms)) < log.next_seq:
            held_count, held_bytes = log.live_in(held, log.next_seq)
            if config.cap_records:
                count = min(count, max(0, config.cap_records - held_count))
            if config.cap_bytes:
                size = max(0, config.cap_bytes - held_bytes)
        quota = self._core.settings.max_total_bytes
        if quota:
            size = min(size, max(0, quota - self._core.totals.bytes))
        return count, size

    def _without_known(self, router: Router, runs: list[HopRun]) -> list[HopRun]:
        """Leave out the records whose copies are still in the destination."""
        dest = router.dest
        if router.evidence is None:
            router.evidence = Evidence()
        router.evidence.look(self._core.sources, dest)
        origin, reused = self._origin(router), router.reused
        fresh: list[HopRun] = []
        for first_seq, length, hop_count in runs:
            for seq in range(first_seq, first_seq + length):
                found = router.evidence.find(dest, origin.key(seq))
                if found and not any(seq > above and found <= up_to for above, up_to in reused):
                    continue
                if fresh and fresh[-1][0] + fresh[-1][1] == seq and fresh[-1][2] == hop_count:
                    fresh[-1] = (fresh[-1][0], fresh[-1][1] + 1, hop_count)
                else:
                    fresh.append((seq, 1, hop_count))
        return fresh

    def _origin(self, router: Router) -> Origin:
        return Origin(router.name, self._source.name, self._source.topic_id, self._source.epoch)

    # --- Copies that are made again after a crash --------------------------------------------------------

    def _copy(self, router: Router, step: RouterStep) -> None:
        dest = router.dest
        ts = max(self._now_ms, dest.log.last_ts, dest.storage.restored_ts)
        hole_seq = dest.log.next_seq
        if step.holes:
            dest.log.push_holes(step.holes, ts)
        first_seq = dest.log.next_seq
        is_logged = self._core.is_logged(dest)  # asked before an entry counts as pending there
        size = self._copy_frames(router, step, ts) if step.copies else 0
        entry = CopyEntry(router, step, first_seq, size, ts, self._on_over)
        self._on_begun()
        plan = plan_caps(dest) if has_caps(dest) else None
        if plan is not None:
            entry.evict_by(plan)
        ceiling, reserved = self._reserve(entry, dest, plan) if is_logged else (0, 1)
        (self._copies if is_logged else self._at_once).append(entry)
        if is_logged or self._source.storage.logged_seq >= step.cursor:
            self._entries.append(
                ForwardEntry(
                    router_id=router.router_id,
                    dest_id=dest.topic_id,
                    cursor=step.cursor,
                    total=router.total,
                    first_seq=hole_seq,
                    ts=ts,
                    runs=list(step.runs) if is_logged else [],
                    drops=drops_of(router.preserve_node, router.preserve_tag),
                    router=router.name if router.guarantee is Guarantee.EXACTLY_ONCE else "",
                    ceiling=ceiling,
                    cap_floor=1 if plan is None else plan.floor,
                    reserved=reserved,
                )
            )

    def _copy_frames(self, router: Router, step: RouterStep, ts: int) -> int:
        """Copy the records into the memory of the destination; returns their payload."""
        core, dest = self._core, router.dest
        copying = Copying(
            ts,
            FLAG_DURABLE if dest.durability is Durability.FSYNC else 0,
            drops_of(router.preserve_node, router.preserve_tag),
            self._origin(router) if router.guarantee is Guarantee.EXACTLY_ONCE else None,
        )
        chunks = dest.storage.chunks or MemoryChunks(core.sources, core.spare_chunks)
        first_seq = dest.log.next_seq
        copied = copy_to_memory(
            core, self._source.log, list(step.runs), dest.log, chunks, copying, step.frame_bytes
        )
        dest.storage.chunks = chunks
        self.memory_bytes += step.frame_bytes if core.is_logged(dest) else 0
        if copied.records < step.copies:
            dest.log.kill_range(first_seq, dest.log.next_seq)
            dest.note_holes(first_seq, dest.log.next_seq - 1)
            raise self._note_stuck(router, copied.corrupt_seq)
        return copied.payload

    def _note_stuck(self, router: Router, seq: int) -> Corrupt:
        """The router comes no further than to this record; that is logged once, and reported."""
        error = Corrupt(
            f"record {seq} of topic {self._source.name!r} does not match its checksum and cannot be copied: "
            f"router {router.name!r} stops there; run `everlog verify` on the stopped data directory"
        )
        if router.stuck_seq != seq:
            router.stuck_seq = seq
            self._core.routers.stuck[router.router_id] = router
            self._core.failures.report("corrupt_record", error, router.name)
        return error

    def _reserve(self, entry: CopyEntry, dest: Topic, plan: EvictionPlan | None) -> tuple[int, int]:
        """Reserve as an append does, and wait accordingly; returns the ceiling and the floor to log."""
        last_seq = dest.storage.logged_seq = dest.log.next_seq - 1
        durability, reserved = dest.durability, dest.reserved
        entry.require_sync(
            dest.pending.syncs > 0 or ack_policy.needs_sync(durability, last_seq, reserved.ceiling_durable)
        )
        ceiling = ack_policy.next_ceiling(durability, last_seq, reserved.ceiling_logged)
        if ceiling:
            self._companions.append(reserved.reserve_seqs(ceiling))
        return ceiling, 1 if plan is None else reserve_floor(entry, plan, self._companions)

    def finish(self) -> None:
        """Log what was done; raises `StorageFailed` or `LimitReached` after everything was withdrawn."""
        if self._entries and self._core.shards:
            try:
                self._gather()
            except (StorageFailed, LimitReached) as error:
                self._withdraw(error)
                raise
        for entry in self._at_once:
            entry.on_commit()

    def _gather(self) -> None:
        core, source = self._core, self._source
        shard = core.writable_shard(source)
        frame = encode(Forward(source.name, source.epoch, self._entries))
        shard.reserve(len(frame) + CONTROL_ROOM)
        shard.wal.buffer.append_control(FrameType.FORWARD, 0, source.topic_id, 0, self._now_ms, frame)
        # An entry of its own, so that the frame counts once, however many copies it stands for.
        shard.gather(ChangeEntry(needs_sync=False), 1)
        if source.routes.order is not None and any(entry.needs_sync for entry in self._copies):
            # Copies of copies: what they are made from may be in other shards.
            originals = core.sync(other for other in core.shards if other is not shard)
            for copy in self._copies:
                copy.originals = originals if copy.needs_sync else COMMITTED
        entries: list[Entry] = [*self._companions, *self._copies]
        for entry in entries:
            shard.gather(entry, 0)

    def _withdraw(self, error: StorageFailed | LimitReached) -> None:
        for companion in self._companions:
            companion.withdraw()
        failure = error if isinstance(error, StorageFailed) else StorageFailed(str(error))
        for entry in reversed([*self._copies, *self._at_once]):
            entry.on_abort(failure, False)

    # --- Copies of records that are in no log ------------------------------------------------------------

    def _write_out(self, router: Router, step: RouterStep) -> None:
        """Append the copies to the log of the destination: nothing could make them again."""
        core, dest = self._core, router.dest
        ts = max(self._now_ms, dest.log.last_ts, dest.storage.restored_ts)
        shard = core.writable_shard(dest)
        metas = None
        if router.guarantee is Guarantee.EXACTLY_ONCE:
            metas = metas_of(core.sources, self._source.log, self._origin(router), list(step.runs))
        extra = sum(map(len, metas)) + 64 * len(metas) if metas else 0
        shard.reserve(step.frame_bytes + extra + CONTROL_ROOM)
        first_seq = dest.log.next_seq
        last_seq = first_seq + step.copies - 1
        ceiling = ack_policy.next_ceiling(dest.durability, last_seq, dest.reserved.ceiling_logged)
        if ceiling:
            frame_ceiling(shard, dest, ceiling, ts)
            shard.gather(dest.reserved.reserve_seqs(ceiling), 1)
        copied = copy_records(
            core.sources,
            self._source.log,
            [(seq, length) for seq, length, _ in step.runs],
            dest.log,
            shard.wal.buffer,
            shard.wal.source,
            shard.wal.source_offset,
            ts,
            FLAG_BATCH_CONTINUES | (FLAG_DURABLE if dest.durability is Durability.FSYNC else 0),
            router.preserve_node,
            router.preserve_tag,
            metas,
        )
        entry = WrittenCopyEntry(router, step, first_seq, copied.payload, ts, self._on_over)
        self._on_begun()
        dest.storage.logged_seq = last_seq
        entry.require_sync(
            dest.pending.syncs > 0
            or ack_policy.needs_sync(dest.durability, last_seq, dest.reserved.ceiling_durable)
        )
        shard.gather(entry, step.copies)
