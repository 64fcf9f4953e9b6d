/* SPDX-License-Identifier: Apache-2.0 */
/* Against a plain array of bools, with maps of every odd size. */
#include "unit.h"

#include <errno.h>
#include "base/page_map.h"

#define MOST 70000u

static const size_t sizes[] = {1, 63, 64, 65, 127, 4095, 4096, 4097, 8192, 20011, MOST};

static void check(const struct page_map *map, const bool *model)
{
	size_t first, count, at = 0, set = 0, blocks = 0;

	page_map_for_each_run(map, first, count)
	{
		assert_true(count > 0 && first + count <= map->pages);
		for (; at < first; at++)
			assert_false(model[at]);
		for (; at < first + count; at++)
			assert_true(model[at]);
		set += count;
	}
	for (; at < map->pages; at++)
		assert_false(model[at]);
	assert_int_equal(map->count, set);
	/* The blocks that the summary names hold all that is set. */
	page_map_for_each_block(map, first, count) blocks +=
		bitmap_count(&map->words[first], count * 64);
	assert_int_equal(blocks, set);
}

static void random_words(uint64_t *words, size_t count, uint64_t *seed)
{
	unsigned int kind = random_next(seed) % 3;

	for (size_t i = 0; i < count; i++)
		words[i] = kind == 0 ? UINT64_MAX
			   : kind == 1 && random_next(seed) % 4
				   ? 0
				   : random_next(seed) & random_next(seed);
}

static void test_random(void **state)
{
	static uint64_t words[BITMAP_WORDS(MOST)];
	static bool model[MOST], other_model[MOST];
	uint64_t seed = random_seed();

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		struct page_map map, other;

		assert_int_equal(page_map_init(&map, sizes[i]), 0);
		assert_int_equal(page_map_init(&other, sizes[i]), 0);
		memset(model, 0, sizeof(model));
		memset(other_model, 0, sizeof(other_model));
		check(&map, model);
		for (int round = 0; round < 40; round++) {
			size_t first = random_next(&seed) % sizes[i];
			size_t count = random_next(&seed) % (round % 4 ? 300 : sizes[i]) + 1;

			random_words(words, BITMAP_WORDS(count), &seed);
			page_map_merge(&map, first, words, count);
			for (size_t p = 0; p < count && first + p < sizes[i]; p++)
				model[first + p] |= bitmap_test(words, p);
			first = random_next(&seed) % sizes[i];
			page_map_set(&other, first);
			other_model[first] = true;
			check(&map, model);
			check(&other, other_model);
			if (round % 8 == 7) {
				page_map_merge_map(&map, &other);
				page_map_clear_all(&other);
				for (size_t p = 0; p < sizes[i]; p++) {
					model[p] |= other_model[p];
					other_model[p] = false;
				}
				check(&map, model);
				check(&other, other_model);
			}
		}
		for (size_t p = 0; p < sizes[i]; p++)
			assert_int_equal(bitmap_test(map.words, p), model[p]);
		memset(map.words, 0, BITMAP_WORDS(sizes[i]) * 8);
		memset(model, 0, sizeof(model));
		bitmap_set(map.words, sizes[i] / 2);
		model[sizes[i] / 2] = true;
		page_map_refresh(&map);
		check(&map, model);
		page_map_free(&map);
		page_map_free(&other);
	}
}

static void test_extract_and_shift(void **state)
{
	uint64_t seed = random_seed(), from[40], to[40];

	for (int round = 0; round < 20000; round++) {
		size_t first = random_next(&seed) % 1000, count = random_next(&seed) % 1000 + 1;
		unsigned int by = (unsigned int)(random_next(&seed) % 64);

		for (int i = 0; i < 40; i++)
			from[i] = random_next(&seed);
		memset(to, 0xff, sizeof(to));
		bitmap_extract(to, from, first, count);
		for (size_t p = 0; p < count; p += 1 + p / 7)
			assert_int_equal(bitmap_test(to, p), bitmap_test(from, first + p));
		for (size_t p = count; p < BITMAP_WORDS(count) * 64; p++)
			assert_false(bitmap_test(to, p));
		bitmap_shift_up(to, by, count);
		for (size_t p = 0; p < count; p += 1 + p / 7)
			assert_int_equal(bitmap_test(to, by + p), bitmap_test(from, first + p));
		for (size_t p = 0; p < by; p++)
			assert_false(bitmap_test(to, p));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_extract_and_shift),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
