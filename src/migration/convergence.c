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

/* So long is looked at before the throttle changes: what it does must show first. */
#define THROTTLE_PERIOD_US 100000u

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

static unsigned int next_step(const struct convergence *c, const struct throttle_policy *policy)
{
	double run = 100.0 - c->throttle, threshold, needed;

	if (!policy->tailslow)
		return policy->increment;
	threshold = (double)c->sent * policy->threshold / 100.0;
	needed = run - run * (threshold / (double)c->written);
	return needed < policy->increment ? (unsigned int)(needed + 0.5) : policy->increment;
}

unsigned int convergence_throttle(struct convergence *c, const struct throttle_policy *policy,
				  uint64_t sent, uint64_t written, uint64_t limit_us,
				  uint64_t now_us)
{
	unsigned int wanted;

	if (c->since_us == 0) {
		/* The first round sends all memory: nothing to compare with. */
		c->since_us = now_us;
		return c->throttle;
	}
	c->sent += sent;
	c->written += written;
	if (now_us - c->since_us < THROTTLE_PERIOD_US)
		return c->throttle;
	if (c->expected_us <= limit_us || c->written * 100 <= c->sent * policy->threshold)
		c->times_too_much = 0;
	else
		c->times_too_much++;
	if (c->times_too_much >= 2) {
		c->times_too_much = 0;
		wanted = c->throttle ? c->throttle + next_step(c, policy) : policy->initial;
		c->throttle = wanted < policy->most ? wanted : policy->most;
	}
	c->since_us = now_us;
	c->sent = c->written = 0;
	return c->throttle;
}
