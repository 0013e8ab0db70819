# A batch of records to append, checked in full before anything is written.
#
# Owns the limits of a record and keeps the texts alive until the batch has been framed. Writes no
# frame and knows no topic. The text of the answer to an append stands here too.

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    object PyUnicode_DecodeUTF8(const char *text, Py_ssize_t size, const char *errors)

cdef extern from "topics/record_scan.h" nogil:
    ctypedef struct span:
        const uint8_t *base
        size_t length
    ctypedef struct append_options:
        span idempotency_key
        int create
    int CREATE_ABSENT
    size_t append_scan(const uint8_t *text, size_t length, batch_record *records, size_t capacity,
                       append_options *options)

cdef enum:
    MAX_TAG_BYTES = 256
    MAX_NODE_BYTES = 128
    MAX_META_BYTES = 16384
    MAX_META_KEYS = 64
    MAX_PAYLOAD_BYTES = 1048576

cdef size_t compact_length(const uint8_t *text, size_t length) except? 0:
    """Length without insignificant white space; only texts beyond a limit are worth this copy."""
    cdef uint8_t *copy = <uint8_t *>malloc(length + 1)
    if copy == NULL:
        raise MemoryError(f"no memory to measure a text of {length} bytes")
    length = json_compact(copy, text, length)
    free(copy)
    return length


cdef int take_name(Py_ssize_t place, str what, object value, Py_ssize_t limit, const uint8_t **text,
                   uint16_t *length) except -1:
    """UTF-8 of a tag or node, which the string itself keeps; an empty one counts as absent."""
    cdef Py_ssize_t size
    if not isinstance(value, str):
        raise InvalidRecord(
            f"record {place}: {what} is a {type(value).__name__}; it must be a string or None")
    try:
        text[0] = <const uint8_t *>PyUnicode_AsUTF8AndSize(value, &size)
    except UnicodeEncodeError as error:
        raise InvalidRecord(f"record {place}: {what} cannot be written as UTF-8: {error}") from error
    if size > limit:
        raise InvalidRecord(f"record {place}: {what} has {size} bytes; at most {limit} are allowed")
    length[0] = size
    return 0


cdef int check_meta(Py_ssize_t place, const uint8_t *text, size_t length, int found) except -1:
    cdef int64_t keys = json_key_count(text, length)
    if keys < 0:
        raise InvalidRecord(f"record {place}: meta must be a JSON object")
    if keys > MAX_META_KEYS:
        raise InvalidRecord(f"record {place}: meta has {keys} keys; at most {MAX_META_KEYS} are allowed")
    if length > MAX_META_BYTES and compact_length(text, length) > MAX_META_BYTES:
        raise InvalidRecord(f"record {place}: meta has more than {MAX_META_BYTES} bytes")
    if found & TEXT_HAS_HIGH and not utf8_valid(text, length):
        raise InvalidRecord(f"record {place}: meta is not valid UTF-8")
    return 0


cdef int check_data(Py_ssize_t place, const uint8_t *text, size_t length, int found) except -1:
    if length == 0 or (found & TEXT_HAS_LOW and json_is_blank(text, length)):
        raise InvalidRecord(
            f"record {place}: data is empty; it must be JSON text, null if there is nothing to say")
    if found & TEXT_HAS_HIGH and not utf8_valid(text, length):
        raise InvalidRecord(f"record {place}: data is not valid UTF-8")
    return 0


cdef int check_size(Py_ssize_t place, const batch_record *record) except -1:
    """What counts is stored, that is without white space."""
    cdef size_t payload = compact_length(record.data, record.data_len)
    if record.meta != NULL:
        payload += compact_length(record.meta, record.meta_len)
    if payload > MAX_PAYLOAD_BYTES:
        raise RecordTooLarge(
            f"record {place}: data and meta have {payload} bytes; at most {MAX_PAYLOAD_BYTES} are allowed")
    return 0


cdef enum:
    OWNERS_PER_RECORD = 4  # data, meta, tag and node
    # The memory of the largest batch is kept for the next one, up to about 13,000 records. One batch follows
    # the other, and what malloc gets back from the end of its heap it may return to the system, page by page.
    SPARE_BYTES_MIN = 131072
    SPARE_BYTES_MAX = 1048576
    SHORTEST_RECORD = 11  # {"data":1},

cdef size_t RECORD_BYTES = sizeof(batch_record) + OWNERS_PER_RECORD * sizeof(PyObject *)
cdef void *spare_memory  # or NULL while a batch uses it; the GIL guards it
cdef size_t spare_bytes
cdef list NO_RECORDS = []


@cython.final
@cython.freelist(4)
cdef class RecordBatch:
    """Records that were checked and can be appended: objects with data, tag, node and meta.

    `frame_bytes` is what their log frames need at most. A record that breaks a limit raises
    InvalidRecord or RecordTooLarge here, before anything was written.
    """

    cdef batch_record *records   # pointers into objects that the batch keeps alive
    cdef PyObject **owners       # these objects, in the same memory; others are held by a view
    cdef size_t owner_count
    cdef Py_buffer *views        # of texts that are not plain bytes objects
    cdef size_t view_count
    cdef size_t capacity         # records there is memory for
    cdef size_t memory_bytes     # how much was allocated for them
    cdef readonly Py_ssize_t count
    cdef readonly size_t frame_bytes
    cdef str batch_node

    def __cinit__(self, list records not None, str node=None, size_t capacity=0):
        cdef Py_ssize_t place, count = PyList_GET_SIZE(records)
        cdef const uint8_t *node_text = NULL
        cdef uint16_t node_len = 0
        cdef object record
        if node is not None:
            take_name(0, "node of the batch", node, MAX_NODE_BYTES, &node_text, &node_len)
            self.batch_node = node
        self.make_room(max(<size_t>count, capacity))
        for place in range(count):
            # Reading an attribute may run code that changes the list.
            if place >= PyList_GET_SIZE(records):
                raise InvalidRecord(f"record {place}: the list of records changed while it was read")
            record = records[place]
            self.records[place].node, self.records[place].node_len = node_text, node_len
            self.take(place, record.data, record.meta, record.tag, record.node)
        self.count = count

    def __dealloc__(self):
        global spare_memory, spare_bytes
        cdef size_t place
        for place in range(self.owner_count):
            Py_DECREF(<object>self.owners[place])
        for place in range(self.view_count):
            PyBuffer_Release(&self.views[place])
        free(self.views)
        if self.memory_bytes <= SPARE_BYTES_MAX and (spare_memory == NULL or self.memory_bytes > spare_bytes):
            free(spare_memory)
            spare_memory, spare_bytes = self.records, self.memory_bytes
        else:
            free(self.records)

    def __len__(self):
        return self.count

    cdef bint is_within_limits(self, batch_record *record) noexcept:
        """Survey the texts of a scanned record, which are sound JSON; False if `take` would measure closer."""
        cdef int found = text_survey(record.data, record.data_len)
        cdef size_t text = <size_t>record.data_len + record.meta_len
        cdef size_t meta_len_size = 0
        cdef int64_t keys
        if record.meta != NULL:
            meta_len_size = FRAME_META_LEN_SIZE
            found |= text_survey(record.meta, record.meta_len)
            keys = json_key_count(record.meta, record.meta_len)
            if not 0 <= keys <= MAX_META_KEYS or record.meta_len > MAX_META_BYTES:
                return False
        record.is_compact = not found & TEXT_HAS_LOW
        if text > MAX_PAYLOAD_BYTES or record.tag_len > MAX_TAG_BYTES or record.node_len > MAX_NODE_BYTES:
            return False
        self.frame_bytes += log_frame_size(record.node_len, record.tag_len, text + meta_len_size)
        return True

    cdef int make_room(self, size_t count) except -1:
        global spare_memory
        cdef void *memory = NULL
        cdef size_t size = max(max(count, 1) * RECORD_BYTES, <size_t>SPARE_BYTES_MIN)
        if spare_memory != NULL and size <= spare_bytes:
            memory, spare_memory, size = spare_memory, NULL, spare_bytes
        else:
            memory = malloc(size)
        if memory == NULL:
            raise MemoryError(f"no memory for a batch of {count} records")
        self.records, self.memory_bytes = <batch_record *>memory, size
        self.owners = <PyObject **>(self.records + count)
        self.capacity = count
        return 0

    cdef int take(self, Py_ssize_t place, object data, object meta, object tag, object node) except -1:
        """Check the fields of one record, whose node is that of the batch so far, and keep them."""
        cdef batch_record *taken = &self.records[place]
        cdef size_t text, meta_len_size = 0
        cdef int found
        self.take_text(place, "data", data, &taken.data, &taken.data_len)
        found = text_survey(taken.data, taken.data_len)
        taken.is_compact = not found & TEXT_HAS_LOW
        taken.meta, taken.meta_len = NULL, 0
        if meta is not None:
            meta_len_size = FRAME_META_LEN_SIZE
            self.take_meta(place, meta)
        check_data(place, taken.data, taken.data_len, found)
        text = <size_t>taken.data_len + taken.meta_len
        if text > MAX_PAYLOAD_BYTES:
            check_size(place, taken)
        taken.tag_len = 0
        if tag is not None:
            take_name(place, "tag", tag, MAX_TAG_BYTES, &taken.tag, &taken.tag_len)
            self.keep(tag)
        if node is not None:
            take_name(place, "node", node, MAX_NODE_BYTES, &taken.node, &taken.node_len)
            self.keep(node)
        self.frame_bytes += log_frame_size(taken.node_len, taken.tag_len, text + meta_len_size)
        return 0

    cdef int take_meta(self, Py_ssize_t place, object meta) except -1:
        cdef batch_record *taken = &self.records[place]
        cdef int found
        self.take_text(place, "meta", meta, &taken.meta, &taken.meta_len)
        found = text_survey(taken.meta, taken.meta_len)
        check_meta(place, taken.meta, taken.meta_len, found)
        if found & TEXT_HAS_LOW:
            taken.is_compact = False
        return 0

    cdef void keep(self, object owner) noexcept:
        """Keep an object alive as long as the batch; each record has at most four."""
        Py_INCREF(owner)
        self.owners[self.owner_count] = <PyObject *>owner
        self.owner_count += 1

    cdef int take_text(self, Py_ssize_t place, str what, object value, const uint8_t **text,
                       uint32_t *length) except -1:
        cdef Py_buffer *view
        cdef Py_ssize_t size
        if PyBytes_CheckExact(value):
            text[0] = <const uint8_t *>PyBytes_AS_STRING(value)
            size = PyBytes_GET_SIZE(value)
            self.keep(value)
        else:
            view = self.free_view()
            try:
                PyObject_GetBuffer(value, view, PyBUF_SIMPLE)
            except (TypeError, BufferError) as error:
                raise InvalidRecord(
                    f"record {place}: {what} is a {type(value).__name__}; it must be JSON text as bytes"
                ) from error
            self.view_count += 1
            # An absent meta is NULL, an empty one must not be.
            text[0] = <const uint8_t *>view.buf if view.len > 0 else <const uint8_t *>PyBytes_AS_STRING(b"")
            size = view.len
        if size > <Py_ssize_t>UINT32_MAX:
            raise RecordTooLarge(f"record {place}: {what} has {size} bytes")
        length[0] = size
        return 0

    cdef Py_buffer *free_view(self) except NULL:
        """Place for one more view; each record has at most two."""
        if self.views == NULL:
            self.views = <Py_buffer *>malloc(2 * self.capacity * sizeof(Py_buffer))
            if self.views == NULL:
                raise MemoryError(f"no memory for a batch of {self.capacity} records")
        return &self.views[self.view_count]


cdef RecordBatch scanned_batch(bytes body, uint32_t max_nesting, size_t max_records, append_options *options):
    """The records of a body that is scanned, without an object for each of them.

    None if the scan leaves it to the full decoder, or if a record breaks a limit: that decoder says which.
    """
    cdef RecordBatch batch
    cdef size_t place, count, length = PyBytes_GET_SIZE(body)
    cdef size_t capacity = min(max_records, length // SHORTEST_RECORD)
    cdef const uint8_t *text = <const uint8_t *>PyBytes_AS_STRING(body)
    if json_check(text, length, max_nesting) != JSON_SOUND:
        return None
    batch = RecordBatch.__new__(RecordBatch, NO_RECORDS, None, capacity)
    count = append_scan(text, length, batch.records, capacity, options)
    if count == 0:
        return None
    batch.keep(body)
    for place in range(count):
        if not batch.is_within_limits(&batch.records[place]):
            return None
    batch.count = count
    return batch


def scan_append(bytes body not None, uint32_t max_nesting, size_t max_records):
    """The checked records, the idempotency key and `create` of an append; None for the full decoder."""
    cdef append_options options
    cdef RecordBatch batch = scanned_batch(body, max_nesting, max_records, &options)
    if batch is None:
        return None
    cdef object key = None
    if options.idempotency_key.base != NULL:
        key = PyUnicode_DecodeUTF8(<const char *>options.idempotency_key.base, options.idempotency_key.length, NULL)
    return batch, key, None if options.create == CREATE_ABSENT else options.create != 0


cdef enum:  # how an answer shows the seqs
    OMITTED, LISTED, NULLED

SEQS_OMITTED, SEQS_LISTED, SEQS_NULL = OMITTED, LISTED, NULLED


cdef str in_ms(uint64_t time_ns):
    """A time in milliseconds with three digits behind the point."""
    cdef uint64_t time_us = time_ns // 1000
    return f"{time_us // 1000}.{time_us % 1000:03d}"


def render_fields(str topic not None, uint64_t first_seq, uint64_t last_seq, int seqs, uint64_t head_seq, bint created,
                  bint deduped, uint64_t total_ns, uint64_t written_ns, uint64_t synced_ns, bytes more not None) -> bytes:
    """The fields of the answer to an append, without braces, and with the seqs listed, null or omitted.

    A topic's name stands for itself in JSON: no character of it needs an escape. `more` comes last inside of
    `performance` and begins with a comma, or is empty.
    """
    cdef uint64_t place, count = last_seq - first_seq + 1
    cdef str listed = ""
    if last_seq < first_seq:
        raise ValueError(f"the seqs {first_seq} to {last_seq} are none")
    if seqs == LISTED:
        listed = ",".join([f"{first_seq + place}" for place in range(count)])
        listed = f',"seqs":[{listed}]'
    elif seqs == NULLED:
        listed = ',"seqs":null'
    return (
        f'"topic":"{topic}","first_seq":{first_seq},"last_seq":{last_seq}{listed},"head_seq":{head_seq},'
        f'"count":{count},"created":{"true" if created else "false"},"deduped":{"true" if deduped else "false"},'
        f'"performance":{{"server_total_ms":{in_ms(total_ns)},'
        f'"wal_append_ms":{in_ms(written_ns)},"fsync_ms":{in_ms(synced_ns)}'
    ).encode() + more + b"}"
