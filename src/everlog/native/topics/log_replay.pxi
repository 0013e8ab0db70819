# Applies the Append frames of one log file to the topics' logs, when the engine starts.
#
# Owns the walk over the file: checksums and whole batches. What a control frame means is the caller's.

cdef enum:
    KNOWN_LOGS = 256

cdef dict REPLAY_OUTCOMES = {FRAME_OK: "running", FRAME_END: "end", FRAME_TORN: "torn", FRAME_CORRUPT: "corrupt"}


@cython.final
cdef class LogReplay:
    """Walks the frames of `buffer` from `start` on and pushes its records into `logs` (by topic id).

    A batch is applied only if all of its frames are there and sound; otherwise the walk ends at its
    first frame. `position` is behind the last frame taken, `outcome` why the walk ended there:
    "end", "torn" (cut in the middle of a frame or batch) or "corrupt"; "running" before that.
    """

    cdef const uint8_t[::1] buffer
    cdef const uint8_t *base
    cdef size_t length
    cdef size_t at               # behind the last frame that was taken
    cdef size_t batch_end        # frames before it are verified and their batch is complete
    cdef int state
    cdef uint32_t source
    cdef dict logs
    cdef readonly uint64_t appended
    cdef readonly uint64_t skipped
    cdef readonly list gaps      # (topic id, first seq, last seq) that appends have passed over
    cdef uint64_t known_ids[KNOWN_LOGS]
    cdef void *known_logs[KNOWN_LOGS]

    def __cinit__(self, const uint8_t[::1] buffer not None, size_t start, uint32_t source, dict logs not None):
        self.buffer, self.base, self.length = buffer, &buffer[0], buffer.shape[0]
        if start > self.length:
            raise ValueError(f"a replay cannot start at offset {start} of {self.length} bytes")
        if self.length > UINT32_MAX:
            raise ValueError(f"a log file of {self.length} bytes is larger than {UINT32_MAX}, the last place "
                             "an entry can name; it is none of ours")
        self.at = self.batch_end = start
        self.source = source
        self.logs = logs
        self.gaps = []
        self.state = FRAME_OK

    @property
    def position(self) -> int:
        """Offset behind the last frame that was applied, skipped or returned."""
        return self.at

    @property
    def outcome(self) -> str:
        """Why the walk has ended, "running" if it has not."""
        return REPLAY_OUTCOMES[self.state]

    def run(self):
        """Apply appends up to the next control frame and return that one; None at the end.

        The caller acts on a control frame, which may change `logs`, and calls again.
        """
        cdef frame_view frame
        memset(self.known_logs, 0, sizeof(self.known_logs))
        while self.state == FRAME_OK:
            if self.at >= self.batch_end:
                self.state = self.look_ahead(&frame)
                if self.state != FRAME_OK:
                    break
            else:
                log_frame_read(self.base + self.at, self.length - self.at, &frame, 0)
            if frame.type != FRAME_TYPE_APPEND:
                self.at += frame.size
                return copy_log_frame(&frame)
            if self.apply(&frame) != 0:
                self.state = FRAME_CORRUPT
                break
            self.at += frame.size
        return None

    cdef int look_ahead(self, frame_view *first) noexcept:
        """Verify the batch that starts here to its last frame; gives its first one."""
        cdef size_t end = self.at
        cdef frame_view frame
        cdef int outcome = log_frame_read(self.base + end, self.length - end, first, 1)
        if outcome != FRAME_OK:
            return outcome
        frame = first[0]
        end += frame.size
        while frame.flags & FRAME_BATCH_CONTINUES:
            outcome = log_frame_read(self.base + end, self.length - end, &frame, 1)
            if outcome != FRAME_OK:
                # Nothing where more was promised: the rest of the batch was never written.
                return FRAME_TORN if outcome == FRAME_END else outcome
            end += frame.size
        self.batch_end = end
        return FRAME_OK

    cdef TopicLog find_log(self, uint64_t topic_id):
        """The log of a topic, None if it is not to be filled. Few topics take most of a file's records."""
        cdef size_t slot = topic_id % KNOWN_LOGS
        if self.known_logs[slot] == NULL or self.known_ids[slot] != topic_id:
            found = self.logs.get(topic_id)
            if found is None:
                return None
            self.known_ids[slot] = topic_id
            self.known_logs[slot] = <void *><TopicLog?>found  # `logs` keeps it while we run
        return <TopicLog>self.known_logs[slot]

    cdef int apply(self, const frame_view *frame) except -1:
        """Push one record; 1 if its seq cannot be true."""
        cdef TopicLog log = self.find_log(frame.topic_id)
        cdef log_entry entry
        if log is None or frame.seq < log.index.next_seq:
            self.skipped += 1
            return 0
        if frame.seq > log.index.next_seq:
            if frame.seq > MAX_SEQ:
                return 1
            if frame.seq - log.index.next_seq > MAX_HOLES and log.index.base_seq != log.index.next_seq:
                return 1
            self.gaps.append((frame.topic_id, log.index.next_seq, frame.seq - 1))
            log.push_gap(frame.seq)
        entry.ts, entry.tag_prev = frame.ts, 0
        entry.source, entry.offset, entry.size = self.source, self.at, frame.size
        entry.payload = frame_payload(frame.data_len, frame.flags)
        entry.flags = ENTRY_IN_LOG
        if frame.tag_len > 0:
            entry.flags |= ENTRY_HAS_TAG
        if frame.node_len > 0:
            entry.flags |= ENTRY_HAS_NODE
        if frame.flags & FRAME_HAS_META:
            entry.flags |= ENTRY_HAS_META
        log.push(&entry, frame.tag, frame.tag_len)
        self.appended += 1
        return 0
