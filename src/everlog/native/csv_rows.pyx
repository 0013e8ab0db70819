# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Rows of delimited text to columns of integers: thin shims over csv_rows.c.

Owns the conversion of text to numbers for importers. Reads no file and knows no venue:
`everlog.market.venues.csv_blocks` feeds it blocks and turns problems into errors.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memchr

cdef extern from "csv_rows.h" nogil:
    ctypedef enum csv_kind:
        CSV_UNSIGNED
        CSV_SIGNED
        CSV_DECIMAL
        CSV_FIXED
        CSV_CHOICE
        CSV_IDENTIFIER
        CSV_HASH
    ctypedef struct csv_choice:
        const char *text
        uint64_t length
        uint8_t code
    ctypedef struct csv_column:
        uint64_t field
        csv_kind kind
        int scale
        int negative_is_zero
        const csv_choice *choices
        uint64_t choice_count
        uint64_t *values
        uint8_t *extras
    ctypedef struct csv_result:
        uint64_t rows
        uint64_t consumed
        uint64_t lines
        uint64_t field
        int problem
    void csv_parse(const char *text, uint64_t length, char delimiter, uint64_t field_count,
                   const csv_column *columns, uint64_t column_count, uint32_t *row_lines,
                   uint64_t capacity, csv_result *result)

UNSIGNED = <int>CSV_UNSIGNED
SIGNED = <int>CSV_SIGNED
DECIMAL = <int>CSV_DECIMAL
FIXED = <int>CSV_FIXED
CHOICE = <int>CSV_CHOICE
IDENTIFIER = <int>CSV_IDENTIFIER
HASH = <int>CSV_HASH

PROBLEMS = (
    "",
    "has another number of fields than the first line",
    "is no number",
    "is negative",
    "is too large for 64 bits",
    "is none of the known values",
    "has a quote that is not closed",
)


cdef class RowParser:
    """Converts the wanted columns of rows; made once per file.

    A column is (place in the row, kind, scale, negative is zero, [(text, code)]). Places ascend.
    """

    cdef csv_column *columns
    cdef csv_choice *choices
    cdef uint64_t column_count
    cdef uint64_t field_count
    cdef char delimiter
    cdef list kept_texts  # the choices point into these

    def __cinit__(self, columns, uint64_t field_count, bytes delimiter=b","):
        cdef uint64_t count = 0, at = 0, place
        if len(delimiter) != 1:
            raise ValueError("the delimiter is one byte")
        self.column_count = len(columns)
        self.field_count = field_count
        self.delimiter = delimiter[0]
        self.kept_texts = []
        for _, _, _, _, choices in columns:
            count += len(choices)
        self.columns = <csv_column *>calloc(self.column_count + 1, sizeof(csv_column))
        self.choices = <csv_choice *>calloc(count + 1, sizeof(csv_choice))
        if self.columns == NULL or self.choices == NULL:
            raise MemoryError
        for place, (field, kind, scale, negative_is_zero, choices) in enumerate(columns):
            if place > 0 and field <= self.columns[place - 1].field:
                raise ValueError("columns must be given in the order of their places")
            self.columns[place].field = field
            self.columns[place].kind = <csv_kind><int>kind
            self.columns[place].scale = scale
            self.columns[place].negative_is_zero = negative_is_zero
            self.columns[place].choices = self.choices + at
            self.columns[place].choice_count = len(choices)
            for text, code in choices:
                self.kept_texts.append(text)
                self.choices[at].text = <const char *>(<bytes>text)
                self.choices[at].length = len(text)
                self.choices[at].code = code
                at += 1

    def __dealloc__(self):
        free(self.columns)
        free(self.choices)

    def parse(self, const uint8_t[::1] text not None, values, extras, uint32_t[::1] row_lines not None):
        """Convert whole lines of `text` into the arrays, one of each list per column.

        Returns (rows, bytes consumed, lines consumed, problem, field). A bad row is not consumed.
        """
        cdef uint64_t capacity = row_lines.shape[0], place
        cdef uint64_t[::1] numbers
        cdef uint8_t[::1] codes
        cdef csv_result result
        if len(values) != self.column_count or len(extras) != self.column_count:
            raise ValueError(f"need {self.column_count} arrays of values and as many of extras")
        for place in range(self.column_count):
            numbers, codes = values[place], extras[place]
            if <uint64_t>numbers.shape[0] < capacity or <uint64_t>codes.shape[0] < capacity:
                raise ValueError("every array must be as long as row_lines")
            self.columns[place].values = &numbers[0] if capacity else NULL
            self.columns[place].extras = &codes[0] if capacity else NULL
        if text.shape[0] == 0 or capacity == 0:
            return 0, 0, 0, 0, 0
        with nogil:
            csv_parse(<const char *>&text[0], text.shape[0], self.delimiter, self.field_count,
                      self.columns, self.column_count, &row_lines[0], capacity, &result)
        return result.rows, result.consumed, result.lines, result.problem, result.field


def count_lines(const uint8_t[::1] text not None) -> int:
    """Return the number of line feeds."""
    cdef uint64_t count = 0
    cdef const uint8_t *at
    cdef const uint8_t *end
    if text.shape[0] == 0:
        return 0
    at = &text[0]
    end = at + text.shape[0]
    with nogil:
        while at < end:
            at = <const uint8_t *>memchr(at, b'\n', end - at)
            if at == NULL:
                break
            count += 1
            at += 1
    return count
