/* Table, pool and queues of orders; see l3_orders.h. */
#include "l3_orders.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_TABLE 1024u
#define FIRST_POOL 512u

/* Half of the table stays empty, so that searches are short. Slots given back count for the pool. */
static void set_room(l3_orders *orders)
{
    size_t room = (orders->mask + 1) / 2;
    if (room > orders->pool_capacity)
        room = orders->pool_capacity;
    orders->room = room < orders->max_orders ? room : orders->max_orders;
}

int orders_init(l3_orders *orders, size_t max_orders)
{
    memset(orders, 0, sizeof *orders);
    orders->unused = NO_SLOT;
    orders->max_orders = max_orders;
    orders->table = calloc(FIRST_TABLE, sizeof *orders->table);
    orders->pool = malloc(FIRST_POOL * sizeof *orders->pool);
    if (orders->table == NULL || orders->pool == NULL) {
        orders_free(orders);
        return BOOK_NO_MEMORY;
    }
    orders->mask = FIRST_TABLE - 1;
    orders->pool_capacity = FIRST_POOL;
    set_room(orders);
    return BOOK_OK;
}

void orders_free(l3_orders *orders)
{
    for (unsigned shift = 0; shift < QUEUE_SHIFTS; shift++) {
        while (orders->unused_queues[shift] != NULL) {
            l3_queue *queue = orders->unused_queues[shift];
            orders->unused_queues[shift] = queue->next_unused;
            free(queue);
        }
    }
    free(orders->table);
    free(orders->pool);
    memset(orders, 0, sizeof *orders);
}

void orders_clear(l3_orders *orders)
{
    memset(orders->table, 0, (orders->mask + 1) * sizeof *orders->table);
    orders->pool_used = 0;
    orders->unused = NO_SLOT;
    orders->count = 0;
}

/* --- Table -------------------------------------------------------------------------------------------- */

static void table_insert(uint64_t *table, uint64_t mask, uint64_t entry)
{
    uint64_t at = (entry >> 32) & mask;
    while (table[at] != 0)
        at = (at + 1) & mask;
    table[at] = entry;
}

static int table_grow(l3_orders *orders)
{
    uint64_t mask = 2 * orders->mask + 1;
    uint64_t *table = calloc(mask + 1, sizeof *table);
    if (table == NULL)
        return BOOK_NO_MEMORY;
    for (uint64_t at = 0; at <= orders->mask; at++) {
        if (orders->table[at] != 0)
            table_insert(table, mask, orders->table[at]);
    }
    free(orders->table);
    orders->table = table;
    orders->mask = mask;
    return BOOK_OK;
}

/* Takes the entry out and moves later ones of its run forward, so that no mark must be left behind. */
static void table_remove(l3_orders *orders, uint64_t hole)
{
    uint64_t mask = orders->mask;
    for (uint64_t next = (hole + 1) & mask; orders->table[next] != 0; next = (next + 1) & mask) {
        uint64_t home = (orders->table[next] >> 32) & mask;
        if (((next - home) & mask) < ((next - hole) & mask))
            continue; /* it would be moved before its home */
        orders->table[hole] = orders->table[next];
        hole = next;
    }
    orders->table[hole] = 0;
}

/* --- Pool --------------------------------------------------------------------------------------------- */

static int pool_grow(l3_orders *orders)
{
    uint32_t capacity = 2 * orders->pool_capacity;
    l3_order *pool = realloc(orders->pool, (size_t)capacity * sizeof *pool);
    if (pool == NULL)
        return BOOK_NO_MEMORY;
    orders->pool = pool;
    orders->pool_capacity = capacity;
    return BOOK_OK;
}

int orders_make_room(l3_orders *orders, uint64_t id, uint64_t *place)
{
    if (orders->count >= orders->max_orders)
        return BOOK_TOO_MANY_ORDERS;
    if (orders->count >= orders->pool_capacity && pool_grow(orders) != BOOK_OK)
        return BOOK_NO_MEMORY;
    if (2 * orders->count > orders->mask && table_grow(orders) != BOOK_OK)
        return BOOK_NO_MEMORY;
    set_room(orders);
    orders_locate(orders, id, place);
    return BOOK_OK;
}

void orders_remove(l3_orders *orders, uint32_t slot, uint64_t place)
{
    l3_order *order = &orders->pool[slot];
    table_remove(orders, place);
    order->in_use = 0;
    order->next_unused = orders->unused;
    orders->unused = slot;
    orders->count--;
}

/* --- Queues ------------------------------------------------------------------------------------------- */

static size_t queue_bytes(unsigned shift)
{
    size_t positions = (size_t)1 << shift;
    return sizeof(l3_queue) + 2 * queue_words(shift) * sizeof(uint64_t) +
           positions * (sizeof(uint64_t) + sizeof(uint32_t));
}

l3_queue *queue_take(l3_orders *orders, unsigned shift, uint64_t price, unsigned side)
{
    l3_queue *queue = orders->unused_queues[shift];
    if (queue != NULL)
        orders->unused_queues[shift] = queue->next_unused;
    else if ((queue = malloc(queue_bytes(shift))) == NULL)
        return NULL;
    *queue = (l3_queue){.price = price, .shift = shift, .side = side};
    memset(queue_taken(queue), 0, 2 * queue_words(shift) * sizeof(uint64_t));
    return queue;
}

void queue_give_back(l3_orders *orders, l3_queue *queue)
{
    queue->next_unused = orders->unused_queues[queue->shift];
    orders->unused_queues[queue->shift] = queue;
}

size_t queue_slots(const l3_queue *queue, uint32_t *slots)
{
    size_t found = 0, words = queue_words(queue->shift);
    for (size_t word = 0; word < words; word++) {
        for (uint64_t left = queue_taken(queue)[word]; left != 0; left &= left - 1)
            slots[found++] = queue_orders(queue)[word * 64 + (size_t)__builtin_ctzll(left)];
    }
    return found;
}

/* The new one has as many positions if half of them are free, else twice as many. */
int queue_make_room(l3_orders *orders, l3_queue **queue)
{
    l3_queue *full = *queue;
    unsigned shift = full->shift + (full->count > (uint32_t)1 << full->shift >> 1);
    if (shift >= QUEUE_SHIFTS - 1)
        return BOOK_TOO_MANY_ORDERS;
    l3_queue *packed = queue_take(orders, shift, full->price, full->side);
    if (packed == NULL)
        return BOOK_NO_MEMORY;
    for (size_t word = 0; word < queue_words(full->shift); word++) {
        for (uint64_t left = queue_taken(full)[word]; left != 0; left &= left - 1) {
            uint32_t slot = queue_orders(full)[word * 64 + (size_t)__builtin_ctzll(left)];
            queue_append(packed, &orders->pool[slot], slot);
        }
    }
    queue_give_back(orders, full);
    *queue = packed;
    return BOOK_OK;
}

/* The number of set bits, without an instruction that older processors lack or a call. */
static inline uint64_t bits_set(uint64_t word)
{
    word -= word >> 1 & 0x5555555555555555u;
    word = (word & 0x3333333333333333u) + (word >> 2 & 0x3333333333333333u);
    word = (word + (word >> 4)) & 0x0F0F0F0F0F0F0F0Fu;
    return word * 0x0101010101010101u >> 56;
}

void queue_ahead(const l3_queue *queue, uint32_t position, uint64_t *count, uint64_t *quantity)
{
    const uint64_t *taken = queue_taken(queue), *sums = queue_sums(queue), *each = queue_quantities(queue);
    uint32_t word = position >> 6, bit = position & 63;
    uint64_t orders = 0, sum = 0;
    for (uint32_t at = 0; at < word; at++) {
        orders += bits_set(taken[at]);
        sum += sums[at];
    }
    uint32_t first = word << 6, end = queue->tail - first < 64 ? queue->tail : first + 64;
    if (position - first <= end - position) {
        for (uint32_t at = first; at < position; at++)
            sum += each[at];
    } else { /* the rest of the block is shorter than what lies before */
        sum += sums[word];
        for (uint32_t at = position; at < end; at++)
            sum -= each[at];
    }
    *count = orders + bits_set(taken[word] & (((uint64_t)1 << bit) - 1));
    *quantity = sum;
}

int queue_rescale(l3_queue *queue, uint64_t price_factor, uint64_t size_factor)
{
    uint64_t price, total;
    if (__builtin_mul_overflow(queue->price, price_factor, &price) ||
        __builtin_mul_overflow(queue->total, size_factor, &total))
        return BOOK_SCALE_OVERFLOW;
    queue->price = price;
    queue->total = total;
    for (size_t word = 0; word < queue_words(queue->shift); word++)
        queue_sums(queue)[word] *= size_factor;
    for (uint32_t at = 0; at < queue->tail; at++)
        queue_quantities(queue)[at] *= size_factor;
    return BOOK_OK;
}
