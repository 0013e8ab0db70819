# cython: language_level=3
"""What other native modules may know of a topic, of the totals of all topics, and of a shard of the log."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from everlog.native.frames cimport FrameBuffer
from everlog.native.ready_set cimport TopicWork
from everlog.native.topic_log cimport TopicLog


cdef class Totals:
    cdef public int64_t bytes
    cdef public object delivery            # None: whatever happens is of no interest to anybody
    cdef public dict unforwarded           # by id: sources of routers with something new
    cdef public dict unsaved               # by id: those with records or marks for the next checkpoint


cdef class TopicCore(TopicWork):
    cdef public Totals totals
    cdef public object topic_id
    cdef public str name
    cdef public object config
    cdef public TopicLog log
    cdef public object shard
    cdef public uint64_t visible
    cdef public int64_t pending_syncs
    cdef public int64_t pending_count
    cdef public int64_t pending_bytes
    cdef public int64_t ceiling_logged
    cdef public int64_t ceiling_durable
    cdef public uint64_t logged_seq
    cdef public uint64_t restored_ts
    cdef public bint caps_due
    cdef public object floor_commit
    cdef public dict keys
    cdef public list feeds
    cdef public object order
    cdef public bytes snapshot_record
    cdef uint64_t written_ms
    cdef bint has_written


cdef class Pressure:
    cdef public bint is_refusing           # a write, if the queue of its shard is nearly full
    cdef public bint is_throttling         # anything is done later than it could be


cdef class LogTail:
    cdef public int fd
    cdef public int64_t end


cdef class LogPlace:
    cdef public LogTail active
    cdef public FrameBuffer buffer
    cdef public uint32_t source
    cdef public int64_t file_number
    cdef public int64_t source_offset
    cdef public int64_t limit
    cdef public int64_t mark
    cdef public int64_t frames_gathered
    cdef public int64_t frames
    cdef public int64_t writes
    cdef public int64_t bytes_written
    cdef public object read_only
    cdef public object requested_ns
    cdef public object group
    cdef public object waiters

    cdef bint wants_sync(self) except -1
