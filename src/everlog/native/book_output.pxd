# cython: language_level=3
"""What the book kernels share: the C structs and the output of an array of events."""

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
