# cython: language_level=3, boundscheck=False, wraparound=False
"""The short way of an append: from the bytes of a request to a gathered batch, and from its commit to the
bytes of the answer.

Owns which appends go this way: those to a topic that is there, in the usual shape, without anything that the
routes would have to decide. All others are left to the routes, with nothing changed; so nothing is refused
here. Knows connections, topics and the log by their attributes only.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from everlog.native.append_answer cimport render_body, render_response
from everlog.native.commits cimport BatchEntry, ShardLog
from everlog.native.frames cimport FRAME_DURABLE
from everlog.native.http_request cimport AppendHead, HeadLimits, read_append_head
from everlog.native.record_batch cimport RecordBatch
from everlog.native.topic_log cimport TopicLog


cdef enum:
    # Paths that are remembered: how many, and how long each may be.
    PATHS_MAX = 4096
    PATH_BYTES_MAX = 512
    NS_PER_MS = 1000000


cdef class PlainAppend(BatchEntry):
    """One append on the short way: a batch that is gathered, and an exchange of its connection.

    What a connection asks of an exchange: see `Exchange`.
    """

    cdef readonly bytes data           # the request
    cdef readonly uint64_t started_ns
    cdef readonly object connection    # None when the client has gone
    cdef readonly object channel       # never anything: this does not turn into a stream
    cdef public object held
    cdef public bint closes
    cdef public Py_ssize_t counted_bytes
    cdef PlainAppends way
    cdef bint is_fsync

    @property
    def wants_word(self):
        """Nobody has to be told if the client has gone."""
        return False

    @property
    def offers_upgrade(self):
        """An append is nothing else."""
        return False

    def gone(self):
        """The client has gone: the batch stays, but nobody is told of it."""
        self.connection = None
        return None

    def __call__(self, commit):
        """The batch was gathered by the engine itself, and this is its commit."""
        self.tell(commit.error)

    cdef int meet(self) except -1:
        order = self.topic.order
        if order is None:
            self.show()
        else:
            order.met(self)
        return 0

    cdef int tell(self, object error) except -1:
        if self.connection is None:
            return 0
        # Whoever finishes the commit has others to tell and must not hear of what goes wrong with this one.
        try:
            self.way.answer(self, error)
        except Exception as failure:
            if self.connection is not None:
                self.way.owner.answer_late(self, b"", failure)
        return 0


cdef class PlainAppends:
    """The short way to one engine. `owner` is asked for what is not known here:

    `topic_name(path)`, `append(topic, batch, now_ms)` for batches that need more than their frames, and
    `answer_late(append, body, error)` for answers that are not plain.
    """

    cdef object owner, app, server, topics, shards, delivery, wall_ns, now_ns
    cdef object disk, fsync, memory
    cdef dict names
    cdef HeadLimits limits
    cdef Py_ssize_t uncounted_bytes, packed_bytes
    cdef int64_t ceiling_low
    cdef Py_ssize_t queue_max, control_room
    cdef uint32_t max_nesting

    def __init__(self, owner, app, server, core, *, wall_ns, classes, tuple limits, Py_ssize_t uncounted_bytes,
                 Py_ssize_t packed_bytes, int64_t ceiling_low, Py_ssize_t queue_max, Py_ssize_t control_room,
                 uint32_t max_nesting):
        self.owner, self.app, self.server = owner, app, server
        self.topics, self.shards, self.delivery = core.topics, core.shards, core.delivery
        self.wall_ns, self.now_ns = wall_ns, app.now_ns
        self.disk, self.fsync, self.memory = classes.DISK, classes.FSYNC, classes.MEMORY
        self.names = {}
        self.limits.max_target_bytes, self.limits.max_header_bytes = limits[0], limits[1]
        self.limits.max_headers, self.limits.max_body_bytes = limits[2], limits[3]
        self.uncounted_bytes, self.packed_bytes = uncounted_bytes, packed_bytes
        self.ceiling_low, self.queue_max, self.control_room = ceiling_low, queue_max, control_room
        self.max_nesting = max_nesting

    def take(self, connection, list exchanges not None, bytes data not None):
        """Handle what came in on an idle connection; False if it has to go the long way."""
        cdef AppendHead head
        cdef RecordBatch batch
        cdef PlainAppend append
        cdef uint64_t started_ns
        if not read_append_head(data, &self.limits, &head):
            return False
        topic = self.find(PyBytes_FromStringAndSize(PyBytes_AS_STRING(data) + head.path_start,
                                                    head.path_end - head.path_start))
        app = self.app
        if topic is None or app.is_draining or app.engine is None:
            return False
        started_ns = self.now_ns()
        batch = RecordBatch.of_body(data, <const uint8_t *>PyBytes_AS_STRING(data) + head.body_start,
                                    head.body_bytes, self.max_nesting)
        if batch is None:
            return False
        append = PlainAppend.__new__(PlainAppend)
        append.way, append.data, append.started_ns = self, data, started_ns
        append.connection = connection
        if head.body_bytes > self.uncounted_bytes:
            return self.take_counted(append, topic, batch, exchanges, head.body_bytes)
        if not self.gather(append, topic, batch, exchanges):
            return False
        if not app.turn_is_due:
            app.turn_soon()
        return True

    cdef bint take_counted(self, PlainAppend append, topic, RecordBatch batch, list exchanges,
                           Py_ssize_t body_bytes) except -1:
        """As the end of `take`, for a body that the server counts as long as it is held."""
        server = self.server
        if server.bodies_bytes + body_bytes > server.limits.max_bodies_bytes:
            return False
        server.bodies_bytes += body_bytes
        append.counted_bytes = body_bytes
        if not self.gather(append, topic, batch, exchanges):
            server.bodies_bytes -= body_bytes
            return False
        self.app.turn_soon()
        return True

    cdef object find(self, bytes path):
        """The topic that is meant by the path of an append; None if there is none, or it is another path."""
        name = self.names.get(path, self)
        if name is self:
            if len(path) > PATH_BYTES_MAX:
                return None
            if len(self.names) >= PATHS_MAX:
                self.names.clear()
            name = self.names[path] = self.owner.topic_name(path)
        return None if name is None else self.topics.get(name)

    cdef bint gather(self, PlainAppend append, topic, RecordBatch batch, list exchanges) except -1:
        """Append the batch and give its answer a place among the exchanges; False if nothing was done."""
        config = topic.config
        durability = config.durability
        delivery = self.delivery
        if delivery.is_refusing:
            return False
        append.is_fsync = durability is self.fsync
        append.topic = topic
        cdef uint64_t now_ms = <uint64_t>self.wall_ns() // NS_PER_MS
        if (
            self.shards
            and (durability is self.disk or durability is self.memory or append.is_fsync)
            and not (topic.keys or config.ttl_ms or config.cap_records or config.cap_bytes)
            and not topic.caps_due
            and topic.floor_commit is None
            and self.frame(append, topic, batch, now_ms, durability)
        ):
            exchanges.append(append)
            return True
        appended = self.owner.append(topic, batch, now_ms)
        if appended is None:
            return False
        append.first_seq, append.last_seq = appended.first_seq, appended.last_seq
        exchanges.append(append)
        appended.commit.on_done(append)
        return True

    cdef bint frame(self, PlainAppend append, topic, RecordBatch batch, uint64_t now_ms,
                    durability) except -1:
        """Frame a batch that needs nothing but its frames; False, with nothing done, if it needs more."""
        cdef TopicLog log = topic.log
        cdef uint64_t last_seq = log.index.next_seq + batch.count - 1
        cdef uint64_t first_seq = log.index.next_seq
        cdef uint64_t ts = max(now_ms, log.index.last_ts, <uint64_t>topic.restored_ts)
        cdef uint64_t size
        cdef bint needs_sync = append.is_fsync or topic.pending_syncs
        cdef ShardLog shard = self.shards[topic.shard]
        wal = shard.shard
        if durability is self.disk:
            if <int64_t>topic.ceiling_logged - <int64_t>last_seq < self.ceiling_low:
                return False
            needs_sync = needs_sync or last_seq > <uint64_t>topic.ceiling_durable
        if wal.read_only is not None or shard.depth >= self.queue_max:
            return False
        if not shard.has_room(batch.frame_bytes + self.control_room):
            return False
        size = log.append_batch(shard.buffer, wal.source, wal.source_offset, batch, ts,
                                FRAME_DURABLE if append.is_fsync else 0, False)
        append.begin(topic, first_seq, batch.count, size, ts, wal)
        topic.logged_seq = last_seq
        if needs_sync:
            append.wait_for_sync(True)
        shard.take(append, batch.count)
        return True

    cdef int answer(self, PlainAppend append, error) except -1:
        """Send the answer, or let the owner do it if anything about it is unusual."""
        cdef bytes body, more = b""
        cdef uint64_t waited_ns, synced_ns = 0
        if error is not None:
            self.owner.answer_late(append, b"", error)
            return 0
        waited_ns = <uint64_t>self.now_ns() - append.started_ns
        if append.is_fsync:
            synced_ns = waited_ns
        if self.delivery.is_throttling:
            more = self.app.throttle_field(synced_ns / 1e6)
        body = render_body(append.topic.name, append.first_seq, append.last_seq, waited_ns, synced_ns, more)
        server, connection = self.server, append.connection
        if server.is_draining or len(body) >= self.packed_bytes:
            self.owner.answer_late(append, body, None)
        else:
            append.connection = None
            connection.answer(append, render_response(server.ok_json_head, body))
        return 0
