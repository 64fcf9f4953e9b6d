/* SPDX-License-Identifier: Apache-2.0 */
/* Guest RAM by guest-physical address: look-up, checked copies, what the monitor wrote. */
#include "memory/ram.h"

#include <errno.h>
#include <string.h>
#include "base/bitmap.h"

struct ram_region *ram_find(struct ram *ram, uint64_t gpa, uint64_t size)
{
	if (size == 0)
		size = 1;
	for (unsigned int i = 0; i < ram->count; i++) {
		struct ram_region *region = &ram->regions[i];
		/* Wraps to a large number below the region, so one test covers both sides. */
		uint64_t offset = gpa - region->gpa;

		if (offset < region->size)
			return size <= region->size - offset ? region : NULL;
	}
	return NULL;
}

void *ram_pointer(struct ram *ram, uint64_t gpa, uint64_t size)
{
	struct ram_region *region = ram_find(ram, gpa, size);

	return region ? region->hva + (gpa - region->gpa) : NULL;
}

int ram_read(struct ram *ram, uint64_t gpa, void *data, uint64_t size)
{
	const void *from = ram_pointer(ram, gpa, size);

	if (!from)
		return -EFAULT;
	memcpy(data, from, size);
	return 0;
}

int ram_write(struct ram *ram, uint64_t gpa, const void *data, uint64_t size)
{
	void *to = ram_pointer(ram, gpa, size);

	if (!to)
		return -EFAULT;
	memcpy(to, data, size);
	ram_mark_dirty(ram, gpa, size);
	return 0;
}

void ram_mark_dirty(struct ram *ram, uint64_t gpa, uint64_t size)
{
	uint64_t last;

	/*
	 * The write being reported must be visible before the flag is read and before the bit is:
	 * one who sets the flag (or takes the bit) and then reads the page either sees the write
	 * or finds the bit later.
	 */
	atomic_thread_fence(memory_order_seq_cst);
	if (!size || !atomic_load_explicit(&ram->logging, memory_order_relaxed))
		return;
	if (__builtin_add_overflow(gpa, size - 1, &last))
		last = UINT64_MAX;
	for (unsigned int i = 0; i < ram->count; i++) {
		struct ram_region *region = &ram->regions[i];
		uint64_t end = region->gpa + (region->size - 1), first_page, last_page;

		if (last < region->gpa || gpa > end)
			continue;
		first_page = gpa > region->gpa ? (gpa - region->gpa) >> RAM_PAGE_SHIFT : 0;
		last_page = ((last < end ? last : end) - region->gpa) >> RAM_PAGE_SHIFT;
		bitmap_set_range_atomic(region->written, first_page, last_page - first_page + 1);
		atomic_thread_fence(memory_order_release);
		bitmap_set_range_atomic(region->written_blocks, first_page / 4096,
					last_page / 4096 - first_page / 4096 + 1);
	}
}
