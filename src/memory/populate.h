/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Populating guest RAM in ranges, ahead of use, on worker threads (MADV_POPULATE_WRITE in steps of
 * at most 64 MiB, since the memory-map lock is held for a whole step; steps end on 2 MiB
 * boundaries, so that huge pages come whole).
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"

struct populate_range {
	uint8_t *hva;
	uint64_t size; /* bytes */
};

struct populate;

/*
 * Starts `threads` workers (0: one a CPU, at most 8) over the ranges (copied), in order. Ranges
 * are widened by the caller to the host page where that is wanted. Progress can be asked for at
 * any time from any thread.
 */
int populate_start(struct populate **job, const struct populate_range *ranges, unsigned int count,
		   unsigned int threads, struct error **err);

uint64_t populate_done_bytes(const struct populate *job);
uint64_t populate_total_bytes(const struct populate *job);

/* True once a worker has failed: the others stop, and populate_wait() will say why. */
bool populate_failed(const struct populate *job);

/* Asks the workers to stop after their current step. */
void populate_cancel(struct populate *job);

/* Waits for the workers; 0, -ECANCELED or the first error. */
int populate_wait(struct populate *job, struct error **err);
void populate_free(struct populate *job); /* cancels and waits if still running */
