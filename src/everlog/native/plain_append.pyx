# cython: language_level=3, boundscheck=False, wraparound=False, auto_pickle=False
"""The short way of an append: from the bytes of a request to a gathered batch, and from its commit to the
bytes of the answer.

Owns which appends go this way: those to a topic that is there, in the usual shape, without anything that the
routes would have to decide. All others are left to the routes, with nothing changed; so nothing is refused
here. Knows the fields of topics, log and server that every append needs; the rest by their attributes.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from libc.string cimport memcmp

from everlog.native.append_answer cimport render_body, render_response
from everlog.native.commits cimport BatchEntry, ShardLog
from everlog.native.frames cimport FRAME_DURABLE
from everlog.native.http_request cimport AppendHead, HeadLimits, read_append_head
from everlog.native.outlet cimport Outlet
from everlog.native.record_batch cimport RecordBatch
from everlog.native.topic_core cimport LogPlace, Pressure, TopicCore
from everlog.native.topic_log cimport TopicLog

import time


cdef extern from "<time.h>" nogil:
    ctypedef int clockid_t
    cdef struct timespec:
        int64_t tv_sec
        int64_t tv_nsec
    clockid_t CLOCK_MONOTONIC
    clockid_t CLOCK_REALTIME
    int clock_gettime(clockid_t clock, timespec *now)


cdef enum:
    # Paths that are remembered: how many, and how long each may be.
    PATHS_MAX = 4096
    PATH_BYTES_MAX = 512
    NS_PER_MS = 1000000
    NS_PER_S = 1000000000
    # The state of a connection between two requests; a smaller one is that of a new connection.
    IDLE = 1


cdef class Target:
    """What the path of an append stands for, with what is asked of its topic for every append.

    A topic keeps its log and its shard. Its class and limits hold as long as its config is the same object.
    """

    cdef bytes path
    cdef str name              # of the topic; None if the path means something else
    cdef TopicCore topic       # as of the last look
    cdef object config
    cdef TopicLog log
    cdef ShardLog shard
    cdef bint is_disk, is_fsync
    cdef bint needs_more       # a batch for it needs more than its frames


cdef class ServerState:
    """What the short way asks of a server; see `HttpServer`, which sets it."""

    cdef public object short_way
    cdef public object now_s
    cdef public bytes ok_json_head
    cdef public Py_ssize_t bodies_bytes    # that are counted and held
    cdef public bint is_draining


cdef class AppState:
    """What the short way asks of an application; see `App`, which sets it."""

    cdef public object engine
    cdef public bint is_draining
    cdef public bint turn_is_due


cdef class PlainConnection(Outlet):
    """What the short way knows of a connection; the rest of it is in the subclass.

    That has `long_way(data)` for input that does not go the short way, and `answer(append, response)` for a
    response that others wait for, or that something is done after.
    """

    cdef public ServerState server
    cdef public int _state
    cdef public list _exchanges           # unanswered
    cdef public bytes _unread             # input that has to wait
    cdef public bint _is_read_paused
    cdef public double _since_s           # when the last request was answered
    cdef Target target                    # of its last plain append; most go to one topic

    def data_received(self, data):
        """Bytes from the client."""
        cdef bint is_taken = False
        if self._state <= IDLE and not (self._exchanges or self._unread or self.is_write_paused):
            way = self.server.short_way
            if way is not None:
                # The long way sets the state as well.
                self._state = IDLE
                if type(way) is PlainAppends:
                    is_taken = (<PlainAppends>way).take_request(self, self._exchanges, data)
                else:
                    is_taken = way.take(self, self._exchanges, data)
        if not is_taken:
            self.long_way(data)

    cdef int reply(self, PlainAppend append, bytes response) except -1:
        """Send the response to an append in its place."""
        cdef list exchanges = self._exchanges
        cdef ServerState server = self.server
        if (
            len(exchanges) == 1
            and exchanges[0] is append
            and self._state == IDLE
            and not (append.closes or append.counted_bytes or self._is_read_paused or server.is_draining)
        ):
            exchanges.clear()
            self.put(response)
            self._since_s = server.now_s()
        else:
            self.answer(append, response)
        return 0


cdef uint64_t clock_ns(clockid_t clock) noexcept:
    """One of the system's clocks; reading it cannot fail."""
    cdef timespec now
    clock_gettime(clock, &now)
    return <uint64_t>now.tv_sec * NS_PER_S + <uint64_t>now.tv_nsec


cdef class PlainAppend(BatchEntry):
    """One append on the short way: a batch that is gathered, and an exchange of its connection.

    What a connection asks of an exchange: see `Exchange`.
    """

    cdef readonly bytes data           # the request
    cdef readonly uint64_t started_ns
    cdef readonly PlainConnection connection    # None when the client has gone
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
        if self.topic.order is None:
            self.show()
        else:
            self.topic.order.met(self)
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

    cdef object owner, wall_ns, now_ns, frame_ceiling
    cdef AppState app
    cdef ServerState server
    cdef dict topics           # by name
    cdef list shards
    cdef Pressure delivery
    cdef object disk, fsync, memory
    cdef dict targets          # by path
    cdef HeadLimits limits
    cdef Py_ssize_t uncounted_bytes, packed_bytes
    cdef int64_t ceiling_low
    cdef Py_ssize_t queue_max, control_room
    cdef uint32_t max_nesting
    # Whether the two clocks are the system's, which are read without an object for each time.
    cdef bint is_system_time, is_system_wall

    def __init__(self, owner, AppState app not None, ServerState server not None, core, *, wall_ns, classes,
                 frame_ceiling, tuple limits, Py_ssize_t uncounted_bytes, Py_ssize_t packed_bytes, int64_t ceiling_low,
                 Py_ssize_t queue_max, Py_ssize_t control_room, uint32_t max_nesting):
        self.owner, self.app, self.server = owner, app, server
        self.topics, self.shards, self.delivery = core.topics, core.shards, core.delivery
        self.wall_ns, self.now_ns, self.frame_ceiling = wall_ns, app.now_ns, frame_ceiling
        self.disk, self.fsync, self.memory = classes.DISK, classes.FSYNC, classes.MEMORY
        self.targets = {}
        self.limits.max_target_bytes, self.limits.max_header_bytes = limits[0], limits[1]
        self.limits.max_headers, self.limits.max_body_bytes = limits[2], limits[3]
        self.uncounted_bytes, self.packed_bytes = uncounted_bytes, packed_bytes
        self.ceiling_low, self.queue_max, self.control_room = ceiling_low, queue_max, control_room
        self.max_nesting = max_nesting
        self.is_system_time = self.now_ns is time.monotonic_ns
        self.is_system_wall = wall_ns is time.time_ns

    cdef uint64_t time_ns(self) except? 0:
        """The time in which answers are measured."""
        return clock_ns(CLOCK_MONOTONIC) if self.is_system_time else self.now_ns()

    cdef uint64_t wall_ms(self) except? 0:
        """The time of day."""
        return (clock_ns(CLOCK_REALTIME) if self.is_system_wall else <uint64_t>self.wall_ns()) // NS_PER_MS

    def take(self, PlainConnection connection not None, list exchanges not None, bytes data not None):
        """Handle what came in on an idle connection; False if it has to go the long way."""
        return self.take_request(connection, exchanges, data)

    cdef bint take_request(self, PlainConnection connection, list exchanges, bytes data) except -1:
        """See `take`."""
        cdef AppendHead head
        cdef RecordBatch batch
        cdef PlainAppend append
        cdef uint64_t started_ns
        if not read_append_head(data, &self.limits, &head):
            return False
        cdef Target target = connection.target
        cdef const char *path = PyBytes_AS_STRING(data) + head.path_start
        cdef Py_ssize_t path_bytes = head.path_end - head.path_start
        if (
            target is None
            or PyBytes_GET_SIZE(target.path) != path_bytes
            or memcmp(PyBytes_AS_STRING(target.path), path, path_bytes) != 0
        ):
            target = self.find(PyBytes_FromStringAndSize(path, path_bytes))
            if target is None:
                return False
            connection.target = target
        cdef AppState app = self.app
        if not self.look(target) or app.is_draining or app.engine is None:
            return False
        started_ns = self.time_ns()
        batch = RecordBatch.of_body(data, <const uint8_t *>PyBytes_AS_STRING(data) + head.body_start,
                                    head.body_bytes, self.max_nesting)
        if batch is None:
            return False
        append = PlainAppend.__new__(PlainAppend)
        append.way, append.data, append.started_ns = self, data, started_ns
        append.connection = connection
        if head.body_bytes > self.uncounted_bytes:
            return self.take_counted(append, target, batch, exchanges, head.body_bytes)
        if not self.gather(append, target, batch, exchanges):
            return False
        if not app.turn_is_due:
            app.write_soon()
        return True

    cdef bint take_counted(self, PlainAppend append, Target target, RecordBatch batch, list exchanges,
                           Py_ssize_t body_bytes) except -1:
        """As the end of `take`, for a body that the server counts as long as it is held."""
        cdef ServerState server = self.server
        if server.bodies_bytes + body_bytes > server.limits.max_bodies_bytes:
            return False
        server.bodies_bytes += body_bytes
        append.counted_bytes = body_bytes
        if not self.gather(append, target, batch, exchanges):
            server.bodies_bytes -= body_bytes
            return False
        self.app.write_soon()
        return True

    cdef Target find(self, bytes path):
        """What is meant by a path; None if that is not worth keeping."""
        cdef Target target = self.targets.get(path)
        if target is None and PyBytes_GET_SIZE(path) <= PATH_BYTES_MAX:
            if len(self.targets) >= PATHS_MAX:
                self.targets.clear()
            target = Target.__new__(Target)
            target.path = path
            target.name = self.owner.topic_name(path)
            self.targets[path] = target
        return target

    cdef bint look(self, Target target) except -1:
        """Bring a target up to date; False if there is no such topic."""
        cdef TopicCore topic = None if target.name is None else self.topics.get(target.name)
        if topic is None:
            # Not even a topic that is gone may be kept alive by its path.
            target.topic = target.config = target.log = target.shard = None
            return False
        config = topic.config
        if topic is target.topic and config is target.config:
            return True
        durability = config.durability
        target.topic, target.config = topic, config
        target.is_disk, target.is_fsync = durability is self.disk, durability is self.fsync
        target.needs_more = (
            not self.shards
            or not (target.is_disk or target.is_fsync or durability is self.memory)
            or bool(config.ttl_ms or config.cap_records or config.cap_bytes)
        )
        if not target.needs_more:
            target.log, target.shard = topic.log, self.shards[topic.shard]
        return True

    cdef bint gather(self, PlainAppend append, Target target, RecordBatch batch, list exchanges) except -1:
        """Append the batch and give its answer a place among the exchanges; False if nothing was done."""
        cdef TopicCore topic = target.topic
        if self.delivery.is_refusing:
            return False
        append.is_fsync = target.is_fsync
        append.topic = topic
        cdef uint64_t now_ms = self.wall_ms()
        if (
            not target.needs_more
            and not topic.keys
            and not topic.caps_due
            and topic.floor_commit is None
            and self.frame(append, target, batch, now_ms)
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

    cdef bint frame(self, PlainAppend append, Target target, RecordBatch batch, uint64_t now_ms) except -1:
        """Frame a batch that needs nothing but its frames; False, with nothing done, if it needs more."""
        cdef TopicCore topic = target.topic
        cdef TopicLog log = target.log
        cdef uint64_t last_seq = log.index.next_seq + batch.count - 1
        cdef uint64_t first_seq = log.index.next_seq
        cdef uint64_t ts = max(now_ms, log.index.last_ts, topic.restored_ts)
        cdef uint64_t size
        cdef size_t mark
        cdef bint needs_sync = append.is_fsync or topic.pending_syncs != 0
        cdef bint needs_ceiling = False
        cdef object ceiling = None
        cdef ShardLog shard = target.shard
        cdef LogPlace wal = shard.shard
        if target.is_disk:
            needs_ceiling = topic.ceiling_logged - <int64_t>last_seq < self.ceiling_low
            needs_sync = needs_sync or <int64_t>last_seq > topic.ceiling_durable
        if wal.read_only is not None or shard.depth >= self.queue_max:
            return False
        if not shard.has_room(batch.frame_bytes + self.control_room):
            return False
        mark = shard.buffer.length
        if needs_ceiling:
            ceiling = self.frame_ceiling(shard, topic, last_seq, ts)
        try:
            size = log.append_batch(shard.buffer, wal.source, wal.source_offset, batch, ts,
                                    FRAME_DURABLE if append.is_fsync else 0, False)
        except BaseException:
            shard.buffer.length = mark
            if ceiling is not None:
                ceiling.withdraw()
            raise
        if ceiling is not None:
            # Before the batch: what fails is taken back in reverse.
            shard.take(ceiling, 1)
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
        waited_ns = self.time_ns() - append.started_ns
        if append.is_fsync:
            synced_ns = waited_ns
        if self.delivery.is_throttling:
            more = self.app.throttle_field(synced_ns / 1e6)
        body = render_body(append.topic.name, append.first_seq, append.last_seq, waited_ns, synced_ns, more)
        cdef PlainConnection connection = append.connection
        cdef ServerState server = self.server
        if server.is_draining or len(body) >= self.packed_bytes:
            self.owner.answer_late(append, body, None)
        else:
            append.connection = None
            connection.reply(append, render_response(server.ok_json_head, body))
        return 0
