/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The instruction takes 8 bytes and has a latency of three cycles but a throughput of one, so one
 * stream uses a third of it. Blocks of 4 KiB are therefore cut into three streams, whose sums are
 * joined by carry-less multiplication: the CRC of A followed by n zero bits is A * x^n mod P.
 */
#include "base/crc32c.h"

#include <string.h>

#define CRC32C_POLYNOMIAL UINT32_C(0x82f63b78) /* bit-reflected */
#define CRC32C_BLOCK      4096u

static uint32_t crc32c_tables[8][256];

static uint64_t load64(const uint8_t *at)
{
	uint64_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

/* Slicing by 8, on a little-endian machine. */
static uint32_t crc32c_update_tables(uint32_t state, const uint8_t *at, size_t length)
{
	for (; length >= 8; at += 8, length -= 8) {
		uint64_t word = load64(at) ^ state;

		state = 0;
#pragma GCC unroll 8
		for (unsigned int i = 0; i < 8; i++)
			state ^= crc32c_tables[7 - i][word >> (8 * i) & 0xff];
	}
	for (; length; at++, length--)
		state = state >> 8 ^ crc32c_tables[0][(state ^ *at) & 0xff];
	return state;
}

uint32_t crc32c_portable(uint32_t crc, const void *data, size_t length)
{
	return ~crc32c_update_tables(~crc, data, length);
}

static uint32_t (*crc32c_update)(uint32_t state, const uint8_t *at,
				 size_t length) = crc32c_update_tables;

static void crc32c_fill_tables(void)
{
	for (unsigned int byte = 0; byte < 256; byte++) {
		uint32_t value = byte;

		for (unsigned int bit = 0; bit < 8; bit++)
			value = value >> 1 ^ (value & 1 ? CRC32C_POLYNOMIAL : 0);
		crc32c_tables[0][byte] = value;
	}
	for (unsigned int byte = 0; byte < 256; byte++)
		for (unsigned int i = 1; i < 8; i++) {
			uint32_t value = crc32c_tables[i - 1][byte];

			crc32c_tables[i][byte] = value >> 8 ^ crc32c_tables[0][value & 0xff];
		}
}

#ifdef __x86_64__
#include <immintrin.h>

#define STREAM_WORDS (CRC32C_BLOCK / 8 / 3) /* 170; two words of a block are left */
#define STREAM_BYTES (STREAM_WORDS * 8)
#define UNROLL       5u /* words a stream for each two cache lines prefetched: 34 times */

/* x^n mod P, bit-reflected. */
static uint32_t crc32c_power(unsigned int n)
{
	uint32_t value = UINT32_C(1) << 31;

	while (n--)
		value = value >> 1 ^ (value & 1 ? CRC32C_POLYNOMIAL : 0);
	return value;
}

/* Factors that move a sum over one and over two streams. The product of two reflected numbers is
 * one bit short and the instruction itself multiplies by x^32: hence 33 less. */
static uint64_t crc32c_shift_one, crc32c_shift_two;

__attribute__((target("sse4.2"))) static uint32_t
crc32c_update_bytes(uint32_t state, const uint8_t *at, size_t length)
{
	uint64_t wide = state;

	for (; length >= 8; at += 8, length -= 8)
		wide = _mm_crc32_u64(wide, load64(at));
	state = (uint32_t)wide;
	for (; length; at++, length--)
		state = _mm_crc32_u8(state, *at);
	return state;
}

__attribute__((target("sse4.2,pclmul"))) static uint64_t crc32c_multiply(uint64_t a, uint64_t b)
{
	__m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)a),
					       _mm_cvtsi64_si128((long long)b), 0);

	return (uint64_t)_mm_cvtsi128_si64(product);
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t crc32c_update_block(uint32_t state,
									     const uint8_t *at)
{
	const uint8_t *second = at + STREAM_BYTES, *third = second + STREAM_BYTES;
	/* The processor's own prefetch stops at the end of a page: without this, memory that is
	 * not in a cache is read at half the rate. It may point past the end, which is harmless. */
	const uint8_t *ahead = at + CRC32C_BLOCK;
	uint64_t a = state, b = 0, c = 0, joined;

	for (unsigned int i = 0; i < STREAM_BYTES; i += 8 * UNROLL) {
		__builtin_prefetch(ahead);
		__builtin_prefetch(ahead + 64);
		ahead += 128;
#pragma GCC unroll 5
		for (unsigned int k = i; k < i + 8 * UNROLL; k += 8) {
			a = _mm_crc32_u64(a, load64(at + k));
			b = _mm_crc32_u64(b, load64(second + k));
			c = _mm_crc32_u64(c, load64(third + k));
		}
	}
	joined = crc32c_multiply(a, crc32c_shift_two) ^ crc32c_multiply(b, crc32c_shift_one);
	c ^= _mm_crc32_u64(0, joined);
	c = _mm_crc32_u64(c, load64(third + STREAM_BYTES));
	return (uint32_t)_mm_crc32_u64(c, load64(third + STREAM_BYTES + 8));
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t
crc32c_update_streams(uint32_t state, const uint8_t *at, size_t length)
{
	for (; length >= CRC32C_BLOCK; at += CRC32C_BLOCK, length -= CRC32C_BLOCK)
		state = crc32c_update_block(state, at);
	return crc32c_update_bytes(state, at, length);
}

static void crc32c_choose(void)
{
	__builtin_cpu_init();
	if (!__builtin_cpu_supports("sse4.2"))
		return;
	crc32c_update = crc32c_update_bytes;
	if (!__builtin_cpu_supports("pclmul"))
		return;
	crc32c_shift_one = crc32c_power(STREAM_BYTES * 8 - 33);
	crc32c_shift_two = crc32c_power(2 * STREAM_BYTES * 8 - 33);
	crc32c_update = crc32c_update_streams;
}
#else
static void crc32c_choose(void)
{
}
#endif

/* Before main(): no thread ever sees a half-made table, and nothing is left for the window. */
__attribute__((constructor)) static void crc32c_init(void)
{
	crc32c_fill_tables();
	crc32c_choose();
}

uint32_t crc32c(uint32_t crc, const void *data, size_t length)
{
	return ~crc32c_update(~crc, data, length);
}
