/* What L2 and L3 books share: the state of a book, and what is written about events.
 *
 * Owns the structs shared with NumPy dtypes (market/books.py); their sizes are asserted here and there. */
#ifndef EVERLOG_BOOK_CORE_H
#define EVERLOG_BOOK_CORE_H

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "book_ladder.h"

#define STREAM_ALIGNMENT 64u /* a line of cache */

enum { GAP_PANIC = 0, GAP_QUARANTINE = 1, GAP_IGNORE = 2, GAP_UNCHECKED = 3 /* the caller checks */ };
/* what became of one event */
enum {
    EVENT_APPLIED = 0,
    EVENT_QUARANTINED = 1, /* skipped: a gap came before and no snapshot since */
    EVENT_STALE = 2,       /* skipped: older than the snapshot before it */
    EVENT_UNKNOWN_ORDER = 3,
};

typedef struct {
    int64_t price;
    uint64_t size;
} book_level;

typedef struct { /* a side is empty if its size is 0 */
    int64_t bid_price;
    uint64_t bid_size;
    int64_t ask_price;
    uint64_t ask_size;
} book_top;

typedef struct { /* of the order an event is about; both UINT64_MAX if it is in no queue */
    uint64_t orders_ahead, size_ahead;
} book_queue_place;

typedef struct { /* one line of a report; what the numbers mean depends on the report */
    uint64_t index, first, second, third, fourth;
} report_row;

typedef struct {
    report_row *rows;
    size_t count, capacity;
} report;

typedef struct {  /* what a caller wants to know of an array; NULL pointers and 0 = not wanted */
    size_t every; /* a row of output after this many events; 0 = never */
    size_t since; /* events since the last row */
    size_t rows;  /* written */
    size_t room;  /* rows that the arrays hold */
    book_top *tops;
    size_t depth;
    book_level *bids, *asks;           /* `depth` levels a row */
    uint32_t *bid_orders, *ask_orders; /* how many orders each of these levels has (L3) */
    uint64_t *scratch;                 /* 2 * depth */
    book_queue_place *places;          /* one per event (L3) */
    uint8_t *statuses;                 /* one per event */
    int want_drift, want_trades;
    report gaps;   /* first: last number seen, second: number found */
    report drifts; /* first: levels in the snapshot only, second: in the book only, third: other size */
    report scales; /* first: price scale, second: size scale, from this event on */
    report trades; /* first: taken from the bid order, second: from the ask order; then price and size */
} book_output;

_Static_assert(sizeof(book_level) == 16, "Level");
_Static_assert(sizeof(book_top) == 32, "top of book");
_Static_assert(sizeof(report_row) == 40, "row of a report");

/* --- The state of a book ------------------------------------------------------------------------------- */

typedef struct book_core book_core;

typedef struct { /* what L2 and L3 do differently; a book is given by its first member */
    /* Applies one event; `index` names it in reports, `status` says what became of it. */
    int (*apply)(book_core *core, const uint8_t *payload, size_t length, uint64_t index, book_output *output,
                 uint8_t *status);
    book_top (*top)(const book_core *core);
    /* The best levels of a side (0 = bids, 1 = asks); `orders` gets their order counts (L3) or is NULL. */
    size_t (*depth)(const book_core *core, unsigned side, book_level *levels, uint32_t *orders, size_t wanted,
                    uint64_t *scratch);
    /* Multiplies all prices and sizes; an error if a product does not fit. */
    int (*rescale)(book_core *core, uint64_t price_factor, uint64_t size_factor);
    void (*clear)(book_core *core);
} book_kind;

struct book_core {
    ladder sides[2]; /* bids, asks */
    const book_kind *kind;
    uint8_t scales[2]; /* price, size */
    uint8_t has_scale;
    uint8_t gap_policy, quarantined;
    uint64_t last_seq, last_exchange_ts_ns, last_ingest_ts_ns; /* of the last event applied */
    uint64_t gap_seen, gap_found; /* of the last gap: the number before it, the number after it */
};

static int report_add(report *into, report_row row)
{
    if (into->count == into->capacity) {
        size_t capacity = into->capacity ? 2 * into->capacity : 16;
        report_row *rows = realloc(into->rows, capacity * sizeof *rows);
        if (rows == NULL)
            return BOOK_NO_MEMORY;
        into->rows = rows;
        into->capacity = capacity;
    }
    into->rows[into->count++] = row;
    return BOOK_OK;
}

static void output_free_reports(book_output *output)
{
    report *reports[] = {&output->gaps, &output->drifts, &output->scales, &output->trades};
    for (size_t at = 0; at < sizeof reports / sizeof *reports; at++) {
        free(reports[at]->rows);
        memset(reports[at], 0, sizeof *reports[at]);
    }
}

static void core_init(book_core *core, const book_kind *kind, size_t max_levels, uint64_t max_window,
                      int gap_policy)
{
    memset(core, 0, sizeof *core);
    core->kind = kind;
    core->gap_policy = (uint8_t)gap_policy;
    ladder_init(&core->sides[0], max_levels, max_window);
    ladder_init(&core->sides[1], max_levels, max_window);
}

static void core_free(book_core *core)
{
    ladder_free(&core->sides[0]);
    ladder_free(&core->sides[1]);
}

/* Removes every level. */
static void core_clear(book_core *core)
{
    ladder_clear(&core->sides[0]);
    ladder_clear(&core->sides[1]);
}

/* What makes keys of prices and prices of keys: all bits but the sign's for bids (0), the sign's for asks
 * (1). Without a branch: which side comes next is random. */
static inline uint64_t side_mask(unsigned side)
{
    return (uint64_t)INT64_MAX + side;
}

/* Multiplies every level of a side; nothing is changed if a product does not fit. */
static int core_rescale_side(book_core *core, unsigned number, uint64_t price_factor, uint64_t value_factor)
{
    ladder *side = &core->sides[number];
    uint64_t mask = side_mask(number);
    if (side->count == 0 || (price_factor | value_factor) == 1)
        return BOOK_OK;
    uint64_t *keys = malloc(2 * side->count * sizeof *keys);
    if (keys == NULL)
        return BOOK_NO_MEMORY;
    uint64_t *values = keys + side->count;
    size_t count = ladder_first(side, keys, values, side->count);
    int status = BOOK_OK;
    for (size_t at = 0; at < count && status == BOOK_OK; at++) {
        int64_t price;
        if (__builtin_mul_overflow((int64_t)(keys[at] ^ mask), price_factor, &price) ||
            __builtin_mul_overflow(values[at], value_factor, &values[at]))
            status = BOOK_SCALE_OVERFLOW;
        keys[at] = (uint64_t)price ^ mask;
    }
    if (status == BOOK_OK)
        status = ladder_replace(side, keys, values, count);
    free(keys);
    return status;
}

/* Reports a gap; an error only under GAP_PANIC. */
static int core_note_gap(book_core *core, uint64_t seen, uint64_t found, uint64_t index, book_output *output)
{
    core->gap_seen = seen;
    core->gap_found = found;
    if (output != NULL && report_add(&output->gaps, (report_row){index, seen, found, 0, 0}) != BOOK_OK)
        return BOOK_NO_MEMORY;
    if (core->gap_policy == GAP_PANIC)
        return BOOK_GAP;
    if (core->gap_policy == GAP_QUARANTINE)
        core->quarantined = 1;
    return BOOK_OK;
}

/* Brings the book to at least these scales; `core_adopt_scales` also reports it if they rise. */
static int core_raise_scales(book_core *core, uint8_t price_scale, uint8_t size_scale)
{
    if (price_scale > LARGEST_SCALE || size_scale > LARGEST_SCALE)
        return BOOK_BAD_SCALE;
    if (core->has_scale) {
        const uint8_t *scales = core->scales;
        price_scale = price_scale > scales[0] ? price_scale : scales[0];
        size_scale = size_scale > scales[1] ? size_scale : scales[1];
        int status = core->kind->rescale(core, TENS[price_scale - scales[0]], TENS[size_scale - scales[1]]);
        if (status != BOOK_OK)
            return status;
    }
    core->scales[0] = price_scale;
    core->scales[1] = size_scale;
    core->has_scale = 1;
    return BOOK_OK;
}

static int core_adopt_scales(book_core *core, uint8_t price_scale, uint8_t size_scale, uint64_t index,
                             book_output *output)
{
    if (core->has_scale && price_scale <= core->scales[0] && size_scale <= core->scales[1])
        return BOOK_OK;
    int status = core_raise_scales(core, price_scale, size_scale);
    if (status == BOOK_OK && output != NULL)
        status = report_add(&output->scales, (report_row){index, core->scales[0], core->scales[1], 0, 0});
    return status;
}

/* Writes the top and the levels that are wanted. */
static void core_write_row(const book_core *core, book_output *output)
{
    size_t at = output->rows * output->depth;
    if (output->tops != NULL)
        output->tops[output->rows] = core->kind->top(core);
    if (output->depth != 0) {
        uint32_t *bid_orders = output->bid_orders == NULL ? NULL : output->bid_orders + at;
        uint32_t *ask_orders = output->ask_orders == NULL ? NULL : output->ask_orders + at;
        core->kind->depth(core, 0, output->bids + at, bid_orders, output->depth, output->scratch);
        core->kind->depth(core, 1, output->asks + at, ask_orders, output->depth, output->scratch);
    }
    output->rows++;
    output->since = 0;
}

/* Notes the outcome of an event, and writes a row if one is due. */
static inline void core_finish_event(const book_core *core, size_t index, uint8_t status, book_output *output)
{
    if (output->statuses != NULL)
        output->statuses[index] = status;
    if (++output->since == output->every)
        core_write_row(core, output);
}

/* Applies payloads that lie in one buffer; returns how many, and why it stopped in `error`. */
static size_t core_apply_scattered(book_core *core, const uint8_t *buffer, size_t buffer_len,
                                   const uint64_t *offsets, const uint64_t *lengths, size_t count,
                                   book_output *output, int *error)
{
    size_t done = 0;
    for (*error = BOOK_OK; done < count; done++) {
        uint8_t status;
        if (offsets[done] > buffer_len || lengths[done] > buffer_len - offsets[done])
            *error = BOOK_SHORT_RECORD;
        else
            *error = core->kind->apply(core, buffer + offsets[done], lengths[done], done, output, &status);
        if (*error != BOOK_OK)
            break;
        core_finish_event(core, done, status, output);
    }
    return done;
}

static inline void core_note_times(book_core *core, const book_header *header)
{
    core->last_exchange_ts_ns = header->exchange_ts_ns;
    core->last_ingest_ts_ns = header->ingest_ts_ns;
}

/* --- Output -------------------------------------------------------------------------------------------- */

/* Results of at least this many bytes do not stay in the caches near the core beside a book and its events.
 */
#define STREAMED_BYTES ((size_t)1 << 20)

/* Whether rows from here on are to be written past the caches: there is too much to find it there later, and
 * to fetch each line before it is overwritten, and push the book out for it, costs more than the write. */
static inline int is_streamed(const void *into, size_t bytes)
{
#ifdef __SSE2__
    return bytes >= STREAMED_BYTES && (uintptr_t)into % STREAM_ALIGNMENT == 0;
#else
    (void)into, (void)bytes;
    return 0;
#endif
}

/* Copies rows to a caller's array; `streamed` only in whole lines of cache. */
static inline void copy_rows(void *into, const void *from, size_t bytes, int streamed)
{
#ifdef __SSE2__
    if (streamed && bytes % STREAM_ALIGNMENT == 0) {
        for (size_t at = 0; at < bytes; at += sizeof(__m128i))
            _mm_stream_si128((__m128i *)((uint8_t *)into + at),
                             _mm_load_si128((const __m128i *)((const uint8_t *)from + at)));
        return;
    }
#endif
    (void)streamed;
    memcpy(into, from, bytes);
}

/* Must come before others may read what was streamed. */
static inline void end_stream(void)
{
#ifdef __SSE2__
    _mm_sfence();
#endif
}

#endif
