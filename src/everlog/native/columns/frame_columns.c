/* See frame_columns.h. Frames, their checksums included, are read by a function that the caller gives. */
#include "frame_columns.h"

#include <string.h>

#include "topics/frames.h"

#define US_PER_MS 1000

static inline int passes(const frame_row *row, const frame_filter *filter)
{
    const frame_piece *tag = &row->texts[FRAME_TEXT_TAG];
    if (row->ts < filter->from_ts || row->ts > filter->to_ts)
        return 0;
    if (filter->tag == NULL)
        return 1;
    if (tag->at == NULL || tag->length < filter->tag_len)
        return 0;
    if (!filter->is_prefix && tag->length != filter->tag_len)
        return 0;
    return memcmp(tag->at, filter->tag, filter->tag_len) == 0;
}

void frame_columns_add(frame_rows *rows, const frame_filter *filter)
{
    const frame_row *row = &rows->rows[rows->count];
    if (!passes(row, filter))
        return;
    for (int text = 0; text < FRAME_TEXTS; text++)
        rows->bytes[text] += row->texts[text].length;
    rows->count++;
}

/* Read the frame of one place; 0 if it is not there as it should be. */
static int read_place(const frame_places *places, size_t place, frame_view *frame)
{
    uint64_t offset = places->offsets[place];
    if (offset >= places->length ||
        places->read(places->base + offset, places->length - offset, frame, 1) != FRAME_OK)
        return 0;
    return (!places->in_log || frame->type == FRAME_TYPE_APPEND) && frame->seq == places->seqs[place];
}

/* Turn a frame into a row; 0 if its lengths lie. */
static int fill(frame_row *row, const frame_view *frame)
{
    frame_piece *texts = row->texts;
    if (frame_split(frame, &texts[FRAME_TEXT_META].at, &texts[FRAME_TEXT_META].length,
                    &texts[FRAME_TEXT_DATA].at, &texts[FRAME_TEXT_DATA].length) != 0)
        return 0;
    texts[FRAME_TEXT_NODE] = (frame_piece){frame->node_len ? frame->node : NULL, frame->node_len};
    texts[FRAME_TEXT_TAG] = (frame_piece){frame->tag_len ? frame->tag : NULL, frame->tag_len};
    row->seq = frame->seq;
    row->ts = frame->ts;
    return 1;
}

size_t frame_columns_pick(frame_rows *rows, const frame_places *places, const frame_filter *filter)
{
    size_t place;
    for (place = 0; place < places->count; place++) {
        frame_view frame;
        frame_row *row = &rows->rows[rows->count];
        if (!read_place(places, place, &frame))
            break;
        /* A mark without its flag in the index counts as deleted as well. */
        if (!places->in_log && frame.deleted)
            continue;
        if (!fill(row, &frame))
            break;
        frame_columns_add(rows, filter);
    }
    return place;
}

size_t frame_columns_copy_text(const frame_rows *rows, enum frame_text text, uint8_t *bytes, int32_t *ends,
                               uint8_t *valid)
{
    size_t absent = 0;
    size_t end = 0;
    memset(valid, 0, (rows->count + 7) / 8);
    ends[0] = 0;
    for (size_t row = 0; row < rows->count; row++) {
        const frame_piece *piece = &rows->rows[row].texts[text];
        if (piece->at == NULL) {
            absent++;
        } else {
            memcpy(bytes + end, piece->at, piece->length);
            end += piece->length;
            valid[row / 8] |= (uint8_t)(1u << (row % 8));
        }
        ends[row + 1] = (int32_t)end;
    }
    return absent;
}

void frame_columns_copy_numbers(const frame_rows *rows, int64_t *seqs, int64_t *times_us)
{
    for (size_t row = 0; row < rows->count; row++) {
        seqs[row] = (int64_t)rows->rows[row].seq;
        times_us[row] = (int64_t)rows->rows[row].ts * US_PER_MS;
    }
}
