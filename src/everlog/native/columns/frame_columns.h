/* Records of the topics plane to columns: which of them are wanted, and their texts one behind the other.
 *
 * Works in two steps, so that nothing is copied that no column needs: `frame_columns_pick` reads, checks and
 * filters frames and adds up lengths, `frame_columns_copy_*` fill buffers of exactly that size. Knows no file
 * and allocates nothing. */
#ifndef EVERLOG_FRAME_COLUMNS_H
#define EVERLOG_FRAME_COLUMNS_H

#include <stddef.h>
#include <stdint.h>

#include "topics/frames.h"

enum frame_text { FRAME_TEXT_NODE, FRAME_TEXT_TAG, FRAME_TEXT_META, FRAME_TEXT_DATA, FRAME_TEXTS };

typedef struct { /* one text of a record; at NULL: the record has none */
    const uint8_t *at;
    uint32_t length;
} frame_piece;

typedef struct { /* a record that was picked: it points into the buffer it was read from */
    frame_piece texts[FRAME_TEXTS];
    uint64_t seq;
    uint64_t ts;
} frame_row;

typedef struct { /* what passes: times, both ends included, and a tag, NULL for all */
    uint64_t from_ts;
    uint64_t to_ts;
    const uint8_t *tag;
    size_t tag_len;
    int is_prefix;
} frame_filter;

/* log_frame_read or segment_frame_read, from the module that has them. */
typedef int (*frame_reader)(const uint8_t *at, size_t available, frame_view *frame, int verify);

typedef struct { /* where frames lie: entry i is that of the record `seqs[i]` */
    const uint8_t *base;
    size_t length;
    const uint64_t *offsets;
    const uint64_t *seqs;
    size_t count;
    int in_log; /* log frames, else segment frames */
    frame_reader read;
} frame_places;

typedef struct { /* rows picked so far, and the bytes of each text in them */
    frame_row *rows;
    size_t count;
    size_t bytes[FRAME_TEXTS];
} frame_rows;

/* Add the records at these places that pass; `rows` must have room for all. Returns the number of places
 * that were sound: fewer than there are means that the next one is damaged. */
size_t frame_columns_pick(frame_rows *rows, const frame_places *places, const frame_filter *filter);

/* Add the row that lies behind the last one, unless it does not pass. */
void frame_columns_add(frame_rows *rows, const frame_filter *filter);

/* Copy one text of all rows: `ends` has count + 1 numbers, the first is 0; `valid` has a bit for each row, set
 * if it has the text, and is cleared before. Returns how many rows have none. */
size_t frame_columns_copy_text(const frame_rows *rows, enum frame_text text, uint8_t *bytes, int32_t *ends,
                               uint8_t *valid);

/* Copy the seqs, and the times in microseconds. */
void frame_columns_copy_numbers(const frame_rows *rows, int64_t *seqs, int64_t *times_us);

#endif
