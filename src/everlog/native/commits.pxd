# cython: language_level=3
"""What other native modules may know of commits and of batches that wait for one."""

from libc.stdint cimport int64_t, uint64_t

from everlog.native.frames cimport FrameBuffer
from everlog.native.topic_core cimport LogPlace, TopicCore


cdef class Commit:
    cdef readonly bint done
    cdef readonly object error   # why it was not kept; None
    cdef list callbacks


cdef class BatchEntry:
    cdef readonly TopicCore topic
    cdef readonly uint64_t first_seq
    cdef readonly uint64_t last_seq
    cdef readonly uint64_t count
    cdef readonly uint64_t bytes
    cdef readonly uint64_t ts
    cdef readonly bint needs_sync
    cdef readonly object plan    # what it evicts; None
    cdef public str key
    cdef public Commit commit
    cdef uint64_t floor_before
    cdef LogPlace shard          # in whose buffer the frames are until they are written; None: in memory

    cdef int begin(self, TopicCore topic, uint64_t first_seq, uint64_t count, uint64_t size, uint64_t ts,
                   LogPlace shard) except -1
    cdef int meet(self) except -1
    cdef int show(self) except -1
    cdef int leave_pending(self) except -1
    cdef int tell(self, object error) except -1


cdef class ShardLog:
    cdef readonly LogPlace shard
    cdef readonly FrameBuffer buffer       # the gathered frames
    cdef readonly Py_ssize_t depth         # entries that are gathered or wait for a sync
    cdef readonly Py_ssize_t depth_peak
    cdef public Py_ssize_t refused         # counted by who looks at the depth before adding to it
    cdef Py_ssize_t frames                 # gathered, and not told to the shard yet
    cdef list gathered
    cdef int64_t from_file, from_offset    # where the first of them begins
    cdef object waiting                    # groups that were written together: where they start, entries

    cdef int write_gathered(self) except -1
    cdef bint has_room(self, size_t size) except -1
    cdef int take(self, object entry, Py_ssize_t frames) except -1
    cdef int count_frames(self) except -1
    cdef int pass_on(self) except -1
    cdef int fail_gathered(self, error) except -1
