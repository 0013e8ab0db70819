# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Records of topics, in frames or in pages of a server, to columns of text and numbers.

Owns the rows that are picked and the memory of finished columns. Opens no file and knows no Arrow:
`everlog.pipeline.columns_from_frames` makes arrays of the columns.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset

from typing import NamedTuple

import numpy as np

from everlog.native.topics.log cimport (
    FRAME_OK, FRAME_TYPE_APPEND, JSON_SOUND, check_json, frame_split, frame_view, read_log_frame_at,
    read_segment_frame_at,
)

cdef extern from "columns/page_scan.h" nogil:
    enum:
        FRAME_TEXT_NODE, FRAME_TEXT_TAG, FRAME_TEXT_META, FRAME_TEXT_DATA, FRAME_TEXTS
    ctypedef struct cursor:
        const uint8_t *at
        const uint8_t *end
    ctypedef struct frame_piece:
        const uint8_t *at
        uint32_t length
    ctypedef struct frame_row:
        frame_piece texts[4]
        uint64_t seq, ts
    bint take(cursor *text, uint8_t byte)
    bint page_find_records(cursor *text)
    bint page_take_record(cursor *text, frame_row *row)

cdef enum:
    # Deeper than a payload may be, with the page around it.
    PAGE_NESTING_MAX = 160
    US_PER_MS = 1000

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

    cdef frame_row *rows
    cdef size_t count, capacity
    cdef size_t bytes[4]  # of each text in the rows
    cdef uint64_t from_ts, to_ts
    cdef const uint8_t *wanted_tag
    cdef size_t wanted_len
    cdef bint is_prefix
    cdef object tag
    cdef list views  # what picked rows point into

    def __cinit__(self, uint64_t from_ts, uint64_t to_ts, bytes tag, bint is_prefix):
        self.tag = tag
        self.views = []
        self.from_ts, self.to_ts, self.is_prefix = from_ts, to_ts, is_prefix
        if tag is not None:
            self.wanted_tag, self.wanted_len = <const uint8_t *>PyBytes_AS_STRING(tag), len(tag)

    def __dealloc__(self):
        free(self.rows)

    def __len__(self) -> int:
        """Return how many rows were picked."""
        return self.count

    @property
    def largest_bytes(self) -> int:
        """How many bytes the largest column of text has so far."""
        return max(self.bytes[text] for text in range(FRAME_TEXTS))

    def pick(self, const uint8_t[::1] buffer not None, const uint64_t[::1] offsets not None,
             const uint64_t[::1] seqs not None, bint in_log) -> int:
        """Add the records at these offsets that pass; `buffer` must not change before `clear`.

        Returns how many of the places were sound; fewer than given means that the next one is damaged.
        """
        cdef size_t count = offsets.shape[0], sound = 0
        if offsets.shape[0] != seqs.shape[0]:
            raise ValueError(f"{offsets.shape[0]} offsets are given and {seqs.shape[0]} seqs")
        self.reserve(self.count + count)
        self.views.append(buffer)
        with nogil:
            while sound < count and self.read_frame(buffer, offsets[sound], seqs[sound], in_log):
                sound += 1
        return sound

    cdef bint read_frame(self, const uint8_t[::1] buffer, uint64_t offset, uint64_t seq,
                         bint in_log) noexcept nogil:
        """Add the record of one frame if it passes; False if the frame is not there as it should be."""
        cdef frame_view frame
        cdef frame_row *row = &self.rows[self.count]
        cdef const uint8_t *at
        cdef size_t length = buffer.shape[0]
        if offset >= length:
            return False
        at = &buffer[0] + offset
        if in_log:
            if read_log_frame_at(at, length - offset, &frame, 1) != FRAME_OK or frame.type != FRAME_TYPE_APPEND:
                return False
        elif read_segment_frame_at(at, length - offset, &frame, 1) != FRAME_OK:
            return False
        if frame.seq != seq:
            return False
        # A mark without its flag in the index counts as deleted as well.
        if not in_log and frame.deleted:
            return True
        if frame_split(&frame, &row.texts[FRAME_TEXT_META].at, &row.texts[FRAME_TEXT_META].length,
                       &row.texts[FRAME_TEXT_DATA].at, &row.texts[FRAME_TEXT_DATA].length) != 0:
            return False
        row.texts[FRAME_TEXT_NODE].at = frame.node if frame.node_len else NULL
        row.texts[FRAME_TEXT_NODE].length = frame.node_len
        row.texts[FRAME_TEXT_TAG].at = frame.tag if frame.tag_len else NULL
        row.texts[FRAME_TEXT_TAG].length = frame.tag_len
        row.seq, row.ts = frame.seq, frame.ts
        self.add_row()
        return True

    cdef void add_row(self) noexcept nogil:
        """Add the row that lies behind the last one, unless it does not pass."""
        cdef frame_row *row = &self.rows[self.count]
        cdef frame_piece *tag = &row.texts[FRAME_TEXT_TAG]
        cdef int text
        if row.ts < self.from_ts or row.ts > self.to_ts:
            return
        if self.wanted_tag != NULL:
            if tag.at == NULL or tag.length < self.wanted_len:
                return
            if not self.is_prefix and tag.length != self.wanted_len:
                return
            if memcmp(tag.at, self.wanted_tag, self.wanted_len) != 0:
                return
        for text in range(FRAME_TEXTS):
            self.bytes[text] += row.texts[text].length
        self.count += 1

    def pick_page(self, bytes page not None, uint64_t first, uint64_t end, size_t max_records):
        """Add the records of a page whose seqs lie from `first` up to, but not including, `end`, and that pass.

        Returns the page without its records; None, with nothing added, if the page is not plain or has more
        than `max_records`: the full decoder has to look at it.
        """
        cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(page)
        cdef size_t length = PyBytes_GET_SIZE(page), before = self.count, array_start = 0
        cdef cursor text
        cdef bint is_plain
        text.at, text.end = start, start + length
        self.reserve(before + max_records)
        with nogil:
            is_plain = check_json(start, length, PAGE_NESTING_MAX) == JSON_SOUND and page_find_records(&text)
            array_start = text.at - start
            is_plain = is_plain and self.take_records(&text, before + max_records, first, end)
        if not is_plain:
            self.keep_first(before)
            return None
        self.views.append(page)
        return page[:array_start] + b"[]" + page[text.at - start :]

    cdef bint take_records(self, cursor *text, size_t capacity, uint64_t first, uint64_t end) noexcept nogil:
        cdef frame_row *row
        cdef bint more = take(text, b"[")
        while more:
            row = &self.rows[self.count]
            if self.count == capacity or not take(text, b"{") or not page_take_record(text, row):
                return False
            if first <= row.seq < end:
                self.add_row()
            more = take(text, b",")
        return take(text, b"]")

    def keep_first(self, size_t count) -> None:
        """Forget all rows but the first so many."""
        cdef int text
        while self.count > count:
            self.count -= 1
            for text in range(FRAME_TEXTS):
                self.bytes[text] -= self.rows[self.count].texts[text].length

    def add(self, uint64_t seq, uint64_t ts, bytes node, bytes tag, bytes meta, bytes data not None) -> None:
        """Add one record, unless it does not pass; None is a text that it does not have."""
        cdef frame_row *row
        cdef int which = 0
        self.reserve(self.count + 1)
        row = &self.rows[self.count]
        row.seq, row.ts = seq, ts
        for text in (node, tag, meta, data):
            row.texts[which].at = NULL if text is None else <uint8_t *>PyBytes_AS_STRING(text)
            row.texts[which].length = 0 if text is None else <uint32_t>PyBytes_GET_SIZE(text)
            which += 1
        self.views.append((node, tag, meta, data))
        self.add_row()

    cdef int reserve(self, size_t count) except -1:
        cdef void *rows
        if count > self.capacity:
            rows = realloc(self.rows, count * sizeof(frame_row))
            if rows == NULL:
                raise MemoryError(f"no memory for {count} rows")
            self.rows = <frame_row *>rows
            self.capacity = count
        return 0

    def numbers(self):
        """Return the seqs, and the times in microseconds, as arrays of int64."""
        cdef size_t row
        seqs, times_us = np.empty(self.count, np.int64), np.empty(self.count, np.int64)
        cdef int64_t[::1] seq_view = seqs, time_view = times_us
        for row in range(self.count):
            seq_view[row] = <int64_t>self.rows[row].seq
            time_view[row] = <int64_t>self.rows[row].ts * US_PER_MS
        return seqs, times_us

    def text(self, str name not None):
        """Return one of the columns node, tag, meta and data."""
        cdef int which = TEXTS[name]
        cdef size_t row, end = 0, absent = 0
        cdef const frame_piece *piece
        if self.bytes[which] > INT32_MAX:
            raise ValueError(f"{self.bytes[which]} bytes are more than one column of text holds")
        # One byte more than needed: an empty array has no address.
        data = np.empty(self.bytes[which] + 1, np.uint8)
        ends = np.empty(self.count + 1, np.int32)
        valid = np.zeros(self.count // 8 + 1, np.uint8)
        cdef uint8_t[::1] byte_view = data, valid_view = valid
        cdef int32_t[::1] end_view = ends
        end_view[0] = 0
        with nogil:
            for row in range(self.count):
                piece = &self.rows[row].texts[which]
                if piece.at == NULL:
                    absent += 1
                else:
                    memcpy(&byte_view[end], piece.at, piece.length)
                    end += piece.length
                    valid_view[row >> 3] |= 1 << (row & 7)
                end_view[row + 1] = <int32_t>end
        return TextColumn(data[: self.bytes[which]], ends, valid if absent else None, absent)

    def clear(self) -> None:
        """Forget the rows, and release the buffers."""
        self.count = 0
        memset(self.bytes, 0, sizeof(self.bytes))
        self.views.clear()
