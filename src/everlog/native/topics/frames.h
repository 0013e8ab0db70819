/* Frames of the topics plane: one record or one control entry, length first, checksum last.
 *
 * Knows bytes only: no file, no topic. The layouts repeat those of topics/storage/layout.py; a
 * test compares the two. Little-endian throughout.
 *
 *   Log frame       off size                     Segment frame   off size
 *   frame_len         0   4  without itself      frame_len         0   4  without itself
 *   type              4   1                      flags             4   1
 *   flags             5   1                      seq               5   8
 *   topic_id          6   8                      ts               13   8
 *   seq              14   8                      node_len         21   2
 *   ts               22   8                      tag_len          23   2
 *   node_len         30   2                      data_len         25   4
 *   tag_len          32   2                      node, tag, data  29   .
 *   data_len         34   4                      xxh3              .   8  over [4, here)
 *   node, tag, data  38   .                      deleted           .   1  0xD5 = deleted
 *   xxh3              .   8  over [4, here)
 *
 * `data` is the JSON text of the record's data; with FRAME_HAS_META it is instead
 * meta_len u32 + meta text + data text. */
#ifndef EVERLOG_FRAMES_H
#define EVERLOG_FRAMES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LOG_HEADER_SIZE 38u
#define LOG_TRAILER_SIZE 8u
#define SEGMENT_HEADER_SIZE 29u
#define SEGMENT_TRAILER_SIZE 9u
#define SEGMENT_DELETED 0xD5u
#define FRAME_META_LEN_SIZE 4u

/* where a field starts; frame_len is at 0 */
enum {
    LOG_AT_TYPE = 4,
    LOG_AT_FLAGS = 5,
    LOG_AT_TOPIC_ID = 6,
    LOG_AT_SEQ = 14,
    LOG_AT_TS = 22,
    LOG_AT_NODE_LEN = 30,
    LOG_AT_TAG_LEN = 32,
    LOG_AT_DATA_LEN = 34,
    SEGMENT_AT_FLAGS = 4,
    SEGMENT_AT_SEQ = 5,
    SEGMENT_AT_TS = 13,
    SEGMENT_AT_NODE_LEN = 21,
    SEGMENT_AT_TAG_LEN = 23,
    SEGMENT_AT_DATA_LEN = 25,
};

/* flags; the first three are the format's, the others ours */
enum {
    FRAME_HAS_TAG = 1,
    FRAME_HAS_NODE = 2,
    FRAME_DURABLE = 4,
    FRAME_HAS_META = 8,
    FRAME_BATCH_CONTINUES = 16, /* the next frame belongs to the same all-or-nothing batch */
};

enum { FRAME_TYPE_APPEND = 1 };

/* outcome of reading one frame */
enum {
    FRAME_OK = 0,
    FRAME_END = 1,     /* frame_len is zero or fewer than 4 bytes are left: nothing was written here */
    FRAME_TORN = 2,    /* the frame reaches beyond the bytes there are */
    FRAME_CORRUPT = 3, /* impossible lengths, a wrong checksum or an unknown deletion mark */
};

typedef struct {
    const uint8_t *node;
    const uint8_t *tag;
    const uint8_t *data; /* data_len bytes, meta included */
    uint64_t topic_id;   /* 0 in a segment frame */
    uint64_t seq;
    uint64_t ts;
    uint32_t data_len;
    uint32_t size; /* whole frame, frame_len field included */
    uint16_t node_len;
    uint16_t tag_len;
    uint8_t type;
    uint8_t flags;
    uint8_t deleted; /* segment frames: the byte after the checksum is SEGMENT_DELETED */
} frame_view;

typedef uint64_t (*frame_hash)(const void *data, size_t length);

/* Which XXH3-64 to use; must be set before any other call. Every linked copy has its own. */
void frames_set_hash(frame_hash hash);

static inline size_t log_frame_size(size_t node_len, size_t tag_len, size_t data_len)
{
    return LOG_HEADER_SIZE + node_len + tag_len + data_len + LOG_TRAILER_SIZE;
}

static inline size_t segment_frame_size(const frame_view *frame)
{
    return SEGMENT_HEADER_SIZE + frame->node_len + frame->tag_len + frame->data_len + SEGMENT_TRAILER_SIZE;
}

/* Bytes that count against caps: data and meta text. */
static inline uint32_t frame_payload(uint32_t data_len, uint8_t flags)
{
    return data_len - ((flags & FRAME_HAS_META) ? FRAME_META_LEN_SIZE : 0u);
}

/* Finish the log frame at `out` whose node, tag and data are in place and end at `end`: write its checksum
 * and its header, which has the numbers of `frame`. */
void log_frame_close(uint8_t *out, uint8_t *end, const frame_view *frame);

/* Write the log frame that `frame` describes (its `size` and `deleted` are not read); `meta` may be
 * NULL, otherwise `frame->data` is the data text alone, `frame->data_len` still the whole and
 * `meta_len` the length of the meta text. Returns the bytes written. */
size_t log_frame_write(uint8_t *out, const frame_view *frame, const uint8_t *meta, uint32_t meta_len);

/* Read one log frame from `available` bytes; with `verify` the checksum too. */
int log_frame_read(const uint8_t *at, size_t available, frame_view *frame, int verify);

/* Write the segment frame of a record (its `type`, `topic_id` and `size` are not read); returns its
 * size. `frame->data` is the whole blob; `frame->deleted` writes the mark of a deleted record. */
size_t segment_frame_write(uint8_t *out, const frame_view *frame);

/* Read one segment frame from `available` bytes; with `verify` the checksum too. */
int segment_frame_read(const uint8_t *at, size_t available, frame_view *frame, int verify);

/* For walks over many small frames: ask for the bytes one page ahead, because the processor's own
 * prefetching stops at the end of a page. Any address will do, one beyond the bytes too. */
static inline void frames_prefetch(const uint8_t *at)
{
    uintptr_t ahead = (uintptr_t)at + 4096;
    __builtin_prefetch((const void *)ahead);
    __builtin_prefetch((const void *)(ahead + 64));
}

typedef struct {     /* what a walk over frames found */
    uint64_t frames; /* sound ones */
    size_t end;      /* offset behind the last sound frame */
    int outcome;     /* why it stopped there: FRAME_END, FRAME_TORN or FRAME_CORRUPT */
} frame_scan;

/* Walk the frames from `start` (at most `length`) until one cannot be read. */
void log_frames_scan(const uint8_t *base, size_t length, size_t start, int verify, frame_scan *result);
void segment_frames_scan(const uint8_t *base, size_t length, size_t start, int verify, frame_scan *result);

static inline uint32_t load_u32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* Split `data` into meta (may be absent: NULL, 0) and data text. Returns 0, or -1 if lengths lie. */
static inline int frame_split(const frame_view *frame, const uint8_t **meta, uint32_t *meta_len,
                              const uint8_t **text, uint32_t *text_len)
{
    *meta = NULL;
    *meta_len = 0;
    *text = frame->data;
    *text_len = frame->data_len;
    if (!(frame->flags & FRAME_HAS_META))
        return 0;
    if (frame->data_len < FRAME_META_LEN_SIZE)
        return -1;
    uint32_t length = load_u32(frame->data);
    uint32_t room = frame->data_len - FRAME_META_LEN_SIZE;
    if (length > room)
        return -1;
    *meta = frame->data + FRAME_META_LEN_SIZE;
    *meta_len = length;
    *text = *meta + length;
    *text_len = room - length;
    return 0;
}

enum {                    /* what `text_survey` finds; neither is proof of anything */
       TEXT_HAS_LOW = 1,  /* a byte up to the blank: white space, or a control character */
       TEXT_HAS_HIGH = 2, /* a byte beyond ASCII */
};

/* One quick pass over a text: which of the slow ones it needs. */
int text_survey(const uint8_t *text, size_t length);

/* Copy JSON text without insignificant white space; `out` has room for `length` bytes. Returns the
 * length written. Text without any is copied in one piece. */
size_t json_compact(uint8_t *out, const uint8_t *text, size_t length);

/* what `json_check` finds */
enum {
    JSON_SOUND = 0,
    JSON_NOT_UTF8 = 1,
    JSON_TOO_DEEP = 2,
    JSON_LONE_SURROGATE = 3,
};

/* Look for what a JSON parser lets pass but no record may hold: bytes that are no UTF-8, nesting beyond
 * `max_depth`, escapes of half a surrogate pair. Says nothing about the syntax otherwise. */
int json_check(const uint8_t *text, size_t length, uint32_t max_depth);

/* Top-level keys of a JSON object, by its commas; -1 if the text is no object. */
int64_t json_key_count(const uint8_t *text, size_t length);

/* Whether a text has nothing but white space. */
int json_is_blank(const uint8_t *text, size_t length);

/* Whether `text` is UTF-8 (no overlong forms, no surrogates, at most U+10FFFF). */
int utf8_valid(const uint8_t *text, size_t length);

#endif
