# The hot half of `QueueReader`, and message views.
#
# Owns the reader's position. Opens no file: `everlog.queue.reader` supplies the segments.

cdef enum:
    # A signal that another thread received must not wait for the end of a long spin.
    SPIN_SLICE_NS = 50_000_000
    # How many messages pass between two looks at the clock, and how long is too long for that.
    LOOK_EVERY = 8
    LOOK_SLOW_NS = 100_000_000
    HEARTBEAT_INTERVAL_NS = 1_000_000_000
    # How often to look at the head: rarely enough not to take its line away from the writer.
    NOTE_HEAD_NS = 10_000_000


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class MessageView:
    """One message where it lies in the mapping; a read-only buffer over its payload.

    Holds the mapping alive: it stays valid however long it is kept.
    """

    cdef Mapping mapping
    cdef const ring_message *message
    cdef uint32_t length  # kept, so that later damage to the header can do no harm
    cdef readonly uint32_t segment_id

    def __init__(self):
        raise TypeError("message views come from a reader")

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, <uint8_t *>self.message + RING_HEADER_SIZE,
                          self.length, 1, flags)

    def __len__(self):
        return self.length

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
        return self.offset + ring_record_size(self.length)

    def __repr__(self):
        return (f"MessageView(seq={self.seq}, timestamp_ns={self.timestamp_ns}, "
                f"type_id={self.type_id}, length={len(self)})")


cdef inline MessageView view_of(Mapping mapping, const ring_message *message, uint32_t length,
                                uint32_t segment_id):
    cdef MessageView view = MessageView.__new__(MessageView)
    view.mapping = mapping
    view.message = message
    view.length = length
    view.segment_id = segment_id
    return view


def view_at(Mapping mapping, uint32_t segment_id, uint64_t offset) -> MessageView:
    """A view of the committed record at `offset`."""
    check_record_offset(mapping, offset)
    mapping.check(offset, RING_HEADER_SIZE, False)
    cdef const ring_message *message = <const ring_message *>(mapping.base + offset)
    cdef uint32_t commit = message_commit(message)
    if commit == 0 or offset + ring_record_size(commit - 1) > mapping.length:
        raise IndexError(f"no committed record stands at offset {offset}")
    return view_of(mapping, message, commit - 1, segment_id)


cdef class RingReader(OneThread):
    """The hot half of `QueueReader`: steps through the mapped segments.

    The subclass supplies `_enter_next_segment()`, `_check_heartbeat()` and `_leave_hole()`, which raises or
    stands elsewhere.
    """

    cdef ring_reader ring
    cdef ring_wait_strategy strategy
    cdef Mapping control
    cdef readonly Mapping segment
    cdef uint32_t until_look    # messages until the next look at the clock
    cdef int64_t looked_ns
    cdef int64_t asked_ns       # when `_check_heartbeat` was last called
    cdef int64_t noted_ns       # when the head was last looked at
    cdef bint own_clock         # the subclass brings a clock: ask it at every look

    def __cinit__(self, *args, **kwargs):
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

    def _stand(self, Mapping segment, uint32_t segment_id, uint64_t offset, next_seq=None) -> None:
        """Stand at `offset` of `segment`; the next message must have `next_seq`, None: any."""
        check_record_offset(segment, offset)
        self.ring.next_seq = RING_ANY_SEQ if next_seq is None else next_seq
        self.segment = segment
        self.ring.segment = segment.base
        self.ring.segment_size = segment.length
        self.ring.segment_id = segment_id
        self.ring.offset = offset
        ring_note_head(&self.ring)
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
        if now_ns - self.noted_ns >= NOTE_HEAD_NS:
            self.noted_ns = now_ns
            ring_note_head(&self.ring)
        if self.own_clock or now_ns - self.asked_ns >= HEARTBEAT_INTERVAL_NS:
            self.asked_ns = now_ns
            return self.call_back(self._check_heartbeat)
        return 0

    cdef int raise_damage(self, ring_status status) except -1:
        cdef const ring_message *message = <const ring_message *>(self.ring.segment + self.ring.offset)
        where = f"record at offset {self.ring.offset} of segment {self.ring.segment_id}"
        if status == RING_BAD_VERSION:
            raise UnsupportedVersion(
                f"{where} has message version {message.version}; this build knows 1 and 2",
                message.version)
        if status == RING_BAD_LENGTH:
            raise Corrupt(
                f"{where} claims {message_commit(message) - 1} bytes of payload, which leaves the "
                f"segment of {self.ring.segment_size} bytes")
        if status == RING_BAD_SEQ:
            raise Corrupt(
                f"{where} has seq {message.seq}, expected {self.ring.next_seq}: records are missing or repeated "
                "before it; skip_corrupt() goes on with it")
        raise Corrupt(
            f"{where} fails its checksum; skip_corrupt() steps over it")

    # -- reading -------------------------------------------------------------------------

    cdef ring_status advance(self, const ring_message **message) except? RING_EMPTY:
        """The slow half of a step: everything but a plain message."""
        cdef ring_status status = ring_step(&self.ring, message)
        while self.goes_elsewhere(status):
            status = ring_step(&self.ring, message)
        if status < 0:
            self.raise_damage(status)
        return status

    cdef bint goes_elsewhere(self, ring_status status) except -1:
        """Go on to the next segment, or out of a hole; False if the reader stays where it is."""
        if status == RING_NEXT_SEGMENT:
            self.call_back(self._enter_next_segment)
        elif status == RING_HOLE:
            self.call_back(self._leave_hole)
        else:
            return False
        return True

    def next(self):
        """Return the next message, or None if none is committed yet."""
        return take(self)

    def __iter__(self):
        return self

    def __next__(self):
        view = take(self)
        if view is None:
            raise StopIteration
        return view

    def _take_run(self, uint64_t max_count, bint verify):
        """Consume up to `max_count` messages: (mapping, segment id, start, count, stride, length, type id).

        stride is 0 if record sizes differ, length and type id are None if they differ.
        """
        cdef ring_run run
        cdef ring_status status
        self.enter_call()
        self.look_at_clock()
        while True:
            self.state = BUSY
            with nogil:
                status = ring_take_run(&self.ring, max_count, verify, &run)
            self.leave_call()
            if not self.goes_elsewhere(status):
                break
        if status < 0:
            self.raise_damage(status)
        length = None if run.length == RING_MIXED else run.length
        type_id = None if run.type_id == RING_MIXED else run.type_id
        return self.segment, self.ring.segment_id, run.start, run.count, run.stride, length, type_id

    cdef bint skip_padding(self) except -1:
        """Step over padding and into fresh segments; True if a message (or damage) is next."""
        cdef ring_status status = ring_peek(&self.ring)
        while self.goes_elsewhere(status):
            status = ring_peek(&self.ring)
        return status != RING_EMPTY

    def wait(self, timeout_s=None) -> bool:
        """Wait until there is something to read (True) or `timeout_s` has passed (False).

        The GIL is released while spinning or sleeping. None waits without limit.
        """
        self.enter_call()
        if self.skip_padding():
            return True
        cdef int64_t deadline_ns = deadline_of(timeout_s), rest_ns
        self.state = BUSY
        try:
            while True:
                rest_ns = next_slice(&self.strategy, deadline_ns)
                if rest_ns <= 0:
                    return False
                with nogil:
                    ring_wait(&self.ring, &self.strategy, rest_ns)
                if ring_peek(&self.ring) == RING_RECORD:
                    return True  # what a spinning reader is here for: nothing more to do
                PyErr_CheckSignals()
                if self.skip_padding():
                    return True
                self.look_at_clock()
        finally:
            self.leave_call()

    def _damage(self) -> str:
        """What a verifying read would find here: "", "end", "length", "version", "checksum", "seq" or "hole"."""
        cdef const ring_message *message = NULL
        cdef ring_reader probe = self.ring
        self.enter_call()
        probe.verify = True
        ring_note_head(&probe)
        return DAMAGE.get(<int>ring_step(&probe, &message), "")

    @property
    def expected_seq(self) -> int | None:
        """The seq that the next message must have; None after opening and after a seek."""
        return None if self.ring.next_seq == RING_ANY_SEQ else self.ring.next_seq

    @property
    def position(self) -> tuple[int, int]:
        """(segment id, offset) of the next message to read."""
        return self.ring.segment_id, self.ring.offset


cdef inline MessageView take(RingReader reader):
    # A function, since a method of this class would be called through its table, for each message.
    cdef const ring_message *message = NULL
    enter_hot(reader)
    # Before anything is consumed: if it fails, no message is lost with it.
    reader.until_look -= 1
    if reader.until_look == 0:
        reader.look_at_clock()
    if ring_step(&reader.ring, &message) != RING_RECORD \
            and reader.advance(&message) != RING_RECORD:
        reader.until_look = 1
        return None
    return view_of(reader.segment, message, reader.ring.length, reader.ring.segment_id)


cdef dict DAMAGE = {
    RING_BAD_LENGTH: "length", RING_BAD_VERSION: "version", RING_BAD_CHECKSUM: "checksum", RING_BAD_SEQ: "seq",
    RING_HOLE: "hole", RING_NEXT_SEGMENT: "end",
}


cdef int64_t deadline_of(timeout_s) except? -2:
    """When to give up, on the monotonic clock; -1: never."""
    if timeout_s is None:
        return -1
    if timeout_s != timeout_s:
        raise ValueError("a timeout must be a number of seconds or None, got nan")
    return ring_monotonic_ns() + <int64_t>(min(max(<double>timeout_s, 0.0), 1e9) * 1e9)


cdef int64_t next_slice(const ring_wait_strategy *strategy, int64_t deadline_ns) noexcept:
    """How long to stay in the core before signals and heartbeats are looked after."""
    cdef int64_t slice_ns = SPIN_SLICE_NS if strategy.kind == RING_BUSY_SPIN else RING_WAIT_SLICE_NS
    return slice_ns if deadline_ns < 0 else min(slice_ns, deadline_ns - ring_monotonic_ns())


cdef bint wait_for_any(list readers, timeout_s, ring_wait_strategy *strategy) except -1:
    """Sleep until one of the readers has something; the caller has called `skip_padding` on each.

    The readers stay busy throughout: neither a signal handler nor a callback may close one.
    """
    cdef size_t count = len(readers), i
    cdef int64_t deadline_ns = deadline_of(timeout_s), rest_ns
    cdef ring_reader **rings = <ring_reader **>calloc(count, sizeof(ring_reader *))
    if rings == NULL:
        raise MemoryError
    try:
        for i in range(count):
            (<RingReader>readers[i]).state = BUSY
            rings[i] = &(<RingReader>readers[i]).ring
        while True:
            rest_ns = next_slice(strategy, deadline_ns)
            if rest_ns <= 0:
                return False
            with nogil:
                ring_wait_any(rings, count, strategy, rest_ns)
            PyErr_CheckSignals()
            for reader in readers:
                if (<RingReader>reader).skip_padding():
                    return True
                (<RingReader>reader).look_at_clock()
    finally:
        for reader in readers:
            (<RingReader>reader).leave_call()
        free(rings)


def wait_any(list readers, timeout_s=None) -> bool:
    """Wait until any of the readers has something to read; the first one's strategy is used.

    If one of them cannot park (its queue is read-only here), all are polled.
    """
    cdef ring_wait_strategy strategy
    for reader in readers:
        (<RingReader?>reader).enter_call()
    for reader in readers:
        if (<RingReader>reader).skip_padding():
            return True
    strategy = (<RingReader>readers[0]).strategy
    for reader in readers:
        if strategy.kind == RING_SPIN_THEN_PARK and not (<RingReader>reader).control.writable:
            strategy = (<RingReader>reader).strategy
    return wait_for_any(readers, timeout_s, &strategy)
