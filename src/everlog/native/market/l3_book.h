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
enum { L3_PRICE_IS_MARKET = 1, L3_NO_PRICE = 64 };
enum { UNKNOWN_FAIL = 0, UNKNOWN_SKIP = 1 };

/* Read where they lie: in a queue at multiples of 64, in an array wherever its owner put them. */
typedef struct __attribute__((packed, may_alias)) {
    uint8_t event_type, side, ord_type, exec_type, price_scale, size_scale, reserved0[2];
    uint32_t flags, reserved1;
    uint64_t order_id, bid_order_id, ask_order_id;
    int64_t price;
    uint64_t quantity, amount;
} l3_event;

typedef struct __attribute__((packed, may_alias)) {
    book_header header;
    l3_event event;
} l3_record;

typedef struct { /* an order as it is shown and saved */
    uint64_t id;
    int64_t price;
    uint64_t quantity, last_ts_ns;
    uint32_t flags;
    uint8_t side, ord_type, no_price, reserved;
} l3_order_row;

_Static_assert(sizeof(l3_event) == 64, "L3Event");
_Static_assert(sizeof(l3_record) == 128, "BookEvent with L3Event");
_Static_assert(sizeof(l3_order_row) == 40, "row of an order");

typedef struct {
    book_core core; /* the value of a level is the number of its queue, plus 1 */
    l3_orders orders;
    uint8_t unknown_policy, has_seq;
    uint64_t losing_venues;  /* bit n: at venue n a larger order goes to the back; bit 63: at others */
    uint64_t unknown_orders; /* events that named an order that is not there */
} l3_book;

HOT ladder *levels_of(l3_book *book, unsigned side) /* of the protocol: 1 buy, 2 sell */
{
    return &book->core.sides[side - 1];
}

HOT uint64_t key_of(int64_t price, unsigned side)
{
    return (uint64_t)price ^ side_mask(side - 1);
}

static inline book_top l3_top(const book_core *core)
{
    const l3_queue *queues = ((const l3_book *)core)->orders.queues;
    uint64_t bid = core->sides[0].best_value, ask = core->sides[1].best_value;
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

/* --- Scales ------------------------------------------------------------------------------------------- */

static int check_rescaled(const l3_book *book, uint64_t price_factor, uint64_t size_factor)
{
    for (uint32_t number = 0; number < book->orders.queues_used; number++) {
        const l3_queue *queue = &book->orders.queues[number];
        uint64_t product;
        int64_t price;
        if (queue->count != 0 && (__builtin_mul_overflow(queue->price, price_factor, &price) ||
                                  __builtin_mul_overflow(queue->total, size_factor, &product)))
            return BOOK_SCALE_OVERFLOW;
    }
    return BOOK_OK;
}

static int l3_rescale(book_core *core, uint64_t price_factor, uint64_t size_factor)
{
    l3_book *book = (l3_book *)core;
    int status = check_rescaled(book, price_factor, size_factor);
    for (unsigned side = 0; side < 2 && status == BOOK_OK; side++) /* whose values are numbers of queues */
        status = core_rescale_side(core, side, price_factor, 1);
    for (uint32_t number = 0; number < book->orders.queues_used && status == BOOK_OK; number++) {
        if (book->orders.queues[number].count != 0)
            queue_rescale(&book->orders.queues[number], price_factor, size_factor);
    }
    return status;
}

/* --- Levels and orders -------------------------------------------------------------------------------- */

static size_t l3_depth(const book_core *core, unsigned side, book_level *levels, uint32_t *orders,
                       size_t wanted, uint64_t *scratch)
{
    const l3_queue *queues = ((const l3_book *)core)->orders.queues;
    size_t found = ladder_first(&core->sides[side], scratch, scratch + wanted, wanted);
    for (size_t at = 0; at < found; at++) {
        const l3_queue *queue = &queues[scratch[wanted + at] - 1];
        levels[at] = (book_level){queue->price, queue->total};
        if (orders != NULL)
            orders[at] = queue->count;
    }
    return found;
}

/* Writes the orders of a queue in order of arrival; `positions` has room for all of them. */
static size_t write_rows(const l3_queue *queue, uint32_t *positions, l3_order_row *rows)
{
    size_t count = queue_positions(queue, positions);
    for (size_t at = 0; at < count; at++) {
        const l3_detail *detail = &queue_details(queue)[positions[at]];
        rows[at] = (l3_order_row){.id = detail->id,
                                  .price = queue->price,
                                  .quantity = queue->quantities[positions[at]],
                                  .last_ts_ns = detail->last_ts_ns,
                                  .flags = detail->flags,
                                  .side = queue->side,
                                  .ord_type = detail->ord_type,
                                  .no_price = queue->no_price};
    }
    return count;
}

/* All orders: bids from the best, then asks, each price in order of arrival, then those off the ladder. */
static int l3_rows(const l3_book *book, l3_order_row *rows)
{
    const l3_orders *orders = &book->orders;
    size_t bids = book->core.sides[0].count, asks = book->core.sides[1].count;
    size_t most = bids > asks ? bids : asks;
    uint32_t *positions = malloc((orders->count + 1) * sizeof *positions);
    uint64_t *keys = malloc((2 * most + 1) * sizeof *keys), *numbers = keys + most;
    if (positions == NULL || keys == NULL) {
        free(positions);
        free(keys);
        return BOOK_NO_MEMORY;
    }
    for (unsigned side = 0; side < 2; side++) {
        size_t levels = ladder_first(&book->core.sides[side], keys, numbers, book->core.sides[side].count);
        for (size_t at = 0; at < levels; at++)
            rows += write_rows(&orders->queues[numbers[at] - 1], positions, rows);
    }
    for (uint32_t number = 0; number < orders->queues_used; number++) {
        if (orders->queues[number].count != 0 && !orders->queues[number].on_ladder)
            rows += write_rows(&orders->queues[number], positions, rows);
    }
    free(positions);
    free(keys);
    return BOOK_OK;
}

static void l3_clear(book_core *core)
{
    core_clear(core);
    orders_clear(&((l3_book *)core)->orders);
}

static void l3_free(l3_book *book)
{
    orders_free(&book->orders);
    core_free(&book->core);
}

/* --- Queues ------------------------------------------------------------------------------------------- */

typedef struct { /* an order that is about to be put somewhere */
    int64_t price;
    uint64_t quantity;
    uint8_t side, no_price; /* side of the protocol */
    l3_detail detail;
} new_order;

HOT int belongs_on_ladder(const new_order *order)
{
    return !order->no_price && order->quantity != 0 && (order->side == 1 || order->side == 2) &&
           !(order->detail.flags & L3_PRICE_IS_MARKET);
}

/* Begins the queue of a price, or the one of an order off the ladder. */
static __attribute__((noinline)) int begin_queue(l3_book *book, const new_order *order, int on_ladder,
                                                 uint64_t *where)
{
    uint32_t number = queue_take(&book->orders, order->price, order->side);
    if (number == NO_QUEUE)
        return BOOK_NO_MEMORY;
    int status = BOOK_OK;
    if (on_ladder)
        status =
            ladder_set(levels_of(book, order->side), key_of(order->price, order->side), (uint64_t)number + 1);
    if (status != BOOK_OK) {
        queue_give_back(&book->orders, number);
        return status;
    }
    l3_queue *queue = &book->orders.queues[number];
    queue->on_ladder = (uint8_t)on_ladder;
    queue->no_price = order->no_price;
    *where = where_of(number, queue_append(&book->orders, queue, order->quantity, &order->detail));
    return BOOK_OK;
}

/* Puts an order at the back of its price. */
HOT int enqueue(l3_book *book, const new_order *order, uint64_t *where)
{
    uint64_t total, value = ladder_get(levels_of(book, order->side), key_of(order->price, order->side));
    if (__builtin_expect(value == 0, 0)) {
        new_order first = *order; /* a copy, so that the order itself need not be in memory */
        return begin_queue(book, &first, 1, where);
    }
    l3_queue *queue = &book->orders.queues[value - 1];
    if (__builtin_add_overflow(queue->total, order->quantity, &total))
        return BOOK_OVERFLOW;
    if (__builtin_expect(queue->tail >> queue->shift != 0, 0)) {
        int status = queue_make_room(&book->orders, queue);
        if (status != BOOK_OK)
            return status;
    }
    uint32_t position = queue_append(&book->orders, queue, order->quantity, &order->detail);
    *where = where_of((uint32_t)value - 1, position);
    return BOOK_OK;
}

/* Takes the last order of a queue, and the queue off the ladder. */
static __attribute__((noinline)) void end_queue(l3_book *book, uint32_t number)
{
    l3_queue *queue = &book->orders.queues[number];
    if (queue->on_ladder)
        ladder_set(levels_of(book, queue->side), key_of(queue->price, queue->side), 0);
    queue_give_back(&book->orders, number);
}

HOT void dequeue(l3_book *book, uint64_t where)
{
    l3_queue *queue = &book->orders.queues[queue_of(where)];
    if (__builtin_expect(queue->count == 1, 0))
        end_queue(book, queue_of(where));
    else
        queue_remove(&book->orders, queue, position_of(where));
}

/* Takes up to `quantity` (0 = all) off the order whose entry is at `place`; it goes when nothing is left.
 * Returns how much was taken. */
HOT uint64_t reduce(l3_book *book, uint64_t place, uint64_t quantity, uint64_t ts_ns)
{
    uint64_t where = book->orders.table[place].where;
    l3_queue *queue = &book->orders.queues[queue_of(where)];
    uint64_t had = queue->quantities[position_of(where)];
    if (quantity == 0 || quantity >= had) {
        dequeue(book, where);
        orders_remove(&book->orders, place);
        return had;
    }
    queue_details(queue)[position_of(where)].last_ts_ns = ts_ns;
    queue_change(&book->orders, queue, position_of(where), had - quantity);
    return quantity;
}

/* --- Events ------------------------------------------------------------------------------------------- */

/* One event on its way into the book. */
typedef struct {
    const l3_event *event;
    int64_t price; /* of the event, at the book's scales, as is the quantity */
    uint64_t quantity;
    uint64_t ts_ns;
    uint64_t index;
    uint32_t hash; /* of the event's order_id */
    uint16_t venue;
    book_output *output;     /* NULL: nothing wanted */
    book_queue_place *place; /* NULL: not wanted */
    uint8_t no_price;        /* a modify leaves the order's; an added order has none */
    uint8_t status;
} l3_step;

/* Brings the event's price and quantity to the book's scales, and the book to the event's where it must. */
static __attribute__((noinline)) int l3_adopt_scales(l3_book *book, l3_step *step)
{
    const l3_event *event = step->event;
    const uint8_t *scales = book->core.scales;
    int status =
        core_adopt_scales(&book->core, event->price_scale, event->size_scale, step->index, step->output);
    if (status != BOOK_OK)
        return status;
    if (__builtin_mul_overflow(event->price, TENS[scales[0] - event->price_scale], &step->price) ||
        __builtin_mul_overflow(event->quantity, TENS[scales[1] - event->size_scale], &step->quantity))
        return BOOK_SCALE_OVERFLOW;
    return BOOK_OK;
}

HOT void show_place(const l3_book *book, uint64_t where, book_queue_place *place)
{
    const l3_queue *queue = &book->orders.queues[queue_of(where)];
    if (!queue->on_ladder)
        return;
    sum_pair ahead = queue_ahead(queue, position_of(where));
    *place = (book_queue_place){ahead[1], ahead[0]};
}

/* What is ahead of an order (`where` of its entry); both numbers UINT64_MAX if it stands on no level. */
static book_queue_place l3_place(l3_book *book, uint64_t where)
{
    orders_keep_sums(&book->orders);
    book_queue_place place = {UINT64_MAX, UINT64_MAX};
    show_place(book, where, &place);
    return place;
}

/* An id that is in use already: an error, or the new order stands for the old one. */
static __attribute__((noinline)) int replace_order(l3_book *book, uint64_t id, uint64_t *place)
{
    if (book->unknown_policy == UNKNOWN_FAIL)
        return BOOK_DUPLICATE_ORDER;
    reduce(book, *place, 0, 0);
    *place = orders_locate(&book->orders, id, hash_of_id(id));
    return BOOK_OK;
}

HOT int add_order(l3_book *book, l3_step *step)
{
    const l3_event *event = step->event;
    uint64_t id = event->order_id, where = 0;
    int result = BOOK_OK;
    if (id == 0)
        return BOOK_ZERO_ID;
    uint64_t place = orders_locate(&book->orders, id, step->hash);
    if (__builtin_expect(book->orders.table[place].id != 0, 0)) {
        step->status = EVENT_UNKNOWN_ORDER;
        result = replace_order(book, id, &place);
    }
    if (__builtin_expect(book->orders.count >= book->orders.room, 0) && result == BOOK_OK)
        result = orders_make_room(&book->orders, id, &place);
    if (result != BOOK_OK)
        return result;
    new_order order = {step->price,
                       step->quantity,
                       event->side,
                       step->no_price,
                       {id, step->ts_ns, event->flags, event->ord_type, {0}}};
    int on_ladder = belongs_on_ladder(&order);
    if (__builtin_expect(on_ladder, 1)) {
        result = enqueue(book, &order, &where);
    } else {
        new_order alone = order;
        result = begin_queue(book, &alone, 0, &where);
    }
    if (result != BOOK_OK)
        return result;
    book->orders.table[place].id = id;
    book->orders.table[place].where = where;
    book->orders.count++;
    if (step->place != NULL && on_ladder) { /* known without a search: all others of this price */
        const l3_queue *queue = &book->orders.queues[queue_of(where)];
        *step->place = (book_queue_place){queue->count - 1, queue->total - order.quantity};
    }
    return BOOK_OK;
}

/* An order that an event names and that is not there: the policy decides between error and status. */
HOT int miss_order(l3_book *book, l3_step *step)
{
    book->unknown_orders++;
    step->status = EVENT_UNKNOWN_ORDER;
    return book->unknown_policy == UNKNOWN_FAIL ? BOOK_UNKNOWN_ORDER : BOOK_OK;
}

/* Takes the event's quantity off an order; says how much of it and from which side. */
HOT int reduce_order(l3_book *book, uint64_t id, uint32_t hash, l3_step *step, uint64_t *taken,
                     unsigned *side)
{
    uint64_t place = orders_locate(&book->orders, id, hash);
    if (__builtin_expect(book->orders.table[place].id == 0, 0))
        return miss_order(book, step);
    uint64_t where = book->orders.table[place].where;
    *side = book->orders.queues[queue_of(where)].side;
    if (step->place != NULL)
        show_place(book, where, step->place);
    *taken = reduce(book, place, step->quantity, step->ts_ns);
    return BOOK_OK;
}

/* A modify that takes the order to another queue, or off the ladder, or onto it. */
static __attribute__((noinline)) int move_order(l3_book *book, uint64_t place, const l3_step *step)
{
    uint64_t where = book->orders.table[place].where;
    const l3_queue *queue = &book->orders.queues[queue_of(where)];
    new_order order = {step->no_price ? queue->price : step->price,
                       step->quantity != 0 ? step->quantity : queue->quantities[position_of(where)],
                       queue->side != 0 ? queue->side : step->event->side, step->no_price & queue->no_price,
                       queue_details(queue)[position_of(where)]};
    order.detail.last_ts_ns = step->ts_ns;
    order.detail.flags = step->event->flags;
    dequeue(book, where);
    int on_ladder = belongs_on_ladder(&order), result = on_ladder ? enqueue(book, &order, &where) : BOOK_OK;
    /* What its price cannot take is kept off the ladder; without memory for that it is lost. */
    if ((!on_ladder || result != BOOK_OK) && begin_queue(book, &order, 0, &where) != BOOK_OK) {
        orders_remove(&book->orders, place);
        return BOOK_NO_MEMORY;
    }
    book->orders.table[place].where = where;
    return result;
}

/* Whether an order of the venue keeps its place in the queue with this quantity. */
HOT int keeps_place(const l3_book *book, uint16_t venue, uint64_t had, uint64_t quantity)
{
    return quantity <= had || !(book->losing_venues >> (venue < 63 ? venue : 63) & 1);
}

HOT int modify_order(l3_book *book, l3_step *step)
{
    uint64_t place = orders_locate(&book->orders, step->event->order_id, step->hash);
    if (__builtin_expect(book->orders.table[place].id == 0, 0))
        return miss_order(book, step);
    uint64_t where = book->orders.table[place].where;
    l3_queue *queue = &book->orders.queues[queue_of(where)];
    uint32_t position = position_of(where);
    uint64_t had = queue->quantities[position];
    int keeps_queue = step->no_price || step->price == queue->price;
    keeps_queue &= keeps_place(book, step->venue, had, step->quantity);
    if (queue->on_ladder && keeps_queue && !(step->event->flags & L3_PRICE_IS_MARKET)) {
        uint64_t total, quantity = step->quantity != 0 ? step->quantity : had;
        if (__builtin_add_overflow(queue->total - had, quantity, &total))
            return BOOK_OVERFLOW;
        if (step->place != NULL) /* before the change: it is the same after, but would wait for the stores */
            show_place(book, where, step->place);
        queue_details(queue)[position].last_ts_ns = step->ts_ns;
        queue_details(queue)[position].flags = step->event->flags;
        queue_change(&book->orders, queue, position, quantity);
        return BOOK_OK;
    }
    l3_step copy = *step; /* so that the step itself need not be in memory */
    int result = move_order(book, place, &copy);
    if (step->place != NULL && result == BOOK_OK)
        show_place(book, book->orders.table[place].where, step->place);
    return result;
}

/* A trade that names the orders of one side or both. */
static int trade_sides(l3_book *book, l3_step *step, report_row *trade)
{
    uint64_t bid = step->event->bid_order_id, ask = step->event->ask_order_id;
    unsigned side;
    int result = BOOK_OK;
    if (bid != 0)
        result = reduce_order(book, bid, hash_of_id(bid), step, &trade->first, &side);
    if (ask != 0 && result == BOOK_OK) {
        if (bid != 0)
            step->place = NULL; /* it shows the bid's */
        result = reduce_order(book, ask, hash_of_id(ask), step, &trade->second, &side);
    }
    return result;
}

/* A trade that names one order, by order_id, takes from it whichever side it is on. */
static int apply_trade(l3_book *book, l3_step *step)
{
    report_row trade = {step->index, 0, 0, (uint64_t)step->price, step->quantity};
    uint64_t taken = 0;
    unsigned side = 0;
    int result = BOOK_OK;
    if ((step->event->bid_order_id | step->event->ask_order_id) != 0) {
        result = trade_sides(book, step, &trade);
    } else if (step->event->order_id != 0) {
        result = reduce_order(book, step->event->order_id, step->hash, step, &taken, &side);
        *(side == 2 ? &trade.second : &trade.first) = taken;
    }
    if (result == BOOK_OK && step->output != NULL && step->output->want_trades)
        result = report_add(&step->output->trades, trade);
    return result;
}

/* Says in the status whether the event is to be skipped; an error only under GAP_PANIC. */
static inline int l3_check_gap(l3_book *book, uint64_t seq, int is_reset, uint16_t flags, l3_step *step)
{
    if (seq != 0) {
        uint64_t last = book->core.last_seq;
        int is_next = seq == last + 1 || ((flags & FLAG_RESETS) && seq <= last) || (flags & FLAG_SPARSE);
        int is_gap = book->has_seq && !is_next;
        if (__builtin_expect(is_gap, 0) && book->core.gap_policy != GAP_UNCHECKED) {
            int status = core_note_gap(&book->core, book->core.last_seq, seq, step->index, step->output);
            if (status != BOOK_OK)
                return status;
        }
        book->core.last_seq = seq;
        book->has_seq = 1;
    }
    if (is_reset)
        book->core.quarantined = 0;
    if (book->core.quarantined)
        step->status = EVENT_QUARANTINED;
    return BOOK_OK;
}

HOT int cancel_order(l3_book *book, l3_step *step)
{
    uint64_t taken, id = step->event->order_id;
    unsigned side;
    return id == 0 ? BOOK_OK : reduce_order(book, id, step->hash, step, &taken, &side);
}

static __attribute__((noinline)) int apply_rare(l3_book *book, l3_step *step)
{
    switch (step->event->event_type) {
    case L3_TRADE:
        return apply_trade(book, step);
    case L3_CANCEL:
        return cancel_order(book, step);
    case L3_RESET:
        l3_clear(&book->core);
        return BOOK_OK;
    case L3_HEARTBEAT:
        return BOOK_OK;
    default:
        return BOOK_BAD_TYPE;
    }
}

_Static_assert(L3_TRADE == L3_CANCEL + 2 && L3_CANCEL % 4 == 2, "they differ in bits that one mask covers");

/* A cancel or a trade. A trade that names one order is a cancel too: one branch less to guess. */
HOT int is_removal(const l3_event *event)
{
    int is_either = ((event->event_type - L3_CANCEL) & ~(L3_TRADE - L3_CANCEL)) == 0;
    return is_either & ((event->bid_order_id | event->ask_order_id) == 0);
}

HOT int dispatch(l3_book *book, l3_step *step)
{
    const l3_event *event = step->event;
    int is_reported = step->output != NULL && step->output->want_trades;
    if (!is_reported && is_removal(event))
        return cancel_order(book, step);
    if (event->event_type == L3_ADD)
        return add_order(book, step);
    if (event->event_type == L3_MODIFY)
        return modify_order(book, step);
    l3_step copy = *step; /* so that the step itself need not be in memory */
    int result = apply_rare(book, &copy);
    *step = copy;
    return result;
}

static int apply_event(l3_book *book, l3_step *step)
{
    int status = l3_adopt_scales(book, step);
    return status == BOOK_OK ? dispatch(book, step) : status;
}

static int check_record(const book_header *header, size_t length)
{
    if (length < sizeof *header)
        return BOOK_SHORT_RECORD;
    if (!IS_KNOWN(header->schema_version))
        return BOOK_BAD_VERSION;
    if (header->endianness != 0 || header->book_mode != MODE_L3)
        return BOOK_BAD_MODE;
    return header->record_len != length || length != sizeof(l3_record) ? BOOK_SHORT_RECORD : BOOK_OK;
}

static int l3_apply(book_core *core, const uint8_t *payload, size_t length, uint64_t index,
                    book_output *output, uint8_t *status)
{
    l3_book *book = (l3_book *)core;
    const l3_record *record = (const l3_record *)payload;
    const book_header *header = &record->header;
    l3_step step = {.event = &record->event, .index = index, .output = output};
    int result = check_record(header, length);
    if (result != BOOK_OK)
        return result;
    if (output != NULL && output->places != NULL) {
        orders_keep_sums(&book->orders);
        step.place = &output->places[index];
        *step.place = (book_queue_place){UINT64_MAX, UINT64_MAX};
    }
    step.ts_ns = header->exchange_ts_ns;
    step.hash = hash_of_id(record->event.order_id);
    step.venue = header->venue_id;
    int is_old = header->schema_version == OLDEST_VERSION;
    step.no_price = is_old ? record->event.price == 0 : (record->event.flags & L3_NO_PRICE) != 0;
    int begins_anew = (header->flags & FLAG_RESETS) != 0;
    int is_reset = begins_anew || header->event_type == EVENT_RESET || record->event.event_type == L3_RESET;
    result = l3_check_gap(book, header->seq, is_reset, header->flags, &step);
    if (result == BOOK_OK && step.status == EVENT_APPLIED) {
        if (begins_anew)
            l3_clear(core);
        if (__builtin_expect(header->event_type == EVENT_DIFF, 1))
            result = is_old && record->event.price < 0 ? BOOK_SCALE_OVERFLOW : apply_event(book, &step);
        else if (header->event_type == EVENT_RESET)
            l3_clear(core);
        else if (header->event_type != EVENT_HEARTBEAT)
            result = BOOK_BAD_TYPE;
        core_note_times(core, header);
    }
    *status = step.status;
    return result;
}

static const book_kind L3 = {l3_apply, l3_top, l3_depth, l3_rescale, l3_clear};

static int l3_init(l3_book *book, size_t max_orders, size_t max_levels, uint64_t max_window, int gap_policy,
                   int unknown_policy, uint64_t losing_venues)
{
    memset(book, 0, sizeof *book);
    core_init(&book->core, &L3, max_levels, max_window, gap_policy);
    book->unknown_policy = (uint8_t)unknown_policy;
    book->losing_venues = losing_venues;
    return orders_init(&book->orders, max_orders);
}

/* Puts one order back as it was saved; orders of one price in order of arrival. */
static int l3_restore(l3_book *book, const l3_order_row *row)
{
    l3_event event = {.side = row->side, .ord_type = row->ord_type, .flags = row->flags, .order_id = row->id};
    l3_step step = {.event = &event, .ts_ns = row->last_ts_ns, .hash = hash_of_id(row->id)};
    step.price = row->price;
    step.quantity = row->quantity;
    step.no_price = row->no_price;
    return add_order(book, &step);
}

#endif
