/* CRC-32 by carry-less multiplication where the processor has it, by tables elsewhere.
 *
 * All numbers are in the reflected domain: bit 0 of a word is the highest power of x. */
#include "crc32.h"

#include <string.h>

#define POLYNOMIAL 0xEDB88320u
#define SLICES 8
#define CHECKSUM_AT 28

static uint32_t slice_table[SLICES][256];

static void build_slice_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ ((crc & 1) ? POLYNOMIAL : 0);
        slice_table[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int slice = 1; slice < SLICES; slice++) {
            uint32_t before = slice_table[slice - 1][byte];
            slice_table[slice][byte] = (before >> 8) ^ slice_table[0][before & 0xFF];
        }
}

/* Continue the (inverted) state over `length` bytes, eight at a time. */
static uint32_t update_by_slices(uint32_t state, const uint8_t *data, size_t length)
{
    while (length >= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        word ^= state;
        state = 0;
        for (int slice = 0; slice < SLICES; slice++)
            state ^= slice_table[SLICES - 1 - slice][(word >> (8 * slice)) & 0xFF];
        data += 8;
        length -= 8;
    }
    while (length-- > 0)
        state = (state >> 8) ^ slice_table[0][(state ^ *data++) & 0xFF];
    return state;
}

static uint32_t record_by_slices(const uint64_t *words, const uint8_t *payload, size_t length)
{
    uint64_t header[8] = {words[0], words[1], words[2], words[3]};
    uint32_t state = update_by_slices(~0u, (const uint8_t *)header, sizeof header);
    return update_by_slices(state, payload, length);
}

static int best_way;

#if defined(__x86_64__)
#include <immintrin.h>

/* x^k mod P for the distances we fold over (in bits: distance + 32, distance - 32). */
#define FOLD_64_BYTES _mm_set_epi64x(0x1c6e41596, 0x154442bd4)
#define FOLD_48_BYTES _mm_set_epi64x(0x174359406, 0x03db1ecdc)
#define FOLD_32_BYTES _mm_set_epi64x(0x15a546366, 0x0f1da05aa)
#define FOLD_16_BYTES _mm_set_epi64x(0x0ccaa009e, 0x1751997d0)
#define FOLD_8_BYTES _mm_set_epi64x(0, 0x163cd6124)
/* Barrett reduction: the quotient x^64 / P and P itself. */
#define BARRETT _mm_set_epi64x(0x1f7011641, 0x1db710641)

#define CLMUL_TARGET __attribute__((target("pclmul,sse4.1")))

CLMUL_TARGET static inline __m128i fold(__m128i state, __m128i by, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(state, by, 0x00);
    __m128i high = _mm_clmulepi64_si128(state, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

CLMUL_TARGET static inline __m128i load(const uint8_t *data)
{
    return _mm_loadu_si128((const __m128i *)data);
}

/* Reduce 128 folded bits to the 32 bits of the state. */
CLMUL_TARGET static inline uint32_t reduce(__m128i state)
{
    const __m128i mask = _mm_set_epi32(0, 0, 0, -1);
    __m128i high = _mm_clmulepi64_si128(state, FOLD_16_BYTES, 0x10);
    state = _mm_xor_si128(_mm_srli_si128(state, 8), high);

    __m128i low = _mm_clmulepi64_si128(_mm_and_si128(state, mask), FOLD_8_BYTES, 0x00);
    state = _mm_xor_si128(_mm_srli_si128(state, 4), low);

    __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(state, mask), BARRETT, 0x10);
    quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, mask), BARRETT, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(state, quotient), 1);
}

/* Take `length` more bytes, a multiple of 16, into the sum of all before and reduce it to the state. */
CLMUL_TARGET static inline uint32_t finish_by_clmul(__m128i sum, const uint8_t *data, size_t length)
{
    if (length >= 64) {
        sum = fold(sum, FOLD_16_BYTES, load(data));
        __m128i lane1 = load(data + 16), lane2 = load(data + 32), lane3 = load(data + 48);
        for (data += 64, length -= 64; length >= 64; data += 64, length -= 64) {
            sum = fold(sum, FOLD_64_BYTES, load(data));
            lane1 = fold(lane1, FOLD_64_BYTES, load(data + 16));
            lane2 = fold(lane2, FOLD_64_BYTES, load(data + 32));
            lane3 = fold(lane3, FOLD_64_BYTES, load(data + 48));
        }
        /* Each lane by its own distance: three short chains side by side, not one long one. */
        sum = fold(sum, FOLD_48_BYTES, lane3);
        lane1 = fold(lane1, FOLD_32_BYTES, _mm_setzero_si128());
        sum = _mm_xor_si128(sum, fold(lane2, FOLD_16_BYTES, lane1));
    }
    for (; length >= 16; data += 16, length -= 16)
        sum = fold(sum, FOLD_16_BYTES, load(data));
    return reduce(sum);
}

/* Continue the state over a multiple of 16 bytes, at least 16. */
CLMUL_TARGET static uint32_t update_by_clmul(uint32_t state, const uint8_t *data, size_t length)
{
    __m128i first = _mm_xor_si128(load(data), _mm_cvtsi32_si128((int)state));
    return finish_by_clmul(first, data + 16, length - 16);
}

#define WIDE_TARGET __attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.1")))

WIDE_TARGET static inline __m512i fold_wide(__m512i state, __m512i by, __m512i next)
{
    __m512i low = _mm512_clmulepi64_epi128(state, by, 0x00);
    __m512i high = _mm512_clmulepi64_epi128(state, by, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, 0x96); /* all three by exclusive or */
}

/* Take `length` more bytes, a multiple of 16, into four lanes and reduce them to the state. */
WIDE_TARGET static inline uint32_t finish_wide(__m512i lanes, const uint8_t *data, size_t length)
{
    const __m512i by_64_bytes = _mm512_broadcast_i32x4(FOLD_64_BYTES);
    __m512i by_lane = _mm512_zextsi128_si512(FOLD_48_BYTES); /* and nothing for the last lane */
    by_lane = _mm512_inserti32x4(by_lane, FOLD_32_BYTES, 1);
    by_lane = _mm512_inserti32x4(by_lane, FOLD_16_BYTES, 2);

    for (; length >= 64; data += 64, length -= 64)
        lanes = fold_wide(lanes, by_64_bytes, _mm512_loadu_si512(data));
    lanes = fold_wide(lanes, by_lane, _mm512_maskz_mov_epi64(0xC0, lanes));
    __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64(lanes, 1));
    __m128i sum = _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    for (; length >= 16; data += 16, length -= 16)
        sum = fold(sum, FOLD_16_BYTES, load(data));
    return reduce(sum);
}

/* The state after a header and `length` bytes of payload, a multiple of 16. The second half of a header is
 * zero: it only moves the first half 32 bytes on. */
CLMUL_TARGET static uint32_t record_by_clmul(const uint64_t *words, const uint8_t *payload, size_t length)
{
    __m128i first =
        _mm_xor_si128(_mm_set_epi64x((int64_t)words[1], (int64_t)words[0]), _mm_cvtsi32_si128(-1));
    __m128i second = _mm_set_epi64x((int64_t)words[3], (int64_t)words[2]);
    second = fold(second, FOLD_32_BYTES, _mm_setzero_si128());
    return finish_by_clmul(fold(first, FOLD_48_BYTES, second), payload, length);
}

/* As record_by_clmul, four lanes in one register. */
WIDE_TARGET static uint32_t record_wide(const uint64_t *words, const uint8_t *payload, size_t length)
{
    __m128i first =
        _mm_xor_si128(_mm_set_epi64x((int64_t)words[1], (int64_t)words[0]), _mm_cvtsi32_si128(-1));
    __m128i second = _mm_set_epi64x((int64_t)words[3], (int64_t)words[2]);
    __m512i lanes = _mm512_inserti32x4(_mm512_zextsi128_si512(first), second, 1);
    return finish_wide(lanes, payload, length);
}

/* As update_by_clmul, four lanes in one register; at least 64 bytes. */
WIDE_TARGET static uint32_t update_wide(uint32_t state, const uint8_t *data, size_t length)
{
    __m512i first = _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state));
    return finish_wide(_mm512_xor_si512(_mm512_loadu_si512(data), first), data + 64, length - 64);
}

/* One sum for all of them: each goes on from where the one before ends if its own sum is right. If it is not,
 * the end of all is wrong as well, by a factor that is never 0. Only two wrong ones can make up for each
 * other, and that is as likely as for any other data that a sum of 32 bits is over. */
WIDE_TARGET static int all_match_wide(const uint8_t *record, size_t stride, size_t length, size_t count)
{
    const __m512i by_64_bytes = _mm512_broadcast_i32x4(FOLD_64_BYTES);
    const __mmask16 covered = 0xFF7E; /* all words but the commit word and the checksum */
    __m512i lanes = _mm512_setzero_si512();
    uint32_t sum = ~0u;
    for (size_t item = 0; item < count; item++, record += stride) {
        __m512i before = _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)sum));
        __m512i header = _mm512_xor_si512(_mm512_maskz_loadu_epi32(covered, record), before);
        lanes = fold_wide(lanes, by_64_bytes, header);
        for (size_t at = 64; at < 64 + length; at += 64)
            lanes = fold_wide(lanes, by_64_bytes, _mm512_loadu_si512(record + at));
        memcpy(&sum, record + CHECKSUM_AT, sizeof sum);
    }
    return ~finish_wide(lanes, record, 0) == sum;
}

static int find_best_way(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("pclmul") || !__builtin_cpu_supports("sse4.1"))
        return CRC32_TABLES;
    int is_wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
    return is_wide ? CRC32_WIDE_CLMUL : CRC32_CLMUL;
}

static inline uint32_t update(int way, uint32_t state, const uint8_t *data, size_t length)
{
    size_t head = way == CRC32_TABLES ? 0 : length & ~(size_t)15;
    if (head >= 64 && way == CRC32_WIDE_CLMUL)
        state = update_wide(state, data, head);
    else if (head > 0)
        state = update_by_clmul(state, data, head);
    return length > head ? update_by_slices(state, data + head, length - head) : state;
}

static inline uint32_t record_state(int way, const uint64_t *words, const uint8_t *payload, size_t length)
{
    size_t head = length & ~(size_t)15;
    uint32_t state;
    if (way == CRC32_TABLES)
        return record_by_slices(words, payload, length);
    if (head >= 64 && way == CRC32_WIDE_CLMUL)
        state = record_wide(words, payload, head);
    else
        state = record_by_clmul(words, payload, head);
    return length > head ? update_by_slices(state, payload + head, length - head) : state;
}

#else

static int find_best_way(void)
{
    return CRC32_TABLES;
}

static int all_match_wide(const uint8_t *record, size_t stride, size_t length, size_t count)
{
    (void)record, (void)stride, (void)length, (void)count;
    return 0;
}

static inline uint32_t update(int way, uint32_t state, const uint8_t *data, size_t length)
{
    (void)way;
    return update_by_slices(state, data, length);
}

static inline uint32_t record_state(int way, const uint64_t *words, const uint8_t *payload, size_t length)
{
    (void)way;
    return record_by_slices(words, payload, length);
}

#endif

void crc32_init(void)
{
    build_slice_table();
    best_way = find_best_way();
}

uint32_t crc32_ieee(int way, const void *data, size_t length)
{
    return ~update(way < best_way ? way : best_way, ~0u, data, length);
}

/* Not inlined: it would make the step of a reader too large to be inlined itself. */
__attribute__((noinline)) uint32_t crc32_record(int way, const uint64_t *words, const void *payload,
                                                size_t length)
{
    return ~record_state(way < best_way ? way : best_way, words, payload, length);
}

static inline uint64_t word_at(const uint8_t *data)
{
    uint64_t word;
    memcpy(&word, data, sizeof word);
    return word;
}

int crc32_record_matches(int way, const uint8_t *record, size_t length)
{
    uint64_t last = word_at(record + 24); /* type, flags, checksum */
    uint64_t commit_len = UINT32_MAX, checksum = ~commit_len;
    uint64_t words[4] = {word_at(record) & ~commit_len, word_at(record + 8), word_at(record + 16),
                         last & ~checksum};
    uint64_t zero = word_at(record + 32) | word_at(record + 40) | word_at(record + 48) | word_at(record + 56);
    return zero == 0 && crc32_record(way, words, record + 64, length) == last >> 32;
}

size_t crc32_records_match(int way, const uint8_t *records, size_t stride, size_t length, size_t count)
{
    way = way < best_way ? way : best_way;
    if (way == CRC32_WIDE_CLMUL && length % 64 == 0 && all_match_wide(records, stride, length, count))
        return count;
    for (size_t item = 0; item < count; item++, records += stride)
        if (!crc32_record_matches(way, records, length))
            return item;
    return count;
}
