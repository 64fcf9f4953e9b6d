/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>
#include "base/description.h"

static void test_add_and_get(void **state)
{
	struct description d = {0};
	uint64_t number;

	assert_int_equal(description_add(&d, true, "memory.size", "%llu", 1073741824ull), 0);
	assert_int_equal(description_add(&d, false, "cpuid.7.0.ebx", "0x%x", 0x219c07abu), 0);
	assert_int_equal(description_add(&d, true, "name", "a guest"), 0);
	assert_int_equal(description_add(&d, true, "empty", "%s", ""), 0);
	assert_int_equal(d.count, 4);
	assert_string_equal(d.entries[0].key, "memory.size");
	assert_true(d.entries[0].required);
	assert_false(d.entries[1].required);
	assert_string_equal(description_get(&d, "memory.size"), "1073741824");
	assert_string_equal(description_get(&d, "empty"), "");
	assert_null(description_get(&d, "memory"));
	assert_int_equal(description_get_number(&d, "memory.size", &number), 0);
	assert_int_equal(number, 1073741824);
	assert_int_equal(description_get_number(&d, "cpuid.7.0.ebx", &number), 0);
	assert_int_equal(number, 0x219c07ab);
	assert_int_equal(description_get_number(&d, "name", &number), -EINVAL);
	assert_int_equal(description_get_number(&d, "empty", &number), -EINVAL);
	assert_int_equal(description_get_number(&d, "none", &number), -ENOENT);
	description_free(&d);
	assert_int_equal(d.count, 0);
	assert_null(d.entries);
}

static void test_refusals(void **state)
{
	char key[DESCRIPTION_MAX_KEY + 2], value[DESCRIPTION_MAX_VALUE + 2];
	struct description d = {0};

	memset(key, 'k', sizeof(key) - 1);
	memset(value, 'v', sizeof(value) - 1);
	key[sizeof(key) - 1] = value[sizeof(value) - 1] = '\0';
	assert_int_equal(description_add(&d, true, key, "x"), -E2BIG);
	assert_int_equal(description_add(&d, true, "x", "%s", value), -E2BIG);
	assert_int_equal(description_add(&d, true, "", "x"), -EINVAL);
	assert_int_equal(description_add(&d, true, "x\n", "x"), -EINVAL);
	assert_int_equal(description_add(&d, true, "x", "\x1b[2J"), -EINVAL);
	assert_int_equal(description_add(&d, true, "x", "\xc3\xa9"), -EINVAL);
	assert_int_equal(description_add(&d, true, "x", "\x7f"), -EINVAL);
	assert_int_equal(d.count, 0);
	assert_int_equal(description_add(&d, true, key + 1, "%s", value + 1), 0);
	assert_int_equal(strlen(d.entries[0].key), DESCRIPTION_MAX_KEY);
	assert_int_equal(strlen(d.entries[0].value), DESCRIPTION_MAX_VALUE);
	assert_int_equal(description_add(&d, true, key + 1, "again"), -EEXIST);
	description_free(&d);
}

static void test_limit(void **state)
{
	struct description d = {0};
	char key[16];

	for (int i = 0; i < DESCRIPTION_MAX_ENTRIES; i++) {
		snprintf(key, sizeof(key), "key.%d", i);
		assert_int_equal(description_add(&d, false, key, "%d", i), 0);
	}
	assert_int_equal(description_add(&d, false, "one.more", "x"), -E2BIG);
	assert_string_equal(description_get(&d, "key.1023"), "1023");
	assert_string_equal(d.entries[500].key, "key.500");
	description_free(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_add_and_get),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_limit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
