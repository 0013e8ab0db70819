/* Book events of many markets, sorted by market in one pass over their headers.
 *
 * Owns nothing between two calls: memory and the numbers that channels have seen are the caller's. */
#ifndef EVERLOG_MARKET_SPLIT_H
#define EVERLOG_MARKET_SPLIT_H

#include "book_core.h"

typedef struct { /* the number of an event is not one more than the one before it on its channel */
    uint64_t event, channel, seen, found;
} channel_gap;

typedef struct { /* every array has room for as many as there are events */
    uint32_t *slots;    /* which market each event is of */
    uint64_t *keys;     /* venue_id << 32 | market_id of each market */
    uint64_t *ends;     /* how many events each market has; after the sort, where they end */
    uint64_t *order;    /* events, those of market 0 first */
    uint64_t *channels; /* venue_id << 32 | stream_id of each channel with numbers */
    uint64_t *first_events, *firsts, *lasts; /* of each channel: its first numbered event, its numbers */
    channel_gap *gaps;
    uint32_t *tables; /* twice `table_size` slots, by hash of the key: markets, then channels */
    size_t table_size; /* a power of two */
    size_t market_count, channel_count, gap_count;
} market_split;

#define SPLIT_TABLE_FULL SIZE_MAX

/* Sorts the events; returns the first whose header breaks the protocol, `count` if none does, or
 * SPLIT_TABLE_FULL if a table of this size does not hold the markets. Twice the number of events is enough. */
size_t split_markets(market_split *split, const uint8_t *buffer, size_t buffer_len, const uint64_t *offsets,
                     const uint64_t *lengths, size_t count);

#endif
