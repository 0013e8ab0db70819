/* An order book of price levels: applies book events, one or a whole array.
 *
 * Owns the levels, the scales and the update ids of one market; knows neither queues nor files. Prices and
 * sizes are integers at the book's scales, which only rise: an event of a smaller scale is multiplied on the
 * way in, an event of a larger one multiplies what is stored. So no digit is lost. */
#ifndef EVERLOG_L2_BOOK_H
#define EVERLOG_L2_BOOK_H

#include "book_core.h"

#define PREFETCH_AHEAD 12u
#define PREFETCH_LEVELS 16384u /* a smaller book is in the cache anyway */
#define RUN_UPDATES 4096u      /* after this many the size of the book is looked at again */

typedef struct {
    uint64_t first_update_id, last_update_id, previous_update_id;
    uint8_t price_scale, size_scale;
    uint16_t flags, bid_count, ask_count;
} l2_diff;

typedef struct {
    uint8_t price_scale, size_scale, reserved[2];
    uint32_t bid_count, ask_count;
} l2_snapshot;

typedef struct { /* one level that changes; side 1 = buy, 2 = sell */
    int64_t price;
    uint64_t size;
    uint8_t side, reserved[7];
} l2_update;

typedef struct {
    book_core core; /* the value of a level is its size */
    uint8_t has_update_id;
    uint8_t after_snapshot; /* no diff applied since */
    uint64_t last_update_id;
} l2_book;

_Static_assert(sizeof(l2_diff) == 32, "L2Diff");
_Static_assert(sizeof(l2_snapshot) == 12, "L2Snapshot");
_Static_assert(sizeof(l2_update) == 24, "L2 update");

static inline int l2_set(l2_book *book, unsigned side, int64_t price, uint64_t size)
{
    return ladder_set(&book->core.sides[side], (uint64_t)price ^ side_mask(side), size);
}

static inline book_top l2_top(const book_core *core)
{
    const ladder *bids = &core->sides[0], *asks = &core->sides[1];
    uint64_t bid = bids->best_value ? bids->best_key ^ side_mask(0) : 0;
    uint64_t ask = asks->best_value ? asks->best_key ^ side_mask(1) : 0;
    return (book_top){(int64_t)bid, bids->best_value, (int64_t)ask, asks->best_value};
}

static void l2_clear(book_core *core)
{
    l2_book *book = (l2_book *)core;
    core_clear(core);
    book->has_update_id = 0;
    book->after_snapshot = 0;
}

/* --- Scales ------------------------------------------------------------------------------------------- */

static int l2_rescale(book_core *core, uint64_t price_factor, uint64_t size_factor)
{
    int status = BOOK_OK;
    for (unsigned side = 0; side < 2 && status == BOOK_OK; side++)
        status = core_rescale_side(core, side, price_factor, size_factor);
    return status;
}

typedef struct { /* how an event's numbers become the book's */
    uint64_t price, size;
    int64_t lowest; /* price of the event's version */
} factors;

static int l2_adopt_scales(l2_book *book, const book_header *header, uint8_t price_scale, uint8_t size_scale,
                           uint64_t index, book_output *output, factors *multiply)
{
    int status = core_adopt_scales(&book->core, price_scale, size_scale, index, output);
    if (status == BOOK_OK) {
        multiply->price = TENS[book->core.scales[0] - price_scale];
        multiply->size = TENS[book->core.scales[1] - size_scale];
        multiply->lowest = header->schema_version == OLDEST_VERSION ? 0 : INT64_MIN;
    }
    return status;
}

static inline book_level level_at(const uint8_t *levels, size_t at)
{
    book_level level;
    memcpy(&level, levels + at * sizeof level, sizeof level);
    return level;
}

static int set_levels(l2_book *book, unsigned side, const uint8_t *levels, size_t count, factors multiply)
{
    for (size_t at = 0; at < count; at++) {
        book_level level = level_at(levels, at);
        if (level.price < multiply.lowest ||
            (multiply.price != 1 && __builtin_mul_overflow(level.price, multiply.price, &level.price)) ||
            (multiply.size != 1 && __builtin_mul_overflow(level.size, multiply.size, &level.size)))
            return BOOK_SCALE_OVERFLOW;
        int status = l2_set(book, side, level.price, level.size);
        if (status != BOOK_OK)
            return status;
    }
    return BOOK_OK;
}

/* --- Snapshots ---------------------------------------------------------------------------------------- */

/* How the book differs from a snapshot of one side, within the prices the snapshot covers. */
static int count_drift(const l2_book *book, unsigned side, const uint8_t *levels, size_t count,
                       factors multiply, report_row *drift)
{
    const ladder *kept = &book->core.sides[side];
    uint64_t last_key = 0, mask = side_mask(side);
    size_t found = 0, covered = 0;
    for (size_t at = 0; at < count; at++) {
        book_level level = level_at(levels, at);
        uint64_t key = (uint64_t)level.price * multiply.price ^ mask, size = ladder_get(kept, key);
        last_key = key > last_key ? key : last_key;
        found += size != 0 && level.size != 0;
        drift->first += size == 0 && level.size != 0;
        drift->third += size != 0 && level.size != 0 && size != level.size * multiply.size;
    }
    uint64_t *keys = malloc(2 * kept->count * sizeof *keys + 1);
    if (keys == NULL)
        return BOOK_NO_MEMORY;
    size_t stored = ladder_first(kept, keys, keys + kept->count, kept->count);
    while (covered < stored && count != 0 && keys[covered] <= last_key)
        covered++;
    drift->second += covered - found;
    free(keys);
    return BOOK_OK;
}

static int report_drift(const l2_book *book, const uint8_t *levels, const l2_snapshot *body, factors multiply,
                        uint64_t index, book_output *output)
{
    report_row drift = {.index = index};
    int status = count_drift(book, 0, levels, body->bid_count, multiply, &drift);
    if (status == BOOK_OK)
        status = count_drift(book, 1, levels + body->bid_count * sizeof(book_level), body->ask_count,
                             multiply, &drift);
    if (status == BOOK_OK && drift.first + drift.second + drift.third != 0)
        status = report_add(&output->drifts, drift);
    return status;
}

static int apply_snapshot(l2_book *book, const book_header *header, const uint8_t *body, size_t length,
                          uint64_t index, book_output *output)
{
    l2_snapshot head;
    factors multiply;
    if (length < sizeof head)
        return BOOK_SHORT_RECORD;
    memcpy(&head, body, sizeof head);
    if (length != sizeof head + ((size_t)head.bid_count + head.ask_count) * sizeof(book_level))
        return BOOK_SHORT_RECORD;
    if (head.price_scale > LARGEST_SCALE || head.size_scale > LARGEST_SCALE)
        return BOOK_BAD_SCALE;
    int compare = output != NULL && output->want_drift && book->after_snapshot + book->has_update_id != 0;
    if (!compare) /* nothing stored is needed again, so nothing need be rescaled */
        l2_clear(&book->core);
    int status = l2_adopt_scales(book, header, head.price_scale, head.size_scale, index, output, &multiply);
    if (status == BOOK_OK && compare && !book->core.quarantined)
        status = report_drift(book, body + sizeof head, &head, multiply, index, output);
    l2_clear(&book->core);
    const uint8_t *asks = body + sizeof head + head.bid_count * sizeof(book_level);
    if (status == BOOK_OK)
        status = set_levels(book, 0, body + sizeof head, head.bid_count, multiply);
    if (status == BOOK_OK)
        status = set_levels(book, 1, asks, head.ask_count, multiply);
    book->last_update_id = header->native_seq;
    book->has_update_id = header->native_seq != 0;
    book->after_snapshot = 1;
    book->core.quarantined = 0;
    return status;
}

/* --- Diffs -------------------------------------------------------------------------------------------- */

/* Whether the diff follows what was applied before: by the id before it, or by its range of ids. */
static int follows(const l2_book *book, const l2_diff *diff)
{
    uint64_t last = book->last_update_id;
    if (!book->has_update_id || diff->last_update_id == 0)
        return 1;
    if (diff->previous_update_id == last)
        return 1;
    return diff->first_update_id <= last + 1 && last + 1 <= diff->last_update_id;
}

/* Says in `status` whether the diff is to be skipped; an error only under GAP_PANIC. */
static int l2_check_gap(l2_book *book, const l2_diff *diff, uint64_t index, book_output *output,
                        uint8_t *status)
{
    if (!follows(book, diff)) {
        if (book->after_snapshot && diff->last_update_id <= book->last_update_id) {
            *status = EVENT_STALE;
            return BOOK_OK;
        }
        int result = core_note_gap(&book->core, book->last_update_id, diff->first_update_id, index, output);
        if (result != BOOK_OK)
            return result;
    }
    if (diff->last_update_id != 0) {
        book->last_update_id = diff->last_update_id;
        book->has_update_id = 1;
    }
    book->after_snapshot = 0;
    if (book->core.quarantined)
        *status = EVENT_QUARANTINED;
    return BOOK_OK;
}

static int apply_diff(l2_book *book, const book_header *header, const uint8_t *body, size_t length,
                      uint64_t index, book_output *output, uint8_t *event_status)
{
    l2_diff diff;
    factors multiply;
    if (length < sizeof diff)
        return BOOK_SHORT_RECORD;
    memcpy(&diff, body, sizeof diff);
    if (length != sizeof diff + ((size_t)diff.bid_count + diff.ask_count) * sizeof(book_level))
        return BOOK_SHORT_RECORD;
    if ((diff.flags | header->flags) & FLAG_DELTA)
        return BOOK_DELTA;
    if (diff.price_scale > LARGEST_SCALE || diff.size_scale > LARGEST_SCALE)
        return BOOK_BAD_SCALE;
    int status = l2_check_gap(book, &diff, index, output, event_status);
    if (status != BOOK_OK || *event_status != EVENT_APPLIED)
        return status;
    status = l2_adopt_scales(book, header, diff.price_scale, diff.size_scale, index, output, &multiply);
    if (status == BOOK_OK)
        status = set_levels(book, 0, body + sizeof diff, diff.bid_count, multiply);
    if (status == BOOK_OK)
        status = set_levels(book, 1, body + sizeof diff + diff.bid_count * sizeof(book_level), diff.ask_count,
                            multiply);
    return status;
}

static int l2_apply(book_core *core, const uint8_t *payload, size_t length, uint64_t index,
                    book_output *output, uint8_t *status)
{
    l2_book *book = (l2_book *)core;
    book_header header;
    int result = read_header(payload, length, &header);
    *status = EVENT_APPLIED;
    if (result != BOOK_OK)
        return result;
    if (header.book_mode != MODE_L2)
        return BOOK_BAD_MODE;
    const uint8_t *body = payload + sizeof header;
    if (header.flags & FLAG_RESETS) {
        l2_clear(core);
        core->quarantined = 0;
    }
    switch (header.event_type) {
    case EVENT_SNAPSHOT:
        result = apply_snapshot(book, &header, body, length - sizeof header, index, output);
        break;
    case EVENT_DIFF:
        result = apply_diff(book, &header, body, length - sizeof header, index, output, status);
        break;
    case EVENT_RESET:
        l2_clear(&book->core);
        break;
    case EVENT_HEARTBEAT:
        break;
    default:
        result = BOOK_BAD_TYPE;
    }
    if (result == BOOK_OK && *status == EVENT_APPLIED) {
        core->last_seq = header.seq;
        core_note_times(core, &header);
    }
    return result;
}

/* --- Arrays ------------------------------------------------------------------------------------------- */

static size_t l2_depth(const book_core *core, unsigned side, book_level *levels, uint32_t *orders,
                       size_t wanted, uint64_t *scratch)
{
    (void)orders;
    size_t found = ladder_first(&core->sides[side], scratch, scratch + wanted, wanted);
    for (size_t at = 0; at < found; at++)
        levels[at] = (book_level){(int64_t)(scratch[at] ^ side_mask(side)), scratch[wanted + at]};
    return found;
}

static const book_kind L2 = {l2_apply, l2_top, l2_depth, l2_rescale, l2_clear};

static void l2_init(l2_book *book, size_t max_levels, uint64_t max_window, int gap_policy)
{
    memset(book, 0, sizeof *book);
    core_init(&book->core, &L2, max_levels, max_window, gap_policy);
}

/* Asks for the memory of an update to come, so that it has arrived when its turn comes. */
static inline void prefetch_update(const l2_book *book, const l2_update *update)
{
    unsigned side = (unsigned)update->side - 1;
    const ladder *changed = &book->core.sides[side & 1];
    uint64_t place = ladder_place(changed, (uint64_t)update->price ^ side_mask(side & 1));
    if (place < changed->window_size) {
        __builtin_prefetch(&changed->values[place], 1);
        __builtin_prefetch(&changed->bits[0][place >> 6], 1);
    }
}

/* Compiled for the usual output, `tops` after every update, and (NULL) for any other. */
static inline __attribute__((always_inline)) size_t l2_apply_run(l2_book *book, const l2_update *updates,
                                                                 size_t count, book_top *tops,
                                                                 book_output *output, int prefetch,
                                                                 int *error)
{
    for (size_t done = 0; done < count; done++) {
        const l2_update *update = &updates[done];
        unsigned side = (unsigned)update->side - 1;
        if (prefetch && done + PREFETCH_AHEAD < count)
            prefetch_update(book, update + PREFETCH_AHEAD);
        *error = side > 1 ? BOOK_BAD_SIDE : l2_set(book, side, update->price, update->size);
        if (__builtin_expect(*error != BOOK_OK, 0))
            return done;
        if (tops != NULL)
            tops[done] = l2_top(&book->core);
        else if (++output->since == output->every)
            core_write_row(&book->core, output);
    }
    return count;
}

/* Applies single levels at the book's own scales. */
static size_t l2_apply_updates(l2_book *book, const l2_update *updates, size_t count, book_output *output,
                               int *error)
{
    *error = BOOK_OK;
    if (output->every != 1 || output->tops == NULL || output->depth != 0)
        return l2_apply_run(book, updates, count, NULL, output, 0, error);
    while (output->rows < count && *error == BOOK_OK) {
        const l2_update *from = updates + output->rows;
        book_top *tops = output->tops + output->rows;
        size_t run = count - output->rows < RUN_UPDATES ? count - output->rows : RUN_UPDATES;
        if (book->core.sides[0].count + book->core.sides[1].count > PREFETCH_LEVELS)
            output->rows += l2_apply_run(book, from, run, tops, output, 1, error);
        else
            output->rows += l2_apply_run(book, from, run, tops, output, 0, error);
    }
    return output->rows;
}

#endif
