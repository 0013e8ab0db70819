/* Reports and the check of a header; see book_events.h. */
#include "book_events.h"

const uint64_t TENS[LARGEST_SCALE + 1] = {
    1u,
    10u,
    100u,
    1000u,
    10000u,
    100000u,
    1000000u,
    10000000u,
    100000000u,
    1000000000u,
    10000000000u,
    100000000000u,
    1000000000000u,
    10000000000000u,
    100000000000000u,
    1000000000000000u,
    10000000000000000u,
    100000000000000000u,
    1000000000000000000u,
};

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

int read_header(const uint8_t *payload, size_t length, book_header *header)
{
    if (length < sizeof *header)
        return BOOK_SHORT_RECORD;
    memcpy(header, payload, sizeof *header);
    if (header->schema_version != PROTOCOL_VERSION)
        return BOOK_BAD_VERSION;
    if (header->record_len != length)
        return BOOK_SHORT_RECORD;
    if (header->endianness != 0 || header->book_mode > MODE_L3)
        return BOOK_BAD_MODE;
    return BOOK_OK;
}
