/* Records at their places, turned into what leaves the log: JSON for readers, frames for a segment.
 *
 * Reads a log index and the buffers it points into and trusts neither: every place is compared with
 * the bytes there are, every frame with its entry. Changes nothing but its output. */
#ifndef EVERLOG_RENDER_H
#define EVERLOG_RENDER_H

#include "frames.h"
#include "log_index.h"

#define INDEX_ENTRY_SIZE 20u /* offset u32, size u32, ts u64, flags u8, three zero bytes */

typedef struct {         /* a buffer in which frames lie */
    const uint8_t *base; /* NULL = not loaded */
    size_t length;
} source_span;

/* outcome of reading the frame of an entry */
enum {
    RECORD_OK = 0,
    RECORD_MISSING = 1, /* its source is not loaded */
    RECORD_CORRUPT = 2, /* there is no sound frame of this record */
    RECORD_DELETED = 3, /* render_job: marked in its segment, or dead in the index */
};

typedef struct {
    const uint8_t *text;
    size_t length;
} byte_text;

typedef struct {                /* one read */
    const source_span *sources; /* by id */
    size_t source_count;
    const byte_text *nodes; /* records of these are left out */
    size_t node_count;
    uint64_t topic_id;
    uint64_t from_seq;  /* the last seq the reader has */
    uint64_t end_seq;   /* the last seq it may see */
    uint64_t limit;     /* records */
    uint64_t max_bytes; /* payload; 0 = any. One record is delivered in any case */
    int include_tags, include_meta, include_data;
} render_request;

typedef struct {
    uint64_t next_from_seq; /* last seq passed, delivered or not */
    uint64_t delivered;
    uint64_t scanned;        /* live records looked at */
    uint64_t corrupt_seq;    /* stopped before it; 0 = none */
    uint32_t missing_source; /* stopped before a record in it; 0 = none */
} render_result;

typedef struct {
    uint8_t *base;
    size_t length, capacity;
} text_buffer;

/* Read the frame that `entry` says is the one of `seq`. */
int record_read(const source_span *source, const log_entry *entry, uint64_t topic_id, uint64_t seq,
                int verify, frame_view *frame);

/* Read the record `seq` and its entry. Segments are verified, since they may be years old; log frames were
 * made by this process or verified when it started. Returns RECORD_*; `entry->source` is the one that is
 * missing. */
int record_at(const log_index *index, const source_span *sources, size_t source_count, uint64_t topic_id,
              uint64_t seq, log_entry *entry, frame_view *frame);

/* Write the records as a JSON array into `out`, from its start. Returns 0, or -1 without memory. */
int render_records(const log_index *index, const render_request *request, text_buffer *out,
                   render_result *result);

typedef struct { /* a job that is given to a worker */
    uint64_t seq;
    uint64_t lease_id;
    uint64_t deadline;
    uint64_t deliveries;
} job_lease;

/* Write one job as a worker gets it into `out`, from its start. `request` names the topic and the
 * sources. Returns RECORD_*, or -1 without memory; `*missing_source` is set with RECORD_MISSING. */
int render_job(const log_index *index, const render_request *request, const job_lease *job, text_buffer *out,
               uint32_t *missing_source);

typedef struct { /* a record to copy, taken from the index while that stood still */
    source_span source;
    log_entry entry;
} record_place;

/* Bytes of the segment frame of a record that lies at `entry`; 0 for a dead one. */
size_t segment_size_of(const log_entry *entry);

/* Write segment frames of the live records to `data` and one index entry for each of the `count`
 * seqs from `first_seq` on to `entries`; both have room. Offsets count from `base_offset`. Returns
 * how many were written: fewer than `count` if the frame of the next one is not sound. */
uint64_t segment_copy(const record_place *places, uint64_t count, uint64_t topic_id, uint64_t first_seq,
                      uint32_t base_offset, uint8_t *data, uint8_t *entries);

/* One entry of a segment's index file: place, ts and the flags that an index keeps. The payload is
 * unknown if only the frame can tell. */
void index_entry_read(const uint8_t *at, uint32_t source, log_entry *entry);

#endif
