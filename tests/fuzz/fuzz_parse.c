/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values as people type them, and descriptions as a source may send them: whatever the text, a
 * parser either refuses it with a sentence or gives a value that obeys its contract.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/description.h"
#include "base/error.h"
#include "base/parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
	if (!holds)
		abort();
}

/* A failure has a sentence, and its code is the return value; a success has none. */
static void check_outcome(int result, struct error **err)
{
	require((result == 0) == (*err == NULL));
	if (result < 0)
		require((*err)->code == result && *error_text(*err) != '\0');
	else
		require(result == 0);
	error_free(err);
}

static void fuzz_values(const char *text)
{
	const uint64_t min = strlen(text) % 3, max = 4096;
	struct error *err = NULL;
	uint64_t value = UINT64_MAX;
	int result;

	result = parse_size(text, &value, &err);
	if (result == 0) {
		char buffer[32];

		require(strlen(format_size(buffer, sizeof(buffer), value)) < sizeof(buffer));
	}
	check_outcome(result, &err);
	check_outcome(parse_time_us(text, &value, &err), &err);

	value = UINT64_MAX;
	result = parse_number(text, min, max, &value, &err);
	require(result == 0 ? value >= min && value <= max : value == UINT64_MAX);
	check_outcome(result, &err);
}

/* "key=value" lines become entries; what was added is found again, byte for byte. */
static void fuzz_description(char *text)
{
	struct description description = {0};
	char *rest = text, *line;

	while ((line = strsep(&rest, "\n"))) {
		const char *key = line, *found;
		char *value = strchr(line, '=');
		uint64_t number;

		if (!value)
			continue;
		*value++ = '\0';
		if (description_get(&description, key))
			continue; /* the first of two keys counts */
		if (description_add(&description, *value == '!', key, "%s", value) < 0)
			continue;
		require(strlen(key) <= DESCRIPTION_MAX_KEY &&
			strlen(value) <= DESCRIPTION_MAX_VALUE);
		found = description_get(&description, key);
		require(found && strcmp(found, value) == 0);
		description_get_number(&description, key, &number);
	}
	require(description.count <= DESCRIPTION_MAX_ENTRIES);
	description_free(&description);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup_free char *text = malloc(size + 1);

	if (!text)
		return 0;
	memcpy(text, data, size);
	text[size] = '\0';
	fuzz_values(text);
	fuzz_description(text);
	return 0;
}
