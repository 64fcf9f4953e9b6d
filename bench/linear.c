/* SPDX-License-Identifier: Apache-2.0 */
#include "linear.h"

#include <errno.h>
#include <linux/kvm.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include "base/bitmap.h"

/* As large as such an entry is elsewhere, with its bitmap pointers, sizes, flags and back links. */
struct linear_slot {
	uint64_t start, size;
	uint8_t *hva;
	uint32_t id, flags;
	uint64_t *bitmap;
	uint64_t rest[11];
};

struct linear {
	unsigned int limit;
	uint64_t pages;
	_Atomic(uint64_t) *list;
	uint64_t *block;
	struct linear_slot slots[];
};

struct linear *linear_create(const struct kvm_slots *table, unsigned int limit, uint64_t pages)
{
	struct linear *linear = calloc(1, sizeof(*linear) + limit * sizeof(struct linear_slot));
	struct kvm_slot *slot;
	unsigned int i = 0;

	/* Present in memory, as one that is in use is. */
	for (unsigned int n = 0; n < limit; n++)
		linear->slots[n].rest[0] = 1;
	linear->limit = limit;
	linear->pages = pages;
	linear->list = calloc(BITMAP_WORDS(pages), sizeof(uint64_t));
	linear->block = calloc(BITMAP_WORDS(pages), sizeof(uint64_t));
	kvm_slots_for_each(table, slot)
	{
		linear->slots[i] = (struct linear_slot){
			.start = slot->gpa, .size = slot->size, .hva = slot->hva, .id = slot->id};
		linear->slots[i++].bitmap =
			calloc(BITMAP_WORDS(kvm_slot_pages(slot)), sizeof(uint64_t));
	}
	return linear;
}

void linear_destroy(struct linear *linear)
{
	for (unsigned int i = 0; i < linear->limit; i++)
		free(linear->slots[i].bitmap);
	free(linear->list);
	free(linear->block);
	free(linear);
}

const void *linear_find(const struct linear *linear, uint64_t gpa)
{
	const struct linear_slot *found = NULL;

	for (unsigned int i = 0; i < linear->limit; i++)
		if (gpa - linear->slots[i].start < linear->slots[i].size)
			found = &linear->slots[i];
	return found;
}

static int sync_slot(struct linear *linear, int vm_fd, uint64_t start)
{
	const struct linear_slot *slot = linear_find(linear, start);
	struct kvm_dirty_log log = {.slot = slot->id, .dirty_bitmap = slot->bitmap};
	uint64_t first = slot->start >> 18, words = BITMAP_WORDS(slot->size >> 12);

	if (ioctl(vm_fd, KVM_GET_DIRTY_LOG, &log) != 0)
		return -errno;
	for (uint64_t w = 0; w < words; w++)
		if (slot->bitmap[w])
			atomic_fetch_or(&linear->list[first + w], slot->bitmap[w]);
	for (uint64_t w = 0; w < words; w++)
		if (atomic_load_explicit(&linear->list[first + w], memory_order_relaxed))
			linear->block[first + w] |= atomic_exchange(&linear->list[first + w], 0);
	return 0;
}

int linear_sync(struct linear *linear, int vm_fd)
{
	int code = 0;

	for (unsigned int i = 0; code == 0 && i < linear->limit; i++)
		if (linear->slots[i].size)
			code = sync_slot(linear, vm_fd, linear->slots[i].start);
	return code;
}
