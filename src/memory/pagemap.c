/* SPDX-License-Identifier: Apache-2.0 */
/* Linux, Documentation/admin-guide/mm/pagemap.rst. */
#include "memory/pagemap.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include "base/bitmap.h"
#include "base/cleanup.h"

/* PAGEMAP_SCAN came with Linux 6.7; the system's headers may be older. */
struct pagemap_run {
	uint64_t start, end, categories;
};

struct pagemap_scan_arguments {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};

#define PAGEMAP_SCAN_IOCTL _IOWR('f', 16, struct pagemap_scan_arguments)

#define CATEGORY_PRESENT   (UINT64_C(1) << 3)
#define CATEGORY_SWAPPED   (UINT64_C(1) << 4)
#define CATEGORY_ZERO_PAGE (UINT64_C(1) << 5)

/* An entry of the file. The frame number reads as 0 without CAP_SYS_ADMIN. */
#define ENTRY_PRESENT (UINT64_C(1) << 63)
#define ENTRY_SWAPPED (UINT64_C(1) << 62)
#define ENTRY_FRAME   ((UINT64_C(1) << 55) - 1)

#define SCAN_RUNS    256
#define FILE_ENTRIES 4096

static int scan_by_ioctl(int fd, const struct ram_region *region, uint64_t *bitmap)
{
	uint64_t base = (uintptr_t)region->hva;
	struct pagemap_run runs[SCAN_RUNS];
	struct pagemap_scan_arguments scan = {
		.size = sizeof(scan),
		.start = base,
		.end = base + region->size,
		.vec = (uintptr_t)runs,
		.vec_len = SCAN_RUNS,
		.category_inverted = CATEGORY_ZERO_PAGE,
		.category_mask = CATEGORY_ZERO_PAGE,
		.category_anyof_mask = CATEGORY_PRESENT | CATEGORY_SWAPPED,
		.return_mask = CATEGORY_PRESENT | CATEGORY_SWAPPED,
	};

	while (scan.start < scan.end) {
		int count = ioctl(fd, PAGEMAP_SCAN_IOCTL, &scan);

		if (count < 0 && errno == EINTR)
			continue;
		if (count < 0)
			return -errno;
		for (int i = 0; i < count; i++)
			bitmap_set_range(bitmap, (runs[i].start - base) >> RAM_PAGE_SHIFT,
					 (runs[i].end - runs[i].start) >> RAM_PAGE_SHIFT);
		if (scan.walk_end <= scan.start)
			return -EIO; /* no progress: never loop for it */
		scan.start = scan.walk_end;
	}
	return 0;
}

/* Entries of the pages at `address`; the page size of the host is 4 KiB. */
static int read_entries(int fd, uint64_t address, uint64_t *entries, uint64_t count)
{
	uint64_t size = count * sizeof(*entries), done = 0;

	while (done < size) {
		ssize_t part = pread(fd, (char *)entries + done, size - done,
				     (off_t)(address / RAM_PAGE_SIZE * sizeof(*entries) + done));

		if (part < 0 && errno == EINTR)
			continue;
		if (part <= 0)
			return part < 0 ? -errno : -EIO;
		done += (uint64_t)part;
	}
	return 0;
}

/*
 * Frames of the kernel's zero pages, small and huge. They are learnt from a mapping that is only
 * read, and which stays until the scan is over: as long as it does, a frame seen there cannot
 * become anybody's page, whatever the kernel gave.
 */
struct zero_frames {
	uint8_t *map;
	uint64_t small, huge; /* 0 where unknown */
};

#define HUGE_SIZE  (UINT64_C(2) << 20)
#define HUGE_PAGES (HUGE_SIZE / RAM_PAGE_SIZE)

static uint64_t frame_at(int fd, const uint8_t *address)
{
	uint64_t entry;

	if (read_entries(fd, (uintptr_t)address, &entry, 1) < 0 || !(entry & ENTRY_PRESENT))
		return 0;
	return entry & ENTRY_FRAME;
}

static void zero_frames_find(struct zero_frames *zero, int fd)
{
	volatile uint8_t *huge, *small;

	zero->map = mmap(NULL, 3 * HUGE_SIZE, PROT_READ,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (zero->map == MAP_FAILED)
		return;
	huge = zero->map + -(uintptr_t)zero->map % HUGE_SIZE;
	small = huge + HUGE_SIZE;
	madvise((void *)huge, HUGE_SIZE, MADV_HUGEPAGE);
	madvise((void *)small, HUGE_SIZE, MADV_NOHUGEPAGE);
	(void)*huge;
	(void)*small;
	zero->small = frame_at(fd, (const uint8_t *)small);
	zero->huge = frame_at(fd, (const uint8_t *)huge);
	/* Without huge pages only the first small page is there. */
	if (frame_at(fd, (const uint8_t *)small - RAM_PAGE_SIZE) != zero->huge + HUGE_PAGES - 1)
		zero->huge = 0;
}

static void zero_frames_release(struct zero_frames *zero)
{
	if (zero->map != MAP_FAILED)
		munmap(zero->map, 3 * HUGE_SIZE);
}

static bool entry_touched(uint64_t entry, const struct zero_frames *zero)
{
	uint64_t frame = entry & ENTRY_FRAME;

	if (!(entry & ENTRY_PRESENT))
		return entry & ENTRY_SWAPPED;
	if (zero->small && frame == zero->small)
		return false;
	return !zero->huge || frame - zero->huge >= HUGE_PAGES;
}

static int scan_by_file(int fd, const struct ram_region *region, uint64_t *bitmap)
{
	uint64_t pages = ram_region_pages(region);
	uint64_t entries[FILE_ENTRIES];
	struct zero_frames zero = {0};
	int result = 0;

	zero_frames_find(&zero, fd);
	for (uint64_t at = 0; at < pages && result == 0; at += FILE_ENTRIES) {
		uint64_t count = pages - at < FILE_ENTRIES ? pages - at : FILE_ENTRIES;

		result = read_entries(fd, (uintptr_t)region->hva + at * RAM_PAGE_SIZE, entries,
				      count);
		for (uint64_t i = 0; i < count && result == 0; i++)
			if (entry_touched(entries[i], &zero))
				bitmap_set(bitmap, at + i);
	}
	zero_frames_release(&zero);
	return result;
}

/*
 * hugetlbfs has no SEEK_DATA of its own (all of a file is "data"), but it counts its blocks. When
 * the file has more than this process has mapped, the rest may be anywhere: all pages count.
 */
static int add_hugetlb_data(const struct ram_region *region, uint64_t *bitmap)
{
	uint64_t pages = ram_region_pages(region);
	struct stat status;

	if (fstat(region->fd, &status) < 0)
		return -errno;
	if ((uint64_t)status.st_blocks * 512 > bitmap_count(bitmap, pages) * RAM_PAGE_SIZE)
		bitmap_set_range(bitmap, 0, pages);
	return 0;
}

/* Adds what the file holds: it may have pages that are not in our page table. */
static int add_file_data(const struct ram_region *region, uint64_t *bitmap)
{
	off_t at = (off_t)region->fd_offset, end = at + (off_t)region->size;
	struct statfs system;

	if (fstatfs(region->fd, &system) < 0)
		return -errno;
	if (system.f_type == HUGETLBFS_MAGIC)
		return add_hugetlb_data(region, bitmap);
	while (at < end) {
		off_t data = lseek(region->fd, at, SEEK_DATA), hole;

		if (data < 0 && errno == ENXIO)
			return 0;
		hole = data < 0 ? -1 : lseek(region->fd, data, SEEK_HOLE);
		if (hole < 0)
			return -errno;
		if (data >= end)
			return 0;
		if (hole > end)
			hole = end;
		bitmap_set_range(bitmap,
				 (uint64_t)(data - (off_t)region->fd_offset) >> RAM_PAGE_SHIFT,
				 (uint64_t)(hole - data) >> RAM_PAGE_SHIFT);
		at = hole;
	}
	return 0;
}

int pagemap_scan_by(enum pagemap_method method, const struct ram_region *region, uint64_t *bitmap,
		    struct error **err)
{
	cleanup_close int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	size_t bytes = BITMAP_WORDS(ram_region_pages(region)) * sizeof(*bitmap);
	int result = -ENOTTY;

	if (fd < 0)
		return error_set_errno(err, -errno, "cannot open /proc/self/pagemap");
	memset(bitmap, 0, bytes);
	if (method != PAGEMAP_BY_FILE)
		result = scan_by_ioctl(fd, region, bitmap);
	if (result == -ENOTTY && method != PAGEMAP_BY_IOCTL)
		result = scan_by_file(fd, region, bitmap);
	if (result < 0)
		return error_set_errno(err, result, "cannot read the page map of %s", region->name);
	if (region->fd < 0)
		return 0;
	result = add_file_data(region, bitmap);
	if (result < 0)
		return error_set_errno(err, result, "cannot find the holes of %s's file",
				       region->name);
	return 0;
}

int pagemap_scan(const struct ram_region *region, uint64_t *bitmap, struct error **err)
{
	return pagemap_scan_by(PAGEMAP_BY_EITHER, region, bitmap, err);
}
