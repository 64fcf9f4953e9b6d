/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <sys/mman.h>
#include "base/crc32c.h"
#include "memory/pagescan.h"

/* Each single bit of a page makes it non-zero. */
static void test_zero(void **state)
{
	_Alignas(4096) static uint8_t page[4096];

	assert_true(page_is_zero(page));
	assert_true(page_is_zero_portable(page));
	for (size_t bit = 0; bit < sizeof(page) * 8; bit++) {
		page[bit / 8] = (uint8_t)(1u << bit % 8);
		assert_false(page_is_zero(page));
		assert_false(page_is_zero_portable(page));
		page[bit / 8] = 0;
	}
	assert_true(page_is_zero(page));
}

/* The bytes around a page do not matter, and none outside it is read. */
static void test_keeps_to_the_page(void **state)
{
	uint8_t *map =
		mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(map, MAP_FAILED);
	map[4095] = map[8192] = 0xff;
	assert_true(page_is_zero(map + 4096));
	mprotect(map, 4096, PROT_NONE);
	mprotect(map + 8192, 4096, PROT_NONE);
	assert_true(page_is_zero(map + 4096));
	assert_int_equal(pages_crc32c(0, map + 4096, 1), crc32c_portable(0, map + 4096, 4096));
	munmap(map, 3 * 4096);
}

static void test_crc_equals(void **state)
{
	uint64_t seed = random_seed();
	uint8_t *data = malloc(9 * 4096);

	for (size_t i = 0; i < 9 * 4096; i++)
		data[i] = (uint8_t)random_next(&seed);
	for (uint64_t pages = 0; pages <= 9; pages++) {
		uint32_t start = (uint32_t)random_next(&seed);

		assert_int_equal(pages_crc32c(start, data, pages),
				 crc32c(start, data, pages * 4096));
		assert_int_equal(pages_crc32c(start, data, pages),
				 crc32c_portable(start, data, pages * 4096));
	}
	assert_int_equal(pages_crc32c(pages_crc32c(0, data, 4), data + 4 * 4096, 5),
			 crc32c(0, data, 9 * 4096));
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_zero),
		cmocka_unit_test(test_keeps_to_the_page),
		cmocka_unit_test(test_crc_equals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
