# cython: language_level=3
"""What other native modules may use of the text of an answer."""

from libc.stdint cimport uint64_t

cdef bytes render_body(str topic, uint64_t first_seq, uint64_t last_seq, uint64_t waited_ns,
                       uint64_t synced_ns, bytes more)
cdef bytes render_response(bytes head, bytes body)
