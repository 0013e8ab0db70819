# Jobs out of a topic's log: which come next, and how a worker gets them.
#
# Reads the index and the frames of a `TopicLog` and changes neither. Who holds which job is decided in
# `topics.jobs`.

cdef extern from "topics/render.h" nogil:
    cdef enum:
        RECORD_DELETED

    ctypedef struct job_lease:
        uint64_t seq
        uint64_t lease_id
        uint64_t deadline
        uint64_t deliveries

    int render_job(const log_index *index, const render_request *request, const job_lease *job,
                   text_buffer *out, uint32_t *missing_source)

cdef text_buffer job_text  # one for all, since the GIL is held meanwhile

cdef enum:
    JOBS_FULL = 4

DONE, MISSING, CORRUPT, DELETED, FULL = RECORD_OK, RECORD_MISSING, RECORD_CORRUPT, RECORD_DELETED, JOBS_FULL


def live_seqs(TopicLog log not None, uint64_t first_seq, uint64_t last_seq, Py_ssize_t limit) -> list[int]:
    """Return up to `limit` live seqs from `first_seq` to `last_seq`, ascending; dead ones cost next to nothing."""
    cdef list found = []
    cdef uint64_t seq, end = min(last_seq + 1, log.index.next_seq)
    seq = log_index_next_live(&log.index, first_seq, end)
    while seq < end and len(found) < limit:
        found.append(seq)
        seq = log_index_next_live(&log.index, seq + 1, end)
    return found


def render_jobs(TopicLog log not None, Sources sources not None, list seqs not None, list deliveries not None,
                Py_ssize_t start, uint64_t first_lease_id, uint64_t deadline,
                uint64_t max_bytes) -> tuple[list[bytes], int, int]:
    """Write the jobs `seqs[start:]` as JSON objects, the lease of the one at place p being `first_lease_id + p`.

    Returns the texts, and why it stopped before the end: DONE (it did not), MISSING with the source that is
    not loaded, CORRUPT, DELETED (the record is gone; its successor may be there), or FULL (more would have more
    than `max_bytes`; one is always given).
    """
    cdef render_request request
    cdef job_lease job
    cdef uint32_t missing_source = 0
    cdef int outcome = RECORD_OK
    cdef Py_ssize_t place
    cdef list texts = []
    cdef uint64_t size = 0
    memset(&request, 0, sizeof(request))
    request.sources, request.source_count = sources.spans, sources.count
    request.topic_id = log.topic_id
    job.deadline = deadline
    for place in range(start, len(seqs)):
        job.seq, job.deliveries = seqs[place], deliveries[place]
        job.lease_id = first_lease_id + place
        outcome = render_job(&log.index, &request, &job, &job_text, &missing_source)
        if outcome < 0:
            raise MemoryError("no memory for a job")
        if outcome != RECORD_OK:
            break
        size += job_text.length
        if size > max_bytes and texts:
            outcome = JOBS_FULL
            break
        texts.append(PyBytes_FromStringAndSize(<const char *>job_text.base, job_text.length))
    if job_text.capacity > KEPT_TEXT_CAPACITY:
        free(job_text.base)
        job_text.base, job_text.length, job_text.capacity = NULL, 0, 0
    return texts, outcome, missing_source
