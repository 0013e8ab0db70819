# cython: language_level=3, boundscheck=False, wraparound=False
"""The way out of a connection: bytes go to the kernel at once, and to the transport only if it has to wait.

Owns the order of bytes between the two. The transport of the event loop stays the owner of the socket: it
holds what the kernel did not take, tells when there is room again, and ends the connection, also when an
error was met here. As long as it holds anything, everything goes through it. Knows no protocol.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, EINTR, errno


cdef extern from "<sys/socket.h>" nogil:
    ssize_t send(int number, const void *data, size_t size, int flags)
    int MSG_DONTWAIT
    int MSG_NOSIGNAL


cdef class Outlet:
    """The way out of one connection. Nothing can be written before `open_outlet`."""

    def __cinit__(self):
        self.number = -1

    def open_outlet(self, transport, int number):
        """Write to this transport, and past it to the socket of this number; -1 if that is not possible.

        It is possible with a transport that hands bytes to the socket as they are, and that says truly when
        it holds none. The number must be that of the socket until `shut_outlet`.
        """
        self.transport = transport
        self.number = number

    def shut_outlet(self):
        """Go past the transport no more: it is about to close the socket, whose number others will get."""
        self.number = -1

    @property
    def is_direct(self):
        """Whether bytes may go past the transport."""
        return self.number >= 0

    @property
    def buffered(self):
        """Bytes that the kernel has not taken."""
        cdef Py_ssize_t size
        if not self.has_rest:
            return 0
        size = self.transport.get_write_buffer_size()
        if size == 0:
            self.has_rest = False
        return size

    cdef bint is_clear(self) except -1:
        """Whether the kernel may be offered bytes: nothing is before them."""
        if self.number < 0:
            return False
        if self.has_rest:
            self.has_rest = self.transport.get_write_buffer_size() != 0
        return not self.has_rest

    cdef Py_ssize_t offer(self, bytes data) noexcept:
        """What the kernel takes of these bytes; ask `is_clear` before."""
        cdef Py_ssize_t sent
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        self.written_bytes += size
        while True:
            sent = send(self.number, PyBytes_AS_STRING(data), size, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent >= 0:
                return sent
            if errno == EINTR:
                continue
            if errno != EAGAIN:
                # The transport meets the same error, and ends the connection in its own way.
                self.number = -1
            return 0

    cdef int hand_over(self, bytes data, Py_ssize_t sent) except -1:
        """Let the transport see to what `offer` could not send."""
        self.has_rest = True
        self.transport.write(data if sent == 0 else memoryview(data)[sent:])
        return 0

    def finish(self, bytes data not None, Py_ssize_t sent):
        """Send the rest of bytes of which so many are out already."""
        self.hand_over(data, sent)

    def write(self, data):
        """Send bytes, unless the connection is going away."""
        self.put(data)

    cdef int put(self, object data) except -1:
        """See `write`."""
        cdef Py_ssize_t sent
        if PyBytes_CheckExact(data) and self.is_clear():
            sent = self.offer(<bytes>data)
            if sent != PyBytes_GET_SIZE(<bytes>data):
                self.hand_over(<bytes>data, sent)
        elif not self.transport.is_closing():
            self.written_bytes += len(data)
            self.has_rest = True
            self.transport.write(data)
        return 0

    def write_two(self, bytes head not None, bytes body not None):
        """As `write`, for a body that is not worth copying behind its head."""
        if not self.transport.is_closing():
            self.written_bytes += PyBytes_GET_SIZE(head) + PyBytes_GET_SIZE(body)
            self.has_rest = True
            self.transport.writelines((head, body))
