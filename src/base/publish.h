/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A published snapshot: one writer thread puts a plain struct, any thread takes a copy, neither
 * ever waits for a lock (a sequence lock; the reader retries while a put is in progress). This is
 * how long work shows its state to the control thread.
 */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct published {
	_Atomic(uint32_t) sequence;
	size_t size;              /* bytes of the struct */
	_Atomic(uint64_t) *words; /* owned */
};

/* Any size; returns 0 or -ENOMEM. The initial value is all zero. */
int published_init(struct published *p, size_t size);
void published_free(struct published *p);

/* One writer at a time. Does not allocate; may be called in the window. */
void published_put(struct published *p, const void *value);
void published_get(struct published *p, void *value);
