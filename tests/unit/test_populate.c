/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/bitmap.h"
#include "memory/pagemap.h"
#include "memory/populate.h"
#include "memory/ram.h"

#define MIB UINT64_C(1048576)

static struct ram *create(uint64_t size, enum ram_backing backing)
{
	struct error *err = NULL;
	struct ram *ram = NULL;

	assert_ok(ram_create(&ram, size, backing, &err), err);
	return ram;
}

static uint64_t resident_bytes(void)
{
	FILE *file = fopen("/proc/self/statm", "re");
	unsigned long long size, resident;

	assert_non_null(file);
	assert_int_equal(fscanf(file, "%llu %llu", &size, &resident), 2);
	fclose(file);
	return resident * 4096;
}

static bool page_present(const uint8_t *at)
{
	unsigned char resident = 0;

	assert_int_equal(mincore((void *)at, 4096, &resident), 0);
	return resident & 1;
}

static void populate_all(const struct populate_range *ranges, unsigned int count,
			 unsigned int threads, uint64_t total)
{
	struct error *err = NULL;
	struct populate *job = NULL;

	assert_ok(populate_start(&job, ranges, count, threads, &err), err);
	assert_int_equal(populate_total_bytes(job), total);
	assert_ok(populate_wait(job, &err), err);
	assert_int_equal(populate_done_bytes(job), total);
	assert_ok(populate_wait(job, &err), err); /* a second time: the same */
	populate_free(job);
}

static void test_resident_grows_by_what_was_asked(void **state)
{
	for (unsigned int threads = 0; threads <= 2; threads++)
		for (int backing = RAM_BACKING_PRIVATE; backing <= RAM_BACKING_SHARED; backing++) {
			struct ram *ram = create(128 * MIB, (enum ram_backing)backing);
			uint8_t *hva = ram->regions[0].hva;
			uint64_t before = resident_bytes(), grown;

			populate_all(&(struct populate_range){hva + 32 * MIB, 64 * MIB}, 1, threads,
				     64 * MIB);
			grown = resident_bytes() - before;
			assert_in_range(grown, 64 * MIB, 66 * MIB);
			assert_true(page_present(hva + 32 * MIB));
			assert_true(page_present(hva + 96 * MIB - 4096));
			assert_false(page_present(hva + 32 * MIB - 4096));
			assert_false(page_present(hva + 96 * MIB));
			ram_destroy(ram);
		}
}

/* Ranges of odd sizes and places: each of their pages is there, none beside them. */
static void test_ranges(void **state)
{
	struct ram *ram = create(96 * MIB, RAM_BACKING_SHARED);
	const struct ram_region *region = &ram->regions[0];
	struct populate_range ranges[] = {
		{region->hva + 4096, 4096},
		{region->hva + 3 * 4096, 0},
		{region->hva + 2 * MIB - 4096, 8192},
		{region->hva + 5 * MIB + 4096, 40 * MIB},
		{region->hva + 96 * MIB - 4096, 4096},
	};
	uint64_t *found = calloc(BITMAP_WORDS(ram_region_pages(region)), 8), total = 0;
	uint64_t *want = calloc(BITMAP_WORDS(ram_region_pages(region)), 8);
	struct error *err = NULL;

	for (unsigned int i = 0; i < 5; i++) {
		total += ranges[i].size;
		bitmap_set_range(want, (size_t)(ranges[i].hva - region->hva) / 4096,
				 ranges[i].size / 4096);
	}
	if (region->host_page != RAM_PAGE_SIZE)
		skip(); /* pages come by the huge page here */
	populate_all(ranges, 5, 2, total);
	assert_ok(pagemap_scan(region, found, &err), err);
	assert_memory_equal(found, want, BITMAP_WORDS(ram_region_pages(region)) * 8);
	free(found);
	free(want);
	ram_destroy(ram);
}

static void test_nothing_to_do(void **state)
{
	populate_all(NULL, 0, 2, 0);
	populate_all(&(struct populate_range){NULL, 0}, 1, 0, 0);
}

static void test_cancel(void **state)
{
	struct ram *ram = create(512 * MIB, RAM_BACKING_SHARED);
	struct populate_range range = {ram->regions[0].hva, 512 * MIB};
	struct error *err = NULL;
	struct populate *job = NULL;

	assert_ok(populate_start(&job, &range, 1, 2, &err), err);
	populate_cancel(job);
	assert_refused(populate_wait(job, &err), err, -ECANCELED, "cancelled");
	/* Two steps at most were under way. */
	assert_true(populate_done_bytes(job) <= 128 * MIB);
	populate_free(job);
	/* Freed while it runs. */
	assert_ok(populate_start(&job, &range, 1, 2, &err), err);
	populate_free(job);
	/* Cancelled when all is done: that is no failure. */
	range.size = 2 * MIB;
	assert_ok(populate_start(&job, &range, 1, 1, &err), err);
	assert_ok(populate_wait(job, &err), err);
	populate_cancel(job);
	assert_ok(populate_wait(job, &err), err);
	populate_free(job);
	ram_destroy(ram);
}

static void test_errors(void **state)
{
	uint8_t *hva = mmap(NULL, 64 * MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct populate_range range = {hva, 64 * MIB};
	struct error *err = NULL;
	struct populate *job = NULL;

	assert_ptr_not_equal(hva, MAP_FAILED);
	assert_ok(populate_start(&job, &range, 1, 2, &err), err);
	assert_refused(populate_wait(job, &err), err, -EINVAL, "of guest memory: Invalid");
	assert_int_equal(populate_done_bytes(job), 0);
	populate_free(job);
	munmap(hva, 64 * MIB);
	assert_ok(populate_start(&job, &range, 1, 2, &err), err);
	assert_refused(populate_wait(job, &err), err, -ENOMEM, "Cannot allocate memory");
	populate_free(job);
	range = (struct populate_range){hva + 1, 4096};
	assert_refused(populate_start(&job, &range, 1, 2, &err), err, -EINVAL, "not whole pages");
	range = (struct populate_range){hva, 4095};
	assert_refused(populate_start(&job, &range, 1, 2, &err), err, -EINVAL, "not whole pages");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_resident_grows_by_what_was_asked),
		cmocka_unit_test(test_ranges),
		cmocka_unit_test(test_nothing_to_do),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_errors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
