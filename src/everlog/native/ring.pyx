# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Thin shims over ring_core.c: the writer's and the reader's hot half, and message views.

Owns the rule that one object is used by one thread at a time. Opens no file and decides
nothing: `everlog.queue` does.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_SIMPLE, PyBUF_STRIDES, PyBuffer_FillInfo, PyBuffer_Release,
    PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.exc cimport PyErr_CheckSignals, PyErr_Clear
from cpython.long cimport PyLong_CheckExact
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.number cimport PyNumber_Index
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from everlog.native.mapping cimport Mapping, check_record_offset
from everlog.native.ring_core cimport *

from contextlib import suppress

from everlog.errors import (
    Closed, ConcurrentUse, Corrupt, InvalidTimestamp, InvalidTypeId, PayloadTooLarge, Unsupported,
    UnsupportedVersion,
)

ring_init()

cdef enum:
    # States of a reader or writer.
    IDLE = 0
    BUSY = 1
    CLOSED = 2
    # A signal that another thread received must not wait for the end of a long spin.
    SPIN_SLICE_NS = 50_000_000
    # How many messages pass between two looks at the clock, and how long is too long for that.
    LOOK_EVERY = 8
    LOOK_SLOW_NS = 100_000_000
    HEARTBEAT_INTERVAL_NS = 1_000_000_000
    # Records per stretch without the GIL: about 0.1 ms.
    ARRAY_CHUNK = 4096
    # A reader that is this far behind maps a window of pages at once instead of faulting.
    MAP_AHEAD_MIN = 1 << 16
    MAP_AHEAD_MAX = 1 << 22


cdef extern from "Python.h":
    long PyLong_AsLongAndOverflow(object value, int *overflow) except? -1
    unsigned long long PyLong_AsUnsignedLongLong(object value)
    void *PyErr_Occurred()


cdef inline uint64_t timestamp_of(value) except? 0:
    """An explicit timestamp as u64, or an error that names it."""
    cdef unsigned long long number
    if PyLong_CheckExact(value):
        number = PyLong_AsUnsignedLongLong(value)
        if number != <unsigned long long>-1 or PyErr_Occurred() == NULL:
            return number
        PyErr_Clear()
    return unusual_timestamp(value)


cdef uint64_t unusual_timestamp(value) except? 0:
    try:
        return <uint64_t>PyNumber_Index(value)  # a NumPy integer, say
    except (OverflowError, TypeError):
        raise InvalidTimestamp(
            f"timestamp_ns must be an integer in 0..2**64-1, got {value!r}") from None


cdef inline uint16_t type_id_of(value) except? 0:
    cdef int overflow = 0
    cdef long number = -1
    if PyLong_CheckExact(value):
        number = PyLong_AsLongAndOverflow(value, &overflow)
    if number < 0 or number >= <long>RING_PAD_TYPE:
        return unusual_type_id(value)
    return <uint16_t>number


cdef uint16_t unusual_type_id(value) except? 0:
    cdef long number = -1
    with suppress(OverflowError, TypeError):
        number = PyNumber_Index(value)  # an IntEnum or a NumPy integer, say
    if number < 0 or number >= <long>RING_PAD_TYPE:
        raise InvalidTypeId(
            f"type_id must be an integer in 0..0xFFFE (0xFFFF marks padding), got {value!r}")
    return <uint16_t>number


@cython.final
@cython.no_gc
cdef class PayloadSlot:
    """The payload under construction: a writable buffer that knows who still looks at it."""

    cdef Mapping mapping
    cdef uint8_t *data
    cdef uint64_t length
    cdef int exports

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.length, 0, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *buffer):
        self.exports -= 1


cdef class RingWriter:
    """The hot half of `QueueWriter`: appends into the mapped segment.

    The subclass supplies `_make_room(record_size)`, which rolls or raises, and `_on_due()`,
    which is called after an append once `_set_due` marks are passed.
    """

    cdef ring_writer ring
    cdef Mapping control
    cdef Mapping segment
    cdef int state
    cdef bint appending         # inside ring_append_array, without the GIL
    cdef unsigned long fork_generation
    cdef object clock_wall_ns   # None: the system's wall clock, read in C
    cdef int64_t anchor_ns      # added to the monotonic clock when `anchored`
    cdef bint anchored
    cdef uint64_t due_bytes
    cdef uint64_t due_seq
    cdef PayloadSlot kept_slot  # a view of the next payload that a builder did not let go
    cdef uint64_t kept_limit
    cdef readonly object current  # what `_enter` was told this segment is called
    cdef readonly bint partial    # entered in the middle: earlier records are not in the index

    def __cinit__(self, *args, **kwargs):
        self.state = CLOSED
        self.fork_generation = ring_fork_generation

    def __dealloc__(self):
        free(self.ring.entries)

    # -- set-up, called by the subclass ------------------------------------------------

    def _attach(self, Mapping control, Mapping segment, current, uint64_t offset,
                uint64_t next_seq, uint64_t index_stride, wall_ns, bint anchored) -> None:
        """Begin appending at `offset` of `segment`, which the caller knows as `current`."""
        control.check(0, 512, True)
        segment.check(0, RING_DATA_OFFSET, True)
        check_record_offset(segment, offset)
        cdef uint64_t capacity = (segment.length // 64) // index_stride + 1
        self.ring.entries = <ring_index_entry *>calloc(capacity, sizeof(ring_index_entry))
        if self.ring.entries == NULL:
            raise MemoryError
        self.control = control
        self.ring.control = <ring_control *>control.base
        self.ring.entry_capacity = capacity
        self.ring.entry_stride = index_stride
        self.ring.next_seq = next_seq
        self.clock_wall_ns = wall_ns
        self.anchored = anchored
        self.anchor_ns = <int64_t>ring_wall_ns() - ring_monotonic_ns()
        self.due_bytes = self.due_seq = <uint64_t>-1
        self.enter(segment, current, offset)
        self.state = IDLE

    def _roll_to(self, Mapping segment, current, uint32_t segment_id) -> None:
        """Pad and seal this segment and stand at the start of the next.

        One native call, because a signal handler may raise between any two lines of Python,
        and a roll must happen as a whole or not at all.
        """
        segment.check(0, RING_DATA_OFFSET, True)
        if self.ring.offset + RING_HEADER_SIZE <= self.ring.segment_size:
            ring_pad(self.ring.segment, self.ring.segment_size, self.ring.offset)
        ring_publish_head(self.ring.control, segment_id, RING_DATA_OFFSET)
        ring_seal(self.ring.segment)
        ring_notify(self.ring.control)
        self.enter(segment, current, RING_DATA_OFFSET)

    cdef void enter(self, Mapping segment, current, uint64_t offset):
        self.current = current
        self.partial = offset > RING_DATA_OFFSET
        self.segment = segment
        self.ring.segment = segment.base
        self.ring.segment_size = segment.length
        self.ring.offset = offset
        self.ring.entry_count = self.ring.until_entry = self.ring.records = 0
        self.ring.limit = segment.length

    def _detach(self) -> None:
        """Let go of the mappings; every later call raises Closed."""
        self.state = CLOSED
        self.ring.segment = NULL
        self.ring.control = NULL
        self.segment = None
        self.control = None
        self.kept_slot = None

    def _set_limit(self, uint64_t limit) -> None:
        """No record may end beyond `limit` in this segment until room was made."""
        self.ring.limit = min(limit, self.ring.segment_size)

    def _set_due(self, uint64_t bytes_written, uint64_t seq) -> None:
        """Call `_on_due` once this many bytes are written or this seq is reached."""
        self.due_bytes = bytes_written
        self.due_seq = seq

    def _index_state(self):
        """Return (entries, first_seq, last_seq, min_ts_ns, max_ts_ns, records, current, partial).

        The entries are the raw bytes of (seq, timestamp_ns, offset) triples. None while the
        writer's thread is appending without the GIL.
        """
        if self.appending:
            return None
        entries = PyBytes_FromStringAndSize(
            <char *>self.ring.entries, self.ring.entry_count * sizeof(ring_index_entry))
        return (entries, self.ring.first_seq, self.ring.next_seq - 1, self.ring.min_ts_ns,
                self.ring.max_ts_ns, self.ring.records, self.current, self.partial)

    # -- guards --------------------------------------------------------------------------

    cdef inline int enter_call(self) except -1:
        if self.state != IDLE or self.fork_generation != ring_fork_generation:
            refuse(self.state, self.fork_generation)
        return 0

    def _begin_exclusive(self) -> None:
        """Mark the writer busy: until `_end_exclusive` every other call raises ConcurrentUse."""
        self.enter_call()
        self.state = BUSY

    def _end_exclusive(self) -> None:
        """Undo `_begin_exclusive`."""
        self.leave_call()

    cdef inline void leave_call(self) noexcept:
        if self.state == BUSY:  # not if it was closed meanwhile
            self.state = IDLE

    cdef inline uint64_t now(self) except? 0:
        if self.clock_wall_ns is not None:
            return self.clock_wall_ns()
        if self.anchored:
            return <uint64_t>(ring_monotonic_ns() + self.anchor_ns)
        return ring_wall_ns()

    cdef inline uint64_t heartbeat_now(self) except? 0:
        # A caller who brings the timestamp should not pay for the precise clock.
        return self.now() if self.clock_wall_ns is not None else ring_wall_coarse_ns()

    cdef int make_room(self, uint64_t length) except -1:
        cdef uint64_t size = ring_record_size(length)
        if length > RING_MAX_PAYLOAD or size > self.ring.segment_size - RING_DATA_OFFSET:
            raise PayloadTooLarge(
                f"payload of {length} bytes; the largest this queue can hold is "
                f"{min(RING_MAX_PAYLOAD, self.ring.segment_size - 128)} bytes "
                f"(segment_size {self.ring.segment_size})")
        if self.kept_slot is not None:
            self.forget_kept_slot()
            if self.ring.offset + size <= self.ring.limit:
                return 0
        self.state = BUSY
        try:
            self._make_room(size)
        finally:
            self.leave_call()
        if self.ring.offset + size > self.ring.limit:
            raise SystemError("no room after a roll")
        return 0

    cdef int forget_kept_slot(self) except -1:
        """Lift the block that a kept view of the next payload has put on the writer."""
        if self.kept_slot.exports != 0:
            raise Unsupported(
                "the view that an in-place builder kept still reaches into the next record; let go "
                "of it (and of arrays made from it) before appending")
        self.kept_slot = None
        self.ring.limit = self.kept_limit
        return 0

    cdef inline int finish(self, uint64_t heartbeat_ns) except -1:
        ring_announce(&self.ring, heartbeat_ns)
        if self.ring.bytes_written >= self.due_bytes or self.ring.next_seq >= self.due_seq:
            self.state = BUSY
            try:
                self._on_due()
            finally:
                self.leave_call()
        return 0

    # -- appends -------------------------------------------------------------------------

    cdef inline int put(self, uint16_t kind, const void *data, uint64_t length,
                        uint64_t timestamp_ns) except -1:
        if not ring_append(&self.ring, kind, data, length, timestamp_ns):
            self.make_room(length)
            ring_append(&self.ring, kind, data, length, timestamp_ns)
        return 0

    cdef int put_object(self, uint16_t kind, payload, uint64_t timestamp_ns) except -1:
        cdef Py_buffer view
        if PyBytes_CheckExact(payload):
            return self.put(kind, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload), timestamp_ns)
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            return self.put(kind, view.buf, view.len, timestamp_ns)
        finally:
            PyBuffer_Release(&view)

    def append(self, type_id, payload, timestamp_ns=None):
        """Append one message and return its seq. Without a timestamp the clock is read."""
        self.enter_call()
        cdef uint16_t kind = type_id_of(type_id)
        cdef uint64_t stamp, heartbeat_ns
        if timestamp_ns is None:
            stamp = heartbeat_ns = self.now()
        else:
            stamp = timestamp_of(timestamp_ns)
            heartbeat_ns = self.heartbeat_now()
        self.put_object(kind, payload, stamp)
        cdef uint64_t seq = self.ring.next_seq - 1
        self.finish(heartbeat_ns)
        return seq

    def append_in_place(self, type_id, uint64_t length, builder, timestamp_ns=None):
        """Append a message whose payload `builder` writes straight into the mapping.

        `builder` gets a writable memoryview of `length` bytes. If it raises, or keeps the view,
        nothing is published. Returns the seq.
        """
        self.enter_call()
        cdef uint16_t kind = type_id_of(type_id)
        cdef uint64_t stamp = self.now() if timestamp_ns is None else timestamp_of(timestamp_ns)
        if (length > RING_MAX_PAYLOAD
                or self.ring.offset + ring_record_size(length) > self.ring.limit):
            self.make_room(length)
        cdef PayloadSlot slot = PayloadSlot.__new__(PayloadSlot)
        slot.mapping = self.segment
        slot.data = self.ring.segment + self.ring.offset + RING_HEADER_SIZE
        slot.length = length
        self.state = BUSY
        try:
            view = PyMemoryView_FromObject(slot)
            try:
                builder(view)
            finally:
                with suppress(BufferError):  # somebody holds on to it: told below
                    view.release()
        finally:
            self.leave_call()
            if slot.exports != 0:
                # Nothing may be written where the kept view could still change it.
                self.kept_slot, self.kept_limit, self.ring.limit = slot, self.ring.limit, 0
        if slot.exports != 0:
            raise Unsupported(
                "the builder kept a view of the payload; nothing was published. Copy what you need "
                "and let go of the view before returning")
        ring_publish(&self.ring, kind, length, stamp)
        cdef uint64_t seq = self.ring.next_seq - 1
        self.finish(self.heartbeat_now())
        return seq

    def append_many(self, type_id, payloads, timestamp_ns=None):
        """Append several payloads with one wake-up; returns the seq of the first.

        Every payload is looked at before the first is published, so one that is too large, or
        no buffer at all, changes nothing.
        """
        self.enter_call()
        cdef uint16_t kind = type_id_of(type_id)
        cdef uint64_t stamp = self.now() if timestamp_ns is None else timestamp_of(timestamp_ns)
        cdef list items = list(payloads)
        cdef uint64_t largest = self.ring.segment_size - 2 * RING_HEADER_SIZE
        for item in items:
            length = len(item) if PyBytes_CheckExact(item) else contiguous_size(item)
            if length > largest:
                self.make_room(length)  # raises PayloadTooLarge
        cdef uint64_t first = self.ring.next_seq
        if not items:
            return first
        try:
            for item in items:
                self.put_object(kind, item, stamp)
        except Exception as error:
            if hasattr(error, "appended"):
                error.appended = self.ring.next_seq - first
            raise
        finally:
            self.finish(self.heartbeat_now())
        return first

    def append_array(self, type_id, array, timestamp_ns=None):
        """Append each element of a one-dimensional array as one message.

        `timestamp_ns` is None (the clock is read once), one integer for all, or an array of
        uint64 with one value per element. Returns the seq of the first message.
        """
        self.enter_call()
        cdef uint16_t kind = type_id_of(type_id)
        cdef Py_buffer items, stamps
        cdef uint64_t stamp = 0
        cdef const uint8_t *stamp_base = <const uint8_t *>&stamp
        cdef int64_t stamp_stride = 0
        cdef bint per_item = timestamp_ns is not None and PyObject_CheckBuffer(timestamp_ns) \
            and getattr(timestamp_ns, "ndim", 0) == 1
        get_array(array, &items)
        try:
            if per_item:
                get_array(timestamp_ns, &stamps)
                try:
                    if stamps.itemsize != 8 or stamps.shape[0] != items.shape[0] \
                            or timestamp_ns.dtype.str != "<u8":
                        raise InvalidTimestamp(
                            f"timestamp_ns must be a uint64 array of {items.shape[0]} values")
                    return self.put_array(kind, &items, <const uint8_t *>stamps.buf, stamps.strides[0])
                finally:
                    PyBuffer_Release(&stamps)
            stamp = self.now() if timestamp_ns is None else timestamp_of(timestamp_ns)
            return self.put_array(kind, &items, stamp_base, stamp_stride)
        finally:
            PyBuffer_Release(&items)

    cdef put_array(self, uint16_t kind, Py_buffer *items, const uint8_t *stamps, int64_t stamp_stride):
        cdef const uint8_t *base = <const uint8_t *>items.buf
        cdef uint64_t count = items.shape[0], done = 0, chunk
        cdef uint64_t size = items.itemsize, first = self.ring.next_seq
        cdef int64_t stride = items.strides[0]
        if count == 0:
            return first
        try:
            while done < count:
                if ring_record_size(size) + self.ring.offset > self.ring.limit:
                    self.make_room(size)
                chunk = min(count - done, <uint64_t>ARRAY_CHUNK)
                self.state = BUSY
                self.appending = True
                with nogil:
                    done += ring_append_array(
                        &self.ring, kind, base + <int64_t>done * stride, size, stride, chunk,
                        stamps + <int64_t>done * stamp_stride, stamp_stride)
                self.appending = False
                self.leave_call()
                self.finish(self.heartbeat_now())
        except Exception as error:
            if hasattr(error, "appended"):
                error.appended = done
            raise
        return first

    @property
    def next_seq(self) -> int:
        """The seq the next message will get."""
        return self.ring.next_seq

    @property
    def offset(self) -> int:
        """Where in the current segment the next record will go."""
        return self.ring.offset

    @property
    def bytes_written(self) -> int:
        """Bytes of all records appended by this writer, headers included, padding excluded."""
        return self.ring.bytes_written


cdef int get_array(array, Py_buffer *view) except -1:
    PyObject_GetBuffer(array, view, PyBUF_STRIDES | PyBUF_FORMAT)
    if view.ndim != 1:
        ndim = view.ndim
        PyBuffer_Release(view)
        raise Unsupported(f"need a one-dimensional array, got {ndim} dimensions")
    if view.format != NULL and b"O" in <bytes>view.format:
        PyBuffer_Release(view)
        raise Unsupported("an array of Python objects holds pointers, not data; give it a plain dtype")
    return 0


cdef contiguous_size(payload):
    """The bytes a payload will take, or the error that appending it would raise."""
    cdef Py_buffer view
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    size = view.len
    PyBuffer_Release(&view)
    return size


cdef int refuse(int state, unsigned long fork_generation) except -1:
    """Say why this object cannot be used now."""
    if fork_generation != ring_fork_generation:
        raise Closed("this object belongs to the parent process; open a new one after fork")
    if state == CLOSED:
        raise Closed("this object is closed")
    raise ConcurrentUse(
        "another thread or a callback is using this object; give each thread its own")


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class MessageView:
    """One message where it lies in the mapping; a read-only buffer over its payload.

    Holds the mapping alive: it stays valid however long it is kept.
    """

    cdef Mapping mapping
    cdef const ring_message *message
    cdef readonly uint32_t segment_id

    def __init__(self):
        raise TypeError("message views come from a reader")

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, <uint8_t *>self.message + RING_HEADER_SIZE,
                          message_commit(self.message) - 1, 1, flags)

    def __len__(self):
        return message_commit(self.message) - 1

    @property
    def seq(self) -> int:
        """Position in the queue's total order."""
        return self.message.seq

    @property
    def timestamp_ns(self) -> int:
        """Ingest time the writer stamped, nanoseconds since the epoch."""
        return self.message.timestamp_ns

    @property
    def type_id(self) -> int:
        """What kind of message this is; the application's choice."""
        return self.message.type_id

    @property
    def flags(self) -> int:
        """Reserved flag bits of the header."""
        return self.message.flags

    @property
    def payload(self) -> memoryview:
        """The payload without a copy; `bytes(view)` copies."""
        return PyMemoryView_FromObject(self)

    @property
    def offset(self) -> int:
        """Where in its segment the record starts."""
        return <const uint8_t *>self.message - self.mapping.base

    @property
    def end_offset(self) -> int:
        """Where in its segment the record ends."""
        return self.offset + ring_record_size(message_commit(self.message) - 1)

    def __repr__(self):
        return (f"MessageView(seq={self.seq}, timestamp_ns={self.timestamp_ns}, "
                f"type_id={self.type_id}, length={len(self)})")


cdef inline MessageView view_of(Mapping mapping, const ring_message *message, uint32_t segment_id):
    cdef MessageView view = MessageView.__new__(MessageView)
    view.mapping = mapping
    view.message = message
    view.segment_id = segment_id
    return view


def view_at(Mapping mapping, uint32_t segment_id, uint64_t offset) -> MessageView:
    """A view of the committed record at `offset`."""
    check_record_offset(mapping, offset)
    mapping.check(offset, RING_HEADER_SIZE, False)
    return view_of(mapping, <const ring_message *>(mapping.base + offset), segment_id)


cdef class RingReader:
    """The hot half of `QueueReader`: steps through the mapped segments.

    The subclass supplies `_enter_next_segment()` and `_check_heartbeat()`.
    """

    cdef ring_reader ring
    cdef ring_wait_strategy strategy
    cdef Mapping control
    cdef readonly Mapping segment
    cdef int state
    cdef unsigned long fork_generation
    cdef uint32_t until_look    # messages until the next look at the clock
    cdef int64_t looked_ns
    cdef int64_t asked_ns       # when `_check_heartbeat` was last called
    cdef bint own_clock         # the subclass brings a clock: ask it at every look
    cdef uint64_t mapped_ahead
    cdef bint behind            # the last batch was full, so there is more

    def __cinit__(self, *args, **kwargs):
        self.state = CLOSED
        self.fork_generation = ring_fork_generation
        self.until_look = 1

    # -- set-up, called by the subclass ------------------------------------------------

    def _attach(self, Mapping control, bint verify, bint own_clock, int wait_kind,
                int64_t spin_ns, int64_t sleep_ns) -> None:
        """Take the control block; `_stand` must follow."""
        control.check(0, 512, False)
        if wait_kind == RING_SPIN_THEN_PARK and not control.writable:
            raise Unsupported("a reader that cannot write to the control block cannot park")
        self.control = control
        self.ring.control = <ring_control *>control.base
        self.ring.verify = verify
        self.own_clock = own_clock
        self.asked_ns = ring_monotonic_coarse_ns()
        self.strategy.kind = <ring_wait_kind>wait_kind
        self.strategy.spin_ns = spin_ns
        self.strategy.sleep_ns = sleep_ns

    def _stand(self, Mapping segment, uint32_t segment_id, uint64_t offset) -> None:
        """Stand at `offset` of `segment`."""
        check_record_offset(segment, offset)
        self.segment = segment
        self.ring.segment = segment.base
        self.ring.segment_size = segment.length
        self.ring.segment_id = segment_id
        self.ring.offset = self.mapped_ahead = offset
        if self.state == CLOSED:
            self.state = IDLE

    def _detach(self) -> None:
        """Let go of the mappings; every later call raises Closed. Views stay valid."""
        self.state = CLOSED
        self.ring.segment = NULL
        self.ring.control = NULL
        self.segment = None
        self.control = None

    # -- guards --------------------------------------------------------------------------

    cdef inline int enter_call(self) except -1:
        if self.state != IDLE or self.fork_generation != ring_fork_generation:
            refuse(self.state, self.fork_generation)
        return 0

    def _begin_exclusive(self) -> None:
        """Mark the reader busy: until `_end_exclusive` every other call raises ConcurrentUse."""
        self.enter_call()
        self.state = BUSY

    def _end_exclusive(self) -> None:
        """Undo `_begin_exclusive`."""
        self.leave_call()

    cdef inline void leave_call(self) noexcept:
        if self.state == BUSY:  # not if it was closed meanwhile
            self.state = IDLE

    cdef int call_back(self, method) except -1:
        cdef int before = self.state
        self.state = BUSY
        try:
            method()
        finally:
            if self.state == BUSY:
                self.state = before
        return 0

    cdef int look_at_clock(self) except -1:
        """Ask the subclass for a heartbeat about once a second, however slowly messages pass."""
        cdef int64_t now_ns = ring_monotonic_coarse_ns()
        self.until_look = 1 if now_ns - self.looked_ns > LOOK_SLOW_NS else LOOK_EVERY
        self.looked_ns = now_ns
        if self.own_clock or now_ns - self.asked_ns >= HEARTBEAT_INTERVAL_NS:
            self.asked_ns = now_ns
            return self.call_back(self._check_heartbeat)
        return 0

    cdef int raise_damage(self, ring_status status) except -1:
        cdef const ring_message *message = <const ring_message *>(self.ring.segment + self.ring.offset)
        where = f"record at offset {self.ring.offset} of segment {self.ring.segment_id}"
        if status == RING_BAD_VERSION:
            raise UnsupportedVersion(
                f"{where} has message version {message.version}; this build knows 1", message.version)
        if status == RING_BAD_LENGTH:
            raise Corrupt(
                f"{where} claims {message_commit(message) - 1} bytes of payload, which leaves the "
                f"segment of {self.ring.segment_size} bytes")
        raise Corrupt(
            f"{where} fails its checksum; skip_corrupt() steps over it")

    # -- reading -------------------------------------------------------------------------

    cdef ring_status advance(self, const ring_message **message) except? RING_EMPTY:
        """The slow half of a step: everything but a plain message."""
        cdef ring_status status = ring_step(&self.ring, message)
        while status == RING_NEXT_SEGMENT:
            self.call_back(self._enter_next_segment)
            status = ring_step(&self.ring, message)
        if status < 0:
            self.raise_damage(status)
        return status

    cdef inline MessageView take(self):
        cdef const ring_message *message = NULL
        self.enter_call()
        # Before anything is consumed: if it fails, no message is lost with it.
        self.until_look -= 1
        if self.until_look == 0:
            self.look_at_clock()
        if ring_step(&self.ring, &message) != RING_RECORD \
                and self.advance(&message) != RING_RECORD:
            self.until_look = 1
            return None
        return view_of(self.segment, message, self.ring.segment_id)

    def next(self):
        """Return the next message, or None if none is committed yet."""
        return self.take()

    def __iter__(self):
        return self

    def __next__(self):
        view = self.take()
        if view is None:
            raise StopIteration
        return view

    cdef void map_ahead(self) noexcept nogil:
        cdef uint64_t offset = self.ring.offset, written
        # Asking how far the writer is takes the line it writes to; only one who is behind asks.
        if not self.behind or offset < self.mapped_ahead:
            return
        written = ring_written_end(&self.ring)
        if written >= offset + MAP_AHEAD_MIN:
            self.mapped_ahead = min(written, offset + MAP_AHEAD_MAX)
            self.segment.map_ahead(offset, self.mapped_ahead)

    def _take_run(self, uint64_t max_count, bint verify):
        """Consume up to `max_count` messages: (mapping, segment id, start, count, stride)."""
        cdef ring_run run
        cdef ring_status status
        self.enter_call()
        self.look_at_clock()
        while True:
            self.state = BUSY
            with nogil:
                self.map_ahead()
                status = ring_take_run(&self.ring, max_count, verify, &run)
            self.leave_call()
            if status != RING_NEXT_SEGMENT:
                break
            self.call_back(self._enter_next_segment)
        if status < 0:
            self.raise_damage(status)
        self.behind = run.count == max_count
        return self.segment, self.ring.segment_id, run.start, run.count, run.stride

    cdef bint settle(self) except -1:
        """Step over padding and into fresh segments; True if a message (or damage) is next."""
        cdef ring_status status = ring_peek(&self.ring)
        while status == RING_NEXT_SEGMENT:
            self.call_back(self._enter_next_segment)
            status = ring_peek(&self.ring)
        return status != RING_EMPTY

    def wait(self, timeout_s=None) -> bool:
        """Wait until there is something to read (True) or `timeout_s` has passed (False).

        The GIL is released while spinning or sleeping. None waits without limit.
        """
        self.enter_call()
        if self.settle():
            return True
        return wait_for_any([self], timeout_s, &self.strategy)

    def _skip(self) -> bool:
        """Step over a damaged record whose length is valid; False if there is none to step over."""
        cdef const ring_message *message = NULL
        cdef ring_reader probe = self.ring
        cdef ring_status status
        self.enter_call()
        probe.verify = True
        status = ring_step(&probe, &message)
        if status != RING_BAD_CHECKSUM and status != RING_BAD_VERSION:
            return False
        message = <const ring_message *>(self.ring.segment + probe.offset)
        self.ring.offset = probe.offset + ring_record_size(message_commit(message) - 1)
        return True

    @property
    def position(self) -> tuple[int, int]:
        """(segment id, offset) of the next message to read."""
        return self.ring.segment_id, self.ring.offset


cdef bint wait_for_any(list readers, timeout_s, ring_wait_strategy *strategy) except -1:
    """Sleep until one of the readers has something; each has been settled by the caller.

    The readers stay busy throughout: neither a signal handler nor a callback may close one.
    """
    cdef size_t count = len(readers), i
    cdef ring_reader **rings = <ring_reader **>calloc(count, sizeof(ring_reader *))
    cdef int64_t deadline_ns = -1
    if rings == NULL:
        raise MemoryError
    if timeout_s is not None:
        deadline_ns = ring_monotonic_ns() + <int64_t>(min(max(<double>timeout_s, 0.0), 1e9) * 1e9)
    try:
        for i in range(count):
            (<RingReader>readers[i]).state = BUSY
            rings[i] = &(<RingReader>readers[i]).ring
        return wait_until(readers, rings, strategy, deadline_ns)
    finally:
        for reader in readers:
            (<RingReader>reader).leave_call()
        free(rings)


cdef bint wait_until(list readers, ring_reader **rings, ring_wait_strategy *strategy,
                     int64_t deadline_ns) except -1:
    cdef int64_t slice_ns = SPIN_SLICE_NS if strategy.kind == RING_BUSY_SPIN else RING_WAIT_SLICE_NS
    cdef int64_t rest_ns = slice_ns
    cdef size_t count = len(readers)
    while True:
        if deadline_ns >= 0:
            rest_ns = min(slice_ns, deadline_ns - ring_monotonic_ns())
            if rest_ns <= 0:
                return False
        with nogil:
            ring_wait_any(rings, count, strategy, rest_ns)
        PyErr_CheckSignals()
        for reader in readers:
            if (<RingReader>reader).settle():
                return True
            (<RingReader>reader).look_at_clock()


def wait_any(list readers, timeout_s=None) -> bool:
    """Wait until any of the readers has something to read; the first one's strategy is used.

    If one of them cannot park (its queue is read-only here), all are polled.
    """
    cdef ring_wait_strategy strategy
    for reader in readers:
        (<RingReader?>reader).enter_call()
    for reader in readers:
        if (<RingReader>reader).settle():
            return True
    strategy = (<RingReader>readers[0]).strategy
    for reader in readers:
        if strategy.kind == RING_SPIN_THEN_PARK and not (<RingReader>reader).control.writable:
            strategy = (<RingReader>reader).strategy
    return wait_for_any(readers, timeout_s, &strategy)
