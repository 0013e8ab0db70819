# What the parts of `ring` use of the C core: structs, functions, atomic words.

cdef extern from "queue/crc32.h" nogil:
    int CRC32_BEST
    uint32_t crc32_ieee(int way, const void *data, size_t length)
    size_t crc32_records_match(int way, const uint8_t *records, size_t stride, size_t length, size_t count)

cdef extern from "queue/ring_core.h" nogil:
    unsigned long ring_fork_generation
    uint64_t RING_MAX_PAYLOAD, RING_HEADER_SIZE, RING_DATA_OFFSET
    uint32_t RING_PAD_TYPE
    uint64_t RING_MIXED, RING_ANY_SEQ
    int64_t RING_WAIT_SLICE_NS

    ctypedef struct ring_message:
        uint8_t version
        uint64_t seq, timestamp_ns
        uint16_t type_id, flags
    ctypedef struct ring_control:
        pass
    ctypedef struct ring_index_entry:
        pass
    ctypedef struct ring_writer:
        ring_control *control
        uint8_t *segment
        uint64_t segment_size, offset, limit, next_seq, bytes_written
        ring_index_entry *entries
        uint64_t entry_count, entry_capacity, entry_stride, until_entry
        uint64_t first_seq, min_ts_ns, max_ts_ns, records
    ctypedef struct ring_reader:
        ring_control *control
        const uint8_t *segment
        uint64_t segment_size, offset
        uint32_t segment_id, length
        int verify
        uint64_t next_seq
    ctypedef enum ring_status:
        RING_EMPTY, RING_RECORD, RING_NEXT_SEGMENT
        RING_BAD_LENGTH, RING_BAD_VERSION, RING_BAD_CHECKSUM, RING_BAD_SEQ, RING_HOLE
    ctypedef struct ring_run:
        uint64_t start, count, stride, length, type_id
    ctypedef struct ring_scan:
        uint64_t end, good_end, records, first_seq, last_seq, min_ts_ns, max_ts_ns
        uint64_t last, bad, first_bad, foreign
        int padded
    ctypedef enum ring_wait_kind:
        RING_BUSY_SPIN, RING_SPIN_THEN_PARK, RING_SLEEP
    ctypedef struct ring_wait_strategy:
        ring_wait_kind kind
        int64_t spin_ns, sleep_ns

    void ring_init()
    uint64_t ring_wall_ns()
    uint64_t ring_wall_coarse_ns()
    int64_t ring_monotonic_ns()
    int64_t ring_monotonic_coarse_ns()
    uint64_t ring_record_size(uint64_t payload_length)
    int ring_append(ring_writer *w, uint16_t type_id, const void *payload, uint64_t length,
                    uint64_t timestamp_ns)
    uint64_t ring_append_packed(ring_writer *w, const uint16_t *type_ids, int64_t type_step,
                                const uint8_t *payloads, const uint64_t *starts,
                                const uint64_t *ends, uint64_t first, uint64_t count,
                                const uint64_t *timestamps, const uint16_t *flags)
    uint64_t ring_append_array(ring_writer *w, uint16_t type_id, const uint8_t *items,
                               uint64_t item_size, int64_t item_stride, uint64_t count,
                               const uint8_t *timestamps, int64_t timestamp_stride)
    void ring_announce(ring_writer *w, uint64_t heartbeat_ns)
    void ring_pad(uint8_t *segment, uint64_t segment_size, uint64_t offset)
    void ring_publish_head(ring_control *control, uint32_t segment_id, uint64_t offset)
    void ring_seal(uint8_t *segment)
    void ring_notify(ring_control *control)
    void ring_wake_all(ring_control *control)
    void ring_note_head(ring_reader *r)
    ring_status ring_peek(ring_reader *r)
    ring_status ring_step(ring_reader *r, const ring_message **message)
    ring_status ring_take_run(ring_reader *r, uint64_t max, int verify, ring_run *run)
    void ring_read_head(ring_control *control, uint32_t *segment_id, uint64_t *offset)
    uint64_t ring_run_offsets(const uint8_t *segment, uint64_t segment_size, uint64_t start,
                              uint64_t count, uint64_t *offsets)
    int ring_wait(ring_reader *r, const ring_wait_strategy *strategy, int64_t timeout_ns)
    int ring_wait_any(ring_reader **readers, size_t count, const ring_wait_strategy *strategy,
                      int64_t timeout_ns)
    void ring_scan_segment(const uint8_t *segment, uint64_t segment_size, uint64_t start,
                           int verify, ring_scan *result)
    uint64_t ring_find(const uint8_t *segment, uint64_t segment_size, uint64_t start,
                       uint64_t target, int by_timestamp)

cdef extern from *:
    """
    static inline uint32_t word_load_u32(const void *p)
    { return atomic_load_explicit((_Atomic uint32_t *)p, memory_order_acquire); }
    static inline void word_store_u32(void *p, uint32_t v)
    { atomic_store_explicit((_Atomic uint32_t *)p, v, memory_order_release); }
    static inline uint64_t word_load_u64(const void *p)
    { return atomic_load_explicit((_Atomic uint64_t *)p, memory_order_acquire); }
    static inline void word_store_u64(void *p, uint64_t v)
    { atomic_store_explicit((_Atomic uint64_t *)p, v, memory_order_release); }
    static inline uint32_t message_commit(const ring_message *m)
    { return atomic_load_explicit((_Atomic uint32_t *)&m->commit_len, memory_order_acquire); }
    """
    uint32_t word_load_u32(const void *p) nogil
    void word_store_u32(void *p, uint32_t v) nogil
    uint64_t word_load_u64(const void *p) nogil
    void word_store_u64(void *p, uint64_t v) nogil
    uint32_t message_commit(const ring_message *m) nogil
