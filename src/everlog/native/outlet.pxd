# cython: language_level=3
"""What other native modules may know of the way out of a connection."""

from libc.stdint cimport uint64_t


cdef class Outlet:
    cdef public object transport
    cdef public bint is_write_paused
    cdef public uint64_t written_bytes     # handed over so far, whether the client has taken them or not
    cdef int number                        # of the socket; -1: everything goes through the transport
    cdef bint has_rest                     # the transport may hold bytes that the kernel has not taken

    cdef bint is_clear(self) except -1
    cdef Py_ssize_t offer(self, bytes data) noexcept
    cdef int hand_over(self, bytes data, Py_ssize_t sent) except -1
    cdef int put(self, object data) except -1
