# cython: language_level=3
"""What the book kernels share: the C structs, the output of an array of events, the calls for one event."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef extern from "book_events.h" nogil:
    enum:
        BOOK_OK
        BOOK_NO_MEMORY
        BOOK_TOO_MANY_LEVELS
        BOOK_GAP
        BOOK_BAD_VERSION
        BOOK_TOO_MANY_ORDERS
    ctypedef struct book_level:
        uint64_t price
        uint64_t size
    ctypedef struct book_top:
        uint64_t bid_price
        uint64_t bid_size
        uint64_t ask_price
        uint64_t ask_size
    ctypedef struct book_queue_place:
        uint64_t orders_ahead
        uint64_t size_ahead
    ctypedef struct report_row:
        uint64_t index
        uint64_t first
        uint64_t second
    ctypedef struct report:
        report_row *rows
        size_t count
    ctypedef struct book_output:
        size_t every
        size_t since
        size_t rows
        size_t room
        book_top *tops
        size_t depth
        book_level *bids
        book_level *asks
        uint32_t *bid_orders
        uint32_t *ask_orders
        uint64_t *scratch
        book_queue_place *places
        uint8_t *statuses
        int want_drift
        int want_trades
        report gaps
        report drifts
        report scales
        report trades
    void output_free_reports(book_output *output)


cdef class BookOutput:
    cdef book_output output
    cdef list held               # the arrays that are written to

    cdef void *take(self, object array, size_t bytes) except? NULL


cdef int raise_book_error(int number, size_t index, const uint8_t *payload, size_t length, book_output *output,
                          size_t limit) except -1


cdef class BookKernel:
    cdef bint busy               # a thread applies an array without the GIL
    cdef book_top shown          # what top_tuple says
    cdef tuple top_tuple         # None before the first top

    cdef int check_idle(self) except -1
    cdef int apply_payload(self, object payload) except -1
    # The book itself: what a kernel must add.
    cdef int apply_record(self, const uint8_t *payload, size_t length, uint8_t *status) noexcept
    cdef size_t apply_scattered(self, const uint8_t *buffer, size_t buffer_len, const uint64_t *offsets,
                                const uint64_t *lengths, size_t count, book_output *output,
                                int *error) noexcept nogil
    cdef book_top best(self) noexcept
    cdef int fail(self, int error, size_t index, const uint8_t *payload, size_t length,
                  book_output *output) except -1
    cdef int fail_single(self, int error, const uint8_t *payload, size_t length) except -1


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
    if same_bid:
        kernel.top_tuple = (before[0], before[1], best.ask_price, best.ask_size)
    elif same_ask:
        kernel.top_tuple = (best.bid_price, best.bid_size, before[2], before[3])
    else:
        kernel.top_tuple = (best.bid_price, best.bid_size, best.ask_price, best.ask_size)
    kernel.shown = best[0]
    return kernel.top_tuple
