/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>

static void test_set_and_prefix(void **state)
{
	struct error *err = NULL;

	assert_int_equal(error_set(&err, -EINVAL, "slot %d is taken", 7), -EINVAL);
	assert_string_equal(error_text(err), "slot 7 is taken");
	assert_int_equal(error_prefix(&err, "cannot add %s", "ram.low"), -EINVAL);
	assert_int_equal(error_prefix(&err, "cannot start"), -EINVAL);
	assert_string_equal(error_text(err), "cannot start: cannot add ram.low: slot 7 is taken");
	assert_int_equal(err->code, -EINVAL);
	error_free(&err);
	assert_null(err);
}

static void test_errno_text(void **state)
{
	cleanup_error struct error *err = NULL;

	assert_int_equal(error_set_errno(&err, -ENOMEM, "cannot map %s", "2 GiB"), -ENOMEM);
	assert_string_equal(error_text(err), "cannot map 2 GiB: Cannot allocate memory");
}

static void test_first_error_stays(void **state)
{
	cleanup_error struct error *err = NULL;

	error_set(&err, -EIO, "first");
	assert_int_equal(error_set(&err, -EPERM, "second"), -EPERM);
	assert_int_equal(error_set_errno(&err, -EPERM, "third"), -EPERM);
	assert_string_equal(error_text(err), "first");
	assert_int_equal(err->code, -EIO);
}

static void test_null(void **state)
{
	struct error *err = NULL;

	assert_int_equal(error_set(NULL, -EIO, "nobody %s", "listens"), -EIO);
	assert_int_equal(error_set_errno(NULL, -EIO, "nobody"), -EIO);
	assert_int_equal(error_prefix(NULL, "nothing"), 0);
	assert_int_equal(error_prefix(&err, "nothing"), 0);
	assert_null(err);
	assert_string_equal(error_text(NULL), "no error");
	error_free(NULL);
	error_free(&err);
}

static void test_long_text(void **state)
{
	cleanup_error struct error *err = NULL;
	char text[5000];

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	error_set(&err, -EIO, "%s", text);
	error_prefix(&err, "%s", text);
	assert_int_equal(strlen(error_text(err)), 2 * (sizeof(text) - 1) + 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_set_and_prefix),    cmocka_unit_test(test_errno_text),
		cmocka_unit_test(test_first_error_stays), cmocka_unit_test(test_null),
		cmocka_unit_test(test_long_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
