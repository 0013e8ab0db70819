/* The orders of one book: a table from id to place, and the queue of each price.
 *
 * Owns their memory. Knows no events and no sides' order of prices: queues are handed out and taken back
 * here, and kept in a ladder by l3_book.c. An order is where its queue keeps it; the table says where. So the
 * usual event reads one line of the table and a few of the queue, and no third place.
 *
 * A queue is named by its number, which stays as long as it has orders. Pointers to queues hold until the
 * next queue_take. An order that stands on no price (a market order, say) is alone in a queue of its own. */
#ifndef EVERLOG_L3_ORDERS_H
#define EVERLOG_L3_ORDERS_H

#include <stddef.h>
#include <stdint.h>

#include "book_ladder.h"

#define NO_QUEUE UINT32_MAX
#define SMALLEST_QUEUE_SHIFT 3u
#define QUEUE_SHIFTS 32u

typedef uint64_t sum_pair __attribute__((vector_size(16))); /* quantity, orders */

typedef struct { /* of an order, what no other order's place depends on */
    uint64_t id, last_ts_ns;
    uint32_t flags;
    uint8_t ord_type, reserved[3];
} l3_detail;

/* Orders of one price in order of arrival. Positions are used once and in rising order; an order that leaves
 * makes its quantity 0 until the queue is packed. Sums over 8, 64 and 512 positions make it cheap to say how
 * much is ahead of a position. All arrays are in one block. */
typedef struct { /* one line of cache */
    uint64_t price, total;
    uint32_t count; /* orders; 0 = the queue is not in use */
    uint32_t tail;  /* the next position */
    uint64_t *quantities, *sums_8;
    sum_pair *sums_64;
    uint64_t *taken; /* a bit per position */
    uint32_t shift;  /* log2 of the number of positions */
    uint8_t side;    /* of the protocol: 0 unknown, 1 buy, 2 sell */
    uint8_t on_ladder;
    uint8_t reserved[2];
} l3_queue;

typedef struct { /* id 0 = empty */
    uint64_t id;
    uint64_t where; /* see where_of */
} l3_entry;

_Static_assert(sizeof(l3_detail) == 24, "details of an order");
_Static_assert(sizeof(l3_queue) == 64, "a queue is one line of cache");
_Static_assert(sizeof(l3_entry) == 16, "four entries on a line of cache");

typedef struct queue_block queue_block; /* memory for the arrays of one queue, while it is not in use */
typedef struct queue_chunk queue_chunk; /* from which blocks are cut */

typedef struct {
    l3_entry *table;
    uint64_t mask; /* entries - 1 */
    uint32_t hash_shift; /* bits of a hash that do not count */
    size_t count, room; /* orders; how many there may be before orders_make_room must look */
    size_t max_orders;
    int has_sums; /* places have been asked for, so the queues keep their sums */
    l3_queue *queues;
    uint32_t queues_used, queues_capacity, unused_queue; /* ever used; allocated; the first one given back */
    queue_block *unused_blocks[QUEUE_SHIFTS];
    queue_chunk *chunks;
    uint8_t *chunk_at; /* where the next block is cut */
    size_t chunk_left, chunk_size;
} l3_orders;

int orders_init(l3_orders *orders, size_t max_orders);
void orders_free(l3_orders *orders);
/* Forgets every order and every queue. */
void orders_clear(l3_orders *orders);
/* Makes room for one more order, or says why not; `place` is where its entry goes then. */
int orders_make_room(l3_orders *orders, uint64_t id, uint64_t *place);

/* A queue without orders; NO_QUEUE without memory. */
uint32_t queue_take(l3_orders *orders, uint64_t price, unsigned side);
void queue_give_back(l3_orders *orders, uint32_t number);
/* Moves the orders to the front, of a larger block if need be. */
int queue_make_room(l3_orders *orders, l3_queue *queue);
/* Positions that are taken, in order of arrival; returns how many. */
size_t queue_positions(const l3_queue *queue, uint32_t *positions);
/* Has every queue keep its sums from now on; before that, what is ahead of a position must not be asked. */
void orders_keep_sums(l3_orders *orders);
/* Multiplies price and quantities; the caller made sure that they fit. */
void queue_rescale(l3_queue *queue, uint64_t price_factor, uint64_t size_factor);

#define HOT static inline __attribute__((always_inline))

/* Number of the queue and position there, in one word: a half that was just written alone would have to be
 * waited for when both are read. */
HOT uint64_t where_of(uint32_t queue, uint32_t position)
{
    return (uint64_t)queue << 32 | position;
}

HOT uint32_t queue_of(uint64_t where)
{
    return (uint32_t)(where >> 32);
}

HOT uint32_t position_of(uint64_t where)
{
    return (uint32_t)where;
}

/* Of a queue of more than 512 positions; a smaller one has none. */
HOT sum_pair *queue_sums_512(const l3_queue *queue)
{
    return queue->sums_64 + ((size_t)1 << queue->shift >> 6);
}

HOT l3_detail *queue_details(const l3_queue *queue)
{
    return (l3_detail *)queue->quantities - ((size_t)1 << queue->shift);
}

/* --- Sums --------------------------------------------------------------------------------------------- */

HOT void queue_add_sums(l3_queue *queue, uint32_t position, uint64_t quantity, uint64_t orders)
{
    sum_pair change = {quantity, orders};
    queue->sums_8[position >> 3] += quantity;
    queue->sums_64[position >> 6] += change;
    if (__builtin_expect(queue->shift > 9, 0))
        queue_sums_512(queue)[position >> 9] += change;
}

/* Changes the quantity of the order at this position; it keeps its place. */
HOT void queue_change(const l3_orders *orders, l3_queue *queue, uint32_t position, uint64_t quantity)
{
    uint64_t *kept = &queue->quantities[position], change = quantity - *kept;
    *kept = quantity;
    queue->total += change;
    if (orders->has_sums)
        queue_add_sums(queue, position, change, 0);
}

HOT void queue_remove(const l3_orders *orders, l3_queue *queue, uint32_t position)
{
    uint64_t quantity = queue->quantities[position];
    queue->quantities[position] = 0;
    queue->total -= quantity;
    queue->count--;
    if (orders->has_sums) {
        queue_add_sums(queue, position, -quantity, (uint64_t)-1);
        queue->taken[position >> 6] &= ~((uint64_t)1 << (position & 63));
    }
}

/* Puts an order at the back, where there must be room; returns its position. */
HOT uint32_t queue_append(const l3_orders *orders, l3_queue *queue, uint64_t quantity,
                          const l3_detail *detail)
{
    uint32_t position = queue->tail++;
    l3_detail *kept = &queue_details(queue)[position];
    queue->quantities[position] = quantity;
    kept->id = detail->id;
    kept->last_ts_ns = detail->last_ts_ns;
    kept->flags = detail->flags;
    kept->ord_type = detail->ord_type;
    queue->total += quantity;
    queue->count++;
    if (orders->has_sums) {
        queue_add_sums(queue, position, quantity, 1);
        queue->taken[position >> 6] |= (uint64_t)1 << (position & 63);
    }
    return position;
}

/* The number of set bits, without an instruction that older processors lack or a call. */
HOT uint64_t bits_set(uint64_t word)
{
    word -= word >> 1 & 0x5555555555555555u;
    word = (word & 0x3333333333333333u) + (word >> 2 & 0x3333333333333333u);
    word = (word + (word >> 4)) & 0x0F0F0F0F0F0F0F0Fu;
    return word * 0x0101010101010101u >> 56;
}

extern const uint64_t FIRST_NUMBERS[8][8]; /* row n: n times all bits, then none */
extern const sum_pair FIRST_PAIRS[8][7];

/* The sum of the first `wanted` (at most 7) of eight numbers, in two halves. How many it are is random, so a
 * loop would end with a wrong guess each time: all are read, and those not wanted count as 0. What lies
 * behind the last number of an array is read too: it is in the same block. */
HOT sum_pair sum_first(const uint64_t *numbers, unsigned wanted)
{
    const uint64_t *masks = FIRST_NUMBERS[wanted];
    sum_pair sum = {0, 0}, pair, mask;
    for (unsigned at = 0; at < 8; at += 2) {
        __builtin_memcpy(&pair, numbers + at, sizeof pair);
        __builtin_memcpy(&mask, masks + at, sizeof mask);
        sum += pair & mask;
    }
    return sum;
}

HOT sum_pair sum_first_pairs(const sum_pair *pairs, unsigned wanted)
{
    const sum_pair *masks = FIRST_PAIRS[wanted];
    sum_pair sum = {0, 0};
    for (unsigned at = 0; at < 7; at++)
        sum += pairs[at] & masks[at];
    return sum;
}

/* How much quantity and how many orders arrived before this position. */
HOT sum_pair queue_ahead(const l3_queue *queue, uint32_t position)
{
    sum_pair ahead;
    if (queue->shift <= 8) {
        const sum_pair *masks = FIRST_PAIRS[position >> 6], *pairs = queue->sums_64;
        ahead = (pairs[0] & masks[0]) + (pairs[1] & masks[1]) + (pairs[2] & masks[2]);
    } else {
        ahead = sum_first_pairs(queue->sums_64 + (position >> 9 << 3), position >> 6 & 7);
        for (uint32_t at = 0; at < position >> 9; at++)
            ahead += queue_sums_512(queue)[at];
    }
    sum_pair halves = sum_first(queue->quantities + (position & ~7u), position & 7) +
                      sum_first(queue->sums_8 + (position >> 6 << 3), position >> 3 & 7);
    uint64_t before = queue->taken[position >> 6] & (((uint64_t)1 << (position & 63)) - 1);
    return ahead + (sum_pair){halves[0] + halves[1], bits_set(before)};
}

/* --- Table -------------------------------------------------------------------------------------------- */

/* The highest bits of a product with the golden ratio: ids that count up by nearly any step are spread. */
HOT uint32_t hash_of_id(uint64_t id)
{
    return (uint32_t)(id * 0x9E3779B97F4A7C15u >> 32);
}

HOT uint64_t home_of(const l3_orders *orders, uint32_t hash)
{
    return hash >> orders->hash_shift;
}

/* The place of the entry of an id; its id is 0 if the id is not there and would go there. */
HOT uint64_t orders_locate(const l3_orders *orders, uint64_t id, uint32_t hash)
{
    uint64_t at = home_of(orders, hash);
    while (orders->table[at].id != id && orders->table[at].id != 0)
        at = (at + 1) & orders->mask;
    return at;
}

/* The entry of an id, NULL if it is not there. */
static inline l3_entry *orders_find(const l3_orders *orders, uint64_t id)
{
    l3_entry *entry = &orders->table[orders_locate(orders, id, hash_of_id(id))];
    return entry->id == id && id != 0 ? entry : NULL;
}

/* Takes the entry out and moves later ones of its run forward, so that no mark must be left behind. */
HOT void orders_remove(l3_orders *orders, uint64_t hole)
{
    l3_entry *table = orders->table;
    uint64_t mask = orders->mask;
    for (uint64_t next = (hole + 1) & mask; table[next].id != 0; next = (next + 1) & mask) {
        uint64_t home = home_of(orders, hash_of_id(table[next].id));
        if (((next - home) & mask) < ((next - hole) & mask))
            continue; /* it would be moved before its home */
        table[hole] = table[next];
        hole = next;
    }
    table[hole].id = 0;
    orders->count--;
}

#endif
