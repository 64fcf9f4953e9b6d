/* SPDX-License-Identifier: Apache-2.0 */
/* The command line: MODE[,name=value...]. The modes and the options are the two tables below. */
#include "guest.h"

#define MIB (1024ull * 1024)

static const struct mode modes[] = {
	{"stress", 16 * MIB, 50, work_stress},
	{"idle", 0, 1000, work_idle},
};

enum unit { UNIT_NONE, UNIT_SIZE };

static const struct option {
	const char *name;
	enum unit unit;
	size_t offset;
	uint64_t min, max;
} options[] = {
	{"hot", UNIT_SIZE, offsetof(struct config, hot), 0, 1ull << 40},
	{"fill", UNIT_SIZE, offsetof(struct config, fill), 0, 1ull << 40},
	{"pace", UNIT_NONE, offsetof(struct config, pace_us), 0, 60000000},
	{"check", UNIT_NONE, offsetof(struct config, check_us), 0, 60000000},
	{"interval", UNIT_NONE, offsetof(struct config, interval_ms), 10, 3600000},
	{"cpus", UNIT_NONE, offsetof(struct config, cpus), 1, MAX_CPUS},
	{"seed", UNIT_NONE, offsetof(struct config, seed), 0, UINT64_MAX},
	{"top", UNIT_NONE, offsetof(struct config, top), 0, 1},
	{"damage", UNIT_NONE, offsetof(struct config, damage), 0, 1000000},
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static bool word_is(const char *text, size_t length, const char *name)
{
	size_t i;

	for (i = 0; i < length && name[i] == text[i] && name[i]; i++)
		;
	return i == length && !name[i];
}

static bool parse_value(const char *text, size_t length, enum unit unit, uint64_t *value)
{
	unsigned int shift = 0;

	if (length && unit == UNIT_SIZE) {
		switch (text[length - 1] | 0x20) {
		case 'k':
			shift = 10;
			break;
		case 'm':
			shift = 20;
			break;
		case 'g':
			shift = 30;
			break;
		case 't':
			shift = 40;
			break;
		}
		if (shift)
			length--;
	}
	if (!length)
		return false;
	*value = 0;
	for (size_t i = 0; i < length; i++) {
		if (text[i] < '0' || text[i] > '9')
			return false;
		if (__builtin_mul_overflow(*value, 10, value) ||
		    __builtin_add_overflow(*value, (uint64_t)(text[i] - '0'), value))
			return false;
	}
	return !__builtin_mul_overflow(*value, 1ull << shift, value);
}

/* "name=value" of `length` bytes; NULL when it is well. */
static const char *parse_option(const char *text, size_t length, struct config *config)
{
	size_t name = 0;
	uint64_t value;

	while (name < length && text[name] != '=')
		name++;
	for (size_t i = 0; i < COUNT(options); i++) {
		if (!word_is(text, name, options[i].name))
			continue;
		if (name == length)
			return "this option needs a value, as in NAME=NUMBER:";
		if (!parse_value(text + name + 1, length - name - 1, options[i].unit, &value))
			return "the value is not a number (hot and fill take K, M, G, T):";
		if (value < options[i].min || value > options[i].max)
			return "the value is out of range:";
		*(uint64_t *)((char *)config + options[i].offset) = value;
		return NULL;
	}
	return "unknown option (known: hot fill pace check interval cpus seed top damage):";
}

static const char *parse_mode(const char *text, size_t length, struct config *config)
{
	for (size_t i = 0; i < COUNT(modes); i++) {
		if (!word_is(text, length, modes[i].name))
			continue;
		config->mode = &modes[i];
		config->hot = modes[i].hot;
		config->check_us = modes[i].check_us;
		return NULL;
	}
	return "unknown mode (known: stress idle):";
}

/* The first blank ends the text: a monitor may append words for Linux. */
bool config_parse(const char *line, struct config *config, const char **text, char word[32])
{
	*config = (struct config){.fill = 16 * MIB, .interval_ms = 1000, .cpus = 1, .seed = 1};
	*text = parse_mode("stress", 6, config);
	for (bool first = true; *line && *line != ' '; first = false) {
		size_t length = 0;

		while (line[length] && line[length] != ' ' && line[length] != ',')
			length++;
		*text = first ? parse_mode(line, length, config)
			      : parse_option(line, length, config);
		if (*text) {
			size_t i;

			for (i = 0; i < length && i < 31; i++)
				word[i] = line[i];
			word[i] = 0;
			return false;
		}
		line += length;
		if (*line == ',')
			line++;
	}
	return true;
}
