# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Book events of many markets sorted by market, and the numbers of their channels looked at, in one pass.

Owns nothing between two calls: the caller keeps the numbers that a channel has seen.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

import numpy as np


cdef enum:
    FIRST_TABLE_SLOTS = 4096 # enough for most batches, and small enough for the nearest cache


cdef extern from "market_split.h" nogil:
    size_t SPLIT_TABLE_FULL
    ctypedef struct channel_gap:
        uint64_t event
    ctypedef struct market_split:
        uint32_t *slots
        uint64_t *keys
        uint64_t *ends
        uint64_t *order
        uint64_t *channels
        uint64_t *first_events
        uint64_t *firsts
        uint64_t *lasts
        channel_gap *gaps
        uint32_t *tables
        size_t table_size
        size_t market_count
        size_t channel_count
        size_t gap_count
    size_t c_split "split_markets"(market_split *split, const uint8_t *buffer, size_t buffer_len,
                                   const uint64_t *offsets, const uint64_t *lengths, size_t count)


def split_markets(const uint8_t[::1] buffer, const uint64_t[::1] offsets, const uint64_t[::1] lengths):
    """Sort events by market; other threads run meanwhile.

    Returns the first event with a bad header (their number if there is none), then: keys of the markets,
    order of the events, where each market's end in it; keys of the channels, their first numbered events, the
    numbers of these, their last numbers; and gaps as rows of event, channel, number seen, number found.
    """
    cdef size_t count = offsets.shape[0], size = FIRST_TABLE_SLOTS, bad = SPLIT_TABLE_FULL
    cdef market_split split
    if <size_t>lengths.shape[0] != count:
        raise ValueError(f"there are {count} offsets and {lengths.shape[0]} lengths; one each is needed")
    # One row more than there are events, so that there is a first byte even of none.
    words, gaps = np.empty((7, count + 1), np.uint64), np.empty((count + 1, 4), np.uint64)
    cdef uint64_t[:, ::1] word_rows = words, gap_rows = gaps
    cdef uint32_t[::1] slots = np.empty(count + 1, np.uint32), tables
    split.keys, split.ends, split.order = &word_rows[0, 0], &word_rows[1, 0], &word_rows[2, 0]
    split.channels, split.first_events = &word_rows[3, 0], &word_rows[4, 0]
    split.firsts, split.lasts = &word_rows[5, 0], &word_rows[6, 0]
    split.slots, split.gaps = &slots[0], <channel_gap *>&gap_rows[0, 0]
    split.market_count = split.channel_count = split.gap_count = 0
    if count == 0:
        bad = 0
    while bad == SPLIT_TABLE_FULL:
        tables = np.empty(2 * size, np.uint32)
        split.tables, split.table_size = &tables[0], size
        with nogil:
            bad = c_split(&split, &buffer[0] if buffer.shape[0] else NULL, buffer.shape[0], &offsets[0],
                          &lengths[0], count)
        size *= 4
    markets, channels = split.market_count, split.channel_count
    return (
        bad, words[0, :markets], words[2, :count].view(np.intp), words[1, :markets].view(np.intp),
        words[3, :channels], words[4, :channels], words[5, :channels], words[6, :channels],
        gaps[:split.gap_count],
    )
