# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The native half of an L3 book: one event per call, or arrays without the GIL.

Owns the C book. Arguments of array methods are checked and made by `everlog.market.books`.
"""

from libc.stddef cimport ptrdiff_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from everlog.native.book_output cimport (BOOK_GAP, BOOK_OK, BOOK_TOO_MANY_LEVELS, BookKernel, BookOutput,
                                         book_level, book_output, book_queue_place, book_top,
                                         raise_book_error)

from everlog.native.book_errors import book_error


cdef extern from "book_events.h" nogil:
    enum:
        GAP_UNCHECKED


cdef extern from "l3_orders.h" nogil:
    l3_entry *orders_find(const l3_orders *orders, uint64_t id)
    uint32_t queue_of(uint64_t where)
    uint32_t position_of(uint64_t where)
    l3_detail *queue_details(const l3_queue *queue)
    size_t queue_positions(const l3_queue *queue, uint32_t *positions)


cdef extern from "l3_book.h" nogil:
    int l3_init(l3_book *book, size_t max_orders, size_t max_levels, uint64_t max_window, int gap_policy,
                int unknown_policy)
    void l3_free(l3_book *book)
    void l3_clear(l3_book *book)
    int l3_raise_scales(l3_book *book, uint8_t price_scale, uint8_t size_scale)
    int l3_apply_record(l3_book *book, const uint8_t *payload, size_t length, uint64_t index,
                        book_output *output, uint8_t *status)
    size_t l3_apply_records(l3_book *book, const uint8_t *records, ptrdiff_t stride, size_t start, size_t end,
                            book_output *output, int *error)
    size_t l3_apply_scattered(l3_book *book, const uint8_t *buffer, size_t buffer_len,
                              const uint64_t *offsets, const uint64_t *lengths, size_t count,
                              book_output *output, int *error)
    int l3_restore(l3_book *book, const l3_order_row *row)
    int l3_rows(const l3_book *book, l3_order_row *rows)
    size_t l3_depth(const l3_book *book, unsigned side, book_level *levels, uint32_t *orders, size_t wanted,
                    uint64_t *scratch)
    const l3_queue *l3_queue_at(const l3_book *book, unsigned side, uint64_t price)
    book_queue_place l3_place(l3_book *book, uint64_t where)
    book_top l3_top(const l3_book *book)


cdef class L3Kernel(BookKernel):
    """Single orders of one market, in queues by price."""

    def __cinit__(self, *, size_t max_orders, size_t max_levels, uint64_t max_window_ticks, int gap_policy,
                  int unknown_policy):
        cdef int error = l3_init(&self.book, max_orders, max_levels, max_window_ticks, gap_policy,
                                 unknown_policy)
        if error != BOOK_OK:
            raise MemoryError("no memory for an empty book")

    def __dealloc__(self):
        if self.book.orders.table != NULL:
            l3_free(&self.book)

    cdef int fail(self, int error, size_t index, const uint8_t *payload, size_t length,
                  book_output *output) except -1:
        cdef ladder *side = &self.book.sides[0]
        cdef size_t limit = side.max_levels if error == BOOK_TOO_MANY_LEVELS else self.book.orders.max_orders
        return raise_book_error(error, index, payload, length, output, limit)

    cdef int apply_record(self, const uint8_t *payload, size_t length, uint8_t *status) noexcept:
        return l3_apply_record(&self.book, payload, length, 0, NULL, status)

    cdef size_t apply_scattered(self, const uint8_t *buffer, size_t buffer_len, const uint64_t *offsets,
                                const uint64_t *lengths, size_t count, book_output *output,
                                int *error) noexcept nogil:
        return l3_apply_scattered(&self.book, buffer, buffer_len, offsets, lengths, count, output, error)

    cdef size_t apply_part(self, const uint8_t *records, ptrdiff_t stride, size_t start, size_t end,
                           book_output *output, int *error) noexcept nogil:
        """Apply those from `start`, a multiple of 8, to `end` of records that lie `stride` bytes apart."""
        return l3_apply_records(&self.book, records, stride, start, end, output, error)

    cdef book_top best(self) noexcept:
        return l3_top(&self.book)

    cdef int fail_single(self, int error, const uint8_t *payload, size_t length) except -1:
        """`fail` for one payload: there is no report of the gap, so both its numbers are read here."""
        cdef uint64_t found = 0
        if error != BOOK_GAP:
            return self.fail(error, 0, payload, length, NULL)
        memcpy(&found, payload + 40, sizeof(found))
        raise book_error(error, 0, self.book.last_seq, found, 0)

    def _apply_array(self, size_t address, ptrdiff_t stride, size_t count, BookOutput into):
        """Apply `count` records that lie `stride` bytes apart; the caller keeps their memory."""
        cdef size_t done
        cdef int error = BOOK_OK
        cdef const uint8_t *records = <const uint8_t *>address
        self.check_idle()
        self.busy = True
        with nogil:
            done = l3_apply_records(&self.book, records, stride, 0, count, &into.output, &error)
        self.busy = False
        if error != BOOK_OK:
            self.fail(error, done, records + <ptrdiff_t>done * stride, 128, &into.output)
        return done

    def _levels(self, unsigned int side, size_t wanted, uint8_t[::1] into, uint32_t[::1] orders):
        """Write the best levels of a side and their numbers of orders; returns how many."""
        cdef uint64_t *scratch
        cdef size_t found
        self.check_idle()
        if wanted == 0:
            return 0
        scratch = <uint64_t *>malloc(2 * wanted * sizeof(uint64_t))
        if scratch == NULL:
            raise MemoryError(f"no memory for {wanted} levels")
        found = l3_depth(&self.book, side, <book_level *>&into[0], &orders[0], wanted, scratch)
        free(scratch)
        return found

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

    def _queue(self, unsigned int side, uint64_t price):
        """Ids of the orders of one price, oldest first."""
        cdef const l3_queue *queue
        cdef uint32_t *positions
        self.check_idle()
        queue = l3_queue_at(&self.book, side, price)
        if queue == NULL:
            return []
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
                self.fail(error, at, NULL, 0, NULL)

    def _restore_numbers(self, uint64_t seq, uint64_t exchange_ts_ns, uint64_t ingest_ts_ns):
        self.book.last_seq = seq
        self.book.has_seq = seq != 0
        self.book.last_exchange_ts_ns = exchange_ts_ns
        self.book.last_ingest_ts_ns = ingest_ts_ns

    def _raise_scales(self, uint8_t price_scale, uint8_t size_scale):
        self.check_idle()
        error = l3_raise_scales(&self.book, price_scale, size_scale)
        if error != BOOK_OK:
            self.fail(error, 0, NULL, 0, NULL)

    def _quarantine(self):
        """Skip events until the next reset: the channel has a gap."""
        self.check_idle()
        self.book.quarantined = True

    def _leave_numbers_to_the_channel(self):
        """Look at no seq: many markets share the numbers, and whoever feeds the book looks at them."""
        self.book.gap_policy = GAP_UNCHECKED

    def clear(self):
        """Remove every order."""
        self.check_idle()
        l3_clear(&self.book)

    @property
    def price_scale(self):
        """Decimals of the book's prices; it never falls."""
        return self.book.scales[0]

    @property
    def size_scale(self):
        """Decimals of the book's sizes; it never falls."""
        return self.book.scales[1]

    @property
    def order_count(self):
        """Orders in the book, those off the ladder included."""
        return self.book.orders.count

    @property
    def bid_count(self):
        """Bid levels."""
        return self.book.sides[0].count

    @property
    def ask_count(self):
        """Ask levels."""
        return self.book.sides[1].count

    @property
    def unknown_order_count(self):
        """Events that named an order that was not there."""
        return self.book.unknown_orders

    @property
    def quarantined(self):
        """Whether events are skipped until the next reset, because of a gap."""
        return bool(self.book.quarantined)

    @property
    def last_seq(self):
        """`seq` of the last event."""
        return self.book.last_seq

    @property
    def last_exchange_ts_ns(self):
        """Exchange time of the last event applied."""
        return self.book.last_exchange_ts_ns

    @property
    def last_ingest_ts_ns(self):
        """Ingest time of the last event applied."""
        return self.book.last_ingest_ts_ns
