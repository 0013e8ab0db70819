/* The fields of an append's body, found in one pass over its text.
 *
 * Owns which bodies are scanned: {"records":[{"data":...}]} with "tag", "node" and "meta" in records, and "node",
 * "idempotency_key" and "create" beside them. Any other body, right or wrong, is left to the full decoder. */
#ifndef EVERLOG_RECORD_SCAN_H
#define EVERLOG_RECORD_SCAN_H

#include "json_cursor.h"
#include "log_append.h"

enum { CREATE_ABSENT = -1 };

typedef struct { /* what a body has beside its records */
    span idempotency_key; /* without escapes; base is NULL if absent or null */
    int create;           /* 0, 1 or CREATE_ABSENT */
} append_options;

/* Fill `records` with the texts of the body. Returns how many there are; 0 if the body is not scanned, is no
 * JSON, or has more than `capacity`. The text must have passed `json_check`, which bounds its nesting. Records
 * without a node get the one of the batch; lengths are not checked against any limit but that of the field:
 * a name that does not fit leaves the body to the full decoder. */
size_t append_scan(const uint8_t *text, size_t length, batch_record *records, size_t capacity,
                   append_options *options);

#endif
