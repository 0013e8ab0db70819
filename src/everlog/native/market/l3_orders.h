/* The orders of one book: a table from id to place, and the queue of each price.
 *
 * Owns their memory. Knows no events and no sides' order of prices: queues are handed out and taken back
 * here, and kept in a ladder by l3_book.h. An order is where its queue keeps it; the table says where. So the
 * usual event reads one line of the table and a few of the queue, and no third place.
 *
 * A queue is named by its number, which stays as long as it has orders. Pointers to queues hold until the
 * next queue_take. An order that stands on no price (a market order, say) is alone in a queue of its own. */
#ifndef EVERLOG_L3_ORDERS_H
#define EVERLOG_L3_ORDERS_H

#include <sys/mman.h>

#include "book_ladder.h"

#define NO_QUEUE UINT32_MAX
#define SMALLEST_QUEUE_SHIFT 3u
#define QUEUE_SHIFTS 32u
#define FIRST_TABLE 1024u
#define FIRST_QUEUES 16u
#define LINE_BYTES 64u
#define HUGE_PAGE_BYTES ((size_t)1 << 21)
#define FIRST_CHUNK_BYTES ((size_t)1 << 12)
#define READ_BEHIND 72u /* seven pairs from the first sum of 64, in a queue that has only one of each sum */

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
    int64_t price;
    uint64_t total;
    uint32_t count; /* orders; 0 = the queue is not in use */
    uint32_t tail;  /* the next position */
    uint64_t *quantities, *sums_8;
    sum_pair *sums_64;
    uint64_t *taken; /* a bit per position */
    uint32_t shift;  /* log2 of the number of positions */
    uint8_t side;    /* of the protocol: 0 unknown, 1 buy, 2 sell */
    uint8_t on_ladder;
    uint8_t no_price; /* of an order off the ladder: its price means nothing */
    uint8_t reserved;
} l3_queue;

typedef struct { /* id 0 = empty */
    uint64_t id;
    uint64_t where; /* see where_of */
} l3_entry;

_Static_assert(sizeof(l3_detail) == 24, "details of an order");
_Static_assert(sizeof(l3_queue) == 64, "a queue is one line of cache");
_Static_assert(sizeof(l3_entry) == 16, "four entries on a line of cache");

typedef struct queue_block { /* memory for the arrays of one queue, while it is not in use */
    struct queue_block *next;
} queue_block;

typedef struct queue_chunk { /* from which blocks are cut; they follow on the next line of cache */
    struct queue_chunk *next;
} queue_chunk;

typedef struct {
    l3_entry *table;
    uint64_t mask;       /* entries - 1 */
    uint32_t hash_shift; /* bits of a hash that do not count */
    size_t count, room;  /* orders; how many there may be before orders_make_room must look */
    size_t max_orders;
    int has_sums; /* places have been asked for, so the queues keep their sums */
    l3_queue *queues;
    uint32_t queues_used, queues_capacity, unused_queue; /* ever used; allocated; the first one given back */
    queue_block *unused_blocks[QUEUE_SHIFTS];
    queue_chunk *chunks;
    uint8_t *chunk_at; /* where the next block is cut */
    size_t chunk_left, chunk_size;
} l3_orders;

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

#define WANTED(row, at) ((row) > (at) ? UINT64_MAX : 0)
#define NUMBERS(row)                                                                                         \
    {WANTED(row, 0), WANTED(row, 1), WANTED(row, 2), WANTED(row, 3),                                         \
     WANTED(row, 4), WANTED(row, 5), WANTED(row, 6), WANTED(row, 7)}
#define PAIR(row, at) {WANTED(row, at), WANTED(row, at)}
#define PAIRS(row)                                                                                           \
    {PAIR(row, 0), PAIR(row, 1), PAIR(row, 2), PAIR(row, 3), PAIR(row, 4), PAIR(row, 5), PAIR(row, 6)}
#define EIGHT_ROWS(of) {of(0), of(1), of(2), of(3), of(4), of(5), of(6), of(7)}

/* Row n: n times all bits, then none. */
static const uint64_t FIRST_NUMBERS[8][8] = EIGHT_ROWS(NUMBERS);
static const sum_pair FIRST_PAIRS[8][7] = EIGHT_ROWS(PAIRS);

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

static void orders_free(l3_orders *orders)
{
    free_chunks(orders);
    free(orders->table);
    free(orders->queues);
    memset(orders, 0, sizeof *orders);
}

static int orders_init(l3_orders *orders, size_t max_orders)
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

/* Forgets every order and every queue. */
static void orders_clear(l3_orders *orders)
{
    free_chunks(orders);
    memset(orders->table, 0, (orders->mask + 1) * sizeof *orders->table);
    orders->queues_used = 0;
    orders->unused_queue = NO_QUEUE;
    orders->count = 0;
}

/* --- Growing the table -------------------------------------------------------------------------------- */

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

/* Makes room for one more order, or says why not; `place` is where its entry goes then. */
static int orders_make_room(l3_orders *orders, uint64_t id, uint64_t *place)
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

/* A queue without orders; NO_QUEUE without memory. */
static uint32_t queue_take(l3_orders *orders, int64_t price, unsigned side)
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

static void queue_give_back(l3_orders *orders, uint32_t number)
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

/* Positions that are taken, in order of arrival; returns how many. */
static size_t queue_positions(const l3_queue *queue, uint32_t *positions)
{
    size_t found = 0;
    for (uint32_t first = 0; first < queue->tail; first += 64) {
        for (uint64_t left = taken_positions(queue, first); left != 0; left &= left - 1)
            positions[found++] = first + (uint32_t)__builtin_ctzll(left);
    }
    return found;
}

/* Has every queue keep its sums from now on; before that, what is ahead of a position must not be asked. */
static void orders_keep_sums(l3_orders *orders)
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

/* Moves the orders to the front. The same number of positions will do if half of them are free; else it takes
 * twice as many, of a larger block. */
static int queue_make_room(l3_orders *orders, l3_queue *queue)
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

/* Multiplies price and quantities; the caller made sure that they fit. */
static void queue_rescale(l3_queue *queue, uint64_t price_factor, uint64_t size_factor)
{
    queue->price *= (int64_t)price_factor;
    queue->total *= size_factor;
    for (uint32_t at = 0; at < queue->tail; at++)
        queue->quantities[at] *= size_factor;
    for (size_t at = 0; at < sums_of(queue->shift, 3); at++) /* whatever they are, if they are not kept */
        queue->sums_8[at] *= size_factor;
    for (size_t at = 0; at < sums_of(queue->shift, 6) + sums_of(queue->shift, 9); at++)
        queue->sums_64[at][0] *= size_factor; /* and, right behind them, those of 512 */
}

#endif
