/* SPDX-License-Identifier: Apache-2.0 */
/* Rates of the page scan, in cache (a buffer of 128 KiB) and out of it (256 MiB). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/crc32c.h"
#include "memory/pagescan.h"
#include "memory/ram.h"

#define SMALL_PAGES 32u
#define LARGE_PAGES 65536u
#define RUNS        9u

typedef uint64_t scan_function(const uint8_t *data, uint64_t pages);

/* Printed at the end, so that no scan is optimized away. */
static uint64_t scan_result;

static uint64_t scan_crc(const uint8_t *data, uint64_t pages)
{
	return pages_crc32c(0, data, pages);
}

static uint64_t scan_crc_tables(const uint8_t *data, uint64_t pages)
{
	return crc32c_portable(0, data, pages * RAM_PAGE_SIZE);
}

static uint64_t scan_zero(const uint8_t *data, uint64_t pages)
{
	uint64_t zeros = 0;

	for (uint64_t i = 0; i < pages; i++)
		zeros += page_is_zero(data + i * RAM_PAGE_SIZE);
	return zeros;
}

/* What the sender does to a page that is not zero. */
static uint64_t scan_both(const uint8_t *data, uint64_t pages)
{
	uint32_t crc = 0;

	for (uint64_t i = 0; i < pages; i++)
		if (!page_is_zero(data + i * RAM_PAGE_SIZE))
			crc = pages_crc32c(crc, data + i * RAM_PAGE_SIZE, 1);
	return crc;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void measure(const char *name, scan_function *scan, const uint8_t *data, uint64_t pages)
{
	uint64_t repeat = pages < LARGE_PAGES ? 512 : 1, times[RUNS];
	double median;

	for (unsigned int run = 0; run < RUNS; run++) {
		uint64_t start = clock_ns();

		for (uint64_t i = 0; i < repeat; i++)
			scan_result ^= scan(data, pages);
		times[run] = clock_ns() - start;
	}
	qsort(times, RUNS, sizeof(*times), compare);
	median = (double)times[RUNS / 2] / (double)(repeat * pages);
	printf("%-34s %8.1f ns a page %8.2f GB/s\n", name, median, RAM_PAGE_SIZE / median);
}

static void measure_sizes(const char *name, scan_function *scan, const uint8_t *data)
{
	char text[64];

	snprintf(text, sizeof(text), "%s, 128 KiB", name);
	measure(text, scan, data, SMALL_PAGES);
	snprintf(text, sizeof(text), "%s, 256 MiB", name);
	measure(text, scan, data, LARGE_PAGES);
}

int main(void)
{
	uint64_t size = (uint64_t)LARGE_PAGES * RAM_PAGE_SIZE, *words;
	uint8_t *data = aligned_alloc(RAM_PAGE_SIZE, size);

	if (!data)
		return 1;
	memset(data, 0, size);
	measure_sizes("page_is_zero, zero pages", scan_zero, data);
	words = (uint64_t *)data;
	for (uint64_t i = 0; i < size / 8; i++)
		words[i] = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
	measure_sizes("page_is_zero, other pages", scan_zero, data);
	measure_sizes("pages_crc32c", scan_crc, data);
	measure_sizes("page_is_zero then pages_crc32c", scan_both, data);
	measure_sizes("crc32c_portable", scan_crc_tables, data);
	printf("(%llx)\n", (unsigned long long)scan_result);
	free(data);
	return 0;
}
