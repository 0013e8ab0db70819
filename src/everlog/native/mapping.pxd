# cython: language_level=3
"""What other native modules may know of a mapping."""

from libc.stdint cimport uint8_t, uint64_t


cdef class Mapping:
    cdef uint8_t *base
    cdef readonly size_t length
    cdef readonly bint writable

    cdef int check(self, uint64_t offset, uint64_t size, bint write) except -1


cdef int check_record_offset(Mapping segment, uint64_t offset) except -1
