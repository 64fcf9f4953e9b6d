/* SPDX-License-Identifier: Apache-2.0 */
#include "control/framer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FRAMER_KEEP (64u * 1024) /* a buffer larger than this is given back after its message */

enum framer_state {
	STATE_START,     /* between values */
	STATE_VALUE,     /* inside brackets, outside a string */
	STATE_STRING,    /* inside a string, at any depth */
	STATE_WORD,      /* a bare number or word between values */
	STATE_SKIP,      /* after an error outside any value: to newline or opening brace */
	STATE_SKIP_LINE, /* after an error inside a value: to newline */
};

void framer_init(struct framer *f)
{
	memset(f, 0, sizeof(*f));
}

void framer_free(struct framer *f)
{
	free(f->buffer);
	memset(f, 0, sizeof(*f));
}

static void framer_reset(struct framer *f)
{
	f->length = 0;
	f->depth = 0;
	f->escaped = false;
	f->complete = false;
	f->state = STATE_START;
	if (f->capacity > FRAMER_KEEP) {
		free(f->buffer);
		f->buffer = NULL;
		f->capacity = 0;
	}
}

static enum framer_result framer_fail(struct framer *f, const char *text)
{
	bool inside = f->depth > 0 || f->state == STATE_STRING;

	framer_reset(f);
	f->state = inside ? STATE_SKIP_LINE : STATE_SKIP;
	snprintf(f->error, sizeof(f->error), "%s", text);
	return FRAMER_ERROR;
}

static enum framer_result framer_stray(struct framer *f, unsigned char c)
{
	char text[64];

	if (c == 0xff)
		snprintf(text, sizeof(text), "JSON parse error, stray '\xef\xbf\xbd'");
	else if (c < 0x20 || c >= 0x7f)
		snprintf(text, sizeof(text), "JSON parse error, stray byte 0x%02x", c);
	else
		snprintf(text, sizeof(text), "JSON parse error, stray '%c'", c);
	return framer_fail(f, text);
}

/* FRAMER_MORE when there was room. */
static enum framer_result framer_append(struct framer *f, char c)
{
	if (f->length == FRAMER_MAX_SIZE)
		return framer_fail(f, "JSON parse error, a value is larger than 1 MiB");
	if (f->length == f->capacity) {
		size_t capacity = f->capacity ? f->capacity * 2 : 256;
		char *buffer = realloc(f->buffer, capacity);

		if (!buffer)
			return framer_fail(f, "JSON parse error, out of memory");
		f->buffer = buffer;
		f->capacity = capacity;
	}
	f->buffer[f->length++] = c;
	return FRAMER_MORE;
}

static enum framer_result framer_done(struct framer *f)
{
	f->complete = true;
	f->state = STATE_START;
	return FRAMER_MESSAGE;
}

static bool is_space(unsigned char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool is_word(unsigned char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '-' || c == '+' || c == '.' || c == '_';
}

static enum framer_result framer_open(struct framer *f, char c)
{
	if (f->depth == FRAMER_MAX_DEPTH)
		return framer_fail(f, "JSON parse error, nesting is deeper than 1024");
	if (c == '{')
		f->nesting[f->depth / 8] |= (uint8_t)(1u << (f->depth % 8));
	else
		f->nesting[f->depth / 8] &= (uint8_t) ~(1u << (f->depth % 8));
	f->depth++;
	f->state = STATE_VALUE;
	return framer_append(f, c);
}

static enum framer_result framer_close(struct framer *f, char c)
{
	unsigned int level = f->depth - 1;
	bool object = f->nesting[level / 8] >> (level % 8) & 1;
	enum framer_result result;

	if (object != (c == '}')) {
		/* As QEMU, the value ends here; what follows is taken as new input. */
		f->depth = 0;
		framer_stray(f, (unsigned char)c);
		f->state = STATE_START;
		return FRAMER_ERROR;
	}
	result = framer_append(f, c);
	if (result != FRAMER_MORE)
		return result;
	f->depth--;
	return f->depth ? FRAMER_MORE : framer_done(f);
}

static enum framer_result framer_quote(struct framer *f, unsigned char c)
{
	f->state = STATE_STRING;
	f->quote = c;
	f->escaped = false;
	return framer_append(f, '"');
}

static enum framer_result framer_start(struct framer *f, unsigned char c)
{
	if (is_space(c))
		return FRAMER_MORE;
	if (c == '{' || c == '[')
		return framer_open(f, (char)c);
	if (c == '"' || c == '\'')
		return framer_quote(f, c);
	if (is_word(c)) {
		f->state = STATE_WORD;
		return framer_append(f, (char)c);
	}
	return framer_stray(f, c);
}

static enum framer_result framer_value(struct framer *f, unsigned char c)
{
	if (c == '{' || c == '[')
		return framer_open(f, (char)c);
	if (c == '}' || c == ']')
		return framer_close(f, (char)c);
	if (c == '"' || c == '\'')
		return framer_quote(f, c);
	if (is_space(c) || is_word(c) || c == ':' || c == ',')
		return framer_append(f, (char)c);
	return framer_stray(f, c);
}

static enum framer_result framer_string(struct framer *f, unsigned char c)
{
	enum framer_result result = FRAMER_MORE;

	if (c < 0x20) {
		bool newline = c == '\n';

		framer_fail(f, "JSON parse error, a control character inside a string");
		if (newline)
			f->state = STATE_START;
		return FRAMER_ERROR;
	}
	if (f->escaped) {
		f->escaped = false;
		if (c != '\'')
			result = framer_append(f, '\\');
		return result == FRAMER_MORE ? framer_append(f, (char)c) : result;
	}
	if (c == '\\') {
		/* Written with the byte it escapes, since \' is no JSON. */
		f->escaped = true;
		return FRAMER_MORE;
	}
	if (c != f->quote) {
		if (c == '"')
			result = framer_append(f, '\\');
		return result == FRAMER_MORE ? framer_append(f, (char)c) : result;
	}
	result = framer_append(f, '"');
	if (result != FRAMER_MORE)
		return result;
	if (!f->depth)
		return framer_done(f);
	f->state = STATE_VALUE;
	return FRAMER_MORE;
}

static enum framer_result framer_byte(struct framer *f, unsigned char c)
{
	if (c == 0xff) {
		framer_stray(f, c);
		f->state = STATE_START;
		return FRAMER_ERROR;
	}
	switch ((enum framer_state)f->state) {
	case STATE_START:
		return framer_start(f, c);
	case STATE_VALUE:
		return framer_value(f, c);
	case STATE_STRING:
		return framer_string(f, c);
	case STATE_WORD:
		return framer_append(f, (char)c);
	case STATE_SKIP:
		if (c == '{')
			return framer_open(f, (char)c);
		if (c == '\n')
			f->state = STATE_START;
		return FRAMER_MORE;
	case STATE_SKIP_LINE:
		if (c == '\n')
			f->state = STATE_START;
		return FRAMER_MORE;
	}
	return FRAMER_MORE;
}

enum framer_result framer_feed(struct framer *f, const char *data, size_t length, size_t *used)
{
	size_t i;

	if (f->complete)
		framer_reset(f);
	for (i = 0; i < length; i++) {
		unsigned char c = (unsigned char)data[i];
		enum framer_result result;

		/* A word ends before the byte that is none. */
		if (f->state == STATE_WORD && !is_word(c) && c != 0xff) {
			*used = i;
			return framer_done(f);
		}
		result = framer_byte(f, c);
		if (result != FRAMER_MORE) {
			*used = i + 1;
			return result;
		}
	}
	*used = length;
	return FRAMER_MORE;
}

enum framer_result framer_end(struct framer *f)
{
	if (f->complete)
		framer_reset(f);
	if (f->state == STATE_WORD)
		return framer_done(f);
	if (f->state == STATE_VALUE || f->state == STATE_STRING) {
		framer_fail(f, "JSON parse error, the input ends inside a value");
		f->state = STATE_START;
		return FRAMER_ERROR;
	}
	return FRAMER_MORE;
}
