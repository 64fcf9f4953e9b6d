/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts a stream of bytes into JSON values, as QMP wants it: the input is a stream, not lines. The
 * framer knows strings, brackets and their nesting, nothing else; what it hands out goes to a real
 * JSON parser. How the bytes are split into calls makes no difference to what comes out.
 *
 * As in QEMU, strings may stand in single quotes (they come out in double quotes) and a 0xff byte
 * throws away what was begun. After an error the framer skips to the next newline or 0xff, or, when
 * the error lay outside any value, to the next opening brace as well; a value begun inside a broken
 * one is never taken for a message of its own on the same line.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FRAMER_MAX_SIZE  (1024u * 1024) /* bytes of one value */
#define FRAMER_MAX_DEPTH 1024u

enum framer_result {
	FRAMER_MORE,    /* all input is used up, no value is complete */
	FRAMER_MESSAGE, /* buffer[0..length) holds one value, until the next call */
	FRAMER_ERROR,   /* error[] says what was wrong */
};

struct framer {
	char *buffer;
	size_t length, capacity;
	unsigned int depth;
	uint8_t nesting[FRAMER_MAX_DEPTH / 8]; /* one bit a level: set for an object */
	unsigned char state, quote;
	bool escaped, complete;
	char error[80];
};

void framer_init(struct framer *f);
void framer_free(struct framer *f);

/*
 * Reads from data until one value or one error is complete, or all is read. *used tells how many
 * bytes were taken; call again with the rest.
 */
enum framer_result framer_feed(struct framer *f, const char *data, size_t length, size_t *used);

/* The stream ended: a bare number or word at its end is complete now; half a value is an error. */
enum framer_result framer_end(struct framer *f);
