/* The market data protocol as the book kernels read it, and what they write about it.
 *
 * Owns the structs shared with NumPy dtypes (market/protocol.py, market/books.py); their sizes are asserted
 * here and there. Structs of payloads are packed: they are read where they lie, aligned or not. */
#ifndef EVERLOG_BOOK_EVENTS_H
#define EVERLOG_BOOK_EVENTS_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "book_ladder.h"

#define PROTOCOL_VERSION 3u
#define LARGEST_SCALE 18u
#define STREAM_ALIGNMENT 64u /* a line of cache */

enum { EVENT_SNAPSHOT = 1, EVENT_DIFF = 2, EVENT_RESET = 3, EVENT_HEARTBEAT = 4 };
enum { MODE_L2 = 0, MODE_L3 = 1 };
enum { FLAG_DELTA = 2 };
enum { GAP_PANIC = 0, GAP_QUARANTINE = 1, GAP_IGNORE = 2, GAP_UNCHECKED = 3 /* somebody else looks */ };
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

extern const uint64_t TENS[LARGEST_SCALE + 1];

int report_add(report *into, report_row row);
void output_free_reports(book_output *output);
/* Checks what all book events have in common. */
int read_header(const uint8_t *payload, size_t length, book_header *header);

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
