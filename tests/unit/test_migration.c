/* SPDX-License-Identifier: Apache-2.0 */
/* Whole moves between two engines in one process: nothing is lost, whatever the log and backing. */
#include "unit.h"

#include <poll.h>
#include "migration_pair.h"

#define MIB UINT64_C(1048576)

/* 16 MiB: 600 pages with content at the start, 3 in the middle, and 20 that hold zeros. */
#define PAGES 603u
#define ZEROS 20u

static void fill(struct pair *pair)
{
	fake_fill(&pair->source, 0, 600, 42);
	fake_fill(&pair->source, 2048, 3, 43);
	fake_fill(&pair->source, 1024, ZEROS, 1);
	for (uint64_t page = 1024; page < 1024 + ZEROS; page++)
		memset(pair->source.ram->regions[0].hva + page * RAM_PAGE_SIZE, 0, RAM_PAGE_SIZE);
}

static void move(enum ram_backing backing, enum fake_log log, uint64_t hot)
{
	struct fake_config config = {
		.size = 16 * MIB, .backing = backing, .log = log, .hot_pages = hot, .vcpus = 2};
	struct migration_info info;
	struct pair pair;

	pair_create(&pair, &config);
	fill(&pair);
	pair_start(&pair);
	pair_assert_moved(&pair);
	assert_true(fake_is_running(&pair.destination));
	migration_query(pair.source.migration, &info);
	assert_int_equal(info.ram_total, 16 * MIB);
	assert_int_equal(info.ram_remaining, 0);
	assert_true(info.normal_pages >= PAGES - 40); /* a hot page may be zero just then */
	assert_true(info.zero_pages >= ZEROS);
	assert_true(info.ram_transferred >= info.normal_pages * RAM_PAGE_SIZE);
	assert_true(info.downtime_us > 0 && info.downtime_us == info.account.total);
	assert_true(info.dirty_sync_count >= 1);
	assert_int_equal(info.precopy_bytes + info.downtime_bytes, info.ram_transferred);
	/* Private memory has huge pages where the host gives them: then whole blocks are touched.
	 */
	if (backing == RAM_BACKING_SHARED) {
		assert_int_equal(info.untouched_pages, 4096 - PAGES - ZEROS);
		/* Blocks of 512 pages are populated: 0-1023 for the first, one for the zeros and
		 * one for the three; the rest stays unallocated. */
		assert_int_equal(pair.destination.copy_touched, 2048);
	} else {
		assert_true(pair.destination.copy_touched <= 2048);
	}
	if (hot) {
		assert_true(fake_count(&pair.source, FAKE_LOG_HARVEST) >= 2);
		assert_true(atomic_load(&pair.source.writes) > 0);
	} else {
		assert_true(info.normal_pages >= PAGES && info.normal_pages < PAGES + 50);
	}
	pair_destroy(&pair);
}

static void test_idle_shared(void **state)
{
	move(RAM_BACKING_SHARED, FAKE_LOG_HARVEST_CLEARS, 0);
}

static void test_idle_private(void **state)
{
	move(RAM_BACKING_PRIVATE, FAKE_LOG_MANUAL, 0);
}

static void test_writing_harvest_clears(void **state)
{
	move(RAM_BACKING_SHARED, FAKE_LOG_HARVEST_CLEARS, 300);
}

static void test_writing_manual(void **state)
{
	move(RAM_BACKING_PRIVATE, FAKE_LOG_MANUAL, 300);
}

static void test_writing_initially_set(void **state)
{
	move(RAM_BACKING_SHARED, FAKE_LOG_INITIALLY_SET, 300);
	move(RAM_BACKING_PRIVATE, FAKE_LOG_INITIALLY_SET, 300);
}

static void test_many_moves(void **state)
{
	struct fake_config config = {.size = 4 * MIB,
				     .backing = RAM_BACKING_PRIVATE,
				     .log = FAKE_LOG_INITIALLY_SET,
				     .hot_pages = 700};

	for (int i = 0; i < 25; i++) {
		struct pair pair;

		pair_create(&pair, &config);
		fake_fill(&pair.source, 0, 1000, (uint64_t)i);
		pair_start(&pair);
		pair_assert_moved(&pair);
		pair_destroy(&pair);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_idle_shared),
		cmocka_unit_test(test_idle_private),
		cmocka_unit_test(test_writing_harvest_clears),
		cmocka_unit_test(test_writing_manual),
		cmocka_unit_test(test_writing_initially_set),
		cmocka_unit_test(test_many_moves),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
