/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>
#include <unistd.h>
#include "base/log.h"

/* What the calls in `write_lines` put on stderr. */
static void capture(void (*write_lines)(void), char *text, size_t size)
{
	int ends[2], saved = dup(STDERR_FILENO);
	ssize_t length;

	assert_int_equal(pipe(ends), 0);
	dup2(ends[1], STDERR_FILENO);
	write_lines();
	dup2(saved, STDERR_FILENO);
	close(saved);
	close(ends[1]);
	length = read(ends[0], text, size - 1);
	assert_true(length >= 0);
	text[length] = '\0';
	close(ends[0]);
}

static void write_levels(void)
{
	log_error("number %d", 1);
	log_warning("number %d", 2);
	log_info("number %d", 3);
	log_debug("number %d", 4);
}

static void test_levels(void **state)
{
	char text[1024];

	capture(write_levels, text, sizeof(text));
	assert_string_equal(text, "godwit: error: number 1\ngodwit: warning: number 2\n");
	log_set_level(LOG_LEVEL_DEBUG);
	capture(write_levels, text, sizeof(text));
	assert_string_equal(text, "godwit: error: number 1\ngodwit: warning: number 2\n"
				  "godwit: info: number 3\ngodwit: debug: number 4\n");
	log_set_level(LOG_LEVEL_ERROR);
	capture(write_levels, text, sizeof(text));
	assert_string_equal(text, "godwit: error: number 1\n");
	log_set_level(LOG_LEVEL_WARNING);
}

static void write_hostile(void)
{
	errno = EXDEV;
	log_error("one\ntwo\x1b[31m");
	assert_int_equal(errno, EXDEV);
}

static void test_one_line_and_errno(void **state)
{
	char text[1024];

	capture(write_hostile, text, sizeof(text));
	assert_string_equal(text, "godwit: error: one two [31m\n");
}

static void write_long(void)
{
	char text[10000];

	memset(text, 'y', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	log_error("%s", text);
}

static void test_long_line_is_cut(void **state)
{
	char text[20000];

	capture(write_long, text, sizeof(text));
	assert_int_equal(strlen(text), 4096);
	assert_string_equal(text + 4096 - 5, "y...\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_levels),
		cmocka_unit_test(test_one_line_and_errno),
		cmocka_unit_test(test_long_line_is_cut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
