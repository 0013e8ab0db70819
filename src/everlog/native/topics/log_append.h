/* A checked batch of records becomes frames in a buffer and entries of a topic's indexes, in one pass.
 *
 * Trusts its caller: lengths, room and texts were checked before. Knows neither files nor Python. */
#ifndef EVERLOG_LOG_APPEND_H
#define EVERLOG_LOG_APPEND_H

#include <string.h>

#include "frames.h"
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
    uint32_t offset;   /* of the first frame in its source */
    uint8_t flags;     /* of every frame */
    uint8_t continues; /* the last frame carries BATCH_CONTINUES like all others */
} append_target;

typedef struct {
    size_t frame_bytes; /* written */
    uint64_t payload;   /* bytes that count against caps */
} append_result;

_Static_assert((int)ENTRY_HAS_TAG == (int)FRAME_HAS_TAG && (int)ENTRY_HAS_NODE == (int)FRAME_HAS_NODE &&
                   (int)ENTRY_HAS_META == (int)FRAME_HAS_META,
               "an entry takes these flags from its frame");

static inline uint8_t *put_text(uint8_t *out, const uint8_t *text, size_t length, int is_compact)
{
    if (!is_compact)
        return out + json_compact(out, text, length);
    memcpy(out, text, length);
    return out + length;
}

/* Behind the header: node, tag, meta and data. Returns where the data begins, and in *end where it ends;
 * texts are compacted on the way, so that nothing is copied twice. */
static inline uint8_t *put_body(uint8_t *at, const batch_record *record, uint8_t **end)
{
    if (record->node_len > 0) {
        memcpy(at, record->node, record->node_len);
        at += record->node_len;
    }
    if (record->tag_len > 0) {
        memcpy(at, record->tag, record->tag_len);
        at += record->tag_len;
    }
    uint8_t *data = at;
    if (record->meta != NULL) {
        at = put_text(data + FRAME_META_LEN_SIZE, record->meta, record->meta_len, record->is_compact);
        uint32_t meta_len = (uint32_t)(at - data) - FRAME_META_LEN_SIZE;
        memcpy(data, &meta_len, sizeof meta_len);
    }
    *end = put_text(at, record->data, record->data_len, record->is_compact);
    return data;
}

static inline uint8_t own_flags(const batch_record *record)
{
    return (uint8_t)((record->tag_len > 0 ? FRAME_HAS_TAG : 0) | (record->node_len > 0 ? FRAME_HAS_NODE : 0) |
                     (record->meta != NULL ? FRAME_HAS_META : 0));
}

/* Frames and entries of `count` records that fit into one block of the index. Returns the end. */
static uint8_t *append_run(log_index *index, const batch_record *records, size_t count,
                           const append_target *target, uint8_t flags, const uint8_t *start, uint8_t *out)
{
    const uint64_t first_seq = index->next_seq;
    log_block *block = log_index_block(index, first_seq);
    const size_t slot = log_index_slot(index, first_seq);
    uint64_t payload = 0;
    for (size_t place = 0; place < count; place++) {
        const batch_record *record = &records[place];
        const uint8_t frame_flags = flags | own_flags(record);
        uint8_t *end, *data = put_body(out + LOG_HEADER_SIZE, record, &end);
        const frame_view frame = {.topic_id = target->topic_id,
                                  .seq = first_seq + place,
                                  .ts = target->ts,
                                  .data_len = (uint32_t)(end - data),
                                  .node_len = record->node_len,
                                  .tag_len = record->tag_len,
                                  .type = FRAME_TYPE_APPEND,
                                  .flags = frame_flags};
        log_frame_close(out, end, &frame);
        block->ts[slot + place] = target->ts;
        block->tag_prev[slot + place] = 0;
        block->source[slot + place] = target->source;
        block->offset[slot + place] = target->offset + (uint32_t)(out - start);
        block->size[slot + place] = (uint32_t)(end + LOG_TRAILER_SIZE - out);
        block->payload[slot + place] = frame_payload(frame.data_len, frame_flags);
        block->flags[slot + place] = (frame_flags & ENTRY_FRAME_FLAGS) | ENTRY_IN_LOG;
        payload += block->payload[slot + place];
        out = end + LOG_TRAILER_SIZE;
    }
    log_index_grown(index, count, payload, target->ts);
    return out;
}

/* Remove the newest `pushed` entries, of which the tags of the first `tagged` are in the index of tags. */
static void remove_newest(log_index *index, tag_index *tags, const batch_record *records, size_t pushed,
                          size_t tagged)
{
    uint64_t first_seq = index->next_seq - pushed;
    while (tagged > 0) {
        tagged--;
        if (records[tagged].tag_len > 0)
            tag_index_pop(tags, index, records[tagged].tag, records[tagged].tag_len, first_seq + tagged);
    }
    log_index_pop(index, pushed);
}

/* Returns how many records come before the first one whose tag did not fit into memory. */
static size_t push_tags(log_index *index, tag_index *tags, const batch_record *records, size_t count)
{
    uint64_t first_seq = index->next_seq - count;
    for (size_t place = 0; place < count; place++) {
        const batch_record *record = &records[place];
        if (record->tag_len > 0 &&
            tag_index_push(tags, index, record->tag, record->tag_len, first_seq + place) != 0)
            return place;
    }
    return count;
}

/* Write the frames of `count` records to `out`, which has room for all of them, and push their entries
 * from next_seq on. Returns 0, or -1 without memory; then nothing but the bytes at `out` has changed. */
static int log_append(log_index *index, tag_index *tags, const batch_record *records, size_t count,
                      const append_target *target, uint8_t *out, append_result *result)
{
    const uint64_t bytes_before = index->live_bytes;
    const uint8_t *start = out;
    size_t pushed = 0;
    while (pushed < count) {
        size_t run = log_index_room(index, count - pushed);
        if (run == 0) {
            remove_newest(index, tags, records, pushed, 0);
            return -1;
        }
        /* The last record may be the only one without the mark that more of its batch follows. */
        if (!target->continues && run > 1 && pushed + run == count)
            run--;
        int is_last = pushed + run == count && !target->continues;
        uint8_t flags = target->flags | (is_last ? 0 : FRAME_BATCH_CONTINUES);
        out = append_run(index, records + pushed, run, target, flags, start, out);
        pushed += run;
    }
    size_t tagged = push_tags(index, tags, records, count);
    if (tagged < count) {
        remove_newest(index, tags, records, count, tagged);
        return -1;
    }
    *result =
        (append_result){.frame_bytes = (size_t)(out - start), .payload = index->live_bytes - bytes_before};
    return 0;
}

#endif
