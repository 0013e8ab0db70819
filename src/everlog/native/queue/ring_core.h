/* The queue's hot paths: append, step, scan, wait. Knows bytes and memory order, nothing of files.
 *
 * The layouts repeat those of queue/layout.py; tests compare the bytes. Who may touch what, and
 * which fence stands where, is argued in docs/internals/adr (memory ordering). */
#ifndef EVERLOG_RING_CORE_H
#define EVERLOG_RING_CORE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define RING_ALIGN 64u
#define RING_HEADER_SIZE 64u
#define RING_DATA_OFFSET 64u
#define RING_MAX_PAYLOAD 0xFFFFFFFEull
#define RING_PAD_TYPE 0xFFFFu
#define RING_MSG_VERSION 2u         /* of new records: the checksum covers header and payload */
#define RING_MSG_VERSION_PAYLOAD 1u /* of older ones: the payload only */
#define RING_ANY_SEQ UINT64_MAX
#define RING_FLAG_SEALED 1u
#define RING_WAIT_SLICE_NS 1000000000ll /* no futex sleep is longer */
#define RING_WAITV_MAX 128              /* the kernel's limit for futex_waitv */

typedef struct {
    _Atomic uint32_t commit_len;
    uint8_t version;
    uint8_t zero[3];
    uint64_t seq;
    uint64_t timestamp_ns;
    uint16_t type_id;
    uint16_t flags;
    uint32_t checksum;
    uint8_t reserved[32];
} ring_message;

typedef struct {
    uint32_t magic;
    uint32_t version;
    uint32_t segment_id;
    _Atomic uint32_t flags;
    uint8_t zero[48];
} ring_segment;

typedef struct {
    uint32_t magic;
    uint32_t version;
    _Atomic uint32_t init_state;
    uint32_t zero0;
    _Atomic uint64_t writer_epoch;
    uint64_t segment_size;
    uint8_t zero1[96];
    _Atomic uint32_t segment_gen;
    _Atomic uint32_t current_segment;
    uint8_t zero2[120];
    _Atomic uint64_t write_offset;
    _Atomic uint64_t writer_heartbeat_ns;
    uint8_t zero3[112];
    _Atomic uint32_t notify_seq;
    _Atomic uint32_t waiters_pending;
    uint8_t zero4[120];
} ring_control;

#define RING_PLACE(type, field, offset) _Static_assert(offsetof(type, field) == offset, #field)
_Static_assert(sizeof(ring_message) == 64 && sizeof(ring_segment) == 64 && sizeof(ring_control) == 512,
               "size");
RING_PLACE(ring_message, version, 4);
RING_PLACE(ring_message, seq, 8);
RING_PLACE(ring_message, timestamp_ns, 16);
RING_PLACE(ring_message, type_id, 24);
RING_PLACE(ring_message, flags, 26);
RING_PLACE(ring_message, checksum, 28);
RING_PLACE(ring_segment, flags, 12);
RING_PLACE(ring_control, writer_epoch, 16);
RING_PLACE(ring_control, segment_gen, 128);
RING_PLACE(ring_control, current_segment, 132);
RING_PLACE(ring_control, write_offset, 256);
RING_PLACE(ring_control, writer_heartbeat_ns, 264);
RING_PLACE(ring_control, notify_seq, 384);
RING_PLACE(ring_control, waiters_pending, 388);

typedef struct {
    uint64_t seq, timestamp_ns, offset;
} ring_index_entry;

/* The writer's private state: where it stands and the seek index of the current segment. */
typedef struct {
    ring_control *control;
    uint8_t *segment;
    uint64_t segment_size;
    uint64_t offset;
    uint64_t limit; /* no record may end beyond: the segment's end or what capacity allows */
    uint64_t next_seq;
    uint64_t bytes_written; /* whole records, padding records excluded */
    ring_index_entry *entries;
    uint64_t entry_count, entry_capacity, entry_stride, until_entry;
    uint64_t first_seq, min_ts_ns, max_ts_ns; /* of this segment's records, if records > 0 */
    uint64_t records;
    uint16_t flags; /* of the next records; 0 except within ring_append_packed */
} ring_writer;

typedef struct {
    ring_control *control;
    const uint8_t *segment;
    uint64_t segment_size;
    uint64_t offset;
    uint32_t segment_id;
    uint32_t length; /* payload of the message that ring_step returned */
    int verify;
    uint64_t next_seq;      /* of the next message, RING_ANY_SEQ if it may have any */
    uint64_t published_end; /* of this segment, when the head was last looked at: records lie before it */
} ring_reader;

typedef enum {
    RING_EMPTY = 0,
    RING_RECORD = 1,
    RING_NEXT_SEGMENT = 2,
    RING_BAD_LENGTH = -1,
    RING_BAD_VERSION = -2,
    RING_BAD_CHECKSUM = -3,
    RING_BAD_SEQ = -4,
    RING_HOLE = -5, /* nothing is committed where the head says that there is a record */
} ring_status;

/* A run of records inside one segment. stride is their common size, 0 if sizes differ; length and
 * type_id are those of all payloads, RING_MIXED if they differ. */
#define RING_MIXED UINT64_MAX
typedef struct {
    uint64_t start, count, stride, length, type_id;
} ring_run;

typedef struct {
    uint64_t end;      /* where the scan stopped: first offset that is no committed record */
    uint64_t good_end; /* end of the last record that is sound, or the start of the scan */
    uint64_t records;  /* sound records, padding excluded */
    uint64_t first_seq, last_seq, min_ts_ns, max_ts_ns; /* of sound records, if any */
    uint64_t last;                                      /* offset of the last of them */
    uint64_t bad;                                       /* unsound records that sound ones follow */
    uint64_t first_bad;                                 /* offset of the first of them */
    uint64_t foreign; /* offset of a sound record of another version, 0 if none */
    int padded;       /* the scan ended after a padding record */
} ring_scan;

typedef enum { RING_BUSY_SPIN = 0, RING_SPIN_THEN_PARK = 1, RING_SLEEP = 2 } ring_wait_kind;

typedef struct {
    ring_wait_kind kind;
    int64_t spin_ns;
    int64_t sleep_ns;
} ring_wait_strategy;

extern unsigned long ring_fork_generation; /* rises by one in every forked child */

void ring_init(void);
uint64_t ring_wall_ns(void);
uint64_t ring_wall_coarse_ns(void);
int64_t ring_monotonic_ns(void);
int64_t ring_monotonic_coarse_ns(void);

static inline uint64_t ring_record_size(uint64_t payload_length)
{
    return (RING_HEADER_SIZE + payload_length + RING_ALIGN - 1) & ~(uint64_t)(RING_ALIGN - 1);
}

/* Writer. */
int ring_append(ring_writer *w, uint16_t type_id, const void *payload, uint64_t length,
                uint64_t timestamp_ns);
uint64_t ring_append_packed(ring_writer *w, const uint16_t *type_ids, int64_t type_step,
                            const uint8_t *payloads, const uint64_t *starts, const uint64_t *ends,
                            uint64_t first, uint64_t count, const uint64_t *timestamps,
                            const uint16_t *flags);
uint64_t ring_append_array(ring_writer *w, uint16_t type_id, const uint8_t *items, uint64_t item_size,
                           int64_t item_stride, uint64_t count, const uint8_t *timestamps,
                           int64_t timestamp_stride);
void ring_announce(ring_writer *w, uint64_t heartbeat_ns);
void ring_pad(uint8_t *segment, uint64_t segment_size, uint64_t offset);
void ring_publish_head(ring_control *control, uint32_t segment_id, uint64_t offset);
void ring_seal(uint8_t *segment);
void ring_notify(ring_control *control);
void ring_wake_all(ring_control *control);

/* Reader. */
void ring_note_head(ring_reader *r);
ring_status ring_peek(ring_reader *r);
ring_status ring_step(ring_reader *r, const ring_message **message);
ring_status ring_take_run(ring_reader *r, uint64_t max, int verify, ring_run *run);
void ring_read_head(ring_control *control, uint32_t *segment_id, uint64_t *offset);
uint64_t ring_run_offsets(const uint8_t *segment, uint64_t segment_size, uint64_t start, uint64_t count,
                          uint64_t *offsets);

/* Returns 1 when something may be readable, 0 on timeout, -1 when a signal came in. */
int ring_wait(ring_reader *r, const ring_wait_strategy *strategy, int64_t timeout_ns);
int ring_wait_any(ring_reader **readers, size_t count, const ring_wait_strategy *strategy,
                  int64_t timeout_ns);

/* Scans. */
void ring_scan_segment(const uint8_t *segment, uint64_t segment_size, uint64_t start, int verify,
                       ring_scan *result);
/* Offset of the first record with seq (or timestamp) >= target from `start` on; 0 if none. */
uint64_t ring_find(const uint8_t *segment, uint64_t segment_size, uint64_t start, uint64_t target,
                   int by_timestamp);

#endif
