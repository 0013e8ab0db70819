/* Applying order-by-order events; see l3_book.h. */
#include "l3_book.h"

#define LARGE_BOOK 2048u  /* orders; a smaller book is in the nearest cache */
#define RUN_RECORDS 4096u /* after this many the size of the book is looked at again */
#define TABLE_AHEAD 24u   /* events ahead of which the entry of an id is asked for, */
#define ORDER_AHEAD 16u   /* then its order, */
#define QUEUE_AHEAD 8u    /* then the queue of the order */
#define PLACE_AHEAD 4u    /* then its place there */
#define INPUT_AHEAD 48u   /* events ahead of which the event itself is asked for */
#define HASHES 32u        /* more than TABLE_AHEAD */

int l3_init(l3_book *book, size_t max_orders, size_t max_levels, uint64_t max_window, int gap_policy,
            int unknown_policy)
{
    memset(book, 0, sizeof *book);
    book->gap_policy = (uint8_t)gap_policy;
    book->unknown_policy = (uint8_t)unknown_policy;
    ladder_init(&book->sides[0], max_levels, max_window);
    ladder_init(&book->sides[1], max_levels, max_window);
    return orders_init(&book->orders, max_orders);
}

/* --- Levels ------------------------------------------------------------------------------------------- */

static inline uint64_t key_of(uint64_t price, unsigned side)
{
    return price ^ side_mask(side);
}

/* Every queue of a side, best first, for the caller to free; NULL without memory (or without levels). */
static l3_queue **all_queues(const ladder *side)
{
    uint64_t *keys = side->count ? malloc(2 * side->count * sizeof *keys) : NULL;
    if (keys == NULL)
        return NULL;
    ladder_first(side, keys, keys + side->count, side->count);
    memmove(keys, keys + side->count, side->count * sizeof *keys);
    return (l3_queue **)keys;
}

/* Takes the queues out one by one, from the best: needs no memory. */
static void give_back_queues(l3_book *book, ladder *side)
{
    while (side->best_value != 0) {
        l3_queue *queue = (l3_queue *)side->best_value;
        ladder_set(side, side->best_key, 0);
        queue_give_back(&book->orders, queue);
    }
}

void l3_clear(l3_book *book)
{
    give_back_queues(book, &book->sides[0]);
    give_back_queues(book, &book->sides[1]);
    orders_clear(&book->orders);
}

void l3_free(l3_book *book)
{
    give_back_queues(book, &book->sides[0]);
    give_back_queues(book, &book->sides[1]);
    orders_free(&book->orders);
    ladder_free(&book->sides[0]);
    ladder_free(&book->sides[1]);
}

#define HOT static inline __attribute__((always_inline))

HOT int belongs_on_ladder(const l3_order *order)
{
    return order->price != 0 && order->quantity != 0 && (order->side == 1 || order->side == 2) &&
           !(order->flags & L3_PRICE_IS_MARKET);
}

/* Puts an order at the back of its price. */
HOT int enqueue(l3_book *book, uint32_t slot)
{
    l3_order *order = &book->orders.pool[slot];
    unsigned side = (unsigned)order->side - 1;
    ladder *levels = &book->sides[side];
    uint64_t key = key_of(order->price, side);
    l3_queue *before = (l3_queue *)ladder_get(levels, key), *queue = before;
    if (queue == NULL)
        queue = queue_take(&book->orders, SMALLEST_QUEUE_SHIFT, order->price, side);
    if (queue == NULL)
        return BOOK_NO_MEMORY;
    int status = queue_push(&book->orders, &queue, slot);
    if (status == BOOK_OK && queue != before)
        status = ladder_set(levels, key, (uint64_t)queue);
    if (status != BOOK_OK && before == NULL) {
        book->orders.pool[slot].queue = NULL;
        queue_give_back(&book->orders, queue);
    }
    return status;
}

/* Takes an order out of its queue, and the queue off the ladder if it was the last. */
HOT void dequeue(l3_book *book, l3_order *order)
{
    l3_queue *queue = order->queue;
    if (queue == NULL)
        return;
    queue_remove(queue, order->position);
    order->queue = NULL;
    if (queue->count == 0) {
        ladder_set(&book->sides[queue->side], key_of(queue->price, queue->side), 0);
        queue_give_back(&book->orders, queue);
    }
}

/* Takes up to `quantity` (0 = all) off the order whose entry is at `place`; it goes when nothing is left.
 * Returns how much was taken. */
HOT uint64_t reduce(l3_book *book, uint32_t slot, uint64_t place, uint64_t quantity, uint64_t ts_ns)
{
    l3_order *order = &book->orders.pool[slot];
    order->last_ts_ns = ts_ns;
    if (quantity == 0 || quantity >= order->quantity) {
        quantity = order->quantity;
        dequeue(book, order);
        orders_remove(&book->orders, slot, place);
        return quantity;
    }
    order->quantity -= quantity;
    if (order->queue != NULL)
        queue_change(order->queue, order->position, order->quantity);
    return quantity;
}

/* --- Scales ------------------------------------------------------------------------------------------- */

static int check_rescaled(const l3_book *book, uint64_t price_factor, uint64_t size_factor)
{
    for (uint32_t slot = 0; slot < book->orders.pool_used; slot++) {
        const l3_order *order = &book->orders.pool[slot];
        uint64_t product, total = order->queue != NULL ? order->queue->total : order->quantity;
        if (order->in_use && (__builtin_mul_overflow(order->price, price_factor, &product) ||
                              __builtin_mul_overflow(total, size_factor, &product)))
            return BOOK_SCALE_OVERFLOW;
    }
    return BOOK_OK;
}

static int rescale_side(ladder *side, unsigned number, uint64_t price_factor, uint64_t size_factor)
{
    l3_queue **queues = all_queues(side);
    size_t count = side->count;
    if (count == 0)
        return BOOK_OK;
    uint64_t *keys = malloc(count * sizeof *keys);
    int status = queues == NULL || keys == NULL ? BOOK_NO_MEMORY : BOOK_OK;
    for (size_t at = 0; at < count && status == BOOK_OK; at++)
        keys[at] = key_of(queues[at]->price * price_factor, number);
    if (status == BOOK_OK)
        status = ladder_replace(side, keys, (const uint64_t *)queues, count);
    for (size_t at = 0; at < count && status == BOOK_OK; at++)
        status = queue_rescale(queues[at], price_factor, size_factor);
    free(queues);
    free(keys);
    return status;
}

int l3_raise_scales(l3_book *book, uint8_t price_scale, uint8_t size_scale)
{
    if (price_scale > LARGEST_SCALE || size_scale > LARGEST_SCALE)
        return BOOK_BAD_SCALE;
    int has_scale = book->has_scale;
    uint8_t new_price = has_scale && book->scales[0] > price_scale ? book->scales[0] : price_scale;
    uint8_t new_size = has_scale && book->scales[1] > size_scale ? book->scales[1] : size_scale;
    if (has_scale && book->orders.count != 0) {
        uint64_t price_factor = TENS[new_price - book->scales[0]];
        uint64_t size_factor = TENS[new_size - book->scales[1]];
        int status = check_rescaled(book, price_factor, size_factor);
        for (unsigned side = 0; side < 2 && status == BOOK_OK; side++)
            status = rescale_side(&book->sides[side], side, price_factor, size_factor);
        if (status != BOOK_OK)
            return status;
        for (uint32_t slot = 0; slot < book->orders.pool_used; slot++) {
            book->orders.pool[slot].price *= price_factor;
            book->orders.pool[slot].quantity *= size_factor;
        }
    }
    book->scales[0] = new_price;
    book->scales[1] = new_size;
    book->has_scale = 1;
    return BOOK_OK;
}

/* One event on its way into the book. */
typedef struct {
    const l3_event *event;
    uint64_t price, quantity; /* of the event, at the book's scales */
    uint64_t ts_ns;
    uint64_t index;
    book_output *output;     /* NULL: nothing wanted */
    book_queue_place *place; /* NULL: not wanted */
    uint8_t status;
} l3_step;

/* Brings the event's price and quantity to the book's scales, and the book to the event's where it must. */
static __attribute__((noinline)) int adopt_scales(l3_book *book, l3_step *step)
{
    const l3_event *event = step->event;
    if (!book->has_scale || event->price_scale > book->scales[0] || event->size_scale > book->scales[1]) {
        int status = l3_raise_scales(book, event->price_scale, event->size_scale);
        report_row row = {step->index, book->scales[0], book->scales[1], 0, 0};
        if (status == BOOK_OK && step->output != NULL)
            status = report_add(&step->output->scales, row);
        if (status != BOOK_OK)
            return status;
    }
    if (__builtin_mul_overflow(event->price, TENS[book->scales[0] - event->price_scale], &step->price) ||
        __builtin_mul_overflow(event->quantity, TENS[book->scales[1] - event->size_scale], &step->quantity))
        return BOOK_SCALE_OVERFLOW;
    return BOOK_OK;
}

/* --- Events ------------------------------------------------------------------------------------------- */

static void show_place(const l3_book *book, uint32_t slot, book_queue_place *place)
{
    const l3_order *order = &book->orders.pool[slot];
    if (order->queue != NULL)
        queue_ahead(order->queue, order->position, &place->orders_ahead, &place->size_ahead);
}

/* An id that is in use already: an error, or the new order stands for the old one. */
static int replace_order(l3_book *book, uint32_t slot, uint64_t *place, l3_step *step)
{
    if (book->unknown_policy == UNKNOWN_FAIL)
        return BOOK_DUPLICATE_ORDER;
    uint64_t id = book->orders.pool[slot].id;
    reduce(book, slot, *place, 0, step->ts_ns);
    orders_locate(&book->orders, id, place);
    step->status = EVENT_UNKNOWN_ORDER;
    return BOOK_OK;
}

HOT int add_order(l3_book *book, l3_step *step)
{
    const l3_event *event = step->event;
    uint64_t place;
    if (event->order_id == 0)
        return BOOK_ZERO_ID;
    uint32_t slot = orders_locate(&book->orders, event->order_id, &place);
    int result = slot == NO_SLOT ? BOOK_OK : replace_order(book, slot, &place, step);
    if (result == BOOK_OK)
        result = orders_add(&book->orders, event->order_id, place, &slot);
    if (result != BOOK_OK)
        return result;
    l3_order *order = &book->orders.pool[slot];
    order->id = event->order_id;
    order->price = step->price;
    order->quantity = step->quantity;
    order->last_ts_ns = step->ts_ns;
    order->queue = NULL;
    order->flags = event->flags;
    order->side = event->side;
    order->ord_type = event->ord_type;
    order->in_use = 1;
    if (!belongs_on_ladder(order))
        return BOOK_OK;
    result = enqueue(book, slot);
    if (result != BOOK_OK) {
        orders_locate(&book->orders, event->order_id, &place);
        orders_remove(&book->orders, slot, place);
        return result;
    }
    if (step->place != NULL) /* known without a search: all others of this price */
        *step->place = (book_queue_place){order->queue->count - 1, order->queue->total - order->quantity};
    return BOOK_OK;
}

/* An order that an event names and that is not there: the policy decides between error and status. */
static int miss_order(l3_book *book, l3_step *step)
{
    book->unknown_orders++;
    step->status = EVENT_UNKNOWN_ORDER;
    return book->unknown_policy == UNKNOWN_FAIL ? BOOK_UNKNOWN_ORDER : BOOK_OK;
}

HOT int reduce_order(l3_book *book, uint64_t id, l3_step *step, uint64_t *taken)
{
    uint64_t place;
    uint32_t slot = orders_locate(&book->orders, id, &place);
    if (slot == NO_SLOT)
        return miss_order(book, step);
    if (step->place != NULL)
        show_place(book, slot, step->place);
    *taken = reduce(book, slot, place, step->quantity, step->ts_ns);
    return BOOK_OK;
}

/* Changes what the event says of the order; its queue is the caller's. */
HOT void change_order(l3_order *order, const l3_step *step)
{
    order->last_ts_ns = step->ts_ns;
    order->flags = step->event->flags;
    if (step->quantity != 0)
        order->quantity = step->quantity;
    if (step->price != 0)
        order->price = step->price;
    if (order->side == 0)
        order->side = step->event->side;
}

/* A modify that takes the order to another queue, or off the ladder, or onto it. */
static int move_order(l3_book *book, uint32_t slot, const l3_step *step)
{
    l3_order *order = &book->orders.pool[slot];
    dequeue(book, order);
    change_order(order, step);
    return belongs_on_ladder(order) ? enqueue(book, slot) : BOOK_OK;
}

HOT int modify_order(l3_book *book, l3_step *step)
{
    uint32_t slot = orders_find(&book->orders, step->event->order_id);
    if (slot == NO_SLOT)
        return miss_order(book, step);
    int result = BOOK_OK;
    l3_order *order = &book->orders.pool[slot];
    int keeps_price = step->price == 0 || step->price == order->price;
    if (order->queue != NULL && keeps_price && !(step->event->flags & L3_PRICE_IS_MARKET)) {
        uint64_t total, quantity = step->quantity != 0 ? step->quantity : order->quantity;
        if (__builtin_add_overflow(order->queue->total - order->quantity, quantity, &total))
            return BOOK_OVERFLOW;
        change_order(order, step);
        queue_change(order->queue, order->position, quantity);
    } else {
        result = move_order(book, slot, step);
    }
    if (step->place != NULL && result == BOOK_OK)
        show_place(book, slot, step->place);
    return result;
}

/* A trade that names one order, by order_id: whichever side it is on. */
static int trade_one(l3_book *book, uint64_t id, l3_step *step, report_row *trade)
{
    uint32_t slot = orders_find(&book->orders, id);
    int is_ask = slot != NO_SLOT && book->orders.pool[slot].side == 2;
    return reduce_order(book, id, step, is_ask ? &trade->second : &trade->first);
}

static int apply_trade(l3_book *book, l3_step *step)
{
    const l3_event *event = step->event;
    report_row trade = {step->index, 0, 0, step->price, step->quantity};
    int result = BOOK_OK;
    if (event->bid_order_id != 0)
        result = reduce_order(book, event->bid_order_id, step, &trade.first);
    if (event->ask_order_id != 0 && result == BOOK_OK) {
        if (event->bid_order_id != 0)
            step->place = NULL; /* it shows the bid's */
        result = reduce_order(book, event->ask_order_id, step, &trade.second);
    }
    if (event->bid_order_id == 0 && event->ask_order_id == 0 && event->order_id != 0)
        result = trade_one(book, event->order_id, step, &trade);
    if (result == BOOK_OK && step->output != NULL && step->output->want_trades)
        result = report_add(&step->output->trades, trade);
    return result;
}

/* Says in the status whether the event is to be skipped; an error only under GAP_PANIC. */
static int note_gap(l3_book *book, uint64_t seq, l3_step *step)
{
    report_row gap = {step->index, book->last_seq, seq, 0, 0};
    if (step->output != NULL && report_add(&step->output->gaps, gap) != BOOK_OK)
        return BOOK_NO_MEMORY;
    if (book->gap_policy == GAP_PANIC)
        return BOOK_GAP;
    if (book->gap_policy == GAP_QUARANTINE)
        book->quarantined = 1;
    return BOOK_OK;
}

static inline int check_gap(l3_book *book, uint64_t seq, int is_reset, l3_step *step)
{
    if (seq != 0) {
        int is_gap = book->has_seq && seq != book->last_seq + 1;
        if (__builtin_expect(is_gap, 0) && book->gap_policy != GAP_UNCHECKED) {
            int status = note_gap(book, seq, step);
            if (status != BOOK_OK)
                return status;
        }
        book->last_seq = seq;
        book->has_seq = 1;
    }
    if (is_reset)
        book->quarantined = 0;
    if (book->quarantined)
        step->status = EVENT_QUARANTINED;
    return BOOK_OK;
}

HOT int dispatch(l3_book *book, l3_step *step)
{
    const l3_event *event = step->event;
    uint64_t taken;
    switch (event->event_type) {
    case L3_ADD:
        return add_order(book, step);
    case L3_CANCEL:
        return event->order_id == 0 ? BOOK_OK : reduce_order(book, event->order_id, step, &taken);
    case L3_MODIFY:
        return modify_order(book, step);
    case L3_TRADE:
        return apply_trade(book, step);
    case L3_RESET:
        l3_clear(book);
        return BOOK_OK;
    case L3_HEARTBEAT:
        return BOOK_OK;
    default:
        return BOOK_BAD_TYPE;
    }
}

static int apply_event(l3_book *book, l3_step *step)
{
    int status = adopt_scales(book, step);
    return status == BOOK_OK ? dispatch(book, step) : status;
}

static int check_record(const book_header *header, size_t length)
{
    if (length < sizeof *header)
        return BOOK_SHORT_RECORD;
    if (header->schema_version != PROTOCOL_VERSION)
        return BOOK_BAD_VERSION;
    if (header->endianness != 0 || header->book_mode != MODE_L3)
        return BOOK_BAD_MODE;
    return header->record_len != length || length != sizeof(l3_record) ? BOOK_SHORT_RECORD : BOOK_OK;
}

int l3_apply_record(l3_book *book, const uint8_t *payload, size_t length, uint64_t index, book_output *output,
                    uint8_t *status)
{
    const l3_record *record = (const l3_record *)payload;
    const book_header *header = &record->header;
    l3_step step = {.event = &record->event, .index = index, .output = output};
    int result = check_record(header, length);
    if (result != BOOK_OK)
        return result;
    if (output != NULL && output->places != NULL) {
        step.place = &output->places[index];
        *step.place = (book_queue_place){UINT64_MAX, UINT64_MAX};
    }
    step.ts_ns = header->exchange_ts_ns;
    int is_reset = header->event_type == EVENT_RESET || record->event.event_type == L3_RESET;
    result = check_gap(book, header->seq, is_reset, &step);
    if (result == BOOK_OK && step.status == EVENT_APPLIED) {
        if (__builtin_expect(header->event_type == EVENT_DIFF, 1))
            result = apply_event(book, &step);
        else if (header->event_type == EVENT_RESET)
            l3_clear(book);
        else if (header->event_type != EVENT_HEARTBEAT)
            result = BOOK_BAD_TYPE;
        book->last_exchange_ts_ns = header->exchange_ts_ns;
        book->last_ingest_ts_ns = header->ingest_ts_ns;
    }
    *status = step.status;
    return result;
}

/* --- Arrays ------------------------------------------------------------------------------------------- */

size_t l3_depth(const l3_book *book, unsigned side, book_level *levels, uint32_t *orders, size_t wanted,
                uint64_t *scratch)
{
    size_t found = ladder_first(&book->sides[side], scratch, scratch + wanted, wanted);
    for (size_t at = 0; at < found; at++) {
        const l3_queue *queue = (const l3_queue *)scratch[wanted + at];
        levels[at] = (book_level){queue->price, queue->total};
        if (orders != NULL)
            orders[at] = queue->count;
    }
    return found;
}

static void write_row(const l3_book *book, book_output *output)
{
    size_t at = output->rows * output->depth;
    if (output->tops != NULL)
        output->tops[output->rows] = l3_top(book);
    if (output->depth != 0) {
        l3_depth(book, 0, output->bids + at, output->bid_orders + at, output->depth, output->scratch);
        l3_depth(book, 1, output->asks + at, output->ask_orders + at, output->depth, output->scratch);
    }
    output->rows++;
    output->since = 0;
}

static inline void finish_event(l3_book *book, size_t index, uint8_t status, book_output *output)
{
    if (output->statuses != NULL)
        output->statuses[index] = status;
    if (++output->since != output->every)
        return;
    if (output->depth != 0 || output->tops == NULL) {
        write_row(book, output);
        return;
    }
    output->tops[output->rows++] = l3_top(book);
    output->since = 0;
}

static int apply_one(l3_book *book, const uint8_t *payload, size_t length, size_t index, book_output *output)
{
    uint8_t status;
    int result = l3_apply_record(book, payload, length, index, output, &status);
    if (result == BOOK_OK)
        finish_event(book, index, status, output);
    return result;
}

/* Whether nothing about the record is unusual: version, length, kind, scales, and the number that was due. */
HOT int is_plain(const l3_book *book, const l3_record *record)
{
    const book_header *header = &record->header;
    int is_known = (header->schema_version == PROTOCOL_VERSION) & (header->record_len == sizeof *record) &
                   (header->endianness == 0) & (header->book_mode == MODE_L3) &
                   (header->event_type == EVENT_DIFF);
    int is_next = (header->seq == book->last_seq + 1) & (header->seq != 0);
    int has_scales = (record->event.price_scale == book->scales[0]) &
                     (record->event.size_scale == book->scales[1]) & book->has_scale;
    return is_known & has_scales & !book->quarantined & (is_next | (header->seq == 0));
}

/* The short way for plain records; all others take the long one, which checks one thing after the other. */
HOT int apply_plain(l3_book *book, const l3_record *record, size_t index, book_output *output)
{
    l3_step step = {.event = &record->event, .index = index, .output = output};
    step.price = record->event.price;
    step.quantity = record->event.quantity;
    step.ts_ns = record->header.exchange_ts_ns;
    if (output->places != NULL) {
        step.place = &output->places[index];
        *step.place = (book_queue_place){UINT64_MAX, UINT64_MAX};
    }
    if (record->header.seq != 0) {
        book->last_seq = record->header.seq;
        book->has_seq = 1;
    }
    int result = dispatch(book, &step);
    book->last_exchange_ts_ns = record->header.exchange_ts_ns;
    book->last_ingest_ts_ns = record->header.ingest_ts_ns;
    if (result == BOOK_OK)
        finish_event(book, index, step.status, output);
    return result;
}

/* What the first look into the table says of an id: right nearly always, and only a hint. */
HOT const l3_order *likely_order(const l3_book *book, uint32_t hash)
{
    uint64_t entry = book->orders.table[hash & book->orders.mask];
    return entry >> 32 == hash && entry != 0 ? &book->orders.pool[(uint32_t)entry - 1] : NULL;
}

HOT uint64_t id_at(const uint8_t *records, ptrdiff_t stride, size_t at)
{
    uint64_t id;
    memcpy(&id, records + (ptrdiff_t)at * stride + offsetof(l3_record, event.order_id), sizeof id);
    return id;
}

/* Asks for the memory of events to come, a step further each time, so that none of them waits for it.
 * `hashes` remembers those of the last events looked at. */
HOT void prefetch_orders(const l3_book *book, const uint8_t *records, ptrdiff_t stride, size_t at,
                         uint32_t hashes[HASHES])
{
    const uint8_t *coming = records + (ptrdiff_t)(at + INPUT_AHEAD) * stride;
    __builtin_prefetch(coming); /* past the end it is a hint like any other */
    __builtin_prefetch(coming + sizeof(book_header));
    uint32_t hash = hash_of_id(id_at(records, stride, at + TABLE_AHEAD));
    hashes[(at + TABLE_AHEAD) % HASHES] = hash;
    __builtin_prefetch(&book->orders.table[hash & book->orders.mask]);
    const l3_order *order = likely_order(book, hashes[(at + ORDER_AHEAD) % HASHES]);
    if (order != NULL)
        __builtin_prefetch(order, 1);
    order = likely_order(book, hashes[(at + QUEUE_AHEAD) % HASHES]);
    if (order != NULL && order->queue != NULL)
        __builtin_prefetch(order->queue, 1);
    order = likely_order(book, hashes[(at + PLACE_AHEAD) % HASHES]);
    if (order != NULL && order->queue != NULL)
        __builtin_prefetch(&queue_quantities(order->queue)[order->position], 1);
}

size_t l3_apply_records(l3_book *book, const uint8_t *records, ptrdiff_t stride, size_t count,
                        book_output *output, int *error)
{
    size_t done = 0;
    uint32_t hashes[HASHES] = {0};
    *error = BOOK_OK;
    while (done < count) {
        size_t end = count - done < RUN_RECORDS ? count : done + RUN_RECORDS;
        int is_large = book->orders.count > LARGE_BOOK;
        for (; done < end; done++) {
            if (is_large && done + TABLE_AHEAD < count)
                prefetch_orders(book, records, stride, done, hashes);
            const uint8_t *payload = records + (ptrdiff_t)done * stride;
            const l3_record *record = (const l3_record *)payload;
            *error = is_plain(book, record) ? apply_plain(book, record, done, output)
                                            : apply_one(book, payload, sizeof *record, done, output);
            if (*error != BOOK_OK)
                return done;
        }
    }
    return done;
}

size_t l3_apply_scattered(l3_book *book, const uint8_t *buffer, size_t buffer_len, const uint64_t *offsets,
                          const uint64_t *lengths, size_t count, book_output *output, int *error)
{
    size_t done = 0;
    for (*error = BOOK_OK; done < count; done++) {
        if (offsets[done] > buffer_len || lengths[done] > buffer_len - offsets[done])
            *error = BOOK_SHORT_RECORD;
        else
            *error = apply_one(book, buffer + offsets[done], lengths[done], done, output);
        if (*error != BOOK_OK)
            break;
    }
    return done;
}

/* --- Saving and restoring ----------------------------------------------------------------------------- */

static l3_order_row row_of(const l3_order *order)
{
    return (l3_order_row){.id = order->id,
                          .price = order->price,
                          .quantity = order->quantity,
                          .last_ts_ns = order->last_ts_ns,
                          .flags = order->flags,
                          .side = order->side,
                          .ord_type = order->ord_type};
}

int l3_rows(const l3_book *book, l3_order_row *rows)
{
    size_t written = 0;
    uint32_t *slots = malloc((book->orders.count + 1) * sizeof *slots);
    if (slots == NULL)
        return BOOK_NO_MEMORY;
    for (unsigned side = 0; side < 2; side++) {
        l3_queue **queues = all_queues(&book->sides[side]);
        if (queues == NULL && book->sides[side].count != 0) {
            free(slots);
            return BOOK_NO_MEMORY;
        }
        for (size_t at = 0; at < book->sides[side].count; at++) {
            size_t count = queue_slots(queues[at], slots);
            for (size_t slot = 0; slot < count; slot++)
                rows[written++] = row_of(&book->orders.pool[slots[slot]]);
        }
        free(queues);
    }
    for (uint32_t slot = 0; slot < book->orders.pool_used; slot++) {
        const l3_order *order = &book->orders.pool[slot];
        if (order->in_use && order->queue == NULL)
            rows[written++] = row_of(order);
    }
    free(slots);
    return BOOK_OK;
}

int l3_restore(l3_book *book, const l3_order_row *row)
{
    l3_event event = {.side = row->side, .ord_type = row->ord_type, .flags = row->flags, .order_id = row->id};
    l3_step step = {.event = &event, .ts_ns = row->last_ts_ns};
    step.price = row->price;
    step.quantity = row->quantity;
    return add_order(book, &step);
}

l3_queue *l3_queue_at(const l3_book *book, unsigned side, uint64_t price)
{
    return (l3_queue *)ladder_get(&book->sides[side], key_of(price, side));
}
