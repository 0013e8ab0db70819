# The text of the answer to an append: numbers into JSON, without a Python object for each.
#
# Owns the layout of these fields and nothing else; what is in them is decided by its caller.

cdef enum:
    DIGITS_MAX = 20  # of a number of 64 bits
    NUMBERS = 7
    # More than all fixed text of the fields together.
    TEXT_BYTES = 256
    # How the seqs are told: not at all, one by one, or as null.
    OMITTED = 0
    LISTED = 1
    NULLED = 2

SEQS_OMITTED, SEQS_LISTED, SEQS_NULL = OMITTED, LISTED, NULLED


cdef char *put(char *at, const char *text, Py_ssize_t size) noexcept:
    memcpy(at, text, size)
    return at + size


cdef char *put_bytes(char *at, bytes text):
    return put(at, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


cdef char *put_number(char *at, uint64_t number) noexcept:
    """A number in decimal."""
    cdef char digits[DIGITS_MAX]
    cdef int start = DIGITS_MAX
    while True:
        start -= 1
        digits[start] = <char>(c'0' + number % 10)
        number //= 10
        if number == 0:
            break
    return put(at, digits + start, DIGITS_MAX - start)


cdef char *put_ms(char *at, uint64_t time_ns) noexcept:
    """A time in milliseconds with three digits behind the point."""
    cdef uint64_t time_us = time_ns // 1000
    cdef uint64_t rest_us = time_us % 1000
    at = put_number(at, time_us // 1000)
    at[0] = c'.'
    at[1] = <char>(c'0' + rest_us // 100)
    at[2] = <char>(c'0' + rest_us // 10 % 10)
    at[3] = <char>(c'0' + rest_us % 10)
    return at + 4


cdef char *put_flag(char *at, bint flag) noexcept:
    return put(at, b"true", 4) if flag else put(at, b"false", 5)


cdef char *put_seqs(char *at, uint64_t first_seq, uint64_t last_seq) noexcept:
    """All seqs from the first to the last as a JSON array."""
    cdef uint64_t seq = first_seq
    at[0] = c'['
    at = put_number(at + 1, seq)
    while seq < last_seq:
        seq += 1
        at[0] = c','
        at = put_number(at + 1, seq)
    at[0] = c']'
    return at + 1


def render_fields(
    str topic not None,
    uint64_t first_seq,
    uint64_t last_seq,
    int seqs,
    uint64_t head_seq,
    bint created,
    bint deduped,
    uint64_t waited_ns,
    uint64_t synced_ns,
    bytes more not None,
) -> bytes:
    """The fields without braces. A topic's name stands for itself in JSON: no character of it needs an escape.

    `more` comes last inside of `performance` and begins with a comma, or is empty.
    """
    if last_seq < first_seq:
        raise ValueError(f"the seqs {first_seq} to {last_seq} are none")
    cdef Py_ssize_t name_bytes
    cdef const char *name = PyUnicode_AsUTF8AndSize(topic, &name_bytes)
    cdef uint64_t count = last_seq - first_seq + 1
    cdef bytes room = PyBytes_FromStringAndSize(
        NULL,
        TEXT_BYTES
        + NUMBERS * DIGITS_MAX
        + name_bytes
        + (2 + (DIGITS_MAX + 1) * count if seqs == LISTED else 0)
        + PyBytes_GET_SIZE(more),
    )
    cdef char *start = PyBytes_AS_STRING(room)
    cdef char *at = put(put(put(start, b'"topic":"', 9), name, name_bytes), b'"', 1)
    at = put_number(put(at, b',"first_seq":', 13), first_seq)
    at = put_number(put(at, b',"last_seq":', 12), last_seq)
    if seqs == LISTED:
        at = put_seqs(put(at, b',"seqs":', 8), first_seq, last_seq)
    elif seqs == NULLED:
        at = put(at, b',"seqs":null', 12)
    at = put_number(put(at, b',"head_seq":', 12), head_seq)
    at = put_number(put(at, b',"count":', 9), count)
    at = put_flag(put(at, b',"created":', 11), created)
    at = put_flag(put(at, b',"deduped":', 11), deduped)
    at = put_ms(put(at, b',"performance":{"server_total_ms":', 34), waited_ns)
    at = put_ms(put(at, b',"wal_append_ms":', 17), waited_ns - min(waited_ns, synced_ns))
    at = put_ms(put(at, b',"fsync_ms":', 12), synced_ns)
    at = put_bytes(at, more)
    at[0] = c'}'
    return room[: at + 1 - start]
