/* What L2 and L3 books share: the protocol's header, the state of a book, and what is written about events.
 *
 * Owns the structs shared with NumPy dtypes (market/protocol.py, market/books.py); their sizes are asserted
 * here and there. Structs of payloads are packed: they are read where they lie, aligned or not. */
#ifndef EVERLOG_BOOK_CORE_H
#define EVERLOG_BOOK_CORE_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "book_ladder.h"

#define PROTOCOL_VERSION 3u
#define LARGEST_SCALE 18
#define STREAM_ALIGNMENT 64u /* a line of cache */

enum { EVENT_SNAPSHOT = 1, EVENT_DIFF = 2, EVENT_RESET = 3, EVENT_HEARTBEAT = 4 };
enum { MODE_L2 = 0, MODE_L3 = 1 };
enum { FLAG_DELTA = 2 };
enum { GAP_PANIC = 0, GAP_QUARANTINE = 1, GAP_IGNORE = 2, GAP_UNCHECKED = 3 /* the caller checks */ };
enum { /* what became of one event */
    EVENT_APPLIED = 0,
    EVENT_QUARANTINED = 1, /* skipped: a gap came before and no snapshot since */
    EVENT_STALE = 2,       /* skipped: older than the snapshot before it */
    EVENT_UNKNOWN_ORDER = 3,
};

typedef struct __attribute__((packed, may_alias)) {
    uint16_t schema_version, reserved0;
    uint32_t record_len;
    uint8_t endianness, reserved1;
    uint16_t venue_id;
    uint32_t market_id, stream_id, reserved2;
    uint64_t ingest_ts_ns, exchange_ts_ns, seq, native_seq;
    uint8_t event_type, book_mode;
    uint16_t flags;
    uint32_t reserved3;
} book_header;

typedef struct {
    uint64_t price, size;
} book_level;

typedef struct { /* a side is empty if its size is 0 */
    uint64_t bid_price, bid_size, ask_price, ask_size;
} book_top;

typedef struct { /* of the order an event is about; both UINT64_MAX if it is in no queue */
    uint64_t orders_ahead, size_ahead;
} book_queue_place;

typedef struct { /* one line of a report; what the numbers mean depends on the report */
    uint64_t index, first, second, third, fourth;
} report_row;

typedef struct {
    report_row *rows;
    size_t count, capacity;
} report;

typedef struct { /* what a caller wants to know of an array; NULL pointers and 0 = not wanted */
    size_t every; /* a row of output after this many events; 0 = never */
    size_t since; /* events since the last row */
    size_t rows;  /* written */
    size_t room;  /* rows that the arrays hold */
    book_top *tops;
    size_t depth;
    book_level *bids, *asks; /* `depth` levels a row */
    uint32_t *bid_orders, *ask_orders; /* how many orders each of these levels has (L3) */
    uint64_t *scratch;       /* 2 * depth */
    book_queue_place *places; /* one per event (L3) */
    uint8_t *statuses;       /* one per event */
    int want_drift, want_trades;
    report gaps;   /* first: last number seen, second: number found */
    report drifts; /* first: levels in the snapshot only, second: in the book only, third: other size */
    report scales; /* first: price scale, second: size scale, from this event on */
    report trades; /* first: taken from the bid order, second: from the ask order; then price and size */
} book_output;

_Static_assert(sizeof(book_header) == 64, "BookEventHeader");
_Static_assert(sizeof(book_level) == 16, "Level");
_Static_assert(sizeof(book_top) == 32, "top of book");
_Static_assert(sizeof(report_row) == 40, "row of a report");

static const uint64_t TENS[LARGEST_SCALE + 1] = {
    1u, 10u, 100u, 1000u, 10000u, 100000u, 1000000u,
    10000000u, 100000000u, 1000000000u, 10000000000u, 100000000000u,
    1000000000000u, 10000000000000u, 100000000000000u, 1000000000000000u,
    10000000000000000u, 100000000000000000u, 1000000000000000000u,
};

/* --- The state of a book ------------------------------------------------------------------------------- */

typedef struct book_core book_core;

typedef struct { /* what L2 and L3 do differently; a book is given by its first member */
    /* Applies one event; `index` names it in reports, `status` says what became of it. */
    int (*apply)(book_core *core, const uint8_t *payload, size_t length, uint64_t index, book_output *output,
                 uint8_t *status);
    book_top (*top)(const book_core *core);
    /* The best levels of a side (0 = bids, 1 = asks); `orders` gets their order counts (L3) or is NULL. */
    size_t (*depth)(const book_core *core, unsigned side, book_level *levels, uint32_t *orders, size_t wanted,
                    uint64_t *scratch);
    /* Multiplies all prices and sizes; nothing is changed if a product does not fit. */
    int (*rescale)(book_core *core, uint64_t price_factor, uint64_t size_factor);
    void (*clear)(book_core *core);
} book_kind;

struct book_core {
    ladder sides[2]; /* bids, asks */
    const book_kind *kind;
    uint8_t scales[2]; /* price, size */
    uint8_t has_scale;
    uint8_t gap_policy, quarantined;
    uint64_t last_seq, last_exchange_ts_ns, last_ingest_ts_ns; /* of the last event applied */
    uint64_t gap_seen, gap_found; /* of the last gap: the number before it, the number after it */
};

void core_init(book_core *core, const book_kind *kind, size_t max_levels, uint64_t max_window,
               int gap_policy);
void core_free(book_core *core);
/* Removes every level. */
void core_clear(book_core *core);
/* Reports a gap; an error only under GAP_PANIC. */
int core_note_gap(book_core *core, uint64_t seen, uint64_t found, uint64_t index, book_output *output);
/* Brings the book to at least these scales; `core_adopt_scales` also reports it if they rise. */
int core_raise_scales(book_core *core, uint8_t price_scale, uint8_t size_scale);
int core_adopt_scales(book_core *core, uint8_t price_scale, uint8_t size_scale, uint64_t index,
                      book_output *output);
/* Applies payloads that lie in one buffer; returns how many, and why it stopped in `error`. */
size_t core_apply_scattered(book_core *core, const uint8_t *buffer, size_t buffer_len,
                            const uint64_t *offsets, const uint64_t *lengths, size_t count,
                            book_output *output, int *error);
/* Writes the top and the levels that are wanted. */
void core_write_row(const book_core *core, book_output *output);
int report_add(report *into, report_row row);
void output_free_reports(book_output *output);

/* Notes the outcome of an event, and writes a row if one is due. */
static inline void core_finish_event(const book_core *core, size_t index, uint8_t status, book_output *output)
{
    if (output->statuses != NULL)
        output->statuses[index] = status;
    if (++output->since == output->every)
        core_write_row(core, output);
}

static inline void core_note_times(book_core *core, const book_header *header)
{
    core->last_exchange_ts_ns = header->exchange_ts_ns;
    core->last_ingest_ts_ns = header->ingest_ts_ns;
}

/* --- Headers ------------------------------------------------------------------------------------------- */

/* The first eight bytes of a header without the reserved ones: version and length. */
#define START_BITS 0xFFFFFFFF0000FFFFu

/* Checks what all book events have in common. */
static inline int read_header(const uint8_t *payload, size_t length, book_header *header)
{
    if (length < sizeof *header)
        return BOOK_SHORT_RECORD;
    memcpy(header, payload, sizeof *header);
    if (header->schema_version != PROTOCOL_VERSION)
        return BOOK_BAD_VERSION;
    if (header->record_len != length)
        return BOOK_SHORT_RECORD;
    if (header->endianness != 0 || header->book_mode > MODE_L3)
        return BOOK_BAD_MODE;
    return BOOK_OK;
}

/* --- Output -------------------------------------------------------------------------------------------- */

/* Results of at least this many bytes do not stay in the caches near the core beside a book and its events. */
#define STREAMED_BYTES ((size_t)1 << 20)

/* Whether rows from here on are to be written past the caches: there is too much to find it there later, and
 * to fetch each line before it is overwritten, and push the book out for it, costs more than the write. */
static inline int is_streamed(const void *into, size_t bytes)
{
#ifdef __SSE2__
    return bytes >= STREAMED_BYTES && (uintptr_t)into % STREAM_ALIGNMENT == 0;
#else
    (void)into, (void)bytes;
    return 0;
#endif
}

/* Copies rows to a caller's array; `streamed` only in whole lines of cache. */
static inline void copy_rows(void *into, const void *from, size_t bytes, int streamed)
{
#ifdef __SSE2__
    if (streamed && bytes % STREAM_ALIGNMENT == 0) {
        for (size_t at = 0; at < bytes; at += sizeof(__m128i))
            _mm_stream_si128((__m128i *)((uint8_t *)into + at),
                             _mm_load_si128((const __m128i *)((const uint8_t *)from + at)));
        return;
    }
#endif
    (void)streamed;
    memcpy(into, from, bytes);
}

/* Must come before others may read what was streamed. */
static inline void end_stream(void)
{
#ifdef __SSE2__
    _mm_sfence();
#endif
}

static inline uint64_t side_mask(unsigned side) /* 0 = bids, 1 = asks */
{
    return (uint64_t)side - 1; /* without a branch: which side comes next is random */
}

#endif
