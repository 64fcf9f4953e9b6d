/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/bitmap.h"
#include "memory/pagemap.h"
#include "memory/ram.h"

#define MIB   UINT64_C(1048576)
#define SIZE  (64 * MIB)
#define PAGES (SIZE / 4096)
#define WORDS BITMAP_WORDS(PAGES)

static struct ram *create(enum ram_backing backing)
{
	struct error *err = NULL;
	struct ram *ram = NULL;

	assert_ok(ram_create(&ram, SIZE, backing, &err), err);
	return ram;
}

/* All ways this kernel has find exactly these pages. */
static void assert_found(const struct ram_region *region, const uint64_t *want)
{
	for (int method = PAGEMAP_BY_EITHER; method <= PAGEMAP_BY_FILE; method++) {
		struct error *err = NULL;
		uint64_t found[WORDS];
		int result;

		memset(found, 0xff, sizeof(found));
		result = pagemap_scan_by((enum pagemap_method)method, region, found, &err);
		if (result == -ENOTTY && method == PAGEMAP_BY_IOCTL) {
			error_free(&err);
			continue;
		}
		assert_ok(result, err);
		for (size_t i = 0; i < PAGES; i++)
			if (bitmap_test(found, i) != bitmap_test(want, i))
				fail_msg("method %d: page %zu is %stouched", method, i,
					 bitmap_test(want, i) ? "un" : "");
	}
}

/* Reading untouched private memory maps the zero page; whose frame only root may know. */
static bool knows_zero_page(void)
{
	return geteuid() == 0;
}

static void touch_random(uint8_t *hva, uint64_t *want, uint64_t granule)
{
	uint64_t seed = random_seed();

	for (int i = 0; i < 300; i++) {
		uint64_t page = random_next(&seed) % PAGES;

		hva[page * 4096 + random_next(&seed) % 4096] = 1;
		bitmap_set_range(want, page / granule * granule, granule);
	}
}

static void test_untouched(void **state)
{
	static const uint64_t none[WORDS];

	for (int backing = RAM_BACKING_PRIVATE; backing <= RAM_BACKING_SHARED; backing++) {
		struct ram *ram = create((enum ram_backing)backing);

		assert_found(&ram->regions[0], none);
		ram_destroy(ram);
	}
}

static void test_private_small_pages(void **state)
{
	struct ram *ram = create(RAM_BACKING_PRIVATE);
	uint8_t *hva = ram->regions[0].hva;
	uint64_t want[WORDS] = {0};

	assert_int_equal(madvise(hva, SIZE, MADV_NOHUGEPAGE), 0);
	hva[0] = hva[SIZE - 1] = 1;
	bitmap_set(want, 0);
	bitmap_set(want, PAGES - 1);
	assert_found(&ram->regions[0], want);
	touch_random(hva, want, 1);
	assert_found(&ram->regions[0], want);
	madvise(hva, SIZE, MADV_DONTNEED);
	memset(want, 0, sizeof(want));
	assert_found(&ram->regions[0], want);
	ram_destroy(ram);
}

static void test_private_huge_pages(void **state)
{
	struct ram *ram = create(RAM_BACKING_PRIVATE);
	struct ram_region *region = &ram->regions[0];
	uint64_t want[WORDS] = {0};
	unsigned char resident[512];

	if (region->host_page == RAM_PAGE_SIZE)
		skip();
	region->hva[10 * MIB + 5] = 1;
	assert_int_equal(mincore(region->hva + 10 * MIB, 2 * MIB, resident), 0);
	if (!(resident[511] & 1))
		skip(); /* no huge page was to be had */
	bitmap_set_range(want, 10 * MIB / 4096, 512);
	assert_found(region, want);
	ram_destroy(ram);
}

/* Many separate runs: more than one call's worth of them. */
static void test_every_other_page(void **state)
{
	struct ram *ram = create(RAM_BACKING_PRIVATE);
	uint8_t *hva = ram->regions[0].hva;
	uint64_t want[WORDS] = {0};

	madvise(hva, SIZE, MADV_NOHUGEPAGE);
	for (size_t i = 1; i < PAGES; i += 2) {
		hva[i * 4096] = 1;
		bitmap_set(want, i);
	}
	assert_found(&ram->regions[0], want);
	ram_destroy(ram);
}

static void test_zero_page_is_untouched(void **state)
{
	for (int huge = 0; huge < 2; huge++) {
		struct ram *ram = create(RAM_BACKING_PRIVATE);
		volatile uint8_t *hva = ram->regions[0].hva;
		uint64_t want[WORDS] = {0};

		if (!knows_zero_page())
			skip();
		madvise((void *)hva, SIZE, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
		for (size_t i = 0; i < PAGES; i += 3)
			assert_int_equal(hva[i * 4096], 0);
		assert_found(&ram->regions[0], want);
		/* One that was only read, and then written. */
		madvise((void *)hva, SIZE, MADV_NOHUGEPAGE);
		if (!huge) {
			hva[3 * 4096] = 1;
			bitmap_set(want, 3);
			assert_found(&ram->regions[0], want);
		}
		ram_destroy(ram);
	}
}

static void test_shared(void **state)
{
	struct ram *ram = create(RAM_BACKING_SHARED);
	struct ram_region *region = &ram->regions[0];
	uint64_t want[WORDS] = {0}, granule = region->host_page / 4096;
	uint8_t *second;

	touch_random(region->hva, want, granule);
	assert_found(region, want);
	/* Through another mapping, so that this one's page table does not have them. */
	second = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, region->fd, 0);
	assert_ptr_not_equal(second, MAP_FAILED);
	touch_random(second, want, granule);
	assert_found(region, want);
	munmap(second, SIZE);
	madvise(region->hva, SIZE, MADV_DONTNEED);
	assert_found(region, want);
	ram_destroy(ram);
}

/* A region in the middle of a file: data before and after it do not count. */
static void test_offset_in_file(void **state)
{
	struct ram *ram = create(RAM_BACKING_SHARED);
	struct ram_region part = ram->regions[0];
	uint64_t want[WORDS] = {0};

	if (part.host_page != RAM_PAGE_SIZE)
		skip();
	part.fd_offset = 16 * MIB;
	part.hva += part.fd_offset;
	part.size = 16 * MIB;
	ram->regions[0].hva[16 * MIB - 1] = ram->regions[0].hva[32 * MIB] = 1;
	ram->regions[0].hva[16 * MIB] = ram->regions[0].hva[20 * MIB] = 1;
	ram->regions[0].hva[32 * MIB - 1] = 1;
	bitmap_set(want, 0);
	bitmap_set(want, 4 * MIB / 4096);
	bitmap_set(want, 16 * MIB / 4096 - 1);
	for (int method = PAGEMAP_BY_EITHER; method <= PAGEMAP_BY_FILE; method += 2) {
		uint64_t found[WORDS] = {0};
		struct error *err = NULL;

		assert_ok(pagemap_scan_by((enum pagemap_method)method, &part, found, &err), err);
		assert_memory_equal(found, want, sizeof(want));
	}
	ram_destroy(ram);
}

static void test_hugetlb(void **state)
{
	struct ram *ram = NULL;
	struct ram_region *region;
	uint64_t found[BITMAP_WORDS(1024)] = {0};
	uint8_t *second;

	if (ram_create(&ram, 2 * 2 * MIB, RAM_BACKING_HUGETLB, NULL) < 0)
		skip();
	region = &ram->regions[0];
	region->hva[2 * MIB + 9] = 1;
	assert_int_equal(pagemap_scan(region, found, NULL), 0);
	assert_int_equal(bitmap_count(found, 1024), 512);
	assert_false(bitmap_test(found, 511));
	assert_true(bitmap_test(found, 512) && bitmap_test(found, 1023));
	/* What only another mapping touched is not missed. */
	second = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, region->fd, 0);
	assert_ptr_not_equal(second, MAP_FAILED);
	second[0] = 1;
	assert_int_equal(pagemap_scan(region, found, NULL), 0);
	assert_int_equal(bitmap_count(found, 1024), 1024);
	munmap(second, 4 * MIB);
	ram_destroy(ram);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_untouched),
		cmocka_unit_test(test_private_small_pages),
		cmocka_unit_test(test_private_huge_pages),
		cmocka_unit_test(test_every_other_page),
		cmocka_unit_test(test_zero_page_is_untouched),
		cmocka_unit_test(test_shared),
		cmocka_unit_test(test_offset_in_file),
		cmocka_unit_test(test_hugetlb),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
