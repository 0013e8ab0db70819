# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The topics that have news, and the order in which they are served: five bands, weighted shares, and age.

Owns the ready set and the priority of a topic. Knows no topic but as `Work`, and no clock but the one it is
given. All times are integers, powers of two come from a table: equal times give equal orders on every machine.

Work is linked into its band and under the tick at which it may reach the next one, in place: to wait costs no
object, and to be served or forgotten leaves nothing behind. The set holds a reference to all that is in it.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc

cdef enum:
    TOP_BAND = BAND_COUNT - 1
    NOWHERE_BAND = -1
    HELD_BAND = BAND_COUNT
    AGE_MOST = 1000
    AGE_STEP = 10_000_000
    TICK = 50_000_000
    TICK_MOST = 1024
    LOWER_BY = 250
    MANUAL_MOST = 1000
    AUTO_MOST = 500
    HALF_LIFE = 30_000
    AUTO_FLOOR = 300_000
    TABLE_STEPS = 64
    TABLE_BITS = 16

cdef int[BAND_COUNT - 1] band_bounds = [0, 250, 500, 750]
cdef int[BAND_COUNT] band_weights = [1, 1, 2, 4, 8]
cdef uint32_t[TABLE_STEPS + 1] halving
for _step in range(TABLE_STEPS + 1):
    halving[_step] = round(2 ** (-_step / <double>TABLE_STEPS) * (1 << TABLE_BITS))

BOUNDS = tuple([band_bounds[_place] for _place in range(BAND_COUNT - 1)])
WEIGHTS = tuple([band_weights[_place] for _place in range(BAND_COUNT)])
BANDS = BAND_COUNT
TICK_NS = TICK
TICK_WORK = TICK_MOST


# --- Priority ---------------------------------------------------------------------------------------------


cdef int64_t recency_of(int64_t idle_ms) noexcept:
    cdef int64_t factor
    if idle_ms < 0:
        idle_ms = 0
    if idle_ms >= AUTO_FLOOR:
        return 0
    factor = halving[idle_ms % HALF_LIFE * TABLE_STEPS // HALF_LIFE] >> (idle_ms // HALF_LIFE)
    return (AUTO_MOST * factor + (1 << (TABLE_BITS - 1))) >> TABLE_BITS


cdef inline int band_of_priority(int64_t priority) noexcept:
    cdef int band = 0
    while band < TOP_BAND and priority >= band_bounds[band]:
        band += 1
    return band


cdef inline int64_t boost(int64_t waited_ns) noexcept:
    return 0 if waited_ns < 0 else min(waited_ns // AGE_STEP, <int64_t>AGE_MOST)


def recency(int64_t idle_ms) -> int:
    """Return the bonus of a topic that was consumed `idle_ms` ago: 500, halved every 30 s, 0 after 5 min."""
    return recency_of(idle_ms)


def band_of(int64_t priority) -> int:
    """Return the band of an effective priority."""
    return band_of_priority(priority)


def age_boost(int64_t waited_ns) -> int:
    """Return what waiting adds to a priority."""
    return boost(waited_ns)


# --- Lists and heaps --------------------------------------------------------------------------------------


cdef inline void list_init(link *list_head) noexcept:
    list_head.next = list_head.prev = list_head


cdef inline void list_append(link *list_head, link *node) noexcept:
    node.prev, node.next = list_head.prev, list_head
    list_head.prev.next = node
    list_head.prev = node


cdef inline void list_remove(link *node) noexcept:
    if node.next != NULL:
        node.next.prev, node.prev.next = node.prev, node.next
        node.next = node.prev = NULL


cdef inline void list_move(link *origin, link *target) noexcept:
    """Put all of a list before all that is in another one."""
    if origin.next != origin:
        origin.prev.next, target.next.prev = target.next, origin.prev
        origin.next.prev, target.next = target, origin.next
        list_init(origin)


cdef inline Work work_of_queue(link *node):
    return <Work><void *>(<char *>node - queue_offset)


cdef inline Work work_of_wheel(link *node):
    return <Work><void *>(<char *>node - wheel_offset)


cdef inline bint is_before(heap_item *left, heap_item *right) noexcept:
    return left.key < right.key or (left.key == right.key and left.order < right.order)


cdef void heap_set(work_heap *heap, Py_ssize_t place, heap_item item) noexcept:
    heap.items[place] = item
    (<Work>item.work).heap_place = place


cdef void heap_settle(work_heap *heap, Py_ssize_t place, heap_item item) noexcept:
    """Put an item where there is a gap, or above or below, so that nobody is before the one above him."""
    cdef Py_ssize_t other
    while place > 0:
        other = (place - 1) >> 1
        if not is_before(&item, &heap.items[other]):
            break
        heap_set(heap, place, heap.items[other])
        place = other
    while True:
        other = 2 * place + 1
        if other >= heap.count:
            break
        if other + 1 < heap.count and is_before(&heap.items[other + 1], &heap.items[other]):
            other += 1
        if not is_before(&heap.items[other], &item):
            break
        heap_set(heap, place, heap.items[other])
        place = other
    heap_set(heap, place, item)


cdef int heap_push(work_heap *heap, int64_t key, Work work) except -1:
    cdef heap_item item
    cdef heap_item *items
    cdef Py_ssize_t capacity
    if heap.count == heap.capacity:
        capacity = 2 * heap.capacity + 16
        items = <heap_item *>realloc(heap.items, capacity * sizeof(heap_item))
        if items == NULL:
            raise MemoryError("no memory for the ready set")
        heap.items, heap.capacity = items, capacity
    item.key, item.order, item.work = key, work.order, <void *>work
    heap.count += 1
    heap_settle(heap, heap.count - 1, item)
    return 0


cdef void heap_remove(work_heap *heap, Work work) noexcept:
    cdef Py_ssize_t place = work.heap_place
    work.heap_place = -1
    heap.count -= 1
    if place != heap.count:
        heap_settle(heap, place, heap.items[heap.count])


# --- Work -------------------------------------------------------------------------------------------------


cdef class Work:
    """Something that can be served: it is in the ready set at most once."""

    def __cinit__(self, *args: object, **options: object) -> None:
        self.band = NOWHERE_BAND
        self.heap_place = -1

    @property
    def is_marked(self) -> bool:
        """Whether it waits to be served."""
        return self.band != NOWHERE_BAND

    @property
    def since_ns(self) -> int:
        """When its last wait began; it ages from there."""
        return self.since_at

    @property
    def ready_ns(self) -> int:
        """From when on it may be or might have been served: later than that if it is held to gather more."""
        return self.ready_at

    def priority_at(self, now_ms: int) -> int:
        """Its priority without age, at this wall time."""
        return 0

    def serve(self) -> None:
        """Do what is due."""

    cdef int64_t priority_now(self, int64_t now_ms) except? -1:
        return self.priority_at(now_ms)

    cdef int serve_now(self) except -1:
        self.serve()
        return 0


cdef Work _measured = Work()
cdef size_t queue_offset = <size_t>(<char *>&_measured.in_queue - <char *><void *>_measured)
cdef size_t wheel_offset = <size_t>(<char *>&_measured.in_wheel - <char *><void *>_measured)


cdef class TopicWork(Work):
    """The part of a topic that has to do with being served: who waits for it, and how important it is."""

    def __cinit__(self, *args: object, **options: object) -> None:
        self.waiters = {}

    def rank(self, priority: int | None, is_auto: bool) -> None:
        """Take over what the configuration says: the operator's number, or whether recency counts."""
        self.has_manual = priority is not None
        self.manual = 0 if priority is None else max(-MANUAL_MOST, min(MANUAL_MOST, priority))
        self.is_auto = is_auto

    @property
    def last_read_ts(self) -> int | None:
        """When somebody consumed the topic; None if nobody has."""
        return self.read_ms if self.has_read else None

    @last_read_ts.setter
    def last_read_ts(self, value: int | None) -> None:
        self.has_read = value is not None
        self.read_ms = 0 if value is None else value

    def priority_at(self, int64_t now_ms) -> int:
        """The priority that the topic has at this wall time, whether or not it waits to be served."""
        return self.priority_now(now_ms)

    cdef int64_t priority_now(self, int64_t now_ms) except? -1:
        if self.has_manual:
            return self.manual
        return recency_of(now_ms - self.read_ms) if self.is_auto and self.has_read else 0

    def has_news(self, int64_t now_ms) -> None:
        """Let those who wait be told, in the order in which topics are served."""
        if self.band == NOWHERE_BAND and self.waiters and self.ready_set is not None:
            self.ready_set.put(self, self.ready_set.monotonic_ns(), now_ms, self.ready_set.window_ns, False)

    def serve(self) -> None:
        """Tell those who wait: it is this topic's turn."""
        self.serve_now()

    def wake(self) -> None:
        """Tell everyone who waits that something is new; each is told once."""
        self.serve_now()

    cdef int serve_now(self) except -1:
        cdef dict waiters = self.waiters
        if not waiters:
            return 0
        if len(waiters) == 1:
            waiter, _ = waiters.popitem()  # the dictionary is used again: there are many topics
            waiter()
            return 0
        self.waiters = {}
        for waiter in waiters:
            waiter()
        return 0


# --- The set ----------------------------------------------------------------------------------------------


cdef class ReadySet:
    """Work that waits, served in the order of a deficit weighted round robin over its bands.

    Each round gives every band that has something credit for as many as its weight, B4 first. Inside a band it
    is first come, first served, whatever band somebody waited in before.
    """

    def __cinit__(self, monotonic_ns: object, wall_ns: object) -> None:
        cdef int place
        self.monotonic_ns, self.wall_ns = monotonic_ns, wall_ns
        for place in range(BAND_COUNT):
            list_init(&self.queues[place])
        for place in range(WHEEL_SLOTS):
            list_init(&self.wheel[place])
        list_init(&self.frozen)
        self.turn_band, self.credit = TOP_BAND, band_weights[TOP_BAND]

    def __dealloc__(self) -> None:
        cdef int band
        self.drop_all()
        for band in range(BAND_COUNT):
            free(self.moved[band].items)
        free(self.held_heap.items)

    @property
    def depths(self) -> list[int]:
        """How much is in each band that could be served now."""
        return [self.band_depths[band] for band in range(BAND_COUNT)]

    @property
    def ready(self) -> int:
        """How much `take` would give."""
        return self.count - self.held_heap.count - self.paused

    @property
    def paused(self) -> int:
        """How much waits for the end of a pause."""
        return self.band_depths[0] if self.is_paused else 0

    @property
    def held(self) -> int:
        """How much waits for its window."""
        return self.held_heap.count

    # --- In and out --------------------------------------------------------------------------------------

    def mark(self, Work work not None, int64_t now_ns, int64_t now_ms, int64_t window_ns=0, *,
             bint is_lowered=False) -> None:
        """There is news: put the work into the ready set, unless it is there.

        With a window it is not served sooner than so long after it was served last. A lowered one is one band
        below its priority, but not in B0 for that.
        """
        if work.band == NOWHERE_BAND:
            self.put(work, now_ns, now_ms, window_ns, is_lowered)

    cdef int put(self, Work work, int64_t now_ns, int64_t now_ms, int64_t window_ns, bint is_lowered) except -1:
        cdef int64_t priority
        cdef int band
        self.last_order += 1
        work.order = self.last_order
        work.since_at = work.ready_at = now_ns
        work.is_lowered = is_lowered
        if window_ns and now_ns - work.served_ns < window_ns:
            work.ready_at = work.served_ns + window_ns
            heap_push(&self.held_heap, work.ready_at, work)
            band = HELD_BAND
        else:
            priority = lowered(work.priority_now(now_ms), is_lowered)
            if work.band != NOWHERE_BAND:
                return 0  # whoever was asked for its priority has marked it
            band = band_of_priority(priority)
            work.priority = <int>priority
            self.band_depths[band] += 1
            list_append(&self.queues[band], &work.in_queue)
        work.band = band
        Py_INCREF(work)
        self.count += 1
        if band < TOP_BAND:
            self.plan(work)
        return 0

    def take(self) -> Work | None:
        """Take out what is next; None if nothing may be served now."""
        return self.next_work()

    cdef Work next_work(self):
        cdef int band = self.turn_band, credit = self.credit, step
        cdef Work work
        for step in range(BAND_COUNT + 1):
            if credit and self.band_depths[band] and (band or not self.is_paused):
                self.turn_band, self.credit = band, credit - 1
                work = self.first_of(band)
                self.leave(work)
                Py_DECREF(work)
                return work
            band = band - 1 if band else TOP_BAND
            credit = band_weights[band]
        # Nobody is left whose share could be cut short: whoever comes next begins a round.
        self.turn_band, self.credit = TOP_BAND, band_weights[TOP_BAND]
        return None

    cdef Work first_of(self, int band):
        """The one of a band that has waited longest; there is one."""
        cdef link *queue = &self.queues[band]
        cdef work_heap *moved = &self.moved[band]
        if moved.count == 0:
            return work_of_queue(queue.next)
        if queue.next == queue or <uint64_t>moved.items[0].key < work_of_queue(queue.next).order:
            return <Work>moved.items[0].work
        return work_of_queue(queue.next)

    cdef void leave(self, Work work) noexcept:
        """Unlink from everywhere; the reference stays to be given back."""
        if work.band == HELD_BAND:
            heap_remove(&self.held_heap, work)
        else:
            self.band_depths[work.band] -= 1
            if work.heap_place >= 0:
                heap_remove(&self.moved[work.band], work)
            list_remove(&work.in_queue)
            list_remove(&work.in_wheel)
        work.band = NOWHERE_BAND
        self.count -= 1

    def forget(self, Work work not None) -> None:
        """Take work out that is not to be served any more."""
        if work.band != NOWHERE_BAND:
            self.leave(work)
            Py_DECREF(work)

    def drain(self) -> list[Work]:
        """Forget everything and return it: topics refer to the engine that ends, and it to them."""
        cdef list found = []
        cdef int band
        for band in range(BAND_COUNT + 1):
            found += self.waiting(band)
        self.drop_all()
        return found

    cdef void drop_all(self) noexcept:
        cdef int band
        cdef Work work
        for band in range(BAND_COUNT + 1):
            while self.held_heap.count if band == HELD_BAND else self.band_depths[band]:
                work = <Work>self.held_heap.items[0].work if band == HELD_BAND else self.first_of(band)
                self.leave(work)
                Py_DECREF(work)

    def waiting(self, int band) -> list[Work]:
        """Return what is in a band, or held back if it is behind the last one, in no order; looks at all of it."""
        cdef list found = []
        cdef Py_ssize_t place
        cdef link *node
        cdef work_heap *heap = &self.held_heap if band == HELD_BAND else &self.moved[band]
        for place in range(heap.count):
            found.append(<Work>heap.items[place].work)
        if band < BAND_COUNT:
            node = self.queues[band].next
            while node != &self.queues[band]:
                found.append(work_of_queue(node))
                node = node.next
        return found

    def oldest_ns(self, int64_t now_ns) -> int:
        """Return how long the one that waits longest has been ready; paused ones do not count."""
        cdef int64_t oldest = now_ns
        cdef int band
        for band in range(1 if self.is_paused else 0, BAND_COUNT):
            if self.band_depths[band]:
                oldest = min(oldest, self.first_of(band).ready_at)
        return now_ns - oldest

    # --- The turn ----------------------------------------------------------------------------------------

    def turn(self, int64_t budget_ns, Py_ssize_t services_max, drain: object) -> Exception | None:
        """Let time pass, and serve for a while; return the first error of those that came up in it.

        The drain is called after each service with the time to stop at, and tells whether it is finished;
        nobody else is served before it is.
        """
        cdef int64_t now_ns = self.monotonic_ns()
        cdef int64_t end_ns = now_ns + budget_ns
        if self.held_heap.count or now_ns // TICK != self.tick:
            now_ms = self.wall_ns() // 1_000_000
            self.release(now_ns, now_ms)
            self.age(now_ns, now_ms)
        if self.is_unfinished and drain is not None:
            self.is_unfinished = not drain(end_ns)
        return self.serve_until(now_ns, end_ns, services_max, drain)

    cdef object serve_until(self, int64_t now_ns, int64_t end_ns, Py_ssize_t services_max, object drain):
        cdef Py_ssize_t number
        cdef int64_t latency_ns
        cdef Work work
        cdef object first_error = None
        for number in range(services_max):
            if self.is_unfinished or now_ns >= end_ns:
                break
            work = self.next_work()
            if work is None:
                break
            work.served_ns = now_ns
            self.hold_ns = work.ready_at - work.since_at
            latency_ns = now_ns - work.ready_at
            self.served += 1
            self.latency_total_ns += latency_ns
            self.buckets[bit_length(latency_ns // 1000)] += 1
            try:
                work.serve_now()
                if drain is not None:
                    self.is_unfinished = not drain(end_ns)
            except Exception as error:
                if first_error is None:
                    first_error = error
                self.is_unfinished = drain is not None  # whoever was not told yet is told in the next turn
            now_ns = self.monotonic_ns()
        self.now_ns = now_ns
        return first_error

    @property
    def latency_buckets(self) -> list[int]:
        """How many services came how late, by the number of bits of their microseconds."""
        return [self.buckets[place] for place in range(BUCKET_COUNT)]

    # --- Time passes -------------------------------------------------------------------------------------

    def release(self, int64_t now_ns, int64_t now_ms) -> None:
        """Let those be served whose window is over."""
        cdef Work work
        while self.held_heap.count and self.held_heap.items[0].key <= now_ns:
            work = <Work>self.held_heap.items[0].work
            self.enter(work, self.band_at(work, now_ns, now_ms))

    def next_release_ns(self) -> int | None:
        """When the next window is over."""
        return self.held_heap.items[0].key if self.held_heap.count else None

    def age(self, int64_t now_ns, int64_t now_ms) -> None:
        """Move those up who have waited long enough; does something once in a tick of 50 ms."""
        cdef int64_t tick = now_ns // TICK
        cdef int left = TICK_MOST
        if tick - self.tick > WHEEL_SLOTS:
            self.tick = tick - WHEEL_SLOTS  # every slot is looked at then, and once is enough
        while self.tick < tick:
            left = self.grow_slot(&self.wheel[(self.tick + 1) % WHEEL_SLOTS], tick, now_ns, now_ms, left)
            if left == 0:
                return  # those that are left follow in the next call
            self.tick += 1

    cdef int grow_slot(self, link *slot, int64_t tick, int64_t now_ns, int64_t now_ms, int left) except -1:
        """Look at those whose time has come, but no more than `left`; return how many more may be looked at.

        Not 0 unless somebody is left whose time has come.
        """
        cdef link rest  # in a list of its own: whoever is asked for its priority may forget others
        cdef link *node
        cdef Work work
        list_init(&rest)
        list_move(slot, &rest)
        try:
            while rest.next != &rest:
                node = rest.next
                work = work_of_wheel(node)
                if work.due_tick <= tick:
                    if left == 0:
                        return 0
                    left -= 1
                    self.grow(work, now_ns, now_ms)
                else:
                    list_remove(node)
                    list_append(slot, node)
        finally:
            list_move(&rest, slot)
        return max(left, 1)

    cdef int grow(self, Work work, int64_t now_ns, int64_t now_ms) except -1:
        """This work may have reached its next band."""
        cdef int band
        list_remove(&work.in_wheel)
        if work.band == 0 and self.is_paused:
            list_append(&self.frozen, &work.in_wheel)
            return 0
        band = self.band_at(work, now_ns, now_ms)
        if band > work.band:
            self.enter(work, band)
        elif 0 <= work.band < TOP_BAND:
            self.plan(work)  # it was consumed long ago, and is worth less than when it came
        return 0

    def reconsider(self, Work work not None, int64_t now_ns, int64_t now_ms) -> None:
        """The priority of this work has changed by something else than waiting."""
        cdef int band
        if work.band == NOWHERE_BAND or work.band == HELD_BAND:
            return
        band = self.band_at(work, now_ns, now_ms)
        if band != work.band:
            self.enter(work, band)
        elif band < TOP_BAND:
            self.plan(work)

    def pause(self, bint is_paused) -> None:
        """Give B0 no credit, or give it credit again; what has waited is as old as it is."""
        cdef link *node
        self.is_paused = is_paused
        while not is_paused and self.frozen.next != &self.frozen:
            node = self.frozen.next
            list_remove(node)
            list_append(&self.wheel[(self.tick + 1) % WHEEL_SLOTS], node)

    cdef int enter(self, Work work, int band) except -1:
        """Put work that has waited already into another band, at its place by age."""
        cdef Py_ssize_t new_place, place = work.heap_place
        if work.band == NOWHERE_BAND:
            return 0  # whoever was asked for its priority has forgotten it
        heap_push(&self.moved[band], <int64_t>work.order, work)  # first, since nothing else here can fail
        new_place, work.heap_place = work.heap_place, place
        self.leave(work)
        work.heap_place = new_place
        work.band = band
        self.band_depths[band] += 1
        self.count += 1
        if band < TOP_BAND:
            self.plan(work)
        return 0

    cdef int band_at(self, Work work, int64_t now_ns, int64_t now_ms) except -1:
        cdef int64_t priority = lowered(work.priority_now(now_ms), work.is_lowered)
        work.priority = <int>priority
        return band_of_priority(priority + boost(now_ns - work.since_at))

    cdef void plan(self, Work work) noexcept:
        """Note when work gets into its next band at the earliest."""
        cdef int64_t missing = band_bounds[work.band] - work.priority
        cdef int64_t due
        list_remove(&work.in_wheel)
        if missing > AGE_MOST:
            return  # it never gets there by age alone
        due = (work.since_at + missing * AGE_STEP + TICK - 1) // TICK
        work.due_tick = max(due, self.tick + 1)
        list_append(&self.wheel[work.due_tick % WHEEL_SLOTS], &work.in_wheel)


cdef inline int64_t lowered(int64_t priority, bint is_lowered) noexcept:
    """One band below, but not into the band of those whose pushes may be paused."""
    if not is_lowered or priority < 0:
        return priority
    return max(priority - LOWER_BY, <int64_t>0)


cdef inline int bit_length(int64_t value) noexcept:
    cdef int bits = 0
    while value > 0:
        value >>= 1
        bits += 1
    return bits
