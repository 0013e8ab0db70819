# cython: language_level=3
"""What other native modules may know of a checked batch of records."""

from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t


cdef struct batch_record:        # pointers into objects that the batch keeps alive
    const uint8_t *data
    const uint8_t *meta          # NULL = none
    const uint8_t *tag
    const uint8_t *node
    uint32_t data_len
    uint32_t meta_len
    uint16_t tag_len             # 0 = none, as for node_len
    uint16_t node_len
    PyObject *data_owner         # NULL where a view or the batch holds it
    PyObject *meta_owner
    PyObject *tag_owner
    PyObject *node_owner


cdef class RecordBatch:
    cdef batch_record *records
    cdef Py_buffer *views        # of texts that are not plain bytes objects
    cdef size_t view_count
    cdef size_t capacity         # records asked for
    cdef readonly Py_ssize_t count
    cdef readonly size_t frame_bytes
    cdef size_t longest_text     # data and meta of one record
    cdef object batch_node

    cdef int take(self, Py_ssize_t place, object record, const batch_record *defaults) except -1
    cdef void measure(self, const batch_record *taken) noexcept
    cdef int take_text(self, Py_ssize_t place, str what, object value, const uint8_t **text, uint32_t *length,
                       PyObject **owner) except -1
    cdef Py_buffer *free_view(self) except NULL
