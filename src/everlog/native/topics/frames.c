/* Frames, JSON compaction and the UTF-8 check; see frames.h for the layouts.
 *
 * Writers trust their caller, readers trust nothing: every length is compared with the bytes there
 * are before it is used. Words are moved by memcpy of a fixed size, which compiles to one unaligned
 * access and is defined for any address. */
#include "frames.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are copied as they are");
_Static_assert(LOG_AT_DATA_LEN + 4 == LOG_HEADER_SIZE, "the log header ends after data_len");
_Static_assert(SEGMENT_AT_DATA_LEN + 4 == SEGMENT_HEADER_SIZE, "the segment header ends after data_len");

#define FRAME_LEN_SIZE 4u
#define CHECKSUM_SIZE 8u
#define REPEATED(byte) (0x0101010101010101u * (byte))
#define HIGH_BITS REPEATED(0x80u)

static frame_hash hash_of;

void frames_set_hash(frame_hash hash)
{
    hash_of = hash;
}

static inline uint16_t load_u16(const uint8_t *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint64_t load_u64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline void store_u16(uint8_t *at, uint16_t value)
{
    memcpy(at, &value, sizeof value);
}

static inline void store_u32(uint8_t *at, uint32_t value)
{
    memcpy(at, &value, sizeof value);
}

static inline void store_u64(uint8_t *at, uint64_t value)
{
    memcpy(at, &value, sizeof value);
}

/* Copy and return the end; an absent part may be NULL, which memcpy must never see. */
static inline uint8_t *put_bytes(uint8_t *out, const uint8_t *bytes, size_t length)
{
    if (length > 0)
        memcpy(out, bytes, length);
    return out + length;
}

/* Close a frame whose checksum starts at `end`. */
static inline void put_checksum(uint8_t *out, uint8_t *end)
{
    store_u64(end, hash_of(out + FRAME_LEN_SIZE, (size_t)(end - out) - FRAME_LEN_SIZE));
}

void log_frame_close(uint8_t *out, uint8_t *end, const frame_view *frame)
{
    store_u32(out, (uint32_t)(end - out) + LOG_TRAILER_SIZE - FRAME_LEN_SIZE);
    out[LOG_AT_TYPE] = frame->type;
    out[LOG_AT_FLAGS] = frame->flags;
    store_u64(out + LOG_AT_TOPIC_ID, frame->topic_id);
    store_u64(out + LOG_AT_SEQ, frame->seq);
    store_u64(out + LOG_AT_TS, frame->ts);
    store_u16(out + LOG_AT_NODE_LEN, frame->node_len);
    store_u16(out + LOG_AT_TAG_LEN, frame->tag_len);
    store_u32(out + LOG_AT_DATA_LEN, frame->data_len);
    put_checksum(out, end);
}

size_t log_frame_write(uint8_t *out, const frame_view *frame, const uint8_t *meta, uint32_t meta_len)
{
    uint32_t text_len = frame->data_len;
    uint8_t *end = put_bytes(out + LOG_HEADER_SIZE, frame->node, frame->node_len);
    end = put_bytes(end, frame->tag, frame->tag_len);
    if (meta != NULL) {
        store_u32(end, meta_len);
        end = put_bytes(end + FRAME_META_LEN_SIZE, meta, meta_len);
        text_len -= FRAME_META_LEN_SIZE + meta_len;
    }
    end = put_bytes(end, frame->data, text_len);
    log_frame_close(out, end, frame);
    return (size_t)(end - out) + LOG_TRAILER_SIZE;
}

size_t segment_frame_write(uint8_t *out, const frame_view *frame)
{
    size_t size = segment_frame_size(frame);
    store_u32(out, (uint32_t)(size - FRAME_LEN_SIZE));
    out[SEGMENT_AT_FLAGS] = frame->flags;
    store_u64(out + SEGMENT_AT_SEQ, frame->seq);
    store_u64(out + SEGMENT_AT_TS, frame->ts);
    store_u16(out + SEGMENT_AT_NODE_LEN, frame->node_len);
    store_u16(out + SEGMENT_AT_TAG_LEN, frame->tag_len);
    store_u32(out + SEGMENT_AT_DATA_LEN, frame->data_len);

    uint8_t *end = put_bytes(out + SEGMENT_HEADER_SIZE, frame->node, frame->node_len);
    end = put_bytes(end, frame->tag, frame->tag_len);
    end = put_bytes(end, frame->data, frame->data_len);
    put_checksum(out, end);
    end[CHECKSUM_SIZE] = frame->deleted ? SEGMENT_DELETED : 0;
    return size;
}

/* Whether a frame can start here at all; FRAME_OK promises that its whole header may be read. */
static inline int check_frame_len(const uint8_t *at, size_t available, uint32_t overhead, uint32_t *frame_len)
{
    if (available < FRAME_LEN_SIZE)
        return FRAME_END;
    *frame_len = load_u32(at);
    if (*frame_len == 0)
        return FRAME_END;
    if (*frame_len > available - FRAME_LEN_SIZE)
        return FRAME_TORN;
    /* The upper bound: `size` of the view has 32 bits. */
    if (*frame_len < overhead - FRAME_LEN_SIZE || *frame_len > UINT32_MAX - FRAME_LEN_SIZE)
        return FRAME_CORRUPT;
    return FRAME_OK;
}

/* Where the two kinds of frames keep what both have; a constant at every call, so it costs nothing. */
typedef struct {
    uint32_t flags_at, node_len_at, tag_len_at, data_len_at, header_size, trailer_size;
} frame_layout;

static const frame_layout LOG_LAYOUT = {LOG_AT_FLAGS,    LOG_AT_NODE_LEN, LOG_AT_TAG_LEN,
                                        LOG_AT_DATA_LEN, LOG_HEADER_SIZE, LOG_TRAILER_SIZE};
static const frame_layout SEGMENT_LAYOUT = {SEGMENT_AT_FLAGS,    SEGMENT_AT_NODE_LEN, SEGMENT_AT_TAG_LEN,
                                            SEGMENT_AT_DATA_LEN, SEGMENT_HEADER_SIZE, SEGMENT_TRAILER_SIZE};

#define HOT static inline __attribute__((always_inline))

/* Whether a frame is here whose lengths agree with each other; FRAME_OK gives its size. */
HOT int check_lengths(frame_layout layout, const uint8_t *at, size_t available, uint32_t *size)
{
    const uint32_t overhead = layout.header_size + layout.trailer_size;
    uint32_t frame_len;
    int outcome = check_frame_len(at, available, overhead, &frame_len);
    if (__builtin_expect(outcome != FRAME_OK, 0))
        return outcome;
    *size = frame_len + FRAME_LEN_SIZE;
    uint32_t data_len = load_u32(at + layout.data_len_at);
    uint64_t texts = (uint64_t)load_u16(at + layout.node_len_at) + load_u16(at + layout.tag_len_at);
    if (texts + data_len != *size - overhead)
        return FRAME_CORRUPT;
    if ((at[layout.flags_at] & FRAME_HAS_META) && data_len < FRAME_META_LEN_SIZE)
        return FRAME_CORRUPT;
    return FRAME_OK;
}

/* For a frame whose lengths are right. */
HOT int checksum_matches(frame_layout layout, const uint8_t *at, uint32_t size)
{
    const uint8_t *end = at + (size - layout.trailer_size);
    return hash_of(at + FRAME_LEN_SIZE, (size_t)(end - at) - FRAME_LEN_SIZE) == load_u64(end);
}

/* What both kinds have in common; the lengths are right. */
HOT void fill_view(frame_layout layout, const uint8_t *at, frame_view *frame)
{
    frame->flags = at[layout.flags_at];
    frame->node_len = load_u16(at + layout.node_len_at);
    frame->tag_len = load_u16(at + layout.tag_len_at);
    frame->data_len = load_u32(at + layout.data_len_at);
    frame->node = at + layout.header_size;
    frame->tag = frame->node + frame->node_len;
    frame->data = frame->tag + frame->tag_len;
}

int log_frame_read(const uint8_t *at, size_t available, frame_view *frame, int verify)
{
    int outcome = check_lengths(LOG_LAYOUT, at, available, &frame->size);
    if (outcome != FRAME_OK)
        return outcome;
    fill_view(LOG_LAYOUT, at, frame);
    frame->type = at[LOG_AT_TYPE];
    frame->topic_id = load_u64(at + LOG_AT_TOPIC_ID);
    frame->seq = load_u64(at + LOG_AT_SEQ);
    frame->ts = load_u64(at + LOG_AT_TS);
    frame->deleted = 0;
    return verify && !checksum_matches(LOG_LAYOUT, at, frame->size) ? FRAME_CORRUPT : FRAME_OK;
}

int segment_frame_read(const uint8_t *at, size_t available, frame_view *frame, int verify)
{
    int outcome = check_lengths(SEGMENT_LAYOUT, at, available, &frame->size);
    if (outcome != FRAME_OK)
        return outcome;
    fill_view(SEGMENT_LAYOUT, at, frame);
    frame->type = FRAME_TYPE_APPEND;
    frame->topic_id = 0;
    frame->seq = load_u64(at + SEGMENT_AT_SEQ);
    frame->ts = load_u64(at + SEGMENT_AT_TS);
    /* The mark is outside the checksum, so only its exact value counts: any other means alive. */
    frame->deleted = frame->data[frame->data_len + CHECKSUM_SIZE] == SEGMENT_DELETED;
    return verify && !checksum_matches(SEGMENT_LAYOUT, at, frame->size) ? FRAME_CORRUPT : FRAME_OK;
}

/* Only sizes are looked at: a view of every frame would cost more than all checks but the hash. */
HOT void scan(frame_layout layout, const uint8_t *base, size_t length, size_t start, int verify,
              frame_scan *result)
{
    uint64_t frames = 0;
    size_t at = start;
    uint32_t size = 0;
    int outcome;
    while ((outcome = check_lengths(layout, base + at, length - at, &size)) == FRAME_OK) {
        if (verify && __builtin_expect(!checksum_matches(layout, base + at, size), 0)) {
            outcome = FRAME_CORRUPT;
            break;
        }
        at += size;
        frames++;
        frames_prefetch(base + at);
    }
    *result = (frame_scan){.frames = frames, .end = at, .outcome = outcome};
}

void log_frames_scan(const uint8_t *base, size_t length, size_t start, int verify, frame_scan *result)
{
    scan(LOG_LAYOUT, base, length, start, verify, result);
}

void segment_frames_scan(const uint8_t *base, size_t length, size_t start, int verify, frame_scan *result)
{
    scan(SEGMENT_LAYOUT, base, length, start, verify, result);
}

static inline int is_white(uint8_t byte)
{
    return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
}

static const uint8_t *skip_white(const uint8_t *at, const uint8_t *end)
{
    while (at < end && is_white(*at))
        at++;
    return at;
}

typedef uint8_t byte_vector __attribute__((vector_size(16)));

static inline int any_bit(byte_vector bytes, uint64_t bits)
{
    uint64_t words[2];
    memcpy(words, &bytes, sizeof words);
    return ((words[0] | words[1]) & bits) != 0;
}

int text_survey(const uint8_t *text, size_t length)
{
    byte_vector low = {0}, high = {0}, bytes;
    if (length < sizeof bytes) {
        uint8_t highest = 0, lowest = UINT8_MAX;
        for (size_t at = 0; at < length; at++) {
            highest |= text[at];
            lowest = text[at] < lowest ? text[at] : lowest;
        }
        return (lowest <= ' ' ? TEXT_HAS_LOW : 0) | (highest >= 0x80 ? TEXT_HAS_HIGH : 0);
    }
    /* The last vector overlaps the one before, so that no bytes are left for a slow end. */
    for (size_t at = 0; at < length; at += sizeof bytes) {
        size_t last = length - sizeof bytes;
        memcpy(&bytes, text + (at < last ? at : last), sizeof bytes);
        low |= (byte_vector)(bytes <= ' ');
        high |= bytes;
    }
    return (any_bit(low, UINT64_MAX) ? TEXT_HAS_LOW : 0) | (any_bit(high, HIGH_BITS) ? TEXT_HAS_HIGH : 0);
}

/* The high bit of every byte of `word` that equals `byte`; exact up to and including the lowest one. */
static inline uint64_t equal_bytes(uint64_t word, uint8_t byte)
{
    uint64_t zero = word ^ REPEATED(byte);
    return (zero - REPEATED(1u)) & ~zero & HIGH_BITS;
}

/* The byte after the closing quote of the string whose text starts at `at`; `end` if it never closes. */
static const uint8_t *skip_string(const uint8_t *at, const uint8_t *end)
{
    while (at < end) {
        if (end - at >= 8) {
            uint64_t word = load_u64(at);
            uint64_t found = equal_bytes(word, '"') | equal_bytes(word, '\\');
            if (found == 0) {
                at += 8;
                continue;
            }
            at += __builtin_ctzll(found) / 8;
        }
        if (*at == '"')
            return at + 1;
        if (*at == '\\' && end - at > 1)
            at++; /* whatever is escaped, a quote too, is no end */
        at++;
    }
    return end;
}

size_t json_compact(uint8_t *out, const uint8_t *text, size_t length)
{
    if (!(text_survey(text, length) & TEXT_HAS_LOW)) {
        put_bytes(out, text, length);
        return length;
    }
    const uint8_t *at = text, *end = text + length;
    const uint8_t *kept = text; /* from here to `at` all bytes stay and are copied in one piece */
    uint8_t *out_end = out;
    while (at < end) {
        if (*at == '"') {
            at = skip_string(at + 1, end);
        } else if (is_white(*at)) {
            out_end = put_bytes(out_end, kept, (size_t)(at - kept));
            at = kept = skip_white(at, end);
        } else {
            at++;
        }
    }
    out_end = put_bytes(out_end, kept, (size_t)(end - kept));
    return (size_t)(out_end - out);
}

int json_is_blank(const uint8_t *text, size_t length)
{
    return skip_white(text, text + length) == text + length;
}

int64_t json_key_count(const uint8_t *text, size_t length)
{
    const uint8_t *end = text + length, *at = skip_white(text, end);
    int64_t commas = 0, depth = 0;
    if (at >= end || *at != '{')
        return -1;
    at = skip_white(at + 1, end);
    if (at < end && *at == '}')
        return 0;
    while (at < end) {
        uint8_t byte = *at++;
        if (byte == '"')
            at = skip_string(at, end);
        else if (byte == '{' || byte == '[')
            depth++;
        else if (byte == '}' || byte == ']')
            depth--;
        else if (byte == ',' && depth == 0)
            commas++;
    }
    return commas + 1;
}

static inline int is_continuation(uint8_t byte)
{
    return (byte & 0xC0) == 0x80;
}

/* Length of the well-formed sequence of a character beyond ASCII, 0 if it is none. */
static size_t sequence_length(const uint8_t *at, size_t left)
{
    uint8_t lead = at[0];
    if (left < 2 || lead < 0xC2 || lead > 0xF4 || !is_continuation(at[1]))
        return 0;
    if (lead < 0xE0)
        return 2;
    if (left < 3 || !is_continuation(at[2]))
        return 0;
    if (lead < 0xF0) /* E0 below A0 is overlong, ED from A0 on a surrogate */
        return (lead == 0xE0 && at[1] < 0xA0) || (lead == 0xED && at[1] >= 0xA0) ? 0 : 3;
    if (left < 4 || !is_continuation(at[3]))
        return 0;
    /* F0 below 90 is overlong, F4 from 90 on is beyond U+10FFFF. */
    return (lead == 0xF0 && at[1] < 0x90) || (lead == 0xF4 && at[1] >= 0x90) ? 0 : 4;
}

int utf8_valid(const uint8_t *text, size_t length)
{
    const uint8_t *at = text, *end = text + length;
    while (at < end) {
        if (end - at >= 8 && (load_u64(at) & HIGH_BITS) == 0) {
            at += 8;
        } else if (*at < 0x80) {
            at++;
        } else {
            size_t size = sequence_length(at, (size_t)(end - at));
            if (size == 0)
                return 0;
            at += size;
        }
    }
    return 1;
}

/* The 16 bits of the escape with four hexadecimal digits that begins at `at`, -1 if there is none. */
static int32_t escaped_unit(const uint8_t *text, size_t length, size_t at)
{
    int32_t unit = 0;
    if (length < 6 || at > length - 6 || text[at] != '\\' || text[at + 1] != 'u')
        return -1;
    for (size_t digit = at + 2; digit < at + 6; digit++) {
        uint8_t byte = text[digit], letter = (uint8_t)((byte | 0x20) - 'a');
        if (byte >= '0' && byte <= '9')
            unit = unit * 16 + (byte - '0');
        else if (letter < 6)
            unit = unit * 16 + letter + 10;
        else
            return -1;
    }
    return unit;
}

/* Where the string whose first character is at `at` has ended, SIZE_MAX if it has half a surrogate pair. */
static size_t check_string(const uint8_t *text, size_t length, size_t at)
{
    while (at < length && text[at] != '"') {
        if (text[at] != '\\') {
            at++;
            continue;
        }
        int32_t unit = escaped_unit(text, length, at);
        if (unit >= 0xD800 && unit <= 0xDFFF) {
            int32_t low = unit < 0xDC00 ? escaped_unit(text, length, at + 6) : -1;
            if (low < 0xDC00 || low > 0xDFFF)
                return SIZE_MAX;
            at += 12;
        } else {
            at += 2;
        }
    }
    return at + 1;
}

int json_check(const uint8_t *text, size_t length, uint32_t max_depth)
{
    uint32_t depth = 0;
    size_t at = 0;
    if (!utf8_valid(text, length))
        return JSON_NOT_UTF8;
    while (at < length) {
        uint8_t byte = text[at++];
        if (byte == '"') {
            at = check_string(text, length, at);
            if (at == SIZE_MAX)
                return JSON_LONE_SURROGATE;
        } else if (byte == '{' || byte == '[') {
            if (++depth > max_depth)
                return JSON_TOO_DEEP;
        } else if (byte == '}' || byte == ']') {
            depth -= depth > 0;
        }
    }
    return JSON_SOUND;
}
