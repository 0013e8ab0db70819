/* What concerns an L3 book as a whole: its scales, its levels and the list of its orders; see l3_book.h. */
#include "l3_book.h"

/* --- Scales ------------------------------------------------------------------------------------------- */

static int check_rescaled(const l3_book *book, uint64_t price_factor, uint64_t size_factor)
{
    for (uint32_t number = 0; number < book->orders.queues_used; number++) {
        const l3_queue *queue = &book->orders.queues[number];
        uint64_t product;
        if (queue->count != 0 && (__builtin_mul_overflow(queue->price, price_factor, &product) ||
                                  __builtin_mul_overflow(queue->total, size_factor, &product)))
            return BOOK_SCALE_OVERFLOW;
    }
    return BOOK_OK;
}

/* Moves the levels of a side to their new prices. */
static int rescale_side(ladder *side, unsigned number, uint64_t price_factor)
{
    size_t count = side->count;
    if (count == 0 || price_factor == 1)
        return BOOK_OK;
    uint64_t *keys = malloc(2 * count * sizeof *keys);
    if (keys == NULL)
        return BOOK_NO_MEMORY;
    ladder_first(side, keys, keys + count, count);
    for (size_t at = 0; at < count; at++)
        keys[at] = key_of(key_of(keys[at], number) * price_factor, number);
    int status = ladder_replace(side, keys, keys + count, count);
    free(keys);
    return status;
}

int l3_rescale(book_core *core, uint64_t price_factor, uint64_t size_factor)
{
    l3_book *book = (l3_book *)core;
    int status = check_rescaled(book, price_factor, size_factor);
    for (unsigned side = 1; side <= 2 && status == BOOK_OK; side++)
        status = rescale_side(levels_of(book, side), side, price_factor);
    for (uint32_t number = 0; number < book->orders.queues_used && status == BOOK_OK; number++) {
        if (book->orders.queues[number].count != 0)
            queue_rescale(&book->orders.queues[number], price_factor, size_factor);
    }
    return status;
}

/* --- Levels and orders -------------------------------------------------------------------------------- */

size_t l3_depth(const book_core *core, unsigned side, book_level *levels, uint32_t *orders, size_t wanted,
                uint64_t *scratch)
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
                                  .ord_type = detail->ord_type};
    }
    return count;
}

int l3_rows(const l3_book *book, l3_order_row *rows)
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

const l3_queue *l3_queue_at(const l3_book *book, unsigned side, uint64_t price)
{
    uint64_t value = ladder_get(&book->core.sides[side], price ^ side_mask(side));
    return value == 0 ? NULL : &book->orders.queues[value - 1];
}
