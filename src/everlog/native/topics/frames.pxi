# Frames of the topics plane: writing them into a growing buffer, reading and scanning them.
#
# Owns the buffer's memory and chooses the hash. Opens no file and knows no topic; which bytes mean
# what is said in frames.h.

cdef extern from "Python.h":
    void Py_FatalError(const char *message) noexcept
    int PyBUF_READ
    Py_ssize_t PY_SSIZE_T_MAX

cdef extern from "sys/mman.h" nogil:
    int madvise(void *address, size_t length, int advice)

cdef extern from *:
    """
    #ifndef MADV_POPULATE_WRITE /* of Linux 5.14; older kernels refuse it */
    #define MADV_POPULATE_WRITE 23
    #endif
    """
    int MADV_POPULATE_WRITE

cdef enum:
    PAGE_SIZE = 4096
    SMALLEST_CAPACITY = 4096
    KEPT_CAPACITY = 1048576

# --- The hash ---------------------------------------------------------------------------------------------


cdef object python_hash = xxhash.xxh3_64_intdigest


cdef uint64_t hash_by_callback(const void *data, size_t length) noexcept with gil:
    cdef uint64_t digest = 0
    try:
        digest = python_hash(PyMemoryView_FromMemory(<char *>data, <Py_ssize_t>length, PyBUF_READ))
    except BaseException:
        # C has no way to say "no hash", and a wrong one would be written as if it were right.
        Py_FatalError("everlog: the checksum of a frame could not be computed")
    return digest


frames_set_hash(<frame_hash><size_t>xxh3.address if xxh3.address != 0 else hash_by_callback)


# --- Bytes in, answer out ---------------------------------------------------------------------------------


def json_fault(const uint8_t[::1] text not None, uint32_t max_depth) -> str | None:
    """Return why this JSON text may not be stored though a parser accepts it, None if it may."""
    cdef int found = json_check(&text[0], text.shape[0], max_depth)
    if found == JSON_SOUND:
        return None
    if found == JSON_NOT_UTF8:
        return "it is not UTF-8"
    if found == JSON_TOO_DEEP:
        return f"it is nested deeper than {max_depth} levels"
    return "it has an escape of half a surrogate pair"


def json_names(const uint8_t[::1] text not None) -> list[bytes]:
    """The names of an object's members in their order, as JSON strings; the text must be valid JSON."""
    cdef Py_ssize_t start, at = 0, end = text.shape[0]
    cdef size_t depth = 0
    cdef bint is_name = False
    cdef list names = []
    while at < end:
        if text[at] == b'"':
            start = at
            at += 1
            while at < end and text[at] != b'"':
                at += 2 if text[at] == b"\\" else 1
            if is_name and at < end:
                names.append(copy_part(&text[start], at + 1 - start))
            is_name = False
        elif text[at] == b"{" or text[at] == b"[":
            depth += 1
            is_name = depth == 1
        elif text[at] == b"}" or text[at] == b"]":
            depth -= 1
        elif text[at] == b",":
            is_name = depth == 1
        at += 1
    return names


# --- Reading ----------------------------------------------------------------------------------------------


ctypedef void (*scan_kernel)(const uint8_t *base, size_t length, size_t start, int verify,
                             frame_scan *result) noexcept nogil
ctypedef int (*read_kernel)(const uint8_t *at, size_t available, frame_view *frame, int verify) noexcept nogil

cdef dict OUTCOMES = {FRAME_END: "end", FRAME_TORN: "torn", FRAME_CORRUPT: "corrupt"}


cdef object scan_frames(scan_kernel kernel, const uint8_t[::1] buffer, size_t start, bint verify):
    cdef size_t length = buffer.shape[0]
    cdef frame_scan result
    if start > length:
        raise IndexError(f"a scan cannot start at offset {start} of {length} bytes")
    with nogil:
        kernel(&buffer[0], length, start, verify, &result)
    return FrameScan(result.frames, result.end, OUTCOMES[result.outcome])


def scan_log_frames(const uint8_t[::1] buffer not None, size_t start=0, *, bint verify=True):
    """Walk log frames from `start` until one cannot be read; the GIL is released meanwhile."""
    return scan_frames(log_frames_scan, buffer, start, verify)


def scan_segment_frames(const uint8_t[::1] buffer not None, size_t start=0, *, bint verify=True):
    """Walk segment frames from `start` until one cannot be read; the GIL is released meanwhile."""
    return scan_frames(segment_frames_scan, buffer, start, verify)


cdef int read_frame(read_kernel kernel, str kind, const uint8_t[::1] buffer, size_t offset, bint verify,
                    frame_view *frame) except -1:
    cdef size_t length = buffer.shape[0]
    cdef int outcome = FRAME_TORN
    if offset <= length:
        outcome = kernel(&buffer[0] + offset, length - offset, frame, verify)
    if outcome == FRAME_OK:
        return 0
    where = f"no {kind} frame can be read at offset {offset} of {length} bytes: "
    if outcome == FRAME_END:
        raise Corrupt(f"{where}nothing was written there; the offset is wrong or the bytes were lost")
    if outcome == FRAME_TORN:
        raise Corrupt(f"{where}it reaches beyond the end; the bytes were cut or never written in full")
    raise Corrupt(f"{where}its lengths or its checksum do not match; the bytes are damaged")


cdef bytes copy_part(const uint8_t *part, size_t length):
    return PyBytes_FromStringAndSize(<const char *>part, length)


cdef object copy_log_frame(const frame_view *frame):
    return LogFrame(
        frame.size, frame.type, frame.flags, frame.topic_id, frame.seq, frame.ts,
        copy_part(frame.node, frame.node_len), copy_part(frame.tag, frame.tag_len),
        copy_part(frame.data, frame.data_len),
    )


def read_log_frame(const uint8_t[::1] buffer not None, size_t offset, *, bint verify=True):
    """Return the log frame at `offset`; raises Corrupt if there is no sound one."""
    cdef frame_view frame
    read_frame(log_frame_read, "log", buffer, offset, verify, &frame)
    return copy_log_frame(&frame)


def read_segment_frame(const uint8_t[::1] buffer not None, size_t offset, *, bint verify=True):
    """Return the segment frame at `offset`; raises Corrupt if there is no sound one."""
    cdef frame_view frame
    read_frame(segment_frame_read, "segment", buffer, offset, verify, &frame)
    return SegmentFrame(
        frame.size, frame.flags, frame.seq, frame.ts,
        copy_part(frame.node, frame.node_len), copy_part(frame.tag, frame.tag_len),
        copy_part(frame.data, frame.data_len), frame.deleted != 0,
    )


cdef int read_log_frame_at(const uint8_t *at, size_t available, frame_view *frame, int verify) noexcept nogil:
    return log_frame_read(at, available, frame, verify)


cdef int read_segment_frame_at(const uint8_t *at, size_t available, frame_view *frame, int verify) noexcept nogil:
    return segment_frame_read(at, available, frame, verify)


cdef int check_json(const uint8_t *text, size_t length, uint32_t max_depth) noexcept nogil:
    return json_check(text, length, max_depth)


# --- Writing ----------------------------------------------------------------------------------------------


@cython.final
@cython.no_gc
cdef class FrameBuffer:
    """A growing run of bytes in native memory, to which frames are appended.

    It exports a read-only view of the bytes it holds at that moment. While a view is out the
    memory stays where it is: appending within the capacity works, growing raises BufferError.
    """

    cdef uint8_t *base
    cdef size_t length
    cdef size_t capacity
    cdef Py_ssize_t exports

    def __cinit__(self, size_t capacity=0):
        if capacity > 0:
            self.resize(capacity)

    def __dealloc__(self):
        free(self.base)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        # An empty buffer has no memory yet, but a view must not point to nothing.
        cdef char *start = <char *>self.base if self.base != NULL else <char *>""
        PyBuffer_FillInfo(buffer, self, start, self.length, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *buffer):
        self.exports -= 1

    def __len__(self):
        return self.length

    cdef int room(self, size_t more) except -1:
        cdef size_t limit = <size_t>PY_SSIZE_T_MAX
        cdef size_t wanted
        if more <= self.capacity - self.length:
            return 0
        if self.exports > 0:
            raise BufferError(f"cannot grow by {more} bytes while a view is in use; release it first")
        if more > limit - self.length:
            raise MemoryError(f"{more} bytes more than {self.length} are too many")
        wanted = max(self.length + more, <size_t>SMALLEST_CAPACITY)
        if self.capacity <= limit // 2:
            wanted = max(wanted, 2 * self.capacity)
        self.resize(wanted)
        return 0

    cdef int resize(self, size_t capacity) except -1:
        if capacity > <size_t>PY_SSIZE_T_MAX:
            raise MemoryError(f"{capacity} bytes are too many for a buffer")
        cdef void *moved = realloc(self.base, capacity)
        if moved == NULL:
            raise MemoryError(f"no memory for a buffer of {capacity} bytes")
        self.base = <uint8_t *>moved
        self.capacity = capacity
        return 0

    def populate(self) -> None:
        """Have the system map the memory now, in one call: cheaper than one page after the other later."""
        cdef size_t start = (<size_t>self.base + PAGE_SIZE - 1) & ~<size_t>(PAGE_SIZE - 1)
        cdef size_t end = (<size_t>self.base + self.capacity) & ~<size_t>(PAGE_SIZE - 1)
        if start < end:
            madvise(<void *>start, end - start, MADV_POPULATE_WRITE)  # if it fails, pages come as ever

    @property
    def is_viewed(self) -> bool:
        """Whether a view is held, so that the memory must stay as it is."""
        return self.exports > 0

    def append_control(self, uint8_t type, uint8_t flags, uint64_t topic_id, uint64_t seq, uint64_t ts,
                       bytes data not None) -> int:
        """Append a log frame without node and tag; returns its size."""
        return self.append_log(type, flags, topic_id, seq, ts, b"", b"", data)

    def append_log(self, uint8_t type, uint8_t flags, uint64_t topic_id, uint64_t seq, uint64_t ts,
                   bytes node not None, bytes tag not None, bytes data not None) -> int:
        """Append a log frame of these parts, as they are; returns its size."""
        cdef frame_view frame
        cdef const uint8_t *unused
        cdef uint32_t unused_len
        cdef size_t size = log_frame_size(len(node), len(tag), len(data))
        if size > UINT32_MAX:
            raise ValueError(f"a frame of {size} bytes cannot be written; the largest has {UINT32_MAX}")
        for name, part in (("node", node), ("tag", tag)):
            if len(part) > UINT16_MAX:
                raise ValueError(f"a {name} of {len(part)} bytes cannot be written; the longest has {UINT16_MAX}")
        frame.type, frame.flags, frame.topic_id, frame.seq, frame.ts = type, flags, topic_id, seq, ts
        frame.node = <const uint8_t *>PyBytes_AS_STRING(node)
        frame.tag = <const uint8_t *>PyBytes_AS_STRING(tag)
        frame.data = <const uint8_t *>PyBytes_AS_STRING(data)
        frame.node_len, frame.tag_len, frame.data_len = len(node), len(tag), len(data)
        if frame_split(&frame, &unused, &unused_len, &unused, &unused_len) != 0:
            raise ValueError(f"flags {flags} promise a meta part, which {len(data)} bytes of data do not hold")
        self.room(size)
        self.length += log_frame_write(self.base + self.length, &frame, NULL, 0)
        return size

    def append_bytes(self, const uint8_t[::1] data not None) -> None:
        """Append bytes as they are."""
        cdef size_t length = data.shape[0]
        if length > 0:
            self.room(length)
            memcpy(self.base + self.length, &data[0], length)
            self.length += length

    def truncate(self, size_t length) -> None:
        """Drop everything from `length` on; views taken before show what is appended there later."""
        if length > self.length:
            raise ValueError(f"cannot truncate to {length} bytes: there are only {self.length}")
        self.length = length

    def clear(self) -> None:
        """Drop everything and give memory beyond 1 MiB back, unless a view still points to it."""
        cdef void *shrunk
        self.length = 0
        if self.capacity > KEPT_CAPACITY and self.exports == 0:
            shrunk = realloc(self.base, KEPT_CAPACITY)
            if shrunk != NULL:
                self.base = <uint8_t *>shrunk
                self.capacity = KEPT_CAPACITY

    def tobytes(self) -> bytes:
        """Return a copy of the bytes."""
        return PyBytes_FromStringAndSize(<const char *>self.base, self.length)
