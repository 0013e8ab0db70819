# cython: language_level=3
"""What other native modules may know of an L3 book."""

from libc.stddef cimport ptrdiff_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from everlog.native.book_output cimport BookKernel, book_output


cdef extern from "book_ladder.h" nogil:
    ctypedef struct ladder:
        size_t count
        size_t max_levels


cdef extern from "l3_orders.h" nogil:
    ctypedef struct l3_detail:
        uint64_t id
    ctypedef struct l3_queue:
        uint64_t price
        uint32_t count
        uint64_t *quantities
        uint8_t side
        uint8_t on_ladder
    ctypedef struct l3_entry:
        uint64_t where
    ctypedef struct l3_orders:
        l3_entry *table
        l3_queue *queues
        size_t count
        size_t max_orders


cdef extern from "l3_book.h" nogil:
    ctypedef struct l3_order_row:
        uint64_t id
    ctypedef struct l3_book:
        ladder sides[2]
        l3_orders orders
        uint8_t scales[2]
        uint8_t gap_policy
        uint8_t quarantined
        uint8_t has_seq
        uint64_t last_seq
        uint64_t last_exchange_ts_ns
        uint64_t last_ingest_ts_ns
        uint64_t unknown_orders


cdef class L3Kernel(BookKernel):
    cdef l3_book book

    cdef size_t apply_part(self, const uint8_t *records, ptrdiff_t stride, size_t start, size_t end,
                           book_output *output, int *error) noexcept nogil
