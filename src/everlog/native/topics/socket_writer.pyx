# cython: language_level=3, boundscheck=False, wraparound=False
"""Write to a connection: bytes go to the kernel at once, and to the transport only if they have to wait.

Owns the order of bytes between the two. The transport of the event loop stays the owner of the socket: it
holds what the kernel did not take, reports when there is room again, and ends the connection, also after an
error that was met here. As long as it holds anything, everything goes through it. Knows no protocol.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint64_t


cdef extern from "<sys/socket.h>" nogil:
    ssize_t send(int fd, const void *data, size_t size, int flags)
    int MSG_DONTWAIT
    int MSG_NOSIGNAL


cdef class SocketWriter:
    """The output of one connection. Nothing can be written before `open_writer`."""

    cdef public object transport
    cdef public bint is_write_paused
    cdef public uint64_t written_bytes
    cdef int fd
    cdef bint has_rest  # the transport may hold bytes that the kernel has not taken

    def __cinit__(self):
        self.fd = -1

    def open_writer(self, transport, int fd):
        """Write to this transport, and directly to the socket `fd`; -1 if that is not possible.

        It is possible with a transport that writes bytes to the socket as they are, and that reports exactly
        how many it holds. The socket must have this number until `stop_direct`.
        """
        self.transport = transport
        self.fd = fd

    def stop_direct(self):
        """Write to the transport only: it is about to close the socket, whose number will be used again."""
        self.fd = -1

    @property
    def is_direct(self):
        """Whether bytes may go to the socket directly."""
        return self.fd >= 0

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

    cdef Py_ssize_t try_send(self, bytes data) except -1:
        """Send what the kernel takes of these bytes now; 0 if bytes in the transport are before them."""
        cdef Py_ssize_t sent
        if self.has_rest:
            self.has_rest = self.transport.get_write_buffer_size() != 0
        if self.has_rest or self.fd < 0:
            return 0
        while True:
            sent = send(self.fd, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent >= 0:
                self.written_bytes += sent
                return sent
            if errno == EINTR:
                continue
            if errno != EAGAIN:
                # The transport meets the same error, and ends the connection.
                self.fd = -1
            return 0

    cdef int buffer(self, object data) except -1:
        """Leave bytes to the transport, unless the connection is closing."""
        if not self.transport.is_closing():
            self.written_bytes += len(data)
            self.has_rest = True
            self.transport.write(data)
        return 0

    def write(self, data):
        """Send bytes, unless the connection is closing; returns whether the kernel has taken all of them."""
        cdef Py_ssize_t sent = self.try_send(<bytes>data) if PyBytes_CheckExact(data) else 0
        if sent == len(data):
            return True
        self.buffer(data if sent == 0 else memoryview(data)[sent:])
        return self.buffered == 0

    def write_two(self, bytes head not None, bytes body not None):
        """As `write`, for a body that is too large to be copied behind its head."""
        if not self.transport.is_closing():
            self.written_bytes += PyBytes_GET_SIZE(head) + PyBytes_GET_SIZE(body)
            self.has_rest = True
            self.transport.writelines((head, body))
