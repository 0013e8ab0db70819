/* The records in the body of a plain append, found in one pass over its text.
 *
 * Owns which bodies are plain: {"records":[{"data":...}]} with "tag", "node" and "meta" at most, and a
 * "node" for all. Whatever else a body may be, right or wrong, is left to the full decoder. */
#ifndef EVERLOG_RECORD_SCAN_H
#define EVERLOG_RECORD_SCAN_H

#include "log_append.h"

/* Fill `records` with the texts of the body. Returns how many there are; 0 if the body is not plain, is no
 * JSON, or has more than `capacity`. The text must have passed `json_check`, which bounds its nesting. Names
 * without a value get the one of the batch; lengths are not checked against any limit but that of the field:
 * a name that does not fit makes the body not plain. */
size_t records_scan(const uint8_t *text, size_t length, batch_record *records, size_t capacity);

#endif
