/* One side of an order book: key -> value, ordered, with the smallest key always at hand.
 *
 * Owns where a level is kept; knows nothing of events, sizes or orders. A key is a price (asks) or its
 * complement (bids), so the best level has the smallest key on both sides. A value is any 64 bits but 0,
 * which means that there is no level.
 *
 * Levels near the best lie in the window, an array indexed by (key - base) / tick with bitmaps above it.
 * All others lie in the far list, which is sorted. So every key can be stored, and common ones cost one
 * multiplication and one load. After enough visits to the far list the window is placed anew. */
#ifndef EVERLOG_BOOK_LADDER_H
#define EVERLOG_BOOK_LADDER_H

#include <stddef.h>
#include <stdint.h>

#define BITMAP_FLOORS 4u
#define MAX_WINDOW_TICKS ((uint64_t)1 << 24) /* what four floors of bitmaps of 64 can cover */
#define NO_KEY UINT64_MAX                    /* best_key of an empty ladder; also a possible key */

enum { /* what functions of the books return; negative ones are errors */
    BOOK_OK = 0,
    BOOK_NO_MEMORY = -1,
    BOOK_TOO_MANY_LEVELS = -2,
    BOOK_SCALE_OVERFLOW = -3,
    BOOK_BAD_SCALE = -4,
    BOOK_BAD_SIDE = -5,
    BOOK_GAP = -6,
    BOOK_SHORT_RECORD = -7,
    BOOK_BAD_VERSION = -8,
    BOOK_BAD_MODE = -9,
    BOOK_BAD_TYPE = -10,
    BOOK_DELTA = -11,
    BOOK_TOO_MANY_ORDERS = -12,
    BOOK_ZERO_ID = -13,
    BOOK_UNKNOWN_ORDER = -14,
    BOOK_DUPLICATE_ORDER = -15,
    BOOK_OVERFLOW = -16,
};

typedef struct far_chunk far_chunk;

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

int ladder_init(ladder *side, size_t max_levels, uint64_t max_window);
void ladder_free(ladder *side);
/* Removes every level. The window stays where it is: the next levels are likely to be near. */
void ladder_clear(ladder *side);
/* The first `wanted` levels from the best; returns how many there are. */
size_t ladder_first(const ladder *side, uint64_t *keys, uint64_t *values, size_t wanted);
/* Holds exactly these levels, which must be in rising order of key; on an error nothing is changed. */
int ladder_replace(ladder *side, const uint64_t *keys, const uint64_t *values, size_t count);

/* The parts of ladder_set that are rarely needed. */
int ladder_set_far(ladder *side, uint64_t key, uint64_t value);
uint64_t ladder_get_far(const ladder *side, uint64_t key);
void ladder_find_best(ladder *side, uint64_t from); /* no level of the window lies before place `from` */
void ladder_mark_above(ladder *side, uint64_t place);
void ladder_unmark_above(ladder *side, uint64_t place);

/* Where the key is in the window; a number of window_size or more if it is not there. For a key that is
 * no multiple of tick away from base the product is larger than any quotient, so one comparison
 * answers both questions. */
static inline uint64_t ladder_place(const ladder *side, uint64_t key)
{
    uint64_t product = (key - side->base) * side->inverse;
    return product >> side->shift | product << (-side->shift & 63);
}

static inline uint64_t ladder_get(const ladder *side, uint64_t key)
{
    uint64_t place = ladder_place(side, key);
    return place < side->window_size ? side->values[place] : ladder_get_far(side, key);
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
