# cython: language_level=3
"""What other native modules may know of requests."""

from libc.stdint cimport uint8_t


cdef struct Cursor:
    const uint8_t *text
    Py_ssize_t at
    Py_ssize_t size

cdef struct HeadLimits:
    Py_ssize_t max_target_bytes
    Py_ssize_t max_header_bytes
    Py_ssize_t max_headers
    Py_ssize_t max_body_bytes

cdef struct AppendHead:  # offsets into the request
    Py_ssize_t path_start
    Py_ssize_t path_end
    Py_ssize_t body_start
    Py_ssize_t body_bytes
    int seen

cdef bint read_append_head(bytes data, const HeadLimits *limits, AppendHead *head) noexcept
