# cython: language_level=3
"""When an operation is kept: commits, the batches of records that wait for one, and the row they wait in.

Owns who waits for a commit, the moment when the records of a batch become visible in their topic or are taken
back, and the order: an entry is committed when its bytes are written, or synced if it asked for that, and
never before an earlier one of its topic. Knows of topics and of the shards of the log what `topic_core` says,
the rest by their attributes; writes no frame. No locks: one thread owns all of it.
"""

from libc.stdint cimport int64_t

from everlog.native.frames cimport FrameBuffer
from everlog.native.topic_core cimport LogPlace, TopicCore, Totals

from collections import deque

from everlog.errors import StorageFailed


cdef class Commit:
    """The pending promise of one operation; `error` tells why it was not kept."""

    def on_done(self, callback):
        """Call back once done; at once if it already is."""
        if self.done:
            callback(self)
        elif self.callbacks is None:
            self.callbacks = [callback]
        else:
            self.callbacks.append(callback)

    def finish(self, error=None):
        """Mark done, with the reason if it failed; a second call changes nothing."""
        cdef list callbacks = self.callbacks
        if self.done:
            return
        self.done = True
        self.error = error
        if callbacks is not None:
            self.callbacks = None
            for callback in callbacks:
                callback(self)


cdef class BatchEntry:
    """A batch of records; until it is written its frames are in the buffer of `shard` (None: in memory)."""

    def __init__(self, TopicCore topic not None, uint64_t first_seq, uint64_t count, uint64_t size, uint64_t ts,
                 LogPlace shard, Commit commit=None):
        self.commit = Commit.__new__(Commit) if commit is None else commit
        self.begin(topic, first_seq, count, size, ts, shard)

    cdef int begin(self, TopicCore topic, uint64_t first_seq, uint64_t count, uint64_t size, uint64_t ts,
                   LogPlace shard) except -1:
        """The batch is framed: it is pending in its topic."""
        self.topic = topic
        self.first_seq = first_seq
        self.last_seq = first_seq + count - 1
        self.count = count
        self.bytes = size
        self.ts = ts
        self.floor_before = 1
        self.shard = shard
        topic.pending_count += count
        topic.pending_bytes += size
        topic.totals.bytes += size
        order = topic.order
        if order is not None:
            order.join(self)
        return 0

    def wait_for_sync(self, bint needed):
        """Ask for a sync; later batches of the topic then wait as well, so that order is kept."""
        if needed and not self.needs_sync:
            self.needs_sync = True
            self.topic.pending_syncs += 1

    def take_plan(self, plan):
        """Evict this when the batch becomes visible; until then later batches count it as gone."""
        self.plan = plan
        self.floor_before = self.topic.planned_floor
        self.topic.planned_floor = plan.floor

    def committed(self):
        """The condition is met: the records can be read, once those before them can."""
        order = self.topic.order
        if order is None:
            self.publish()
        else:
            order.met(self)

    def publish(self):
        """Make the records readable and evict what they push out."""
        self.show()

    cdef int meet(self) except -1:
        """See `committed`; for who can do without looking for methods of a subclass."""
        self.committed()
        return 0

    cdef int show(self) except -1:
        """See `publish`."""
        cdef TopicCore topic = self.topic
        cdef Totals totals = topic.totals
        plan = self.plan
        self.leave_pending()
        topic.visible = self.last_seq
        topic.has_written, topic.written_ms = True, self.ts
        topic.snapshot_record = None
        totals.unsaved[topic.topic_id] = topic
        if plan is not None and plan.count:
            topic.kill_below(plan.floor)
            topic.raise_floor(cap=plan.floor)
        if topic.feeds is not None:
            totals.unforwarded[topic.topic_id] = topic
        self.tell(None)
        if topic.waiters:
            topic.has_news(self.ts)
        return 0

    def failed(self, error, bint written):
        """Forget the batch: its seqs are free again, or silent holes if they are logged or not the last."""
        topic = self.topic
        if topic.order is not None:
            topic.order.lost(self)
        self.leave_pending()
        if self.plan is not None:
            topic.planned_floor = self.floor_before
        if self.key is not None:
            topic.keys.pop(self.key, None)
        if written or topic.log.next_seq != self.first_seq + self.count:
            topic.kill_range(self.first_seq, self.first_seq + self.count)
            topic.note_holes(self.first_seq, self.first_seq + self.count - 1)
        elif self.shard is not None:
            topic.totals.bytes -= self.bytes
            topic.log.pop(self.shard.buffer, self.shard.source_offset, self.count)
        self.tell(error)

    cdef int leave_pending(self) except -1:
        cdef TopicCore topic = self.topic
        if self.needs_sync:
            topic.pending_syncs -= 1
        topic.pending_count -= self.count
        topic.pending_bytes -= self.bytes
        return 0

    cdef int tell(self, object error) except -1:
        """Whoever waits for the batch may know now what has become of it."""
        self.commit.finish(error)
        return 0


cdef class ShardLog:
    """One shard of the log with the entries that are gathered in it or wait for its sync."""

    def __init__(self, LogPlace shard not None):
        self.shard = shard
        self.buffer = shard.buffer
        self.gathered = []
        self.waiting = deque()

    @property
    def oldest_position(self):
        """Where the first frame lies whose entry is not committed yet; the end if all are."""
        if self.waiting:
            return self.waiting[0][0]
        return self.gathered_from() if self.gathered else self.shard.position

    def gathered_from(self):
        """Where the first of the gathered frames will lie."""
        return self.shard.position_at(self.from_file, self.from_offset)

    def reserve(self, size_t size):
        """Make room for `size` bytes of frames; entries gathered before may be committed or failed by it."""
        if self.has_room(size):
            return
        cdef size_t gathered_bytes = self.buffer.length
        self.count_frames()
        try:
            self.shard.reserve(size)
        except StorageFailed as error:
            if self.shard.needs_discard:
                self.fail_gathered(error)
            raise
        finally:
            if self.gathered and gathered_bytes and not self.buffer.length:
                self.pass_on()  # the room was made by writing what was gathered and beginning a new file

    def gather(self, entry, Py_ssize_t frames):
        """Take an entry whose `frames` frames are at the end of the buffer."""
        self.take(entry, frames)

    def write(self):
        """Write what is gathered; failures reach the entries, not the caller."""
        self.write_gathered()

    cdef int write_gathered(self) except -1:
        """See `write`."""
        if not self.gathered:
            return 0
        self.count_frames()
        try:
            self.shard.write()
        except StorageFailed as error:
            self.fail_gathered(error)
        else:
            self.pass_on()
        return 0

    cdef bint has_room(self, size_t size) except -1:
        """Whether so many bytes fit behind what is gathered."""
        return self.shard.source_offset + <int64_t>(self.buffer.length + size) <= self.shard.limit

    cdef int take(self, object entry, Py_ssize_t frames) except -1:
        """See `gather`."""
        if not self.gathered:
            self.from_file, self.from_offset = self.shard.file_number, self.shard.source_offset
        self.frames += frames
        self.gathered.append(entry)
        self.depth += 1
        if self.depth > self.depth_peak:
            self.depth_peak = self.depth
        return 0

    cdef int count_frames(self) except -1:
        """Tell the shard how many frames it is about to write."""
        self.shard.frames_gathered += self.frames
        self.frames = 0
        return 0

    cdef int pass_on(self) except -1:
        """Commit what only had to be written, and let the rest wait for a sync."""
        cdef list entries = self.gathered
        cdef list written = entries
        cdef list waiting = [entry for entry in entries if must_sync(entry)]
        self.gathered = []
        if waiting:
            written = [entry for entry in entries if not must_sync(entry)]
            self.waiting.append((self.gathered_from(), waiting))
            self.shard.sync(self.synced)
        elif self.shard.requested_ns is None:
            self.shard.request_sync()
        self.depth -= len(written)
        tell_kept(written)
        return 0

    cdef int fail_gathered(self, error) except -1:
        cdef list entries = self.gathered
        self.gathered = []
        self.depth -= len(entries)
        # Newest first: each takes back what it put at the end of its topic's log.
        for entry in reversed(entries):
            entry.failed(error, False)
        self.shard.discard()
        return 0

    def synced(self, error):
        """The sync is over that the oldest group waits for."""
        cdef list entries
        _, entries = self.waiting.popleft()
        self.depth -= len(entries)
        if error is None:
            tell_kept(entries)
        else:
            tell_lost(entries, error)


def write_shards(list shards not None):
    """Write what is gathered in each of them; whether there was anything."""
    cdef bint has_written = False
    for shard in shards:
        if (<ShardLog?>shard).gathered:
            has_written = True
            (<ShardLog>shard).write_gathered()
    return has_written


def want_sync(list shards not None):
    """Whether somebody waits for a sync of one of them that is not on its way."""
    for shard in shards:
        if (<ShardLog?>shard).shard.wants_sync():
            return True
    return False


cdef bint must_sync(object entry) except -1:
    """Whether an entry waits for a sync."""
    return (<BatchEntry>entry).needs_sync if isinstance(entry, BatchEntry) else entry.needs_sync


cdef int tell_kept(list entries) except -1:
    """Commit all of them, also if one raises; the first error is raised in the end."""
    first_error = None
    for entry in entries:
        try:
            if isinstance(entry, BatchEntry):
                (<BatchEntry>entry).meet()
            else:
                entry.committed()
        except Exception as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error
    return 0


cdef int tell_lost(list entries, error) except -1:
    """As `tell_kept`: they are written, but cannot be synced."""
    first_error = None
    for entry in entries:
        try:
            entry.failed(error, True)
        except Exception as raised:
            first_error = first_error or raised
    if first_error is not None:
        raise first_error
    return 0
