# cython: language_level=3
"""What other native modules may know of a replay."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from everlog.native.frames cimport frame_view
from everlog.native.topic_log cimport TopicLog

cdef enum:
    KNOWN_LOGS = 256


cdef class LogReplay:
    cdef Py_buffer view
    cdef bint has_view
    cdef const uint8_t *base
    cdef size_t length
    cdef size_t at               # behind the last frame that was taken
    cdef size_t batch_end        # frames before it are verified and their batch is complete
    cdef int state
    cdef uint32_t source
    cdef dict logs
    cdef readonly uint64_t appended
    cdef readonly uint64_t skipped
    cdef readonly list gaps      # (topic id, first seq, last seq) that appends have passed over
    cdef uint64_t known_ids[KNOWN_LOGS]
    cdef void *known_logs[KNOWN_LOGS]

    cdef int look_ahead(self, frame_view *first) noexcept
    cdef TopicLog find_log(self, uint64_t topic_id)
    cdef int apply(self, const frame_view *frame) except -1
