# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""A request of HTTP/1.1 as a value, and the short way to it: one that came whole and in the usual shape.

Owns what counts as usual. Everything else (pieces, chunks, upgrades, repeated headers, faults of any kind)
is left to the full parser, which also decides what is refused: the short way never refuses, it gives up.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Contains, PyDict_SetItem
from libc.stdint cimport uint8_t
from libc.string cimport memcmp


cdef enum:
    # Digits of a Content-Length: more than nine may not fit into what is added up here.
    MAX_LENGTH_DIGITS = 9
    TOKEN = 1  # may stand in the name of a header
    VALUE = 2  # may stand in the value of a header
    TARGET = 4  # may stand in a request target

cdef struct Cursor:
    const uint8_t *text
    Py_ssize_t at
    Py_ssize_t size

cdef uint8_t KINDS[256]


cdef void set_kinds():
    """What each byte may be part of; the rules of RFC 9110, tighter where they leave a choice."""
    cdef int byte
    for byte in range(256):
        KINDS[byte] = 0
        if byte == 9 or 32 <= byte != 127:
            KINDS[byte] |= VALUE
        if 33 <= byte < 127 and byte != c'#':
            KINDS[byte] |= TARGET
        if (c'a' <= byte <= c'z') or (c'A' <= byte <= c'Z') or (c'0' <= byte <= c'9'):
            KINDS[byte] |= TOKEN
    for byte in b"!#$%&'*+-.^_`|~":
        KINDS[byte] |= TOKEN

set_kinds()

# Headers that change how the rest is read, or what becomes of the connection. One that the full parser
# treats in a special way must be here, whatever that way is.
SPECIAL_HEADERS = frozenset(
    {
        b"connection",
        b"expect",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
cdef frozenset SPECIAL = SPECIAL_HEADERS
cdef bytes HOST = b"host"
cdef bytes CONTENT_LENGTH = b"content-length"
cdef bytes CONNECTION = b"connection"
cdef bytes KEEP_ALIVE = b"keep-alive"
cdef str GET = "GET"
cdef str POST = "POST"
cdef str PUT = "PUT"
cdef str DELETE = "DELETE"


@cython.freelist(64)
cdef class Request:
    """One request: complete when the application's `handle` sees it, without its body in `check_head`.

    `context` is the application's own: what it learned from the head (such as who is asking) and wants to
    have again when the body is there.
    """

    cdef public str method
    cdef public bytes path
    cdef public bytes query
    cdef public dict headers
    cdef public str peer
    cdef public bytes body
    cdef public object context
    cdef public bint keep_alive
    cdef public bint is_http_1_0
    cdef public bint offers_upgrade
    # Whether a response to it needs nothing but the usual head.
    cdef public bint is_plain

    def __init__(self, str method, bytes path, bytes query, dict headers, str peer):
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.peer = peer
        self.body = b""
        self.keep_alive = True

    def header(self, bytes name):
        """The value of a header by its lower-case name; several lines of one name are joined by commas."""
        return self.headers.get(name)


cdef str take_method(Cursor *cursor):
    """One of the usual methods and the blank behind it; None if it is another one."""
    cdef const uint8_t *text = cursor.text
    if cursor.size < 16:
        return None
    if memcmp(text, b"POST ", 5) == 0:
        cursor.at = 5
        return POST
    if memcmp(text, b"GET ", 4) == 0:
        cursor.at = 4
        return GET
    if memcmp(text, b"PUT ", 4) == 0:
        cursor.at = 4
        return PUT
    if memcmp(text, b"DELETE ", 7) == 0:
        cursor.at = 7
        return DELETE
    return None


cdef bint take_target(Cursor *cursor, Request request, Py_ssize_t max_bytes):
    """The target in its usual form, the version and the end of the line."""
    cdef const uint8_t *text = cursor.text
    cdef Py_ssize_t start = cursor.at
    cdef Py_ssize_t at = start
    cdef Py_ssize_t question = -1
    if text[at] != c'/':
        return False
    while at < cursor.size and KINDS[text[at]] & TARGET:
        if text[at] == c'?' and question < 0:
            question = at
        at += 1
    if at - start > max_bytes or cursor.size - at < 11 or memcmp(text + at, b" HTTP/1.1\r\n", 11) != 0:
        return False
    if question < 0:
        request.path = PyBytes_FromStringAndSize(<const char *>text + start, at - start)
        request.query = b""
    else:
        request.path = PyBytes_FromStringAndSize(<const char *>text + start, question - start)
        request.query = PyBytes_FromStringAndSize(<const char *>text + question + 1, at - question - 1)
    cursor.at = at + 11
    return True


cdef bytes take_name(Cursor *cursor):
    """The lower-case name of a header and the colon behind it; None if it has none."""
    cdef const uint8_t *text = cursor.text
    cdef Py_ssize_t start = cursor.at
    cdef Py_ssize_t at = start
    cdef Py_ssize_t place
    cdef uint8_t byte
    cdef bytes name
    cdef char *lower
    while at < cursor.size and KINDS[text[at]] & TOKEN:
        at += 1
    if at == start or at >= cursor.size or text[at] != c':':
        return None
    name = PyBytes_FromStringAndSize(NULL, at - start)
    lower = PyBytes_AS_STRING(name)
    for place in range(at - start):
        byte = text[start + place]
        lower[place] = byte + 32 if c'A' <= byte <= c'Z' else byte
    cursor.at = at + 1
    return name


cdef bytes take_value(Cursor *cursor):
    """The value of a header without the blanks around it, and the end of its line; None if it has no end."""
    cdef const uint8_t *text = cursor.text
    cdef Py_ssize_t start = cursor.at
    cdef Py_ssize_t at
    cdef Py_ssize_t end
    while start < cursor.size and (text[start] == c' ' or text[start] == c'\t'):
        start += 1
    at = start
    while at < cursor.size and KINDS[text[at]] & VALUE:
        at += 1
    if cursor.size - at < 2 or text[at] != c'\r' or text[at + 1] != c'\n':
        return None
    end = at
    while end > start and (text[end - 1] == c' ' or text[end - 1] == c'\t'):
        end -= 1
    cursor.at = at + 2
    return PyBytes_FromStringAndSize(<const char *>text + start, end - start)


cdef Py_ssize_t take_headers(Cursor *cursor, dict headers, Py_ssize_t max_lines):
    """All header lines and the empty one; the length of the body, or -1 if anything is unusual."""
    cdef Py_ssize_t lines = 0
    cdef Py_ssize_t body_bytes = 0
    cdef bytes name, value
    while cursor.at < cursor.size and cursor.text[cursor.at] != c'\r':
        name = take_name(cursor)
        if name is None or PyDict_Contains(headers, name):
            return -1
        value = take_value(cursor)
        lines += 1
        if value is None or lines > max_lines or (name in SPECIAL and not keeps_alive(name, value)):
            return -1
        PyDict_SetItem(headers, name, value)
        if name == CONTENT_LENGTH:
            body_bytes = length_of(value)
            if body_bytes < 0:
                return -1
    if cursor.size - cursor.at < 2 or cursor.text[cursor.at + 1] != c'\n':
        return -1
    cursor.at += 2
    return body_bytes if PyDict_Contains(headers, HOST) else -1


cdef bint keeps_alive(bytes name, bytes value):
    """Whether a header says what HTTP/1.1 implies anyway; many clients send it."""
    return name == CONNECTION and value.lower() == KEEP_ALIVE


cdef Py_ssize_t length_of(bytes digits):
    """The number that some digits are; -1 if they are anything else, or too many."""
    cdef Py_ssize_t number = 0
    cdef uint8_t byte
    if not 0 < PyBytes_GET_SIZE(digits) <= MAX_LENGTH_DIGITS:
        return -1
    for byte in digits:
        if not c'0' <= byte <= c'9':
            return -1
        number = 10 * number + (byte - c'0')
    return number


def read_plain(
    bytes data not None,
    str peer not None,
    Py_ssize_t max_target_bytes,
    Py_ssize_t max_header_bytes,
    Py_ssize_t max_headers,
    Py_ssize_t max_body_bytes,
):
    """The request that `data` is, if it is exactly one, whole and in the usual shape; None otherwise."""
    cdef Cursor cursor
    cdef Request request
    cdef Py_ssize_t head_start, body_bytes
    cursor.text = <const uint8_t *>PyBytes_AS_STRING(data)
    cursor.at = 0
    cursor.size = PyBytes_GET_SIZE(data)
    cdef str method = take_method(&cursor)
    if method is None:
        return None
    request = Request.__new__(Request)
    if not take_target(&cursor, request, max_target_bytes):
        return None
    head_start = cursor.at
    request.headers = {}
    body_bytes = take_headers(&cursor, request.headers, max_headers)
    if body_bytes < 0 or cursor.at - head_start > max_header_bytes or body_bytes > max_body_bytes:
        return None
    if cursor.size - cursor.at != body_bytes:
        return None
    request.body = PyBytes_FromStringAndSize(<const char *>cursor.text + cursor.at, body_bytes)
    request.method = method
    request.peer = peer
    request.keep_alive = True
    request.is_plain = not PyDict_Contains(request.headers, CONNECTION)
    return request
