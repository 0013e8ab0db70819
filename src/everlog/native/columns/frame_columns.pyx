# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Records of topics, in frames or in pages of a server, to columns of text and numbers.

Owns the rows that are picked and the memory of finished columns. Opens no file and knows no Arrow:
`everlog.pipeline.columns_from_frames` makes arrays of the columns.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from typing import NamedTuple

import numpy as np

from everlog.native.topics.log cimport (
    JSON_SOUND, check_json, frame_view, read_log_frame_at, read_segment_frame_at,
)

cdef extern from "columns/frame_columns.h" nogil:
    cdef enum frame_text:
        FRAME_TEXT_NODE
        FRAME_TEXT_TAG
        FRAME_TEXT_META
        FRAME_TEXT_DATA
        FRAME_TEXTS
    ctypedef struct frame_piece:
        const uint8_t *at
        uint32_t length
    ctypedef struct frame_row:
        frame_piece texts[4]
        uint64_t seq
        uint64_t ts
    ctypedef struct frame_filter:
        uint64_t from_ts
        uint64_t to_ts
        const uint8_t *tag
        size_t tag_len
        int is_prefix
    ctypedef int (*frame_reader)(const uint8_t *at, size_t available, frame_view *frame,
                                 int verify) noexcept nogil
    ctypedef struct frame_places:
        const uint8_t *base
        size_t length
        const uint64_t *offsets
        const uint64_t *seqs
        size_t count
        int in_log
        frame_reader read
    ctypedef struct frame_rows:
        frame_row *rows
        size_t count
        size_t bytes[4]
    size_t frame_columns_pick(frame_rows *rows, const frame_places *places, const frame_filter *filter)
    void frame_columns_add(frame_rows *rows, const frame_filter *filter)
    size_t frame_columns_copy_text(const frame_rows *rows, frame_text text, uint8_t *bytes, int32_t *ends,
                                   uint8_t *valid)
    void frame_columns_copy_numbers(const frame_rows *rows, int64_t *seqs, int64_t *times_us)

cdef extern from "columns/page_scan.h" nogil:
    ctypedef struct page_range:
        uint64_t first
        uint64_t end
        size_t array_start
        size_t array_end
    int page_scan(frame_rows *rows, size_t capacity, const frame_filter *filter, const uint8_t *text,
                  size_t length, page_range *range)

cdef enum:
    # Deeper than a payload may be, with the page around it.
    PAGE_NESTING_MAX = 160

cdef dict TEXTS = {
    "node": FRAME_TEXT_NODE, "tag": FRAME_TEXT_TAG, "meta": FRAME_TEXT_META, "data": FRAME_TEXT_DATA,
}


class TextColumn(NamedTuple):
    """A column of text: all bytes, where each value ends (the first end is 0), and which rows have one.

    `valid` is a bit for each row, None if all have one.
    """

    bytes: object
    ends: object
    valid: object
    absent: int


@cython.final
cdef class FrameColumns:
    """Selects records from frames and returns them as columns.

    `from_ts` and `to_ts` are times in ms, both included; `tag` None passes every record.
    """

    cdef frame_rows rows
    cdef size_t capacity
    cdef frame_filter filter
    cdef object tag
    cdef list views  # what picked rows point into

    def __cinit__(self, uint64_t from_ts, uint64_t to_ts, bytes tag, bint is_prefix):
        self.tag = tag
        self.views = []
        self.filter.from_ts, self.filter.to_ts = from_ts, to_ts
        if tag is not None:
            self.filter.tag = <const uint8_t *><const char *>tag
            self.filter.tag_len = len(tag)
        self.filter.is_prefix = is_prefix

    def __dealloc__(self):
        free(self.rows.rows)

    def __len__(self) -> int:
        """Return how many rows were picked."""
        return self.rows.count

    @property
    def largest_bytes(self) -> int:
        """How many bytes the largest column of text has so far."""
        return max(self.rows.bytes[text] for text in range(<int>FRAME_TEXTS))

    def pick(self, buffer, const uint64_t[::1] offsets not None, const uint64_t[::1] seqs not None,
             bint in_log) -> int:
        """Add the records at these offsets that pass; `buffer` must not change before `clear`.

        Returns how many of the places were sound; fewer than given means that the next one is damaged.
        """
        cdef _Held held
        cdef frame_places places
        cdef size_t sound
        if offsets.shape[0] != seqs.shape[0]:
            raise ValueError(f"{offsets.shape[0]} offsets are given and {seqs.shape[0]} seqs")
        if offsets.shape[0] == 0:
            return 0
        held = _Held(buffer)
        places.base, places.length = <const uint8_t *>held.view.buf, held.view.len
        places.offsets, places.seqs, places.count = &offsets[0], &seqs[0], offsets.shape[0]
        places.in_log = in_log
        places.read = read_log_frame_at if in_log else read_segment_frame_at
        self.reserve(self.rows.count + places.count)
        self.views.append(held)
        with nogil:
            sound = frame_columns_pick(&self.rows, &places, &self.filter)
        return sound

    def pick_page(self, bytes page not None, uint64_t first, uint64_t end, size_t max_records):
        """Add the records of a page whose seqs lie from `first` up to, but not including, `end`, and that pass.

        Returns the page without its records; None, with nothing added, if the page is not plain or has more
        than `max_records`: the full decoder has to look at it.
        """
        cdef page_range range
        cdef const uint8_t *text = <const uint8_t *>PyBytes_AS_STRING(page)
        cdef size_t length = PyBytes_GET_SIZE(page)
        cdef int is_plain
        range.first, range.end = first, end
        self.reserve(self.rows.count + max_records)
        with nogil:
            is_plain = check_json(text, length, PAGE_NESTING_MAX) == JSON_SOUND and page_scan(
                &self.rows, self.rows.count + max_records, &self.filter, text, length, &range)
        if not is_plain:
            return None
        self.views.append(page)
        return page[: range.array_start] + b"[]" + page[range.array_end :]

    def keep_first(self, size_t count) -> None:
        """Forget all rows but the first so many."""
        cdef int text
        while self.rows.count > count:
            self.rows.count -= 1
            for text in range(<int>FRAME_TEXTS):
                self.rows.bytes[text] -= self.rows.rows[self.rows.count].texts[text].length

    def add(self, uint64_t seq, uint64_t ts, bytes node, bytes tag, bytes meta, bytes data not None) -> None:
        """Add one record, unless it does not pass; None is a text that it does not have."""
        cdef frame_row *row
        cdef int which = 0
        self.reserve(self.rows.count + 1)
        row = &self.rows.rows[self.rows.count]
        row.seq, row.ts = seq, ts
        for text in (node, tag, meta, data):
            row.texts[which].at = NULL if text is None else <const uint8_t *>PyBytes_AS_STRING(text)
            row.texts[which].length = 0 if text is None else <uint32_t>PyBytes_GET_SIZE(text)
            which += 1
        self.views.append((node, tag, meta, data))
        frame_columns_add(&self.rows, &self.filter)

    cdef int reserve(self, size_t count) except -1:
        cdef void *rows
        if count > self.capacity:
            rows = realloc(self.rows.rows, count * sizeof(frame_row))
            if rows == NULL:
                raise MemoryError(f"no memory for {count} rows")
            self.rows.rows = <frame_row *>rows
            self.capacity = count
        return 0

    def numbers(self):
        """Return the seqs, and the times in microseconds, as arrays of int64."""
        cdef int64_t[::1] seq_view, time_view
        seqs = np.empty(self.rows.count, np.int64)
        times_us = np.empty(self.rows.count, np.int64)
        if self.rows.count:
            seq_view, time_view = seqs, times_us
            frame_columns_copy_numbers(&self.rows, &seq_view[0], &time_view[0])
        return seqs, times_us

    def text(self, str name not None):
        """Return one of the columns node, tag, meta and data."""
        cdef frame_text which = TEXTS[name]
        cdef size_t absent
        cdef int32_t[::1] end_view
        cdef uint8_t[::1] byte_view, valid_view
        if self.rows.bytes[<int>which] > INT32_MAX:
            raise ValueError(f"{self.rows.bytes[<int>which]} bytes are more than one column of text holds")
        # One byte more than needed: an empty array has no address.
        data = np.empty(self.rows.bytes[<int>which] + 1, np.uint8)
        ends = np.empty(self.rows.count + 1, np.int32)
        valid = np.empty(self.rows.count // 8 + 1, np.uint8)
        byte_view, end_view, valid_view = data, ends, valid
        with nogil:
            absent = frame_columns_copy_text(&self.rows, which, &byte_view[0], &end_view[0], &valid_view[0])
        return TextColumn(data[: self.rows.bytes[<int>which]], ends, valid if absent else None, absent)

    def clear(self) -> None:
        """Forget the rows, and release the buffers."""
        self.rows.count = 0
        memset(self.rows.bytes, 0, sizeof(self.rows.bytes))
        self.views.clear()


@cython.final
cdef class _Held:
    """Keeps a buffer alive and in place."""

    cdef Py_buffer view
    cdef bint is_held

    def __cinit__(self, buffer):
        PyObject_GetBuffer(buffer, &self.view, PyBUF_SIMPLE)
        self.is_held = True

    def __dealloc__(self):
        if self.is_held:
            PyBuffer_Release(&self.view)
