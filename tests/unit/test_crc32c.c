/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "base/crc32c.h"

/* A bit at a time, as the definition has it. */
static uint32_t crc32c_model(uint32_t crc, const uint8_t *data, size_t length)
{
	crc = ~crc;
	for (size_t i = 0; i < length; i++) {
		crc ^= data[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	return ~crc;
}

static void check(const void *data, size_t length, uint32_t value)
{
	assert_int_equal(crc32c(0, data, length), value);
	assert_int_equal(crc32c_portable(0, data, length), value);
}

/* RFC 3720, B.4, and the check value of the catalogues. */
static void test_vectors(void **state)
{
	uint8_t bytes[32];

	check("123456789", 9, 0xe3069283);
	check("", 0, 0);
	memset(bytes, 0, 32);
	check(bytes, 32, 0x8a9136aa);
	memset(bytes, 0xff, 32);
	check(bytes, 32, 0x62a8ab43);
	for (unsigned int i = 0; i < 32; i++)
		bytes[i] = (uint8_t)i;
	check(bytes, 32, 0x46dd794e);
	for (unsigned int i = 0; i < 32; i++)
		bytes[i] = (uint8_t)(31 - i);
	check(bytes, 32, 0x113fdb5c);
}

/* Lengths around the 4 KiB blocks of the three streams, at any alignment, continued or not. */
static void test_ways_agree(void **state)
{
	uint64_t seed = random_seed();

	for (int round = 0; round < 300; round++) {
		size_t offset = random_next(&seed) % 16, length = random_next(&seed) % 13000;
		size_t cut = length ? random_next(&seed) % length : 0;
		uint32_t start = (uint32_t)random_next(&seed), model;
		uint8_t *block = malloc(offset + length + 1), *data = block + offset;

		if (round % 4 == 0)
			length = length / 4096 * 4096;
		if (cut > length)
			cut = length;
		for (size_t i = 0; i < length; i++)
			data[i] = (uint8_t)random_next(&seed);
		model = crc32c_model(start, data, length);
		assert_int_equal(crc32c(start, data, length), model);
		assert_int_equal(crc32c_portable(start, data, length), model);
		assert_int_equal(crc32c(crc32c(start, data, cut), data + cut, length - cut), model);
		free(block);
	}
}

static void test_each_bit_counts(void **state)
{
	uint8_t page[4096] = {0};
	uint32_t clean = crc32c(0, page, sizeof(page));

	for (size_t bit = 0; bit < sizeof(page) * 8; bit++) {
		page[bit / 8] ^= (uint8_t)(1u << bit % 8);
		assert_int_not_equal(crc32c(0, page, sizeof(page)), clean);
		page[bit / 8] = 0;
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_vectors),
		cmocka_unit_test(test_ways_agree),
		cmocka_unit_test(test_each_bit_counts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
