# The base of readers and writers: one object, one thread, and why a call is refused.
#
# Owns the states of such an object. The GIL makes reading and changing the state one step.

cdef enum:
    IDLE = 0
    BUSY = 1
    CLOSED = 2


cdef class OneThread:
    """An object that is used by one thread at a time, and only in the process that opened it.

    It starts closed; the subclass sets it idle. A context manager: leaving closes it.
    """

    cdef int state
    cdef unsigned long fork_generation  # of the process that opened the object

    def __cinit__(self, *args, **kwargs):
        self.state = CLOSED
        self.fork_generation = ring_fork_generation

    cdef int enter_call(self) except -1:
        if self.state == IDLE and self.fork_generation == ring_fork_generation:
            return 0
        if self.fork_generation != ring_fork_generation:
            raise Closed("this object belongs to the parent process; open a new one after fork")
        if self.state == CLOSED:
            raise Closed("this object is closed")
        raise ConcurrentUse(
            "another thread or a callback is using this object; give each thread its own")

    cdef void leave_call(self) noexcept:
        if self.state == BUSY:  # not if it was closed meanwhile
            self.state = IDLE

    def _begin_exclusive(self) -> None:
        """Mark the object busy: until `leave_call` every other call raises ConcurrentUse."""
        self.enter_call()
        self.state = BUSY

    def _exclusive(self):
        """A context in which every other call raises ConcurrentUse."""
        return Exclusive(self)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close()


@cython.final
cdef class Exclusive:
    """The context of `OneThread._exclusive`."""

    cdef OneThread owner

    def __init__(self, OneThread owner):
        self.owner = owner

    def __enter__(self):
        self.owner._begin_exclusive()

    def __exit__(self, kind, error, trace):
        self.owner.leave_call()


cdef inline int enter_hot(OneThread target) except -1:
    """`enter_call` for the paths where even a virtual call counts."""
    if target.state == IDLE and target.fork_generation == ring_fork_generation:
        return 0
    return target.enter_call()
