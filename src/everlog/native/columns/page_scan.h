/* The records in a page of a topic, found in one pass over its JSON text.
 *
 * Owns which pages are plain: what a server of ours sends, {"topic":...,"records":[{"$seq":1,"$ts":...,
 * "data":...}],...}, with "$node", "$tag" and "meta" at most and no escapes in names. Anything else is left to the
 * full decoder. */
#ifndef EVERLOG_PAGE_SCAN_H
#define EVERLOG_PAGE_SCAN_H

#include "frame_columns.h"

typedef struct {
    uint64_t first, end; /* only records from `first` up to, but not including, `end` are wanted */
    size_t array_start, array_end; /* where the array of records lies in the text */
} page_range;

/* Adds the records that are wanted and pass; `capacity` is how many rows there is room for. Returns 1, or 0 with
 * the rows as they were if the page is not plain, has no records or too many. The text must have passed
 * `json_check`. */
int page_scan(frame_rows *rows, size_t capacity, const frame_filter *filter, const uint8_t *text, size_t length,
              page_range *range);

#endif
