/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slows vCPUs down: all of them by a part of their time (auto-converge), or each to a rate at which
 * it may write memory (vCPU dirty limit; needs the dirty ring, which knows who wrote). A vCPU that
 * is throttled runs for 10 ms and then sleeps on its own thread, where a command (stop, save)
 * wakes it at once.
 *
 * One thread, started by the first use, does the timing. The functions may be called on any thread
 * but the control thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"

struct machine;
struct throttle;

#define VCPU_ALL UINT32_MAX

struct vcpu_limit {
	unsigned int index;
	uint64_t limit, rate; /* MiB a second */
};

/* 0: no limit, as cancel. Refuses by name: no dirty ring, no such vCPU. */
int machine_set_dirty_limit(struct machine *machine, uint32_t vcpu, uint64_t rate,
			    struct error **err);
/* The vCPUs that have a limit, at most `most`; returns how many. Does not wait. */
unsigned int machine_query_dirty_limit(struct machine *machine, struct vcpu_limit *limits,
				       unsigned int most);
