/* SPDX-License-Identifier: Apache-2.0 */
#include "base/publish.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* Tries before a reader lets the writer have the CPU: it may have been preempted in its put. */
#define PUBLISH_SPINS 64

static size_t published_words(const struct published *p)
{
	return (p->size + 7) / 8;
}

/* Bytes of the struct in its word i: fewer than 8 at most in the last. */
static size_t published_bytes(const struct published *p, size_t i)
{
	size_t left = p->size - i * 8;

	return left < 8 ? left : 8;
}

int published_init(struct published *p, size_t size)
{
	atomic_init(&p->sequence, 0);
	p->size = size;
	p->words = calloc(published_words(p) + 1, sizeof(*p->words));
	return p->words ? 0 : -ENOMEM;
}

void published_free(struct published *p)
{
	free(p->words);
	p->words = NULL;
	p->size = 0;
}

void published_put(struct published *p, const void *value)
{
	uint32_t sequence = atomic_load_explicit(&p->sequence, memory_order_relaxed);

	atomic_store_explicit(&p->sequence, sequence + 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
	for (size_t i = 0; i < published_words(p); i++) {
		uint64_t word = 0;

		memcpy(&word, (const char *)value + i * 8, published_bytes(p, i));
		atomic_store_explicit(&p->words[i], word, memory_order_relaxed);
	}
	atomic_store_explicit(&p->sequence, sequence + 2, memory_order_release);
}

void published_get(struct published *p, void *value)
{
	for (unsigned int tries = 1;; tries++) {
		uint32_t sequence = atomic_load_explicit(&p->sequence, memory_order_acquire);

		if (!(sequence & 1)) {
			for (size_t i = 0; i < published_words(p); i++) {
				uint64_t word =
					atomic_load_explicit(&p->words[i], memory_order_relaxed);

				memcpy((char *)value + i * 8, &word, published_bytes(p, i));
			}
			atomic_thread_fence(memory_order_acquire);
			if (atomic_load_explicit(&p->sequence, memory_order_relaxed) == sequence)
				return;
		}
		if (tries % PUBLISH_SPINS == 0)
			sched_yield();
	}
}
