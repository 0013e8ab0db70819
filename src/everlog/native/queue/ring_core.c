/* Append, step and scan over mapped segments. See ring_core.h for the layouts. */
#define _GNU_SOURCE
#include "ring_core.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "crc32.h"

unsigned long ring_fork_generation = 0;

static void count_fork(void)
{
    ring_fork_generation++;
}

void ring_init(void)
{
    crc32_init();
    pthread_atfork(NULL, NULL, count_fork);
}

static inline uint64_t clock_ns(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

uint64_t ring_wall_ns(void)
{
    return clock_ns(CLOCK_REALTIME);
}

uint64_t ring_wall_coarse_ns(void)
{
    return clock_ns(CLOCK_REALTIME_COARSE);
}

int64_t ring_monotonic_ns(void)
{
    return (int64_t)clock_ns(CLOCK_MONOTONIC);
}

int64_t ring_monotonic_coarse_ns(void)
{
    return (int64_t)clock_ns(CLOCK_MONOTONIC_COARSE);
}

/* ---- writer ---------------------------------------------------------------------------- */

static inline ring_message *message_at(uint8_t *segment, uint64_t offset)
{
    return (ring_message *)(void *)(segment + offset);
}

static inline const ring_message *const_message_at(const uint8_t *segment, uint64_t offset)
{
    return (const ring_message *)(const void *)(segment + offset);
}

/* C11 forbids atomic loads through a pointer to const; the load itself writes nothing. */
static inline uint32_t load_commit(const ring_message *message)
{
    return atomic_load_explicit((_Atomic uint32_t *)&message->commit_len, memory_order_acquire);
}

/* Records lie one after the other, so the lines needed next are known long before. But close to
 * the head those lines are the ones the writer is about to fill, and fetching them would take
 * them away from it: only a reader that is behind may fetch ahead. */
#define READ_AHEAD 2048
#define READ_AHEAD_AFTER 16
#define WRITE_AHEAD 512

static inline void read_ahead(const uint8_t *segment, uint64_t offset)
{
    __builtin_prefetch(segment + offset + READ_AHEAD);
    __builtin_prefetch(segment + offset + READ_AHEAD + 64);
    __builtin_prefetch(segment + offset + READ_AHEAD +
                       128); /* the last line of an order; a hint for others */
}

static inline int header_fits(uint64_t offset, uint64_t segment_size)
{
    return offset + RING_HEADER_SIZE <= segment_size;
}

static inline void index_record(ring_writer *w, uint64_t timestamp_ns)
{
    if (w->records == 0) {
        w->first_seq = w->next_seq;
        w->min_ts_ns = w->max_ts_ns = timestamp_ns;
    } else {
        if (timestamp_ns < w->min_ts_ns)
            w->min_ts_ns = timestamp_ns;
        if (timestamp_ns > w->max_ts_ns)
            w->max_ts_ns = timestamp_ns;
    }
    w->records++;
    if (w->until_entry-- == 0) {
        w->until_entry = w->entry_stride - 1;
        if (w->entry_count < w->entry_capacity)
            w->entries[w->entry_count++] = (ring_index_entry){w->next_seq, timestamp_ns, w->offset};
    }
}

/* Commit the record whose payload already lies at the writer's offset. */
static inline void commit_record(ring_writer *w, uint16_t type_id, uint64_t length, uint64_t timestamp_ns)
{
    ring_message *message = message_at(w->segment, w->offset);
    uint64_t end = w->offset + ring_record_size(length);
    /* The lines of the records to come: the full fence of a notification would wait for them. */
    __builtin_prefetch(w->segment + end + WRITE_AHEAD, 1);
    __builtin_prefetch(w->segment + end + WRITE_AHEAD + 64, 1);
    /* Bytes of an aborted write may lie where the next header goes; they must not look like a
     * record once this one is visible. */
    if (header_fits(end, w->segment_size))
        atomic_store_explicit(&message_at(w->segment, end)->commit_len, 0, memory_order_relaxed);
    const uint64_t words[4] = {(uint64_t)RING_MSG_VERSION << 32, w->next_seq, timestamp_ns,
                               (uint64_t)w->flags << 16 | type_id};
    uint32_t checksum = crc32_record(CRC32_BEST, words, (uint8_t *)message + RING_HEADER_SIZE, length);
    message->version = RING_MSG_VERSION;
    memset(message->zero, 0, sizeof message->zero);
    message->seq = w->next_seq;
    message->timestamp_ns = timestamp_ns;
    message->type_id = type_id;
    message->flags = w->flags;
    message->checksum = checksum;
    memset(message->reserved, 0, sizeof message->reserved);
    index_record(w, timestamp_ns);
    atomic_store_explicit(&message->commit_len, (uint32_t)length + 1, memory_order_release);
    w->bytes_written += end - w->offset;
    w->offset = end;
    w->next_seq++;
}

/* NULL is a payload that a builder has put in place, or an empty one. */
static inline void put_payload(ring_writer *w, const void *payload, uint64_t length)
{
    if (payload != NULL)
        memcpy(w->segment + w->offset + RING_HEADER_SIZE, payload, length);
}

static inline int has_room(ring_writer *w, uint64_t length)
{
    return w->offset + ring_record_size(length) <= w->limit;
}

/* Returns 0, and changes nothing, when the record does not fit below the limit. */
int ring_append(ring_writer *w, uint16_t type_id, const void *payload, uint64_t length, uint64_t timestamp_ns)
{
    if (!has_room(w, length))
        return 0;
    put_payload(w, payload, length);
    commit_record(w, type_id, length, timestamp_ns);
    return 1;
}

/* Append items of one size until all are in or the limit is reached; returns how many are in. */
uint64_t ring_append_array(ring_writer *w, uint16_t type_id, const uint8_t *items, uint64_t item_size,
                           int64_t item_stride, uint64_t count, const uint8_t *timestamps,
                           int64_t timestamp_stride)
{
    uint64_t done = 0;
    for (; done < count && has_room(w, item_size); done++) {
        uint64_t timestamp_ns;
        memcpy(&timestamp_ns, timestamps, sizeof timestamp_ns);
        put_payload(w, items, item_size);
        commit_record(w, type_id, item_size, timestamp_ns);
        items += item_stride;
        timestamps += timestamp_stride;
    }
    return done;
}

/* Append payloads that lie in one buffer, item i from starts[i] (or the end of the one before) to
 * ends[i], until all are in or the limit is reached; returns the index of the first that is not in.
 * A type_step of 0 gives all of them the first type; starts and flags may be NULL. */
uint64_t ring_append_packed(ring_writer *w, const uint16_t *type_ids, int64_t type_step,
                            const uint8_t *payloads, const uint64_t *starts, const uint64_t *ends,
                            uint64_t first, uint64_t count, const uint64_t *timestamps, const uint16_t *flags)
{
    uint64_t item = first;
    for (; item < count; item++) {
        uint64_t start = starts != NULL ? starts[item] : item == 0 ? 0 : ends[item - 1];
        uint64_t length = ends[item] - start;
        if (!has_room(w, length))
            break;
        put_payload(w, length > 0 ? payloads + start : NULL, length);
        w->flags = flags == NULL ? 0 : flags[item];
        commit_record(w, type_ids[(int64_t)item * type_step], length, timestamps[item]);
    }
    w->flags = 0;
    return item;
}

/* Tell the world about everything committed so far. */
void ring_announce(ring_writer *w, uint64_t heartbeat_ns)
{
    atomic_store_explicit(&w->control->write_offset, w->offset, memory_order_release);
    atomic_store_explicit(&w->control->writer_heartbeat_ns, heartbeat_ns, memory_order_relaxed);
    ring_notify(w->control);
}

/* Fill the rest of a segment with one padding record. Needs room for a header. */
void ring_pad(uint8_t *segment, uint64_t segment_size, uint64_t offset)
{
    ring_message *message = message_at(segment, offset);
    uint64_t length = segment_size - offset - RING_HEADER_SIZE;
    /* A torn record may stand here, with readers looking at it: take it back first. */
    atomic_store_explicit(&message->commit_len, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    memset((uint8_t *)message + sizeof message->commit_len, 0, RING_HEADER_SIZE - sizeof message->commit_len);
    memset((uint8_t *)message + RING_HEADER_SIZE, 0, length);
    message->version = RING_MSG_VERSION;
    message->type_id = RING_PAD_TYPE;
    atomic_store_explicit(&message->commit_len, (uint32_t)length + 1, memory_order_release);
}

/* Seqlock: generation odd, both fields, generation even. current_segment is stored with Release
 * because readers also load it alone. */
void ring_publish_head(ring_control *control, uint32_t segment_id, uint64_t offset)
{
    uint32_t generation = atomic_load_explicit(&control->segment_gen, memory_order_relaxed) | 1;
    atomic_store_explicit(&control->segment_gen, generation, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&control->current_segment, segment_id, memory_order_release);
    atomic_store_explicit(&control->write_offset, offset, memory_order_relaxed);
    atomic_store_explicit(&control->segment_gen, generation + 1, memory_order_release);
}

void ring_seal(uint8_t *segment)
{
    ring_segment *header = (ring_segment *)(void *)segment;
    uint32_t flags = atomic_load_explicit(&header->flags, memory_order_relaxed);
    atomic_store_explicit(&header->flags, flags | RING_FLAG_SEALED, memory_order_release);
}

/* ---- reader ---------------------------------------------------------------------------- */

/* Look how far the records of the reader's segment go. Not at every step: the word is the writer's. */
void ring_note_head(ring_reader *r)
{
    uint32_t segment_id;
    uint64_t offset;
    ring_read_head(r->control, &segment_id, &offset);
    r->published_end = segment_id > r->segment_id    ? r->segment_size
                       : segment_id == r->segment_id ? offset
                                                     : 0;
}

/* Step 2 to 4 of the reader's step: may it leave its segment? */
static ring_status leave_or_stay(ring_reader *r)
{
    /* The head was published after its records, and looked at before this one. */
    if (r->offset < r->published_end)
        return RING_HOLE;
    if (atomic_load_explicit(&r->control->current_segment, memory_order_acquire) <= r->segment_id)
        return RING_EMPTY;
    ring_segment *header = (ring_segment *)(void *)(uintptr_t)r->segment;
    if (!(atomic_load_explicit(&header->flags, memory_order_acquire) & RING_FLAG_SEALED))
        return RING_EMPTY;
    /* The last records and the seal may both have landed since the first look. */
    if (header_fits(r->offset, r->segment_size) && load_commit(const_message_at(r->segment, r->offset)) != 0)
        return RING_RECORD;
    /* A segment that was left is full or padded to its end. */
    return header_fits(r->offset, r->segment_size) ? RING_HOLE : RING_NEXT_SEGMENT;
}

static inline int is_known(const ring_message *message)
{
    return message->version == RING_MSG_VERSION || message->version == RING_MSG_VERSION_PAYLOAD;
}

/* Padding has no checksum. A record that damage has turned into padding is known by its other fields. */
static inline int padding_is_sound(const ring_message *message, int reaches_end)
{
    return reaches_end && (message->seq | message->timestamp_ns | message->flags) == 0;
}

/* What lies at the reader's offset, padding records stepped over. Consumes no message. */
ring_status ring_peek(ring_reader *r)
{
    for (;;) {
        const ring_message *message = const_message_at(r->segment, r->offset);
        uint32_t commit = 0;
        if (header_fits(r->offset, r->segment_size))
            commit = load_commit(message);
        if (commit == 0) {
            ring_status status = leave_or_stay(r);
            if (status == RING_RECORD)
                continue;
            return status;
        }
        uint64_t end = r->offset + ring_record_size(commit - 1);
        if (end > r->segment_size)
            return RING_BAD_LENGTH;
        if (!is_known(message))
            return RING_BAD_VERSION;
        if (message->type_id != RING_PAD_TYPE)
            return RING_RECORD;
        if (!padding_is_sound(message, end == r->segment_size))
            return RING_BAD_CHECKSUM;
        r->offset = end;
    }
}

static inline int checksum_matches(const ring_message *message, uint64_t length)
{
    const uint8_t *record = (const uint8_t *)message;
    /* An unknown version is believed by either rule, so that it is reported as what it is. */
    if (message->version != RING_MSG_VERSION &&
        crc32_ieee(CRC32_BEST, record + RING_HEADER_SIZE, length) == message->checksum)
        return 1;
    return message->version != RING_MSG_VERSION_PAYLOAD && crc32_record_matches(CRC32_BEST, record, length);
}

/* Consume the next message. Nothing but padding is stepped over unless it is sound. */
ring_status ring_step(ring_reader *r, const ring_message **out)
{
    ring_status status = ring_peek(r);
    if (status != RING_RECORD)
        return status;
    const ring_message *message = const_message_at(r->segment, r->offset);
    uint64_t length = load_commit(message) - 1;
    if (r->offset + ring_record_size(length) > r->segment_size)
        return RING_BAD_LENGTH;
    if (r->verify && !checksum_matches(message, length))
        return RING_BAD_CHECKSUM;
    if (message->seq != r->next_seq && r->next_seq != RING_ANY_SEQ)
        return RING_BAD_SEQ;
    r->next_seq = message->seq + 1;
    r->offset += ring_record_size(length);
    r->length = (uint32_t)length;
    *out = message;
    return RING_RECORD;
}

/* Up to this many records are looked at before their sums are: enough for one sum over all of them to pay,
 * and few enough that memory is asked for the next ones while these are summed. */
#define CHUNK_RECORDS 8

/* How many records from `offset` on, at most `max`, are like the first: of its length, type and version, with
 * the seqs that follow. It must have been looked at; where the others lie follows from it, so none has to be
 * waited for. */
static uint64_t alike(const ring_reader *r, uint64_t offset, uint64_t max, int read_on)
{
    const ring_message *first = const_message_at(r->segment, offset);
    uint32_t commit = load_commit(first);
    uint64_t size = ring_record_size(commit - 1), count = 0;
    uint64_t fitting = (r->segment_size - offset) / size;
    max = max < fitting ? max : fitting;
    for (; count < max; count++, offset += size) {
        const ring_message *message = const_message_at(r->segment, offset);
        if (load_commit(message) != commit || message->type_id != first->type_id ||
            message->version != first->version || message->seq != first->seq + count)
            break;
        if (read_on)
            read_ahead(r->segment, offset);
    }
    return count;
}

/* Note `count` more records of one kind in a run. */
static void extend_run(ring_run *run, const ring_message *message, uint64_t length, uint64_t count)
{
    if (run->count == 0) {
        run->stride = ring_record_size(length);
        run->length = length;
        run->type_id = message->type_id;
    } else if (run->length != length) {
        run->length = RING_MIXED;
        if (run->stride != ring_record_size(length))
            run->stride = 0;
    }
    if (run->type_id != message->type_id)
        run->type_id = RING_MIXED;
    run->count += count;
}

/* What is wrong with the record at `offset`; RING_EMPTY if none is there, or only padding. */
static ring_status look_at(const ring_reader *r, uint64_t offset)
{
    if (!header_fits(offset, r->segment_size))
        return RING_EMPTY;
    const ring_message *message = const_message_at(r->segment, offset);
    uint32_t commit = load_commit(message);
    if (commit == 0 || message->type_id == RING_PAD_TYPE)
        return RING_EMPTY;
    if (offset + ring_record_size(commit - 1) > r->segment_size)
        return RING_BAD_LENGTH;
    if (!is_known(message))
        return RING_BAD_VERSION;
    return message->seq == r->next_seq || r->next_seq == RING_ANY_SEQ ? RING_RECORD : RING_BAD_SEQ;
}

/* How many of `count` records of one kind, up to the first that has not, have the right checksum. */
static uint64_t count_sound(const ring_message *message, uint64_t length, uint64_t count)
{
    const uint8_t *record = (const uint8_t *)message;
    uint64_t size = ring_record_size(length), sound = 0;
    if (message->version == RING_MSG_VERSION)
        return crc32_records_match(CRC32_BEST, record, size, length, count);
    while (sound < count && checksum_matches(const_message_at(record, sound * size), length))
        sound++;
    return sound;
}

/* Consume up to `max` messages of this segment; ends early at padding, damage or the head.
 * Damage is reported only when it is the first thing met, so that nothing sound is lost. */
ring_status ring_take_run(ring_reader *r, uint64_t max, int verify, ring_run *run)
{
    ring_status status = ring_peek(r);
    *run = (ring_run){.start = r->offset};
    while (status == RING_RECORD && run->count < max && (status = look_at(r, r->offset)) == RING_RECORD) {
        const ring_message *message = const_message_at(r->segment, r->offset);
        uint64_t length = load_commit(message) - 1, size = ring_record_size(length);
        uint64_t wanted = max - run->count < CHUNK_RECORDS ? max - run->count : CHUNK_RECORDS;
        uint64_t found = alike(r, r->offset, wanted, run->count >= READ_AHEAD_AFTER), sound = found;
        if (verify)
            sound = count_sound(message, length, found);
        if (sound < found)
            status = RING_BAD_CHECKSUM;
        if (sound > 0) {
            extend_run(run, message, length, sound);
            r->next_seq = message->seq + sound;
        }
        r->offset += sound * size;
    }
    if (status == RING_BAD_SEQ && verify) {
        const ring_message *message = const_message_at(r->segment, r->offset);
        if (!checksum_matches(message, load_commit(message) - 1))
            status = RING_BAD_CHECKSUM; /* its seq is no longer the one it was given */
    }
    return run->count > 0 ? RING_RECORD : status;
}

/* Where each of `count` records starts; returns how many there really are. */
uint64_t ring_run_offsets(const uint8_t *segment, uint64_t segment_size, uint64_t start, uint64_t count,
                          uint64_t *offsets)
{
    for (uint64_t i = 0; i < count; i++) {
        uint32_t commit = 0;
        if (header_fits(start, segment_size))
            commit = load_commit(const_message_at(segment, start));
        if (commit == 0 || start + ring_record_size(commit - 1) > segment_size)
            return i;
        offsets[i] = start;
        start += ring_record_size(commit - 1);
    }
    return count;
}

/* A consistent (segment, offset) pair, as the seqlock promises. */
void ring_read_head(ring_control *control, uint32_t *segment_id, uint64_t *offset)
{
    /* Bounded: a writer that died between its two generation stores leaves an odd value, and
     * then the unpaired fields are the best there is. */
    for (int attempt = 0; attempt < 1000; attempt++) {
        uint32_t before = atomic_load_explicit(&control->segment_gen, memory_order_acquire);
        *segment_id = atomic_load_explicit(&control->current_segment, memory_order_relaxed);
        *offset = atomic_load_explicit(&control->write_offset, memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        uint32_t after = atomic_load_explicit(&control->segment_gen, memory_order_relaxed);
        if (before == after && !(before & 1))
            return;
    }
    *offset = RING_DATA_OFFSET;
}

/* ---- scans ----------------------------------------------------------------------------- */

static void note_sound(ring_scan *result, const ring_message *message)
{
    uint64_t timestamp_ns = message->timestamp_ns;
    if (result->records == 0) {
        result->first_seq = message->seq;
        result->min_ts_ns = result->max_ts_ns = timestamp_ns;
    }
    if (timestamp_ns < result->min_ts_ns)
        result->min_ts_ns = timestamp_ns;
    if (timestamp_ns > result->max_ts_ns)
        result->max_ts_ns = timestamp_ns;
    result->last_seq = message->seq;
    result->records++;
}

/* Walk committed records from `start`. A run of unsound records counts as damage only if
 * something sound follows; at the very end it is the torn tail of a crash (end > good_end). */
void ring_scan_segment(const uint8_t *segment, uint64_t segment_size, uint64_t start, int verify,
                       ring_scan *result)
{
    uint64_t offset = start, unsound = 0, first_unsound = 0;
    *result = (ring_scan){.end = start, .good_end = start};
    while (header_fits(offset, segment_size) && !result->padded) {
        const ring_message *message = const_message_at(segment, offset);
        uint32_t commit = load_commit(message);
        uint64_t size = ring_record_size((uint64_t)commit - 1);
        if (commit == 0 || offset + size > segment_size)
            break;
        int is_padding = message->type_id == RING_PAD_TYPE;
        int sound = is_padding ? padding_is_sound(message, offset + size == segment_size)
                               : !verify || checksum_matches(message, commit - 1);
        result->padded = is_padding && sound;
        if (sound && !is_known(message) && result->foreign == 0)
            result->foreign = offset;
        if (sound) {
            if (unsound > 0 && result->bad == 0)
                result->first_bad = first_unsound;
            result->bad += unsound;
            unsound = 0;
            if (!result->padded) {
                note_sound(result, message);
                result->last = offset;
            }
            result->good_end = offset + size;
        } else if (unsound++ == 0) {
            first_unsound = offset;
        }
        offset += size;
    }
    result->end = offset;
}

uint64_t ring_find(const uint8_t *segment, uint64_t segment_size, uint64_t start, uint64_t target,
                   int by_timestamp)
{
    for (uint64_t offset = start; header_fits(offset, segment_size);) {
        const ring_message *message = const_message_at(segment, offset);
        uint32_t commit = load_commit(message);
        if (commit == 0)
            return 0;
        uint64_t end = offset + ring_record_size(commit - 1);
        if (end > segment_size)
            return 0;
        uint64_t key = by_timestamp ? message->timestamp_ns : message->seq;
        if (message->type_id != RING_PAD_TYPE && key >= target)
            return offset;
        offset = end;
    }
    return 0;
}
