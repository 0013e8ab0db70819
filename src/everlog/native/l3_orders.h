/* The orders of one book: a table from id to order, and the queue of each price.
 *
 * Owns their memory. Knows no events and no sides' order of prices: queues are handed out and taken back
 * here, and kept in a ladder by l3_book.c. Orders are named by their slot, which does not change as long as
 * the order lives; queues by pointer, which changes when a queue grows (its orders follow). */
#ifndef EVERLOG_L3_ORDERS_H
#define EVERLOG_L3_ORDERS_H

#include <stddef.h>
#include <stdint.h>

#include "book_ladder.h"

#define NO_SLOT UINT32_MAX
#define SMALLEST_QUEUE_SHIFT 3u
#define QUEUE_SHIFTS 32u

/* Orders of one price in order of arrival. Positions are used once and in rising order; an order that leaves
 * makes its position 0 until the queue is packed. Behind the struct, in this order: the quantities, the
 * slots, a bit per position that is taken, the sum of each 64 quantities. */
typedef struct l3_queue l3_queue;
struct l3_queue {
    uint64_t price, total;
    uint32_t count; /* orders */
    uint32_t tail;  /* the next position */
    uint32_t shift; /* log2 of the number of positions */
    uint32_t side;  /* 0 bids, 1 asks */
    l3_queue *next_unused;
};

typedef struct { /* one line of cache */
    uint64_t id, price, quantity;
    uint64_t last_ts_ns;
    l3_queue *queue; /* NULL: not on the ladder */
    uint32_t position;
    uint32_t flags;
    uint32_t next_unused;
    uint8_t side; /* of the protocol: 0 unknown, 1 buy, 2 sell */
    uint8_t ord_type;
    uint8_t in_use;
    uint8_t reserved[9];
} l3_order;

_Static_assert(sizeof(l3_order) == 64, "an order is one line of cache");
_Static_assert(sizeof(l3_queue) == 40, "the arrays behind it are aligned");

typedef struct {
    uint64_t *table; /* upper half: 32 bits of the id's hash, lower half: slot + 1; 0 = empty */
    uint64_t mask;   /* entries - 1 */
    l3_order *pool;
    uint32_t pool_used, pool_capacity, unused; /* slots ever used; allocated; the first one given back */
    size_t count, room; /* orders; how many there may be before orders_make_room must look */
    size_t max_orders;
    l3_queue *unused_queues[QUEUE_SHIFTS];
} l3_orders;

int orders_init(l3_orders *orders, size_t max_orders);
void orders_free(l3_orders *orders);
/* Forgets every order. Queues are the caller's to give back first. */
void orders_clear(l3_orders *orders);
/* Makes room for one more order, or says why not; `place` is where its entry goes then. */
int orders_make_room(l3_orders *orders, uint64_t id, uint64_t *place);
/* Takes the entry at this place out of the table and gives the slot back. */
void orders_remove(l3_orders *orders, uint32_t slot, uint64_t place);

l3_queue *queue_take(l3_orders *orders, unsigned shift, uint64_t price, unsigned side);
void queue_give_back(l3_orders *orders, l3_queue *queue);
/* Moves the orders to the front of a queue with room, which replaces the full one. */
int queue_make_room(l3_orders *orders, l3_queue **queue);
/* Slots in order of arrival; returns how many. */
size_t queue_slots(const l3_queue *queue, uint32_t *slots);
/* How many orders and how much quantity arrived before this position. */
void queue_ahead(const l3_queue *queue, uint32_t position, uint64_t *count, uint64_t *quantity);
int queue_rescale(l3_queue *queue, uint64_t price_factor, uint64_t size_factor);

static inline size_t queue_words(unsigned shift)
{
    return (((size_t)1 << shift) + 63) >> 6;
}

static inline uint64_t *queue_quantities(const l3_queue *queue)
{
    return (uint64_t *)(queue + 1);
}

static inline uint32_t *queue_orders(const l3_queue *queue)
{
    return (uint32_t *)(queue_quantities(queue) + ((size_t)1 << queue->shift));
}

static inline uint64_t *queue_taken(const l3_queue *queue)
{
    return (uint64_t *)(queue_orders(queue) + ((size_t)1 << queue->shift));
}

static inline uint64_t *queue_sums(const l3_queue *queue)
{
    return queue_taken(queue) + queue_words(queue->shift);
}

/* Changes the quantity of the order at this position; it keeps its place. */
static inline void queue_change(l3_queue *queue, uint32_t position, uint64_t quantity)
{
    uint64_t *kept = &queue_quantities(queue)[position], change = quantity - *kept;
    *kept = quantity;
    queue_sums(queue)[position >> 6] += change;
    queue->total += change;
}

static inline void queue_remove(l3_queue *queue, uint32_t position)
{
    queue_change(queue, position, 0);
    queue_taken(queue)[position >> 6] &= ~((uint64_t)1 << (position & 63));
    queue->count--;
}

/* Mixed so that ids that count up, by any step, spread over the table. */
static inline uint32_t hash_of_id(uint64_t id)
{
    id *= 0x9E3779B97F4A7C15u;
    id ^= id >> 32;
    id *= 0xD6E8FEB86659FD93u;
    return (uint32_t)(id >> 32);
}

/* The slot of an id, and the place of its entry; NO_SLOT, and where an entry would go, if it is not there. */
static inline uint32_t orders_locate(const l3_orders *orders, uint64_t id, uint64_t *place)
{
    uint64_t hash = hash_of_id(id);
    for (uint64_t at = hash & orders->mask;; at = (at + 1) & orders->mask) {
        uint64_t entry = orders->table[at];
        *place = at;
        if (entry == 0)
            return NO_SLOT;
        if (entry >> 32 == hash && orders->pool[(uint32_t)entry - 1].id == id)
            return (uint32_t)entry - 1;
    }
}

static inline uint32_t orders_find(const l3_orders *orders, uint64_t id)
{
    uint64_t place;
    return orders_locate(orders, id, &place);
}

/* A slot for a new id; its entry goes where orders_locate said. The order is the caller's to fill. */
static inline int orders_add(l3_orders *orders, uint64_t id, uint64_t place, uint32_t *slot)
{
    if (__builtin_expect(orders->count >= orders->room, 0)) {
        int status = orders_make_room(orders, id, &place);
        if (status != BOOK_OK)
            return status;
    }
    *slot = orders->unused;
    if (*slot != NO_SLOT)
        orders->unused = orders->pool[*slot].next_unused;
    else
        *slot = orders->pool_used++;
    orders->table[place] = (uint64_t)hash_of_id(id) << 32 | (*slot + 1);
    orders->count++;
    return BOOK_OK;
}

static inline void queue_append(l3_queue *queue, l3_order *order, uint32_t slot)
{
    uint32_t position = queue->tail++;
    queue_quantities(queue)[position] = order->quantity;
    queue_orders(queue)[position] = slot;
    queue_taken(queue)[position >> 6] |= (uint64_t)1 << (position & 63);
    queue_sums(queue)[position >> 6] += order->quantity;
    queue->total += order->quantity;
    queue->count++;
    order->queue = queue;
    order->position = position;
}

/* Puts an order with its quantity at the back; `queue` is replaced if it had to grow. */
static inline int queue_push(l3_orders *orders, l3_queue **queue, uint32_t slot)
{
    uint64_t total;
    if (__builtin_add_overflow((*queue)->total, orders->pool[slot].quantity, &total))
        return BOOK_OVERFLOW;
    if (__builtin_expect((*queue)->tail >> (*queue)->shift != 0, 0)) {
        int status = queue_make_room(orders, queue);
        if (status != BOOK_OK)
            return status;
    }
    queue_append(*queue, &orders->pool[slot], slot);
    return BOOK_OK;
}

#endif
