# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Orders of a queue into the book of their market, block by block, with no step of Python between.

Owns nothing: reader, book and arrays are the caller's. A block is small enough to stay in the nearest caches
from the check of its sums to the book, and leaves room there for the book itself.
"""

from libc.stdint cimport uint8_t, uint64_t

from everlog.native.book_output cimport BOOK_OK, BookOutput, book_output
from everlog.native.guard cimport BUSY
from everlog.native.l3_book cimport L3Kernel
from everlog.native.ring_core cimport RING_HEADER_SIZE, RING_RECORD, ring_run
from everlog.native.ring_reader cimport RingReader


cdef enum:
    BLOCK_MESSAGES = 256       # a multiple of 8, as the book wants it
    ORDER_BYTES = 128


cdef extern from "market_split.h" nogil:
    ctypedef struct channel_run:
        uint64_t market
        uint64_t channel
        uint64_t first
    bint is_channel_run(const uint8_t *records, size_t stride, size_t length, size_t count, channel_run *run)


cdef struct wanted_run:
    uint64_t type_id
    uint64_t market
    uint64_t channel
    uint64_t number            # of the next order


cdef bint goes_on(const wanted_run *wanted, const ring_run *block, const uint8_t *records) noexcept nogil:
    """Whether all messages of a block are orders of the market, and the next ones on its channel."""
    cdef channel_run found
    return (
        block.length == ORDER_BYTES and block.type_id == wanted.type_id
        and is_channel_run(records, block.stride, ORDER_BYTES, block.count, &found)
        and found.market == wanted.market and found.channel == wanted.channel
        and found.first == wanted.number
    )


cdef size_t feed(RingReader reader, L3Kernel book, wanted_run *wanted, uint64_t max_count, bint verify,
                 ring_run *taken, book_output *output, int *error) noexcept nogil:
    """Take blocks until one is not wanted, or not whole; returns how many orders were applied."""
    cdef size_t done = 0
    cdef ring_run block
    cdef const uint8_t *records
    cdef bint is_last = False
    taken.count = 0
    while not is_last and taken.count < max_count and error[0] == BOOK_OK:
        if reader.take_block(min(<uint64_t>BLOCK_MESSAGES, max_count - taken.count), verify, &block) != RING_RECORD:
            break
        if not goes_on(wanted, &block, reader.ring.segment + block.start + RING_HEADER_SIZE):
            reader.ring.offset = block.start
            break
        if taken.count == 0:
            taken.start, taken.stride = block.start, block.stride
        wanted.number += block.count
        taken.count += block.count
        is_last = block.count < BLOCK_MESSAGES
        records = reader.ring.segment + taken.start + RING_HEADER_SIZE
        done = book.apply_part(records, taken.stride, done, taken.count, output, error)
    return done


def take_orders(RingReader reader not None, L3Kernel book not None, BookOutput into not None, uint64_t type_id,
                uint64_t market, uint64_t channel, uint64_t number, uint64_t max_count, bint verify):
    """Take messages of `type_id` from a reader into a book, as long as they are orders of one market that go on
    with `number` on one channel; other threads run meanwhile.

    Returns the run as `RingReader._take_run` does. It is empty if the next messages are anything else, broken,
    not there yet, or in the next segment: to read them says which. `into` has room for `max_count` events.
    """
    cdef ring_run taken
    cdef wanted_run wanted
    cdef size_t done
    cdef int error = BOOK_OK
    wanted.type_id, wanted.market, wanted.channel, wanted.number = type_id, market, channel, number
    book.check_idle()
    reader.enter_call()
    reader.look_at_clock()
    reader.state = BUSY
    book.busy = True
    with nogil:
        done = feed(reader, book, &wanted, max_count, verify, &taken, &into.output, &error)
    book.busy = False
    reader.leave_call()
    cdef const uint8_t *failed
    if error != BOOK_OK:
        failed = reader.ring.segment + taken.start + RING_HEADER_SIZE + done * taken.stride
        book.fail(error, done, failed, ORDER_BYTES, &into.output)
    if taken.count == 0:
        return reader.segment, reader.ring.segment_id, reader.ring.offset, 0, 0, None, None
    return (reader.segment, reader.ring.segment_id, taken.start, taken.count, taken.stride, ORDER_BYTES, type_id)
