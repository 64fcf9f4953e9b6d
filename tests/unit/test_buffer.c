/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>
#include "base/buffer.h"

static void put_sample(struct buffer *buffer)
{
	buffer_put_u8(buffer, 0x12);
	buffer_put_u16(buffer, 0x3456);
	buffer_put_u32(buffer, 0x789abcde);
	buffer_put_u64(buffer, UINT64_C(0x1122334455667788));
	buffer_put_string(buffer, "rip");
	buffer_put_bytes(buffer, "\x01\x02", 2);
}

static const uint8_t sample[] = {0x12, 0x56, 0x34, 0xde, 0xbc, 0x9a, 0x78, 0x88, 0x77, 0x66, 0x55,
				 0x44, 0x33, 0x22, 0x11, 3,    0,    'r',  'i',  'p',  1,    2};

static void test_bytes(void **state)
{
	struct buffer buffer = {0};

	put_sample(&buffer);
	assert_int_equal(buffer.error, 0);
	assert_int_equal(buffer.size, sizeof(sample));
	assert_memory_equal(buffer.data, sample, sizeof(sample));
	buffer_set_u32(&buffer, 3, 1);
	assert_memory_equal(buffer.data + 3, "\x01\0\0\0\x88", 5);
	buffer_set_u32(&buffer, buffer.size - 3, 0xffffffff); /* does not fit: ignored */
	assert_int_equal(buffer.data[buffer.size - 1], 2);
	buffer_free(&buffer);
	assert_null(buffer.data);
}

/* Exactly reserved bytes are not moved. */
static void test_reserve(void **state)
{
	struct buffer buffer = {0};
	const uint8_t *data;

	assert_int_equal(buffer_reserve(&buffer, 100000), 0);
	data = buffer.data;
	for (int round = 0; round < 3; round++) {
		while (buffer.size < 100000)
			buffer_put_u32(&buffer, 7);
		assert_ptr_equal(buffer.data, data);
		buffer_clear(&buffer);
	}
	assert_true(buffer.capacity >= 100000);
	buffer_free(&buffer);
}

static void test_errors_stick(void **state)
{
	struct buffer buffer = {0};
	char *text = malloc(65537);

	memset(text, 'x', 65536);
	text[65536] = '\0';
	buffer_put_u8(&buffer, 1);
	buffer_put_string(&buffer, text);
	assert_int_equal(buffer.error, -E2BIG);
	buffer_put_u8(&buffer, 2);
	assert_int_equal(buffer.size, 1);
	buffer_clear(&buffer);
	buffer_put_string(&buffer, text + 1);
	assert_int_equal(buffer.error, 0);
	assert_int_equal(buffer.size, 65537);
	assert_int_equal(buffer_reserve(&buffer, SIZE_MAX - 5), -ENOMEM);
	assert_int_equal(buffer.error, 0);
	assert_null(buffer_put_space(&buffer, SIZE_MAX - 5));
	assert_int_equal(buffer.error, -ENOMEM);
	buffer_free(&buffer);
	free(text);
}

/* Reads the sample from `size` of its bytes; true when all was there. */
static bool read_sample(const uint8_t *data, size_t size)
{
	struct reader reader;
	uint8_t bytes[2];
	char text[4];

	reader_init(&reader, data, size);
	if (reader_get_u8(&reader) == 0x12 && reader_get_u16(&reader) == 0x3456 &&
	    reader_get_u32(&reader) == 0x789abcde &&
	    reader_get_u64(&reader) == UINT64_C(0x1122334455667788)) {
		reader_get_string(&reader, text, sizeof(text));
		reader_get_bytes(&reader, bytes, sizeof(bytes));
		assert_string_equal(text, reader.offset > 19 ? "rip" : "");
	}
	if (!reader.failed) {
		assert_int_equal(bytes[0], 1);
		assert_int_equal(bytes[1], 2);
		assert_int_equal(reader_left(&reader), 0);
	}
	return !reader.failed;
}

static void test_truncated_at_every_byte(void **state)
{
	for (size_t size = 0; size <= sizeof(sample); size++) {
		/* Of the exact size, so that a sanitizer sees a read past its end. */
		uint8_t *data = malloc(size + !size);

		memcpy(data, sample, size);
		assert_int_equal(read_sample(data, size), size == sizeof(sample));
		free(data);
	}
}

static void test_failure_sticks(void **state)
{
	uint8_t bytes[8];
	struct reader reader;

	reader_init(&reader, sample, 6);
	memset(bytes, 0xee, sizeof(bytes));
	assert_int_equal(reader_get_u64(&reader), 0);
	assert_true(reader.failed);
	assert_int_equal(reader_left(&reader), 0);
	assert_int_equal(reader_get_u8(&reader), 0);
	assert_null(reader_get_span(&reader, 0));
	reader_get_bytes(&reader, bytes, sizeof(bytes));
	for (size_t i = 0; i < sizeof(bytes); i++)
		assert_int_equal(bytes[i], 0);
	reader_init(&reader, sample, 6);
	assert_null(reader_get_span(&reader, SIZE_MAX));
	reader_init(&reader, sample, 6);
	assert_ptr_equal(reader_get_span(&reader, 6), sample);
	assert_false(reader.failed);
	reader_init(&reader, NULL, 0);
	reader_get_bytes(&reader, NULL, 0);
	assert_false(reader.failed);
}

static void test_strings(void **state)
{
	static const uint8_t with_zero[] = {3, 0, 'a', 0, 'b'};
	static const uint8_t past_end[] = {0xff, 0xff, 'a', 'b'};
	struct reader reader;
	char text[4] = "old";

	reader_init(&reader, with_zero, sizeof(with_zero));
	reader_get_string(&reader, text, sizeof(text));
	assert_true(reader.failed);
	assert_string_equal(text, "");
	reader_init(&reader, past_end, sizeof(past_end));
	reader_get_string(&reader, text, sizeof(text));
	assert_true(reader.failed);
	assert_string_equal(text, "");
	reader_init(&reader, sample + 15, 5);
	reader_get_string(&reader, text, 3); /* no room for the terminator */
	assert_true(reader.failed);
	reader_init(&reader, sample + 15, 5);
	reader_get_string(&reader, text, 4);
	assert_false(reader.failed);
	assert_string_equal(text, "rip");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_reserve),
		cmocka_unit_test(test_errors_stick),
		cmocka_unit_test(test_truncated_at_every_byte),
		cmocka_unit_test(test_failure_sticks),
		cmocka_unit_test(test_strings),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
