# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The records of topics in memory: frames, batches, the log of one topic with its indexes, and their rendering.

Owns the memory of frames and indexes. Opens no file, reads no clock and decides nothing: which record dies when,
what is visible and what is written where is up to `everlog.topics`. One module in six parts, so that each C file
is linked once.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport UINT16_MAX, UINT32_MAX, UINT64_MAX, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

import numpy as np
import xxhash

from everlog.errors import Corrupt, InvalidRecord, RecordTooLarge
from everlog import xxh3
from everlog.native.topics.results import Copied, FrameScan, LogFrame, Rendered, SegmentFrame, Selection

cdef extern from "topics/log_index.h" nogil:
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
    cdef uint64_t BLOCK_ENTRIES
    ctypedef struct log_block:
        uint32_t *payload
        uint64_t live_bytes, live_count
    ctypedef struct log_index:
        uint64_t base_seq
        uint64_t next_seq
        uint64_t first_live
        uint64_t live_count
        uint64_t live_bytes
        uint64_t last_ts
        size_t memory_bytes

    void log_index_init(log_index *index, uint64_t next_seq)
    void log_index_free(log_index *index)
    int log_index_push(log_index *index, const log_entry *entry)
    int log_index_push_holes(log_index *index, uint64_t count, uint64_t ts)
    void log_index_pop(log_index *index, uint64_t count)
    void log_index_get(const log_index *index, uint64_t seq, log_entry *out)
    void log_index_sizes(const log_index *index, uint64_t first_seq, uint64_t count, uint32_t *out)
    void log_index_set_place(log_index *index, uint64_t seq, uint32_t source, uint32_t offset, uint32_t size)
    void log_index_set_payload(log_index *index, uint64_t seq, uint32_t payload)
    void log_index_kill(log_index *, const uint64_t *seqs, size_t, int only_counts, uint64_t *, uint64_t *bytes)
    void log_index_kill_range(log_index *index, uint64_t begin, uint64_t to, uint64_t *count, uint64_t *bytes)
    uint64_t log_index_next_live(const log_index *index, uint64_t begin, uint64_t end)
    uint64_t log_index_plan_caps(const log_index *index, uint64_t begin, uint64_t max_records,
                                 uint64_t max_bytes, uint64_t *count, uint64_t *bytes)
    uint64_t log_index_find_ts(const log_index *index, uint64_t cutoff, uint64_t end)
    void log_index_drop_front(log_index *index, uint64_t seq)
    log_block *log_index_block(const log_index *index, uint64_t seq)
    size_t log_index_slot(const log_index *index, uint64_t seq)
    bint log_index_has(const log_index *index, uint64_t seq)
    bint log_index_is_live(const log_index *index, uint64_t seq)

cdef extern from "topics/tag_index.h" nogil:
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
                       uint64_t before_seq, uint64_t steps, uint64_t *from_seq, seq_list *found)

cdef extern from "topics/log_append.h" nogil:
    ctypedef struct batch_record:
        const uint8_t *data
        const uint8_t *meta
        const uint8_t *tag
        const uint8_t *node
        uint32_t data_len
        uint32_t meta_len
        uint16_t tag_len
        uint16_t node_len
        uint8_t is_compact
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

cdef extern from "topics/render.h" nogil:
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
    int record_at(const log_index *index, const source_span *sources, size_t source_count, uint64_t topic_id,
                  uint64_t seq, log_entry *entry, frame_view *frame)
    int render_records(const log_index *index, const render_request *request, text_buffer *out,
                       render_result *result)
    size_t segment_size_of(const log_entry *entry)
    uint64_t segment_copy(const record_place *places, uint64_t count, uint64_t topic_id, uint64_t first_seq,
                          uint32_t base_offset, uint8_t *data, uint8_t *entries)
    void index_entry_read(const uint8_t *at, uint32_t source, log_entry *entry)

include "frames.pxi"
include "record_batch.pxi"
include "topic_log.pxi"
include "forwarding.pxi"
include "jobs.pxi"
include "log_replay.pxi"
