/* Where every record of one topic is: seq -> entry, by position, in blocks; and which are live.
 *
 * Owns the entries and the live totals; knows neither files nor clocks. Seqs from base_seq up to
 * next_seq - 1 have an entry; dead ones keep theirs until the front is dropped. A block is a
 * struct of arrays of BLOCK_ENTRIES entries; only the last block may be smaller (it grows by
 * doubling), so a small topic is small. A row of holes is one block with many pointers to it. */
#ifndef EVERLOG_LOG_INDEX_H
#define EVERLOG_LOG_INDEX_H

#include <stddef.h>
#include <stdint.h>

#define BLOCK_SHIFT 12u
#define BLOCK_ENTRIES (1u << BLOCK_SHIFT)
#define BLOCK_FIRST_ENTRIES 16u
#define DROPPED_BLOCKS 64u
/* More seqs without a record in a row are a damaged number, not a topic: 8 MiB of pointers to one block. */
#define MAX_HOLES ((uint64_t)1 << 32)
#define MAX_SEQ (UINT64_MAX >> 1)

/* flags of an entry; TAG, NODE and META equal the frame's */
enum {
    ENTRY_HAS_TAG = 1,
    ENTRY_HAS_NODE = 2,
    ENTRY_HAS_META = 8,
    ENTRY_IN_LOG = 32,           /* the frame at its place is a log frame, otherwise a segment frame */
    ENTRY_DEAD = 64,             /* deleted, evicted, expired or a hole */
    ENTRY_PAYLOAD_UNKNOWN = 128, /* counts as 0 until the frame has been looked at */
};
#define ENTRY_FRAME_FLAGS (ENTRY_HAS_TAG | ENTRY_HAS_NODE | ENTRY_HAS_META)

typedef struct {
    uint64_t ts;
    uint64_t tag_prev; /* seq of the previous record with the same tag, 0 = none */
    uint32_t source;   /* which buffer (a table elsewhere), 0 = none: a hole */
    uint32_t offset;   /* of the frame in it */
    uint32_t size;     /* of the frame */
    uint32_t payload;  /* bytes that count against caps */
    uint8_t flags;
} log_entry;

typedef struct { /* all arrays lie in one allocation behind it */
    uint64_t *ts;
    uint64_t *tag_prev;
    uint32_t *source;
    uint32_t *offset;
    uint32_t *size;
    uint32_t *payload;
    uint8_t *flags;
    size_t capacity;
    uint64_t live_bytes; /* of its live entries; with it a whole block can die in one step */
    uint64_t live_count;
} log_block;

typedef struct {
    log_block **blocks;
    size_t block_count, block_capacity;
    uint64_t blocks_seq; /* seq of position 0 of blocks[0]; base_seq may be inside blocks[0] */
    uint64_t base_seq;   /* first seq with an entry */
    uint64_t next_seq;
    uint64_t first_live; /* first live seq, next_seq if none */
    uint64_t live_count;
    uint64_t live_bytes; /* sum of payload over live entries */
    uint64_t last_ts;    /* highest ts ever pushed; taking entries back does not lower it */
    size_t memory_bytes; /* allocated */
} log_index;

void log_index_init(log_index *index, uint64_t next_seq);
void log_index_free(log_index *index); /* all entries; the seqs stay what they are */

/* Append an entry for next_seq. Returns 0, or -1 without memory (nothing changed). */
int log_index_push(log_index *index, const log_entry *entry);
/* Make room for up to `count` entries from next_seq on in one block. Returns how many of them the caller may
 * write there (see log_index_block), at least 1; or 0 without memory. */
size_t log_index_room(log_index *index, size_t count);
/* `count` entries were written there: all live, with `bytes` of payload and this timestamp. */
void log_index_grown(log_index *index, size_t count, uint64_t bytes, uint64_t ts);
/* Append `count` (at most MAX_HOLES) dead entries without a place. An index without entries moves
 * its base instead. Returns 0, or -1 without memory (nothing changed). */
int log_index_push_holes(log_index *index, uint64_t count, uint64_t ts);
/* Take back the last `count` entries (their write failed). Chains of tags are the caller's. */
void log_index_pop(log_index *index, uint64_t count);
/* `seq` must be in [base_seq, next_seq) here and in the setters. */
void log_index_get(const log_index *index, uint64_t seq, log_entry *out);
/* The sizes of `count` entries from `first_seq` on; all of them must be there. */
void log_index_sizes(const log_index *index, uint64_t first_seq, uint64_t count, uint32_t *out);
/* The frame is a segment frame at this place from now on. */
void log_index_set_place(log_index *index, uint64_t seq, uint32_t source, uint32_t offset, uint32_t size);
/* The payload of an entry that was pushed with ENTRY_PAYLOAD_UNKNOWN. */
void log_index_set_payload(log_index *index, uint64_t seq, uint32_t payload);
/* Mark entries dead, or only count them; adds those that were live to *count and *bytes. */
void log_index_kill(log_index *index, const uint64_t *seqs, size_t length, int only_counts, uint64_t *count,
                    uint64_t *bytes);
/* Mark every live entry of [from, to) dead; adds to *count and *bytes. */
void log_index_kill_range(log_index *index, uint64_t from, uint64_t to, uint64_t *count, uint64_t *bytes);
/* First live seq in [from, end), otherwise `end` (at most next_seq). */
uint64_t log_index_next_live(const log_index *index, uint64_t from, uint64_t end);
/* The seq that would be first live if the oldest live entries were killed until at most
 * `max_records` (0 = any) and `max_bytes` (0 = any) are left, counting from `from` (a result of an
 * earlier call, or first_live) with `count` and `bytes` the live totals from there on: both are
 * updated. The result is one past the last entry that has to go, or `from`. */
uint64_t log_index_plan_caps(const log_index *index, uint64_t from, uint64_t max_records, uint64_t max_bytes,
                             uint64_t *count, uint64_t *bytes);
/* First seq in [first_live, end) with ts >= cutoff, by binary search; `end` (at most next_seq) if
 * none. Dead entries take part with the ts they have. */
uint64_t log_index_find_ts(const log_index *index, uint64_t cutoff, uint64_t end);
/* Free whole blocks below `seq` (at most first_live) and move base_seq there, or as far as DROPPED_BLOCKS
 * reach: freeing a block takes some ten microseconds. */
void log_index_drop_front(log_index *index, uint64_t seq);

static inline log_block *log_index_block(const log_index *index, uint64_t seq)
{
    return index->blocks[(seq - index->blocks_seq) >> BLOCK_SHIFT];
}

static inline size_t log_index_slot(const log_index *index, uint64_t seq)
{
    return (size_t)((seq - index->blocks_seq) & (BLOCK_ENTRIES - 1));
}

static inline int log_index_has(const log_index *index, uint64_t seq)
{
    return seq >= index->base_seq && seq < index->next_seq;
}

static inline int log_index_is_live(const log_index *index, uint64_t seq)
{
    if (seq < index->first_live || seq >= index->next_seq)
        return 0;
    return !(log_index_block(index, seq)->flags[log_index_slot(index, seq)] & ENTRY_DEAD);
}

static inline void log_index_set_tag_prev(log_index *index, uint64_t seq, uint64_t tag_prev)
{
    log_index_block(index, seq)->tag_prev[log_index_slot(index, seq)] = tag_prev;
}

static inline uint64_t log_index_tag_prev(const log_index *index, uint64_t seq)
{
    return log_index_block(index, seq)->tag_prev[log_index_slot(index, seq)];
}

#endif
