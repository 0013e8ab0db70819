# The records of one topic in memory: where each one is, which are live, and how they are read.
#
# Owns the indexes of a topic and the table of buffers in which frames lie. Opens no file, asks no
# clock and decides nothing: which record dies when, and what is written where, is the engine's.

cdef enum:
    KEPT_TEXT_CAPACITY = 2097152
    # Dead tags looked at per call that may have made some: tens of microseconds at most.
    SWEEP_STEPS = 256

PLACE = np.dtype([("seq", "<u8"), ("source", "<u4"), ("offset", "<u4"), ("size", "<u4"), ("in_log", "?")])

cdef packed struct place_row:  # a row of PLACE
    uint64_t seq
    uint32_t source
    uint32_t offset
    uint32_t size
    uint8_t in_log


cdef object REMOVED = object()
cdef text_buffer rendered_text  # one for all reads, since the GIL is held meanwhile


# --- Sources ----------------------------------------------------------------------------------------------


@cython.final
cdef class Sources:
    """Buffers in which frames lie, by id. A loaded one is kept alive and in place.

    Ids start at 1 and are used again after `remove`. A source may be unloaded (None): its id
    stays, reading stops at its records.
    """

    cdef source_span *spans      # by id; place 0 stays unloaded
    cdef Py_buffer **views       # by id; NULL = not loaded
    cdef size_t count            # ids given out so far, and place 0
    cdef size_t capacity
    cdef list objects            # by id; the buffers as they were given
    cdef list free_ids

    def __cinit__(self):
        self.objects = [REMOVED]
        self.free_ids = []
        self.count = 1
        self.grow(16)

    def __dealloc__(self):
        cdef size_t source
        if self.views != NULL:
            for source in range(self.count):
                self.unload(source)
        free(self.spans)
        free(self.views)

    cdef int grow(self, size_t capacity) except -1:
        cdef void *spans = realloc(self.spans, capacity * sizeof(source_span))
        if spans != NULL:
            self.spans = <source_span *>spans
        cdef void *views = realloc(self.views, capacity * sizeof(void *))
        if views != NULL:
            self.views = <Py_buffer **>views
        if spans == NULL or views == NULL:
            raise MemoryError(f"no memory for {capacity} sources")
        memset(self.spans + self.capacity, 0, (capacity - self.capacity) * sizeof(source_span))
        memset(self.views + self.capacity, 0, (capacity - self.capacity) * sizeof(void *))
        self.capacity = capacity
        return 0

    cdef int check(self, size_t source) except -1:
        if source >= self.count or self.objects[source] is REMOVED:
            raise KeyError(f"there is no source {source}")
        return 0

    cdef int load(self, size_t source, object buffer) except -1:
        cdef Py_buffer *view = <Py_buffer *>malloc(sizeof(Py_buffer))
        if view == NULL:
            raise MemoryError("no memory for a source")
        try:
            PyObject_GetBuffer(buffer, view, PyBUF_SIMPLE)
        except BaseException:
            free(view)
            raise
        self.unload(source)
        self.views[source] = view
        self.spans[source].base = <const uint8_t *>view.buf
        if view.buf == NULL:  # which would mean unloaded, but an empty buffer is loaded
            self.spans[source].base = <const uint8_t *>PyBytes_AS_STRING(b"")
        self.spans[source].length = view.len
        return 0

    cdef void unload(self, size_t source) noexcept:
        cdef Py_buffer *view = self.views[source]
        self.views[source] = NULL
        self.spans[source].base = NULL
        self.spans[source].length = 0
        if view != NULL:
            PyBuffer_Release(view)
            free(view)

    def add(self, buffer) -> int:
        """Give a buffer, or None for one that is loaded later, an id."""
        cdef size_t source
        if self.free_ids:
            source = self.free_ids[len(self.free_ids) - 1]
        else:
            source = self.count
            if source > UINT32_MAX:
                raise MemoryError("there are too many sources")
            if source == self.capacity:
                self.grow(2 * self.capacity)
        if buffer is not None:
            self.load(source, buffer)
        if source == self.count:
            self.objects.append(buffer)
            self.count += 1
        else:
            self.free_ids.pop()
            self.objects[source] = buffer
        return source

    def set(self, size_t source, buffer) -> None:
        """Load a source, replace its buffer, or unload it (None)."""
        self.check(source)
        if buffer is not None:
            self.load(source, buffer)
        else:
            self.unload(source)
        self.objects[source] = buffer

    def remove(self, size_t source) -> None:
        """Forget a source; its id may be given to another one."""
        self.check(source)
        self.unload(source)
        self.objects[source] = REMOVED
        self.free_ids.append(source)

    def is_loaded(self, size_t source) -> bool:
        """Whether the bytes of a source are there."""
        self.check(source)
        return self.views[source] != NULL

    def buffer(self, size_t source):
        """Return the buffer of a source, None if it is not loaded."""
        self.check(source)
        return self.objects[source]


# --- The log ----------------------------------------------------------------------------------------------


cdef uint64_t count_entries(const uint8_t[::1] entries) except? 0:
    cdef size_t length = entries.shape[0]
    if length % INDEX_ENTRY_SIZE != 0:
        raise Corrupt(f"{length} bytes of a segment index are no whole number of entries of "
                      f"{INDEX_ENTRY_SIZE} bytes; cut them at the last whole one")
    return length // INDEX_ENTRY_SIZE


@cython.final
@cython.no_gc
cdef class TopicLog:
    """One topic: an entry per seq with its place, the live totals, and the tags of live records.

    Seqs from `base_seq` to `next_seq - 1` have an entry. Used by one thread; only
    `copy_to_segment` may run in another one meanwhile.
    """

    cdef log_index index
    cdef tag_index *tags
    cdef readonly uint64_t topic_id

    def __cinit__(self, uint64_t topic_id, uint64_t next_seq=1):
        if next_seq == 0 or next_seq > MAX_SEQ:
            raise ValueError(f"next_seq {next_seq} is not in 1..{MAX_SEQ}")
        self.topic_id = topic_id
        log_index_init(&self.index, next_seq)
        self.tags = tag_index_new()
        if self.tags == NULL:
            raise MemoryError("no memory for a topic")

    def __dealloc__(self):
        log_index_free(&self.index)
        tag_index_free(self.tags)

    @property
    def base_seq(self) -> int:
        """First seq that has an entry."""
        return self.index.base_seq

    @property
    def next_seq(self) -> int:
        """Seq of the next record."""
        return self.index.next_seq

    @property
    def first_live(self) -> int:
        """First live seq, `next_seq` if there is none."""
        return self.index.first_live

    @property
    def live_count(self) -> int:
        """Live records."""
        return self.index.live_count

    @property
    def live_bytes(self) -> int:
        """Payload (data and meta) of the live records."""
        return self.index.live_bytes

    @property
    def last_ts(self) -> int:
        """Highest timestamp ever pushed; `pop` does not lower it."""
        return self.index.last_ts

    @property
    def index_memory_bytes(self) -> int:
        """Memory of the entries."""
        return self.index.memory_bytes

    @property
    def tag_memory_bytes(self) -> int:
        """Memory of the tags."""
        return tag_index_memory(self.tags)

    @property
    def tag_count(self) -> int:
        """Tags held; some may have lost their last live record and not be dropped yet."""
        return tag_index_count(self.tags)

    cdef int check_seq(self, uint64_t seq) except -1:
        if not log_index_has(&self.index, seq):
            raise IndexError(f"seq {seq} has no entry; there are those from {self.index.base_seq} "
                             f"to {self.index.next_seq - 1}")
        return 0

    cdef int push(self, const log_entry *entry, const uint8_t *tag, size_t tag_len) except -1:
        cdef uint64_t seq = self.index.next_seq
        if log_index_push(&self.index, entry) != 0:
            raise MemoryError("no memory for another record")
        if tag_len > 0 and tag_index_push(self.tags, &self.index, tag, tag_len, seq) != 0:
            log_index_pop(&self.index, 1)
            raise MemoryError("no memory for another tag")
        return 0

    cdef int push_gap(self, uint64_t first_seq) except -1:
        """Holes up to the seq before `first_seq`, which is at least next_seq."""
        cdef uint64_t count = first_seq - self.index.next_seq
        if first_seq > MAX_SEQ or (count > MAX_HOLES and self.index.base_seq != self.index.next_seq):
            raise Corrupt(f"seq {first_seq} cannot follow seq {self.index.next_seq - 1}: "
                          f"more than {MAX_HOLES} seqs would have no record")
        if count > 0 and log_index_push_holes(&self.index, count, self.index.last_ts) != 0:
            raise MemoryError(f"no memory for {count} entries")
        return 0

    # --- Writing ---

    def append(self, FrameBuffer buffer not None, uint32_t source, uint64_t source_offset, records,
               uint64_t ts, uint8_t frame_flags, str batch_node, bint continues) -> int:
        """Frame records at the end of `buffer` and push their entries; returns the payload added.

        `records` is a RecordBatch (then `batch_node` plays no part) or a list of objects with data,
        tag, node and meta. The frame at position p of the buffer lies at `source_offset + p` of
        `source`. All frames but the last carry BATCH_CONTINUES, the last too if `continues`. Nothing
        has changed if this raises.
        """
        cdef RecordBatch batch = records if isinstance(records, RecordBatch) else RecordBatch(records, batch_node)
        cdef append_target target
        cdef append_result result
        cdef uint64_t offset = source_offset + buffer.length
        if source_offset > UINT32_MAX or offset + batch.frame_bytes > UINT32_MAX:
            raise ValueError(f"{batch.frame_bytes} bytes of frames at offset {source_offset} + "
                             f"{buffer.length} reach beyond {UINT32_MAX}, the last place an entry can name; "
                             "use smaller files")
        buffer.room(batch.frame_bytes)
        target.topic_id, target.ts = self.topic_id, ts
        target.source, target.offset = source, <uint32_t>offset
        target.flags, target.continues = frame_flags, continues
        if log_append(&self.index, self.tags, batch.records, batch.count, &target,
                      buffer.base + buffer.length, &result) != 0:
            raise MemoryError(f"no memory for the entries of {batch.count} records")
        buffer.length += result.frame_bytes
        return result.payload

    def pop(self, FrameBuffer buffer, uint64_t source_offset, uint64_t count, last_ts=None) -> None:
        """Take back the newest `count` records, which were refused or whose frames could not be written.

        The frames are still in `buffer`, whose position 0 stands for `source_offset`; the tags are
        read from there. None will do if no record has a tag. With `last_ts` that is as it was before them.
        """
        cdef uint64_t seq, first_seq = self.index.next_seq - count
        cdef frame_view frame
        if count > self.index.next_seq - self.index.base_seq:
            raise ValueError(f"{count} records cannot be taken back: there are only "
                             f"{self.index.next_seq - self.index.base_seq} entries")
        for seq in range(first_seq, self.index.next_seq):
            self.read_unwritten(buffer, source_offset, seq, &frame)
        seq = self.index.next_seq
        while seq > first_seq:
            seq -= 1
            self.read_unwritten(buffer, source_offset, seq, &frame)
            if frame.tag_len > 0:
                tag_index_pop(self.tags, &self.index, frame.tag, frame.tag_len, seq)
        log_index_pop(&self.index, count)
        if last_ts is not None:
            self.index.last_ts = last_ts

    cdef int read_unwritten(self, FrameBuffer buffer, uint64_t source_offset, uint64_t seq,
                            frame_view *frame) except -1:
        """The frame of a tagged record that is still in the buffer; without a tag only its tag_len, 0."""
        cdef log_entry entry
        cdef source_span span
        log_index_get(&self.index, seq, &entry)
        frame.tag_len = 0
        if not entry.flags & ENTRY_HAS_TAG:
            return 0
        if buffer is not None and entry.flags & ENTRY_IN_LOG and entry.offset >= source_offset:
            span.base, span.length = buffer.base, buffer.length
            entry.offset -= source_offset
            if record_read(&span, &entry, self.topic_id, seq, 0, frame) == RECORD_OK:
                return 0
        raise ValueError(f"the frame of seq {seq} is not in the buffer at offset {source_offset}: "
                         "only records that are not written yet can be taken back")

    def push_holes(self, uint64_t count, uint64_t ts) -> None:
        """Push dead entries for seqs that never get a record; an empty log moves its base instead."""
        if count > MAX_HOLES or count > MAX_SEQ - self.index.next_seq:
            raise ValueError(f"{count} seqs without a record are too many; at most {MAX_HOLES} can be pushed")
        if log_index_push_holes(&self.index, count, ts) != 0:
            raise MemoryError(f"no memory for {count} entries")

    # --- Segments ---

    def load_index(self, uint64_t first_seq, const uint8_t[::1] entries, uint32_t source) -> int:
        """Push the entries of a segment's index; returns how many live ones need `load_frames`.

        Those carry a tag or a node, so that only the frame tells their payload and tag. Seqs missing
        before `first_seq` become holes; an empty log moves its base there instead.
        """
        cdef uint64_t count = count_entries(entries), place, unknown = 0, next_seq = self.index.next_seq
        cdef log_entry entry
        if first_seq < next_seq:
            raise ValueError(f"a segment from seq {first_seq} on cannot be loaded: the log already goes to "
                             f"seq {next_seq - 1}")
        self.push_gap(first_seq)
        for place in range(count):
            index_entry_read(&entries[place * INDEX_ENTRY_SIZE], source, &entry)
            if log_index_push(&self.index, &entry) != 0:
                log_index_pop(&self.index, self.index.next_seq - next_seq)
                raise MemoryError(f"no memory for {count} entries")
            if entry.flags & (ENTRY_PAYLOAD_UNKNOWN | ENTRY_DEAD) == ENTRY_PAYLOAD_UNKNOWN:
                unknown += 1
        return unknown

    def load_frames(self, uint64_t first_seq, uint64_t count, const uint8_t[::1] data) -> int:
        """Read payload and tag of the live entries that need it from the frames of their segment.

        A record that is marked as deleted there is dead. Checksums are left to the reader. Returns the first
        seq whose frame is not what the index says, 0 if there is none; such a record keeps its entry and
        counts as empty.
        """
        cdef uint64_t seq, end = min(first_seq + count, self.index.next_seq), damaged = 0, ignored = 0
        cdef log_entry entry
        cdef frame_view frame
        cdef source_span span
        cdef int outcome
        span.length = data.shape[0]
        span.base = &data[0] if span.length > 0 else <const uint8_t *>PyBytes_AS_STRING(b"")
        seq = log_index_next_live(&self.index, first_seq, end)
        while seq < end:
            log_index_get(&self.index, seq, &entry)
            if entry.flags & ENTRY_PAYLOAD_UNKNOWN and not entry.flags & ENTRY_IN_LOG:
                outcome = record_read(&span, &entry, self.topic_id, seq, 0, &frame)
                if outcome == RECORD_OK and frame.deleted:
                    # The mark is in the data, but its twin in the index was lost with the power.
                    log_index_set_payload(&self.index, seq, frame_payload(frame.data_len, frame.flags))
                    log_index_kill(&self.index, &seq, 1, False, &ignored, &ignored)
                elif outcome == RECORD_OK:
                    if frame.tag_len > 0 and tag_index_push(
                            self.tags, &self.index, frame.tag, frame.tag_len, seq) != 0:
                        raise MemoryError("no memory for another tag")
                    log_index_set_payload(&self.index, seq, frame_payload(frame.data_len, frame.flags))
                elif damaged == 0:
                    damaged = seq
            seq = log_index_next_live(&self.index, seq + 1, end)
        return damaged

    def copy_to_segment(self, Sources sources not None, uint64_t first_seq, uint64_t last_seq,
                        uint64_t base_offset, FrameBuffer data_out not None,
                        FrameBuffer index_out not None) -> None:
        """Append the segment frames of the live records, and an index entry for every seq, to buffers.

        Offsets in the entries are `base_offset` plus the place in what is appended now; dead records and
        those below `base_seq` become holes. The copying runs without the GIL and off the index, so the
        owner may go on using this log.
        """
        cdef uint64_t count = last_seq + 1 - first_seq, copied
        cdef size_t data_bytes = 0
        cdef list held = []
        cdef record_place *places
        cdef uint8_t *data
        cdef uint8_t *entries
        if last_seq < first_seq or last_seq >= self.index.next_seq:
            raise ValueError(f"seqs {first_seq} to {last_seq} are no range below {self.index.next_seq}")
        places = <record_place *>malloc(count * sizeof(record_place))
        if places == NULL:
            raise MemoryError(f"no memory to copy {count} records")
        try:
            data_bytes = self.collect_places(sources, first_seq, count, places, held)
            if base_offset > UINT32_MAX or data_bytes > UINT32_MAX - base_offset:
                raise ValueError(f"{data_bytes} bytes at offset {base_offset} do not fit into one segment; "
                                 "seal it earlier")
            data_out.room(data_bytes)
            index_out.room(count * INDEX_ENTRY_SIZE)
            data = data_out.base + data_out.length
            entries = index_out.base + index_out.length
            with nogil:
                copied = segment_copy(places, count, self.topic_id, first_seq, <uint32_t>base_offset, data,
                                      entries)
        finally:
            free(places)
        if copied < count:
            raise Corrupt(f"the frame of seq {first_seq + copied} is not where the index says; "
                          "it cannot be copied")
        data_out.length += data_bytes
        index_out.length += count * INDEX_ENTRY_SIZE

    cdef size_t collect_places(self, Sources sources, uint64_t first_seq, uint64_t count,
                               record_place *places, list held) except? 0:
        """Where the records lie, and in `held` views that keep their buffers there; bytes they will take."""
        cdef uint64_t place
        cdef size_t total = 0
        cdef uint32_t source, last_source = 0
        cdef set known = set()
        cdef log_entry dropped
        memset(&dropped, 0, sizeof(dropped))
        dropped.flags = ENTRY_DEAD
        dropped.ts = self.index.last_ts
        if self.index.base_seq < self.index.next_seq:
            dropped.ts = self.timestamp(self.index.base_seq)  # so that timestamps do not fall
        for place in range(count):
            if first_seq + place < self.index.base_seq:
                places[place].entry = dropped
                continue
            log_index_get(&self.index, first_seq + place, &places[place].entry)
            source = places[place].entry.source
            if places[place].entry.flags & ENTRY_DEAD:
                continue
            if source != last_source and source not in known:
                if source >= sources.count or sources.spans[source].base == NULL:
                    raise Corrupt(f"seq {first_seq + place} lies in source {source}, which is not loaded")
                known.add(source)
                held.append(memoryview(sources.objects[source]))
            last_source = source
            places[place].source = sources.spans[source]
            total += segment_size_of(&places[place].entry)
        return total

    def set_segment(self, uint64_t first_seq, const uint8_t[::1] entries, uint32_t source) -> None:
        """The records of these seqs are durable in a segment now: their places are those of its index."""
        cdef uint64_t count = count_entries(entries), place, seq
        cdef log_entry entry, old
        if count == 0:
            return
        if first_seq + count < first_seq or first_seq + count > self.index.next_seq:
            raise ValueError(f"a segment of {count} seqs from {first_seq} on goes beyond seq "
                             f"{self.index.next_seq - 1}")
        for place in range(count):
            seq = first_seq + place
            if not log_index_is_live(&self.index, seq):
                continue
            index_entry_read(&entries[place * INDEX_ENTRY_SIZE], source, &entry)
            log_index_get(&self.index, seq, &old)
            if entry.flags & ENTRY_DEAD or entry.size != segment_size_of(&old):
                raise Corrupt(f"the segment index does not describe the live record {seq}")
        for place in range(count):
            seq = first_seq + place
            if log_index_has(&self.index, seq):
                index_entry_read(&entries[place * INDEX_ENTRY_SIZE], source, &entry)
                log_index_set_place(&self.index, seq, entry.source, entry.offset, entry.size)

    # --- Life and death ---

    def kill_below(self, uint64_t before_seq) -> tuple[int, int]:
        """Mark every live record below `before_seq` dead; returns (count, payload)."""
        return self.kill_range(self.index.first_live, before_seq)

    def kill_range(self, uint64_t first_seq, uint64_t end_seq) -> tuple[int, int]:
        """Mark every live record from `first_seq` up to before `end_seq` dead; returns (count, payload)."""
        cdef uint64_t count = 0, payload = 0
        log_index_kill_range(&self.index, first_seq, end_seq, &count, &payload)
        tag_index_sweep(self.tags, &self.index, SWEEP_STEPS)
        return count, payload

    def live_in(self, uint64_t first_seq, uint64_t end_seq) -> tuple[int, int]:
        """Return (count, payload) of the live records from `first_seq` up to before `end_seq`."""
        cdef uint64_t seq = max(first_seq, self.index.first_live), end = min(end_seq, self.index.next_seq)
        cdef uint64_t count = 0, payload = 0
        cdef log_block *block
        while seq < end:
            block = log_index_block(&self.index, seq)
            if end - seq >= BLOCK_ENTRIES and log_index_slot(&self.index, seq) == 0:
                count, payload, seq = count + block.live_count, payload + block.live_bytes, seq + BLOCK_ENTRIES
                continue
            if log_index_is_live(&self.index, seq):
                count, payload = count + 1, payload + block.payload[log_index_slot(&self.index, seq)]
            seq += 1
        return count, payload

    def last_live_below(self, uint64_t seq) -> int:
        """Return the last live record below `seq`, 0 if there is none."""
        seq = min(seq, self.index.next_seq)
        while seq > self.index.first_live:
            seq -= 1
            if log_index_block(&self.index, seq).live_count == 0:
                seq -= log_index_slot(&self.index, seq)
            elif log_index_is_live(&self.index, seq):
                return seq
        return 0

    def dead_seqs(self, uint64_t first_seq, uint64_t last_seq):
        """Return those seqs from `first_seq` to `last_seq` that are dead, as a uint64 array."""
        cdef uint64_t seq, end = min(last_seq, self.index.next_seq - 1) + 1
        cdef uint64_t begin = max(first_seq, self.index.base_seq)
        dead = [seq for seq in range(begin, end) if not log_index_is_live(&self.index, seq)]
        return np.array(dead, np.uint64)

    def kill(self, const uint64_t[::1] seqs, bint only_counts=False) -> tuple[int, int]:
        """Mark records dead, or only count them; returns (count, payload) of those that were live."""
        cdef uint64_t count = 0, payload = 0
        if seqs.shape[0] > 0:
            log_index_kill(&self.index, &seqs[0], seqs.shape[0], only_counts, &count, &payload)
        tag_index_sweep(self.tags, &self.index, SWEEP_STEPS)
        return count, payload

    def find_tag(self, bytes tag not None, bint prefix, uint64_t before_seq):
        """Return the live seqs below `before_seq` with this tag, or one that starts with it; ascending."""
        result, _ = self.search_tag(tag, prefix, before_seq, UINT64_MAX)
        if prefix:
            result.sort()
        return result

    def search_tag(self, bytes tag not None, bint prefix, uint64_t before_seq, uint64_t steps,
                   uint64_t from_seq=0):
        """Look at up to `steps` (at least 2) tags and records; returns (seqs, rest), rest None if these are all.

        Otherwise: of one tag the rest begins at the seq `rest`; of a prefix none is returned, and rest is 0.
        """
        cdef seq_list found
        cdef uint64_t[::1] seqs
        cdef int outcome
        memset(&found, 0, sizeof(found))
        try:
            outcome = tag_index_find(self.tags, &self.index, <const uint8_t *>PyBytes_AS_STRING(tag),
                                     PyBytes_GET_SIZE(tag), prefix, before_seq, steps, &from_seq, &found)
            if outcome < 0:
                raise MemoryError("no memory for the seqs of a tag")
            result = np.empty(0 if outcome > 0 and prefix else found.count, np.uint64)
            if result.size > 0:
                seqs = result
                memcpy(&seqs[0], found.seqs, found.count * sizeof(uint64_t))
        finally:
            free(found.seqs)
        return result, None if outcome == 0 else 0 if prefix else from_seq

    def is_live(self, uint64_t seq) -> bool:
        """Whether there is a live record of this seq."""
        return log_index_is_live(&self.index, seq)

    def place(self, uint64_t seq) -> tuple[int, int, int, bool]:
        """Return (source, offset, size, in_log) of an entry; all zero for a hole."""
        cdef log_entry entry
        self.check_seq(seq)
        log_index_get(&self.index, seq, &entry)
        return entry.source, entry.offset, entry.size, entry.flags & ENTRY_IN_LOG != 0

    def places(self, const uint64_t[::1] seqs):
        """Return the places of many entries as rows of PLACE."""
        cdef Py_ssize_t at
        cdef log_entry entry
        cdef place_row row
        cdef uint8_t[::1] rows
        result = np.empty(seqs.shape[0], PLACE)
        rows = result.view(np.uint8)
        for at in range(seqs.shape[0]):
            self.check_seq(seqs[at])
            log_index_get(&self.index, seqs[at], &entry)
            row.seq, row.source, row.offset, row.size = seqs[at], entry.source, entry.offset, entry.size
            row.in_log = entry.flags & ENTRY_IN_LOG != 0
            memcpy(&rows[at * <Py_ssize_t>sizeof(row)], &row, sizeof(row))
        return result

    def sizes(self, uint64_t first_seq, uint64_t count):
        """Return the sizes of the frames of `count` entries from `first_seq` on, 0 for a hole."""
        cdef uint32_t[::1] rows
        if count:
            self.check_seq(first_seq)
            if count > self.index.next_seq - first_seq:
                self.check_seq(self.index.next_seq)
        result = np.empty(count, np.uint32)
        if count:
            rows = result
            log_index_sizes(&self.index, first_seq, count, &rows[0])
        return result

    def plan_caps(self, uint64_t floor, uint64_t count, uint64_t bytes, uint64_t max_records,
                  uint64_t max_bytes) -> tuple[int, int, int]:
        """Return (floor, count, payload) after the oldest live records from `floor` on had to go.

        `count` and `bytes` are the live totals from `floor` on; a limit of 0 is none. Nothing dies here.
        """
        floor = log_index_plan_caps(&self.index, floor, max_records, max_bytes, &count, &bytes)
        return floor, count, bytes

    def find_ts(self, uint64_t cutoff, uint64_t end_seq) -> int:
        """Return the first seq from `first_live` on whose timestamp is at least `cutoff`, else `end_seq`."""
        return log_index_find_ts(&self.index, cutoff, end_seq)

    def timestamp(self, uint64_t seq) -> int:
        """Return the timestamp of an entry."""
        cdef log_entry entry
        self.check_seq(seq)
        log_index_get(&self.index, seq, &entry)
        return entry.ts

    def drop_front(self, uint64_t seq) -> None:
        """Forget the entries below `seq`, at most those below `first_live`."""
        log_index_drop_front(&self.index, seq)
        tag_index_sweep(self.tags, &self.index, SWEEP_STEPS)

    # --- Reading ---

    def render(self, Sources sources not None, uint64_t from_seq, uint64_t end_seq, uint64_t limit,
               uint64_t max_bytes, tuple nodes not None, bint include_tags, bint include_meta,
               bint include_data):
        """Read on from `from_seq` (the last seq the reader has) to `end_seq` at most.

        Skips dead records and those of `nodes`. Stops after `limit` records, before the one whose
        payload would pass `max_bytes` (0 = any; one is always delivered), at a source that is not
        loaded and at a corrupt frame. Frames in segments are verified, those in the log are not.
        """
        cdef render_request request
        cdef render_result result
        cdef byte_text *own = NULL
        cdef Py_ssize_t place
        request.sources, request.source_count = sources.spans, sources.count
        request.node_count = len(nodes)
        request.topic_id, request.from_seq, request.end_seq = self.topic_id, from_seq, end_seq
        request.limit, request.max_bytes = limit, max_bytes
        request.include_tags, request.include_meta = include_tags, include_meta
        request.include_data = include_data
        if nodes:
            own = <byte_text *>malloc(request.node_count * sizeof(byte_text))
            if own == NULL:
                raise MemoryError("no memory for a list of nodes")
        request.nodes = own
        try:
            for place, node in enumerate(nodes):
                own[place].text = <const uint8_t *>PyBytes_AS_STRING(<bytes?>node)
                own[place].length = PyBytes_GET_SIZE(node)
            if render_records(&self.index, &request, &rendered_text, &result) != 0:
                raise MemoryError("no memory for a page of records")
            json = PyBytes_FromStringAndSize(<const char *>rendered_text.base, rendered_text.length)
        finally:
            free(own)
            if rendered_text.capacity > KEPT_TEXT_CAPACITY:
                free(rendered_text.base)
                rendered_text.base, rendered_text.length, rendered_text.capacity = NULL, 0, 0
        return Rendered(json, result.next_from_seq, result.delivered, result.scanned, result.missing_source,
                        result.corrupt_seq)
