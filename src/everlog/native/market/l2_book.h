/* An order book of price levels: applies book events, one or a whole array.
 *
 * Owns the levels, the scales and the update ids of one market; knows neither queues nor files. Prices and
 * sizes are integers at the book's scales, which only rise: an event of a smaller scale is multiplied on the
 * way in, an event of a larger one multiplies what is stored. So no digit is lost. */
#ifndef EVERLOG_L2_BOOK_H
#define EVERLOG_L2_BOOK_H

#include "book_core.h"

typedef struct {
    uint64_t first_update_id, last_update_id, previous_update_id;
    uint8_t price_scale, size_scale;
    uint16_t flags, bid_count, ask_count;
} l2_diff;

typedef struct {
    uint8_t price_scale, size_scale, reserved[2];
    uint32_t bid_count, ask_count;
} l2_snapshot;

typedef struct { /* one level that changes; side 1 = buy, 2 = sell */
    uint64_t price, size;
    uint8_t side, reserved[7];
} l2_update;

typedef struct {
    book_core core; /* the value of a level is its size */
    uint8_t has_update_id;
    uint8_t after_snapshot; /* no diff applied since */
    uint64_t last_update_id;
} l2_book;

_Static_assert(sizeof(l2_diff) == 32, "L2Diff");
_Static_assert(sizeof(l2_snapshot) == 12, "L2Snapshot");
_Static_assert(sizeof(l2_update) == 24, "L2 update");

void l2_init(l2_book *book, size_t max_levels, uint64_t max_window, int gap_policy);
/* Applies single levels at the book's own scales, `stride` bytes from one to the next. */
size_t l2_apply_updates(l2_book *book, const uint8_t *updates, ptrdiff_t stride, size_t count,
                        book_output *output, int *error);

static inline int l2_set(l2_book *book, unsigned side, uint64_t price, uint64_t size)
{
    return ladder_set(&book->core.sides[side], price ^ side_mask(side), size);
}

static inline book_top l2_top(const l2_book *book)
{
    const ladder *bids = &book->core.sides[0], *asks = &book->core.sides[1];
    uint64_t ask_price = asks->best_value ? asks->best_key : 0;
    return (book_top){~bids->best_key, bids->best_value, ask_price, asks->best_value};
}

#endif
