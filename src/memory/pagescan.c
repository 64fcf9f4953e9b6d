/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/pagescan.h"

#include <string.h>
#include "base/crc32c.h"
#include "memory/ram.h"

/* Pages that hold something mostly show it here, before any wide code starts. */
#define HEAD_BYTES 64

static uint64_t load64(const uint8_t *at)
{
	uint64_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

static bool head_is_zero(const uint8_t *at)
{
	uint64_t any = 0;

	for (unsigned int i = 0; i < HEAD_BYTES; i += 8)
		any |= load64(at + i);
	return any == 0;
}

#ifdef __x86_64__
#include <immintrin.h>

/* SSE2 is part of the architecture. */
static bool is_zero_any(const uint8_t *at)
{
	for (unsigned int i = 0; i < RAM_PAGE_SIZE; i += 128) {
		const __m128i *v = (const __m128i *)(at + i);
		__m128i any = _mm_loadu_si128(v);

		for (unsigned int k = 1; k < 8; k++)
			any = _mm_or_si128(any, _mm_loadu_si128(v + k));
		if (_mm_movemask_epi8(_mm_cmpeq_epi8(any, _mm_setzero_si128())) != 0xffff)
			return false;
	}
	return true;
}

__attribute__((target("avx2"))) static bool is_zero_avx2(const uint8_t *at)
{
	for (unsigned int i = 0; i < RAM_PAGE_SIZE; i += 256) {
		const __m256i *v = (const __m256i *)(at + i);
		__m256i any = _mm256_loadu_si256(v);

		for (unsigned int k = 1; k < 8; k++)
			any = _mm256_or_si256(any, _mm256_loadu_si256(v + k));
		if (!_mm256_testz_si256(any, any))
			return false;
	}
	return true;
}

static bool (*is_zero)(const uint8_t *at) = is_zero_any;

/* Before main(), so that there is no first call for threads to race on. */
__attribute__((constructor)) static void pagescan_init(void)
{
	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx2"))
		is_zero = is_zero_avx2;
}
#else
static bool is_zero_any(const uint8_t *at)
{
	for (unsigned int i = 0; i < RAM_PAGE_SIZE; i += HEAD_BYTES)
		if (!head_is_zero(at + i))
			return false;
	return true;
}

#define is_zero is_zero_any
#endif

bool page_is_zero(const void *page)
{
	return head_is_zero(page) && is_zero(page);
}

bool page_is_zero_portable(const void *page)
{
	return head_is_zero(page) && is_zero_any(page);
}

/* crc32c() takes 4 KiB blocks in three streams itself. */
uint32_t pages_crc32c(uint32_t crc, const void *data, uint64_t pages)
{
	return crc32c(crc, data, pages * RAM_PAGE_SIZE);
}
