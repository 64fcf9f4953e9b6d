/* SPDX-License-Identifier: Apache-2.0 */
#include "base/parse.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

struct unit {
	const char *suffix;
	uint64_t factor;
};

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/*
 * Reads "12" or "12.5" and the unit after it (units end with a NULL suffix); the value is
 * truncated to a whole number. -EINVAL: not of that form, or a fraction of the smallest unit;
 * -ERANGE: too large.
 */
static int parse_with_unit(const char *text, const struct unit *units, uint64_t *value)
{
	unsigned __int128 whole = 0, fraction = 0, scale = 1, total;
	const char *at = text;
	bool has_fraction = false;

	if (!is_digit(*at))
		return -EINVAL;
	for (; is_digit(*at); at++) {
		whole = whole * 10 + (unsigned int)(*at - '0');
		if (whole > UINT64_MAX)
			return -ERANGE;
	}
	if (*at == '.') {
		if (!is_digit(*++at))
			return -EINVAL;
		has_fraction = true;
		for (; is_digit(*at); at++) {
			if (scale >= UINT64_C(1000000000000000000))
				continue; /* below any unit's resolution */
			fraction = fraction * 10 + (unsigned int)(*at - '0');
			scale *= 10;
		}
	}
	while (units->suffix && strcasecmp(units->suffix, at) != 0)
		units++;
	if (!units->suffix || (has_fraction && units->factor == 1))
		return -EINVAL;
	total = whole * units->factor + fraction * units->factor / scale;
	if (total > UINT64_MAX)
		return -ERANGE;
	*value = (uint64_t)total;
	return 0;
}

#define UNIT_BINARY(letter_, shift_)                                                               \
	{letter_, UINT64_C(1) << (shift_)}, {letter_ "B", UINT64_C(1) << (shift_)},                \
	{                                                                                          \
		letter_ "iB", UINT64_C(1) << (shift_)                                              \
	}

static const struct unit size_units[] = {
	{"", 1},
	{"B", 1},
	UNIT_BINARY("K", 10),
	UNIT_BINARY("M", 20),
	UNIT_BINARY("G", 30),
	UNIT_BINARY("T", 40),
	{NULL, 0},
};

static const struct unit time_units[] = {
	{"", 1000}, {"us", 1}, {"ms", 1000}, {"s", 1000000}, {NULL, 0},
};

int parse_size(const char *text, uint64_t *bytes, struct error **err)
{
	int result = parse_with_unit(text, size_units, bytes);

	if (result == -ERANGE)
		return error_set(err, result, "size '%s' is too large", text);
	if (result < 0)
		return error_set(err, result,
				 "'%s' is not a size; give a number of bytes, or a number with K, "
				 "M, G or T such as 512M or 1.5G",
				 text);
	return 0;
}

int parse_time_us(const char *text, uint64_t *microseconds, struct error **err)
{
	int result = parse_with_unit(text, time_units, microseconds);

	if (result == -ERANGE)
		return error_set(err, result, "time '%s' is too long", text);
	if (result < 0)
		return error_set(err, result,
				 "'%s' is not a time; give milliseconds, or a number with us, ms "
				 "or s such as 300ms or 2s",
				 text);
	return 0;
}

static int parse_digits(const char *text, uint64_t *value)
{
	unsigned int base = 10, digit;
	uint64_t sum = 0;

	if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) {
		base = 16;
		text += 2;
	}
	if (!*text)
		return -EINVAL;
	for (; *text; text++) {
		if (is_digit(*text))
			digit = (unsigned int)(*text - '0');
		else if (base == 16 && (*text | 32) >= 'a' && (*text | 32) <= 'f')
			digit = (unsigned int)((*text | 32) - 'a') + 10;
		else
			return -EINVAL;
		if (__builtin_mul_overflow(sum, base, &sum) ||
		    __builtin_add_overflow(sum, digit, &sum))
			return -ERANGE;
	}
	*value = sum;
	return 0;
}

int parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *value, struct error **err)
{
	uint64_t number = 0;
	int result = parse_digits(text, &number);

	if (result == -EINVAL)
		return error_set(err, result, "'%s' is not a number", text);
	if (result < 0 || number < min || number > max)
		return error_set(err, -ERANGE,
				 "%s is out of range; give a number from %" PRIu64 " to %" PRIu64,
				 text, min, max);
	*value = number;
	return 0;
}

char *format_size(char *buffer, size_t length, uint64_t bytes)
{
	static const char *const names[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
	unsigned int unit = 0;
	uint64_t tenths;

	if (bytes < 1024) {
		snprintf(buffer, length, "%" PRIu64 " byte%s", bytes, bytes == 1 ? "" : "s");
		return buffer;
	}
	do {
		unsigned __int128 scaled = (unsigned __int128)bytes * 10;
		unsigned int shift = 10 * ++unit;

		tenths = (uint64_t)((scaled + (UINT64_C(1) << (shift - 1))) >> shift);
	} while (tenths >= 10240 && unit < 4);
	if (tenths % 10)
		snprintf(buffer, length, "%" PRIu64 ".%" PRIu64 " %s", tenths / 10, tenths % 10,
			 names[unit]);
	else
		snprintf(buffer, length, "%" PRIu64 " %s", tenths / 10, names[unit]);
	return buffer;
}
