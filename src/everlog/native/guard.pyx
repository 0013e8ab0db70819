# cython: language_level=3
"""One object, one thread: the base of readers and writers, and why a call is refused.

Owns the states of such an object. The GIL makes looking at them and changing them one step.
"""

cimport cython

from everlog.native.ring_core cimport ring_fork_generation, ring_init

from everlog.errors import Closed, ConcurrentUse

ring_init()


cdef class OneThread:
    """An object that is used by one thread at a time, and only in the process that opened it.

    It starts closed; the subclass sets it idle. A context manager: leaving closes it.
    """

    def __cinit__(self, *args, **kwargs):
        self.state = CLOSED
        self.fork_generation = ring_fork_generation
        self.fork_generation_now = &ring_fork_generation

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
