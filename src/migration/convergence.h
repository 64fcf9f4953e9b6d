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
	/* Of the throttle: since when, what was written and sent; how often it was too much. */
	uint64_t since_us, written, sent;
	unsigned int throttle, times_too_much;
};

/* Capability auto-converge: QEMU's parameters, in percent. */
struct throttle_policy {
	unsigned int initial, increment, most;
	unsigned int threshold; /* written over sent: from here on it is too much */
	bool tailslow;          /* smaller steps towards the end: no more than is needed */
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

/*
 * After a round that sent and that left so many bytes written, ended at now_us: by how much the
 * guest is to be throttled (percent). It grows while the guest writes too much in two periods in a
 * row (of a tenth of a second at least) and the limit is out of reach.
 */
unsigned int convergence_throttle(struct convergence *c, const struct throttle_policy *policy,
				  uint64_t sent, uint64_t written, uint64_t limit_us,
				  uint64_t now_us);
