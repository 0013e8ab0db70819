/* CRC-32 (IEEE, as zlib.crc32): crc32_ieee("hello") == 0x3610A686, of nothing == 0. */
#ifndef EVERLOG_CRC32_H
#define EVERLOG_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* Choose the fastest routine this processor has. Call once before the first checksum. */
void crc32_init(void);

/* Checksum of `length` bytes at `data`. */
uint32_t crc32_ieee(const void *data, size_t length);

/* By at most so much of what the processor has, so that tests can compare all ways that there are. */
enum { CRC32_TABLES, CRC32_CLMUL, CRC32_WIDE_CLMUL, CRC32_BEST = CRC32_WIDE_CLMUL };
uint32_t crc32_ieee_by(int way, const void *data, size_t length);

/* How many of `count` payloads of one length, `stride` bytes apart, have the checksum that was kept of them,
 * up to the first that has not; the sums lie as far apart. `way` as above. */
size_t crc32_ieee_matches(int way, const uint8_t *data, const uint8_t *sums, size_t stride, size_t length,
                          size_t count);

#endif
