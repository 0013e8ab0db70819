# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Where the book kernels write what a caller wants to know of an array of events.

Owns the reports, whose length nobody knows before; arrays of known length belong to the caller and are only
held. Knows no book.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from everlog.errors import InvalidConfig
from everlog.native.book_errors import book_error


cdef class BookOutput:
    """Arrays to fill after every `every` events (0 = never), and reports to collect.

    All arrays are contiguous and large enough for `events` events; None means not wanted.
    """

    def __cinit__(self, size_t events, size_t every, size_t depth=0, tops=None, bids=None, asks=None,
                  bid_orders=None, ask_orders=None, places=None, statuses=None, bint drift=False,
                  bint trades=False):
        cdef size_t rows = events // every if every else 0
        memset(&self.output, 0, sizeof(self.output))
        self.held = []
        self.output.every = every
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
        """The memory of an array, which is held until this object goes."""
        cdef Py_buffer view
        cdef void *memory
        if array is None:
            return NULL
        PyObject_GetBuffer(array, &view, PyBUF_WRITABLE)
        memory = view.buf
        length = view.len
        PyBuffer_Release(&view)
        if length < bytes:
            raise InvalidConfig(f"an output array has {length} bytes, {bytes} are needed")
        self.held.append(array)
        return memory

    @property
    def rows(self):
        """Rows written to the arrays."""
        return self.output.rows

    @property
    def gaps(self):
        """Rows of five 64-bit numbers: index, last number, number found, 0, 0."""
        return report_bytes(&self.output.gaps)

    @property
    def drifts(self):
        """Rows: index, levels in the snapshot only, in the book only, with another size, 0."""
        return report_bytes(&self.output.drifts)

    @property
    def scales(self):
        """Rows: index, price scale, size scale, 0, 0."""
        return report_bytes(&self.output.scales)

    @property
    def trades(self):
        """Rows: index, taken from the bid order, taken from the ask order, price, size."""
        return report_bytes(&self.output.trades)


cdef bytes report_bytes(report *written):
    if written.count == 0:
        return b""
    return (<char *>written.rows)[:written.count * 40]


cdef int raise_book_error(int number, size_t index, const uint8_t *payload, size_t length,
                          book_output *output, size_t limit) except -1:
    """Raise what a kernel's error number means for the event whose payload is given (it may be NULL)."""
    cdef uint64_t seen = 0
    cdef uint64_t found = 0
    cdef uint16_t version = 0
    if number == BOOK_GAP and output != NULL and output.gaps.count:
        seen = output.gaps.rows[output.gaps.count - 1].first
        found = output.gaps.rows[output.gaps.count - 1].second
    elif number == BOOK_BAD_VERSION and length >= 2:
        memcpy(&version, payload, 2)
        found = version
    raise book_error(number, index, seen, found, limit)
