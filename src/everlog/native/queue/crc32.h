/* CRC-32 (IEEE, as zlib.crc32): crc32_ieee("hello") == 0x3610A686, of nothing == 0. */
#ifndef EVERLOG_CRC32_H
#define EVERLOG_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* Choose the fastest routine this processor has. Call once before the first checksum. */
void crc32_init(void);

/* `way`: by at most so much of what the processor has, so that tests can compare all ways that there are. */
enum { CRC32_TABLES, CRC32_CLMUL, CRC32_WIDE_CLMUL, CRC32_BEST = CRC32_WIDE_CLMUL };

/* Checksum of `length` bytes at `data`. */
uint32_t crc32_ieee(int way, const void *data, size_t length);

/* Checksum of a message header and its payload in one pass. `words` are the first half of the header with
 * commit word and checksum zero; its second half is zero. */
uint32_t crc32_record(int way, const uint64_t *words, const void *payload, size_t length);

/* Whether the record, whose payload has `length` bytes, has the checksum that stands in its header. */
int crc32_record_matches(int way, const uint8_t *record, size_t length);

/* How many of `count` records with payloads of one length, `stride` bytes apart, have the checksum that
 * stands in their header, up to the first that has not. */
size_t crc32_records_match(int way, const uint8_t *records, size_t stride, size_t length, size_t count);

#endif
