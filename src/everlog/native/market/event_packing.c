/* Two passes over the levels of a group: what it needs, then every level to its place. */
#include "event_packing.h"

#include "book_core.h"

static inline uint64_t at_scale(uint64_t value, int decimals, int scale)
{
    uint64_t result;
    if (decimals == scale)
        return value;
    if (decimals > scale)
        return value / TENS[decimals - scale];
    return __builtin_mul_overflow(value, TENS[scale - decimals], &result) ? UINT64_MAX : result;
}

static inline uint8_t larger(uint8_t a, uint8_t b)
{
    return a > b ? a : b;
}

void packing_place(packing_levels levels, const int64_t *starts, int64_t groups, int price_scale,
                   int size_scale, packing_groups out)
{
    for (int64_t group = 0; group < groups; group++) {
        int64_t start = starts[group];
        int64_t stop = group + 1 < groups ? starts[group + 1] : levels.count;
        uint8_t price_decimals = 0, size_decimals = 0;
        int64_t bids = 0;
        for (int64_t i = start; i < stop; i++) {
            price_decimals = larger(price_decimals, levels.price_decimals[i]);
            size_decimals = larger(size_decimals, levels.size_decimals[i]);
            bids += levels.sides[i] == PACKING_BUY;
        }
        if (price_scale >= 0)
            price_decimals = (uint8_t)price_scale;
        if (size_scale >= 0)
            size_decimals = (uint8_t)size_scale;
        int64_t next[2] = {start + bids, start}; /* of asks, of bids */
        for (int64_t i = start; i < stop; i++) {
            uint64_t *place = out.placed + 2 * next[levels.sides[i] == PACKING_BUY]++;
            place[0] = at_scale(levels.prices[i], levels.price_decimals[i], price_decimals);
            place[1] = at_scale(levels.sizes[i], levels.size_decimals[i], size_decimals);
        }
        out.bids[group] = bids;
        out.price_scales[group] = price_decimals;
        out.size_scales[group] = size_decimals;
    }
}

void packing_write(const uint8_t *headers, uint64_t header_bytes, const uint8_t *bodies,
                   uint64_t body_bytes, const uint8_t *levels, uint64_t level_bytes,
                   const int64_t *counts, int64_t events, uint64_t length_at, uint8_t *out)
{
    for (int64_t event = 0; event < events; event++) {
        uint64_t rest = (uint64_t)counts[event] * level_bytes;
        uint32_t length = (uint32_t)(header_bytes + body_bytes + rest);
        memcpy(out, headers, header_bytes);
        memcpy(out + length_at, &length, sizeof length);
        memcpy(out + header_bytes, bodies, body_bytes);
        memcpy(out + header_bytes + body_bytes, levels, rest);
        headers += header_bytes;
        bodies += body_bytes;
        levels += rest;
        out += header_bytes + body_bytes + rest;
    }
}
