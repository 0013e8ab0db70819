# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Book events in bulk: rows of text to columns, columns to events, events sorted by market.

Owns nothing between two calls but the columns of a `RowParser`; its checks keep the C code inside its arrays.
Reads no file and knows no venue: `everlog.market.venues` and `everlog.market.packing` do.
"""

from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport INT64_MAX, INT64_MIN, UINT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

import numpy as np

cdef extern from "market/csv_rows.h" nogil:
    ctypedef enum csv_kind:
        CSV_UNSIGNED, CSV_SIGNED, CSV_DECIMAL, CSV_PRICE, CSV_CHOICE, CSV_IDENTIFIER, CSV_HASH
    ctypedef struct csv_choice:
        const char *text
        uint64_t length
        uint8_t code
    ctypedef struct csv_column:
        uint64_t field
        csv_kind kind
        const csv_choice *choices
        uint64_t choice_count
        uint64_t *values
        uint8_t *extras
    ctypedef struct csv_result:
        uint64_t rows, consumed, lines, field
        int problem
    void csv_parse(const char *text, uint64_t length, char delimiter, uint64_t field_count,
                   const csv_column *columns, uint64_t column_count, uint32_t *row_lines,
                   uint64_t capacity, csv_result *result)
    bint append_digit(uint64_t *value, unsigned digit)

cdef extern from "market/book_protocol.h" nogil:
    int LARGEST_SCALE
    const uint64_t *TENS
    enum:
        BOOK_OK, EVENT_SNAPSHOT, EVENT_HEARTBEAT, MODE_L3, FLAG_SPARSE
    ctypedef struct book_header:
        uint16_t venue_id, flags
        uint32_t market_id, stream_id
        uint64_t seq
        uint8_t event_type, book_mode
    int read_header(const uint8_t *payload, size_t length, book_header *header)
    bint __builtin_mul_overflow(uint64_t a, uint64_t b, uint64_t *product)
    bint signed_overflow "__builtin_mul_overflow"(int64_t a, uint64_t b, int64_t *product)
    void __builtin_prefetch(const void *address)

# --- Levels of a feed ---------------------------------------------------------------------------------------

cdef bint read_scaled(text, int scale, uint64_t largest, uint64_t *value, int *most) except -1:
    """Read digits with one point at most at a scale; False for anything else. `most` rises to its decimals."""
    cdef Py_ssize_t length = 0, at, decimals = 0
    cdef const char *digits = PyUnicode_AsUTF8AndSize(text, &length)
    cdef bint has_point = False
    value[0] = 0
    for at in range(length):
        if digits[at] == c"." and not has_point:
            has_point = True
        elif not c"0" <= digits[at] <= c"9" or not append_digit(value, digits[at] - c"0"):
            return False
        else:
            decimals += has_point
    most[0] = max(most[0], decimals)
    if decimals <= scale <= LARGEST_SCALE and __builtin_mul_overflow(value[0], TENS[scale - decimals], value):
        return False
    return length > has_point and decimals <= LARGEST_SCALE and value[0] <= largest


def pack_levels(levels, int price_scale, int size_scale):
    """Return levels as `LEVEL`s, and the most decimals of prices and sizes; they hold if these are no more."""
    cdef bytes packed = bytes(16 * len(levels))
    cdef uint64_t *into = <uint64_t *><char *>packed
    cdef int[2] most = [0, 0]
    for level in levels:
        if not read_scaled(level[0], price_scale, INT64_MAX, into, &most[0]):
            return None  # so do prices with a sign
        if not read_scaled(level[1], size_scale, UINT64_MAX, into + 1, &most[1]):
            return None
        into += 2
    return packed, most[0], most[1]


# --- Rows of text -----------------------------------------------------------------------------------------

UNSIGNED, SIGNED, DECIMAL, PRICE = <int>CSV_UNSIGNED, <int>CSV_SIGNED, <int>CSV_DECIMAL, <int>CSV_PRICE
CHOICE, IDENTIFIER, HASH = <int>CSV_CHOICE, <int>CSV_IDENTIFIER, <int>CSV_HASH

PROBLEMS = (
    "",
    "has another number of fields than the first line",
    "is no number",
    "is negative",
    "is too large for 64 bits",
    "is none of the known values",
    "has a quote that is not closed",
)


cdef class RowParser:
    """Converts the wanted columns of rows; made once per file.

    A column is (place in the row, kind, [(text, code)]). Places ascend.
    """

    cdef csv_column *columns
    cdef csv_choice *choices
    cdef uint64_t column_count
    cdef uint64_t field_count
    cdef char delimiter
    cdef list kept_texts  # the choices point into these

    def __cinit__(self, columns, uint64_t field_count, bytes delimiter=b","):
        cdef uint64_t count = 0, at = 0, place
        if len(delimiter) != 1:
            raise ValueError("the delimiter is one byte")
        self.column_count = len(columns)
        self.field_count = field_count
        self.delimiter = delimiter[0]
        self.kept_texts = []
        for _, _, choices in columns:
            count += len(choices)
        self.columns = <csv_column *>calloc(self.column_count + 1, sizeof(csv_column))
        self.choices = <csv_choice *>calloc(count + 1, sizeof(csv_choice))
        if self.columns == NULL or self.choices == NULL:
            raise MemoryError
        for place, (field, kind, choices) in enumerate(columns):
            if place > 0 and field <= self.columns[place - 1].field:
                raise ValueError("columns must be given in the order of their places")
            self.columns[place].field = field
            self.columns[place].kind = <csv_kind><int>kind
            self.columns[place].choices = self.choices + at
            self.columns[place].choice_count = len(choices)
            for text, code in choices:
                self.kept_texts.append(text)
                self.choices[at].text = <const char *>(<bytes>text)
                self.choices[at].length = len(text)
                self.choices[at].code = code
                at += 1

    def __dealloc__(self):
        free(self.columns)
        free(self.choices)

    def parse(self, const uint8_t[::1] text not None, values, extras, uint32_t[::1] row_lines not None):
        """Convert whole lines of `text` into the arrays, one of each list per column.

        Returns (rows, bytes consumed, lines consumed, problem, field). A bad row is not consumed.
        """
        cdef uint64_t capacity = row_lines.shape[0], place
        cdef uint64_t[::1] numbers
        cdef uint8_t[::1] codes
        cdef csv_result result
        if len(values) != self.column_count or len(extras) != self.column_count:
            raise ValueError(f"need {self.column_count} arrays of values and as many of extras")
        for place in range(self.column_count):
            numbers, codes = values[place], extras[place]
            if <uint64_t>numbers.shape[0] < capacity or <uint64_t>codes.shape[0] < capacity:
                raise ValueError("every array must be as long as row_lines")
            self.columns[place].values = &numbers[0] if capacity else NULL
            self.columns[place].extras = &codes[0] if capacity else NULL
        if text.shape[0] == 0 or capacity == 0:
            return 0, 0, 0, 0, 0
        with nogil:
            csv_parse(<const char *>&text[0], text.shape[0], self.delimiter, self.field_count,
                      self.columns, self.column_count, &row_lines[0], capacity, &result)
        return result.rows, result.consumed, result.lines, result.problem, result.field


# --- Packing ----------------------------------------------------------------------------------------------

cdef enum:
    BUY = 1
    LENGTH_BYTES = 4


cdef inline uint64_t at_scale(uint64_t value, int decimals, int scale) noexcept nogil:
    """The value with as many decimals as the scale says; 2^64 - 1 if that leaves 64 bits."""
    cdef uint64_t result
    if decimals == scale:
        return value
    if decimals > scale:
        return value // TENS[decimals - scale]
    return UINT64_MAX if __builtin_mul_overflow(value, TENS[scale - decimals], &result) else result


cdef inline int64_t price_at_scale(int64_t price, int decimals, int scale) noexcept nogil:
    """As `at_scale`; what leaves 64 bits becomes the nearest end of the range."""
    cdef int64_t result
    if decimals >= scale:
        return price // <int64_t>TENS[decimals - scale]  # towards 0
    if signed_overflow(price, TENS[scale - decimals], &result):
        return INT64_MIN if price < 0 else INT64_MAX
    return result


def place_levels(
    const int64_t[::1] prices not None,
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
    in the group; a given one cuts further digits off. What leaves 64 bits becomes the nearest number that fits:
    of sizes 2^64 - 1. Fills the last four arrays; prices are in the bits of the u64.
    """
    cdef int64_t count = prices.shape[0], groups = starts.shape[0], before = 0, at, group, stop
    cdef int64_t next_places[2]  # of asks, of bids
    cdef uint8_t price_decimals_max, size_decimals_max
    if not (price_decimals.shape[0] == sizes.shape[0] == size_decimals.shape[0] == sides.shape[0] == count):
        raise ValueError("every column must have a value for each level")
    if placed.shape[0] != count or placed.shape[1] != 2:
        raise ValueError("placed must have two numbers for each level")
    if not (bids.shape[0] == price_scales.shape[0] == size_scales.shape[0] == groups):
        raise ValueError("there must be a place for the counts and scales of each group")
    if max(price_scale, size_scale) > LARGEST_SCALE or min(price_scale, size_scale) < -1:
        raise ValueError(f"scales are -1 to {LARGEST_SCALE}, not {price_scale} and {size_scale}")
    for at in range(count):
        if price_decimals[at] > LARGEST_SCALE or size_decimals[at] > LARGEST_SCALE:
            raise ValueError(f"level {at} has more than {LARGEST_SCALE} decimals")
    for at in range(groups):
        if not before <= starts[at] <= count:
            raise ValueError(f"group {at} starts at {starts[at]}, outside of the levels or before the last one")
        before = starts[at]
    if groups == 0 or count == 0:
        bids[:] = 0
        price_scales[:] = <uint8_t>max(price_scale, 0)
        size_scales[:] = <uint8_t>max(size_scale, 0)
        return
    with nogil:
        for group in range(groups):
            stop = starts[group + 1] if group + 1 < groups else count
            price_decimals_max = size_decimals_max = 0
            bids[group] = 0
            for at in range(starts[group], stop):
                price_decimals_max = max(price_decimals_max, price_decimals[at])
                size_decimals_max = max(size_decimals_max, size_decimals[at])
                bids[group] += sides[at] == BUY
            price_scales[group] = price_decimals_max if price_scale < 0 else <uint8_t>price_scale
            size_scales[group] = size_decimals_max if size_scale < 0 else <uint8_t>size_scale
            next_places[0], next_places[1] = starts[group] + bids[group], starts[group]
            for at in range(starts[group], stop):
                before = next_places[sides[at] == BUY]
                next_places[sides[at] == BUY] += 1
                placed[before, 0] = <uint64_t>price_at_scale(prices[at], price_decimals[at], price_scales[group])
                placed[before, 1] = at_scale(sizes[at], size_decimals[at], size_scales[group])


def write_events(
    const uint8_t[:, ::1] headers not None,
    const uint8_t[:, ::1] bodies not None,
    const uint8_t[:, ::1] levels not None,
    const int64_t[::1] counts not None,
    int64_t length_at,
    uint8_t[::1] into not None,
):
    """Write each event's header, body and levels one behind the other, its length into the header."""
    cdef int64_t events = counts.shape[0], total = 0, at, event, rest
    cdef uint32_t length
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
        at, total = 0, 0
        for event in range(events):
            rest = counts[event] * level_bytes
            length = <uint32_t>(header_bytes + body_bytes + rest)
            memcpy(&into[at], &headers[event, 0], header_bytes)
            memcpy(&into[at + length_at], &length, LENGTH_BYTES)
            memcpy(&into[at + header_bytes], &bodies[event, 0], body_bytes)
            if rest:
                memcpy(&into[at + header_bytes + body_bytes], &levels[total, 0], rest)
            at += length
            total += counts[event]


# --- Markets ----------------------------------------------------------------------------------------------

cdef enum:
    FIRST_TABLE_SLOTS = 4096 # enough for most batches, and small enough for the nearest cache
    HEADERS_AHEAD = 16       # events ahead of which a header is asked for

cdef extern from *:
    """
    #define EMPTY UINT32_MAX
    #define TABLE_FULL SIZE_MAX
    """
    uint32_t EMPTY
    size_t TABLE_FULL


cdef struct KeyTable:
    uint32_t *slots  # numbers of keys by hash, EMPTY where there is none
    size_t size      # a power of two
    uint64_t *keys   # by number
    size_t count


cdef struct MarketSplit:  # every array has room for as many as there are events
    KeyTable markets        # venue_id << 32 | market_id
    KeyTable channels       # venue_id << 32 | stream_id of those with numbers
    uint64_t *ends          # how many events each market has; after the sort, where they end
    uint64_t *first_events  # of each channel: its first numbered event, then its first and last number
    uint64_t *firsts
    uint64_t *lasts
    size_t gap_count


cdef inline uint32_t number_of(KeyTable *table, uint64_t key) noexcept nogil:
    """The number of a key, which is given one if it is new."""
    cdef size_t place = (key * <uint64_t>0x9E3779B97F4A7C15) >> 32 & (table.size - 1)
    while table.slots[place] != EMPTY and table.keys[table.slots[place]] != key:
        place = (place + 1) & (table.size - 1)
    if table.slots[place] == EMPTY:
        table.keys[table.count] = key
        table.slots[place] = <uint32_t>table.count
        table.count += 1
    return table.slots[place]


cdef inline uint32_t check_number(MarketSplit *split, const book_header *header, size_t event, uint32_t channel,
                                  uint64_t[:, ::1] gaps) noexcept nogil:
    """Look at the number of an order-by-order event and return its channel; `channel` is the one before."""
    cdef uint64_t key = <uint64_t>header.venue_id << 32 | header.stream_id
    cdef size_t known = split.channels.count
    if channel == EMPTY or split.channels.keys[channel] != key:
        channel = number_of(&split.channels, key)
    if split.channels.count != known:
        split.first_events[channel], split.firsts[channel] = event, header.seq
    elif header.seq != split.lasts[channel] + 1 and not header.flags & FLAG_SPARSE:
        gaps[split.gap_count, 0], gaps[split.gap_count, 1] = event, channel
        gaps[split.gap_count, 2], gaps[split.gap_count, 3] = split.lasts[channel], header.seq
        split.gap_count += 1
    split.lasts[channel] = header.seq
    return channel


cdef size_t read_headers(MarketSplit *split, const uint8_t[::1] buffer, const uint64_t[::1] offsets,
                         const uint64_t[::1] lengths, uint32_t[::1] slots, uint64_t[:, ::1] gaps) noexcept nogil:
    """Number the markets, `slots` of the events, and the channels.

    Returns the first event whose header breaks the protocol, their number if none does, or TABLE_FULL if tables
    of this size do not hold the keys. Twice the number of events is enough.
    """
    cdef size_t count = offsets.shape[0], size = buffer.shape[0], event, known
    cdef uint32_t market = EMPTY, channel = EMPTY
    cdef uint64_t key
    cdef book_header header
    for event in range(count):
        if offsets[event] > size or lengths[event] > size - offsets[event]:
            return event
        if event + HEADERS_AHEAD < count and offsets[event + HEADERS_AHEAD] < size:
            __builtin_prefetch(&buffer[offsets[event + HEADERS_AHEAD]])
        if read_header(&buffer[offsets[event]], lengths[event], &header) != BOOK_OK:
            return event
        if not EVENT_SNAPSHOT <= header.event_type <= EVENT_HEARTBEAT:
            return event
        key = <uint64_t>header.venue_id << 32 | header.market_id
        if market == EMPTY or split.markets.keys[market] != key:
            known = split.markets.count
            market = number_of(&split.markets, key)
            if split.markets.count != known:
                split.ends[market] = 0
        if split.markets.count + split.channels.count > split.markets.size // 2:
            return TABLE_FULL
        slots[event] = market
        split.ends[market] += 1
        if header.book_mode == MODE_L3 and header.seq != 0:
            channel = check_number(split, &header, event, channel, gaps)
    return count


def split_markets(const uint8_t[::1] buffer, const uint64_t[::1] offsets, const uint64_t[::1] lengths):
    """Sort events by market; other threads run meanwhile.

    Returns the first event with a bad header (their number if there is none), then: keys of the markets,
    order of the events, where each market's end in it; keys of the channels, their first numbered events, the
    numbers of these, their last numbers; and gaps as rows of event, channel, number seen, number found.
    """
    cdef size_t count = offsets.shape[0], size = FIRST_TABLE_SLOTS, bad = TABLE_FULL, before = 0, at
    cdef MarketSplit split
    if <size_t>lengths.shape[0] != count:
        raise ValueError(f"there are {count} offsets and {lengths.shape[0]} lengths; one each is needed")
    # One row more than there are events, so that there is a first byte even of none.
    words, gaps = np.empty((7, count + 1), np.uint64), np.empty((count + 1, 4), np.uint64)
    cdef uint64_t[:, ::1] word_rows = words, gap_rows = gaps
    cdef uint64_t[::1] order = words[2]
    cdef uint32_t[::1] slots = np.empty(count + 1, np.uint32), tables
    split.markets.keys, split.ends = &word_rows[0, 0], &word_rows[1, 0]
    split.channels.keys, split.first_events = &word_rows[3, 0], &word_rows[4, 0]
    split.firsts, split.lasts = &word_rows[5, 0], &word_rows[6, 0]
    while bad == TABLE_FULL:
        tables = np.full(2 * size, EMPTY, np.uint32)
        split.markets.slots, split.channels.slots = &tables[0], &tables[size]
        split.markets.size = split.channels.size = size
        split.markets.count = split.channels.count = split.gap_count = 0
        with nogil:
            bad = read_headers(&split, buffer, offsets, lengths, slots, gap_rows)
        size *= 4
    markets, channels = split.markets.count, split.channels.count
    if bad == count:
        with nogil:
            for at in range(split.markets.count):
                before += split.ends[at]
                split.ends[at] = before - split.ends[at]
            for at in range(count):
                order[split.ends[slots[at]]] = at
                split.ends[slots[at]] += 1
    return (
        bad, words[0, :markets], words[2, :count].view(np.intp), words[1, :markets].view(np.intp),
        words[3, :channels], words[4, :channels], words[5, :channels], words[6, :channels],
        gaps[:split.gap_count],
    )
