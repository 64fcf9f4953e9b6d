/* SPDX-License-Identifier: Apache-2.0 */
/* CRC32C (Castagnoli, RFC 3720 appendix B.4), by the processor's instruction where it has one. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Continues a CRC: start with 0; crc32c(crc32c(0, a), b) is the CRC of a followed by b. */
uint32_t crc32c(uint32_t crc, const void *data, size_t length);

/* The same by tables, for processors without the instruction and to test against. */
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t length);
