# cython: language_level=3
"""Frames of the topics plane for other native modules: what they look like, and functions that read them."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "topics/frames.h" nogil:
    uint32_t FRAME_META_LEN_SIZE

    cdef enum:
        FRAME_HAS_TAG
        FRAME_HAS_NODE
        FRAME_HAS_META
        FRAME_BATCH_CONTINUES
    cdef enum:
        FRAME_TYPE_APPEND
    cdef enum:
        FRAME_OK
        FRAME_END
        FRAME_TORN
        FRAME_CORRUPT

    ctypedef struct frame_view:
        const uint8_t *node
        const uint8_t *tag
        const uint8_t *data
        uint64_t topic_id
        uint64_t seq
        uint64_t ts
        uint32_t data_len
        uint32_t size
        uint16_t node_len
        uint16_t tag_len
        uint8_t type
        uint8_t flags
        uint8_t deleted
    ctypedef struct frame_scan:
        uint64_t frames
        size_t end
        int outcome
    ctypedef uint64_t (*frame_hash)(const void *data, size_t length) noexcept nogil

    void frames_set_hash(frame_hash hash)
    size_t log_frame_size(size_t node_len, size_t tag_len, size_t data_len)
    uint32_t frame_payload(uint32_t data_len, uint8_t flags)
    size_t log_frame_write(uint8_t *out, const frame_view *frame, const uint8_t *meta, uint32_t meta_len)
    int log_frame_read(const uint8_t *at, size_t available, frame_view *frame, int verify)
    int segment_frame_read(const uint8_t *at, size_t available, frame_view *frame, int verify)
    void log_frames_scan(const uint8_t *base, size_t length, size_t start, int verify, frame_scan *result)
    void segment_frames_scan(const uint8_t *base, size_t length, size_t start, int verify, frame_scan *result)
    int frame_split(const frame_view *frame, const uint8_t **meta, uint32_t *meta_len, const uint8_t **text,
                    uint32_t *text_len)
    cdef enum:
        TEXT_HAS_LOW
        TEXT_HAS_HIGH
    int text_survey(const uint8_t *text, size_t length)
    size_t json_compact(uint8_t *out, const uint8_t *text, size_t length)
    int64_t json_key_count(const uint8_t *text, size_t length)
    bint json_is_blank(const uint8_t *text, size_t length)
    int utf8_valid(const uint8_t *text, size_t length)
    int JSON_SOUND, JSON_NOT_UTF8, JSON_TOO_DEEP
    int json_check(const uint8_t *text, size_t length, uint32_t max_depth)


# Exported by the module, so that frames.c is linked only there.
cdef int read_log_frame_at(const uint8_t *at, size_t available, frame_view *frame, int verify) noexcept nogil
cdef int read_segment_frame_at(const uint8_t *at, size_t available, frame_view *frame, int verify) noexcept nogil
cdef int check_json(const uint8_t *text, size_t length, uint32_t max_depth) noexcept nogil
