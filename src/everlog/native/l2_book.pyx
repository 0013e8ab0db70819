# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The native half of an L2 book: one update or one event per call, or arrays without the GIL.

Owns the C book. Arguments of array methods are checked and made by `everlog.market.books`.
"""

from libc.stddef cimport ptrdiff_t
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from everlog.native.book_output cimport (BOOK_GAP, BOOK_OK, BookKernel, BookOutput, book_level, book_output,
                                         book_top, raise_book_error, shown_top)

from everlog.errors import InvalidConfig
from everlog.native.book_errors import book_error


cdef extern from "book_ladder.h" nogil:
    ctypedef struct ladder:
        uint64_t best_key
        uint64_t best_value
        size_t count
        size_t max_levels


cdef extern from "l2_book.h" nogil:
    ctypedef struct l2_book:
        ladder sides[2]
        uint8_t scales[2]
        uint8_t after_snapshot
        uint8_t quarantined
        uint8_t has_update_id
        uint64_t last_update_id
        uint64_t last_seq
        uint64_t last_exchange_ts_ns
        uint64_t last_ingest_ts_ns
    int l2_init(l2_book *book, size_t max_levels, uint64_t max_window, int gap_policy)
    void l2_free(l2_book *book)
    void l2_clear(l2_book *book)
    int l2_apply_record(l2_book *book, const uint8_t *payload, size_t length, uint64_t index,
                        book_output *output, uint8_t *status)
    size_t l2_apply_records(l2_book *book, const uint8_t *buffer, size_t buffer_len, const uint64_t *offsets,
                            const uint64_t *lengths, size_t count, book_output *output, int *error)
    size_t l2_apply_updates(l2_book *book, const uint8_t *updates, ptrdiff_t stride, size_t count,
                            book_output *output, int *error)
    int l2_raise_scales(l2_book *book, uint8_t price_scale, uint8_t size_scale)
    size_t l2_depth(const l2_book *book, unsigned side, book_level *levels, size_t wanted, uint64_t *scratch)
    int l2_set(l2_book *book, unsigned side, uint64_t price, uint64_t size)
    book_top l2_top(const l2_book *book)
    uint64_t ladder_get(const ladder *side, uint64_t key)


cdef class L2Kernel(BookKernel):
    """Price levels of one market."""

    cdef l2_book book

    def __cinit__(self, *, size_t max_levels, uint64_t max_window_ticks, int gap_policy):
        l2_init(&self.book, max_levels, max_window_ticks, gap_policy)

    def __dealloc__(self):
        l2_free(&self.book)

    cdef int fail(self, int error, size_t index, const uint8_t *payload, size_t length,
                  book_output *output) except -1:
        cdef ladder *full = &self.book.sides[0]
        return raise_book_error(error, index, payload, length, output, full.max_levels)

    cdef inline int set_level(self, unsigned int side, uint64_t price, uint64_t size) except -1:
        cdef int error
        if self.busy:
            self.check_idle()
        if side != 1 and side != 2:
            raise InvalidConfig(f"side is 1 (buy) or 2 (sell), not {side}")
        error = l2_set(&self.book, side - 1, price, size)
        if error != BOOK_OK:
            self.fail(error, 0, NULL, 0, NULL)
        return 0

    def update(self, unsigned int side, uint64_t price, uint64_t size):
        """Set one level (side 1 buy, 2 sell) at the book's own scales; size 0 removes it."""
        self.set_level(side, price, size)

    def update_and_top(self, unsigned int side, uint64_t price, uint64_t size):
        """Set one level as `update` does; returns what `top` returns after it."""
        cdef book_top best
        self.set_level(side, price, size)
        best = l2_top(&self.book)
        return shown_top(self, &best)

    cdef int apply_record(self, const uint8_t *payload, size_t length, uint8_t *status) noexcept:
        return l2_apply_record(&self.book, payload, length, 0, NULL, status)

    cdef size_t apply_scattered(self, const uint8_t *buffer, size_t buffer_len, const uint64_t *offsets,
                                const uint64_t *lengths, size_t count, book_output *output,
                                int *error) noexcept nogil:
        return l2_apply_records(&self.book, buffer, buffer_len, offsets, lengths, count, output, error)

    cdef book_top best(self) noexcept:
        return l2_top(&self.book)

    cdef int fail_single(self, int error, const uint8_t *payload, size_t length) except -1:
        """`fail` for one payload: there is no report of the gap, so both its numbers are read here."""
        cdef uint64_t found = 0
        if error != BOOK_GAP:
            return self.fail(error, 0, payload, length, NULL)
        memcpy(&found, payload + 64, sizeof(found))
        raise book_error(error, 0, self.book.last_update_id, found, 0)

    def _apply_updates(self, const uint8_t[::1] updates, size_t count, BookOutput into):
        cdef size_t done
        cdef int error = BOOK_OK
        if count == 0:
            return 0
        self.check_idle()
        self.busy = True
        with nogil:
            done = l2_apply_updates(&self.book, &updates[0], 24, count, &into.output, &error)
        self.busy = False
        if error != BOOK_OK:
            self.fail(error, done, NULL, 0, &into.output)
        return done

    def _levels(self, unsigned int side, size_t wanted, uint8_t[::1] into):
        """Write the best levels of a side into an array of LEVEL with room for `wanted`; returns how many."""
        cdef uint64_t *scratch
        cdef size_t found
        self.check_idle()
        if wanted == 0:
            return 0
        scratch = <uint64_t *>malloc(2 * wanted * sizeof(uint64_t))
        if scratch == NULL:
            raise MemoryError(f"no memory for {wanted} levels")
        found = l2_depth(&self.book, side, <book_level *>&into[0], wanted, scratch)
        free(scratch)
        return found

    def _size_at(self, unsigned int side, uint64_t price):
        self.check_idle()
        return ladder_get(&self.book.sides[side], price if side == 1 else ~price)

    def _raise_scales(self, uint8_t price_scale, uint8_t size_scale):
        self.check_idle()
        error = l2_raise_scales(&self.book, price_scale, size_scale)
        if error != BOOK_OK:
            self.fail(error, 0, NULL, 0, NULL)

    def _restore_numbers(self, uint64_t seq, uint64_t update_id, uint64_t exchange_ts_ns,
                         uint64_t ingest_ts_ns):
        self.book.last_seq = seq
        self.book.last_update_id = update_id
        self.book.has_update_id = update_id != 0
        self.book.last_exchange_ts_ns = exchange_ts_ns
        self.book.last_ingest_ts_ns = ingest_ts_ns

    def _restore_flags(self, bint after_snapshot, bint quarantined):
        """Say how the numbers to come are to be judged: both are as the properties were."""
        self.check_idle()
        self.book.after_snapshot = after_snapshot
        self.book.quarantined = quarantined

    def clear(self):
        """Remove every level and forget the update ids."""
        self.check_idle()
        l2_clear(&self.book)

    @property
    def price_scale(self):
        """Decimals of the book's prices; it never falls."""
        return self.book.scales[0]

    @property
    def size_scale(self):
        """Decimals of the book's sizes; it never falls."""
        return self.book.scales[1]

    @property
    def bid_count(self):
        """Bid levels."""
        return self.book.sides[0].count

    @property
    def ask_count(self):
        """Ask levels."""
        return self.book.sides[1].count

    @property
    def quarantined(self):
        """Whether diffs are skipped until the next snapshot, because of a gap."""
        return bool(self.book.quarantined)

    @property
    def after_snapshot(self):
        """Whether no diff has come since the last snapshot."""
        return bool(self.book.after_snapshot)

    @property
    def last_seq(self):
        """`seq` of the last event applied."""
        return self.book.last_seq

    @property
    def last_update_id(self):
        """Last update id of the last diff or snapshot, 0 if unknown."""
        return self.book.last_update_id if self.book.has_update_id else 0

    @property
    def last_exchange_ts_ns(self):
        """Exchange time of the last event applied."""
        return self.book.last_exchange_ts_ns

    @property
    def last_ingest_ts_ns(self):
        """Ingest time of the last event applied."""
        return self.book.last_ingest_ts_ns
