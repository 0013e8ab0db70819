# cython: language_level=3
"""One object, one thread: the states of a reader or writer, and why a call is refused."""


cdef enum:
    IDLE = 0
    BUSY = 1
    CLOSED = 2


cdef inline int refuse(int state, bint after_fork) except -1:
    """Say why this object cannot be used now."""
    from everlog.errors import Closed, ConcurrentUse

    if after_fork:
        raise Closed("this object belongs to the parent process; open a new one after fork")
    if state == CLOSED:
        raise Closed("this object is closed")
    raise ConcurrentUse(
        "another thread or a callback is using this object; give each thread its own")
