# The hot half of `QueueWriter`.
#
# Owns the writer's position and the seek index of the current segment. Opens no file: `everlog.queue.writer`
# supplies the segments.

cdef enum:
    # Records per stretch without the GIL: about 0.1 ms.
    ARRAY_CHUNK = 4096


cdef extern from "Python.h":
    long PyLong_AsLongAndOverflow(object value, int *overflow) except? -1


cdef inline uint64_t timestamp_of(value) except? 0:
    """An explicit timestamp as u64, or an error that names it."""
    cdef int overflow = 0
    cdef long number
    if PyLong_CheckExact(value):
        number = PyLong_AsLongAndOverflow(value, &overflow)
        if number >= 0 and overflow == 0:
            return <uint64_t>number
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


cdef class RingWriter(OneThread):
    """The hot half of `QueueWriter`: appends into the mapped segment.

    The subclass supplies `_make_room(record_size)`, which rolls or raises, and `_on_due()`,
    which is called after an append once `_set_due` marks are passed.
    """

    cdef ring_writer ring
    cdef Mapping control
    cdef Mapping segment
    cdef bint appending         # inside ring_append_array, without the GIL
    cdef object clock_wall_ns   # None: the system's wall clock, read in C
    cdef int64_t anchor_ns      # added to the monotonic clock when `anchored`
    cdef bint anchored
    cdef uint64_t due_bytes
    cdef uint64_t due_seq
    cdef PayloadSlot kept_slot  # a view of the next payload that a builder did not let go
    cdef uint64_t kept_limit
    cdef readonly object current  # what `_enter` was told this segment is called
    cdef readonly bint partial    # entered in the middle: earlier records are not in the index


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
        self.ring.limit = offset  # no room until `_set_limit` says how much capacity allows

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

    # -- clocks and room -----------------------------------------------------------------

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
        refuse_objects(payload)
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            return self.put(kind, view.buf, view.len, timestamp_ns)
        finally:
            PyBuffer_Release(&view)

    def append(self, type_id, payload, timestamp_ns=None):
        """Append one message and return its seq. Without a timestamp the clock is read."""
        enter_hot(self)
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
                with suppress(BufferError):  # a view of it is still held: reported below
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
        ring_append(&self.ring, kind, NULL, length, stamp)
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
                            or bytes(stamps.format) not in U64_FORMATS:
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

    def append_packed(self, type_id, const uint8_t[::1] payloads not None,
                      const uint64_t[::1] ends not None, const uint64_t[::1] timestamps_ns not None,
                      const uint16_t[::1] flags=None, const uint64_t[::1] starts=None):
        """Append payloads of varying length that lie in one buffer.

        Item i is the bytes from `starts[i]` to `ends[i]`; without `starts` they lie one after the
        other. `type_id` is one for all or an array of uint16 with one for each. `flags` are the
        header flags of each message, 0 if not given. Everything is looked at before the first
        message is published. Returns the seq of the first message.
        """
        self.enter_call()
        cdef uint64_t count = ends.shape[0], done = 0, first = self.ring.next_seq, length
        cdef bint per_item = isinstance(type_id, ndarray)
        cdef const uint16_t[::1] kinds = type_id if per_item else array("H", [type_id_of(type_id)])
        cdef const uint16_t *flag_base = NULL
        cdef const uint64_t *start_base = NULL
        check_counts(count, kinds.shape[0] if per_item else count, timestamps_ns.shape[0],
                     count if flags is None else flags.shape[0], count if starts is None else starts.shape[0])
        if count == 0:
            return first
        if per_item:
            check_type_ids(kinds)
        if flags is not None:
            flag_base = &flags[0]
        if starts is not None:
            start_base = &starts[0]
        check_ends(start_base, &ends[0], count, payloads.shape[0], self.ring.segment_size - 2 * RING_HEADER_SIZE)
        try:
            while done < count:
                length = ends[done] - start_of(start_base, &ends[0], done)
                if ring_record_size(length) + self.ring.offset > self.ring.limit:
                    self.make_room(length)
                self.state = BUSY
                self.appending = True
                with nogil:
                    done = ring_append_packed(
                        &self.ring, &kinds[0], per_item, &payloads[0] if payloads.shape[0] else NULL,
                        start_base, &ends[0], done, min(count, done + <uint64_t>ARRAY_CHUNK),
                        &timestamps_ns[0], flag_base)
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


cdef tuple U64_FORMATS = (b"Q", b"L", b"<Q", b"=Q", b"=L")


cdef int refuse_objects(payload) except -1:
    if isinstance(payload, ndarray) and payload.dtype.hasobject:
        raise Unsupported(
            "an array of Python objects holds pointers, not data; give it a plain dtype")
    return 0


cdef int check_counts(uint64_t count, uint64_t kinds, uint64_t stamps, uint64_t flags,
                      uint64_t starts) except -1:
    if kinds != count or stamps != count or flags != count or starts != count:
        raise Unsupported(
            f"{count} ends, but {kinds} type ids, {stamps} timestamps, {flags} flags and {starts} "
            "starts; need one of each per payload")
    return 0


cdef int check_type_ids(const uint16_t[::1] kinds) except -1:
    cdef uint64_t at
    for at in range(<uint64_t>kinds.shape[0]):
        if kinds[at] == RING_PAD_TYPE:
            raise InvalidTypeId(f"the type id of payload {at} is 0xFFFF, which marks padding")
    return 0


cdef inline uint64_t start_of(const uint64_t *starts, const uint64_t *ends, uint64_t at) noexcept:
    if starts != NULL:
        return starts[at]
    return ends[at - 1] if at > 0 else 0


cdef int check_ends(const uint64_t *starts, const uint64_t *ends, uint64_t count, uint64_t size,
                    uint64_t largest) except -1:
    """Refuse payloads that reach beyond the buffer, end before they start or are too long."""
    cdef uint64_t at, start
    for at in range(count):
        start = start_of(starts, ends, at)
        if ends[at] < start or ends[at] > size:
            raise Unsupported(
                f"payload {at} would span bytes {start} to {ends[at]} of a buffer of {size} bytes")
        if ends[at] - start > largest:
            raise PayloadTooLarge(
                f"payload {at} has {ends[at] - start} bytes; the largest this queue can hold is "
                f"{largest} bytes")
    return 0


cdef int get_array(array, Py_buffer *view) except -1:
    if not isinstance(array, ndarray):
        array = asarray(memoryview(array))
    refuse_objects(array)
    if array.ndim == 1 and array.dtype.kind in "VMm":
        array = array.view(f"V{array.dtype.itemsize}")  # dates have no buffer format
    PyObject_GetBuffer(array, view, PyBUF_STRIDES | PyBUF_FORMAT)
    if view.ndim != 1:
        ndim = view.ndim
        PyBuffer_Release(view)
        raise Unsupported(f"need a one-dimensional array, got {ndim} dimensions")
    return 0


cdef contiguous_size(payload):
    """The bytes a payload will take, or the error that appending it would raise."""
    cdef Py_buffer view
    refuse_objects(payload)
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    size = view.len
    PyBuffer_Release(&view)
    return size
