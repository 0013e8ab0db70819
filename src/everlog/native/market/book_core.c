/* State, reports and headers that both kinds of books share; see book_core.h. */
#include "book_core.h"

/* --- The state of a book ------------------------------------------------------------------------------- */

void core_init(book_core *core, const book_kind *kind, size_t max_levels, uint64_t max_window, int gap_policy)
{
    memset(core, 0, sizeof *core);
    core->kind = kind;
    core->gap_policy = (uint8_t)gap_policy;
    ladder_init(&core->sides[0], max_levels, max_window);
    ladder_init(&core->sides[1], max_levels, max_window);
}

void core_free(book_core *core)
{
    ladder_free(&core->sides[0]);
    ladder_free(&core->sides[1]);
}

void core_clear(book_core *core)
{
    ladder_clear(&core->sides[0]);
    ladder_clear(&core->sides[1]);
}

int core_note_gap(book_core *core, uint64_t seen, uint64_t found, uint64_t index, book_output *output)
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

int core_raise_scales(book_core *core, uint8_t price_scale, uint8_t size_scale)
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

int core_adopt_scales(book_core *core, uint8_t price_scale, uint8_t size_scale, uint64_t index,
                      book_output *output)
{
    if (core->has_scale && price_scale <= core->scales[0] && size_scale <= core->scales[1])
        return BOOK_OK;
    int status = core_raise_scales(core, price_scale, size_scale);
    if (status == BOOK_OK && output != NULL)
        status = report_add(&output->scales, (report_row){index, core->scales[0], core->scales[1], 0, 0});
    return status;
}

void core_write_row(const book_core *core, book_output *output)
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

size_t core_apply_scattered(book_core *core, const uint8_t *buffer, size_t buffer_len,
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

/* --- Reports ------------------------------------------------------------------------------------------- */

int report_add(report *into, report_row row)
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

void output_free_reports(book_output *output)
{
    report *reports[] = {&output->gaps, &output->drifts, &output->scales, &output->trades};
    for (size_t at = 0; at < sizeof reports / sizeof *reports; at++) {
        free(reports[at]->rows);
        memset(reports[at], 0, sizeof *reports[at]);
    }
}
