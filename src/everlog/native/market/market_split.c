/* Sorting book events by market; see market_split.h. */
#include "market_split.h"

#define EMPTY UINT32_MAX
#define HEADERS_AHEAD 16u /* events ahead of which a header is asked for */

/* Returns the number of a key, which is given one if it is new. */
static inline uint32_t number_of(uint64_t key, uint32_t *table, size_t table_size, uint64_t *keys,
                                 size_t *count)
{
    size_t place = (key * 0x9E3779B97F4A7C15u) >> 32 & (table_size - 1);
    while (table[place] != EMPTY && keys[table[place]] != key)
        place = (place + 1) & (table_size - 1);
    if (table[place] == EMPTY) {
        keys[*count] = key;
        table[place] = (uint32_t)(*count)++;
    }
    return table[place];
}

/* Looks at the number of an order-by-order event; `channel` is the one of the event before, if any. */
static void check_number(market_split *split, const book_header *header, size_t event, uint32_t *channel)
{
    uint64_t key = (uint64_t)header->venue_id << 32 | header->stream_id;
    size_t known = split->channel_count;
    if (*channel == EMPTY || split->channels[*channel] != key)
        *channel = number_of(key, split->tables + split->table_size, split->table_size, split->channels,
                             &split->channel_count);
    if (split->channel_count != known) {
        split->first_events[*channel] = event;
        split->firsts[*channel] = header->seq;
    } else if (header->seq != split->lasts[*channel] + 1) {
        split->gaps[split->gap_count++] =
            (channel_gap){event, *channel, split->lasts[*channel], header->seq};
    }
    split->lasts[*channel] = header->seq;
}

static void sort_by_market(market_split *split, size_t count)
{
    uint64_t before = 0;
    for (size_t market = 0; market < split->market_count; market++) {
        uint64_t own = split->ends[market];
        split->ends[market] = before;
        before += own;
    }
    for (size_t event = 0; event < count; event++)
        split->order[split->ends[split->slots[event]]++] = event;
}

size_t split_markets(market_split *split, const uint8_t *buffer, size_t buffer_len, const uint64_t *offsets,
                     const uint64_t *lengths, size_t count)
{
    uint32_t market = EMPTY, channel = EMPTY;
    memset(split->tables, 0xFF, 2 * split->table_size * sizeof *split->tables);
    split->market_count = split->channel_count = split->gap_count = 0;
    for (size_t event = 0; event < count; event++) {
        book_header header;
        if (offsets[event] > buffer_len || lengths[event] > buffer_len - offsets[event])
            return event;
        if (event + HEADERS_AHEAD < count && offsets[event + HEADERS_AHEAD] < buffer_len)
            __builtin_prefetch(buffer + offsets[event + HEADERS_AHEAD]);
        if (read_header(buffer + offsets[event], lengths[event], &header) != BOOK_OK ||
            header.book_mode > MODE_L3 || header.event_type < EVENT_SNAPSHOT ||
            header.event_type > EVENT_HEARTBEAT)
            return event;
        uint64_t key = (uint64_t)header.venue_id << 32 | header.market_id;
        if (market == EMPTY || split->keys[market] != key) {
            size_t known = split->market_count;
            market = number_of(key, split->tables, split->table_size, split->keys, &split->market_count);
            if (split->market_count != known)
                split->ends[market] = 0;
        }
        if (split->market_count + split->channel_count > split->table_size / 2)
            return SPLIT_TABLE_FULL;
        split->slots[event] = market;
        split->ends[market]++;
        if (header.book_mode == MODE_L3 && header.seq != 0)
            check_number(split, &header, event, &channel);
    }
    sort_by_market(split, count);
    return count;
}
