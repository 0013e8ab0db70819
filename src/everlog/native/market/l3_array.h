/* Whole arrays of order-by-order events into an L3 book: what is to come is looked up ahead, and the usual
 * event takes no check that is not needed. */
#ifndef EVERLOG_L3_ARRAY_H
#define EVERLOG_L3_ARRAY_H

#include "l3_book.h"

#define LARGE_BOOK 32768u /* orders; the queues of a smaller book are in a near cache */
#define BLOCK 8u          /* events that are looked at together */
#define HASHES 64u        /* those of three blocks, at the event's number modulo this */
#define INPUT_AHEAD 48u   /* events ahead of which the event itself is asked for */

/* As core_finish_event, with the top alone written here: the call of `top` would cost a tenth of the event.
 */
static inline void finish_event(const l3_book *book, size_t index, uint8_t status, book_output *output)
{
    if (output->depth != 0 || output->tops == NULL || output->since + 1 != output->every) {
        core_finish_event(&book->core, index, status, output);
        return;
    }
    if (output->statuses != NULL)
        output->statuses[index] = status;
    output->tops[output->rows++] = l3_top(&book->core);
    output->since = 0;
}

/* The first eight bytes of a header without the reserved ones: version and length. */
#define START_BITS 0xFFFFFFFF0000FFFFu
/* Of the four bytes from the event type on: that, the book mode, and the flag that empties the book. */
#define KIND_BITS ((uint32_t)FLAG_RESETS << 16 | 0xFFFFu)

/* What a record must say so that nothing about it is unusual, in the words it is read in. */
typedef struct {
    uint64_t start;  /* version and length; what no record says if the book has no scales or is quarantined */
    uint32_t kind;   /* event type, book mode, and no flag that empties the book */
    uint16_t scales; /* price and size */
} plain_record;

static plain_record plain_of(const l3_book *book)
{
    int is_possible = book->core.has_scale && !book->core.quarantined;
    uint64_t start = PROTOCOL_VERSION | (uint64_t)sizeof(l3_record) << 32;
    return (plain_record){.start = is_possible ? start : UINT64_MAX,
                          .kind = EVENT_DIFF | MODE_L3 << 8,
                          .scales = (uint16_t)(book->core.scales[0] | book->core.scales[1] << 8)};
}

/* Whether the record is plain and has the number that was due, or none. */
HOT int is_plain(const l3_book *book, const plain_record *plain, const l3_record *record)
{
    const book_header *header = &record->header;
    uint64_t start;
    uint32_t kind;
    uint16_t scales;
    memcpy(&start, &header->schema_version, sizeof start);
    memcpy(&kind, &header->event_type, sizeof kind);
    memcpy(&scales, &record->event.price_scale, sizeof scales);
    uint64_t odd = ((start & START_BITS) ^ plain->start) | (uint64_t)((kind & KIND_BITS) ^ plain->kind) |
                   (uint64_t)(scales ^ plain->scales) | header->endianness;
    return odd == 0 && (header->seq == 0 || header->seq - 1 == book->core.last_seq);
}

/* Applies a plain record without the checks of `apply`, which all others take. The caller notes its times. */
HOT int apply_plain(l3_book *book, const l3_record *record, size_t index, uint32_t hash, book_output *output,
                    book_queue_place *place, uint8_t *status)
{
    l3_step step = {.event = &record->event, .index = index, .output = output, .hash = hash, .place = place};
    step.price = record->event.price;
    step.quantity = record->event.quantity;
    step.ts_ns = record->header.exchange_ts_ns;
    step.venue = record->header.venue_id;
    step.no_price = (record->event.flags & L3_NO_PRICE) != 0;
    if (place != NULL)
        *place = (book_queue_place){UINT64_MAX, UINT64_MAX};
    if (record->header.seq != 0) {
        book->core.last_seq = record->header.seq;
        book->has_seq = 1;
    }
    int result = dispatch(book, &step);
    *status = step.status;
    return result;
}

HOT const l3_record *record_at(const uint8_t *records, ptrdiff_t stride, size_t at)
{
    return (const l3_record *)(records + (ptrdiff_t)at * stride);
}

HOT void look_up_one(const l3_book *book, const l3_record *record, uint32_t *hash)
{
    *hash = hash_of_id(record->event.order_id);
    __builtin_prefetch(&book->orders.table[home_of(&book->orders, *hash)], 1);
}

/* First look at events to come: asks for the entries of their orders. A whole block has no end to guess. */
HOT void look_up(const l3_book *book, const uint8_t *records, ptrdiff_t stride, size_t from, size_t end,
                 uint32_t hashes[HASHES])
{
    const uint8_t *at = records + (ptrdiff_t)from * stride;
    uint32_t *into = &hashes[from % HASHES];
    if (__builtin_expect(end - from == BLOCK, 1)) {
#pragma GCC unroll 16
        for (unsigned row = 0; row < BLOCK; row++, at += stride)
            look_up_one(book, (const l3_record *)at, into + row);
        return;
    }
    for (; from < end; from++, at += stride)
        look_up_one(book, (const l3_record *)at, into++);
}

/* Second look: asks for the place in a queue that the event will write to. Nothing is taken for granted: the
 * entry may be empty or another order's, and a later event may change everything. Whatever address comes of
 * that, to ask for it does no harm. */
HOT void look_into(const l3_book *book, const uint8_t *records, ptrdiff_t stride, size_t from, size_t end,
                   const uint32_t hashes[HASHES])
{
    for (size_t at = from; at < end; at++) {
        const l3_event *event = &record_at(records, stride, at)->event;
        uint64_t where = book->orders.table[home_of(&book->orders, hashes[at % HASHES])].where;
        const l3_queue *queue = &book->orders.queues[queue_of(where)];
        uint32_t position = position_of(where);
        if (event->event_type == L3_ADD) {
            const ladder *levels = &book->core.sides[event->side == 2];
            uint64_t place = ladder_place(levels, (uint64_t)event->price ^ side_mask(event->side == 2));
            uint64_t value = place < levels->window_size ? levels->values[place] : 0;
            if (value == 0)
                continue;
            queue = &book->orders.queues[value - 1];
            position = queue->tail;
            __builtin_prefetch(&queue_details(queue)[position], 1);
        }
        __builtin_prefetch(&queue->quantities[position], 1);
        if (book->orders.has_sums)
            __builtin_prefetch(&queue->sums_8[position >> 3], 1);
    }
}

static inline size_t smaller(size_t one, size_t other)
{
    return one < other ? one : other;
}

/* Tops: after every event, and nothing else. */
typedef enum { ANY_OUTPUT, TOPS, TOPS_AND_PLACES } output_kind;

static output_kind kind_of(const book_output *output)
{
    if (output->every != 1 || output->tops == NULL || output->depth != 0 || output->statuses != NULL)
        return ANY_OUTPUT;
    return output->places != NULL ? TOPS_AND_PLACES : TOPS;
}

/* What the events of one block wrote; copied to the caller's arrays as whole lines of cache. */
typedef struct {
    book_top tops[BLOCK] __attribute__((aligned(STREAM_ALIGNMENT)));
    book_queue_place places[BLOCK] __attribute__((aligned(STREAM_ALIGNMENT)));
} staged_rows;

_Static_assert(BLOCK * sizeof(book_queue_place) % STREAM_ALIGNMENT == 0, "blocks are whole lines");

/* An array on its way into the book. */
typedef struct {
    const uint8_t *records;
    ptrdiff_t stride;
    uint32_t hashes[HASHES];
    plain_record plain;
    staged_rows rows;
} l3_array;

/* Applies events `done` to `end`; returns where it stopped. */
HOT size_t apply_block(l3_book *book, l3_array *array, size_t done, size_t end, book_output *output,
                       output_kind kind, int *error)
{
    const uint8_t *at = array->records + (ptrdiff_t)done * array->stride;
    const l3_record *last_plain = NULL;
    for (size_t row = 0; done < end; done++, row++, at += array->stride) {
        const l3_record *record = (const l3_record *)at;
        const l3_record *coming = (const l3_record *)(at + INPUT_AHEAD * array->stride);
        book_queue_place *place = kind == TOPS_AND_PLACES ? &array->rows.places[row] : NULL;
        uint8_t status = EVENT_APPLIED;
        if (kind == ANY_OUTPUT && output->places != NULL)
            place = &output->places[done];
        __builtin_prefetch(coming); /* past the end it is a hint like any other */
        __builtin_prefetch(&coming->event);
        if (__builtin_expect(is_plain(book, &array->plain, record), 1)) {
            last_plain = record;
            *error = apply_plain(book, record, done, array->hashes[done % HASHES], output, place, &status);
        } else {
            last_plain = NULL;
            *error = l3_apply(&book->core, at, sizeof *record, done, output, &status);
            array->plain = plain_of(book);
            if (kind == TOPS_AND_PLACES)
                *place = output->places[done];
        }
        if (__builtin_expect(*error != BOOK_OK, 0))
            break;
        if (kind == ANY_OUTPUT)
            finish_event(book, done, status, output);
        else
            array->rows.tops[row] = l3_top(&book->core);
    }
    if (last_plain != NULL)
        core_note_times(&book->core, &last_plain->header);
    return done;
}

/* Copies the rows of the last events; a whole block is the case that is compiled well. */
HOT void copy_block(const staged_rows *staged, book_output *output, size_t first, size_t rows,
                    output_kind kind, int streamed)
{
    book_top *tops = output->tops + first;
    if (__builtin_expect(rows == BLOCK, 1))
        copy_rows(tops, staged->tops, sizeof staged->tops, streamed);
    else
        memcpy(tops, staged->tops, rows * sizeof *tops);
    if (kind != TOPS_AND_PLACES)
        return;
    book_queue_place *places = output->places + first;
    if (__builtin_expect(rows == BLOCK, 1))
        copy_rows(places, staged->places, sizeof staged->places, streamed);
    else
        memcpy(places, staged->places, rows * sizeof *places);
}

/* Compiled once for each kind of output. */
HOT size_t apply_records(l3_book *book, const uint8_t *records, ptrdiff_t stride, size_t count,
                         book_output *output, output_kind kind, int *error)
{
    size_t done = 0;
    l3_array array = {.records = records, .stride = stride, .plain = plain_of(book)};
    int streamed = kind != ANY_OUTPUT && is_streamed(output->tops, output->room * sizeof *output->tops) &&
                   (kind == TOPS || is_streamed(output->places, STREAMED_BYTES));
    look_up(book, records, stride, 0, smaller(BLOCK, count), array.hashes);
    look_up(book, records, stride, smaller(BLOCK, count), smaller(2 * BLOCK, count), array.hashes);
    while (done < count && *error == BOOK_OK) {
        size_t first = done, end = smaller(done + BLOCK, count);
        look_up(book, records, stride, smaller(end + BLOCK, count), smaller(end + 2 * BLOCK, count),
                array.hashes);
        if (book->orders.count > LARGE_BOOK)
            look_into(book, records, stride, end, smaller(end + BLOCK, count), array.hashes);
        done = apply_block(book, &array, done, end, output, kind, error);
        if (kind != ANY_OUTPUT)
            copy_block(&array.rows, output, first, done - first, kind, streamed);
    }
    if (streamed)
        end_stream();
    return done;
}

/* Applies `count` payloads of 128 bytes, `stride` bytes from one to the next; returns where it stopped. */
static size_t l3_apply_records(l3_book *book, const uint8_t *records, ptrdiff_t stride, size_t count,
                               book_output *output, int *error)
{
    *error = BOOK_OK;
    if (output->places != NULL)
        orders_keep_sums(&book->orders);
    switch (kind_of(output)) {
    case TOPS:
        return output->rows = apply_records(book, records, stride, count, output, TOPS, error);
    case TOPS_AND_PLACES:
        return output->rows = apply_records(book, records, stride, count, output, TOPS_AND_PLACES, error);
    default:
        return apply_records(book, records, stride, count, output, ANY_OUTPUT, error);
    }
}

#endif
