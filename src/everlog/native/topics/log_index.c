/* Entries by position in blocks of arrays; see log_index.h. */
#include "log_index.h"

#include <stdlib.h>
#include <string.h>

#define ENTRY_BYTES (2 * sizeof(uint64_t) + 4 * sizeof(uint32_t) + 1)
/* A block of which less than one in SPARSE is in use is worth copying to a smaller one. */
#define SPARSE 4u
#define DEAD_WORD (0x0101010101010101u * ENTRY_DEAD)

void log_index_init(log_index *index, uint64_t next_seq)
{
    *index = (log_index){
        .blocks_seq = next_seq, .base_seq = next_seq, .next_seq = next_seq, .first_live = next_seq};
}

static size_t block_bytes(size_t capacity)
{
    return sizeof(log_block) + capacity * ENTRY_BYTES;
}

static log_block *block_new(size_t capacity)
{
    log_block *block = malloc(block_bytes(capacity));
    if (block == NULL)
        return NULL;
    block->capacity = capacity;
    block->live_bytes = block->live_count = 0;
    block->ts = (uint64_t *)(block + 1);
    block->tag_prev = block->ts + capacity;
    block->source = (uint32_t *)(block->tag_prev + capacity);
    block->offset = block->source + capacity;
    block->size = block->offset + capacity;
    block->payload = block->size + capacity;
    block->flags = (uint8_t *)(block->payload + capacity);
    return block;
}

/* Copy `count` entries of `from`, starting at `slot`, to the start of `to`. */
static void block_copy(log_block *to, const log_block *from, size_t slot, size_t count)
{
    memcpy(to->ts, from->ts + slot, count * sizeof *to->ts);
    memcpy(to->tag_prev, from->tag_prev + slot, count * sizeof *to->tag_prev);
    memcpy(to->source, from->source + slot, count * sizeof *to->source);
    memcpy(to->offset, from->offset + slot, count * sizeof *to->offset);
    memcpy(to->size, from->size + slot, count * sizeof *to->size);
    memcpy(to->payload, from->payload + slot, count * sizeof *to->payload);
    memcpy(to->flags, from->flags + slot, count);
}

static void block_free(log_index *index, log_block *block)
{
    index->memory_bytes -= block_bytes(block->capacity);
    free(block);
}

/* Whether two places in a row have the same block, which holds holes only. */
static inline int is_repeated(const log_index *index, size_t place)
{
    return place > 0 && place < index->block_count && index->blocks[place] == index->blocks[place - 1];
}

/* Keep the first `count` blocks. */
static void drop_back(log_index *index, size_t count)
{
    for (; index->block_count > count; index->block_count--)
        if (!is_repeated(index, index->block_count - 1))
            block_free(index, index->blocks[index->block_count - 1]);
}

void log_index_free(log_index *index)
{
    drop_back(index, 0);
    free(index->blocks);
    index->blocks = NULL;
    index->block_capacity = 0;
    index->memory_bytes = 0;
}

/* Room for one more block pointer. */
static int grow_table(log_index *index)
{
    if (index->block_count < index->block_capacity)
        return 0;
    size_t capacity = index->block_capacity ? 2 * index->block_capacity : 1;
    log_block **grown = realloc(index->blocks, capacity * sizeof *grown);
    if (grown == NULL)
        return -1;
    index->memory_bytes += (capacity - index->block_capacity) * sizeof *grown;
    index->blocks = grown;
    index->block_capacity = capacity;
    return 0;
}

/* The block of an index with few entries starts small, since most topics are; others are surely
 * filled. */
static int add_block(log_index *index)
{
    uint64_t held = index->next_seq - index->base_seq;
    size_t capacity = held < BLOCK_ENTRIES / SPARSE ? BLOCK_FIRST_ENTRIES : BLOCK_ENTRIES;
    if (grow_table(index) != 0)
        return -1;
    log_block *block = block_new(capacity);
    if (block == NULL)
        return -1;
    index->memory_bytes += block_bytes(capacity);
    index->blocks[index->block_count++] = block;
    return 0;
}

/* Put another block in place of the last one, with `count` of its entries from `slot` on. */
static int replace_last_block(log_index *index, size_t capacity, size_t slot, size_t count)
{
    log_block *old = index->blocks[index->block_count - 1];
    log_block *block = block_new(capacity);
    if (block == NULL)
        return -1;
    block_copy(block, old, slot, count);
    block->live_bytes = old->live_bytes;
    block->live_count = old->live_count;
    index->memory_bytes += block_bytes(capacity);
    if (!is_repeated(index, index->block_count - 1))
        block_free(index, old);
    index->blocks[index->block_count - 1] = block;
    return 0;
}

/* Make the position of next_seq writable. */
static int make_room(log_index *index)
{
    if (index->block_count == 0)
        index->blocks_seq = index->next_seq;
    uint64_t position = index->next_seq - index->blocks_seq;
    if (position >> BLOCK_SHIFT >= index->block_count)
        return add_block(index);
    size_t filled = (size_t)(position & (BLOCK_ENTRIES - 1));
    size_t capacity = index->blocks[index->block_count - 1]->capacity;
    if (filled < capacity && !is_repeated(index, index->block_count - 1))
        return 0;
    return replace_last_block(index, filled < capacity ? capacity : 2 * capacity, 0, filled);
}

/* Count so many more, or (wrapping around) fewer, live entries of a block. */
static inline void add_live(log_index *index, log_block *block, uint64_t count, uint64_t bytes)
{
    index->live_count += count;
    index->live_bytes += bytes;
    block->live_count += count;
    block->live_bytes += bytes;
}

/* Mark a live entry dead, leaving first_live to the caller. */
static inline void mark_dead(log_index *index, uint64_t seq)
{
    log_block *block = log_index_block(index, seq);
    size_t slot = log_index_slot(index, seq);
    block->flags[slot] |= ENTRY_DEAD;
    add_live(index, block, -1, -(uint64_t)block->payload[slot]);
}

int log_index_push(log_index *index, const log_entry *entry)
{
    if (make_room(index) != 0)
        return -1;
    uint64_t seq = index->next_seq;
    log_block *block = log_index_block(index, seq);
    size_t slot = log_index_slot(index, seq);
    block->ts[slot] = entry->ts;
    block->tag_prev[slot] = entry->tag_prev;
    block->source[slot] = entry->source;
    block->offset[slot] = entry->offset;
    block->size[slot] = entry->size;
    block->payload[slot] = entry->payload;
    block->flags[slot] = entry->flags;
    index->next_seq = seq + 1;
    if (!(entry->flags & ENTRY_DEAD)) {
        add_live(index, block, 1, entry->payload);
    } else if (index->first_live == seq) {
        index->first_live = seq + 1;
    }
    if (entry->ts > index->last_ts)
        index->last_ts = entry->ts;
    return 0;
}

size_t log_index_room(log_index *index, size_t count)
{
    if (make_room(index) != 0)
        return 0;
    size_t left = log_index_block(index, index->next_seq)->capacity - log_index_slot(index, index->next_seq);
    return count < left ? count : left;
}

void log_index_grown(log_index *index, size_t count, uint64_t bytes, uint64_t ts)
{
    add_live(index, log_index_block(index, index->next_seq), count, bytes);
    index->next_seq += count;
    if (ts > index->last_ts)
        index->last_ts = ts;
}

/* The last block, which is full of holes, once more. Returns how many that are, or 0 without memory. */
static uint64_t repeat_last_block(log_index *index)
{
    if (grow_table(index) != 0)
        return 0;
    index->blocks[index->block_count] = index->blocks[index->block_count - 1];
    index->block_count++;
    if (index->first_live == index->next_seq)
        index->first_live += BLOCK_ENTRIES;
    index->next_seq += BLOCK_ENTRIES;
    return BLOCK_ENTRIES;
}

int log_index_push_holes(log_index *index, uint64_t count, uint64_t ts)
{
    const log_entry hole = {.ts = ts, .flags = ENTRY_DEAD};
    uint64_t pushed = 0, added;
    if (index->base_seq == index->next_seq) {
        index->base_seq = index->next_seq = index->first_live = index->next_seq + count;
        if (ts > index->last_ts)
            index->last_ts = ts;
        return 0;
    }
    for (; pushed < count; pushed += added) {
        if (pushed >= BLOCK_ENTRIES && count - pushed >= BLOCK_ENTRIES &&
            log_index_slot(index, index->next_seq) == 0)
            added = repeat_last_block(index);
        else
            added = log_index_push(index, &hole) == 0;
        if (added == 0) {
            log_index_pop(index, pushed);
            return -1;
        }
    }
    return 0;
}

void log_index_pop(log_index *index, uint64_t count)
{
    uint64_t held = index->next_seq - index->base_seq;
    uint64_t end = index->next_seq - (count < held ? count : held);
    for (uint64_t seq = end; seq < index->next_seq; seq++)
        if (log_index_is_live(index, seq))
            mark_dead(index, seq);
    index->next_seq = end;
    if (index->first_live > end)
        index->first_live = end;
    if (end == index->base_seq) {
        log_index_free(index);
        return;
    }
    drop_back(index, (size_t)((end - 1 - index->blocks_seq) >> BLOCK_SHIFT) + 1);
}

void log_index_get(const log_index *index, uint64_t seq, log_entry *out)
{
    const log_block *block = log_index_block(index, seq);
    size_t slot = log_index_slot(index, seq);
    out->ts = block->ts[slot];
    out->tag_prev = block->tag_prev[slot];
    out->source = block->source[slot];
    out->offset = block->offset[slot];
    out->size = block->size[slot];
    out->payload = block->payload[slot];
    out->flags = block->flags[slot];
}

void log_index_sizes(const log_index *index, uint64_t first_seq, uint64_t count, uint32_t *out)
{
    while (count > 0) {
        size_t slot = log_index_slot(index, first_seq);
        size_t run = BLOCK_ENTRIES - slot < count ? BLOCK_ENTRIES - slot : (size_t)count;
        memcpy(out, log_index_block(index, first_seq)->size + slot, run * sizeof(*out));
        out += run;
        first_seq += run;
        count -= run;
    }
}

void log_index_set_place(log_index *index, uint64_t seq, uint32_t source, uint32_t offset, uint32_t size)
{
    log_block *block = log_index_block(index, seq);
    size_t slot = log_index_slot(index, seq);
    if (size == 0 && block->size[slot] == 0)
        return; /* a hole, perhaps in a block that stands for many */
    block->source[slot] = source;
    block->offset[slot] = offset;
    block->size[slot] = size;
    block->flags[slot] &= (uint8_t)~ENTRY_IN_LOG;
}

void log_index_set_payload(log_index *index, uint64_t seq, uint32_t payload)
{
    log_block *block = log_index_block(index, seq);
    size_t slot = log_index_slot(index, seq);
    if (!(block->flags[slot] & ENTRY_DEAD))
        add_live(index, block, 0, (uint64_t)payload - block->payload[slot]);
    block->payload[slot] = payload;
    block->flags[slot] &= (uint8_t)~ENTRY_PAYLOAD_UNKNOWN;
}

uint64_t log_index_next_live(const log_index *index, uint64_t from, uint64_t end)
{
    if (end > index->next_seq)
        end = index->next_seq;
    if (from < index->first_live)
        from = index->first_live;
    while (from < end) {
        const log_block *block = log_index_block(index, from);
        size_t slot = log_index_slot(index, from);
        uint64_t left = end - from;
        size_t stop = left < BLOCK_ENTRIES - slot ? slot + (size_t)left : BLOCK_ENTRIES;
        for (size_t at = block->live_count == 0 ? stop : slot; at < stop; at++) {
            uint64_t word;
            /* Eight dead ones at a time: a front that was deleted out of order can be long. */
            while (stop - at >= sizeof word &&
                   (memcpy(&word, block->flags + at, sizeof word), (word & DEAD_WORD) == DEAD_WORD))
                at += sizeof word;
            if (at == stop)
                break;
            if (!(block->flags[at] & ENTRY_DEAD))
                return from + (at - slot);
        }
        from += stop - slot;
    }
    return end;
}

/* first_live died: the next live one takes its place. */
static void move_first_live(log_index *index)
{
    if (index->live_count == 0)
        index->first_live = index->next_seq;
    else
        index->first_live = log_index_next_live(index, index->first_live, index->next_seq);
}

void log_index_kill(log_index *index, const uint64_t *seqs, size_t length, int only_counts, uint64_t *count,
                    uint64_t *bytes)
{
    uint64_t killed = 0, size = 0, first = index->first_live, end = index->next_seq;
    for (size_t place = 0; place < length; place++) {
        if (seqs[place] < first || seqs[place] >= end)
            continue;
        log_block *block = log_index_block(index, seqs[place]);
        size_t slot = log_index_slot(index, seqs[place]);
        uint64_t live = !(block->flags[slot] & ENTRY_DEAD), payload = live * block->payload[slot];
        killed += live, size += payload;
        if (only_counts)
            continue;
        block->flags[slot] |= ENTRY_DEAD;
        block->live_count -= live, block->live_bytes -= payload;
    }
    *count += killed, *bytes += size;
    if (only_counts)
        return;
    index->live_count -= killed, index->live_bytes -= size;
    move_first_live(index);
}

void log_index_kill_range(log_index *index, uint64_t from, uint64_t to, uint64_t *count, uint64_t *bytes)
{
    if (to > index->next_seq)
        to = index->next_seq;
    uint64_t before_count = index->live_count, before_bytes = index->live_bytes;
    uint64_t first = index->first_live, seq = log_index_next_live(index, from, to);
    while (seq < to) {
        uint64_t end = seq - log_index_slot(index, seq) + BLOCK_ENTRIES;
        if (from <= first && end <= to) { /* what comes before `seq` in its block is dead */
            log_block *block = log_index_block(index, seq);
            for (size_t slot = 0; slot < BLOCK_ENTRIES; slot++)
                block->flags[slot] |= ENTRY_DEAD;
            add_live(index, block, -block->live_count, -block->live_bytes);
        } else {
            mark_dead(index, seq);
        }
        seq = log_index_next_live(index, seq + 1, to);
    }
    *count += before_count - index->live_count;
    *bytes += before_bytes - index->live_bytes;
    if (from <= first && first < to)
        index->first_live = to;
    move_first_live(index);
}

uint64_t log_index_plan_caps(const log_index *index, uint64_t from, uint64_t max_records, uint64_t max_bytes,
                             uint64_t *count, uint64_t *bytes)
{
    uint64_t floor = from;
    while ((max_records > 0 && *count > max_records) || (max_bytes > 0 && *bytes > max_bytes)) {
        uint64_t seq = log_index_next_live(index, floor, index->next_seq);
        if (seq >= index->next_seq)
            break;
        uint32_t payload = log_index_block(index, seq)->payload[log_index_slot(index, seq)];
        *count -= *count > 0;
        *bytes -= *bytes < payload ? *bytes : payload;
        floor = seq + 1;
    }
    return floor;
}

uint64_t log_index_find_ts(const log_index *index, uint64_t cutoff, uint64_t end)
{
    if (end > index->next_seq)
        end = index->next_seq;
    uint64_t low = index->first_live, high = end;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (log_index_block(index, middle)->ts[log_index_slot(index, middle)] < cutoff)
            low = middle + 1;
        else
            high = middle;
    }
    return high;
}

/* A topic that keeps its last few records must not hold a whole block for them. Without memory the
 * block just stays. */
static void shrink_only_block(log_index *index)
{
    uint64_t held = index->next_seq - index->base_seq;
    size_t capacity = BLOCK_FIRST_ENTRIES;
    if (index->block_count != 1 || index->blocks[0]->capacity <= BLOCK_FIRST_ENTRIES)
        return;
    if (held * SPARSE >= index->blocks[0]->capacity)
        return;
    while (capacity < 2 * held)
        capacity *= 2;
    if (replace_last_block(index, capacity, log_index_slot(index, index->base_seq), (size_t)held) == 0)
        index->blocks_seq = index->base_seq;
}

void log_index_drop_front(log_index *index, uint64_t seq)
{
    uint64_t reach = index->blocks_seq + ((uint64_t)DROPPED_BLOCKS << BLOCK_SHIFT);
    if (seq > index->first_live)
        seq = index->first_live;
    if (seq > reach)
        seq = reach;
    if (seq <= index->base_seq)
        return;
    size_t whole = (size_t)((seq - index->blocks_seq) >> BLOCK_SHIFT);
    index->base_seq = seq;
    if (seq == index->next_seq) {
        log_index_free(index);
        return;
    }
    for (size_t place = 0; place < whole; place++)
        if (!is_repeated(index, place + 1))
            block_free(index, index->blocks[place]);
    index->block_count -= whole;
    memmove(index->blocks, index->blocks + whole, index->block_count * sizeof *index->blocks);
    index->blocks_seq += (uint64_t)whole << BLOCK_SHIFT;
    shrink_only_block(index);
}
