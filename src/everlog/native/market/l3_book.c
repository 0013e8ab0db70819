/* Applying order-by-order events; see l3_book.h. */
#include "l3_book.h"

#define LARGE_BOOK 32768u /* orders; the queues of a smaller book are in a near cache */
#define BLOCK 8u        /* events that are looked at together */
#define HASHES 64u       /* those of three blocks, at the event's number modulo this */
#define INPUT_AHEAD 48u  /* events ahead of which the event itself is asked for */

static void clear(book_core *core)
{
    core_clear(core);
    orders_clear(&((l3_book *)core)->orders);
}

void l3_free(l3_book *book)
{
    orders_free(&book->orders);
    core_free(&book->core);
}

/* --- Levels ------------------------------------------------------------------------------------------- */

typedef struct { /* an order that is about to be put somewhere */
    uint64_t price, quantity;
    unsigned side; /* of the protocol */
    l3_detail detail;
} new_order;

HOT int belongs_on_ladder(const new_order *order)
{
    return order->price != 0 && order->quantity != 0 && (order->side == 1 || order->side == 2) &&
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
        status = ladder_set(levels_of(book, order->side), key_of(order->price, order->side),
                            (uint64_t)number + 1);
    if (status != BOOK_OK) {
        queue_give_back(&book->orders, number);
        return status;
    }
    l3_queue *queue = &book->orders.queues[number];
    queue->on_ladder = (uint8_t)on_ladder;
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
    uint64_t price, quantity; /* of the event, at the book's scales */
    uint64_t ts_ns;
    uint64_t index;
    uint32_t hash; /* of the event's order_id */
    book_output *output;     /* NULL: nothing wanted */
    book_queue_place *place; /* NULL: not wanted */
    uint8_t status;
} l3_step;

/* Brings the event's price and quantity to the book's scales, and the book to the event's where it must. */
static __attribute__((noinline)) int adopt_scales(l3_book *book, l3_step *step)
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

book_queue_place l3_place(l3_book *book, uint64_t where)
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
    new_order order = {step->price, step->quantity, event->side,
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
    new_order order = {step->price != 0 ? step->price : queue->price,
                       step->quantity != 0 ? step->quantity : queue->quantities[position_of(where)],
                       queue->side != 0 ? queue->side : step->event->side,
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

HOT int modify_order(l3_book *book, l3_step *step)
{
    uint64_t place = orders_locate(&book->orders, step->event->order_id, step->hash);
    if (__builtin_expect(book->orders.table[place].id == 0, 0))
        return miss_order(book, step);
    uint64_t where = book->orders.table[place].where;
    l3_queue *queue = &book->orders.queues[queue_of(where)];
    uint32_t position = position_of(where);
    int keeps_price = step->price == 0 || step->price == queue->price;
    if (queue->on_ladder && keeps_price && !(step->event->flags & L3_PRICE_IS_MARKET)) {
        uint64_t total, had = queue->quantities[position];
        uint64_t quantity = step->quantity != 0 ? step->quantity : had;
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
    report_row trade = {step->index, 0, 0, step->price, step->quantity};
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
static inline int check_gap(l3_book *book, uint64_t seq, int is_reset, l3_step *step)
{
    if (seq != 0) {
        int is_gap = book->has_seq && seq != book->core.last_seq + 1;
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
        clear(&book->core);
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

static int apply(book_core *core, const uint8_t *payload, size_t length, uint64_t index, book_output *output,
                 uint8_t *status)
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
    int is_reset = header->event_type == EVENT_RESET || record->event.event_type == L3_RESET;
    result = check_gap(book, header->seq, is_reset, &step);
    if (result == BOOK_OK && step.status == EVENT_APPLIED) {
        if (__builtin_expect(header->event_type == EVENT_DIFF, 1))
            result = apply_event(book, &step);
        else if (header->event_type == EVENT_RESET)
            clear(core);
        else if (header->event_type != EVENT_HEARTBEAT)
            result = BOOK_BAD_TYPE;
        core_note_times(core, header);
    }
    *status = step.status;
    return result;
}

/* --- Arrays ------------------------------------------------------------------------------------------- */

static book_top top(const book_core *core)
{
    return l3_top((const l3_book *)core);
}

static const book_kind L3 = {apply, top, l3_depth, l3_rescale, clear};

int l3_init(l3_book *book, size_t max_orders, size_t max_levels, uint64_t max_window, int gap_policy,
            int unknown_policy)
{
    memset(book, 0, sizeof *book);
    core_init(&book->core, &L3, max_levels, max_window, gap_policy);
    book->unknown_policy = (uint8_t)unknown_policy;
    return orders_init(&book->orders, max_orders);
}

/* As core_finish_event, with the top alone written here: the call of `top` would cost a tenth of the event. */
static inline void finish_event(const l3_book *book, size_t index, uint8_t status, book_output *output)
{
    if (output->depth != 0 || output->tops == NULL || output->since + 1 != output->every) {
        core_finish_event(&book->core, index, status, output);
        return;
    }
    if (output->statuses != NULL)
        output->statuses[index] = status;
    output->tops[output->rows++] = l3_top(book);
    output->since = 0;
}

/* What a record must say so that nothing about it is unusual, in the words it is read in. */
typedef struct {
    uint64_t start;  /* version and length; what no record says if the book has no scales or is quarantined */
    uint16_t kind;   /* event type and book mode */
    uint16_t scales; /* price and size */
} plain_record;

static plain_record plain_of(const l3_book *book)
{
    int is_possible = book->core.has_scale && !book->core.quarantined;
    uint64_t start = PROTOCOL_VERSION | (uint64_t)sizeof(l3_record) << 32;
    return (plain_record){.start = is_possible ? start : UINT64_MAX,
                          .kind = EVENT_DIFF | MODE_L3 << 8,
                          .scales = (uint16_t)(book->core.scales[0] | book->core.scales[1] << 8)};
}

/* Whether the record is plain and has the number that was due, or none. */
HOT int is_plain(const l3_book *book, const plain_record *plain, const l3_record *record)
{
    const book_header *header = &record->header;
    uint64_t start;
    uint16_t kind, scales;
    memcpy(&start, &header->schema_version, sizeof start);
    memcpy(&kind, &header->event_type, sizeof kind);
    memcpy(&scales, &record->event.price_scale, sizeof scales);
    uint64_t odd = ((start & START_BITS) ^ plain->start) | (uint64_t)(kind ^ plain->kind) |
                   (uint64_t)(scales ^ plain->scales) | header->endianness;
    return odd == 0 && (header->seq == 0 || header->seq - 1 == book->core.last_seq);
}

/* Applies a plain record without the checks of `apply`, which all others take. The caller notes its times. */
HOT int apply_plain(l3_book *book, const l3_record *record, size_t index, uint32_t hash, book_output *output,
                    book_queue_place *place, uint8_t *status)
{
    l3_step step = {.event = &record->event, .index = index, .output = output, .hash = hash, .place = place};
    step.price = record->event.price;
    step.quantity = record->event.quantity;
    step.ts_ns = record->header.exchange_ts_ns;
    if (place != NULL)
        *place = (book_queue_place){UINT64_MAX, UINT64_MAX};
    if (record->header.seq != 0) {
        book->core.last_seq = record->header.seq;
        book->has_seq = 1;
    }
    int result = dispatch(book, &step);
    *status = step.status;
    return result;
}

HOT const l3_record *record_at(const uint8_t *records, ptrdiff_t stride, size_t at)
{
    return (const l3_record *)(records + (ptrdiff_t)at * stride);
}

HOT void look_up_one(const l3_book *book, const l3_record *record, uint32_t *hash)
{
    *hash = hash_of_id(record->event.order_id);
    __builtin_prefetch(&book->orders.table[home_of(&book->orders, *hash)], 1);
}

/* First look at events to come: asks for the entries of their orders. A whole block has no end to guess. */
HOT void look_up(const l3_book *book, const uint8_t *records, ptrdiff_t stride, size_t from, size_t end,
                 uint32_t hashes[HASHES])
{
    const uint8_t *at = records + (ptrdiff_t)from * stride;
    uint32_t *into = &hashes[from % HASHES];
    if (__builtin_expect(end - from == BLOCK, 1)) {
#pragma GCC unroll 16
        for (unsigned row = 0; row < BLOCK; row++, at += stride)
            look_up_one(book, (const l3_record *)at, into + row);
        return;
    }
    for (; from < end; from++, at += stride)
        look_up_one(book, (const l3_record *)at, into++);
}

/* Second look: asks for the place in a queue that the event will write to. Nothing is taken for granted: the
 * entry may be empty or another order's, and a later event may change everything. Whatever address comes of
 * that, to ask for it does no harm. */
HOT void look_into(const l3_book *book, const uint8_t *records, ptrdiff_t stride, size_t from, size_t end,
                   const uint32_t hashes[HASHES])
{
    for (size_t at = from; at < end; at++) {
        const l3_event *event = &record_at(records, stride, at)->event;
        uint64_t where = book->orders.table[home_of(&book->orders, hashes[at % HASHES])].where;
        const l3_queue *queue = &book->orders.queues[queue_of(where)];
        uint32_t position = position_of(where);
        if (event->event_type == L3_ADD) {
            const ladder *levels = &book->core.sides[event->side == 2];
            uint64_t place = ladder_place(levels, event->price ^ side_mask(event->side == 2));
            uint64_t value = place < levels->window_size ? levels->values[place] : 0;
            if (value == 0)
                continue;
            queue = &book->orders.queues[value - 1];
            position = queue->tail;
            __builtin_prefetch(&queue_details(queue)[position], 1);
        }
        __builtin_prefetch(&queue->quantities[position], 1);
        if (book->orders.has_sums)
            __builtin_prefetch(&queue->sums_8[position >> 3], 1);
    }
}

static inline size_t smaller(size_t one, size_t other)
{
    return one < other ? one : other;
}

/* Tops: after every event, and nothing else. */
typedef enum { ANY_OUTPUT, TOPS, TOPS_AND_PLACES } output_kind;

static output_kind kind_of(const book_output *output)
{
    if (output->every != 1 || output->tops == NULL || output->depth != 0 || output->statuses != NULL)
        return ANY_OUTPUT;
    return output->places != NULL ? TOPS_AND_PLACES : TOPS;
}

/* What the events of one block wrote; copied to the caller's arrays as whole lines of cache. */
typedef struct {
    book_top tops[BLOCK] __attribute__((aligned(STREAM_ALIGNMENT)));
    book_queue_place places[BLOCK] __attribute__((aligned(STREAM_ALIGNMENT)));
} staged_rows;

_Static_assert(BLOCK * sizeof(book_queue_place) % STREAM_ALIGNMENT == 0, "blocks are whole lines");

/* An array on its way into the book. */
typedef struct {
    const uint8_t *records;
    ptrdiff_t stride;
    size_t count;
    uint32_t hashes[HASHES];
    plain_record plain;
    staged_rows rows;
} l3_array;

/* Applies events `done` to `end`; returns where it stopped. */
HOT size_t apply_block(l3_book *book, l3_array *array, size_t done, size_t end, book_output *output,
                       output_kind kind, int *error)
{
    const uint8_t *at = array->records + (ptrdiff_t)done * array->stride;
    const l3_record *last_plain = NULL;
    for (size_t row = 0; done < end; done++, row++, at += array->stride) {
        const l3_record *record = (const l3_record *)at;
        const l3_record *coming = (const l3_record *)(at + INPUT_AHEAD * array->stride);
        book_queue_place *place = kind == TOPS_AND_PLACES ? &array->rows.places[row] : NULL;
        uint8_t status = EVENT_APPLIED;
        if (kind == ANY_OUTPUT && output->places != NULL)
            place = &output->places[done];
        __builtin_prefetch(coming); /* past the end it is a hint like any other */
        __builtin_prefetch(&coming->event);
        if (__builtin_expect(is_plain(book, &array->plain, record), 1)) {
            last_plain = record;
            *error = apply_plain(book, record, done, array->hashes[done % HASHES], output, place, &status);
        } else {
            last_plain = NULL;
            *error = apply(&book->core, at, sizeof *record, done, output, &status);
            array->plain = plain_of(book);
            if (kind == TOPS_AND_PLACES)
                *place = output->places[done];
        }
        if (__builtin_expect(*error != BOOK_OK, 0))
            break;
        if (kind == ANY_OUTPUT)
            finish_event(book, done, status, output);
        else
            array->rows.tops[row] = l3_top(book);
    }
    if (last_plain != NULL)
        core_note_times(&book->core, &last_plain->header);
    return done;
}

/* Copies the rows of the last events; a whole block is the case that is compiled well. */
HOT void copy_block(const staged_rows *staged, book_output *output, size_t first, size_t rows,
                    output_kind kind, int streamed)
{
    book_top *tops = output->tops + first;
    if (__builtin_expect(rows == BLOCK, 1))
        copy_rows(tops, staged->tops, sizeof staged->tops, streamed);
    else
        memcpy(tops, staged->tops, rows * sizeof *tops);
    if (kind != TOPS_AND_PLACES)
        return;
    book_queue_place *places = output->places + first;
    if (__builtin_expect(rows == BLOCK, 1))
        copy_rows(places, staged->places, sizeof staged->places, streamed);
    else
        memcpy(places, staged->places, rows * sizeof *places);
}

/* Compiled once for each kind of output. */
HOT size_t apply_records(l3_book *book, const uint8_t *records, ptrdiff_t stride, size_t from, size_t count,
                         book_output *output, output_kind kind, int *error)
{
    size_t done = from;
    l3_array array = {.records = records, .stride = stride, .count = count, .plain = plain_of(book)};
    int streamed = kind != ANY_OUTPUT && is_streamed(output->tops, output->room * sizeof *output->tops) &&
                   (kind == TOPS || is_streamed(output->places, STREAMED_BYTES));
    look_up(book, records, stride, from, smaller(from + BLOCK, count), array.hashes);
    look_up(book, records, stride, smaller(from + BLOCK, count), smaller(from + 2 * BLOCK, count),
            array.hashes);
    while (done < count && *error == BOOK_OK) {
        size_t first = done, end = smaller(done + BLOCK, count);
        look_up(book, records, stride, smaller(end + BLOCK, count), smaller(end + 2 * BLOCK, count),
                array.hashes);
        if (book->orders.count > LARGE_BOOK)
            look_into(book, records, stride, end, smaller(end + BLOCK, count), array.hashes);
        done = apply_block(book, &array, done, end, output, kind, error);
        if (kind != ANY_OUTPUT)
            copy_block(&array.rows, output, first, done - first, kind, streamed);
    }
    if (streamed)
        end_stream();
    return done;
}

size_t l3_apply_records(l3_book *book, const uint8_t *records, ptrdiff_t stride, size_t from, size_t end,
                        book_output *output, int *error)
{
    *error = BOOK_OK;
    if (output->places != NULL)
        orders_keep_sums(&book->orders);
    switch (kind_of(output)) {
    case TOPS:
        return output->rows = apply_records(book, records, stride, from, end, output, TOPS, error);
    case TOPS_AND_PLACES:
        return output->rows = apply_records(book, records, stride, from, end, output, TOPS_AND_PLACES, error);
    default:
        return apply_records(book, records, stride, from, end, output, ANY_OUTPUT, error);
    }
}

int l3_restore(l3_book *book, const l3_order_row *row)
{
    l3_event event = {.side = row->side, .ord_type = row->ord_type, .flags = row->flags, .order_id = row->id};
    l3_step step = {.event = &event, .ts_ns = row->last_ts_ns, .hash = hash_of_id(row->id)};
    step.price = row->price;
    step.quantity = row->quantity;
    return add_order(book, &step);
}
