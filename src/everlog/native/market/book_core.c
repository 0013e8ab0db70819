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

int core_adopt_scales(book_core *core, uint8_t price_scale, uint8_t size_scale, uint64_t index,
                      book_output *output)
{
    if (core->has_scale && price_scale <= core->scales[0] && size_scale <= core->scales[1])
        return BOOK_OK;
    int status = core->kind->raise_scales(core, price_scale, size_scale);
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

/* --- Headers ------------------------------------------------------------------------------------------- */

/* What all headers of a run have in common, in the words they are read in. */
typedef struct {
    uint64_t start, source; /* version and length; byte order, venue and market */
    uint32_t channel;
} run_words;

#define SOURCE_BITS 0xFFFFFFFFFFFF00FFu /* without a reserved byte */

static inline run_words words_of(const book_header *header)
{
    run_words words;
    memcpy(&words.start, &header->schema_version, sizeof words.start);
    memcpy(&words.source, &header->endianness, sizeof words.source);
    words.start &= START_BITS;
    words.source &= SOURCE_BITS;
    words.channel = header->stream_id;
    return words;
}

/* Whether a header is that of an order-by-order event like the first one, and the next on its channel. No
 * branch between its parts: nearly always all of them hold. */
static inline int continues_run(const book_header *header, const run_words *first, uint64_t number)
{
    run_words words = words_of(header);
    uint64_t odd = (words.start ^ first->start) | (words.source ^ first->source) |
                   (words.channel ^ first->channel) | (header->seq ^ number) | (header->book_mode ^ MODE_L3);
    return (odd == 0) & ((uint8_t)(header->event_type - EVENT_SNAPSHOT) <= EVENT_HEARTBEAT - EVENT_SNAPSHOT);
}

int is_channel_run(const uint8_t *records, size_t stride, size_t length, size_t count, channel_run *run)
{
    book_header first;
    if (read_header(records, length, &first) != BOOK_OK || first.seq == 0)
        return 0;
    run_words words = words_of(&first);
    for (size_t event = 0; event < count; event++)
        if (!continues_run((const book_header *)(records + event * stride), &words, first.seq + event))
            return 0;
    run->market = (uint64_t)first.venue_id << 32 | first.market_id;
    run->channel = (uint64_t)first.venue_id << 32 | first.stream_id;
    run->first = first.seq;
    return 1;
}
