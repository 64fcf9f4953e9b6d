/* SPDX-License-Identifier: Apache-2.0 */
/* Against a model that holds one bool a bit. */
#include "unit.h"

#include <stdbool.h>
#include "base/bitmap.h"

#define MAX_BITS 700

static void model_set(bool *model, size_t first, size_t count, bool value)
{
	for (size_t i = first; i < first + count; i++)
		model[i] = value;
}

static void assert_same(const uint64_t *map, const bool *model, size_t bits)
{
	size_t count = 0, first, length, at = 0;

	for (size_t i = 0; i < bits; i++) {
		assert_int_equal(bitmap_test(map, i), model[i]);
		count += model[i];
	}
	assert_int_equal(bitmap_count(map, bits), count);
	bitmap_for_each_run (map, bits, first, length) {
		for (; at < first; at++)
			assert_false(model[at]);
		for (; at < first + length; at++)
			assert_true(model[at]);
		assert_true(at == bits || !model[at]);
	}
	for (; at < bits; at++)
		assert_false(model[at]);
}

static void test_random_ranges(void **state)
{
	uint64_t seed = random_seed();

	for (int round = 0; round < 2000; round++) {
		size_t bits = 1 + random_next(&seed) % MAX_BITS, words = BITMAP_WORDS(bits);
		/* On the heap and of the exact size, so that a sanitizer sees a step outside. */
		uint64_t *map = calloc(words, sizeof(*map));
		_Atomic(uint64_t) *shared = calloc(words, sizeof(*shared));
		bool model[MAX_BITS] = {false}, ored[MAX_BITS] = {false};

		for (int step = 0; step < 8; step++) {
			size_t first = random_next(&seed) % bits;
			size_t count = random_next(&seed) % (bits - first + 1);
			bool value = random_next(&seed) % 3 != 0;

			(value ? bitmap_set_range : bitmap_clear_range)(map, first, count);
			model_set(model, first, count, value);
			if (step == 0) {
				bitmap_set_range_atomic(shared, first, count);
				model_set(ored, first, count, true);
			}
		}
		assert_same(map, model, bits);
		assert_same((const uint64_t *)shared, ored, bits);
		free(map);
		free(shared);
	}
}

static void test_random_bits(void **state)
{
	uint64_t seed = random_seed();

	for (int round = 0; round < 500; round++) {
		size_t bits = 1 + random_next(&seed) % MAX_BITS;
		uint64_t *map = calloc(BITMAP_WORDS(bits), sizeof(*map));
		uint64_t density = random_next(&seed) % 100;
		bool model[MAX_BITS] = {false};

		for (size_t i = 0; i < bits; i++)
			if (random_next(&seed) % 100 < density) {
				bitmap_set(map, i);
				model[i] = true;
			}
		assert_same(map, model, bits);
		free(map);
	}
}

static void test_edges(void **state)
{
	uint64_t map[3] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
	size_t first = 99;

	assert_int_equal(bitmap_next_run(map, 192, 0, &first), 192);
	assert_int_equal(first, 0);
	assert_int_equal(bitmap_next_run(map, 192, 191, &first), 1);
	assert_int_equal(first, 191);
	assert_int_equal(bitmap_next_run(map, 192, 192, &first), 0);
	assert_int_equal(bitmap_next_run(map, 0, 0, &first), 0);
	/* Bits past the end count for nothing, even if somebody set them. */
	assert_int_equal(bitmap_next_run(map, 130, 100, &first), 30);
	assert_int_equal(bitmap_count(map, 130), 130);
	bitmap_clear_range(map, 0, 192);
	assert_int_equal(map[0] | map[1] | map[2], 0);
	bitmap_set_range(map, 63, 2);
	assert_true(map[0] == UINT64_C(1) << 63 && map[1] == 1 && map[2] == 0);
	bitmap_set_range(map, 64, 0);
	assert_int_equal(bitmap_count(map, 192), 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_ranges),
		cmocka_unit_test(test_random_bits),
		cmocka_unit_test(test_edges),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
