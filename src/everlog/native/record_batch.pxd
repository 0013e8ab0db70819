# cython: language_level=3
"""Declarations of log_append.h's record, and what other native modules may know of a checked batch."""

from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t

cdef extern from "log_append.h" nogil:
    ctypedef struct batch_record:
        const uint8_t *data
        const uint8_t *meta
        const uint8_t *tag
        const uint8_t *node
        uint32_t data_len
        uint32_t meta_len
        uint16_t tag_len
        uint16_t node_len
        uint8_t is_compact


cdef class RecordBatch:
    cdef batch_record *records   # pointers into objects that the batch keeps alive
    cdef PyObject **owners       # these objects, in the same memory; others are held by a view
    cdef size_t owner_count
    cdef Py_buffer *views        # of texts that are not plain bytes objects
    cdef size_t view_count
    cdef size_t capacity         # records there is memory for
    cdef readonly Py_ssize_t count
    cdef readonly size_t frame_bytes
    cdef str batch_node

    cdef bint is_within_limits(self, batch_record *record) noexcept
    cdef int make_room(self, size_t count) except -1
    cdef int take(self, Py_ssize_t place, object data, object meta, object tag, object node) except -1
    cdef int take_meta(self, Py_ssize_t place, object meta) except -1
    cdef void keep(self, object owner) noexcept
    cdef int take_text(self, Py_ssize_t place, str what, object value, const uint8_t **text,
                       uint32_t *length) except -1
    cdef Py_buffer *free_view(self) except NULL
