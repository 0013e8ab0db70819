"""The jobs of one job queue that say more than a record: options, unique keys, limits, and the claim order.

Owns which jobs can be claimed next, once a job queue uses any of it; a plain one has no board. Leases are in
`lease_table`, which tells the board when one ends. A job that can be claimed is in one of these places:

    the log, behind the cursor of the lease table   never leased, due, priority 0 to 249
    `_order`                                        every other due job
    `_parked`, by key                               due, but its key has no room; room moves one to `_order`
    `_delays`                                       never leased, not due yet
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from everlog.native.topics.log import live_seqs
from everlog.topics.commits import COMMITTED, Commit
from everlog.topics.jobs.claim_order import ClaimOrder, base_band, rank_of
from everlog.topics.jobs.claim_rates import QUEUE_KEY, ClaimRates
from everlog.topics.jobs.lease_table import DUE_AT_ONCE, LEASED, READY
from everlog.topics.jobs.options import NO_OPTIONS
from everlog.topics.storage.control import JobOptions

if TYPE_CHECKING:
    from everlog.topics.jobs.lease_table import LeaseTable
    from everlog.topics.topic import Topic

LOOKS_MAX: Final = 1000
"""Jobs that one claim looks at, a few milliseconds; what it passes over is parked, so the next goes on."""
PASSED_MAX: Final = 50_000
"""Jobs behind the cursor that one claim passes over because they are elsewhere: two milliseconds."""
_BLOCK_BITS: Final = 12
_FRESH_AT_ONCE: Final = 128
_STALE_MAX: Final = 1024
_KEYS_A_SLICE: Final = 1000
_SEQS_A_SLICE: Final = 1024
_options_of_block: Final = msgspec.msgpack.Decoder(list[tuple[int, JobOptions]])
_encode_block: Final = msgspec.msgpack.Encoder().encode


class UniqueHolder(NamedTuple):
    """The job that has a unique key, when it was appended, and whether that is certain."""

    seq: int
    ts: int
    commit: Commit


class JobBoard:
    """See the module."""

    __slots__ = (
        "_blocks",
        "_delays",
        "_key_leases",
        "_key_limit",
        "_order",
        "_parked",
        "_queued",
        "_rate_ends",
        "_reserved",
        "_taken",
        "_topic",
        "_unique_ends",
        "_waking",
        "_waking_left",
        "delayed",
        "is_unfinished",
        "options",
        "rates",
        "table",
        "unique",
    )

    def __init__(self, topic: Topic, table: LeaseTable) -> None:
        self._topic = topic
        self.table = table
        self.options: dict[int, JobOptions] = {}
        self.delayed: dict[int, int] = {}
        """Jobs that were never leased and are not due: when they are."""
        self.unique: dict[str, UniqueHolder] = {}
        self.rates = ClaimRates(topic.config.rate_limit)
        self.is_unfinished = False
        """The last claim stopped because it had looked at enough jobs."""
        self._unique_ends: deque[tuple[int, str, int]] = deque()  # end of the window, key, seq; of gone jobs
        self._order = ClaimOrder()
        self._queued: dict[int, bool] = {}  # in `_order` (False) or in `_parked` (True)
        self._parked: dict[str, ClaimOrder] = {}
        self._delays: list[tuple[int, int]] = []  # a heap; entries that `delayed` does not confirm are stale
        self._rate_ends: list[tuple[int, str]] = []  # a heap: when a key with parked jobs has room again
        self._key_leases: dict[str, int] = {}
        self._key_limit = topic.config.concurrency_limit
        self._reserved: dict[int, str] = {}  # taken by the claim that is being served: seq -> key
        self._taken: set[int] = set()  # out of `_order`, by the claim that is being served
        self._blocks: dict[int, bytes | None] = {}
        self._waking: list[str] = []  # keys whose parked jobs wake, because the limits have changed
        self._waking_left = 0  # how many of the last of them

    # --- Jobs come ---------------------------------------------------------------------------------------

    def register(self, seq: int, options: JobOptions, ts: int, commit: Commit) -> None:
        """Note the options of a job that is appended, visible or not."""
        if options.unique_key:
            self.unique[options.unique_key] = UniqueHolder(seq, ts, commit)
        if options == NO_OPTIONS and seq not in self.options:
            return
        self.options[seq] = options
        block = seq >> _BLOCK_BITS
        if block not in self._blocks:
            self._begin_block(block)
        self._blocks[block] = None

    def _begin_block(self, block: int) -> None:
        """Encode the block before this one, so that a snapshot finds all but the last one done."""
        floor = self._topic.log.first_live >> _BLOCK_BITS
        for old in list(takewhile(lambda each: each < floor, self._blocks)):
            del self._blocks[old]
        if block - 1 in self._blocks:
            self._encoded(block - 1)

    def admit(self, seqs: Iterable[int]) -> None:
        """Jobs became visible."""
        for seq in seqs:
            options = self.options.get(seq)
            if options is not None:
                self._admit(seq, options)

    def _admit(self, seq: int, options: JobOptions) -> None:
        if options.run_at > self._topic.log.timestamp(seq):
            self.delayed[seq] = options.run_at
            self.table.delayed += 1
            heappush(self._delays, (options.run_at, seq))
        elif base_band(options.priority):
            self.add(seq)

    def withdraw(self, seqs: Iterable[int]) -> None:
        """Jobs did not become visible."""
        for seq in seqs:
            options = self.options.pop(seq, None)
            if options is not None:
                self._blocks[seq >> _BLOCK_BITS] = None
                if options.unique_key and self.unique[options.unique_key].seq == seq:
                    del self.unique[options.unique_key]

    def add(self, seq: int) -> None:
        """Let a job be claimed in its turn; one that is in line already stays where it is."""
        if seq not in self._queued and self._topic.log.is_live(seq):
            self._queued[seq] = False
            self._enter(self._order, seq)

    def _enter(self, order: ClaimOrder, seq: int) -> None:
        options = self.options.get(seq, NO_OPTIONS)
        due_ms = max(self._topic.log.timestamp(seq), options.run_at)
        order.add(seq, base_band(options.priority), due_ms, self.table.deliveries(seq) == 0)

    def make_due(self, seq: int) -> bool:
        """End the delay of a job that was never leased; whether it had one."""
        if self.delayed.pop(seq, None) is None:
            return False
        self.table.delayed -= 1
        self.add(seq)
        return True

    def due_now(self, seq: int) -> JobOptions:
        """The options of a job without its delay."""
        return msgspec.structs.replace(self.options[seq], run_at=0)

    def set_options(self, seq: int, options: JobOptions) -> None:
        """Change the options of a job that exists."""
        self.options[seq] = options
        self._blocks[seq >> _BLOCK_BITS] = None

    def find_unique(self, key: str, now_ms: int) -> UniqueHolder | None:
        """The job that stands for a new one with this key."""
        window_ms = self._topic.config.unique_window_ms
        while self._unique_ends and self._unique_ends[0][0] < now_ms:
            _, old, seq = self._unique_ends.popleft()
            if (holder := self.unique.get(old)) is not None and holder.seq == seq:
                del self.unique[old]
        holder = self.unique.get(key)
        if holder is None or (holder.commit.done and holder.commit.error is not None):
            return None
        if not holder.commit.done or self._topic.log.is_live(holder.seq):
            return holder
        return holder if now_ms - holder.ts <= window_ms else None

    # --- Jobs go -----------------------------------------------------------------------------------------

    @property
    def known(self) -> tuple[Collection[int], ...]:
        """The seqs of jobs that are held here; one may be in several of them."""
        return self.options, self._queued

    def drop(self, seqs: Iterable[int]) -> None:
        """Forget deleted jobs."""
        if self._queued or self.delayed or self.unique:
            for seq in seqs:
                self._drop(seq)
        else:
            pop = self.options.pop
            for seq in seqs:
                pop(seq, None)

    def drop_range(self, first_seq: int, end_seq: int) -> None:
        """Forget the jobs from `first_seq` up to before `end_seq`."""
        if end_seq - first_seq > len(self.options) + len(self._queued):
            known = [*self.options, *self._queued]
            self.drop([seq for seq in known if first_seq <= seq < end_seq])
        else:
            self.drop(range(first_seq, end_seq))

    def drop_below(self, floor: int) -> None:
        """Forget all jobs below `floor`."""
        self.drop(list(takewhile(lambda seq: seq < floor, self.options)))

    def begin_delete(self, seq: int) -> None:
        """A job is about to be deleted: it is not claimed meanwhile."""
        was_next = self._queued.pop(seq, None) is False
        if self.delayed.pop(seq, None) is not None:
            self.table.delayed -= 1
        if was_next:
            self._unpark(self.options.get(seq, NO_OPTIONS).concurrency_key)

    def _drop(self, seq: int) -> None:
        options = self.options.pop(seq, None)
        was_next = self._queued.pop(seq, None) is False
        if options is None:
            return
        if self.delayed.pop(seq, None) is not None:
            self.table.delayed -= 1
        if options.unique_key:
            self._end_unique(options.unique_key, seq)
        if was_next and options.concurrency_key:
            self._unpark(options.concurrency_key)

    def _end_unique(self, key: str, seq: int) -> None:
        holder = self.unique.get(key)
        if holder is None or holder.seq != seq:
            return
        window_ms = self._topic.config.unique_window_ms
        if window_ms:
            self._unique_ends.append((holder.ts + window_ms, key, seq))
        else:
            del self.unique[key]

    # --- Time --------------------------------------------------------------------------------------------

    def sweep(self, now_ms: int) -> bool:
        """Let jobs that became due be claimed, and keys that have room again; whether there were any."""
        found = False
        for _ in range(DUE_AT_ONCE):
            if not self._delays or self._delays[0][0] > now_ms:
                break
            run_at, seq = heappop(self._delays)
            if self.delayed.get(seq) == run_at:
                found |= self.make_due(seq)
        left = DUE_AT_ONCE
        while left > 0 and self._rate_ends and self._rate_ends[0][0] <= now_ms:
            found = True
            _, key = heappop(self._rate_ends)
            room = max(1, self.rates.room(key, now_ms) if self.rates.limit is not None else 1)
            woken = self._wake(key, min(room, left))
            left -= 1 + woken
            if woken < room and key in self._parked:
                heappush(self._rate_ends, (now_ms, key))
        while left > 0 and self._waking:
            found = True
            key = self._waking[-1]
            woken = self._wake(key, min(self._waking_left, left))
            left -= 1 + woken
            self._waking_left -= woken
            if not self._waking_left or key not in self._parked:
                self._waking.pop()
                self._waking_left = self._key_limit or 1
        if len(self._delays) > 2 * len(self.delayed) + _STALE_MAX:
            self._delays = [(run_at, seq) for seq, run_at in self.delayed.items()]
            heapify(self._delays)
        return found

    def next_due_ms(self, now_ms: int, ready: int) -> int | None:
        """When `sweep` next finds something, or the rate of the job queue leaves room; None: it will not."""
        times: list[int] = []
        while self._delays and self.delayed.get(self._delays[0][1]) != self._delays[0][0]:
            heappop(self._delays)
        if self._delays:
            times.append(self._delays[0][0])
        if self._rate_ends:
            times.append(self._rate_ends[0][0])
        if self._waking:
            times.append(now_ms)
        limit = self.rates.limit
        if ready and limit is not None and limit.by == "queue" and self.rates.room(QUEUE_KEY, now_ms) <= 0:
            times.append(self.rates.free_ms(QUEUE_KEY))
        return min(times, default=None)

    # --- Claims ------------------------------------------------------------------------------------------

    def pick(self, wanted: int, poisoned_max: int, now_ms: int) -> tuple[list[int], list[int]]:
        """Take up to `wanted` jobs, and apart from them those that were delivered too often.

        `end_claim` has to be called when it is known which of them are leased.
        """
        self.is_unfinished = False
        if self._waking:
            self.is_unfinished = True
            return [], []  # those that still have to wake may come first
        order, table = self._order, self.table
        config, rate = self._topic.config, self.rates.limit
        is_plain = not order.size and rate is None and config.dead_letter is None
        picked = self._pick_at_once(wanted) if is_plain else []
        poisoned: list[int] = []
        fresh = self._fresh(wanted - len(picked))
        candidate = next(fresh, None) if len(picked) < wanted else None
        by_queue = rate is not None and rate.by == "queue"
        key_limit = config.concurrency_limit or 1
        has_dead_letter = config.dead_letter is not None
        find, key_leases, reserved = self.options.get, self._key_leases, self._reserved
        looks = 0
        while len(picked) < wanted and len(poisoned) < poisoned_max:
            if by_queue and self.rates.room(QUEUE_KEY, now_ms) <= 0:
                break
            if candidate is None and self.is_unfinished:
                break  # one behind the cursor may come before those of `order`
            looks += 1
            if looks > LOOKS_MAX:
                self.is_unfinished = True
                break
            seq = self._take_ordered(candidate, now_ms) if order.size else None
            if seq is None:
                if candidate is None:
                    break
                seq, candidate = candidate, next(fresh, None)
                if seq >= table.cursor:
                    table.cursor = seq + 1
            if has_dead_letter and self._is_poisoned(seq):
                poisoned.append(seq)
                self._unpark(self.options.get(seq, NO_OPTIONS).concurrency_key)
                continue
            options = find(seq)
            key = "" if options is None else options.concurrency_key
            if key:
                leases = key_leases.get(key, 0)
                if leases >= key_limit or (rate is not None and self._is_spent(key, now_ms)):
                    self._park(seq, key)
                    continue
                key_leases[key] = leases + 1
            if rate is not None:
                self._note_claim(key, now_ms)
            if key or rate is not None:
                reserved[seq] = key
            picked.append(seq)
        return picked, poisoned

    def _pick_at_once(self, wanted: int) -> list[int]:
        """Take the next jobs behind the cursor together, if each has a key of its own that is free, or none.

        That is what claims meet most; `pick` takes the others one by one, by the same rules.
        """
        topic, table, find = self._topic, self.table, self.options.get
        seqs = live_seqs(topic.log, table.cursor, topic.visible, wanted)
        if not seqs or self._queued or self.delayed or len(table.unleased(seqs)) < len(seqs):
            return []
        keyed = {seq: each.concurrency_key for seq in seqs if (each := find(seq)) and each.concurrency_key}
        keys = dict.fromkeys(keyed.values(), 1)
        if len(keys) < len(keyed) or not keys.keys().isdisjoint(self._key_leases.keys()):
            return []
        self._key_leases |= keys
        self._reserved |= keyed
        table.cursor = seqs[-1] + 1
        return seqs

    def _fresh(self, wanted: int) -> Iterator[int]:
        """Jobs behind the cursor that are nowhere else. Taking them moves the cursor.

        After passing over `PASSED_MAX` others they end, and the next claim goes on.
        """
        topic, table = self._topic, self.table
        begin = table.cursor
        count = min(wanted, _FRESH_AT_ONCE)
        passed = 0
        while found := live_seqs(topic.log, begin, topic.visible, count):
            begin = found[-1] + 1
            passed += len(found)
            found = table.unleased(found)
            for others in (self._queued, self.delayed, self._taken):
                if others:
                    found = [seq for seq in found if seq not in others]
            passed -= len(found)
            yield from found
            if passed > PASSED_MAX:
                self.is_unfinished = True
                break
            count = _FRESH_AT_ONCE
        table.cursor = max(table.cursor, min(begin, topic.visible + 1))

    def _take_ordered(self, fresh: int | None, now_ms: int) -> int | None:
        """Take the first job of `_order`, unless the first one behind the cursor comes before it."""
        order = self._order
        while order.size:
            first = order.first(now_ms)
            assert first is not None
            if self._queued.get(first.seq, True):
                order.remove(first)  # deleted meanwhile
                continue
            if fresh is not None:
                rank = rank_of(0, self._topic.log.timestamp(fresh), True, fresh, now_ms)
                if rank < first.rank:
                    return None
            order.remove(first)
            del self._queued[first.seq]
            self._taken.add(first.seq)
            job = self.table.jobs.get(first.seq)
            if (job is None or job.phase == READY) and self._topic.log.is_live(first.seq):
                return first.seq
        return None

    def _is_poisoned(self, seq: int) -> bool:
        most = self.options.get(seq, NO_OPTIONS).max_deliveries
        most = self._topic.config.max_deliveries if most is None else most
        return bool(most) and self.table.deliveries(seq) >= most

    def _is_spent(self, key: str, now_ms: int) -> bool:
        """Whether the rate of a key leaves no room; it is looked at again when there is some."""
        limit = self.rates.limit
        if limit is None or limit.by != "key" or self.rates.room(key, now_ms) > 0:
            return False
        heappush(self._rate_ends, (self.rates.free_ms(key), key))
        return True

    def _note_claim(self, key: str, now_ms: int) -> None:
        """Count a claim for the rate, unless that is by key and the job has none."""
        limit = self.rates.limit
        if limit is not None and (key or limit.by == "queue"):
            self.rates.note(QUEUE_KEY if limit.by == "queue" else key, now_ms)

    def _park(self, seq: int, key: str) -> None:
        order = self._parked.get(key)
        if order is None:
            order = self._parked[key] = ClaimOrder()
        self._queued[seq] = True
        self._enter(order, seq)

    def end_claim(self, leased: Sequence[dict[int, int]]) -> None:
        """End a claim: these were leased (seq -> lease id), and the others that it took were not."""
        self._taken.clear()
        reserved, self._reserved = self._reserved, {}
        for leases in leased:
            if len(leased) == 1 and leases.keys() >= reserved.keys():
                return
            for seq in leases:
                reserved.pop(seq, None)
        limit = self.rates.limit
        for key in reserved.values():
            if limit is not None and (key or limit.by == "queue"):
                self.rates.undo(QUEUE_KEY if limit.by == "queue" else key)
        self._free(reserved.values())

    def leases_ended(self, seqs: Iterable[int]) -> None:
        """Leases are over, by whatever."""
        find = self.options.get
        self._free([each.concurrency_key for seq in seqs if (each := find(seq)) is not None])

    def _free(self, keys: Iterable[str]) -> None:
        """One lease less for each of these keys; an empty one is none."""
        leases, parked = self._key_leases, self._parked
        for key in keys:
            if key:
                left = leases.pop(key, 0) - 1
                if left > 0:
                    leases[key] = left
                if key in parked:
                    self._unpark(key)

    def _unpark(self, key: str) -> None:
        """Let the first parked job of a key be claimed in its turn."""
        order = self._parked.get(key)
        while order is not None and order.size:
            first = order.first(self._topic.log.last_ts)
            assert first is not None
            order.remove(first)
            if not order.size:
                del self._parked[key]
            if self._queued.get(first.seq):
                self._queued[first.seq] = False
                self._enter(self._order, first.seq)
                return

    def _wake(self, key: str, most: int) -> int:
        """Let up to so many parked jobs of a key be claimed in their turn; returns how many."""
        woken = 0
        while woken < most and key in self._parked:
            self._unpark(key)
            woken += 1
        return woken

    def reconfigure(self) -> None:
        """Apply the limits if they are others now: each key wakes as many jobs as may be leased.

        There can be very many, so `sweep` wakes them, and claims go on when it has.
        """
        config, before = self._topic.config, self.rates.limit
        if (config.rate_limit, config.concurrency_limit) == (before, self._key_limit):
            return
        self._key_limit = config.concurrency_limit
        if before != config.rate_limit:
            stored = self.rates.stored()
            self.rates = ClaimRates(config.rate_limit)
            if config.rate_limit is not None and before is not None and config.rate_limit.by == before.by:
                self.restore_claims(stored)
        self._waking = list(self._parked)
        self._waking_left = self._key_limit or 1

    # --- The whole ---------------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Put every job where it belongs, from the options and the leases: at the start, after a replay."""
        self.table.delayed -= len(self.delayed)
        self._order, self._queued, self._parked = ClaimOrder(), {}, {}
        self.delayed, self._delays, self._rate_ends = {}, [], []
        self._key_leases, self._reserved, self._waking = {}, {}, []
        for seq, job in self.table.jobs.items():
            if job.phase == READY:
                self.add(seq)
            elif job.phase == LEASED:
                key = self.options.get(seq, NO_OPTIONS).concurrency_key
                if key:
                    self._key_leases[key] = self._key_leases.get(key, 0) + 1
        for seq, options in self.options.items():
            if seq <= self._topic.visible and seq not in self.table.jobs:
                self._admit(seq, options)

    def finish_replay(self) -> None:
        """End a replay: forget the options of jobs that do not exist."""
        log = self._topic.log
        for seq in [seq for seq in self.options if not log.is_live(seq)]:
            self._drop(seq)
        self.rebuild()

    def option_slices(self, begin_seq: int = 0) -> Iterator[tuple[int, list[tuple[int, JobOptions]]]]:
        """Yield the options of jobs from a seq on, some hundred at a time, and up to before which seq.

        Jobs may come and go between two of them: those that come have higher seqs.
        """
        find = self.options.get
        for block in sorted(self._blocks):
            for first_seq in range(block << _BLOCK_BITS, (block + 1) << _BLOCK_BITS, _SEQS_A_SLICE):
                end_seq = first_seq + _SEQS_A_SLICE
                if end_seq > begin_seq:
                    seqs = range(max(first_seq, begin_seq), end_seq)
                    yield end_seq, [(seq, found) for seq in seqs if (found := find(seq)) is not None]

    def stored_options(self) -> Iterator[bytes]:
        """The options as a snapshot stores them, in blocks of some thousand seqs."""
        for block in sorted(self._blocks):
            if text := self._encoded(block):
                yield text

    def _encoded(self, block: int) -> bytes:
        text = self._blocks.get(block)
        if text is None:
            seqs = range(block << _BLOCK_BITS, (block + 1) << _BLOCK_BITS)
            jobs = [(seq, self.options[seq]) for seq in seqs if seq in self.options]
            text = self._blocks[block] = _encode_block(jobs) if jobs else b""
        return text

    def stored_unique_keys(self) -> Iterator[list[tuple[str, int, int]]]:
        """The unique keys of jobs that are gone, which count until their window ends; some at a time."""
        ends = iter(self._unique_ends.copy())
        while part := list(islice(ends, _KEYS_A_SLICE)):
            yield [
                (key, seq, holder.ts)
                for _, key, seq in part
                if (holder := self.unique.get(key)) is not None and holder.seq == seq
            ]

    def restore(self, blocks: list[bytes], unique: list[tuple[str, int, int]]) -> None:
        """Apply what a snapshot stores."""
        log = self._topic.log
        for block in blocks:
            for seq, options in _options_of_block.decode(block):
                is_loaded = log.base_seq <= seq < log.next_seq  # otherwise the log says it again
                self.register(seq, options, log.timestamp(seq) if is_loaded else 0, COMMITTED)
        for key, seq, ts in unique:
            self.unique[key] = UniqueHolder(seq, ts, COMMITTED)
            self._unique_ends.append((ts + self._topic.config.unique_window_ms, key, seq))

    def restore_claims(self, claims: list[tuple[str, list[tuple[int, int]]]]) -> None:
        """Apply the claims that count for the rate limit."""
        for key, times in claims:
            for claimed_ms, count in times:
                self.rates.note(key, claimed_ms, count)
