/* The fields of an append's body, found in one pass over its text.
 *
 * Owns which bodies are scanned: {"records":[{"data":...}]} with "tag", "node" and "meta" in records, and
 * "node", "idempotency_key" and "create" beside them. Any other body, right or wrong, is left to the full
 * decoder. */
#ifndef EVERLOG_RECORD_SCAN_H
#define EVERLOG_RECORD_SCAN_H

#include "json_cursor.h"
#include "log_append.h"

enum { CREATE_ABSENT = -1 };

typedef struct {          /* what a body has beside its records */
    span idempotency_key; /* without escapes; base is NULL if absent or null */
    int create;           /* 0, 1 or CREATE_ABSENT */
} append_options;

static inline int is_null(const span *value)
{
    return value->length == 4 && memcmp(value->base, "null", 4) == 0;
}

/* One record behind its bracket. A field that comes twice is left to the full decoder. */
static int take_record(cursor *text, batch_record *record)
{
    enum { DATA = 1, TAG = 2, NODE = 4, META = 8 };
    span key, data = {0}, tag = {0}, node = {0}, meta = {0};
    int seen = 0, field;
    do {
        if (!take_key(text, &key))
            return 0;
        int taken;
        if (key_is(&key, "data", 4)) {
            field = DATA;
            taken = take_text(text, &data);
        } else if (key_is(&key, "tag", 3)) {
            field = TAG;
            taken = take_name(text, &tag);
        } else if (key_is(&key, "node", 4)) {
            field = NODE;
            taken = take_name(text, &node);
        } else if (key_is(&key, "meta", 4)) {
            field = META;
            taken = take_text(text, &meta);
        } else {
            return 0;
        }
        if (!taken || (seen & field))
            return 0;
        seen |= field;
    } while (take(text, ','));
    if (!(seen & DATA) || data.length > UINT32_MAX || meta.length > UINT32_MAX || !take(text, '}'))
        return 0;
    if (meta.base != NULL && is_null(&meta))
        meta = (span){NULL, 0};
    *record = (batch_record){.data = data.base,
                             .data_len = (uint32_t)data.length,
                             .meta = meta.base,
                             .meta_len = (uint32_t)meta.length,
                             .tag = tag.base,
                             .tag_len = (uint16_t)tag.length,
                             .node = node.base,
                             .node_len = (uint16_t)node.length};
    return 1;
}

static size_t take_records(cursor *text, batch_record *records, size_t capacity)
{
    size_t count = 0;
    if (!take(text, '['))
        return 0;
    do {
        if (count == capacity || !take(text, '{') || !take_record(text, &records[count]))
            return 0;
        count++;
    } while (take(text, ','));
    return take(text, ']') ? count : 0;
}

static int take_create(cursor *text, int *create)
{
    skip_white(text);
    if (take_word(text, "true", 4))
        *create = 1;
    else if (take_word(text, "false", 5))
        *create = 0;
    else if (!take_word(text, "null", 4))
        return 0;
    return 1;
}

/* The members of the body behind its bracket. Returns the number of records. */
static size_t take_body(cursor *text, batch_record *records, size_t capacity, span *node,
                        append_options *options)
{
    enum { RECORDS = 1, NODE = 2, KEY = 4, CREATE = 8 };
    span key;
    size_t count = 0;
    int seen = 0, field, taken;
    do {
        if (!take_key(text, &key))
            return 0;
        if (key_is(&key, "records", 7)) {
            field = RECORDS;
            taken = !(seen & RECORDS) && (count = take_records(text, records, capacity)) > 0;
        } else if (key_is(&key, "node", 4)) {
            field = NODE;
            taken = take_name(text, node);
        } else if (key_is(&key, "idempotency_key", 15)) {
            field = KEY;
            taken = take_name(text, &options->idempotency_key);
        } else if (key_is(&key, "create", 6)) {
            field = CREATE;
            taken = take_create(text, &options->create);
        } else {
            return 0;
        }
        if (!taken || (seen & field))
            return 0;
        seen |= field;
    } while (take(text, ','));
    return take(text, '}') ? count : 0;
}

/* Fill `records` with the texts of the body. Returns how many there are; 0 if the body is not scanned, is no
 * JSON, or has more than `capacity`. The text must have passed `json_check`, which bounds its nesting.
 * Records without a node get the one of the batch; lengths are not checked against any limit but that of the
 * field: a name that does not fit leaves the body to the full decoder. */
static size_t append_scan(const uint8_t *base, size_t length, batch_record *records, size_t capacity,
                          append_options *options)
{
    cursor text = {base, base + length};
    span node = {0};
    *options = (append_options){.create = CREATE_ABSENT};
    if (!take(&text, '{'))
        return 0;
    size_t count = take_body(&text, records, capacity, &node, options);
    skip_white(&text);
    if (text.at != text.end)
        return 0;
    for (size_t place = 0; node.base != NULL && place < count; place++) {
        if (records[place].node == NULL) {
            records[place].node = node.base;
            records[place].node_len = (uint16_t)node.length;
        }
    }
    return count;
}

#endif
