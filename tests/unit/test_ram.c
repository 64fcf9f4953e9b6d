/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/bitmap.h"
#include "memory/ram.h"

#define MIB UINT64_C(1048576)
#define GIB (UINT64_C(1) << 30)

static struct ram *create(uint64_t size, enum ram_backing backing)
{
	struct error *err = NULL;
	struct ram *ram = NULL;

	assert_ok(ram_create(&ram, size, backing, &err), err);
	return ram;
}

static size_t written(struct ram *ram, unsigned int region)
{
	return bitmap_count((const uint64_t *)ram->regions[region].written,
			    ram_region_pages(&ram->regions[region]));
}

static void test_backing_names(void **state)
{
	enum ram_backing backing = RAM_BACKING_HUGETLB;
	struct error *err = NULL;

	for (int i = RAM_BACKING_PRIVATE; i <= RAM_BACKING_HUGETLB; i++) {
		assert_ok(ram_backing_parse(ram_backing_name((enum ram_backing)i), &backing, &err),
			  err);
		assert_int_equal(backing, i);
	}
	assert_refused(ram_backing_parse("huge", &backing, &err), err, -EINVAL,
		       "'huge' is not a kind of memory; give private, shared or hugetlb");
}

static void test_one_region(void **state)
{
	struct ram *ram = create(64 * MIB, RAM_BACKING_PRIVATE);
	struct ram_region *low = &ram->regions[0];

	assert_int_equal(ram->count, 1);
	assert_int_equal(ram->size, 64 * MIB);
	assert_string_equal(low->name, "ram.low");
	assert_int_equal(low->gpa, 0);
	assert_int_equal(low->fd, -1);
	assert_int_equal((uintptr_t)low->hva % (2 * MIB), 0);
	assert_int_equal(ram_region_pages(low), 16384);
	ram_destroy(ram);
}

/* Address space only: the memory is never touched, so this costs nothing. */
static void test_split_around_hole(void **state)
{
	struct ram *ram = create(RAM_HOLE_START + 512 * MIB, RAM_BACKING_SHARED);
	struct ram_region *low = &ram->regions[0], *high = &ram->regions[1];

	assert_int_equal(ram->count, 2);
	assert_int_equal(low->size, RAM_HOLE_START);
	assert_string_equal(high->name, "ram.high");
	assert_int_equal(high->gpa, RAM_HOLE_END);
	assert_int_equal(high->size, 512 * MIB);
	assert_int_equal((uintptr_t)high->hva % (2 * MIB), 0);
	assert_true(low->fd >= 0 && high->fd >= 0 && low->fd != high->fd);
	assert_ptr_equal(ram_find(ram, RAM_HOLE_START - 1, 1), low);
	assert_null(ram_find(ram, RAM_HOLE_START - 1, 2));
	assert_null(ram_find(ram, RAM_HOLE_START, 1));
	assert_null(ram_find(ram, RAM_HOLE_END - 1, 1));
	assert_null(ram_find(ram, RAM_HOLE_END - 1, 2));
	assert_ptr_equal(ram_find(ram, RAM_HOLE_END, 512 * MIB), high);
	assert_null(ram_find(ram, RAM_HOLE_END, 512 * MIB + 1));
	assert_null(ram_find(ram, RAM_HOLE_END + 512 * MIB, 0));
	assert_ptr_equal(ram_pointer(ram, RAM_HOLE_END + 5, 1), high->hva + 5);
	ram_destroy(ram);
	ram = create(RAM_HOLE_START, RAM_BACKING_PRIVATE);
	assert_int_equal(ram->count, 1);
	ram_destroy(ram);
}

static void test_bounds_and_wrap(void **state)
{
	struct ram *ram = create(4 * MIB, RAM_BACKING_PRIVATE);
	uint8_t *hva = ram->regions[0].hva;
	char text[8] = "";

	assert_ptr_equal(ram_pointer(ram, 0, 4 * MIB), hva);
	assert_ptr_equal(ram_pointer(ram, 4 * MIB - 1, 1), hva + 4 * MIB - 1);
	assert_ptr_equal(ram_pointer(ram, 4 * MIB - 1, 0), hva + 4 * MIB - 1);
	assert_null(ram_pointer(ram, 4 * MIB, 0));
	assert_null(ram_pointer(ram, 4 * MIB - 1, 2));
	assert_null(ram_pointer(ram, 0, 4 * MIB + 1));
	assert_null(ram_pointer(ram, 0, UINT64_MAX));
	assert_null(ram_pointer(ram, 4096, UINT64_MAX - 4095));
	assert_null(ram_pointer(ram, 4096, UINT64_MAX));
	assert_null(ram_pointer(ram, UINT64_MAX, 1));
	assert_null(ram_pointer(ram, UINT64_MAX, 2));
	assert_null(ram_pointer(ram, UINT64_MAX - 4095, 8192));
	assert_int_equal(ram_write(ram, 4 * MIB - 6, "guest", 6), 0);
	assert_int_equal(ram_read(ram, 4 * MIB - 6, text, 6), 0);
	assert_string_equal(text, "guest");
	assert_memory_equal(hva + 4 * MIB - 6, "guest", 6);
	assert_int_equal(ram_write(ram, 4 * MIB - 5, "guest", 6), -EFAULT);
	assert_int_equal(ram_read(ram, UINT64_MAX - 2, text, 6), -EFAULT);
	assert_memory_equal(hva + 4 * MIB - 6, "guest", 6);
	ram_destroy(ram);
}

static void test_mark_dirty(void **state)
{
	struct ram *ram = create(RAM_HOLE_START + 4 * MIB, RAM_BACKING_PRIVATE);
	const uint64_t *low = (const uint64_t *)ram->regions[0].written;
	const uint64_t *high = (const uint64_t *)ram->regions[1].written;
	size_t low_pages = ram_region_pages(&ram->regions[0]);

	ram_mark_dirty(ram, 0, 4096);
	assert_int_equal(written(ram, 0), 0); /* not logging */
	ram->logging = true;
	ram_mark_dirty(ram, 4096, 0);
	assert_int_equal(written(ram, 0), 0);
	ram_mark_dirty(ram, 4095, 2); /* one byte on each of two pages */
	assert_int_equal(written(ram, 0), 2);
	assert_true(bitmap_test(low, 0) && bitmap_test(low, 1));
	ram_mark_dirty(ram, 5 * 4096, 4096);
	assert_int_equal(written(ram, 0), 3);
	assert_true(bitmap_test(low, 5));
	ram_mark_dirty(ram, 60 * 4096 + 1, 10 * 4096); /* 11 pages, over a word's end */
	assert_int_equal(written(ram, 0), 14);
	assert_true(bitmap_test(low, 60) && bitmap_test(low, 70) && !bitmap_test(low, 71));
	assert_int_equal(ram_write(ram, 100 * 4096 + 4090, "0123456789", 10), 0);
	assert_true(bitmap_test(low, 100) && bitmap_test(low, 101));
	assert_int_equal(written(ram, 0), 16);
	/* From the last page below the hole to the first page above it. */
	ram_mark_dirty(ram, RAM_HOLE_START - 1, RAM_HOLE_END - RAM_HOLE_START + 2);
	assert_true(bitmap_test(low, low_pages - 1));
	assert_int_equal(written(ram, 0), 17);
	assert_true(bitmap_test(high, 0));
	assert_int_equal(written(ram, 1), 1);
	/* Outside, and past 2^64. */
	ram_mark_dirty(ram, RAM_HOLE_START, 4096);
	ram_mark_dirty(ram, RAM_HOLE_END + 4 * MIB, GIB);
	ram_mark_dirty(ram, UINT64_MAX - 4095, 8192);
	assert_int_equal(written(ram, 0) + written(ram, 1), 18);
	ram_mark_dirty(ram, RAM_HOLE_END + 4 * MIB - 1, UINT64_MAX);
	assert_int_equal(written(ram, 1), 2);
	assert_true(bitmap_test(high, 1023));
	ram_mark_dirty(ram, 0, UINT64_MAX);
	assert_int_equal(written(ram, 0), low_pages);
	assert_int_equal(written(ram, 1), 1024);
	ram_destroy(ram);
}

struct marker {
	struct ram *ram;
	unsigned int lane;
};

static void *mark_lane(void *data)
{
	const struct marker *marker = data;

	for (uint64_t page = marker->lane; page < 4096; page += 4)
		ram_mark_dirty(marker->ram, page * 4096, 1);
	return NULL;
}

/* Four threads set neighbouring bits of the same words; none is lost. */
static void test_mark_dirty_threads(void **state)
{
	struct ram *ram = create(16 * MIB, RAM_BACKING_PRIVATE);
	struct marker markers[4];
	pthread_t threads[4];

	ram->logging = true;
	for (unsigned int i = 0; i < 4; i++) {
		markers[i] = (struct marker){ram, i};
		assert_int_equal(pthread_create(&threads[i], NULL, mark_lane, &markers[i]), 0);
	}
	for (unsigned int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(written(ram, 0), 4096);
	ram_destroy(ram);
}

static void test_refusals(void **state)
{
	struct error *err = NULL;
	struct ram *ram = NULL;
	char want[64];

	assert_refused(ram_create(&ram, 0, RAM_BACKING_PRIVATE, &err), err, -EINVAL,
		       "multiple of 2 MiB");
	assert_refused(ram_create(&ram, 4096, RAM_BACKING_PRIVATE, &err), err, -EINVAL,
		       "4 KiB (4096 bytes)");
	assert_refused(ram_create(&ram, 3 * MIB, RAM_BACKING_SHARED, &err), err, -EINVAL,
		       "multiple of 2 MiB");
	assert_refused(
		ram_create(&ram, UINT64_MAX / (2 * MIB) * 2 * MIB, RAM_BACKING_PRIVATE, &err), err,
		-ENOMEM, "more than this host has");
	assert_refused(ram_create(&ram, UINT64_C(512) << 40, RAM_BACKING_SHARED, &err), err,
		       -ENOMEM, "512 TiB of guest memory is more than this host has (");
	/* The amount it names is accepted, at least by the check of sizes. */
	snprintf(want, sizeof(want), "give at most ");
	assert_int_equal(ram_create(&ram, UINT64_C(512) << 40, RAM_BACKING_SHARED, &err), -ENOMEM);
	assert_non_null(strstr(error_text(err), want));
	assert_in_range(strtoull(strstr(error_text(err), want) + strlen(want), NULL, 10), 64,
			512 * 1024 * 1024);
	error_free(&err);
	assert_null(ram);
}

static uint64_t kernel_number(const char *path)
{
	FILE *file = fopen(path, "re");
	uint64_t value = 0;

	if (!file || fscanf(file, "%" SCNu64, &value) != 1)
		value = 0;
	if (file)
		fclose(file);
	return value;
}

#define HUGETLB "/sys/kernel/mm/hugepages/hugepages-2048kB/"

static void test_hugetlb(void **state)
{
	uint64_t unused = kernel_number(HUGETLB "free_hugepages");
	struct error *err = NULL;
	struct ram *ram = NULL;
	char want[64];

	if (access(HUGETLB, F_OK) < 0)
		skip();
	if (unused * 2 * MIB + 64 * MIB < 512 * MIB) {
		snprintf(want, sizeof(want), "needs %" PRIu64 " huge pages of 2 MiB, and ",
			 unused + 32);
		assert_refused(ram_create(&ram, (unused + 32) * 2 * MIB, RAM_BACKING_HUGETLB, &err),
			       err, -ENOMEM, want);
		assert_int_equal(
			ram_create(&ram, (unused + 32) * 2 * MIB, RAM_BACKING_HUGETLB, &err),
			-ENOMEM);
		assert_non_null(strstr(error_text(err), " to /proc/sys/vm/nr_hugepages"));
		error_free(&err);
	}
	if (unused < 2)
		skip();
	ram = create(2 * MIB, RAM_BACKING_HUGETLB);
	assert_int_equal(ram->regions[0].host_page, 2 * MIB);
	ram->regions[0].hva[2 * MIB - 1] = 1;
	assert_int_equal(kernel_number(HUGETLB "free_hugepages"), unused - 1);
	assert_ok(ram_discard_all(ram, &err), err);
	assert_int_equal(ram->regions[0].hva[2 * MIB - 1], 0);
	ram_destroy(ram);
	assert_int_equal(kernel_number(HUGETLB "free_hugepages"), unused);
}

/* Whoever has the descriptor cannot cut the memory short under this process. */
static void test_file_is_sealed(void **state)
{
	struct ram *ram = create(4 * MIB, RAM_BACKING_SHARED);
	int fd = ram->regions[0].fd;
	struct stat status;

	assert_int_equal(ftruncate(fd, 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(fd, (off_t)(8 * MIB)), -1);
	assert_int_equal(fstat(fd, &status), 0);
	assert_int_equal(status.st_size, 4 * MIB);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	ram_destroy(ram);
	assert_int_equal(fcntl(fd, F_GETFD), -1);
}

static void test_discard(void **state)
{
	for (int backing = RAM_BACKING_PRIVATE; backing <= RAM_BACKING_SHARED; backing++) {
		struct ram *ram = create(8 * MIB, (enum ram_backing)backing);
		struct error *err = NULL;
		unsigned char resident[2048];
		uint8_t *hva = ram->regions[0].hva;

		hva[0] = hva[8 * MIB - 1] = 1;
		assert_ok(ram_discard_all(ram, &err), err);
		assert_int_equal(mincore(hva, 8 * MIB, resident), 0);
		for (size_t i = 0; i < sizeof(resident); i++)
			assert_int_equal(resident[i] & 1, 0);
		assert_int_equal(hva[0] | hva[8 * MIB - 1], 0);
		ram_destroy(ram);
	}
}

/* A child does not have the memory: an access there ends it. */
static void test_not_forked(void **state)
{
	struct ram *ram = create(2 * MIB, RAM_BACKING_PRIVATE);
	unsigned char resident;
	int status;
	pid_t child;

	ram->regions[0].hva[0] = 1;
	child = fork();
	if (child == 0)
		_exit(mincore(ram->regions[0].hva, 4096, &resident) < 0 && errno == ENOMEM ? 7 : 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(WEXITSTATUS(status), 7);
	ram_destroy(ram);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_backing_names),     cmocka_unit_test(test_one_region),
		cmocka_unit_test(test_split_around_hole), cmocka_unit_test(test_bounds_and_wrap),
		cmocka_unit_test(test_mark_dirty),        cmocka_unit_test(test_mark_dirty_threads),
		cmocka_unit_test(test_refusals),          cmocka_unit_test(test_hugetlb),
		cmocka_unit_test(test_file_is_sealed),    cmocka_unit_test(test_discard),
		cmocka_unit_test(test_not_forked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
