# cython: language_level=3
"""What another native module may know of work that waits to be served."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    BAND_COUNT = 5
    WHEEL_SLOTS = 512
    BUCKET_COUNT = 64

cdef struct link:
    link *next
    link *prev

cdef struct heap_item:
    int64_t key
    uint64_t order
    void *work

cdef struct work_heap:
    heap_item *items
    Py_ssize_t count
    Py_ssize_t capacity

cdef class Work:
    cdef link in_queue  # first, so that a link is found from its work and a work from its link
    cdef link in_wheel
    cdef int64_t since_at
    cdef int64_t ready_at
    cdef int64_t due_tick
    cdef public int64_t served_ns
    cdef uint64_t order
    cdef Py_ssize_t heap_place
    cdef int priority
    cdef readonly int band
    cdef bint is_lowered
    cdef int64_t priority_now(self, int64_t now_ms) except? -1
    cdef int serve_now(self) except -1

cdef class TopicWork(Work):
    cdef public ReadySet ready_set
    cdef public dict waiters
    cdef int64_t read_ms
    cdef bint has_read
    cdef bint has_manual
    cdef bint is_auto
    cdef int manual

cdef class ReadySet:
    cdef link queues[BAND_COUNT]
    cdef link wheel[WHEEL_SLOTS]
    cdef link frozen
    cdef work_heap moved[BAND_COUNT]
    cdef work_heap held_heap
    cdef Py_ssize_t band_depths[BAND_COUNT]
    cdef readonly Py_ssize_t count
    cdef readonly bint is_paused
    cdef public bint is_unfinished
    cdef public int64_t window_ns
    cdef public int64_t hold_ns
    cdef readonly uint64_t served
    cdef readonly int64_t now_ns
    cdef readonly int64_t latency_total_ns
    cdef uint64_t buckets[BUCKET_COUNT]
    cdef uint64_t last_order
    cdef int64_t tick
    cdef int turn_band
    cdef int credit
    cdef object monotonic_ns
    cdef object wall_ns
    cdef int put(self, Work work, int64_t now_ns, int64_t now_ms, int64_t window_ns, bint is_lowered) except -1
    cdef int enter(self, Work work, int band) except -1
    cdef void leave(self, Work work) noexcept
    cdef void plan(self, Work work) noexcept
    cdef int band_at(self, Work work, int64_t now_ns, int64_t now_ms) except -1
    cdef Work first_of(self, int band)
    cdef Work next_work(self)
    cdef int grow_slot(self, link *slot, int64_t tick, int64_t now_ns, int64_t now_ms, int left) except -1
    cdef int grow(self, Work work, int64_t now_ns, int64_t now_ms) except -1
    cdef void drop_all(self) noexcept
    cdef object serve_until(self, int64_t now_ns, int64_t end_ns, Py_ssize_t services_max, object drain)
