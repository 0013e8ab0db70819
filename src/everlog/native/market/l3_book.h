/* An order book of single orders: applies order-by-order events, one or a whole array.
 *
 * Owns the orders, the queues and the scales of one market; knows neither queues of messages nor files.
 * Trades are what the venue says, never simulated: the order of arrival is kept, not used for matching. */
#ifndef EVERLOG_L3_BOOK_H
#define EVERLOG_L3_BOOK_H

#include "book_core.h"
#include "l3_orders.h"

enum {
    L3_ADD = 1,
    L3_CANCEL = 2,
    L3_MODIFY = 3,
    L3_TRADE = 4,
    L3_RESET = 5,
    L3_HEARTBEAT = 6,
};
enum { L3_PRICE_IS_MARKET = 1 };
enum { UNKNOWN_FAIL = 0, UNKNOWN_SKIP = 1 };

/* Read where they lie: in a queue at multiples of 64, in an array wherever its owner put them. */
typedef struct __attribute__((packed, may_alias)) {
    uint8_t event_type, side, ord_type, exec_type, price_scale, size_scale, reserved0[2];
    uint32_t flags, reserved1;
    uint64_t order_id, bid_order_id, ask_order_id, price, quantity, amount;
} l3_event;

typedef struct __attribute__((packed, may_alias)) {
    book_header header;
    l3_event event;
} l3_record;

typedef struct { /* an order as it is shown and saved */
    uint64_t id, price, quantity, last_ts_ns;
    uint32_t flags;
    uint8_t side, ord_type, reserved[2];
} l3_order_row;

_Static_assert(sizeof(l3_event) == 64, "L3Event");
_Static_assert(sizeof(l3_record) == 128, "BookEvent with L3Event");
_Static_assert(sizeof(l3_order_row) == 40, "row of an order");

typedef struct {
    book_core core; /* the value of a level is the number of its queue, plus 1 */
    l3_orders orders;
    uint8_t unknown_policy, has_seq;
    uint64_t unknown_orders; /* events that named an order that is not there */
} l3_book;

int l3_init(l3_book *book, size_t max_orders, size_t max_levels, uint64_t max_window, int gap_policy,
            int unknown_policy);
void l3_free(l3_book *book);
/* Applies those from `from`, a multiple of 8, to `end` of payloads of 128 bytes, `stride` bytes from one to the
 * next; returns where it stopped. */
size_t l3_apply_records(l3_book *book, const uint8_t *records, ptrdiff_t stride, size_t from, size_t end,
                        book_output *output, int *error);
/* Puts one order back as it was saved; orders of one price in order of arrival. */
int l3_restore(l3_book *book, const l3_order_row *row);
/* All orders: bids from the best, then asks, each price in order of arrival, then those off the ladder. */
int l3_rows(const l3_book *book, l3_order_row *rows);
/* For the table of what L3 books do. */
int l3_rescale(book_core *core, uint64_t price_factor, uint64_t size_factor);
size_t l3_depth(const book_core *core, unsigned side, book_level *levels, uint32_t *orders, size_t wanted,
                uint64_t *scratch);
/* The queue of a price (side 0 = bids, 1 = asks), NULL if there is none. */
const l3_queue *l3_queue_at(const l3_book *book, unsigned side, uint64_t price);

/* What is ahead of an order (`where` of its entry); both numbers UINT64_MAX if it stands on no level. */
book_queue_place l3_place(l3_book *book, uint64_t where);

HOT ladder *levels_of(l3_book *book, unsigned side) /* of the protocol: 1 buy, 2 sell */
{
    return &book->core.sides[side - 1];
}

HOT uint64_t key_of(uint64_t price, unsigned side)
{
    return price ^ side_mask(side - 1);
}

static inline book_top l3_top(const l3_book *book)
{
    const l3_queue *queues = book->orders.queues;
    uint64_t bid = book->core.sides[0].best_value, ask = book->core.sides[1].best_value;
    book_top top = {0, 0, 0, 0};
    if (bid != 0) {
        top.bid_price = queues[bid - 1].price;
        top.bid_size = queues[bid - 1].total;
    }
    if (ask != 0) {
        top.ask_price = queues[ask - 1].price;
        top.ask_size = queues[ask - 1].total;
    }
    return top;
}

#endif
