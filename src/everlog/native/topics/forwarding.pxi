# Copies records from the log of one topic into that of another, frame by frame, without Python objects.
#
# Owns the choice of records by tag and the new frames. Which topics, how much and when is the caller's;
# nothing here touches a file or a clock.

cdef enum:
    # A log frame is at most this much longer than the frame it is copied from.
    FRAME_GROWTH = 16


cdef bint tag_matches(const frame_view *frame, bytes tag, bint prefix) noexcept:
    cdef size_t length = PyBytes_GET_SIZE(tag)
    if frame.tag_len == 0 or frame.tag_len < length or (not prefix and frame.tag_len != length):
        return False
    return length == 0 or memcmp(frame.tag, PyBytes_AS_STRING(tag), length) == 0


cdef int read_at(Sources sources, TopicLog log, uint64_t seq, log_entry *entry, frame_view *frame) noexcept:
    return record_at(&log.index, sources.spans, sources.count, log.topic_id, seq, entry, frame)


def select_records(Sources sources not None, TopicLog log not None, uint64_t first_seq, uint64_t end_seq,
                   bytes tag, bint prefix, uint64_t max_count, uint64_t max_bytes):
    """Choose live records from `first_seq` up to before `end_seq`: all, or those whose tag matches.

    Stops before the record that would make more than `max_count` or more than `max_bytes` of payload, and at
    one whose source is not loaded.
    """
    cdef uint64_t seq, run_first = 0, run_count = 0, count = 0, payload = 0, frame_bytes = 0, corrupt_seq = 0
    cdef uint32_t missing_source = 0
    cdef int outcome
    cdef log_entry entry
    cdef frame_view frame
    cdef list runs = []
    seq = log_index_next_live(&log.index, first_seq, end_seq)
    while seq < end_seq and seq < log.index.next_seq:
        log_index_get(&log.index, seq, &entry)
        if tag is None:
            if entry.source >= sources.count or sources.spans[entry.source].base == NULL:
                missing_source = entry.source
                break
        elif not entry.flags & ENTRY_HAS_TAG:
            seq = log_index_next_live(&log.index, seq + 1, end_seq)
            continue
        else:
            outcome = read_at(sources, log, seq, &entry, &frame)
            if outcome == RECORD_MISSING:
                missing_source = entry.source
            elif outcome != RECORD_OK:
                corrupt_seq = seq
            if outcome != RECORD_OK:
                break
            if not tag_matches(&frame, tag, prefix):
                seq = log_index_next_live(&log.index, seq + 1, end_seq)
                continue
        if count >= max_count or payload + entry.payload > max_bytes:
            break
        if run_count > 0 and run_first + run_count == seq:
            run_count += 1
        else:
            if run_count > 0:
                runs.append((run_first, run_count))
            run_first, run_count = seq, 1
        count += 1
        payload += entry.payload
        frame_bytes += entry.size + FRAME_GROWTH
        seq = log_index_next_live(&log.index, seq + 1, end_seq)
    else:
        seq = max(first_seq, end_seq)
    if run_count > 0:
        runs.append((run_first, run_count))
    return Selection(runs, seq, count, payload, frame_bytes, missing_source, corrupt_seq)


cdef uint64_t copy_one(TopicLog dest, FrameBuffer out, uint32_t source, uint64_t offset, uint64_t ts,
                       uint8_t flags, bint keep_node, bint keep_tag, bytes meta,
                       frame_view *frame) except? 0:
    """Write the copy of a frame that was read, and push its entry; returns its payload."""
    cdef log_entry entry
    cdef const uint8_t *text
    cdef const uint8_t *old_meta
    cdef uint32_t text_len, old_meta_len, meta_len = 0
    cdef const uint8_t *new_meta = NULL
    frame.type, frame.topic_id = FRAME_TYPE_APPEND, dest.topic_id
    frame.seq, frame.ts = dest.index.next_seq, ts
    frame.flags = flags | (frame.flags & FRAME_HAS_META)
    if not keep_node:
        frame.node_len = 0
    if not keep_tag:
        frame.tag_len = 0
    if frame.node_len > 0:
        frame.flags |= FRAME_HAS_NODE
    if frame.tag_len > 0:
        frame.flags |= FRAME_HAS_TAG
    if meta is not None:
        if frame_split(frame, &old_meta, &old_meta_len, &text, &text_len) != 0:
            raise ValueError("the lengths in a frame that was read before contradict each other")
        new_meta, meta_len = <const uint8_t *>PyBytes_AS_STRING(meta), <uint32_t>PyBytes_GET_SIZE(meta)
        frame.data = text
        frame.data_len = FRAME_META_LEN_SIZE + meta_len + text_len
        frame.flags |= FRAME_HAS_META
    out.room(log_frame_size(frame.node_len, frame.tag_len, frame.data_len))
    entry.ts, entry.tag_prev = ts, 0
    entry.source, entry.offset = source, offset + out.length
    entry.size = log_frame_write(out.base + out.length, frame, new_meta, meta_len)
    entry.payload = frame_payload(frame.data_len, frame.flags)
    entry.flags = (frame.flags & (ENTRY_HAS_TAG | ENTRY_HAS_NODE | ENTRY_HAS_META)) | ENTRY_IN_LOG
    dest.push(&entry, frame.tag, frame.tag_len)
    out.length += entry.size
    return entry.payload


def copy_records(Sources sources not None, TopicLog log not None, list runs not None, TopicLog dest not None,
                 FrameBuffer out not None, uint32_t out_source, uint64_t out_offset, uint64_t ts,
                 uint8_t flags, bint keep_node, bint keep_tag, list metas):
    """Copy records, dead or alive, to the end of `dest`, their frames to the end of `out`.

    The frame at position p of `out` lies at `out_offset + p` of `out_source`. `metas` has the meta text of
    each copy, None leaves those of the records. All frames but the last one carry BATCH_CONTINUES if `flags`
    has it. Stops early at a record that cannot be read.
    """
    cdef uint64_t first_seq, length, seq, count = 0, payload = 0, total = 0
    cdef int outcome
    cdef uint8_t own_flags
    cdef log_entry entry
    cdef frame_view frame
    if out_offset > UINT32_MAX:
        raise ValueError(f"offset {out_offset} is beyond {UINT32_MAX}, the last place an entry can name")
    for _, length in runs:
        total += length
    for first_seq, length in runs:
        for seq in range(first_seq, first_seq + length):
            outcome = read_at(sources, log, seq, &entry, &frame)
            if outcome == RECORD_MISSING:
                return Copied(count, payload, entry.source, 0)
            if outcome != RECORD_OK:
                return Copied(count, payload, 0, seq)
            own_flags = flags if count + 1 < total else flags & ~FRAME_BATCH_CONTINUES
            payload += copy_one(dest, out, out_source, out_offset, ts, own_flags, keep_node, keep_tag,
                                None if metas is None else metas[count], &frame)
            count += 1
    return Copied(count, payload, 0, 0)


def move_records(Sources sources not None, TopicLog log not None, uint64_t first_seq, uint64_t end_seq,
                 TopicLog dest not None) -> int:
    """Push the live entries from `first_seq` on to `dest` as they are, up to the first dead one or `end_seq`.

    `dest` must stand at `first_seq`. Their frames lie in log files, which are always loaded. Returns the seq
    behind the last one that was moved.
    """
    cdef uint64_t seq = first_seq
    cdef log_entry entry
    cdef frame_view frame
    if dest.index.next_seq != first_seq:
        raise ValueError(f"seq {first_seq} cannot follow seq {dest.index.next_seq - 1}")
    while seq < end_seq and log_index_has(&log.index, seq):
        log_index_get(&log.index, seq, &entry)
        if entry.flags & ENTRY_DEAD:
            break
        if read_at(sources, log, seq, &entry, &frame) != RECORD_OK:
            raise ValueError(f"the frame of seq {seq} cannot be read although it was just replayed")
        entry.tag_prev = 0
        dest.push(&entry, frame.tag, frame.tag_len)
        seq += 1
    return seq


def next_live(TopicLog log not None, uint64_t first_seq) -> int:
    """Return the first live seq from `first_seq` on, the log's next seq if there is none."""
    return log_index_next_live(&log.index, first_seq, log.index.next_seq)


def meta_of(Sources sources not None, TopicLog log not None, uint64_t seq):
    """Return the meta text of a record, None if it has none or cannot be read."""
    cdef uint32_t meta_len, text_len
    cdef const uint8_t *meta
    cdef const uint8_t *text
    cdef log_entry entry
    cdef frame_view frame
    if read_at(sources, log, seq, &entry, &frame) != RECORD_OK:
        return None
    if not frame.flags & FRAME_HAS_META or frame_split(&frame, &meta, &meta_len, &text, &text_len) != 0:
        return None
    return PyBytes_FromStringAndSize(<const char *>meta, meta_len)


def find_frames(const uint8_t[::1] buffer, size_t start, uint8_t kind) -> list:
    """Return (topic id, data) of the frames of one type in a log file, checksums not looked at."""
    cdef size_t at = start, length = buffer.shape[0]
    cdef frame_view frame
    cdef list found = []
    while at < length and log_frame_read(&buffer[at], length - at, &frame, 0) == FRAME_OK:
        if frame.type == kind:
            data = PyBytes_FromStringAndSize(<const char *>frame.data, frame.data_len)
            found.append((frame.topic_id, data))
        at += frame.size
    return found
