# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Who holds which job of one queue: leases, delivery counts, what is claimable again and what waits.

Owns the state and its transitions. Pure: all time is passed in, nothing is read from or written to anywhere.
Which jobs exist is the topic's log; it tells when one dies.
"""

cimport cython
from libc.stdint cimport int64_t, uint64_t

from heapq import heapify, heappop, heappush

cdef enum:
    PHASE_READY = 0
    PHASE_LEASED = 1
    PHASE_DELAYED = 2
    PHASE_LEAVING = 3
    # Entries of heaps that stand for nothing any more are swept out when they are most of it and more than this.
    STALE_MIN = 1024

READY = PHASE_READY
LEASED = PHASE_LEASED
DELAYED = PHASE_DELAYED
LEAVING = PHASE_LEAVING


@cython.freelist(256)
@cython.final
cdef class Job:
    """A job that was given out at least once. `until_ms` is the deadline of a lease, or the end of a delay."""

    cdef readonly int phase
    cdef readonly str node
    cdef readonly uint64_t lease_id
    cdef readonly int64_t until_ms
    cdef readonly int64_t deliveries
    cdef dict held

    def __cinit__(self) -> None:
        self.node = ""


cdef class LeaseTable:
    """The jobs of one queue that were given out and are still there."""

    cdef readonly dict jobs
    cdef public uint64_t cursor
    cdef readonly Py_ssize_t leased
    cdef readonly Py_ssize_t delayed
    cdef readonly Py_ssize_t leaving
    # Heaps; an entry counts only if its job says the same.
    cdef list reclaimed_heap
    cdef list expiry_heap  # deadline, order, seqs with that deadline
    cdef Py_ssize_t expiry_seqs
    cdef uint64_t last_order
    cdef list delay_heap  # end of the delay, seq
    cdef list seq_heap  # of all jobs here, to find those below a floor
    cdef uint64_t highest

    def __cinit__(self) -> None:
        self.jobs = {}
        self.cursor = 1
        self.reclaimed_heap, self.expiry_heap, self.delay_heap, self.seq_heap = [], [], [], []

    # --- Counting ----------------------------------------------------------------------------------------

    def ready(self, Py_ssize_t count) -> int:
        """Return how many of the `count` live jobs can be claimed now."""
        return count - self.leased - self.delayed - self.leaving

    @property
    def entries(self) -> int:
        """How much all heaps remember, of jobs that are there and of others."""
        return len(self.seq_heap) + len(self.reclaimed_heap) + len(self.delay_heap) + self.expiry_seqs

    def sweep(self, int64_t now_ms) -> bool:
        """Let leases and delays end whose time is over; True if that made a job claimable."""
        cdef bint found = False
        cdef Job job
        while self.expiry_heap and <int64_t>self.expiry_heap[0][0] < now_ms:
            _, _, seqs = heappop(self.expiry_heap)
            self.expiry_seqs -= len(seqs)
            for seq in seqs:
                job = self.jobs.get(seq)
                if job is not None and job.phase == PHASE_LEASED and job.until_ms < now_ms:
                    self.reclaim(seq, job)
                    found = True
        while self.delay_heap and <int64_t>self.delay_heap[0][0] <= now_ms:
            _, seq = heappop(self.delay_heap)
            job = self.jobs.get(seq)
            if job is not None and job.phase == PHASE_DELAYED and job.until_ms <= now_ms:
                self.reclaim(seq, job)
                found = True
        return found

    def next_due_ms(self) -> int | None:
        """When `sweep` will next make a job claimable; None if nothing is out."""
        cdef list times = []
        cdef Job job
        while self.expiry_heap:
            deadline_ms, _, seqs = self.expiry_heap[0]
            if self.has_leased_until(seqs, deadline_ms):
                times.append(deadline_ms + 1)
                break
            heappop(self.expiry_heap)
            self.expiry_seqs -= len(seqs)
        while self.delay_heap:
            until_ms, seq = self.delay_heap[0]
            job = self.jobs.get(seq)
            if job is not None and job.phase == PHASE_DELAYED and job.until_ms == until_ms:
                times.append(until_ms)
                break
            heappop(self.delay_heap)
        return min(times, default=None)

    cdef bint has_leased_until(self, list seqs, int64_t deadline_ms) except -1:
        cdef Job job
        for seq in seqs:
            job = self.jobs.get(seq)
            if job is not None and job.phase == PHASE_LEASED and job.until_ms == deadline_ms:
                return True
        return False

    # --- The supply --------------------------------------------------------------------------------------

    def pop_reclaimed(self) -> int | None:
        """Take the lowest job that was given out before and is claimable again."""
        cdef Job job
        cdef list heap = self.reclaimed_heap
        while heap:
            seq = heappop(heap)
            while heap and heap[0] == seq:
                heappop(heap)  # it was claimable, gone from here, and is claimable again
            job = self.jobs.get(seq)
            if job is not None and job.phase == PHASE_READY:
                return seq
        return None

    def unknown(self, list seqs not None) -> list[int]:
        """Return those of the ascending `seqs` that were never given out."""
        if not seqs or <uint64_t>seqs[0] > self.highest:
            return seqs
        return [seq for seq in seqs if seq not in self.jobs]

    def put_back(self, uint64_t seq) -> None:
        """A job that was taken from the supply is not given out after all."""
        cdef Job job = self.jobs.get(seq)
        if job is None:
            self.cursor = min(self.cursor, seq)
        elif job.phase == PHASE_READY:
            heappush(self.reclaimed_heap, seq)

    def deliveries(self, uint64_t seq) -> int:
        """Return how often a job was given out."""
        cdef Job job = self.jobs.get(seq)
        return 0 if job is None else job.deliveries

    def next_deliveries(self, list seqs not None) -> list[int]:
        """Return which delivery it would be if each of the ascending `seqs` were given out."""
        if seqs and <uint64_t>seqs[0] > self.highest:
            return [1] * len(seqs)
        return [self.deliveries(seq) + 1 for seq in seqs]

    # --- Transitions -------------------------------------------------------------------------------------

    def give(self, dict leases not None, str node not None, int64_t deadline_ms, dict held=None) -> None:
        """Lease jobs (seq -> lease id) to a node. `held` is kept equal to those of them it still holds."""
        cdef Job job
        for seq, lease_id in leases.items():
            job = self.jobs.get(seq)
            if job is None:
                job = self.track(seq)
            elif job.phase != PHASE_READY:
                self.leave_phase(seq, job)
            job.phase = PHASE_LEASED
            job.node = node
            job.lease_id = lease_id
            job.until_ms = deadline_ms
            job.deliveries += 1
            job.held = held
        self.leased += len(leases)
        if held is not None:
            held.update(leases)
        self.expect(deadline_ms, list(leases))

    def holds(self, uint64_t seq, str node not None, lease_id: int | None) -> bool:
        """Whether the live lease of a job is this node's, and the one that is named if one is."""
        return is_held(self.jobs.get(seq), node, lease_id)

    def take(self, str node not None, seqs: object, fences: object) -> tuple[list[int], list[int]]:
        """Let the jobs that this node holds leave; return them, and those that it does not hold.

        A fence is the lease that is meant, or None if any will do.
        """
        cdef list held = [], skipped = []
        cdef Job job
        for seq, fence in zip(seqs, fences, strict=True):
            job = self.jobs.get(seq)
            if not is_held(job, node, fence):
                skipped.append(seq)
                continue
            if job.held is not None:
                job.held.pop(seq, None)
                job.held = None
            job.phase = PHASE_LEAVING
            self.leased -= 1
            self.leaving += 1
            held.append(seq)
        return held, skipped

    def extend(self, seqs: object, int64_t deadline_ms) -> None:
        """Give leases another deadline."""
        cdef Job job
        for seq in seqs:
            job = self.jobs[seq]
            job.until_ms = deadline_ms
        self.expect(deadline_ms, list(seqs))

    def release(self, uint64_t seq, int64_t now_ms, int64_t delay_ms=0) -> None:
        """End a lease; the job is claimable again, at once or after a delay."""
        cdef Job job = self.jobs[seq]
        if delay_ms == 0:
            self.reclaim(seq, job)
        else:
            self.delay(seq, job, now_ms + delay_ms)

    def set_aside(self, uint64_t seq, int64_t until_ms) -> None:
        """A job that cannot be given out now must not hold up the others."""
        cdef Job job = self.jobs.get(seq)
        self.delay(seq, self.track(seq) if job is None else job, until_ms)

    def leave(self, uint64_t seq) -> None:
        """A job is about to go for good; until that is decided nobody gets it."""
        cdef Job job = self.jobs[seq]
        self.leave_phase(seq, job)
        job.phase = PHASE_LEAVING
        self.leaving += 1

    def stay(self, uint64_t seq) -> None:
        """It did not go: claimable again."""
        cdef Job job = self.jobs.get(seq)
        if job is not None and job.phase == PHASE_LEAVING:
            self.reclaim(seq, job)

    def take_back(self, uint64_t seq, uint64_t lease_id) -> None:
        """A lease was never handed over: as if it had not been given."""
        cdef Job job = self.jobs.get(seq)
        if job is not None and job.phase == PHASE_LEASED and job.lease_id == lease_id:
            job.deliveries -= 1
            self.reclaim(seq, job)

    def restore(self, uint64_t seq, int phase, str node not None, uint64_t lease_id, int64_t until_ms,
                int64_t deliveries) -> None:
        """Take over what an event or a snapshot says of a job; an older lease never changes a newer one."""
        cdef Job job = self.jobs.get(seq)
        if job is None:
            job = self.track(seq)
        elif lease_id < job.lease_id:
            return
        self.leave_phase(seq, job)
        job.node = node
        job.lease_id = lease_id
        job.deliveries = deliveries
        job.until_ms = until_ms
        if phase == PHASE_LEASED:
            job.phase = PHASE_LEASED
            self.leased += 1
            self.expect(until_ms, [seq])
        elif phase == PHASE_DELAYED:
            self.delay(seq, job, until_ms)
        else:
            heappush(self.reclaimed_heap, seq)

    # --- Deaths ------------------------------------------------------------------------------------------

    def drop(self, seqs: object) -> None:
        """These jobs are gone, whoever held them."""
        cdef Job job
        if not self.jobs:
            return
        for seq in seqs:
            job = self.jobs.pop(seq, None)
            if job is not None:
                self.leave_phase(seq, job)
        self.sweep_out()

    def drop_range(self, uint64_t first_seq, uint64_t end_seq) -> None:
        """The jobs from `first_seq` up to before `end_seq` are gone."""
        cdef uint64_t seq
        cdef Job job
        if not self.jobs or first_seq > self.highest:
            return
        for seq in range(first_seq, min(end_seq, self.highest + 1)):
            job = self.jobs.pop(seq, None)
            if job is not None:
                self.leave_phase(seq, job)
        self.sweep_out()

    def drop_below(self, uint64_t floor) -> None:
        """All jobs below `floor` are gone."""
        cdef Job job
        while self.seq_heap and <uint64_t>self.seq_heap[0] < floor:
            seq = heappop(self.seq_heap)
            job = self.jobs.pop(seq, None)
            if job is not None:
                self.leave_phase(seq, job)

    def forget(self) -> None:
        """Lose every lease and every count: all jobs are as if they had just come."""
        cdef Job job
        for seq, job in self.jobs.items():
            self.leave_phase(seq, job)
        self.jobs.clear()
        self.cursor = 1
        self.sweep_out()

    # --- Steps -------------------------------------------------------------------------------------------

    cdef Job track(self, uint64_t seq):
        cdef Job job = Job.__new__(Job)
        number = seq
        self.jobs[number] = job
        if seq > self.highest:
            self.highest = seq
            self.seq_heap.append(number)  # behind all others, which is its place in the heap
        else:
            heappush(self.seq_heap, number)
        return job

    cdef int reclaim(self, seq, Job job) except -1:
        self.leave_phase(seq, job)
        heappush(self.reclaimed_heap, seq)
        return 0

    cdef int delay(self, seq, Job job, int64_t until_ms) except -1:
        self.leave_phase(seq, job)
        job.phase = PHASE_DELAYED
        job.until_ms = until_ms
        self.delayed += 1
        heappush(self.delay_heap, (until_ms, seq))
        return 0

    cdef int leave_phase(self, seq, Job job) except -1:
        """Count a job out of where it is; it is READY then, but in no heap yet."""
        if job.phase == PHASE_LEASED:
            self.leased -= 1
            if job.held is not None:
                job.held.pop(seq, None)
                job.held = None
        elif job.phase == PHASE_DELAYED:
            self.delayed -= 1
        elif job.phase == PHASE_LEAVING:
            self.leaving -= 1
        job.phase = PHASE_READY
        return 0

    cdef int expect(self, int64_t deadline_ms, list seqs) except -1:
        """Look at these leases when their deadline is over."""
        if not seqs:
            return 0
        self.last_order += 1
        heappush(self.expiry_heap, (deadline_ms, self.last_order, seqs))
        self.expiry_seqs += len(seqs)
        if self.expiry_seqs > 4 * self.leased + STALE_MIN:
            self.rebuild_expiries()
        return 0

    cdef int rebuild_expiries(self) except -1:
        """Keep only what stands for a lease: a queue with long leases would remember every job it had."""
        cdef dict by_deadline = {}
        cdef Job job
        for seq, job in self.jobs.items():
            if job.phase == PHASE_LEASED:
                by_deadline.setdefault(job.until_ms, []).append(seq)
        self.expiry_heap = [(deadline_ms, 0, seqs) for deadline_ms, seqs in by_deadline.items()]
        heapify(self.expiry_heap)
        self.expiry_seqs = self.leased
        return 0

    cdef int sweep_out(self) except -1:
        """Give back the memory of heaps whose entries are mostly about jobs that are gone."""
        cdef Py_ssize_t most = 2 * len(self.jobs) + STALE_MIN
        cdef Job job
        if len(self.seq_heap) > most:
            self.seq_heap = sorted(self.jobs)
        if len(self.reclaimed_heap) > most:
            self.reclaimed_heap = sorted([seq for seq, job in self.jobs.items() if job.phase == PHASE_READY])
        if len(self.delay_heap) > most:
            self.delay_heap = sorted(
                [(job.until_ms, seq) for seq, job in self.jobs.items() if job.phase == PHASE_DELAYED]
            )
        if self.expiry_seqs > 4 * self.leased + STALE_MIN:
            self.rebuild_expiries()
        return 0


cdef inline bint is_held(Job job, str node, fence) except -1:
    return (
        job is not None
        and job.phase == PHASE_LEASED
        and (job.node is node or job.node == node)
        and (fence is None or job.lease_id == <uint64_t>fence)
    )
