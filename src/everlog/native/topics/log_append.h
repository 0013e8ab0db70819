/* A checked batch of records becomes frames in a buffer and entries of a topic's indexes, in one pass.
 *
 * Trusts its caller: lengths, room and texts were checked before. Knows neither files nor Python. */
#ifndef EVERLOG_LOG_APPEND_H
#define EVERLOG_LOG_APPEND_H

#include "log_index.h"
#include "tag_index.h"

typedef struct { /* one record; its texts belong to the caller */
    const uint8_t *data;
    const uint8_t *meta; /* NULL = none */
    const uint8_t *tag;
    const uint8_t *node;
    uint32_t data_len;
    uint32_t meta_len;
    uint16_t tag_len; /* 0 = none, as for node_len */
    uint16_t node_len;
    uint8_t is_compact; /* neither text has a byte that might be white space */
} batch_record;

typedef struct { /* what the frames of one batch have in common, and where they go */
    uint64_t topic_id;
    uint64_t ts;
    uint32_t source;
    uint32_t offset; /* of the first frame in its source */
    uint8_t flags;   /* of every frame */
    uint8_t continues; /* the last frame carries BATCH_CONTINUES like all others */
} append_target;

typedef struct {
    size_t frame_bytes; /* written */
    uint64_t payload;   /* bytes that count against caps */
} append_result;

/* Write the frames of `count` records to `out`, which has room for all of them, and push their entries
 * from next_seq on. Returns 0, or -1 without memory; then nothing but the bytes at `out` has changed. */
int log_append(log_index *index, tag_index *tags, const batch_record *records, size_t count,
               const append_target *target, uint8_t *out, append_result *result);

#endif
