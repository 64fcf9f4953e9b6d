/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buffer.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int buffer_reserve(struct buffer *buffer, size_t more)
{
	size_t need, capacity;
	uint8_t *data;

	if (more <= buffer->capacity - buffer->size)
		return 0;
	if (__builtin_add_overflow(buffer->size, more, &need) || need > SIZE_MAX / 2)
		return -ENOMEM;
	capacity = buffer->capacity * 2 > need ? buffer->capacity * 2 : need;
	if (capacity < 64)
		capacity = 64;
	data = realloc(buffer->data, capacity);
	if (!data)
		return -ENOMEM;
	buffer->data = data;
	buffer->capacity = capacity;
	return 0;
}

void buffer_clear(struct buffer *buffer)
{
	buffer->size = 0;
	buffer->error = 0;
}

void buffer_free(struct buffer *buffer)
{
	free(buffer->data);
	*buffer = (struct buffer){0};
}

void *buffer_put_space(struct buffer *buffer, size_t size)
{
	void *space;

	if (!buffer->error)
		buffer->error = buffer_reserve(buffer, size);
	if (buffer->error)
		return NULL;
	space = buffer->data + buffer->size;
	buffer->size += size;
	return space;
}

void buffer_put_bytes(struct buffer *buffer, const void *bytes, size_t size)
{
	void *space = size ? buffer_put_space(buffer, size) : NULL;

	if (space)
		memcpy(space, bytes, size);
}

void buffer_put_u8(struct buffer *buffer, uint8_t value)
{
	buffer_put_bytes(buffer, &value, sizeof(value));
}

void buffer_put_u16(struct buffer *buffer, uint16_t value)
{
	value = htole16(value);
	buffer_put_bytes(buffer, &value, sizeof(value));
}

void buffer_put_u32(struct buffer *buffer, uint32_t value)
{
	value = htole32(value);
	buffer_put_bytes(buffer, &value, sizeof(value));
}

void buffer_put_u64(struct buffer *buffer, uint64_t value)
{
	value = htole64(value);
	buffer_put_bytes(buffer, &value, sizeof(value));
}

void buffer_put_string(struct buffer *buffer, const char *text)
{
	size_t length = strlen(text);

	if (length > UINT16_MAX) {
		if (!buffer->error)
			buffer->error = -E2BIG;
		return;
	}
	buffer_put_u16(buffer, (uint16_t)length);
	buffer_put_bytes(buffer, text, length);
}

void buffer_set_u32(struct buffer *buffer, size_t offset, uint32_t value)
{
	if (offset > buffer->size || buffer->size - offset < sizeof(value))
		return; /* the put that made room for it failed; buffer->error says so */
	value = htole32(value);
	memcpy(buffer->data + offset, &value, sizeof(value));
}

void reader_init(struct reader *reader, const void *data, size_t size)
{
	*reader = (struct reader){.data = data, .size = size};
}

size_t reader_left(const struct reader *reader)
{
	return reader->failed ? 0 : reader->size - reader->offset;
}

const void *reader_get_span(struct reader *reader, size_t size)
{
	const void *span;

	if (reader->failed || size > reader->size - reader->offset) {
		reader->failed = true;
		return NULL;
	}
	span = reader->data + reader->offset;
	reader->offset += size;
	return span;
}

void reader_get_bytes(struct reader *reader, void *bytes, size_t size)
{
	const void *span = reader_get_span(reader, size);

	if (!size)
		return;
	if (span)
		memcpy(bytes, span, size);
	else
		memset(bytes, 0, size);
}

uint8_t reader_get_u8(struct reader *reader)
{
	uint8_t value;

	reader_get_bytes(reader, &value, sizeof(value));
	return value;
}

uint16_t reader_get_u16(struct reader *reader)
{
	uint16_t value;

	reader_get_bytes(reader, &value, sizeof(value));
	return le16toh(value);
}

uint32_t reader_get_u32(struct reader *reader)
{
	uint32_t value;

	reader_get_bytes(reader, &value, sizeof(value));
	return le32toh(value);
}

uint64_t reader_get_u64(struct reader *reader)
{
	uint64_t value;

	reader_get_bytes(reader, &value, sizeof(value));
	return le64toh(value);
}

void reader_get_string(struct reader *reader, char *text, size_t size)
{
	size_t length = reader_get_u16(reader);
	const void *span = reader_get_span(reader, length);

	text[0] = '\0';
	if (!span)
		return;
	if (length >= size || memchr(span, 0, length)) {
		reader->failed = true;
		return;
	}
	memcpy(text, span, length);
	text[length] = '\0';
}
