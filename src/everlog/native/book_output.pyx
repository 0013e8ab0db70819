# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What both book kernels have: where they write what a caller wants to know, and the calls for one event.

Owns the reports, whose length nobody knows before; arrays of known length belong to the caller and are only
held. Knows no book: what differs is in the kernels, which derive from `BookKernel`.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from everlog.errors import ConcurrentUse, InvalidConfig
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


cdef class BookKernel:
    """One event per call, and payloads that lie anywhere in a buffer; a kernel adds the book."""

    cdef int check_idle(self) except -1:
        if self.busy:
            raise ConcurrentUse("another thread applies events to this book; give each thread its own")
        return 0

    cdef int apply_record(self, const uint8_t *payload, size_t length, uint8_t *status) noexcept:
        return BOOK_OK

    cdef size_t apply_scattered(self, const uint8_t *buffer, size_t buffer_len, const uint64_t *offsets,
                                const uint64_t *lengths, size_t count, book_output *output,
                                int *error) noexcept nogil:
        return 0

    cdef book_top best(self) noexcept:
        return self.shown

    cdef int fail(self, int error, size_t index, const uint8_t *payload, size_t length,
                  book_output *output) except -1:
        return raise_book_error(error, index, payload, length, output, 0)

    cdef int fail_single(self, int error, const uint8_t *payload, size_t length) except -1:
        return self.fail(error, 0, payload, length, NULL)

    cdef int apply_payload(self, object payload) except -1:
        """Apply one book event; returns what became of it."""
        cdef Py_buffer view
        cdef uint8_t status = 0
        cdef int error
        self.check_idle()
        if PyBytes_CheckExact(payload):
            error = self.apply_record(<uint8_t *>PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload),
                                      &status)
            if error != BOOK_OK:
                self.fail_single(error, <uint8_t *>PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload))
            return status
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            error = self.apply_record(<uint8_t *>view.buf, view.len, &status)
            if error != BOOK_OK:
                self.fail_single(error, <uint8_t *>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)
        return status

    def apply(self, payload):
        """Apply one book event; returns what became of it (a number of `EventStatus`)."""
        return self.apply_payload(payload)

    def apply_and_top(self, payload):
        """Apply one book event; returns what `top` returns after it."""
        cdef book_top best
        self.apply_payload(payload)
        best = self.best()
        return shown_top(self, &best)

    def top(self):
        """Best bid price and size, best ask price and size; a size of 0 means an empty side."""
        cdef book_top best
        self.check_idle()
        best = self.best()
        return shown_top(self, &best)

    def _apply_records(self, const uint8_t[::1] buffer, const uint64_t[::1] offsets,
                       const uint64_t[::1] lengths, BookOutput into):
        """Apply payloads that lie in one buffer."""
        cdef size_t done
        cdef size_t count = offsets.shape[0]
        cdef size_t size = buffer.shape[0]
        cdef int error = BOOK_OK
        if count == 0:
            return 0
        self.check_idle()
        self.busy = True
        with nogil:
            done = self.apply_scattered(&buffer[0] if size else NULL, size, &offsets[0], &lengths[0], count,
                                        &into.output, &error)
        self.busy = False
        if error != BOOK_OK:
            if offsets[done] + lengths[done] <= size and lengths[done]:
                self.fail(error, done, &buffer[offsets[done]], lengths[done], &into.output)
            self.fail(error, done, NULL, 0, &into.output)
        return done
