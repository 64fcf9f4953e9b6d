/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which pages of a mapping hold anything: the PAGEMAP_SCAN ioctl where the kernel has it (6.7),
 * else /proc/self/pagemap; for a memfd the file's holes (SEEK_DATA) as well, since a page of a
 * shared file may be present in the file but not in this process's page table.
 * Neither way allocates or reads guest memory. The zero page counts as untouched.
 */
#pragma once

#include <stdint.h>
#include "base/error.h"
#include "memory/ram.h"

/* Sets a bit for each page of the region that was ever touched; the others are cleared. */
int pagemap_scan(const struct ram_region *region, uint64_t *bitmap, struct error **err);
