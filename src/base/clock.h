/* SPDX-License-Identifier: Apache-2.0 */
/* Time as the whole program uses it: CLOCK_MONOTONIC, in nanoseconds or microseconds. */
#pragma once

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline uint64_t clock_us(void)
{
	return clock_ns() / 1000;
}
