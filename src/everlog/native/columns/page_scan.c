/* Finding records in pages; see page_scan.h. */
#include "page_scan.h"

#include "topics/json_cursor.h"

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
static int take_record(cursor *text, frame_row *row)
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

static int take_records(cursor *text, frame_rows *rows, size_t capacity, const frame_filter *filter,
                        const page_range *range)
{
    if (!take(text, '['))
        return 0;
    do {
        if (rows->count == capacity || !take(text, '{') || !take_record(text, &rows->rows[rows->count]))
            return 0;
        const frame_row *row = &rows->rows[rows->count];
        if (row->seq >= range->first && row->seq < range->end)
            frame_columns_add(rows, filter);
    } while (take(text, ','));
    return take(text, ']');
}

int page_scan(frame_rows *rows, size_t capacity, const frame_filter *filter, const uint8_t *base, size_t length,
              page_range *range)
{
    frame_rows before = *rows;
    cursor text = {base, base + length};
    int found = 0;
    if (take(&text, '{'))
        do {
            span key, skipped;
            if (!take_key(&text, &key))
                break;
            if (!key_is(&key, "records", 7)) {
                if (!take_text(&text, &skipped))
                    break;
                continue;
            }
            skip_white(&text);
            range->array_start = (size_t)(text.at - base);
            found = take_records(&text, rows, capacity, filter, range);
            range->array_end = (size_t)(text.at - base);
            break; /* what follows is for the full decoder */
        } while (take(&text, ','));
    if (!found)
        *rows = before;
    return found;
}
