/* The header of book events, and the numbers of errors. Shared with NumPy dtypes (market/protocol.py).
 * Structs of payloads are packed: they are read where they lie, aligned or not. */
#ifndef EVERLOG_BOOK_PROTOCOL_H
#define EVERLOG_BOOK_PROTOCOL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define OLDEST_VERSION 3u /* its prices are unsigned, and 0 is no price in events of orders */
#define PROTOCOL_VERSION 4u
#define IS_KNOWN(version) ((version) >= OLDEST_VERSION && (version) <= PROTOCOL_VERSION)
#define LARGEST_SCALE 18

enum { EVENT_SNAPSHOT = 1, EVENT_DIFF = 2, EVENT_RESET = 3, EVENT_HEARTBEAT = 4 };
enum { MODE_L2 = 0, MODE_L3 = 1 };
enum {
    FLAG_DELTA = 2,
    FLAG_RESETS = 16, /* the book is emptied before the event */
    FLAG_SPARSE = 32, /* numbers between may belong to markets that were not recorded */
};

/* what functions of the books return; negative ones are errors */
enum {
    BOOK_OK = 0,
    BOOK_NO_MEMORY = -1,
    BOOK_TOO_MANY_LEVELS = -2,
    BOOK_SCALE_OVERFLOW = -3,
    BOOK_BAD_SCALE = -4,
    BOOK_BAD_SIDE = -5,
    BOOK_GAP = -6,
    BOOK_SHORT_RECORD = -7,
    BOOK_BAD_VERSION = -8,
    BOOK_BAD_MODE = -9,
    BOOK_BAD_TYPE = -10,
    BOOK_DELTA = -11,
    BOOK_TOO_MANY_ORDERS = -12,
    BOOK_ZERO_ID = -13,
    BOOK_UNKNOWN_ORDER = -14,
    BOOK_DUPLICATE_ORDER = -15,
    BOOK_OVERFLOW = -16,
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

_Static_assert(sizeof(book_header) == 64, "BookEventHeader");

/* Each of them is a double without an error. */
static const uint64_t TENS[LARGEST_SCALE + 1] = {1,    1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8, 1e9,
                                                 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18};

/* Checks what all book events have in common. */
static inline int read_header(const uint8_t *payload, size_t length, book_header *header)
{
    if (length < sizeof *header)
        return BOOK_SHORT_RECORD;
    memcpy(header, payload, sizeof *header);
    if (!IS_KNOWN(header->schema_version))
        return BOOK_BAD_VERSION;
    if (header->record_len != length)
        return BOOK_SHORT_RECORD;
    if (header->endianness != 0 || header->book_mode > MODE_L3)
        return BOOK_BAD_MODE;
    return BOOK_OK;
}

#endif
