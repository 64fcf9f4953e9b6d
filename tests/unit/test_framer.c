/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "control/framer.h"

/* All that comes out, one a line: the value, or "!" and the error. */
static char *frame(const char *data, size_t length, size_t step, bool end)
{
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);
	struct framer f;

	framer_init(&f);
	for (size_t at = 0; at < length;) {
		size_t count = length - at < step ? length - at : step;
		size_t used;
		enum framer_result result = framer_feed(&f, data + at, count, &used);

		assert_true(used <= count);
		assert_true(result != FRAMER_MORE || used == count);
		if (result == FRAMER_MESSAGE)
			fprintf(out, "%.*s\n", (int)f.length, f.buffer);
		else if (result == FRAMER_ERROR)
			fprintf(out, "!%s\n", f.error);
		at += used;
	}
	if (end) {
		enum framer_result result = framer_end(&f);

		if (result == FRAMER_MESSAGE)
			fprintf(out, "%.*s\n", (int)f.length, f.buffer);
		else if (result == FRAMER_ERROR)
			fprintf(out, "!%s\n", f.error);
	}
	framer_free(&f);
	fclose(out);
	return text;
}

static void expect(const char *input, const char *output)
{
	size_t length = strlen(input);

	for (size_t step = 1; step <= length; step++) {
		char *text = frame(input, length, step, true);

		assert_string_equal(text, output);
		free(text);
	}
}

static void test_values(void **state)
{
	expect("{\"a\":1}", "{\"a\":1}\n");
	expect(" {\"a\":1}\r\n{}\n[1,[2]]", "{\"a\":1}\n{}\n[1,[2]]\n");
	expect("{}{}{\"b\":{\"c\":[]}}", "{}\n{}\n{\"b\":{\"c\":[]}}\n");
	expect("{\"a\":\"}]{[\\\"\\\\\"}", "{\"a\":\"}]{[\\\"\\\\\"}\n");
	expect("{\n\"a\"\n:\n1}", "{\n\"a\"\n:\n1}\n");
	expect("12 true{}\"x\"", "12\ntrue\n{}\n\"x\"\n");
	expect("", "");
}

static void test_single_quotes(void **state)
{
	expect("{'a': 'b'}", "{\"a\": \"b\"}\n");
	expect("{'a\"b': 'it\\'s'}", "{\"a\\\"b\": \"it's\"}\n");
	expect("{\"it's\": '\\\\'}", "{\"it's\": \"\\\\\"}\n");
}

static void test_errors(void **state)
{
	expect("}{}", "!JSON parse error, stray '}'\n{}\n");
	expect("@#$%\n{}", "!JSON parse error, stray '@'\n{}\n");
	expect("@#$% {}", "!JSON parse error, stray '@'\n{}\n");
	expect("{\"a\":1]{}", "!JSON parse error, stray ']'\n{}\n");
	expect("{\"a\n{}", "!JSON parse error, a control character inside a string\n{}\n");
	/* What stands inside a broken object is no command. */
	expect("{\"a\":@{\"execute\":\"quit\"}}\n{}", "!JSON parse error, stray '@'\n{}\n");
	expect("{\"a\"", "!JSON parse error, the input ends inside a value\n");
	expect("\x01{}", "!JSON parse error, stray byte 0x01\n{}\n");
}

static void test_reset_byte(void **state)
{
	expect("{\"a\":[\xff{}", "!JSON parse error, stray '\xef\xbf\xbd'\n{}\n");
	expect("{\"a\":\"b\xff{}", "!JSON parse error, stray '\xef\xbf\xbd'\n{}\n");
	expect("@@\xff{}", "!JSON parse error, stray '@'\n"
			   "!JSON parse error, stray '\xef\xbf\xbd'\n{}\n");
}

static void test_deep(void **state)
{
	char input[2 * FRAMER_MAX_DEPTH + 16];
	char *text;

	memset(input, '[', FRAMER_MAX_DEPTH);
	memset(input + FRAMER_MAX_DEPTH, ']', FRAMER_MAX_DEPTH);
	text = frame(input, 2 * FRAMER_MAX_DEPTH, 7, true);
	assert_int_equal(strlen(text), 2 * FRAMER_MAX_DEPTH + 1);
	free(text);
	memset(input, '[', FRAMER_MAX_DEPTH + 2);
	memcpy(input + FRAMER_MAX_DEPTH + 2, "]\n{}", 4);
	text = frame(input, FRAMER_MAX_DEPTH + 6, 7, true);
	assert_string_equal(text, "!JSON parse error, nesting is deeper than 1024\n{}\n");
	free(text);
}

static void test_huge(void **state)
{
	size_t length = 3 * FRAMER_MAX_SIZE;
	char *input = malloc(length);
	char *text;

	memset(input, 'a', length);
	memcpy(input, "{\"", 2);
	memcpy(input + length - 3, "\n{}", 3);
	text = frame(input, length, 4096, true);
	assert_string_equal(text, "!JSON parse error, a value is larger than 1 MiB\n{}\n");
	free(text);
	/* Exactly as large as allowed. */
	memset(input, 'a', FRAMER_MAX_SIZE);
	memcpy(input, "{\"", 2);
	memcpy(input + FRAMER_MAX_SIZE - 2, "\"}", 2);
	text = frame(input, FRAMER_MAX_SIZE, 65536, true);
	assert_int_equal(strlen(text), FRAMER_MAX_SIZE + 1);
	free(text);
	free(input);
}

static void test_random_splits(void **state)
{
	static const char alphabet[] = "{}[]\"'\\:, \n\r1atru@\xff\x01";
	char input[200];

	srand(1);
	for (int round = 0; round < 3000; round++) {
		char *whole, *cut;

		for (size_t i = 0; i < sizeof(input); i++)
			input[i] = alphabet[(size_t)rand() % (sizeof(alphabet) - 1)];
		whole = frame(input, sizeof(input), sizeof(input), true);
		cut = frame(input, sizeof(input), 1 + (size_t)rand() % 9, true);
		assert_string_equal(whole, cut);
		free(whole);
		free(cut);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_values),        cmocka_unit_test(test_single_quotes),
		cmocka_unit_test(test_errors),        cmocka_unit_test(test_reset_byte),
		cmocka_unit_test(test_deep),          cmocka_unit_test(test_huge),
		cmocka_unit_test(test_random_splits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
