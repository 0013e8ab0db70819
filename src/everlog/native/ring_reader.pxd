# cython: language_level=3
"""What other native modules may know of a reader."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from everlog.native.guard cimport OneThread
from everlog.native.mapping cimport Mapping
from everlog.native.ring_core cimport *


cdef class MessageView:
    cdef Mapping mapping
    cdef const ring_message *message
    cdef uint32_t length        # kept, so that later damage to the header can do no harm
    cdef readonly uint32_t segment_id


cdef class RingReader(OneThread):
    cdef ring_reader ring
    cdef ring_wait_strategy strategy
    cdef Mapping control
    cdef readonly Mapping segment
    cdef uint32_t until_look    # messages until the next look at the clock
    cdef int64_t looked_ns
    cdef int64_t asked_ns       # when `_check_heartbeat` was last called
    cdef bint own_clock         # the subclass brings a clock: ask it at every look

    cdef int call_back(self, method) except -1
    cdef int look_at_clock(self) except -1
    cdef int raise_damage(self, ring_status status) except -1
    cdef ring_status advance(self, const ring_message **message) except? RING_EMPTY
    cdef ring_status take_block(self, uint64_t max_count, bint verify, ring_run *run) noexcept nogil
    cdef bint settle(self) except -1
