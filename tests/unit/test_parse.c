/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>
#include "base/parse.h"

struct good {
	const char *text;
	uint64_t value;
};

static void test_size(void **state)
{
	static const struct good cases[] = {
		{"0", 0},
		{"512", 512},
		{"512B", 512},
		{"64K", 65536},
		{"64k", 65536},
		{"64KiB", 65536},
		{"64kb", 65536},
		{"3M", UINT64_C(3) << 20},
		{"1.5G", UINT64_C(3) << 29},
		{"0.5K", 512},
		{"2T", UINT64_C(2) << 40},
		{"18446744073709551615", UINT64_MAX},
		{"17179869183G", UINT64_C(17179869183) << 30},
	};
	static const char *const bad[] = {"",    " 1",    "1 ",  "-1",   "+1",   "K",     "1X",
					  "1KK", "1.",    ".5G", "1.5",  "1.5B", "1..5G", "0x10",
					  "1e3", "1GiBs", "nan", "1,5G", "1iB"};
	cleanup_error struct error *err = NULL;
	uint64_t value;

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		assert_ok(parse_size(cases[i].text, &value, &err), err);
		if (value != cases[i].value)
			fail_msg("%s gave %llu", cases[i].text, (unsigned long long)value);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		value = 77;
		if (parse_size(bad[i], &value, &err) != -EINVAL)
			fail_msg("'%s' was taken for a size", bad[i]);
		assert_non_null(strstr(error_text(err), bad[i]));
		assert_int_equal(value, 77);
		error_free(&err);
	}
	assert_refused(parse_size("18446744073709551616", &value, &err), err, -ERANGE, "too large");
	assert_refused(parse_size("16777216T", &value, &err), err, -ERANGE, "too large");
	assert_refused(
		parse_size("99999999999999999999999999999999999999999999999999", &value, &err), err,
		-ERANGE, "too large");
}

/* More digits than any type holds: the value stays right to a unit. */
static void test_long_fraction(void **state)
{
	uint64_t value;

	assert_int_equal(
		parse_size("1.50000000000000000000000000000000000000000000000001G", &value, NULL),
		0);
	assert_int_equal(value, UINT64_C(3) << 29);
	assert_int_equal(parse_size("1.99999999999999999999999999999999999K", &value, NULL), 0);
	assert_int_equal(value, 2047);
	assert_int_equal(parse_size("16777215.9999999T", &value, NULL), 0);
	assert_true(value > (UINT64_C(16777215) << 40) + (UINT64_C(1) << 39));
}

static void test_time(void **state)
{
	static const struct good cases[] = {
		{"300", 300000}, {"300ms", 300000}, {"2s", 2000000}, {"1500us", 1500},
		{"0", 0},        {"1.5s", 1500000}, {"0.5ms", 500},  {"0.25", 250},
	};
	static const char *const bad[] = {"", "ms", "1h", "-2s", "2 s", "1.5us", "s2"};
	cleanup_error struct error *err = NULL;
	uint64_t value;

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		assert_ok(parse_time_us(cases[i].text, &value, &err), err);
		assert_int_equal(value, cases[i].value);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert_refused(parse_time_us(bad[i], &value, &err), err, -EINVAL, "is not a time");
	assert_refused(parse_time_us("18446744073710s", &value, &err), err, -ERANGE, "too long");
}

static void test_number(void **state)
{
	cleanup_error struct error *err = NULL;
	uint64_t value;

	assert_ok(parse_number("64", 1, 64, &value, &err), err);
	assert_int_equal(value, 64);
	assert_ok(parse_number("0xFfffFFFFffffffff", 0, UINT64_MAX, &value, &err), err);
	assert_true(value == UINT64_MAX);
	assert_ok(parse_number("0X1a", 0, 100, &value, &err), err);
	assert_int_equal(value, 0x1a);
	value = 5;
	assert_refused(parse_number("65", 1, 64, &value, &err), err, -ERANGE, "from 1 to 64");
	assert_refused(parse_number("0", 1, 64, &value, &err), err, -ERANGE, "from 1 to 64");
	assert_refused(parse_number("18446744073709551616", 0, UINT64_MAX, &value, &err), err,
		       -ERANGE, "out of range");
	assert_refused(parse_number("0x10000000000000000", 0, UINT64_MAX, &value, &err), err,
		       -ERANGE, "out of range");
	for (const char *const *bad = (const char *const[]){"", "0x", "1f", "-1", "+1", " 1", "1 ",
							    "0b1", "four", NULL};
	     *bad; bad++)
		assert_refused(parse_number(*bad, 0, UINT64_MAX, &value, &err), err, -EINVAL,
			       "is not a number");
	assert_int_equal(value, 5);
}

static void test_format_size(void **state)
{
	char text[32];

	assert_string_equal(format_size(text, sizeof(text), 0), "0 bytes");
	assert_string_equal(format_size(text, sizeof(text), 1), "1 byte");
	assert_string_equal(format_size(text, sizeof(text), 100), "100 bytes");
	assert_string_equal(format_size(text, sizeof(text), 1023), "1023 bytes");
	assert_string_equal(format_size(text, sizeof(text), 1024), "1 KiB");
	assert_string_equal(format_size(text, sizeof(text), UINT64_C(64) << 20), "64 MiB");
	assert_string_equal(format_size(text, sizeof(text), UINT64_C(3) << 29), "1.5 GiB");
	assert_string_equal(format_size(text, sizeof(text), (UINT64_C(1) << 30) - 1), "1 GiB");
	assert_string_equal(format_size(text, sizeof(text), UINT64_MAX), "16777216 TiB");
	format_size(text, 4, 123456);
	assert_int_equal(strlen(text), 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_size),        cmocka_unit_test(test_long_fraction),
		cmocka_unit_test(test_time),        cmocka_unit_test(test_number),
		cmocka_unit_test(test_format_size),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
