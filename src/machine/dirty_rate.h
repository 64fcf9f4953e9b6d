/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast the guest writes memory, measured for a time on a thread of its own, without a
 * migration: by reading a sample of pages twice, or by KVM's dirty log or ring.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"
#include "machine/machine.h"

enum dirty_rate_mode { DIRTY_RATE_SAMPLING, DIRTY_RATE_RING, DIRTY_RATE_BITMAP };
enum dirty_rate_status { DIRTY_RATE_UNSTARTED, DIRTY_RATE_MEASURING, DIRTY_RATE_MEASURED };

#define DIRTY_RATE_MIN_US     50000u
#define DIRTY_RATE_MAX_US     60000000u
#define DIRTY_RATE_SAMPLE     512u /* pages a GiB */
#define DIRTY_RATE_MIN_SAMPLE 128u
#define DIRTY_RATE_MAX_SAMPLE 16384u

struct dirty_rate_request {
	enum dirty_rate_mode mode;
	uint64_t time_us;
	uint64_t sample_pages; /* sampling only */
	bool sample_given;
};

/* A plain struct (published). Rates are MiB a second. */
struct dirty_rate_info {
	enum dirty_rate_status status;
	enum dirty_rate_mode mode;
	uint64_t rate;
	uint64_t start_time_s; /* CLOCK_REALTIME */
	uint64_t time_us, sample_pages;
	unsigned int vcpu_count; /* ring only */
	uint64_t vcpu_rate[MACHINE_MAX_VCPUS];
	char error[256]; /* "": none */
};

/* Starts a measurement; returns at once. Not on the control thread. */
int machine_calc_dirty_rate(struct machine *machine, const struct dirty_rate_request *request,
			    struct error **err);
/* The one under way, or the last one. Does not wait. */
void machine_query_dirty_rate(struct machine *machine, struct dirty_rate_info *info);
