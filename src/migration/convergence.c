/* SPDX-License-Identifier: Apache-2.0 */
#include "migration/convergence.h"

/* Before anything was measured: a slow local socket. */
#define DEFAULT_RATE UINT64_C(500000000)
/* A round of less says more about the messages' way there and back than about the channel; unless
 * it took long all the same. */
#define MEASURE_MIN_BYTES      (8u << 20)
#define MEASURE_MIN_BYTES_SLOW (64u << 10)
#define MEASURE_MIN_US         100000u
/* Rounds below the limit, however much each of them still gains. */
#define MAX_ROUNDS 60
/* Rounds without a gain before the guest is said not to converge. */
#define STALL_ROUNDS 3

void convergence_measure(struct convergence *c, uint64_t bytes, uint64_t us)
{
	uint64_t rate;

	if (!us)
		return;
	rate = (uint64_t)((double)bytes * 1e6 / (double)us);
	/* Every round has arrived, so a higher rate is proven, however small the round was. */
	if (bytes >= MEASURE_MIN_BYTES ||
	    (bytes >= MEASURE_MIN_BYTES_SLOW && us >= MEASURE_MIN_US) ||
	    (c->rate && rate > c->rate))
		c->rate = rate;
}

enum convergence_verdict convergence_decide(struct convergence *c, uint64_t bytes,
					    uint64_t limit_us)
{
	uint64_t rate = c->rate ? c->rate : DEFAULT_RATE;
	uint64_t expected = c->fixed_us + (uint64_t)((double)bytes * 1e6 / (double)rate);
	bool gained = c->rounds == 0 || expected < c->best_us - c->best_us / 5;

	c->rounds++;
	c->expected_us = expected;
	c->rounds_without_gain = gained ? 0 : c->rounds_without_gain + 1;
	if (gained || expected < c->best_us)
		c->best_us = expected;
	if (expected > limit_us)
		return CONVERGENCE_NEXT_ROUND;
	return gained && bytes && c->rounds < MAX_ROUNDS ? CONVERGENCE_NEXT_ROUND
							 : CONVERGENCE_STOP;
}

bool convergence_converging(const struct convergence *c, uint64_t limit_us)
{
	return c->expected_us <= limit_us || c->rounds_without_gain < STALL_ROUNDS;
}
