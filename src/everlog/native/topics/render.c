/* Records out of their frames; see render.h. */
#include "render.h"

#include <stdlib.h>
#include <string.h>

#define LONGEST_NUMBER 20u /* digits of a u64 */
#define LONGEST_ESCAPE 6u  /* \u00XX */
#define ALL_KEYS "{\"$seq\":,\"$ts\":,\"$node\":\"\",\"$tag\":\"\",\"meta\":,\"data\":},"
#define FIXED_TEXT (sizeof ALL_KEYS + 2 * LONGEST_NUMBER) /* everything but the four texts */
#define ALL_JOB_KEYS                                                                                         \
    "{\"$seq\":,\"lease_id\":\"lease_\",\"deadline\":,\"$ts\":,\"$tag\":\"\",\"deliveries\":,\"data\":,"     \
    "\"meta\":}"
#define JOB_FIXED_TEXT (sizeof ALL_JOB_KEYS + 5 * LONGEST_NUMBER)
#define FIRST_CAPACITY 4096u

#define PUT_LITERAL(out, text) put_bytes((out), (const uint8_t *)(text), sizeof(text) - 1)

static inline uint8_t *put_bytes(uint8_t *out, const uint8_t *bytes, size_t length)
{
    if (length > 0)
        memcpy(out, bytes, length);
    return out + length;
}

int record_read(const source_span *source, const log_entry *entry, uint64_t topic_id, uint64_t seq,
                int verify, frame_view *frame)
{
    int in_log = entry->flags & ENTRY_IN_LOG;
    int outcome;
    if (source->base == NULL)
        return RECORD_MISSING;
    if (entry->offset > source->length || entry->size > source->length - entry->offset)
        return RECORD_CORRUPT;
    if (in_log)
        outcome = log_frame_read(source->base + entry->offset, entry->size, frame, verify);
    else
        outcome = segment_frame_read(source->base + entry->offset, entry->size, frame, verify);
    if (outcome != FRAME_OK || frame->size != entry->size || frame->seq != seq)
        return RECORD_CORRUPT;
    if (in_log && (frame->topic_id != topic_id || frame->type != FRAME_TYPE_APPEND))
        return RECORD_CORRUPT;
    if (entry->flags & ENTRY_PAYLOAD_UNKNOWN)
        return RECORD_OK;
    return frame_payload(frame->data_len, frame->flags) == entry->payload ? RECORD_OK : RECORD_CORRUPT;
}

int record_at(const log_index *index, const source_span *sources, size_t source_count, uint64_t topic_id,
              uint64_t seq, log_entry *entry, frame_view *frame)
{
    if (!log_index_has(index, seq))
        return RECORD_CORRUPT;
    log_index_get(index, seq, entry);
    if (entry->source == 0 || entry->source >= source_count)
        return RECORD_CORRUPT;
    return record_read(&sources[entry->source], entry, topic_id, seq, !(entry->flags & ENTRY_IN_LOG), frame);
}

/* --- JSON -------------------------------------------------------------------------------------------- */

static const char TWO_DIGITS[] = "0001020304050607080910111213141516171819202122232425262728293031323334"
                                 "3536373839404142434445464748495051525354555657585960616263646566676869"
                                 "707172737475767778798081828384858687888990919293949596979899";

static inline uint8_t *put_number(uint8_t *out, uint64_t number)
{
    uint8_t digits[LONGEST_NUMBER];
    size_t at = sizeof digits;
    while (number >= 100) {
        at -= 2;
        memcpy(digits + at, TWO_DIGITS + 2 * (number % 100), 2);
        number /= 100;
    }
    if (number >= 10) {
        at -= 2;
        memcpy(digits + at, TWO_DIGITS + 2 * number, 2);
    } else {
        digits[--at] = (uint8_t)('0' + number);
    }
    return put_bytes(out, digits + at, sizeof digits - at);
}

/* The inside of a JSON string; `out` has LONGEST_ESCAPE bytes for each byte of `text`. */
static uint8_t *put_escaped(uint8_t *out, const uint8_t *text, size_t length)
{
    static const char HEX[] = "0123456789abcdef";
    for (size_t at = 0; at < length; at++) {
        uint8_t byte = text[at];
        if (byte >= 0x20 && byte != '"' && byte != '\\') {
            *out++ = byte;
        } else if (byte < 0x20) {
            out = PUT_LITERAL(out, "\\u00");
            *out++ = (uint8_t)HEX[byte >> 4];
            *out++ = (uint8_t)HEX[byte & 15];
        } else {
            *out++ = '\\';
            *out++ = byte;
        }
    }
    return out;
}

static int grow(text_buffer *out, size_t more)
{
    size_t capacity = out->capacity ? 2 * out->capacity : FIRST_CAPACITY;
    if (capacity < out->length + more)
        capacity = out->length + more;
    uint8_t *grown = realloc(out->base, capacity);
    if (grown == NULL)
        return -1;
    out->base = grown;
    out->capacity = capacity;
    return 0;
}

static inline int make_room(text_buffer *out, size_t more)
{
    return more <= out->capacity - out->length ? 0 : grow(out, more);
}

static int is_own(const render_request *request, const frame_view *frame)
{
    if (frame->node_len == 0)
        return 0;
    for (size_t place = 0; place < request->node_count; place++) {
        const byte_text *node = &request->nodes[place];
        if (node->length == frame->node_len && memcmp(node->text, frame->node, node->length) == 0)
            return 1;
    }
    return 0;
}

/* One record and the comma behind it. Returns RECORD_OK, RECORD_CORRUPT, or -1 without memory. */
static int put_record(text_buffer *out, const render_request *request, const frame_view *frame)
{
    const uint8_t *meta, *text;
    uint32_t meta_len, text_len;
    if (frame_split(frame, &meta, &meta_len, &text, &text_len) != 0)
        return RECORD_CORRUPT;
    size_t escaped = LONGEST_ESCAPE * ((size_t)frame->node_len + frame->tag_len);
    if (make_room(out, FIXED_TEXT + escaped + meta_len + text_len) != 0)
        return -1;
    uint8_t *at = out->base + out->length;
    at = PUT_LITERAL(at, "{\"$seq\":");
    at = put_number(at, frame->seq);
    at = PUT_LITERAL(at, ",\"$ts\":");
    at = put_number(at, frame->ts);
    if (frame->node_len > 0) {
        at = PUT_LITERAL(at, ",\"$node\":\"");
        at = put_escaped(at, frame->node, frame->node_len);
        *at++ = '"';
    }
    if (frame->tag_len > 0 && request->include_tags) {
        at = PUT_LITERAL(at, ",\"$tag\":\"");
        at = put_escaped(at, frame->tag, frame->tag_len);
        *at++ = '"';
    }
    if (meta != NULL && request->include_meta) {
        at = PUT_LITERAL(at, ",\"meta\":");
        at = put_bytes(at, meta, meta_len);
    }
    if (request->include_data) {
        at = PUT_LITERAL(at, ",\"data\":");
        at = put_bytes(at, text, text_len);
    }
    at = PUT_LITERAL(at, "},");
    out->length = (size_t)(at - out->base);
    return RECORD_OK;
}

/* Deliver, pass over or stop at one live record. `*bytes` is the payload delivered so far. Returns 1 to
 * go on, 0 to stop before it, -1 without memory. */
static int render_one(const log_index *index, const render_request *request, uint64_t seq, uint64_t *bytes,
                      text_buffer *out, render_result *result)
{
    log_entry entry;
    frame_view frame;
    int outcome =
        record_at(index, request->sources, request->source_count, request->topic_id, seq, &entry, &frame);
    if (outcome == RECORD_MISSING) {
        result->missing_source = entry.source;
        return 0;
    }
    if (outcome == RECORD_CORRUPT) {
        result->corrupt_seq = seq;
        return 0;
    }
    /* A mark in the segment that the index does not know yet: deleted all the same. */
    if (frame.deleted || is_own(request, &frame)) {
        result->scanned++;
        return 1;
    }
    uint64_t payload = frame_payload(frame.data_len, frame.flags);
    if (request->max_bytes > 0 && result->delivered > 0 && *bytes + payload > request->max_bytes)
        return 0;
    outcome = put_record(out, request, &frame);
    if (outcome == RECORD_CORRUPT)
        result->corrupt_seq = seq;
    if (outcome != RECORD_OK)
        return outcome == RECORD_CORRUPT ? 0 : -1;
    *bytes += payload;
    result->scanned++;
    result->delivered++;
    return 1;
}

int render_records(const log_index *index, const render_request *request, text_buffer *out,
                   render_result *result)
{
    uint64_t last = request->end_seq < index->next_seq ? request->end_seq : index->next_seq - 1;
    uint64_t bytes = 0;
    *result = (render_result){.next_from_seq = request->from_seq};
    out->length = 0;
    if (make_room(out, 2) != 0)
        return -1;
    out->base[out->length++] = '[';
    while (result->next_from_seq < last && result->delivered < request->limit) {
        uint64_t seq = log_index_next_live(index, result->next_from_seq + 1, last + 1);
        result->next_from_seq = seq - 1;
        if (seq > last)
            break;
        int going = render_one(index, request, seq, &bytes, out, result);
        if (going < 0)
            return -1;
        if (going == 0)
            break;
        result->next_from_seq = seq;
    }
    if (result->delivered > 0)
        out->length--; /* the last comma */
    if (make_room(out, 1) != 0)
        return -1;
    out->base[out->length++] = ']';
    return 0;
}

/* --- Jobs -------------------------------------------------------------------------------------------- */

static uint8_t *put_hex(uint8_t *out, uint64_t number)
{
    static const char HEX[] = "0123456789abcdef";
    int shift = 60;
    while (shift > 0 && (number >> shift & 15) == 0)
        shift -= 4;
    for (; shift >= 0; shift -= 4)
        *out++ = (uint8_t)HEX[number >> shift & 15];
    return out;
}

static int put_job(text_buffer *out, const frame_view *frame, const job_lease *job)
{
    const uint8_t *meta, *text;
    uint32_t meta_len, text_len;
    if (frame_split(frame, &meta, &meta_len, &text, &text_len) != 0)
        return RECORD_CORRUPT;
    if (make_room(out, JOB_FIXED_TEXT + LONGEST_ESCAPE * (size_t)frame->tag_len + meta_len + text_len) != 0)
        return -1;
    uint8_t *at = out->base + out->length;
    at = PUT_LITERAL(at, "{\"$seq\":");
    at = put_number(at, frame->seq);
    at = PUT_LITERAL(at, ",\"lease_id\":\"lease_");
    at = put_hex(at, job->lease_id);
    at = PUT_LITERAL(at, "\",\"deadline\":");
    at = put_number(at, job->deadline);
    at = PUT_LITERAL(at, ",\"$ts\":");
    at = put_number(at, frame->ts);
    if (frame->tag_len > 0) {
        at = PUT_LITERAL(at, ",\"$tag\":\"");
        at = put_escaped(at, frame->tag, frame->tag_len);
        *at++ = '"';
    }
    at = PUT_LITERAL(at, ",\"deliveries\":");
    at = put_number(at, job->deliveries);
    at = PUT_LITERAL(at, ",\"data\":");
    at = put_bytes(at, text, text_len);
    if (meta != NULL) {
        at = PUT_LITERAL(at, ",\"meta\":");
        at = put_bytes(at, meta, meta_len);
    }
    *at++ = '}';
    out->length = (size_t)(at - out->base);
    return RECORD_OK;
}

int render_job(const log_index *index, const render_request *request, const job_lease *job, text_buffer *out,
               uint32_t *missing_source)
{
    log_entry entry;
    frame_view frame;
    out->length = 0;
    if (!log_index_is_live(index, job->seq))
        return RECORD_DELETED;
    int outcome = record_at(index, request->sources, request->source_count, request->topic_id, job->seq,
                            &entry, &frame);
    if (outcome == RECORD_MISSING)
        *missing_source = entry.source;
    if (outcome != RECORD_OK)
        return outcome;
    return frame.deleted ? RECORD_DELETED : put_job(out, &frame, job);
}

/* --- Segments ---------------------------------------------------------------------------------------- */

static void index_entry_write(uint8_t *at, uint32_t offset, uint32_t size, uint64_t ts, uint8_t flags)
{
    memset(at, 0, INDEX_ENTRY_SIZE);
    memcpy(at, &offset, sizeof offset);
    memcpy(at + 4, &size, sizeof size);
    memcpy(at + 8, &ts, sizeof ts);
    at[16] = flags;
}

void index_entry_read(const uint8_t *at, uint32_t source, log_entry *entry)
{
    const uint32_t overhead = SEGMENT_HEADER_SIZE + SEGMENT_TRAILER_SIZE;
    *entry = (log_entry){.source = source, .flags = at[16] & (ENTRY_FRAME_FLAGS | ENTRY_DEAD)};
    memcpy(&entry->offset, at, sizeof entry->offset);
    memcpy(&entry->size, at + 4, sizeof entry->size);
    memcpy(&entry->ts, at + 8, sizeof entry->ts);
    if (entry->size == 0) {
        entry->source = 0;
        entry->flags |= ENTRY_DEAD;
    } else if (entry->flags & (ENTRY_HAS_TAG | ENTRY_HAS_NODE)) {
        entry->flags |= ENTRY_PAYLOAD_UNKNOWN;
    } else if (entry->size >= overhead + ((entry->flags & ENTRY_HAS_META) ? FRAME_META_LEN_SIZE : 0)) {
        entry->payload = frame_payload(entry->size - overhead, entry->flags);
    }
}

size_t segment_size_of(const log_entry *entry)
{
    const uint32_t shorter = LOG_HEADER_SIZE + LOG_TRAILER_SIZE - SEGMENT_HEADER_SIZE - SEGMENT_TRAILER_SIZE;
    if (entry->flags & ENTRY_DEAD)
        return 0;
    if (!(entry->flags & ENTRY_IN_LOG))
        return entry->size;
    return entry->size > shorter ? entry->size - shorter : 0;
}

uint64_t segment_copy(const record_place *places, uint64_t count, uint64_t topic_id, uint64_t first_seq,
                      uint32_t base_offset, uint8_t *data, uint8_t *entries)
{
    uint32_t offset = base_offset;
    for (uint64_t place = 0; place < count; place++, entries += INDEX_ENTRY_SIZE) {
        const log_entry *entry = &places[place].entry;
        frame_view frame;
        if (entry->flags & ENTRY_DEAD) {
            index_entry_write(entries, offset, 0, entry->ts, ENTRY_DEAD);
            continue;
        }
        if (record_read(&places[place].source, entry, topic_id, first_seq + place, 1, &frame) != RECORD_OK)
            return place;
        frame.flags &= (uint8_t)~FRAME_BATCH_CONTINUES; /* a batch is a matter of the log */
        uint32_t size = (uint32_t)segment_frame_write(data, &frame);
        index_entry_write(entries, offset, size, frame.ts, frame.flags & ENTRY_FRAME_FLAGS);
        data += size;
        offset += size;
    }
    return count;
}
