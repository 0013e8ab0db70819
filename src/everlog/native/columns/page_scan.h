/* The records in a page of a topic, found in one pass over its JSON text.
 *
 * Owns which pages are plain: what a server of ours sends, {"topic":...,"records":[{"$seq":1,"$ts":...,
 * "data":...}],...}, with "$node", "$tag" and "meta" at most and no escapes in names. Anything else is left
 * to the full decoder. The text must have passed `json_check`. Included by frame_columns.pyx only. */
#ifndef EVERLOG_PAGE_SCAN_H
#define EVERLOG_PAGE_SCAN_H

#include "topics/json_cursor.h"

enum { FRAME_TEXT_NODE, FRAME_TEXT_TAG, FRAME_TEXT_META, FRAME_TEXT_DATA, FRAME_TEXTS };

typedef struct { /* one text of a record; at NULL: the record has none */
    const uint8_t *at;
    uint32_t length;
} frame_piece;

typedef struct { /* a record, which points into the buffer it was read from */
    frame_piece texts[FRAME_TEXTS];
    uint64_t seq;
    uint64_t ts;
} frame_row;

enum { SEQ = 1, TS = 2, NODE = 4, TAG = 8, DATA = 16, META = 32 };

/* A number without a sign. */
static int take_count(cursor *text, uint64_t *number)
{
    skip_white(text);
    const uint8_t *start = text->at;
    *number = 0;
    if (!take_digits(text, DIGITS_MAX))
        return 0;
    for (const uint8_t *at = start; at < text->at; at++)
        *number = *number * 10 + (uint64_t)(*at - '0');
    return text->at - start == 1 || *start != '0';
}

static inline frame_piece piece_of(const span *text)
{
    return (frame_piece){text->base, (uint32_t)text->length};
}

/* One member of a record, behind its key; returns which one it was, 0 if it is none. */
static int take_member(cursor *text, const span *key, frame_row *row)
{
    span value = {0};
    if (key_is(key, "$seq", 4))
        return take_count(text, &row->seq) ? SEQ : 0;
    if (key_is(key, "$ts", 3))
        return take_count(text, &row->ts) ? TS : 0;
    if (key_is(key, "$node", 5) || key_is(key, "$tag", 4)) {
        int is_tag = key->length == 4;
        int taken = take_name(text, &value);
        row->texts[is_tag ? FRAME_TEXT_TAG : FRAME_TEXT_NODE] = piece_of(&value);
        return !taken ? 0 : is_tag ? TAG : NODE;
    }
    int is_data = key_is(key, "data", 4);
    if (!(is_data || key_is(key, "meta", 4)) || !take_text(text, &value) || value.length > UINT32_MAX)
        return 0;
    row->texts[is_data ? FRAME_TEXT_DATA : FRAME_TEXT_META] = piece_of(&value);
    return is_data ? DATA : META;
}

/* One record behind its bracket; a member that comes twice makes it not plain. */
static int page_take_record(cursor *text, frame_row *row)
{
    int seen = 0;
    memset(row, 0, sizeof *row);
    do {
        span key;
        int member = take_key(text, &key) ? take_member(text, &key, row) : 0;
        if (member == 0 || (seen & member))
            return 0;
        seen |= member;
    } while (take(text, ','));
    return (seen & SEQ) && (seen & TS) && (seen & DATA) && take(text, '}');
}

/* Moves to the array of records; what follows it is for the full decoder. */
static int page_find_records(cursor *text)
{
    span key, skipped;
    if (!take(text, '{'))
        return 0;
    do {
        if (!take_key(text, &key))
            return 0;
        if (key_is(&key, "records", 7)) {
            skip_white(text);
            return 1;
        }
    } while (take_text(text, &skipped) && take(text, ','));
    return 0;
}

#endif
