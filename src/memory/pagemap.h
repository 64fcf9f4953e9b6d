/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which pages of a mapping hold anything: the PAGEMAP_SCAN ioctl where the kernel has it (6.7),
 * else /proc/self/pagemap; for a memfd the file's holes (SEEK_DATA) as well, since a page of a
 * shared file may be present in the file but not in this process's page table.
 * Neither way allocates or reads guest memory. The zero page counts as untouched (by the file only
 * for a process with CAP_SYS_ADMIN, which may know frames; else it counts as touched). A hugetlb
 * file has no holes to ask for: if it holds more than is mapped here, all of it counts as touched.
 */
#pragma once

#include <stdint.h>
#include "base/error.h"
#include "memory/ram.h"

/* Sets a bit for each page of the region that was ever touched; the others are cleared. */
int pagemap_scan(const struct ram_region *region, uint64_t *bitmap, struct error **err);

/* The same by a given method, -ENOTTY where the kernel lacks it; to compare them. */
enum pagemap_method { PAGEMAP_BY_EITHER, PAGEMAP_BY_IOCTL, PAGEMAP_BY_FILE };

int pagemap_scan_by(enum pagemap_method method, const struct ram_region *region, uint64_t *bitmap,
		    struct error **err);
