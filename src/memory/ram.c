/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/ram.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/bitmap.h"
#include "base/cleanup.h"
#include "base/parse.h"

#define RAM_ALIGNMENT (UINT64_C(2) << 20)

/* Linux 6.3; the headers may be older. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif

#define HUGETLB_FOLDER "/sys/kernel/mm/hugepages/hugepages-2048kB/"
#define THP_FOLDER     "/sys/kernel/mm/transparent_hugepage/"

static const char *const ram_backing_names[] = {
	[RAM_BACKING_PRIVATE] = "private",
	[RAM_BACKING_SHARED] = "shared",
	[RAM_BACKING_HUGETLB] = "hugetlb",
};

const char *ram_backing_name(enum ram_backing backing)
{
	return ram_backing_names[backing];
}

int ram_backing_parse(const char *text, enum ram_backing *backing, struct error **err)
{
	for (int i = RAM_BACKING_PRIVATE; i <= RAM_BACKING_HUGETLB; i++)
		if (strcmp(text, ram_backing_names[i]) == 0) {
			*backing = (enum ram_backing)i;
			return 0;
		}
	return error_set(err, -EINVAL,
			 "'%s' is not a kind of memory; give private, shared or hugetlb", text);
}

/* The number that follows `label` in a small kernel file ("" for a file that is one number). */
static bool read_kernel_number(const char *path, const char *label, uint64_t *value)
{
	cleanup_fclose FILE *file = fopen(path, "re");
	char line[256];

	while (file && fgets(line, sizeof(line), file))
		if (strncmp(line, label, strlen(label)) == 0)
			return sscanf(line + strlen(label), "%" SCNu64, value) == 1;
	return false;
}

/* Whether a transparent_hugepage file ("always [madvise] never") lets madvise() have huge pages. */
static bool thp_allowed(const char *path)
{
	cleanup_fclose FILE *file = fopen(path, "re");
	char line[256];

	return file && fgets(line, sizeof(line), file) && !strstr(line, "[never]") &&
	       !strstr(line, "[deny]");
}

static int ram_check_size(uint64_t size, struct error **err)
{
	uint64_t total_kib;
	char want[32], have[32];

	format_size(want, sizeof(want), size);
	if (size < RAM_ALIGNMENT || size % RAM_ALIGNMENT)
		return error_set(err, -EINVAL,
				 "%s (%" PRIu64 " bytes) is no possible amount of guest memory; "
				 "give a multiple of 2 MiB",
				 want, size);
	if (read_kernel_number("/proc/meminfo", "MemTotal:", &total_kib) && size > total_kib * 1024)
		return error_set(err, -ENOMEM,
				 "%s of guest memory is more than this host has (%s); give at most "
				 "%" PRIu64 "M",
				 want, format_size(have, sizeof(have), total_kib * 1024),
				 total_kib / 2048 * 2);
	return 0;
}

/* The kernel takes huge pages from the pool at mmap(); this says before that what is missing. */
static int ram_check_hugetlb(uint64_t size, struct error **err)
{
	uint64_t need = size / RAM_ALIGNMENT, total = 0, unused = 0, reserved = 0;
	char text[32];

	if (!read_kernel_number(HUGETLB_FOLDER "nr_hugepages", "", &total))
		return error_set(err, -EOPNOTSUPP,
				 "this host's kernel has no 2 MiB huge pages; use another kind of "
				 "memory (private or shared)");
	read_kernel_number(HUGETLB_FOLDER "free_hugepages", "", &unused);
	read_kernel_number(HUGETLB_FOLDER "resv_hugepages", "", &reserved);
	unused -= reserved < unused ? reserved : unused;
	if (need <= unused)
		return 0;
	return error_set(err, -ENOMEM,
			 "%s of guest memory needs %" PRIu64 " huge pages of 2 MiB, and %" PRIu64
			 " of this host's %" PRIu64 " are free; as root, write %" PRIu64
			 " to /proc/sys/vm/nr_hugepages",
			 format_size(text, sizeof(text), size), need, unused, total,
			 total + need - unused);
}

/*
 * The file behind a region. It keeps its size for good, so that nobody who is handed the
 * descriptor can make accesses here fault by cutting it short.
 */
static int region_create_file(const struct ram_region *region, enum ram_backing backing,
			      struct error **err)
{
	unsigned int flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	cleanup_close int fd = -1;

	if (backing == RAM_BACKING_HUGETLB)
		flags |= MFD_HUGETLB | MFD_HUGE_2MB;
	fd = memfd_create(region->name, flags | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(region->name, flags);
	if (fd < 0)
		return error_set_errno(err, -errno, "cannot create a memory file (memfd_create)");
	if (ftruncate(fd, (off_t)region->size) < 0)
		return error_set_errno(err, -errno, "cannot set the size of a memory file");
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
		return error_set_errno(err, -errno, "cannot seal a memory file");
	return steal_fd(&fd);
}

/* Address space of the size, 2 MiB-aligned, with no access; NULL and errno on failure. */
static uint8_t *reserve_aligned(uint64_t size)
{
	uint8_t *start = mmap(NULL, size + RAM_ALIGNMENT, PROT_NONE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint64_t head;

	if (start == MAP_FAILED)
		return NULL;
	head = -(uintptr_t)start % RAM_ALIGNMENT;
	if (head)
		munmap(start, head);
	if (head < RAM_ALIGNMENT)
		munmap(start + head + size, RAM_ALIGNMENT - head);
	return start + head;
}

/* Only a region that is mapped as a whole has an hva. */
static int region_map(struct ram_region *region, enum ram_backing backing, struct error **err)
{
	int flags = MAP_FIXED;
	char text[32];
	uint8_t *at;

	format_size(text, sizeof(text), region->size);
	if (backing == RAM_BACKING_PRIVATE) {
		flags |= MAP_PRIVATE | MAP_ANONYMOUS;
	} else {
		flags |= MAP_SHARED;
		region->fd = region_create_file(region, backing, err);
		if (region->fd < 0)
			return region->fd;
	}
	at = reserve_aligned(region->size);
	if (!at)
		return error_set_errno(err, -errno, "cannot find address space for %s", text);
	if (mmap(at, region->size, PROT_READ | PROT_WRITE, flags, region->fd, 0) == MAP_FAILED) {
		int code = -errno;

		munmap(at, region->size);
		return error_set_errno(err, code, "cannot map %s of %s memory", text,
				       ram_backing_name(backing));
	}
	region->hva = at;
	/* A child of fork() would make every page copy-on-write, under pins and KVM's tables. */
	if (madvise(at, region->size, MADV_DONTFORK) < 0)
		return error_set_errno(err, -errno, "cannot keep %s of memory from being forked",
				       text);
	return 0;
}

static void region_set_host_page(struct ram_region *region, enum ram_backing backing)
{
	static const char *const thp_files[] = {
		[RAM_BACKING_PRIVATE] = THP_FOLDER "enabled",
		[RAM_BACKING_SHARED] = THP_FOLDER "shmem_enabled",
	};

	region->host_page = RAM_PAGE_SIZE;
	if (backing == RAM_BACKING_HUGETLB ||
	    (thp_allowed(thp_files[backing]) &&
	     madvise(region->hva, region->size, MADV_HUGEPAGE) == 0))
		region->host_page = RAM_ALIGNMENT;
}

static int region_create(struct ram_region *region, enum ram_backing backing, struct error **err)
{
	int result = region_map(region, backing, err);

	if (result < 0)
		return result;
	region_set_host_page(region, backing);
	region->written = calloc(BITMAP_WORDS(ram_region_pages(region)), sizeof(*region->written));
	region->written_blocks =
		calloc(BITMAP_WORDS(BITMAP_WORDS(BITMAP_WORDS(ram_region_pages(region)))),
		       sizeof(*region->written_blocks));
	if (!region->written || !region->written_blocks)
		return error_set(err, -ENOMEM, "no memory for a page bitmap");
	return 0;
}

static void ram_add_region(struct ram *ram, const char *name, uint64_t gpa, uint64_t size)
{
	struct ram_region *region = &ram->regions[ram->count++];

	snprintf(region->name, sizeof(region->name), "%s", name);
	region->gpa = gpa;
	region->size = size;
	region->fd = -1;
}

int ram_create(struct ram **out, uint64_t size, enum ram_backing backing, struct error **err)
{
	uint64_t low = size < RAM_HOLE_START ? size : RAM_HOLE_START;
	int result = ram_check_size(size, err);
	struct ram *ram;
	char text[32];

	if (result == 0 && backing == RAM_BACKING_HUGETLB)
		result = ram_check_hugetlb(size, err);
	if (result < 0)
		return result;
	ram = calloc(1, sizeof(*ram));
	if (!ram)
		return error_set(err, -ENOMEM, "out of memory");
	ram->backing = backing;
	ram->size = size;
	ram_add_region(ram, "ram.low", 0, low);
	if (size > low)
		ram_add_region(ram, "ram.high", RAM_HOLE_END, size - low);
	for (unsigned int i = 0; i < ram->count && result == 0; i++)
		result = region_create(&ram->regions[i], backing, err);
	if (result < 0) {
		error_prefix(err, "cannot set up %s of guest memory",
			     format_size(text, sizeof(text), size));
		ram_destroy(ram);
		return result;
	}
	*out = ram;
	return 0;
}

void ram_destroy(struct ram *ram)
{
	if (!ram)
		return;
	for (unsigned int i = 0; i < ram->count; i++) {
		struct ram_region *region = &ram->regions[i];

		free(region->written);
		free(region->written_blocks);
		if (region->hva)
			munmap(region->hva, region->size);
		if (region->fd >= 0)
			close(region->fd);
	}
	free(ram);
}

int ram_discard_all(struct ram *ram, struct error **err)
{
	for (unsigned int i = 0; i < ram->count; i++) {
		const struct ram_region *region = &ram->regions[i];
		int result =
			region->fd < 0
				? madvise(region->hva, region->size, MADV_DONTNEED)
				: fallocate(region->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
					    (off_t)region->fd_offset, (off_t)region->size);

		if (result < 0)
			return error_set_errno(err, -errno, "cannot give back the memory of %s",
					       region->name);
	}
	return 0;
}
