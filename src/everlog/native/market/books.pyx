# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Order books of price levels (L2) and of single orders (L3): one event per call, or arrays without the GIL.

Owns the C books and the reports, whose length is not known before; arrays of known length belong to the caller.
Arguments of array methods are checked and made by `everlog.market.books`.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from everlog.errors import (
    BookGap, ConcurrentUse, Corrupt, InvalidConfig, LimitReached, Unsupported, UnsupportedVersion,
)


cdef extern from "market/book_core.h" nogil:
    enum:
        BOOK_OK, BOOK_TOO_MANY_LEVELS, BOOK_SCALE_OVERFLOW, BOOK_BAD_SCALE, BOOK_BAD_SIDE, BOOK_GAP
        BOOK_SHORT_RECORD, BOOK_BAD_VERSION, BOOK_BAD_MODE, BOOK_BAD_TYPE, BOOK_DELTA, BOOK_TOO_MANY_ORDERS
        BOOK_ZERO_ID, BOOK_UNKNOWN_ORDER, BOOK_DUPLICATE_ORDER, BOOK_OVERFLOW, GAP_UNCHECKED
    ctypedef struct book_level:
        uint64_t size
    ctypedef struct book_top:
        int64_t bid_price, ask_price
        uint64_t bid_size, ask_size
    ctypedef struct book_queue_place:
        uint64_t orders_ahead, size_ahead
    ctypedef struct report_row:
        uint64_t index
    ctypedef struct report:
        report_row *rows
        size_t count
    ctypedef struct book_output:
        size_t every, since, rows, room
        book_top *tops
        size_t depth
        book_level *bids
        book_level *asks
        uint32_t *bid_orders
        uint32_t *ask_orders
        uint64_t *scratch
        book_queue_place *places
        uint8_t *statuses
        int want_drift, want_trades
        report gaps, drifts, scales, trades
    ctypedef struct ladder:
        size_t count, max_levels
    ctypedef struct book_core
    ctypedef struct book_kind:
        int (*apply)(book_core *core, const uint8_t *payload, size_t length, uint64_t index, book_output *output,
                     uint8_t *status) noexcept nogil
        book_top (*top)(const book_core *core) noexcept nogil
        size_t (*depth)(const book_core *core, unsigned side, book_level *levels, uint32_t *orders,
                        size_t wanted, uint64_t *scratch) noexcept nogil
        void (*clear)(book_core *core) noexcept nogil
    ctypedef struct book_core:
        ladder sides[2]
        const book_kind *kind
        uint8_t scales[2]
        uint8_t gap_policy, quarantined
        uint64_t last_seq, last_exchange_ts_ns, last_ingest_ts_ns, gap_seen, gap_found
    uint64_t ladder_get(const ladder *side, uint64_t key)
    uint64_t side_mask(unsigned side)
    void core_free(book_core *core)
    int core_raise_scales(book_core *core, uint8_t price_scale, uint8_t size_scale)
    size_t core_apply_scattered(book_core *core, const uint8_t *buffer, size_t buffer_len,
                                const uint64_t *offsets, const uint64_t *lengths, size_t count,
                                book_output *output, int *error)
    void output_free_reports(book_output *output)


cdef extern from "market/l2_book.h" nogil:
    ctypedef struct l2_book:
        book_core core
        uint8_t after_snapshot, has_update_id
        uint64_t last_update_id
    void l2_init(l2_book *book, size_t max_levels, uint64_t max_window, int gap_policy)
    ctypedef struct l2_update:
        uint64_t size
    size_t l2_apply_updates(l2_book *book, const l2_update *updates, size_t count, book_output *output, int *error)
    int l2_set(l2_book *book, unsigned side, int64_t price, uint64_t size)
    book_top l2_top(const book_core *core)


cdef extern from "market/l3_array.h" nogil:
    ctypedef struct l3_detail:
        uint64_t id
    ctypedef struct l3_queue:
        int64_t price
        uint32_t count
        uint64_t *quantities
        uint8_t side, on_ladder
    ctypedef struct l3_entry:
        uint64_t where
    ctypedef struct l3_orders:
        l3_entry *table
        l3_queue *queues
        size_t count
    ctypedef struct l3_order_row:
        uint64_t id
    ctypedef struct l3_book:
        book_core core
        l3_orders orders
        uint8_t has_seq
        uint64_t unknown_orders
    l3_entry *orders_find(const l3_orders *orders, uint64_t id)
    uint32_t queue_of(uint64_t where)
    uint32_t position_of(uint64_t where)
    l3_detail *queue_details(const l3_queue *queue)
    size_t queue_positions(const l3_queue *queue, uint32_t *positions)
    int l3_init(l3_book *book, size_t max_orders, size_t max_levels, uint64_t max_window, int gap_policy,
                int unknown_policy, uint64_t losing_venues)
    void l3_free(l3_book *book)
    size_t l3_apply_records(l3_book *book, const uint8_t *records, ptrdiff_t stride, size_t count,
                            book_output *output, int *error)
    int l3_restore(l3_book *book, const l3_order_row *row)
    int l3_rows(const l3_book *book, l3_order_row *rows)
    book_queue_place l3_place(l3_book *book, uint64_t where)


cdef enum:
    ORDER_BYTES = 128

cdef dict ERRORS = {  # what the numbers of errors mean for an event
    BOOK_BAD_SIDE: (Corrupt, "its side is neither 1 (buy) nor 2 (sell)"),
    BOOK_SHORT_RECORD: (Corrupt, "its length is not what its header says"),
    BOOK_BAD_TYPE: (Corrupt, "its event type is unknown"),
    BOOK_ZERO_ID: (Corrupt, "it adds an order with id 0"),
    BOOK_UNKNOWN_ORDER: (
        Corrupt, "it names an order that is not in the book; open the book with unknown_orders='skip' (--unknown-orders skip)"
    ),
    BOOK_DUPLICATE_ORDER: (
        Corrupt, "it adds an order whose id is in the book already; open the book with unknown_orders='skip' "
        "to let the new one stand for the old one"
    ),
    BOOK_OVERFLOW: (Corrupt, "the sizes of its level add up to more than 64 bits"),
    BOOK_SCALE_OVERFLOW: (
        Unsupported, "a price or size needs more than 64 bits at the book's scale; use smaller scales"
    ),
    BOOK_BAD_SCALE: (Unsupported, "a scale is larger than 18"),
    BOOK_BAD_MODE: (Unsupported, "its book mode or byte order is not the one this book applies"),
    BOOK_DELTA: (Unsupported, "it is a DELTA diff, and only ABSOLUTE diffs are defined"),
}


cdef class BookOutput:
    """Arrays to fill after every `every` events (0 = never), and reports to collect.

    All arrays are contiguous and large enough for `events` events; None means not wanted.
    """

    cdef book_output output
    cdef list held               # the arrays that are written to

    def __cinit__(self, size_t events, size_t every, size_t depth=0, tops=None, bids=None, asks=None,
                  bid_orders=None, ask_orders=None, places=None, statuses=None, bint drift=False,
                  bint trades=False):
        cdef size_t rows = events // every if every else 0
        memset(&self.output, 0, sizeof(self.output))
        self.held = []
        self.output.every = every
        self.output.room = rows
        self.output.tops = <book_top *>self.take(tops, rows * sizeof(book_top))
        self.output.bids = <book_level *>self.take(bids, rows * depth * sizeof(book_level))
        self.output.asks = <book_level *>self.take(asks, rows * depth * sizeof(book_level))
        self.output.bid_orders = <uint32_t *>self.take(bid_orders, rows * depth * sizeof(uint32_t))
        self.output.ask_orders = <uint32_t *>self.take(ask_orders, rows * depth * sizeof(uint32_t))
        self.output.places = <book_queue_place *>self.take(places, events * sizeof(book_queue_place))
        self.output.statuses = <uint8_t *>self.take(statuses, events)
        self.output.want_drift = drift
        self.output.want_trades = trades
        if depth and bids is not None and asks is not None:
            self.output.scratch = <uint64_t *>calloc(2 * depth, sizeof(uint64_t))
            if self.output.scratch == NULL:
                raise MemoryError(f"no memory for {depth} levels")
            self.output.depth = depth

    def __dealloc__(self):
        output_free_reports(&self.output)
        free(self.output.scratch)

    cdef void *take(self, object array, size_t bytes) except? NULL:
        """The memory of an array, which is referenced as long as this object lives."""
        cdef Py_buffer view
        if array is None:
            return NULL
        PyObject_GetBuffer(array, &view, PyBUF_WRITABLE)
        PyBuffer_Release(&view)
        if <size_t>view.len < bytes:
            raise InvalidConfig(f"an output array has {view.len} bytes, {bytes} are needed")
        self.held.append(array)
        return view.buf

    @property
    def rows(self):
        """Rows written to the arrays."""
        return self.output.rows

    def reports(self):
        """Rows of five 64-bit numbers that begin with an index, the unused ones 0, in this order:

        gaps (last number, number found), drifts (levels in the snapshot only, in the book only, with another
        size), scales (of prices, of sizes), trades (taken from bid order, from ask order, price, size).
        """
        return (report_bytes(&self.output.gaps), report_bytes(&self.output.drifts),
                report_bytes(&self.output.scales), report_bytes(&self.output.trades))


cdef bytes report_bytes(report *written):
    return (<char *>written.rows)[:written.count * 40] if written.count else b""


cdef class BookKernel:
    """What both kinds of books do: one event per call, payloads that lie anywhere in a buffer, their numbers."""

    cdef book_core *core
    cdef size_t max_orders       # of an L3 book
    cdef bint busy               # a thread applies an array without the GIL
    cdef book_top shown          # what top_tuple says
    cdef tuple top_tuple         # None before the first top

    def __cinit__(self, *args, **kwargs):
        if type(self) is BookKernel:
            raise TypeError("BookKernel has no book; use L2Kernel or L3Kernel")

    cdef int check_idle(self) except -1:
        if self.busy:
            raise ConcurrentUse("another thread applies events to this book; give each thread its own")
        return 0

    cdef int fail(self, int error, size_t index, const uint8_t *payload, size_t length) except -1:
        """Raise what an error number means for the event whose payload is given (it may be NULL)."""
        cdef uint64_t seen = self.core.gap_seen, found = self.core.gap_found
        cdef size_t max_levels = self.core.sides[0].max_levels
        cdef uint16_t version = 0
        event = f"event {index} was not applied: "
        if error in ERRORS:
            kind, text = ERRORS[error]
            raise kind(event + text)
        if error in (BOOK_TOO_MANY_LEVELS, BOOK_TOO_MANY_ORDERS):
            of_levels = error == BOOK_TOO_MANY_LEVELS
            what, name = ("levels a side", "max_levels") if of_levels else ("orders", "max_orders")
            limit = max_levels if of_levels else self.max_orders
            raise LimitReached(f"{event}the book has as many {what} as it may ({limit}); raise {name}", name, limit)
        if error == BOOK_GAP:
            raise BookGap(
                f"{event}number {found} follows {seen}, so something between was lost; rebuild the book from a "
                "snapshot, or choose gap policy quarantine or ignore",
                seen,
                found,
            )
        if error == BOOK_BAD_VERSION:
            if length >= 2:
                memcpy(&version, payload, 2)
            raise UnsupportedVersion(f"{event}its schema version is {version}, this build reads 3 and 4", version)
        raise MemoryError(f"{event}no memory for the book")

    cdef int apply_payload(self, object payload) except -1:
        """Apply one book event; returns what became of it."""
        cdef Py_buffer view
        self.check_idle()
        if PyBytes_CheckExact(payload):
            return self.apply_bytes(<uint8_t *>PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload))
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            return self.apply_bytes(<uint8_t *>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    cdef inline int apply_bytes(self, const uint8_t *payload, size_t length) except -1:
        cdef uint8_t status = 0
        cdef int error = self.core.kind.apply(self.core, payload, length, 0, NULL, &status)
        if error != BOOK_OK:
            self.fail(error, 0, payload, length)
        return status

    def apply(self, payload):
        """Apply one book event; returns what became of it (a number of `EventStatus`)."""
        return self.apply_payload(payload)

    def apply_and_top(self, payload):
        """Apply one book event; returns what `top` returns after it."""
        self.apply_payload(payload)
        return self.top()

    def top(self):
        """Best bid price and size, best ask price and size; a size of 0 means an empty side."""
        cdef book_top best
        self.check_idle()
        best = self.core.kind.top(self.core)
        return shown_top(self, &best)

    def _apply_records(self, const uint8_t[::1] buffer, const uint64_t[::1] offsets,
                       const uint64_t[::1] lengths, BookOutput into):
        """Apply payloads that lie in one buffer."""
        cdef size_t done, count = offsets.shape[0], size = buffer.shape[0]
        cdef int error = BOOK_OK
        if count == 0:
            return 0
        self.check_idle()
        self.busy = True
        with nogil:
            done = core_apply_scattered(self.core, &buffer[0] if size else NULL, size, &offsets[0],
                                        &lengths[0], count, &into.output, &error)
        self.busy = False
        if error != BOOK_OK:
            if offsets[done] + lengths[done] <= size and lengths[done]:
                self.fail(error, done, &buffer[offsets[done]], lengths[done])
            self.fail(error, done, NULL, 0)
        return done

    def _levels(self, unsigned int side, size_t wanted, uint8_t[::1] into, uint32_t[::1] orders=None):
        """Write the best levels of a side into an array of LEVEL with room for `wanted`; returns how many.

        `orders` gets the number of orders of each level; only an L3 book has them.
        """
        cdef uint64_t *scratch
        cdef uint32_t *order_counts = NULL
        cdef size_t found
        self.check_idle()
        if wanted == 0:
            return 0
        if orders is not None:
            order_counts = &orders[0]
        scratch = <uint64_t *>malloc(2 * wanted * sizeof(uint64_t))
        if scratch == NULL:
            raise MemoryError(f"no memory for {wanted} levels")
        found = self.core.kind.depth(self.core, side, <book_level *>&into[0], order_counts, wanted, scratch)
        free(scratch)
        return found

    def _raise_scales(self, uint8_t price_scale, uint8_t size_scale):
        self.check_idle()
        error = core_raise_scales(self.core, price_scale, size_scale)
        if error != BOOK_OK:
            self.fail(error, 0, NULL, 0)

    def clear(self):
        """Remove every level and order, and forget the update ids."""
        self.check_idle()
        self.core.kind.clear(self.core)

    @property
    def price_scale(self):
        """Decimals of the book's prices; it never falls."""
        return self.core.scales[0]

    @property
    def size_scale(self):
        """Decimals of the book's sizes; it never falls."""
        return self.core.scales[1]

    @property
    def bid_count(self):
        """Bid levels."""
        return self.core.sides[0].count

    @property
    def ask_count(self):
        """Ask levels."""
        return self.core.sides[1].count

    @property
    def quarantined(self):
        """Whether events are skipped because of a gap, until the next snapshot (L2) or reset (L3)."""
        return bool(self.core.quarantined)

    @property
    def last_seq(self):
        """`seq` of the last event applied (L2), of the last event (L3)."""
        return self.core.last_seq

    @property
    def last_exchange_ts_ns(self):
        """Exchange time of the last event applied."""
        return self.core.last_exchange_ts_ns

    @property
    def last_ingest_ts_ns(self):
        """Ingest time of the last event applied."""
        return self.core.last_ingest_ts_ns


cdef inline object shown_top(BookKernel kernel, const book_top *best):
    """The top as a tuple. Most events leave most of it as it was, so what was made before is used again."""
    cdef tuple before = kernel.top_tuple
    cdef bint same_bid, same_ask
    if before is None:
        kernel.top_tuple = (best.bid_price, best.bid_size, best.ask_price, best.ask_size)
        kernel.shown = best[0]
        return kernel.top_tuple
    same_bid = best.bid_price == kernel.shown.bid_price and best.bid_size == kernel.shown.bid_size
    same_ask = best.ask_price == kernel.shown.ask_price and best.ask_size == kernel.shown.ask_size
    if same_bid and same_ask:
        return before
    kernel.top_tuple = (before[0] if same_bid else best.bid_price, before[1] if same_bid else best.bid_size,
                        before[2] if same_ask else best.ask_price, before[3] if same_ask else best.ask_size)
    kernel.shown = best[0]
    return kernel.top_tuple


cdef class L2Kernel(BookKernel):
    """Price levels of one market."""

    cdef l2_book book

    def __cinit__(self, *, size_t max_levels, uint64_t max_window_ticks, int gap_policy):
        l2_init(&self.book, max_levels, max_window_ticks, gap_policy)
        self.core = &self.book.core

    def __dealloc__(self):
        core_free(&self.book.core)

    cdef inline int set_level(self, unsigned int side, int64_t price, uint64_t size) except -1:
        cdef int error
        if self.busy:
            self.check_idle()
        if side != 1 and side != 2:
            raise InvalidConfig(f"side is 1 (buy) or 2 (sell), not {side}")
        error = l2_set(&self.book, side - 1, price, size)
        if error != BOOK_OK:
            self.fail(error, 0, NULL, 0)
        return 0

    def update(self, unsigned int side, int64_t price, uint64_t size):
        """Set one level (side 1 buy, 2 sell) at the book's own scales; size 0 removes it."""
        self.set_level(side, price, size)

    def update_and_top(self, unsigned int side, int64_t price, uint64_t size):
        """Set one level as `update` does; returns what `top` returns after it."""
        cdef book_top best
        self.set_level(side, price, size)
        best = l2_top(self.core)
        return shown_top(self, &best)

    def _apply_updates(self, const uint8_t[::1] updates, size_t count, BookOutput into):
        cdef size_t done
        cdef int error = BOOK_OK
        if count == 0:
            return 0
        self.check_idle()
        self.busy = True
        with nogil:
            done = l2_apply_updates(&self.book, <const l2_update *>&updates[0], count, &into.output, &error)
        self.busy = False
        if error != BOOK_OK:
            self.fail(error, done, NULL, 0)
        return done

    def _size_at(self, unsigned int side, int64_t price):
        self.check_idle()
        return ladder_get(&self.core.sides[side], <uint64_t>price ^ side_mask(side))

    def _restore_numbers(self, uint64_t seq, uint64_t update_id, uint64_t exchange_ts_ns,
                         uint64_t ingest_ts_ns):
        self.core.last_seq = seq
        self.book.last_update_id = update_id
        self.book.has_update_id = update_id != 0
        self.core.last_exchange_ts_ns = exchange_ts_ns
        self.core.last_ingest_ts_ns = ingest_ts_ns

    def _restore_flags(self, bint after_snapshot, bint quarantined):
        """Restore both properties, which decide how the numbers to come are judged."""
        self.check_idle()
        self.book.after_snapshot = after_snapshot
        self.core.quarantined = quarantined

    @property
    def after_snapshot(self):
        """Whether no diff has come since the last snapshot."""
        return bool(self.book.after_snapshot)

    @property
    def last_update_id(self):
        """Last update id of the last diff or snapshot, 0 if unknown."""
        return self.book.last_update_id if self.book.has_update_id else 0


cdef class L3Kernel(BookKernel):
    """Single orders of one market, in queues by price."""

    cdef l3_book book

    def __cinit__(self, *, size_t max_orders, size_t max_levels, uint64_t max_window_ticks, int gap_policy,
                  int unknown_policy, uint64_t losing_venues):
        cdef int error = l3_init(&self.book, max_orders, max_levels, max_window_ticks, gap_policy,
                                 unknown_policy, losing_venues)
        if error != BOOK_OK:
            raise MemoryError("no memory for an empty book")
        self.core = &self.book.core
        self.max_orders = max_orders

    def __dealloc__(self):
        if self.book.orders.table != NULL:
            l3_free(&self.book)

    def _apply_array(self, size_t address, ptrdiff_t stride, size_t count, BookOutput into):
        """Apply `count` records that lie `stride` bytes apart; the caller keeps their memory."""
        cdef size_t done
        cdef int error = BOOK_OK
        cdef const uint8_t *records = <const uint8_t *>address
        self.check_idle()
        self.busy = True
        with nogil:
            done = l3_apply_records(&self.book, records, stride, count, &into.output, &error)
        self.busy = False
        if error != BOOK_OK:
            self.fail(error, done, records + <ptrdiff_t>done * stride, ORDER_BYTES)
        return done

    def _order(self, uint64_t order_id):
        """Side, price, quantity of an order; None if it is not there."""
        cdef l3_entry *entry
        cdef l3_queue *queue
        self.check_idle()
        entry = orders_find(&self.book.orders, order_id)
        if entry == NULL:
            return None
        queue = &self.book.orders.queues[queue_of(entry.where)]
        return queue.side, queue.price, queue.quantities[position_of(entry.where)]

    def _place(self, uint64_t order_id):
        """Orders and quantity ahead of an order; None if it is in no queue."""
        cdef l3_entry *entry
        cdef book_queue_place place
        self.check_idle()
        entry = orders_find(&self.book.orders, order_id)
        if entry == NULL or not self.book.orders.queues[queue_of(entry.where)].on_ladder:
            return None
        place = l3_place(&self.book, entry.where)
        return place.orders_ahead, place.size_ahead

    def _queue(self, unsigned int side, int64_t price):
        """Ids of the orders of one price, oldest first."""
        cdef const l3_queue *queue
        cdef uint32_t *positions
        cdef uint64_t number
        self.check_idle()
        number = ladder_get(&self.core.sides[side], <uint64_t>price ^ side_mask(side))
        if number == 0:
            return []
        queue = &self.book.orders.queues[number - 1]
        positions = <uint32_t *>malloc(queue.count * sizeof(uint32_t))
        if positions == NULL:
            raise MemoryError("no memory for the orders of one price")
        try:
            queue_positions(queue, positions)
            return [queue_details(queue)[positions[at]].id for at in range(queue.count)]
        finally:
            free(positions)

    def _rows(self, uint8_t[::1] into):
        """Write every order into an array of ORDER_ROW with room for `order_count`."""
        self.check_idle()
        if self.book.orders.count == 0:
            return
        if l3_rows(&self.book, <l3_order_row *>&into[0]) != BOOK_OK:
            raise MemoryError("no memory to list the orders")

    def _restore(self, const uint8_t[::1] rows, size_t count):
        """Add orders as `_rows` wrote them."""
        cdef size_t at
        cdef int error
        self.check_idle()
        for at in range(count):
            error = l3_restore(&self.book, <const l3_order_row *>&rows[40 * at])
            if error != BOOK_OK:
                self.fail(error, at, NULL, 0)

    def _restore_numbers(self, uint64_t seq, uint64_t exchange_ts_ns, uint64_t ingest_ts_ns):
        self.core.last_seq = seq
        self.book.has_seq = seq != 0
        self.core.last_exchange_ts_ns = exchange_ts_ns
        self.core.last_ingest_ts_ns = ingest_ts_ns

    def _quarantine(self):
        """Skip events until the next reset: the channel has a gap."""
        self.check_idle()
        self.core.quarantined = True

    def _leave_numbers_to_the_channel(self):
        """Check no seq: many markets share the numbers, and the caller of the book checks them."""
        self.core.gap_policy = GAP_UNCHECKED

    @property
    def order_count(self):
        """Orders in the book, those off the ladder included."""
        return self.book.orders.count

    @property
    def unknown_order_count(self):
        """Events that named an order that was not there."""
        return self.book.unknown_orders
