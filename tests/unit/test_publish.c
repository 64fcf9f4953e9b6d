/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <pthread.h>
#include <stdbool.h>
#include "base/publish.h"

#define WORDS   37
#define READERS 2
#define MILLIS  300

struct value {
	uint64_t words[WORDS];
	uint32_t tail; /* not a multiple of 8 in all */
} __attribute__((packed));

struct race {
	struct published published;
	_Atomic(bool) stop;
	_Atomic(uint64_t) torn, backwards, changes;
};

/* All words of a good value follow from the first. */
static void value_fill(struct value *value, uint64_t number)
{
	for (uint64_t i = 0; i < WORDS; i++)
		value->words[i] = number * (i + 1);
	value->tail = (uint32_t)number;
}

static void *read_values(void *data)
{
	struct race *race = data;
	uint64_t last = 0;

	while (!race->stop) {
		struct value got, want;

		published_get(&race->published, &got);
		value_fill(&want, got.words[0]);
		if (memcmp(&got, &want, sizeof(got)) != 0)
			race->torn++;
		if (got.words[0] < last)
			race->backwards++;
		if (got.words[0] != last)
			race->changes++;
		last = got.words[0];
	}
	return NULL;
}

static void test_never_torn(void **state)
{
	struct race race = {0};
	pthread_t readers[READERS];
	uint64_t end = clock_us() + MILLIS * 1000, number = 0;
	struct value value, last;

	assert_int_equal(published_init(&race.published, sizeof(value)), 0);
	for (int i = 0; i < READERS; i++)
		assert_int_equal(pthread_create(&readers[i], NULL, read_values, &race), 0);
	while (clock_us() < end || !race.changes) {
		value_fill(&value, ++number);
		published_put(&race.published, &value);
	}
	race.stop = true;
	for (int i = 0; i < READERS; i++)
		pthread_join(readers[i], NULL);
	assert_int_equal(race.torn, 0);
	assert_int_equal(race.backwards, 0);
	assert_true(race.changes > 0);
	published_get(&race.published, &last);
	assert_memory_equal(&last, &value, sizeof(last));
	published_free(&race.published);
}

static void test_starts_zero_and_keeps_to_size(void **state)
{
	struct published published;
	uint8_t put[13], got[14];

	assert_int_equal(published_init(&published, sizeof(put)), 0);
	memset(got, 0xee, sizeof(got));
	published_get(&published, got);
	for (size_t i = 0; i < sizeof(put); i++)
		assert_int_equal(got[i], 0);
	assert_int_equal(got[13], 0xee);
	memset(put, 0x5a, sizeof(put));
	published_put(&published, put);
	published_get(&published, got);
	assert_memory_equal(got, put, sizeof(put));
	assert_int_equal(got[13], 0xee);
	published_free(&published);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_never_torn),
		cmocka_unit_test(test_starts_zero_and_keeps_to_size),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
