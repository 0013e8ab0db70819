# cython: language_level=3, boundscheck=False, wraparound=False
"""What has just come into a topic, from one hand to all who wait for it at the same place.

Owns the cursor of a reader in a topic, and the walk along a row of readers: whoever is at ease gets the bytes
that were made once for all, straight to the kernel, and its cursor moves. It stops at everybody else, whose
turn is decided in Python; nobody is called from here but the clock. Knows no topic and no text.
"""

from cpython.bytes cimport PyBytes_GET_SIZE
from libc.stdint cimport uint64_t

from everlog.native.outlet cimport Outlet


cdef enum:
    # The clock is looked at once for so many readers.
    READERS_PER_LOOK = 8


cdef class Place:
    """How far one reader is in one topic."""

    cdef public str name
    cdef public bytes topic      # the name as JSON
    cdef public uint64_t seq
    cdef public uint64_t epoch
    cdef public uint64_t head_seq
    cdef public object held      # a batch that waits for its commit; nothing else is read meanwhile
    cdef public bint is_first    # nothing of the topic was sent on this connection yet
    cdef public bint is_live
    cdef public bint was_live
    cdef public bint is_gone
    cdef public bint skips       # its reader was too slow for too long
    cdef public int burst

    def __init__(self, str name not None, bytes topic not None, uint64_t seq, uint64_t epoch,
                 uint64_t head_seq):
        self.name = name
        self.topic = topic
        self.seq = seq
        self.epoch = epoch
        self.head_seq = head_seq
        self.is_first = True


cdef class LiveReader:
    """Whoever follows topics.

    `at_ease` is the place of a reader that wants what everybody gets: it follows this topic only, has all of
    it so far, and nothing else is due. It is None otherwise, and whenever that is in doubt.
    """

    cdef public Place at_ease
    cdef public Outlet outlet
    cdef public object wishes
    cdef public double output_s  # when it was last sent something


cdef class Row:
    """The readers of a topic that are still to be told of a change, in their order."""

    cdef readonly str name
    cdef readonly Py_ssize_t sent_bytes   # of the bytes that the last reader did not get whole
    cdef tuple readers
    cdef Py_ssize_t at

    def __init__(self, str name not None, readers):
        self.name = name
        self.readers = tuple(readers)

    def peek(self):
        """Whose turn it is; None at the end."""
        return self.readers[self.at] if self.at < len(self.readers) else None

    def step(self):
        """Pass by whose turn it is."""
        self.at += 1

    @property
    def position(self):
        """How many had their turn."""
        return self.at

    def pass_on(self, bytes data not None, LiveReader first not None, uint64_t to_seq, uint64_t head_seq,
                double now_s, now_ns, uint64_t end_ns):
        """Send the same to `first` and all that come next in the row, if they are at ease at its place.

        Readers of one class with equal wishes get the same. Returns None when it is the turn of somebody
        else, or the time is over. A reader that the kernel did not take all for is returned: its place has
        moved, `sent_bytes` are out and the rest is for its owner.
        """
        cdef LiveReader reader
        cdef Place place = first.at_ease
        if place is None:
            return None
        cdef uint64_t from_seq = place.seq
        cdef uint64_t epoch = place.epoch
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef Py_ssize_t end = len(self.readers)
        cdef Py_ssize_t sent
        cdef int left = READERS_PER_LOOK
        kind, wishes = type(first), first.wishes
        while self.at < end:
            candidate = self.readers[self.at]
            if type(candidate) is not kind:
                return None
            reader = <LiveReader>candidate
            place = reader.at_ease
            if place is None or place.seq != from_seq or place.epoch != epoch or not is_ready(reader):
                return None
            # One that was in the row of this topic may follow another one by now. The same objects, once
            # found equal, are found the same sooner next time.
            if place.name is not self.name:
                if place.name != self.name:
                    return None
                place.name = self.name
            if reader.wishes is not wishes:
                if reader.wishes != wishes:
                    return None
                reader.wishes = wishes
            self.at += 1
            place.seq = to_seq
            place.head_seq = head_seq
            reader.output_s = now_s
            sent = reader.outlet.offer(data)
            if sent != size:
                self.sent_bytes = sent
                return reader
            left -= 1
            if left == 0:
                left = READERS_PER_LOOK
                if <uint64_t>now_ns() >= end_ns:
                    return None
        return None


cdef bint is_ready(LiveReader reader):
    """Whether bytes for this reader can go to the kernel at once."""
    cdef Outlet outlet = reader.outlet
    return outlet is not None and not outlet.is_write_paused and not outlet.has_rest and outlet.number >= 0
