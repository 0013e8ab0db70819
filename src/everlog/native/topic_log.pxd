# cython: language_level=3
"""Declarations of log_index.h, tag_index.h and render.h, and what other native modules may know of a log."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from everlog.native.frames cimport FrameBuffer, frame_view
from everlog.native.record_batch cimport RecordBatch, batch_record

cdef extern from "log_index.h" nogil:
    uint64_t MAX_HOLES, MAX_SEQ
    cdef enum:
        ENTRY_HAS_TAG
        ENTRY_HAS_NODE
        ENTRY_HAS_META
        ENTRY_IN_LOG
        ENTRY_DEAD
        ENTRY_PAYLOAD_UNKNOWN

    ctypedef struct log_entry:
        uint64_t ts
        uint64_t tag_prev
        uint32_t source
        uint32_t offset
        uint32_t size
        uint32_t payload
        uint8_t flags
    ctypedef struct log_index:
        uint64_t base_seq
        uint64_t next_seq
        uint64_t first_live
        uint64_t live_count
        uint64_t live_bytes
        uint64_t last_ts

    void log_index_init(log_index *index, uint64_t next_seq)
    void log_index_free(log_index *index)
    size_t log_index_memory(const log_index *index)
    int log_index_push(log_index *index, const log_entry *entry)
    int log_index_push_holes(log_index *index, uint64_t count, uint64_t ts)
    void log_index_pop(log_index *index, uint64_t count)
    void log_index_get(const log_index *index, uint64_t seq, log_entry *out)
    void log_index_sizes(const log_index *index, uint64_t first_seq, uint64_t count, uint32_t *out)
    void log_index_set_place(log_index *index, uint64_t seq, uint32_t source, uint32_t offset, uint32_t size,
                             int in_log)
    void log_index_set_payload(log_index *index, uint64_t seq, uint32_t payload)
    uint64_t log_index_kill(log_index *index, uint64_t seq)
    void log_index_kill_range(log_index *index, uint64_t begin, uint64_t to, uint64_t *count, uint64_t *bytes)
    uint64_t log_index_next_live(const log_index *index, uint64_t begin, uint64_t end)
    uint64_t log_index_plan_caps(const log_index *index, uint64_t begin, uint64_t max_records,
                                 uint64_t max_bytes, uint64_t *count, uint64_t *bytes)
    uint64_t log_index_find_ts(const log_index *index, uint64_t cutoff, uint64_t end)
    void log_index_drop_front(log_index *index, uint64_t seq)
    bint log_index_has(const log_index *index, uint64_t seq)
    bint log_index_is_live(const log_index *index, uint64_t seq)

cdef extern from "tag_index.h" nogil:
    ctypedef struct tag_index:
        pass
    ctypedef struct seq_list:
        uint64_t *seqs
        size_t count
        size_t capacity

    tag_index *tag_index_new()
    void tag_index_free(tag_index *tags)
    size_t tag_index_memory(const tag_index *tags)
    uint64_t tag_index_count(const tag_index *tags)
    int tag_index_push(tag_index *tags, log_index *index, const uint8_t *tag, size_t length, uint64_t seq)
    void tag_index_pop(tag_index *tags, log_index *index, const uint8_t *tag, size_t length, uint64_t seq)
    uint64_t tag_index_sweep(tag_index *tags, log_index *index, uint64_t steps)
    int tag_index_find(tag_index *tags, log_index *index, const uint8_t *tag, size_t length, int prefix,
                       uint64_t before_seq, seq_list *found)

cdef extern from "log_append.h" nogil:
    ctypedef struct append_target:
        uint64_t topic_id
        uint64_t ts
        uint32_t source
        uint32_t offset
        uint8_t flags
        uint8_t continues
    ctypedef struct append_result:
        size_t frame_bytes
        uint64_t payload

    int log_append(log_index *index, tag_index *tags, const batch_record *records, size_t count,
                   const append_target *target, uint8_t *out, append_result *result)

cdef extern from "render.h" nogil:
    uint32_t INDEX_ENTRY_SIZE
    cdef enum:
        RECORD_OK
        RECORD_MISSING
        RECORD_CORRUPT

    ctypedef struct source_span:
        const uint8_t *base
        size_t length
    ctypedef struct byte_text:
        const uint8_t *text
        size_t length
    ctypedef struct render_request:
        const source_span *sources
        size_t source_count
        const byte_text *nodes
        size_t node_count
        uint64_t topic_id
        uint64_t from_seq
        uint64_t end_seq
        uint64_t limit
        uint64_t max_bytes
        int include_tags, include_meta, include_data
    ctypedef struct render_result:
        uint64_t next_from_seq
        uint64_t delivered
        uint64_t scanned
        uint64_t corrupt_seq
        uint32_t missing_source
    ctypedef struct text_buffer:
        uint8_t *base
        size_t length
        size_t capacity
    ctypedef struct record_place:
        source_span source
        log_entry entry

    int record_read(const source_span *source, const log_entry *entry, uint64_t topic_id, uint64_t seq,
                    int verify, frame_view *frame)
    int render_records(const log_index *index, const render_request *request, text_buffer *out,
                       render_result *result)
    size_t segment_size_of(const log_entry *entry)
    uint64_t segment_copy(const record_place *places, uint64_t count, uint64_t topic_id, uint64_t first_seq,
                          uint32_t base_offset, uint8_t *data, uint8_t *entries)
    void index_entry_read(const uint8_t *at, uint32_t source, log_entry *entry)


cdef class Sources:
    cdef source_span *spans      # by id; place 0 stays unloaded
    cdef Py_buffer **views       # by id; NULL = not loaded
    cdef size_t count            # ids given out so far, and place 0
    cdef size_t capacity
    cdef list objects            # by id; the buffers as they were given
    cdef list free_ids

    cdef int grow(self, size_t capacity) except -1
    cdef int check(self, size_t source) except -1
    cdef int load(self, size_t source, object buffer) except -1
    cdef void unload(self, size_t source) noexcept


cdef class TopicLog:
    cdef log_index index
    cdef tag_index *tags
    cdef readonly uint64_t topic_id

    cdef uint64_t append_batch(self, FrameBuffer buffer, uint32_t source, uint64_t source_offset,
                               RecordBatch batch, uint64_t ts, uint8_t frame_flags,
                               bint continues) except? 0
    cdef int check_seq(self, uint64_t seq) except -1
    cdef int push(self, const log_entry *entry, const uint8_t *tag, size_t tag_len) except -1
    cdef int push_gap(self, uint64_t first_seq) except -1
    cdef int read_unwritten(self, FrameBuffer buffer, uint64_t source_offset, uint64_t seq,
                            frame_view *frame) except -1
    cdef size_t collect_places(self, Sources sources, uint64_t first_seq, uint64_t count,
                               record_place *places, list held) except? 0
