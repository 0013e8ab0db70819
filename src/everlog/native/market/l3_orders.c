/* Table and queues of orders; see l3_orders.h. */
#define _DEFAULT_SOURCE /* madvise */
#include "l3_orders.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define FIRST_TABLE 1024u
#define FIRST_QUEUES 16u
#define LINE_BYTES 64u
#define HUGE_PAGE_BYTES ((size_t)1 << 21)
#define FIRST_CHUNK_BYTES ((size_t)1 << 12)
#define READ_BEHIND 72u /* seven pairs from the first sum of 64, in a queue that has only one of each sum */

#define WANTED(row, at) ((row) > (at) ? UINT64_MAX : 0)
#define NUMBERS(row)                                                                                         \
    {WANTED(row, 0), WANTED(row, 1), WANTED(row, 2), WANTED(row, 3),                                         \
     WANTED(row, 4), WANTED(row, 5), WANTED(row, 6), WANTED(row, 7)}
#define PAIR(row, at) {WANTED(row, at), WANTED(row, at)}
#define PAIRS(row)                                                                                           \
    {PAIR(row, 0), PAIR(row, 1), PAIR(row, 2), PAIR(row, 3), PAIR(row, 4), PAIR(row, 5), PAIR(row, 6)}
#define EIGHT_ROWS(of) {of(0), of(1), of(2), of(3), of(4), of(5), of(6), of(7)}

const uint64_t FIRST_NUMBERS[8][8] = EIGHT_ROWS(NUMBERS);
const sum_pair FIRST_PAIRS[8][7] = EIGHT_ROWS(PAIRS);

struct queue_block {
    queue_block *next;
};

struct queue_chunk { /* its blocks follow on the next line of cache */
    queue_chunk *next;
};

/* --- Memory ------------------------------------------------------------------------------------------- */

/* Memory at the start of a line of cache, for free(). Large pieces are asked for in huge pages: an event
 * touches places all over them, and with small pages each would be a search in the page tables. */
static void *allocate(size_t bytes)
{
    size_t alignment = bytes < HUGE_PAGE_BYTES ? LINE_BYTES : HUGE_PAGE_BYTES;
    if (bytes > SIZE_MAX - alignment)
        return NULL;
    bytes = (bytes + alignment - 1) & ~(alignment - 1);
    void *memory = aligned_alloc(alignment, bytes);
    if (memory != NULL && alignment == HUGE_PAGE_BYTES)
        madvise(memory, bytes, MADV_HUGEPAGE); /* a wish; if it is refused, pages come as ever */
    return memory;
}

/* A zeroed table of this many entries. */
static l3_entry *allocate_table(uint64_t entries)
{
    l3_entry *table = allocate(entries * sizeof *table);
    if (table != NULL)
        memset(table, 0, entries * sizeof *table);
    return table;
}

/* Half of the table stays empty, so that searches are short. */
static void set_room(l3_orders *orders)
{
    size_t room = (orders->mask + 1) / 2;
    orders->room = room < orders->max_orders ? room : orders->max_orders;
}

int orders_init(l3_orders *orders, size_t max_orders)
{
    memset(orders, 0, sizeof *orders);
    orders->max_orders = max_orders;
    orders->unused_queue = NO_QUEUE;
    orders->table = allocate_table(FIRST_TABLE);
    orders->queues = allocate(FIRST_QUEUES * sizeof *orders->queues);
    if (orders->table == NULL || orders->queues == NULL) {
        orders_free(orders);
        return BOOK_NO_MEMORY;
    }
    orders->mask = FIRST_TABLE - 1;
    orders->hash_shift = (uint32_t)__builtin_clz(FIRST_TABLE) + 1;
    orders->queues_capacity = FIRST_QUEUES;
    set_room(orders);
    return BOOK_OK;
}

static void free_chunks(l3_orders *orders)
{
    while (orders->chunks != NULL) {
        queue_chunk *chunk = orders->chunks;
        orders->chunks = chunk->next;
        free(chunk);
    }
    memset(orders->unused_blocks, 0, sizeof orders->unused_blocks);
    orders->chunk_left = orders->chunk_size = 0;
}

void orders_free(l3_orders *orders)
{
    free_chunks(orders);
    free(orders->table);
    free(orders->queues);
    memset(orders, 0, sizeof *orders);
}

void orders_clear(l3_orders *orders)
{
    free_chunks(orders);
    memset(orders->table, 0, (orders->mask + 1) * sizeof *orders->table);
    orders->queues_used = 0;
    orders->unused_queue = NO_QUEUE;
    orders->count = 0;
}

/* --- Table -------------------------------------------------------------------------------------------- */

static int table_grow(l3_orders *orders)
{
    if (orders->hash_shift == 0)
        return BOOK_TOO_MANY_ORDERS;
    l3_orders larger = {.mask = 2 * orders->mask + 1, .hash_shift = orders->hash_shift - 1};
    larger.table = allocate_table(larger.mask + 1);
    if (larger.table == NULL)
        return BOOK_NO_MEMORY;
    for (uint64_t at = 0; at <= orders->mask; at++) {
        uint64_t id = orders->table[at].id;
        if (id != 0)
            larger.table[orders_locate(&larger, id, hash_of_id(id))] = orders->table[at];
    }
    free(orders->table);
    orders->table = larger.table;
    orders->mask = larger.mask;
    orders->hash_shift = larger.hash_shift;
    return BOOK_OK;
}

int orders_make_room(l3_orders *orders, uint64_t id, uint64_t *place)
{
    if (orders->count >= orders->max_orders)
        return BOOK_TOO_MANY_ORDERS;
    int status = 2 * orders->count > orders->mask ? table_grow(orders) : BOOK_OK;
    if (status != BOOK_OK)
        return status;
    set_room(orders);
    *place = orders_locate(orders, id, hash_of_id(id));
    return BOOK_OK;
}

/* --- Blocks ------------------------------------------------------------------------------------------- */

/* How many sums a queue of 2^shift positions has if each covers 2^covered of them. */
static size_t sums_of(unsigned shift, unsigned covered)
{
    return shift > covered ? (size_t)1 << (shift - covered) : 1;
}

/* The sums of 8 come before pairs, which must start at multiples of 16. */
static size_t sums_8_of(unsigned shift)
{
    return (sums_of(shift, 3) + 1) & ~(size_t)1;
}

/* Bytes of sums and bits, with which the memory behind the quantities begins. */
static size_t sum_bytes(unsigned shift)
{
    return (sums_8_of(shift) + sums_of(shift, 6)) * sizeof(uint64_t) +
           (sums_of(shift, 6) + sums_of(shift, 9)) * sizeof(sum_pair);
}

/* In this order: details, quantities, sums of 8, of 64, of 512, bits, and what sum_first_pairs may read. */
static size_t block_bytes(unsigned shift)
{
    size_t each = sizeof(l3_detail) + sizeof(uint64_t);
    size_t bytes = (each << shift) + sum_bytes(shift) + READ_BEHIND;
    return (bytes + LINE_BYTES - 1) & ~(size_t)(LINE_BYTES - 1);
}

static uint8_t *new_chunk(l3_orders *orders, size_t bytes)
{
    queue_chunk *chunk = allocate(bytes);
    if (chunk == NULL)
        return NULL;
    chunk->next = orders->chunks;
    orders->chunks = chunk;
    return (uint8_t *)chunk + LINE_BYTES;
}

/* Chunks double up to a huge page, so that a small book stays small; a large block is a chunk by itself. */
static void *cut_block(l3_orders *orders, size_t bytes)
{
    if (bytes > HUGE_PAGE_BYTES / 8)
        return new_chunk(orders, bytes + LINE_BYTES);
    if (bytes > orders->chunk_left) {
        size_t size = orders->chunk_size < FIRST_CHUNK_BYTES ? FIRST_CHUNK_BYTES : 2 * orders->chunk_size;
        while (size < bytes + LINE_BYTES)
            size *= 2;
        size = size < HUGE_PAGE_BYTES ? size : HUGE_PAGE_BYTES;
        uint8_t *chunk = new_chunk(orders, size);
        if (chunk == NULL)
            return NULL;
        orders->chunk_at = chunk;
        orders->chunk_left = size - LINE_BYTES;
        orders->chunk_size = size;
    }
    uint8_t *block = orders->chunk_at;
    orders->chunk_at += bytes;
    orders->chunk_left -= bytes;
    return block;
}

static void *take_block(l3_orders *orders, unsigned shift)
{
    queue_block *block = orders->unused_blocks[shift];
    if (block == NULL)
        return cut_block(orders, block_bytes(shift));
    orders->unused_blocks[shift] = block->next;
    return block;
}

static void give_back_block(l3_orders *orders, l3_queue *queue)
{
    queue_block *block = (queue_block *)queue_details(queue);
    block->next = orders->unused_blocks[queue->shift];
    orders->unused_blocks[queue->shift] = block;
}

static void clear_sums(l3_queue *queue)
{
    memset(queue->sums_8, 0, (size_t)((uint8_t *)queue->taken - (uint8_t *)queue->sums_8));
}

static void clear_taken(l3_queue *queue)
{
    memset(queue->taken, 0, sums_of(queue->shift, 6) * sizeof *queue->taken);
}

/* Has the queue keep its orders in this block. */
static void use_block(l3_queue *queue, void *block, unsigned shift)
{
    size_t positions = (size_t)1 << shift;
    queue->quantities = (uint64_t *)((l3_detail *)block + positions);
    queue->sums_8 = queue->quantities + positions;
    queue->sums_64 = (sum_pair *)(queue->sums_8 + sums_8_of(shift));
    queue->taken = (uint64_t *)(queue->sums_64 + sums_of(shift, 6) + sums_of(shift, 9));
    queue->shift = shift;
}

/* --- Queues ------------------------------------------------------------------------------------------- */

static int queues_grow(l3_orders *orders)
{
    size_t capacity = 2 * (size_t)orders->queues_capacity;
    l3_queue *queues = capacity < NO_QUEUE ? allocate(capacity * sizeof *queues) : NULL;
    if (queues == NULL)
        return BOOK_NO_MEMORY;
    memcpy(queues, orders->queues, orders->queues_used * sizeof *queues);
    free(orders->queues);
    orders->queues = queues;
    orders->queues_capacity = (uint32_t)capacity;
    return BOOK_OK;
}

uint32_t queue_take(l3_orders *orders, uint64_t price, unsigned side)
{
    uint32_t number = orders->unused_queue;
    int is_full = number == NO_QUEUE && orders->queues_used == orders->queues_capacity;
    if (is_full && queues_grow(orders) != BOOK_OK)
        return NO_QUEUE;
    void *block = take_block(orders, SMALLEST_QUEUE_SHIFT);
    if (block == NULL)
        return NO_QUEUE;
    if (number == NO_QUEUE)
        number = orders->queues_used++;
    else
        orders->unused_queue = orders->queues[number].tail;
    l3_queue *queue = &orders->queues[number];
    *queue = (l3_queue){.price = price, .side = (uint8_t)side};
    use_block(queue, block, SMALLEST_QUEUE_SHIFT);
    if (orders->has_sums) {
        clear_sums(queue);
        clear_taken(queue);
    }
    return number;
}

void queue_give_back(l3_orders *orders, uint32_t number)
{
    l3_queue *queue = &orders->queues[number];
    give_back_block(orders, queue);
    queue->count = 0;
    queue->tail = orders->unused_queue; /* of a queue not in use: the next such queue */
    orders->unused_queue = number;
}

/* A bit for each of 64 positions that is taken. The one order of a queue off the ladder may have no quantity;
 * all others have some. */
static uint64_t taken_positions(const l3_queue *queue, uint32_t first)
{
    uint32_t count = queue->tail - first < 64 ? queue->tail - first : 64;
    uint64_t bits = 0;
    if (!queue->on_ladder)
        return queue->count;
    for (uint32_t at = 0; at < count; at++)
        bits |= (uint64_t)(queue->quantities[first + at] != 0) << at;
    return bits;
}

size_t queue_positions(const l3_queue *queue, uint32_t *positions)
{
    size_t found = 0;
    for (uint32_t first = 0; first < queue->tail; first += 64) {
        for (uint64_t left = taken_positions(queue, first); left != 0; left &= left - 1)
            positions[found++] = first + (uint32_t)__builtin_ctzll(left);
    }
    return found;
}

void orders_keep_sums(l3_orders *orders)
{
    for (uint32_t number = 0; number < orders->queues_used && !orders->has_sums; number++) {
        l3_queue *queue = &orders->queues[number];
        if (queue->count == 0)
            continue;
        clear_sums(queue);
        clear_taken(queue);
        for (uint32_t first = 0; first < queue->tail; first += 64) {
            uint64_t left = queue->taken[first >> 6] = taken_positions(queue, first);
            for (; left != 0; left &= left - 1) {
                uint32_t position = first + (uint32_t)__builtin_ctzll(left);
                queue_add_sums(queue, position, queue->quantities[position], 1);
            }
        }
    }
    orders->has_sums = 1;
}

/* Appends what the queue had at 64 positions of its block before. The entries of all these orders are asked
 * for at once, so that their misses are waited for together. */
static void move_positions(l3_orders *orders, l3_queue *queue, const l3_queue *full, uint32_t first)
{
    const l3_detail *details = queue_details(full) + first;
    uint64_t taken = orders->has_sums ? full->taken[first >> 6] : taken_positions(full, first);
    if (orders->has_sums)
        full->taken[first >> 6] = 0; /* in the same block, bits are set again from the front */
    for (uint64_t left = taken; left != 0; left &= left - 1) {
        uint64_t id = details[__builtin_ctzll(left)].id;
        __builtin_prefetch(&orders->table[home_of(orders, hash_of_id(id))], 1);
    }
    for (uint64_t left = taken; left != 0; left &= left - 1) {
        unsigned at = (unsigned)__builtin_ctzll(left);
        l3_entry *entry = &orders->table[orders_locate(orders, details[at].id, hash_of_id(details[at].id))];
        uint32_t moved = queue_append(orders, queue, full->quantities[first + at], &details[at]);
        entry->where = where_of(queue_of(entry->where), moved);
    }
}

/* The same number of positions will do if half of them are free; else it takes twice as many. */
int queue_make_room(l3_orders *orders, l3_queue *queue)
{
    l3_queue full = *queue;
    unsigned shift = full.shift + (full.count > (uint32_t)1 << full.shift >> 1);
    if (shift >= QUEUE_SHIFTS - 1)
        return BOOK_TOO_MANY_ORDERS;
    void *larger = shift == full.shift ? NULL : take_block(orders, shift);
    if (shift != full.shift && larger == NULL)
        return BOOK_NO_MEMORY;
    if (larger != NULL)
        use_block(queue, larger, shift);
    if (orders->has_sums)
        clear_sums(queue);
    if (orders->has_sums && larger != NULL)
        clear_taken(queue);
    queue->tail = queue->count = 0;
    queue->total = 0;
    for (uint32_t first = 0; first < full.tail; first += 64)
        move_positions(orders, queue, &full, first);
    if (larger != NULL)
        give_back_block(orders, &full);
    return BOOK_OK;
}

void queue_rescale(l3_queue *queue, uint64_t price_factor, uint64_t size_factor)
{
    queue->price *= price_factor;
    queue->total *= size_factor;
    for (uint32_t at = 0; at < queue->tail; at++)
        queue->quantities[at] *= size_factor;
    for (size_t at = 0; at < sums_of(queue->shift, 3); at++) /* whatever they are, if they are not kept */
        queue->sums_8[at] *= size_factor;
    for (size_t at = 0; at < sums_of(queue->shift, 6) + sums_of(queue->shift, 9); at++)
        queue->sums_64[at][0] *= size_factor; /* and, right behind them, those of 512 */
}
