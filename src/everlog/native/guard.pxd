# cython: language_level=3
"""What other native modules may know of the one-thread rule."""


cdef enum:
    IDLE = 0
    BUSY = 1
    CLOSED = 2


cdef class OneThread:
    cdef int state
    cdef unsigned long fork_generation       # of the process that opened the object
    cdef const unsigned long *fork_generation_now

    cdef int enter_call(self) except -1
    cdef void leave_call(self) noexcept


cdef inline int enter_hot(OneThread target) except -1:
    """`enter_call` for the paths where even a virtual call counts."""
    if target.state == IDLE and target.fork_generation == target.fork_generation_now[0]:
        return 0
    return target.enter_call()
