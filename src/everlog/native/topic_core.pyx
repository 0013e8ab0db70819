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


cdef class LogPlace:
    """Where a shard of the log stands: the next frames go to `source_offset` of `source`, up to `limit`."""
