# cython: language_level=3
"""What every append looks at: the hot fields of a topic, of all topics together, and of a shard of the log.

Owns no rule. Native code reads the fields without looking for them by name; the classes that give them their
meaning are `topics.topic.Topic` and `topics.storage.wal.WalShard`.
"""

cdef class Totals:
    """What an engine knows of all its topics together."""

    def __init__(self, delivery=None):
        self.delivery = delivery
        self.unforwarded = {}
        self.unsaved = {}


cdef class TopicCore(TopicWork):
    """The hot fields of a topic; see `Topic`, which sets them."""

    @property
    def last_write_ts(self):
        """The time of the last record; None if there was none."""
        return self.written_ms if self.has_written else None

    @last_write_ts.setter
    def last_write_ts(self, value):
        self.has_written = value is not None
        self.written_ms = 0 if value is None else value


cdef class Pressure:
    """What a write has to know of the pressure; see `Delivery`, which sets it."""


cdef class LogTail:
    """A file of the log that is open for writing: its descriptor, and where its last frame ends."""


cdef class LogPlace:
    """Where a shard of the log stands: the next frames go to `source_offset` of `source`, up to `limit`."""

    def advance(self, int64_t length):
        """All that is gathered is written now: `length` bytes."""
        self.source_offset += length
        self.active.end = self.source_offset
        self.frames += self.frames_gathered
        self.frames_gathered = 0
        self.writes += 1
        self.bytes_written += length
        self.buffer.clear()
        if self.source_offset >= self.mark:
            self.pass_mark(length)

    cdef bint wants_sync(self) except -1:
        """Whether somebody waits for a sync that is not on its way: let `poll` start it."""
        return self.group is None and bool(self.waiters)
