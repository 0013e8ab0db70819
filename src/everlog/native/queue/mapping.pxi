# Shared mappings of control blocks and segments, and the kernels that work on a whole one.
#
# Owns the lifetime of mapped memory. Opens no file: the caller passes a descriptor.

cdef extern from "sys/mman.h" nogil:
    void *mmap(void *addr, size_t length, int prot, int flags, int fd, long offset)
    int munmap(void *addr, size_t length)
    int madvise(void *addr, size_t length, int advice)
    int c_msync "msync" (void *addr, size_t length, int flags)
    int c_mlock "mlock" (void *addr, size_t length)
    int PROT_READ, PROT_WRITE, MAP_SHARED, MS_SYNC, MS_ASYNC
    void *MAP_FAILED

cdef extern from *:
    """
    #include <sys/mman.h>
    #ifndef MADV_POPULATE_READ
    #define MADV_POPULATE_READ 22
    #define MADV_POPULATE_WRITE 23
    #endif
    """
    int MADV_POPULATE_READ, MADV_POPULATE_WRITE

cdef enum:
    PAGE = 4096

def crc32(data, *, int way=CRC32_BEST) -> int:
    """CRC-32 (IEEE) of a buffer.

    `way` is for tests: 0 by tables, 1 by carry-less multiplication, 2 by four of these at once, each only if
    this processor can.
    """
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return crc32_ieee(way, view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


def crc32_matches(const uint8_t[::1] records, size_t length, size_t count, *, int way=CRC32_BEST) -> int:
    """How many records, up to the first that does not, have the checksum of their header and payload.

    They lie one after the other, each with a payload of `length` bytes. `way` as above.
    """
    cdef size_t stride = ring_record_size(length)
    if <size_t>records.shape[0] < max(count, 1) * stride:
        raise ValueError(f"{count} records of {stride} bytes do not fit into {records.shape[0]}")
    return crc32_records_match(way, &records[0], stride, length, count)


@cython.final
@cython.no_gc
cdef class Mapping:
    """A shared mapping of a whole file, unmapped when the last object that uses it is gone.

    There is no explicit unmap: arrays and views keep the mapping alive, so none of them can
    ever point into nothing. It exports its bytes as a buffer, read-only if mapped read-only.
    """

    cdef uint8_t *base
    cdef readonly size_t length
    cdef readonly bint writable

    def __cinit__(self, int fd, size_t length, bint writable):
        cdef int protection = PROT_READ | PROT_WRITE if writable else PROT_READ
        cdef void *base = mmap(NULL, length, protection, MAP_SHARED, fd, 0)
        if base == MAP_FAILED:
            PyErr_SetFromErrno(OSError)
        self.base = <uint8_t *>base
        self.length = length
        self.writable = writable

    def __dealloc__(self):
        if self.base != NULL:
            munmap(self.base, self.length)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.base, self.length, not self.writable, flags)

    def __len__(self):
        return self.length

    cdef int check(self, uint64_t offset, uint64_t size, bint write) except -1:
        if offset > self.length or size > self.length - offset or (size < 9 and offset % size != 0):
            raise IndexError(f"offset {offset} of {size} bytes is not inside {self.length} bytes")
        if write and not self.writable:
            raise Unsupported("this mapping is read-only")
        return 0

    def load_u32(self, uint64_t offset) -> int:
        """Acquire load."""
        self.check(offset, 4, False)
        return word_load_u32(self.base + offset)

    def load_u64(self, uint64_t offset) -> int:
        """Acquire load."""
        self.check(offset, 8, False)
        return word_load_u64(self.base + offset)

    def store_u32(self, uint64_t offset, uint32_t value) -> None:
        """Release store."""
        self.check(offset, 4, True)
        word_store_u32(self.base + offset, value)

    def store_u64(self, uint64_t offset, uint64_t value) -> None:
        """Release store."""
        self.check(offset, 8, True)
        word_store_u64(self.base + offset, value)

    def prefault(self) -> None:
        """Touch every page now, so that no later access pays for a page fault."""
        cdef size_t offset
        cdef uint8_t touched
        cdef int advice = MADV_POPULATE_WRITE if self.writable else MADV_POPULATE_READ
        cdef volatile uint8_t *base = self.base
        with nogil:
            if madvise(self.base, self.length, advice) != 0:
                # An older kernel: touch by hand. Writing back what was read changes nothing,
                # and no one else writes to a segment that is still being prepared.
                offset = 0
                while offset < self.length:
                    if advice == MADV_POPULATE_WRITE:
                        base[offset] = base[offset]
                    else:
                        touched = base[offset]
                    offset += PAGE

    def msync(self, uint64_t offset, uint64_t length, bint wait) -> None:
        """Write back the pages that hold `offset .. offset + length`."""
        cdef uint64_t start = offset & ~<uint64_t>(PAGE - 1)
        cdef int result
        if offset > self.length or length > self.length - offset:
            raise IndexError(f"range {offset}+{length} is not inside {self.length} bytes")
        with nogil:
            result = c_msync(self.base + start, offset + length - start, MS_SYNC if wait else MS_ASYNC)
        if result != 0:
            PyErr_SetFromErrno(OSError)

    def lock(self) -> None:
        """Keep every page in memory (mlock)."""
        cdef int result
        with nogil:
            result = c_mlock(self.base, self.length)
        if result != 0:
            PyErr_SetFromErrno(OSError)


def read_head(Mapping control) -> tuple[int, int]:
    """Return the published (segment id, offset) pair."""
    cdef uint32_t segment_id
    cdef uint64_t offset
    control.check(0, 512, False)
    ring_read_head(<ring_control *>control.base, &segment_id, &offset)
    return segment_id, offset


def publish_head(Mapping control, uint32_t segment_id, uint64_t offset) -> None:
    """Publish the (segment id, offset) pair through the seqlock."""
    control.check(0, 512, True)
    ring_publish_head(<ring_control *>control.base, segment_id, offset)


def notify(Mapping control) -> None:
    """Bump the futex word and wake every sleeper."""
    control.check(0, 512, True)
    ring_notify(<ring_control *>control.base)


def wake_all(Mapping control) -> None:
    """Bump the futex word and wake every sleeper, counted or not."""
    control.check(0, 512, True)
    ring_wake_all(<ring_control *>control.base)


def pad_segment(Mapping segment, uint64_t offset) -> None:
    """Fill the segment from `offset` to its end with one padding record, if a header fits."""
    check_record_offset(segment, offset)
    if offset + RING_HEADER_SIZE <= segment.length:
        segment.check(offset, RING_HEADER_SIZE, True)
        with nogil:
            ring_pad(segment.base, segment.length, offset)


def seal_segment(Mapping segment) -> None:
    """Set SEALED: no record will ever be added to this segment."""
    segment.check(0, RING_DATA_OFFSET, True)
    ring_seal(segment.base)


cdef int check_record_offset(Mapping segment, uint64_t offset) except -1:
    if offset % 64 != 0 or offset > segment.length:
        raise IndexError(f"no record can start at offset {offset} of {segment.length} bytes")
    return 0


def scan_segment(Mapping segment, uint64_t start, *, bint verify=True) -> dict[str, int]:
    """Walk the committed records from `start`; see `ring_scan` for the meaning of the counts."""
    cdef ring_scan result
    check_record_offset(segment, start)
    with nogil:
        ring_scan_segment(segment.base, segment.length, start, verify, &result)
    return result


def find_record(Mapping segment, uint64_t start, uint64_t target, *, bint by_timestamp) -> int:
    """Return the offset of the first record at or after `target`, 0 if there is none."""
    cdef uint64_t offset
    check_record_offset(segment, start)
    with nogil:
        offset = ring_find(segment.base, segment.length, start, target, by_timestamp)
    return offset


def run_offsets(Mapping segment, uint64_t start, uint64_t count, uint64_t[::1] offsets) -> None:
    """Fill `offsets` with the start of each of `count` committed records from `start` on."""
    check_record_offset(segment, start)
    if offsets.shape[0] < <Py_ssize_t>count:
        raise IndexError(f"{offsets.shape[0]} places cannot hold {count} offsets")
    if count > 0 and ring_run_offsets(segment.base, segment.length, start, count, &offsets[0]) != count:
        raise IndexError(f"there are fewer than {count} records from offset {start} on")


def join_payloads(
    Mapping segment, const uint64_t[::1] offsets, const uint32_t[::1] lengths, uint8_t[::1] joined
) -> None:
    """Copy the payloads of the records at `offsets`, `lengths` bytes each, one behind the other."""
    cdef Py_ssize_t place, count = offsets.shape[0]
    cdef uint64_t written = 0, start
    if lengths.shape[0] != count:
        raise IndexError(f"{count} offsets have {lengths.shape[0]} lengths")
    for place in range(count):
        start = offsets[place] + RING_HEADER_SIZE
        if start > segment.length or lengths[place] > segment.length - start:
            raise IndexError(f"the record at offset {offsets[place]} is not inside {segment.length} bytes")
        if lengths[place] > <uint64_t>joined.shape[0] - written:
            raise IndexError(f"{joined.shape[0]} bytes cannot hold the payloads")
        if lengths[place]:
            memcpy(&joined[written], segment.base + start, lengths[place])
        written += lengths[place]
