/* Events of varying length laid one behind the other, and price levels put in their order within them.
 * Knows no file, no queue and no venue; every size is given by the caller. */
#ifndef EVERLOG_EVENT_PACKING_H
#define EVERLOG_EVENT_PACKING_H

#include <stdint.h>

#define PACKING_BUY 1

/* Price levels as columns; a level is a bid if its side is PACKING_BUY. */
typedef struct {
    const uint64_t *prices;
    const uint8_t *price_decimals;
    const uint64_t *sizes;
    const uint8_t *size_decimals;
    const uint8_t *sides;
    int64_t count;
} packing_levels;

/* What each group has in the end. */
typedef struct {
    uint64_t *placed; /* price and size of each level, bids of a group before its asks */
    int64_t *bids;
    uint8_t *price_scales;
    uint8_t *size_scales;
} packing_groups;

/* Group g has the levels from starts[g] to starts[g + 1]. A scale below 0 is, for each group, the largest
 * number of decimals in it; a given one cuts further digits off. What leaves 64 bits becomes 2^64 - 1. */
void packing_place(packing_levels levels, const int64_t *starts, int64_t groups, int price_scale,
                   int size_scale, packing_groups out);

/* Write header, body and levels of each event, and its length into the header at `length_at` (u32). */
void packing_write(const uint8_t *headers, uint64_t header_bytes, const uint8_t *bodies,
                   uint64_t body_bytes, const uint8_t *levels, uint64_t level_bytes,
                   const int64_t *counts, int64_t events, uint64_t length_at, uint8_t *out);

#endif
