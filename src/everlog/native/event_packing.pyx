# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Events of varying length laid one behind the other: thin shims over event_packing.c.

Owns the checks that keep the C code inside its arrays. Knows no queue and no venue; `everlog.market.packing`
says what the parts of an event are.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "event_packing.h" nogil:
    int PACKING_SCALE_MAX
    ctypedef struct packing_levels:
        const uint64_t *prices
        const uint8_t *price_decimals
        const uint64_t *sizes
        const uint8_t *size_decimals
        const uint8_t *sides
        int64_t count
    ctypedef struct packing_groups:
        uint64_t *placed
        int64_t *bids
        uint8_t *price_scales
        uint8_t *size_scales
    void packing_place(packing_levels levels, const int64_t *starts, int64_t groups, int price_scale,
                       int size_scale, packing_groups out)
    void packing_write(const uint8_t *headers, uint64_t header_bytes, const uint8_t *bodies,
                       uint64_t body_bytes, const uint8_t *levels, uint64_t level_bytes,
                       const int64_t *counts, int64_t events, uint64_t length_at, uint8_t *out)

cdef int64_t LENGTH_BYTES = sizeof(uint32_t)


def place_levels(
    const uint64_t[::1] prices not None,
    const uint8_t[::1] price_decimals not None,
    const uint64_t[::1] sizes not None,
    const uint8_t[::1] size_decimals not None,
    const uint8_t[::1] sides not None,
    const int64_t[::1] starts not None,
    int price_scale,
    int size_scale,
    uint64_t[:, ::1] placed not None,
    int64_t[::1] bids not None,
    uint8_t[::1] price_scales not None,
    uint8_t[::1] size_scales not None,
):
    """Put the levels of each group in order, bids (side 1) first, at the scale of the group.

    Group g has the levels from `starts[g]` to the next start. A scale of -1 is the largest number of decimals
    in the group; a given one cuts further digits off. What leaves 64 bits becomes 2^64 - 1. Fills the last
    four arrays.
    """
    cdef packing_levels levels
    cdef packing_groups out
    cdef int64_t count = prices.shape[0], groups = starts.shape[0], before = 0, at
    if not (price_decimals.shape[0] == sizes.shape[0] == size_decimals.shape[0] == sides.shape[0] == count):
        raise ValueError("every column must have a value for each level")
    if placed.shape[0] != count or placed.shape[1] != 2:
        raise ValueError("placed must have two numbers for each level")
    if not (bids.shape[0] == price_scales.shape[0] == size_scales.shape[0] == groups):
        raise ValueError("there must be a place for the counts and scales of each group")
    if max(price_scale, size_scale) > PACKING_SCALE_MAX or min(price_scale, size_scale) < -1:
        raise ValueError(f"scales are -1 to {PACKING_SCALE_MAX}, not {price_scale} and {size_scale}")
    for at in range(count):
        if price_decimals[at] > PACKING_SCALE_MAX or size_decimals[at] > PACKING_SCALE_MAX:
            raise ValueError(f"level {at} has more than {PACKING_SCALE_MAX} decimals")
    for at in range(groups):
        if not before <= starts[at] <= count:
            raise ValueError(f"group {at} starts at {starts[at]}, outside of the levels or before the last one")
        before = starts[at]
    if groups == 0 or count == 0:
        bids[:] = 0
        price_scales[:] = <uint8_t>max(price_scale, 0)
        size_scales[:] = <uint8_t>max(size_scale, 0)
        return
    levels.prices, levels.price_decimals = &prices[0], &price_decimals[0]
    levels.sizes, levels.size_decimals = &sizes[0], &size_decimals[0]
    levels.sides, levels.count = &sides[0], count
    out.placed, out.bids = &placed[0, 0], &bids[0]
    out.price_scales, out.size_scales = &price_scales[0], &size_scales[0]
    with nogil:
        packing_place(levels, &starts[0], groups, price_scale, size_scale, out)


def write_events(
    const uint8_t[:, ::1] headers not None,
    const uint8_t[:, ::1] bodies not None,
    const uint8_t[:, ::1] levels not None,
    const int64_t[::1] counts not None,
    int64_t length_at,
    uint8_t[::1] into not None,
):
    """Write each event's header, body and levels one behind the other, its length into the header."""
    cdef int64_t events = counts.shape[0], total = 0, at
    cdef int64_t header_bytes = headers.shape[1], body_bytes = bodies.shape[1], level_bytes = levels.shape[1]
    if headers.shape[0] != events or bodies.shape[0] != events:
        raise ValueError("there must be a header, a body and a count for each event")
    if length_at < 0 or length_at + LENGTH_BYTES > header_bytes:
        raise ValueError("the length must lie inside the header")
    for at in range(events):
        if counts[at] < 0 or counts[at] > levels.shape[0] - total:
            raise ValueError("the counts do not add up to the number of levels")
        total += counts[at]
    if total != levels.shape[0] or into.shape[0] != events * (header_bytes + body_bytes) + total * level_bytes:
        raise ValueError("the counts do not add up to the levels and bytes there are")
    if events == 0:
        return
    with nogil:
        packing_write(&headers[0, 0], header_bytes, &bodies[0, 0], body_bytes,
                      &levels[0, 0] if total else NULL, level_bytes, &counts[0], events, length_at, &into[0])
