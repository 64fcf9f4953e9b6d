/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When to stop the guest: the expected pause is the bytes still to go over the measured rate, plus
 * the measured cost that does not depend on memory. Below the limit, rounds go on only while one
 * shrinks the expected pause by a fifth or more. Pure arithmetic, no I/O.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct convergence {
	uint64_t rate;     /* bytes a second over the channel; 0: not measured yet */
	uint64_t fixed_us; /* stop, save, load, messages */
	uint64_t expected_us, best_us;
	unsigned int rounds, rounds_without_gain;
};

enum convergence_verdict {
	CONVERGENCE_NEXT_ROUND,
	CONVERGENCE_STOP, /* the guest may be stopped now */
};

/* A round moved `bytes` in `us` microseconds, from its first byte to the answer that all has
 * arrived (time slept for a bandwidth limit not counted). */
void convergence_measure(struct convergence *c, uint64_t bytes, uint64_t us);

/* With `bytes` to go and a limit for the pause. Updates expected_us. */
enum convergence_verdict convergence_decide(struct convergence *c, uint64_t bytes,
					    uint64_t limit_us);

/* False when rounds have stopped helping and the limit is still out of reach. */
bool convergence_converging(const struct convergence *c, uint64_t limit_us);
