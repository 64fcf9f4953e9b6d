/* SPDX-License-Identifier: Apache-2.0 */
/* What all unit tests start from: cmocka and its prerequisites, errors, repeatable randomness. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/clock.h"
#include "base/error.h"

/* Fails with the error's text, which says more than "-22 != 0". */
#define assert_ok(call_, err_)                                                                     \
	do {                                                                                       \
		if ((call_) < 0)                                                                   \
			fail_msg("%s: %s", #call_, error_text(err_));                              \
	} while (0)

/* The call fails with this code and a text that has `part_` in it; the error is freed. */
#define assert_refused(call_, err_, code_, part_)                                                  \
	do {                                                                                       \
		assert_int_equal(call_, code_);                                                    \
		if (!strstr(error_text(err_), part_))                                              \
			fail_msg("no '%s' in '%s'", part_, error_text(err_));                      \
		error_free(&(err_));                                                               \
	} while (0)

/* A generator whose seed is printed; GODWIT_TEST_SEED repeats a run. */
static inline uint64_t random_seed(void)
{
	const char *text = getenv("GODWIT_TEST_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 0) : clock_ns();

	print_message("GODWIT_TEST_SEED=%llu\n", (unsigned long long)seed);
	return seed;
}

/* splitmix64 */
static inline uint64_t random_next(uint64_t *state)
{
	uint64_t value = *state += UINT64_C(0x9e3779b97f4a7c15);

	value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
	return value ^ value >> 31;
}
