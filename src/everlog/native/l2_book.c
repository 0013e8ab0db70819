/* Applying book events to price levels; see l2_book.h. */
#include "l2_book.h"

#define PREFETCH_AHEAD 12u
#define PREFETCH_LEVELS 16384u /* a smaller book is in the cache anyway */
#define RUN_UPDATES 4096u      /* after this many the size of the book is looked at again */

int l2_init(l2_book *book, size_t max_levels, uint64_t max_window, int gap_policy)
{
    memset(book, 0, sizeof *book);
    book->gap_policy = (uint8_t)gap_policy;
    ladder_init(&book->sides[0], max_levels, max_window);
    return ladder_init(&book->sides[1], max_levels, max_window);
}

void l2_free(l2_book *book)
{
    ladder_free(&book->sides[0]);
    ladder_free(&book->sides[1]);
}

void l2_clear(l2_book *book)
{
    ladder_clear(&book->sides[0]);
    ladder_clear(&book->sides[1]);
    book->has_update_id = 0;
    book->after_snapshot = 0;
}

/* --- Scales ------------------------------------------------------------------------------------------- */

/* Multiplies every level of a side; nothing is changed if a product does not fit. */
static int rescale_side(ladder *side, uint64_t mask, uint64_t price_factor, uint64_t size_factor)
{
    if (side->count == 0)
        return BOOK_OK;
    uint64_t *keys = malloc(2 * side->count * sizeof *keys);
    if (keys == NULL)
        return BOOK_NO_MEMORY;
    uint64_t *sizes = keys + side->count;
    size_t count = ladder_first(side, keys, sizes, side->count);
    int status = BOOK_OK;
    for (size_t at = 0; at < count && status == BOOK_OK; at++) {
        uint64_t price;
        if (__builtin_mul_overflow(keys[at] ^ mask, price_factor, &price) ||
            __builtin_mul_overflow(sizes[at], size_factor, &sizes[at]))
            status = BOOK_SCALE_OVERFLOW;
        keys[at] = price ^ mask;
    }
    if (status == BOOK_OK)
        status = ladder_replace(side, keys, sizes, count);
    free(keys);
    return status;
}

static uint64_t raising_factor(uint8_t from, uint8_t to)
{
    return to > from ? TENS[to - from] : 1;
}

int l2_raise_scales(l2_book *book, uint8_t price_scale, uint8_t size_scale)
{
    if (price_scale > LARGEST_SCALE || size_scale > LARGEST_SCALE)
        return BOOK_BAD_SCALE;
    uint64_t price_factor = raising_factor(book->scales[0], price_scale);
    uint64_t size_factor = raising_factor(book->scales[1], size_scale);
    for (unsigned side = 0; side < 2 && book->has_scale && price_factor * size_factor != 1; side++) {
        int status = rescale_side(&book->sides[side], side_mask(side), price_factor, size_factor);
        if (status != BOOK_OK)
            return status;
    }
    if (!book->has_scale || price_scale > book->scales[0])
        book->scales[0] = price_scale;
    if (!book->has_scale || size_scale > book->scales[1])
        book->scales[1] = size_scale;
    book->has_scale = 1;
    return BOOK_OK;
}

typedef struct { /* how an event's numbers become the book's */
    uint64_t price, size;
} factors;

static int adopt_scales(l2_book *book, uint8_t price_scale, uint8_t size_scale, uint64_t index,
                        book_output *output, factors *multiply)
{
    if (!book->has_scale || price_scale > book->scales[0] || size_scale > book->scales[1]) {
        int status = l2_raise_scales(book, price_scale, size_scale);
        if (status == BOOK_OK && output != NULL)
            status = report_add(&output->scales, (report_row){index, book->scales[0], book->scales[1], 0, 0});
        if (status != BOOK_OK)
            return status;
    }
    multiply->price = TENS[book->scales[0] - price_scale];
    multiply->size = TENS[book->scales[1] - size_scale];
    return BOOK_OK;
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
        if ((multiply.price != 1 && __builtin_mul_overflow(level.price, multiply.price, &level.price)) ||
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
    const ladder *kept = &book->sides[side];
    uint64_t last_key = 0, mask = side_mask(side);
    size_t found = 0, covered = 0;
    for (size_t at = 0; at < count; at++) {
        book_level level = level_at(levels, at);
        uint64_t key = level.price * multiply.price ^ mask, size = ladder_get(kept, key);
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
        l2_clear(book);
    int status = adopt_scales(book, head.price_scale, head.size_scale, index, output, &multiply);
    if (status == BOOK_OK && compare && !book->quarantined)
        status = report_drift(book, body + sizeof head, &head, multiply, index, output);
    l2_clear(book);
    const uint8_t *asks = body + sizeof head + head.bid_count * sizeof(book_level);
    if (status == BOOK_OK)
        status = set_levels(book, 0, body + sizeof head, head.bid_count, multiply);
    if (status == BOOK_OK)
        status = set_levels(book, 1, asks, head.ask_count, multiply);
    book->last_update_id = header->native_seq;
    book->has_update_id = header->native_seq != 0;
    book->after_snapshot = 1;
    book->quarantined = 0;
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
static int check_gap(l2_book *book, const l2_diff *diff, uint64_t index, book_output *output, uint8_t *status)
{
    if (!follows(book, diff)) {
        if (book->after_snapshot && diff->last_update_id <= book->last_update_id) {
            *status = EVENT_STALE;
            return BOOK_OK;
        }
        report_row gap = {index, book->last_update_id, diff->first_update_id, 0, 0};
        if (output != NULL && report_add(&output->gaps, gap) != BOOK_OK)
            return BOOK_NO_MEMORY;
        if (book->gap_policy == GAP_PANIC)
            return BOOK_GAP;
        if (book->gap_policy == GAP_QUARANTINE)
            book->quarantined = 1;
    }
    if (diff->last_update_id != 0) {
        book->last_update_id = diff->last_update_id;
        book->has_update_id = 1;
    }
    book->after_snapshot = 0;
    if (book->quarantined)
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
    int status = check_gap(book, &diff, index, output, event_status);
    if (status != BOOK_OK || *event_status != EVENT_APPLIED)
        return status;
    status = adopt_scales(book, diff.price_scale, diff.size_scale, index, output, &multiply);
    if (status == BOOK_OK)
        status = set_levels(book, 0, body + sizeof diff, diff.bid_count, multiply);
    if (status == BOOK_OK)
        status = set_levels(book, 1, body + sizeof diff + diff.bid_count * sizeof(book_level), diff.ask_count,
                            multiply);
    return status;
}

int l2_apply_record(l2_book *book, const uint8_t *payload, size_t length, uint64_t index, book_output *output,
                    uint8_t *status)
{
    book_header header;
    int result = read_header(payload, length, &header);
    *status = EVENT_APPLIED;
    if (result != BOOK_OK)
        return result;
    if (header.book_mode != MODE_L2)
        return BOOK_BAD_MODE;
    const uint8_t *body = payload + sizeof header;
    switch (header.event_type) {
    case EVENT_SNAPSHOT:
        result = apply_snapshot(book, &header, body, length - sizeof header, index, output);
        break;
    case EVENT_DIFF:
        result = apply_diff(book, &header, body, length - sizeof header, index, output, status);
        break;
    case EVENT_RESET:
        l2_clear(book);
        break;
    case EVENT_HEARTBEAT:
        break;
    default:
        result = BOOK_BAD_TYPE;
    }
    if (result == BOOK_OK && *status == EVENT_APPLIED) {
        book->last_seq = header.seq;
        book->last_exchange_ts_ns = header.exchange_ts_ns;
        book->last_ingest_ts_ns = header.ingest_ts_ns;
    }
    return result;
}

/* --- Arrays ------------------------------------------------------------------------------------------- */

size_t l2_depth(const l2_book *book, unsigned side, book_level *levels, size_t wanted, uint64_t *scratch)
{
    size_t found = ladder_first(&book->sides[side], scratch, scratch + wanted, wanted);
    for (size_t at = 0; at < found; at++)
        levels[at] = (book_level){scratch[at] ^ side_mask(side), scratch[wanted + at]};
    return found;
}

static void write_row(const l2_book *book, book_output *output)
{
    if (output->tops != NULL)
        output->tops[output->rows] = l2_top(book);
    if (output->depth != 0) {
        l2_depth(book, 0, output->bids + output->rows * output->depth, output->depth, output->scratch);
        l2_depth(book, 1, output->asks + output->rows * output->depth, output->depth, output->scratch);
    }
    output->rows++;
    output->since = 0;
}

size_t l2_apply_records(l2_book *book, const uint8_t *buffer, size_t buffer_len, const uint64_t *offsets,
                        const uint64_t *lengths, size_t count, book_output *output, int *error)
{
    size_t done = 0;
    for (*error = BOOK_OK; done < count; done++) {
        uint8_t status;
        if (offsets[done] > buffer_len || lengths[done] > buffer_len - offsets[done])
            *error = BOOK_SHORT_RECORD;
        else
            *error = l2_apply_record(book, buffer + offsets[done], lengths[done], done, output, &status);
        if (*error != BOOK_OK)
            break;
        if (output->statuses != NULL)
            output->statuses[done] = status;
        if (++output->since == output->every)
            write_row(book, output);
    }
    return done;
}

/* Asks for the memory of an update to come, so that it has arrived when its turn comes. */
static inline void prefetch_update(const l2_book *book, const l2_update *update)
{
    unsigned side = (unsigned)update->side - 1;
    const ladder *changed = &book->sides[side & 1];
    uint64_t place = ladder_place(changed, update->price ^ side_mask(side & 1));
    if (place < changed->window_size) {
        __builtin_prefetch(&changed->values[place], 1);
        __builtin_prefetch(&changed->bits[0][place >> 6], 1);
    }
}

/* The same loop as below for the usual wish: the top after every update. */
static inline __attribute__((always_inline)) size_t
updates_with_tops(l2_book *book, const uint8_t *updates, ptrdiff_t stride, size_t count, book_top *tops,
                  int prefetch, int *error)
{
    for (size_t done = 0; done < count; done++) {
        const l2_update *update = (const l2_update *)(updates + (ptrdiff_t)done * stride);
        unsigned side = (unsigned)update->side - 1;
        if (prefetch && done + PREFETCH_AHEAD < count)
            prefetch_update(book, (const l2_update *)((const uint8_t *)update + PREFETCH_AHEAD * stride));
        *error = side > 1 ? BOOK_BAD_SIDE : l2_set(book, side, update->price, update->size);
        if (__builtin_expect(*error != BOOK_OK, 0))
            return done;
        tops[done] = l2_top(book);
    }
    return count;
}

size_t l2_apply_updates(l2_book *book, const uint8_t *updates, ptrdiff_t stride, size_t count,
                        book_output *output, int *error)
{
    *error = BOOK_OK;
    if (output->every == 1 && output->tops != NULL && output->depth == 0) {
        while (output->rows < count && *error == BOOK_OK) {
            const uint8_t *from = updates + (ptrdiff_t)output->rows * stride;
            book_top *tops = output->tops + output->rows;
            size_t run = count - output->rows < RUN_UPDATES ? count - output->rows : RUN_UPDATES;
            if (book->sides[0].count + book->sides[1].count > PREFETCH_LEVELS)
                output->rows += updates_with_tops(book, from, stride, run, tops, 1, error);
            else
                output->rows += updates_with_tops(book, from, stride, run, tops, 0, error);
        }
        return output->rows;
    }
    size_t done = 0;
    for (; done < count; done++) {
        const l2_update *update = (const l2_update *)(updates + (ptrdiff_t)done * stride);
        unsigned side = (unsigned)update->side - 1;
        *error = side > 1 ? BOOK_BAD_SIDE : l2_set(book, side, update->price, update->size);
        if (*error != BOOK_OK)
            break;
        if (++output->since == output->every)
            write_row(book, output);
    }
    return done;
}
