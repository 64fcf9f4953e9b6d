/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who answers at a port or a guest-physical address: ranges, sorted, found by binary search. An
 * access that nobody claims, or that leaves its range, reads all ones and writes nothing.
 *
 * Ranges are added before the guest runs; look-ups then need no lock. Handlers run on vCPU threads
 * at the same time: each device has its own lock.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"

/* offset counts from the range's start; size is 1, 2, 4 or 8 bytes. The handler fills or takes
 * *value, little-endian; bits beyond size are zero on a write and ignored on a read. */
typedef void bus_handler(void *opaque, uint64_t offset, bool write, uint64_t *value,
			 unsigned int size);

struct bus_range {
	uint64_t start, size;
	bus_handler *handler;
	void *opaque;
	const char *name;
};

struct bus {
	struct bus_range *ranges; /* sorted by start */
	unsigned int count, capacity;
};

/* Refuses an overlap, naming both (-EEXIST), and a range that is empty or wraps (-EINVAL). */
int bus_add(struct bus *bus, uint64_t start, uint64_t size, const char *name, bus_handler *handler,
	    void *opaque, struct error **err);
void bus_free(struct bus *bus);

const struct bus_range *bus_find(const struct bus *bus, uint64_t address);

/* One access of `size` bytes at data (any size up to 8). */
void bus_access(const struct bus *bus, uint64_t address, bool write, void *data, unsigned int size);
