/* One side of an order book: key -> value, ordered, with the smallest key always at hand.
 *
 * Owns where a level is kept; knows nothing of events, sizes or orders. A key is a price counted from the
 * lowest one there is (asks) or its complement (bids), so the best level has the smallest key on both sides.
 * A value is any 64 bits but 0, which means that there is no level.
 *
 * Levels near the best lie in the window, an array indexed by (key - base) / tick with bitmaps above it.
 * All others lie in the far list, which is sorted. So every key can be stored, and common ones cost one
 * multiplication and one load. After enough visits to the far list the window is placed anew. */
#ifndef EVERLOG_BOOK_LADDER_H
#define EVERLOG_BOOK_LADDER_H

#include <stdlib.h>

#include "book_protocol.h"

#define BITMAP_FLOORS 4u
#define MAX_WINDOW_TICKS ((uint64_t)1 << 24) /* what four floors of bitmaps of 64 can cover */
#define NO_KEY UINT64_MAX                    /* best_key of an empty ladder; also a possible key */
#define FAR_CHUNK_LEVELS 256u
#define FAR_CHUNK_SMALL 64u /* a chunk below this is joined with its follower if half a chunk holds both */
#define SMALLEST_WINDOW 1024u
#define FIRST_PATIENCE 16u
#define NEAR_LEVELS 64u /* neighbours that decide the tick if all levels together cannot */

typedef struct {
    uint32_t count;
    uint64_t keys[FAR_CHUNK_LEVELS];
    uint64_t values[FAR_CHUNK_LEVELS];
} far_chunk;

typedef struct {
    uint64_t first_key;
    far_chunk *chunk;
} far_entry;

typedef struct { /* sorted runs of levels, themselves sorted */
    far_entry *entries;
    size_t chunk_count, chunk_capacity;
    size_t count; /* levels */
} far_list;

typedef struct {
    /* Together on one line of cache: all that an update inside the window reads. */
    uint64_t base;        /* key of values[0] */
    uint64_t inverse;     /* of the odd part of tick, modulo 2^64 */
    uint64_t window_size; /* ticks that count; at most allocated */
    uint64_t *values;
    uint64_t *bits[BITMAP_FLOORS]; /* bits[0]: values that are not 0; bits[n]: words of bits[n - 1] not 0 */
    uint64_t best_key, best_value; /* NO_KEY and 0 if empty */
    uint32_t shift;                /* twos in tick */
    uint64_t tick;
    size_t count; /* levels, far ones included */
    size_t max_levels;
    uint64_t allocated; /* ticks; a power of two */
    uint64_t max_window;
    uint64_t misses;   /* visits to the far list since the window was placed */
    uint64_t patience; /* misses after which it is placed anew, around the last one if it cannot hold all */
    far_list far;
} ladder;

/* Where the key is in the window; a number of window_size or more if it is not there. For a key that is
 * no multiple of tick away from base the product is larger than any quotient, so one comparison
 * answers both questions. */
static inline uint64_t ladder_place(const ladder *side, uint64_t key)
{
    uint64_t product = (key - side->base) * side->inverse;
    return product >> side->shift | product << (-side->shift & 63);
}

/* --- Bitmaps ----------------------------------------------------------------------------------------- */

static void ladder_mark_above(ladder *side, uint64_t place)
{
    for (unsigned floor = 1; floor < BITMAP_FLOORS; floor++, place >>= 6) {
        uint64_t *word = &side->bits[floor][place >> 6];
        uint64_t before = *word;
        *word = before | (uint64_t)1 << (place & 63);
        if (before != 0)
            return;
    }
}

static void ladder_unmark_above(ladder *side, uint64_t place)
{
    for (unsigned floor = 1; floor < BITMAP_FLOORS; floor++, place >>= 6) {
        uint64_t *word = &side->bits[floor][place >> 6];
        *word &= ~((uint64_t)1 << (place & 63));
        if (*word != 0)
            return;
    }
}

/* Stores the value at a place of the window. Which levels come and go is random, so a branch on it would be
 * guessed wrong half the time: the lowest bitmap and the count are written without one. */
static inline void ladder_put(ladder *side, uint64_t place, uint64_t value)
{
    uint64_t *word = &side->bits[0][place >> 6];
    uint64_t before = *word;
    unsigned bit = place & 63;
    uint64_t after = (before & ~((uint64_t)1 << bit)) | (uint64_t)(value != 0) << bit;
    side->values[place] = value;
    *word = after;
    side->count += (size_t)(after >> bit & 1) - (size_t)(before >> bit & 1);
    if (__builtin_expect((before == 0) != (after == 0), 0)) {
        if (after != 0)
            ladder_mark_above(side, place >> 6);
        else
            ladder_unmark_above(side, place >> 6);
    }
}

/* The first place at or behind `place` that holds a level; window_size if there is none. */
static uint64_t next_place(const ladder *side, uint64_t place)
{
    uint64_t entries = side->allocated;
    unsigned floor = 0;
    for (; floor < BITMAP_FLOORS; floor++) { /* up, until a word has a bit at or behind the place */
        if (place >= entries)
            return side->window_size;
        uint64_t word = side->bits[floor][place >> 6] & ~(uint64_t)0 << (place & 63);
        if (word != 0) {
            place = (place & ~(uint64_t)63) + (uint64_t)__builtin_ctzll(word);
            break;
        }
        place = (place >> 6) + 1;
        entries = (entries + 63) >> 6;
    }
    if (floor == BITMAP_FLOORS)
        return side->window_size;
    while (floor-- > 0) /* and down again, to the lowest bit each time */
        place = place << 6 | (uint64_t)__builtin_ctzll(side->bits[floor][place]);
    return place;
}

/* --- Far list ---------------------------------------------------------------------------------------- */

/* The chunk that holds the key or would: the last one whose first key is not larger, else the first. */
static size_t far_chunk_of(const far_list *far, uint64_t key)
{
    size_t low = 0, high = far->chunk_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (far->entries[middle].first_key <= key)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The first position in the chunk whose key is not smaller. */
static uint32_t far_position(const far_chunk *chunk, uint64_t key)
{
    uint32_t low = 0, high = chunk->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (chunk->keys[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int far_add_chunk(far_list *far, size_t at, far_chunk *chunk)
{
    if (far->chunk_count == far->chunk_capacity) {
        size_t capacity = far->chunk_capacity ? 2 * far->chunk_capacity : 4;
        far_entry *entries = realloc(far->entries, capacity * sizeof *entries);
        if (entries == NULL)
            return BOOK_NO_MEMORY;
        far->entries = entries;
        far->chunk_capacity = capacity;
    }
    memmove(far->entries + at + 1, far->entries + at, (far->chunk_count - at) * sizeof *far->entries);
    far->entries[at] = (far_entry){chunk->count ? chunk->keys[0] : 0, chunk};
    far->chunk_count++;
    return BOOK_OK;
}

static void far_drop_chunk(far_list *far, size_t at)
{
    free(far->entries[at].chunk);
    far->chunk_count--;
    memmove(far->entries + at, far->entries + at + 1, (far->chunk_count - at) * sizeof *far->entries);
}

/* Moves the upper half of a full chunk into a new one behind it. */
static int far_split(far_list *far, size_t at)
{
    far_chunk *full = far->entries[at].chunk;
    far_chunk *upper = malloc(sizeof *upper);
    if (upper == NULL)
        return BOOK_NO_MEMORY;
    uint32_t kept = full->count / 2;
    upper->count = full->count - kept;
    memcpy(upper->keys, full->keys + kept, upper->count * sizeof *upper->keys);
    memcpy(upper->values, full->values + kept, upper->count * sizeof *upper->values);
    if (far_add_chunk(far, at + 1, upper) != BOOK_OK) {
        free(upper);
        return BOOK_NO_MEMORY;
    }
    full->count = kept;
    return BOOK_OK;
}

static int far_insert(far_list *far, uint64_t key, uint64_t value)
{
    if (far->chunk_count == 0) {
        far_chunk *chunk = malloc(sizeof *chunk);
        if (chunk == NULL)
            return BOOK_NO_MEMORY;
        chunk->count = 0;
        if (far_add_chunk(far, 0, chunk) != BOOK_OK) {
            free(chunk);
            return BOOK_NO_MEMORY;
        }
    }
    size_t at = far_chunk_of(far, key);
    if (far->entries[at].chunk->count == FAR_CHUNK_LEVELS) {
        if (far_split(far, at) != BOOK_OK)
            return BOOK_NO_MEMORY;
        at = far_chunk_of(far, key);
    }
    far_chunk *chunk = far->entries[at].chunk;
    uint32_t position = far_position(chunk, key);
    uint32_t behind = chunk->count - position;
    memmove(chunk->keys + position + 1, chunk->keys + position, behind * sizeof *chunk->keys);
    memmove(chunk->values + position + 1, chunk->values + position, behind * sizeof *chunk->values);
    chunk->keys[position] = key;
    chunk->values[position] = value;
    chunk->count++;
    far->entries[at].first_key = chunk->keys[0];
    far->count++;
    return BOOK_OK;
}

/* Joins a chunk that became small with its follower, so that removals give memory back. */
static void far_join(far_list *far, size_t at)
{
    far_chunk *chunk = far->entries[at].chunk;
    if (chunk->count >= FAR_CHUNK_SMALL || at + 1 >= far->chunk_count)
        return;
    far_chunk *follower = far->entries[at + 1].chunk;
    if (chunk->count + follower->count > FAR_CHUNK_LEVELS / 2)
        return;
    memcpy(chunk->keys + chunk->count, follower->keys, follower->count * sizeof *chunk->keys);
    memcpy(chunk->values + chunk->count, follower->values, follower->count * sizeof *chunk->values);
    chunk->count += follower->count;
    far_drop_chunk(far, at + 1);
}

static void far_remove(far_list *far, size_t at, uint32_t position)
{
    far_chunk *chunk = far->entries[at].chunk;
    uint32_t behind = chunk->count - position - 1;
    memmove(chunk->keys + position, chunk->keys + position + 1, behind * sizeof *chunk->keys);
    memmove(chunk->values + position, chunk->values + position + 1, behind * sizeof *chunk->values);
    chunk->count--;
    far->count--;
    if (chunk->count == 0) {
        far_drop_chunk(far, at);
        return;
    }
    far->entries[at].first_key = chunk->keys[0];
    far_join(far, at);
}

static void far_clear(far_list *far)
{
    for (size_t at = 0; at < far->chunk_count; at++)
        free(far->entries[at].chunk);
    far->chunk_count = 0;
    far->count = 0;
}

/* Where the value of the key is; NULL if there is no such level. */
static uint64_t *far_find(const far_list *far, uint64_t key, size_t *at, uint32_t *position)
{
    if (far->count == 0)
        return NULL;
    *at = far_chunk_of(far, key);
    far_chunk *chunk = far->entries[*at].chunk;
    *position = far_position(chunk, key);
    if (*position == chunk->count || chunk->keys[*position] != key)
        return NULL;
    return &chunk->values[*position];
}

static uint64_t ladder_get_far(const ladder *side, uint64_t key)
{
    size_t at;
    uint32_t position;
    uint64_t *value = far_find(&side->far, key, &at, &position);
    return value == NULL ? 0 : *value;
}

static inline uint64_t ladder_get(const ladder *side, uint64_t key)
{
    uint64_t place = ladder_place(side, key);
    return place < side->window_size ? side->values[place] : ladder_get_far(side, key);
}

/* The first `wanted` levels from the best; returns how many there are. */
static size_t ladder_first(const ladder *side, uint64_t *keys, uint64_t *values, size_t wanted)
{
    size_t found = 0, at = 0;
    uint32_t position = 0;
    uint64_t place = side->values == NULL ? 0 : next_place(side, 0);
    while (found < wanted) {
        const far_chunk *chunk = at < side->far.chunk_count ? side->far.entries[at].chunk : NULL;
        uint64_t key = side->base + place * side->tick;
        int in_window = place < side->window_size;
        if (!in_window && chunk == NULL)
            break;
        if (in_window && (chunk == NULL || key < chunk->keys[position])) {
            keys[found] = key;
            values[found++] = side->values[place];
            place = next_place(side, place + 1);
            continue;
        }
        keys[found] = chunk->keys[position];
        values[found++] = chunk->values[position];
        if (++position == chunk->count) {
            position = 0;
            at++;
        }
    }
    return found;
}

/* --- Placing the window ------------------------------------------------------------------------------- */

typedef struct {
    uint64_t base, tick, size;
} window_plan;

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The largest step all these keys are multiples of, counted from the first; 0 for a single key. */
static uint64_t step_of(const uint64_t *keys, size_t count)
{
    uint64_t step = 0;
    for (size_t at = 1; at < count && step != 1; at++)
        step = common_divisor(keys[at] - keys[0], step);
    return step;
}

/* The most frequent distance between neighbours. */
static uint64_t usual_distance(const uint64_t *keys, size_t count)
{
    size_t most = 0;
    uint64_t usual = 1;
    for (size_t one = 1; one < count; one++) {
        size_t same = 0;
        for (size_t other = 1; other < count; other++)
            same += keys[other] - keys[other - 1] == keys[one] - keys[one - 1];
        if (same > most) {
            most = same;
            usual = keys[one] - keys[one - 1];
        }
    }
    return usual;
}

static window_plan around(uint64_t key, uint64_t before, uint64_t tick, uint64_t size)
{
    uint64_t room = key / tick; /* so that no place stands for a key below 0 */
    return (window_plan){key - (before < room ? before : room) * tick, tick, size};
}

/* The first of the NEAR_LEVELS levels around the key. */
static size_t near_levels(const uint64_t *keys, size_t count, uint64_t key)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (keys[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    size_t first = low < NEAR_LEVELS / 2 ? 0 : low - NEAR_LEVELS / 2;
    size_t last_first = count < NEAR_LEVELS ? 0 : count - NEAR_LEVELS;
    return first < last_first ? first : last_first;
}

/* A window for these levels: over all of them with as much room again, or around the key. */
static window_plan plan_window(const ladder *side, const uint64_t *keys, size_t count, uint64_t key)
{
    uint64_t tick = step_of(keys, count);
    if (tick == 0)
        tick = side->tick;
    uint64_t ticks = (keys[count - 1] - keys[0]) / tick;
    if (ticks < side->max_window / 2) {
        uint64_t size = SMALLEST_WINDOW > side->allocated ? SMALLEST_WINDOW : side->allocated;
        while (size < 2 * ticks + 2)
            size *= 2;
        if (size <= side->max_window)
            return around(keys[0], (size - ticks) / 2, tick, size);
    }
    const uint64_t *near = keys + near_levels(keys, count, key);
    count = count < NEAR_LEVELS ? count : NEAR_LEVELS;
    tick = step_of(near, count);
    if (tick == 0 || (near[count - 1] - near[0]) / tick > side->max_window / 2)
        tick = usual_distance(near, count);
    return around(key, side->max_window / 2, tick, side->max_window);
}

/* The inverse of an odd number modulo 2^64; each step doubles the number of right bits. */
static uint64_t inverse_of(uint64_t odd)
{
    uint64_t inverse = odd;
    for (int step = 0; step < 6; step++)
        inverse *= 2 - odd * inverse;
    return inverse;
}

/* Zeroed arrays for a window of this many ticks, in one allocation. */
static int allocate_window(uint64_t size, uint64_t **values, uint64_t *bits[BITMAP_FLOORS])
{
    uint64_t words = size, floors[BITMAP_FLOORS];
    uint64_t entries = size;
    for (unsigned floor = 0; floor < BITMAP_FLOORS; floor++) {
        entries = (entries + 63) >> 6;
        floors[floor] = entries;
        words += entries;
    }
    *values = calloc(words, sizeof **values);
    if (*values == NULL)
        return BOOK_NO_MEMORY;
    uint64_t *next = *values + size;
    for (unsigned floor = 0; floor < BITMAP_FLOORS; floor++) {
        bits[floor] = next;
        next += floors[floor];
    }
    return BOOK_OK;
}

static void empty_window(ladder *side)
{
    uint64_t place = next_place(side, 0);
    for (; place < side->window_size; place = next_place(side, place + 1)) {
        ladder_put(side, place, 0);
    }
}

/* Removes every level. The window stays where it is: the next levels are likely to be near. */
static void ladder_clear(ladder *side)
{
    if (side->values != NULL)
        empty_window(side);
    far_clear(&side->far);
    side->count = 0;
    side->best_key = NO_KEY;
    side->best_value = 0;
}

static void use_plan(ladder *side, window_plan plan)
{
    side->base = plan.base;
    side->tick = plan.tick;
    side->shift = (uint32_t)__builtin_ctzll(plan.tick);
    side->inverse = inverse_of(plan.tick >> side->shift);
    /* The last place must not stand for a key above the largest one. */
    uint64_t room = (UINT64_MAX - plan.base) / plan.tick;
    side->window_size = room < plan.size - 1 ? room + 1 : plan.size;
}

/* Puts the levels where the new window wants them. The far list must have been built before. */
static void fill_window(ladder *side, const uint64_t *keys, const uint64_t *values, size_t count)
{
    side->count = side->far.count;
    for (size_t at = 0; at < count; at++) {
        uint64_t place = ladder_place(side, keys[at]);
        if (place >= side->window_size)
            continue;
        ladder_put(side, place, values[at]);
    }
    side->best_key = count ? keys[0] : NO_KEY;
    side->best_value = count ? values[0] : 0;
}

static int build_far(const ladder *placed, far_list *far, const uint64_t *keys, const uint64_t *values,
                     size_t count)
{
    for (size_t at = 0; at < count; at++) {
        if (ladder_place(placed, keys[at]) < placed->window_size)
            continue;
        if (far_insert(far, keys[at], values[at]) != BOOK_OK) {
            far_clear(far);
            free(far->entries);
            return BOOK_NO_MEMORY;
        }
    }
    return BOOK_OK;
}

static int place_levels(ladder *side, window_plan plan, const uint64_t *keys, const uint64_t *values,
                        size_t count)
{
    ladder placed = *side;
    far_list far = {0};
    use_plan(&placed, plan);
    if (plan.size > side->allocated) {
        if (allocate_window(plan.size, &placed.values, placed.bits) != BOOK_OK)
            return BOOK_NO_MEMORY;
        placed.allocated = plan.size;
    }
    if (build_far(&placed, &far, keys, values, count) != BOOK_OK) {
        if (placed.values != side->values)
            free(placed.values);
        return BOOK_NO_MEMORY;
    }
    if (placed.values == side->values)
        empty_window(side);
    else
        free(side->values);
    far_clear(&side->far);
    free(side->far.entries);
    placed.far = far;
    fill_window(&placed, keys, values, count);
    *side = placed;
    return BOOK_OK;
}

static int replace_around(ladder *side, const uint64_t *keys, const uint64_t *values, size_t count,
                          uint64_t key)
{
    int status = place_levels(side, plan_window(side, keys, count, key), keys, values, count);
    if (status == BOOK_OK) {
        side->misses = 0;
        side->patience = FIRST_PATIENCE + count / 4;
    }
    return status;
}

/* Holds exactly these levels, which must be in rising order of key; on an error nothing is changed. */
static int ladder_replace(ladder *side, const uint64_t *keys, const uint64_t *values, size_t count)
{
    if (count > side->max_levels)
        return BOOK_TOO_MANY_LEVELS;
    if (count == 0) {
        ladder_clear(side);
        return BOOK_OK;
    }
    return replace_around(side, keys, values, count, keys[0]);
}

/* Places the window anew; its cost has been earned by the visits to the far list that led here. Without
 * memory for it everything stays as it is, which is slower and as right. */
static void replan(ladder *side, uint64_t key)
{
    side->misses = 0;
    uint64_t *keys = side->count ? malloc(2 * side->count * sizeof *keys) : NULL;
    if (keys == NULL)
        return;
    uint64_t base = side->base, tick = side->tick, size = side->window_size, patience = side->patience;
    size_t count = ladder_first(side, keys, keys + side->count, side->count);
    int status = replace_around(side, keys, keys + count, count, key);
    if (status != BOOK_OK || (base == side->base && tick == side->tick && size == side->window_size))
        side->patience = patience < UINT64_MAX / 2 ? 2 * patience : patience; /* it cannot be better placed */
    free(keys);
}

/* --- The ladder --------------------------------------------------------------------------------------- */

static void ladder_init(ladder *side, size_t max_levels, uint64_t max_window)
{
    memset(side, 0, sizeof *side);
    side->max_levels = max_levels;
    side->max_window = SMALLEST_WINDOW;
    while (side->max_window < max_window && side->max_window < MAX_WINDOW_TICKS)
        side->max_window *= 2;
    side->patience = 1; /* the first level places the window */
    side->tick = 1;
    side->inverse = 1;
    side->best_key = NO_KEY;
}

static void ladder_free(ladder *side)
{
    far_clear(&side->far);
    free(side->far.entries);
    free(side->values);
    memset(side, 0, sizeof *side);
}

/* Finds the best level; no level of the window lies before place `from`. */
static void ladder_find_best(ladder *side, uint64_t from)
{
    side->best_key = NO_KEY;
    side->best_value = 0;
    uint64_t place = side->values == NULL ? 0 : next_place(side, from);
    if (place < side->window_size) {
        side->best_key = side->base + place * side->tick;
        side->best_value = side->values[place];
    }
    if (side->far.count == 0)
        return;
    const far_chunk *first = side->far.entries[0].chunk;
    if (side->best_value == 0 || first->keys[0] < side->best_key) {
        side->best_key = first->keys[0];
        side->best_value = first->values[0];
    }
}

static int ladder_set_far(ladder *side, uint64_t key, uint64_t value)
{
    size_t at;
    uint32_t position;
    uint64_t *kept = far_find(&side->far, key, &at, &position);
    if (value == 0) {
        if (kept == NULL)
            return BOOK_OK;
        far_remove(&side->far, at, position);
        side->count--;
        if (key == side->best_key)
            ladder_find_best(side, 0);
    } else if (kept != NULL) {
        *kept = value;
    } else {
        if (side->count >= side->max_levels)
            return BOOK_TOO_MANY_LEVELS;
        if (far_insert(&side->far, key, value) != BOOK_OK)
            return BOOK_NO_MEMORY;
        side->count++;
    }
    if (value != 0 && key <= side->best_key) {
        side->best_key = key;
        side->best_value = value;
    }
    if (++side->misses >= side->patience)
        replan(side, key);
    return BOOK_OK;
}

/* Stores the value under the key; 0 removes the level. */
static inline int ladder_set(ladder *side, uint64_t key, uint64_t value)
{
    uint64_t place = ladder_place(side, key);
    if (__builtin_expect(place >= side->window_size, 0))
        return ladder_set_far(side, key, value);
    if (__builtin_expect(side->count >= side->max_levels, 0) && value != 0 && side->values[place] == 0)
        return BOOK_TOO_MANY_LEVELS;
    ladder_put(side, place, value);
    if (key <= side->best_key) {
        if (value != 0) {
            side->best_key = key;
            side->best_value = value;
        } else if (side->best_value != 0 && key == side->best_key) {
            ladder_find_best(side, place);
        }
    }
    return BOOK_OK;
}

#endif
