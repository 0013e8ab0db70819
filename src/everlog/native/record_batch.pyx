# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""A batch of records to append, checked in full before anything is written.

Owns the limits of a record and keeps the texts alive until the batch has been framed. Writes no
frame and knows no topic.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport UINT32_MAX, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free, malloc

from everlog.native.frames cimport FRAME_META_LEN_SIZE, json_compact, log_frame_size, utf8_valid

from everlog.errors import InvalidRecord, RecordTooLarge


cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef enum:
    MAX_TAG_BYTES = 256
    MAX_NODE_BYTES = 128
    MAX_META_BYTES = 16384
    MAX_META_KEYS = 64
    MAX_PAYLOAD_BYTES = 1048576

LIMITS = {
    "MAX_TAG_BYTES": MAX_TAG_BYTES,
    "MAX_NODE_BYTES": MAX_NODE_BYTES,
    "MAX_META_BYTES": MAX_META_BYTES,
    "MAX_META_KEYS": MAX_META_KEYS,
    "MAX_PAYLOAD_BYTES": MAX_PAYLOAD_BYTES,
}


cdef inline bint is_white(uint8_t byte) noexcept nogil:
    return byte == b' ' or byte == b'\n' or byte == b'\r' or byte == b'\t'


cdef size_t skip_white(const uint8_t *text, size_t length, size_t at) noexcept nogil:
    while at < length and is_white(text[at]):
        at += 1
    return at


cdef size_t skip_string(const uint8_t *text, size_t length, size_t at) noexcept nogil:
    """Where the string whose first character is at `at` has ended."""
    while at < length and text[at] != b'"':
        at += 2 if text[at] == b'\\' else 1
    return at + 1


cdef Py_ssize_t count_keys(const uint8_t *text, size_t length) noexcept nogil:
    """Top-level keys of a JSON object, by its commas; -1 if the text is no object."""
    cdef size_t at = skip_white(text, length, 0)
    cdef Py_ssize_t commas = 0, depth = 0
    if at >= length or text[at] != b'{':
        return -1
    at = skip_white(text, length, at + 1)
    if at < length and text[at] == b'}':
        return 0
    while at < length:
        if text[at] == b'"':
            at = skip_string(text, length, at + 1)
            continue
        if text[at] == b'{' or text[at] == b'[':
            depth += 1
        elif text[at] == b'}' or text[at] == b']':
            depth -= 1
        elif text[at] == b',' and depth == 0:
            commas += 1
        at += 1
    return commas + 1


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


cdef int check_meta(Py_ssize_t place, const uint8_t *text, size_t length) except -1:
    cdef Py_ssize_t keys = count_keys(text, length)
    if keys < 0:
        raise InvalidRecord(f"record {place}: meta must be a JSON object")
    if keys > MAX_META_KEYS:
        raise InvalidRecord(f"record {place}: meta has {keys} keys; at most {MAX_META_KEYS} are allowed")
    if length > MAX_META_BYTES and compact_length(text, length) > MAX_META_BYTES:
        raise InvalidRecord(f"record {place}: meta has more than {MAX_META_BYTES} bytes")
    if not utf8_valid(text, length):
        raise InvalidRecord(f"record {place}: meta is not valid UTF-8")
    return 0


cdef int check_payload(Py_ssize_t place, const batch_record *record) except -1:
    cdef size_t payload = <size_t>record.data_len + record.meta_len
    if skip_white(record.data, record.data_len, 0) == record.data_len:
        raise InvalidRecord(
            f"record {place}: data is empty; it must be JSON text, null if there is nothing to say")
    if not utf8_valid(record.data, record.data_len):
        raise InvalidRecord(f"record {place}: data is not valid UTF-8")
    if payload > MAX_PAYLOAD_BYTES:
        payload = compact_length(record.data, record.data_len)
        if record.meta != NULL:
            payload += compact_length(record.meta, record.meta_len)
        if payload > MAX_PAYLOAD_BYTES:
            raise RecordTooLarge(
                f"record {place}: data and meta have {payload} bytes; "
                f"at most {MAX_PAYLOAD_BYTES} are allowed")
    return 0


@cython.final
cdef class RecordBatch:
    """Records that were checked and can be appended: objects with data, tag, node and meta.

    `frame_bytes` is what their log frames need at most. A record that breaks a limit raises
    InvalidRecord or RecordTooLarge here, before anything was written.
    """

    def __cinit__(self, list records not None, str node=None):
        cdef Py_ssize_t place, count = PyList_GET_SIZE(records)
        cdef batch_record defaults
        cdef object record
        defaults.node, defaults.node_len = NULL, 0
        if node is not None:
            take_name(0, "node of the batch", node, MAX_NODE_BYTES, &defaults.node, &defaults.node_len)
            self.batch_node = node
        self.records = <batch_record *>calloc(max(count, 1), sizeof(batch_record))
        if self.records == NULL:
            raise MemoryError(f"no memory for a batch of {count} records")
        self.capacity = count
        for place in range(count):
            # Reading an attribute may run code that changes the list.
            if place >= PyList_GET_SIZE(records):
                raise InvalidRecord(f"record {place}: the list of records changed while it was read")
            record = records[place]
            self.count = place + 1
            self.take(place, record, &defaults)

    def __dealloc__(self):
        cdef Py_ssize_t place
        cdef size_t view
        for place in range(self.count):
            Py_XDECREF(self.records[place].data_owner)
            Py_XDECREF(self.records[place].meta_owner)
            Py_XDECREF(self.records[place].tag_owner)
            Py_XDECREF(self.records[place].node_owner)
        for view in range(self.view_count):
            PyBuffer_Release(&self.views[view])
        free(self.records)
        free(self.views)

    def __len__(self):
        return self.count

    cdef int take(self, Py_ssize_t place, object record, const batch_record *defaults) except -1:
        cdef batch_record *taken = &self.records[place]
        cdef object value
        self.take_text(place, "data", record.data, &taken.data, &taken.data_len, &taken.data_owner)
        value = record.meta
        if value is not None:
            self.take_text(place, "meta", value, &taken.meta, &taken.meta_len, &taken.meta_owner)
            check_meta(place, taken.meta, taken.meta_len)
        check_payload(place, taken)
        value = record.tag
        if value is not None:
            take_name(place, "tag", value, MAX_TAG_BYTES, &taken.tag, &taken.tag_len)
            Py_INCREF(value)
            taken.tag_owner = <PyObject *>value
        value = record.node
        if value is None:
            taken.node, taken.node_len = defaults.node, defaults.node_len
        else:
            take_name(place, "node", value, MAX_NODE_BYTES, &taken.node, &taken.node_len)
            Py_INCREF(value)
            taken.node_owner = <PyObject *>value
        self.measure(taken)
        return 0

    cdef void measure(self, const batch_record *taken) noexcept:
        cdef size_t text = <size_t>taken.data_len + taken.meta_len
        cdef size_t meta_len_size = FRAME_META_LEN_SIZE if taken.meta != NULL else 0
        self.frame_bytes += log_frame_size(taken.node_len, taken.tag_len, text + meta_len_size)
        self.longest_text = max(self.longest_text, text)

    cdef int take_text(self, Py_ssize_t place, str what, object value, const uint8_t **text, uint32_t *length,
                       PyObject **owner) except -1:
        cdef Py_buffer *view
        cdef Py_ssize_t size
        if PyBytes_CheckExact(value):
            text[0] = <const uint8_t *>PyBytes_AS_STRING(value)
            size = PyBytes_GET_SIZE(value)
            Py_INCREF(value)
            owner[0] = <PyObject *>value
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
