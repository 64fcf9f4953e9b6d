/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A growable byte buffer that values are put into, and a bounded reader that gets them out again.
 * Numbers are little-endian, a string is its length as u16 and its bytes without a terminator.
 *
 * Failure sticks on both sides, so a run of puts or gets is checked once, at its end. After
 * buffer_reserve() puts within the reserved bytes do not allocate and cannot fail.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All zero is an empty buffer. */
struct buffer {
	uint8_t *data;
	size_t size, capacity; /* bytes in use, bytes allocated */
	int error;             /* 0, -ENOMEM, or -E2BIG for a string of more than 65535 bytes */
};

/* Makes room for `more` bytes after those in use. 0 or -ENOMEM (which does not stick). */
int buffer_reserve(struct buffer *buffer, size_t more);

/* Empties it and forgets an error; what was allocated is kept for the next use. */
void buffer_clear(struct buffer *buffer);
void buffer_free(struct buffer *buffer);

void buffer_put_u8(struct buffer *buffer, uint8_t value);
void buffer_put_u16(struct buffer *buffer, uint16_t value);
void buffer_put_u32(struct buffer *buffer, uint32_t value);
void buffer_put_u64(struct buffer *buffer, uint64_t value);
void buffer_put_bytes(struct buffer *buffer, const void *bytes, size_t size);
void buffer_put_string(struct buffer *buffer, const char *text);

/* Appends `size` bytes for the caller to fill and returns them; NULL after an error. Valid until
 * the next put. */
void *buffer_put_space(struct buffer *buffer, size_t size);

/* Overwrites bytes put before, such as a length that was not known yet; offset + 4 <= size. */
void buffer_set_u32(struct buffer *buffer, size_t offset, uint32_t value);

/* Reads `size` bytes at `data`, which it does not own. */
struct reader {
	const uint8_t *data;
	size_t size, offset;
	bool failed; /* something was asked for that is not there; all gets give zeros from then on
		      */
};

void reader_init(struct reader *reader, const void *data, size_t size);
size_t reader_left(const struct reader *reader);

uint8_t reader_get_u8(struct reader *reader);
uint16_t reader_get_u16(struct reader *reader);
uint32_t reader_get_u32(struct reader *reader);
uint64_t reader_get_u64(struct reader *reader);

/* Copies; zeroes `bytes` on failure. */
void reader_get_bytes(struct reader *reader, void *bytes, size_t size);

/* The same without a copy: points into the data, or is NULL on failure. */
const void *reader_get_span(struct reader *reader, size_t size);

/* Fails when text and terminator need more than `size` bytes, or the text has a zero byte within;
 * `text` is then empty. */
void reader_get_string(struct reader *reader, char *text, size_t size);
