/* SPDX-License-Identifier: Apache-2.0 */
/* One pass over a guest page: is it zero, and if not, what is its CRC32C. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* True when all 4096 bytes are zero (vector code); false after the first non-zero block. */
bool page_is_zero(const void *page);

/* The same by what every processor of the architecture has; to test against. */
bool page_is_zero_portable(const void *page);

/*
 * CRC32C of `pages` 4 KiB pages that lie one after the other, as crc32c() would give it for the
 * whole; uses three interleaved CRC streams a page. `crc` continues an earlier value.
 */
uint32_t pages_crc32c(uint32_t crc, const void *data, uint64_t pages);
