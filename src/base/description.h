/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A machine's description: a list of (key, value) texts in a fixed order, e.g. "memory.size" =
 * "1073741824", "cpu.count" = "2", "cpuid.7.0.ebx" = "0x219c07ab". It is the first thing a source
 * sends; the destination builds and checks its machine from it. Keys and values are printable
 * ASCII, keys at most 63 bytes, values at most 511.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"

#define DESCRIPTION_MAX_ENTRIES 1024
#define DESCRIPTION_MAX_KEY     63
#define DESCRIPTION_MAX_VALUE   511

struct description_entry {
	char *key, *value;
	bool required; /* a receiver that does not know the key refuses it by name */
};

struct description {
	struct description_entry *entries;
	unsigned int count;
};

/*
 * Adds an entry. -EINVAL: an empty key, or a byte that is not printable ASCII; -E2BIG: past one of
 * the limits above; -EEXIST: the key is there already; -ENOMEM. Nothing is added then.
 */
int description_add(struct description *d, bool required, const char *key, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
const char *description_get(const struct description *d, const char *key);
/* A decimal or 0x value; -ENOENT when absent, -EINVAL when no number. */
int description_get_number(const struct description *d, const char *key, uint64_t *value);
void description_free(struct description *d);
