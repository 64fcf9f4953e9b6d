/* SPDX-License-Identifier: Apache-2.0 */
#include "kvm/slots.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/kvm.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include "base/bitmap.h"

#define SLOTS_FIRST_CAPACITY 16u
#define SLOT_ALIGNMENT       4096u

int kvm_slots_init(struct kvm_slots *table, int vm_fd, unsigned int limit, struct error **err)
{
	int code;

	*table = (struct kvm_slots){.vm_fd = vm_fd, .limit = limit};
	code = pthread_mutex_init(&table->lock, NULL);
	if (code != 0)
		return error_set_errno(err, -code, "cannot make the memory slot table's lock");
	return 0;
}

void kvm_slots_free(struct kvm_slots *table)
{
	free(table->slots);
	free(table->free_ids);
	pthread_mutex_destroy(&table->lock);
	*table = (struct kvm_slots){.vm_fd = -1};
}

/* Index of the first slot whose start is above gpa. */
static unsigned int upper_bound(const struct kvm_slots *table, uint64_t gpa)
{
	unsigned int low = 0, high = table->count;

	while (low < high) {
		unsigned int middle = low + (high - low) / 2;

		if (table->slots[middle].gpa <= gpa)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct kvm_slot *kvm_slots_find(const struct kvm_slots *table, uint64_t gpa)
{
	unsigned int next = upper_bound(table, gpa);
	struct kvm_slot *slot;

	if (next == 0)
		return NULL;
	slot = &table->slots[next - 1];
	return gpa - slot->gpa < slot->size ? slot : NULL;
}

/* Room for one slot more: doubles, up to the kernel's limit. */
static int grow(struct kvm_slots *table, struct error **err)
{
	unsigned int capacity = table->capacity ? table->capacity * 2 : SLOTS_FIRST_CAPACITY;
	struct kvm_slot *slots;
	uint64_t *ids;

	if (table->count < table->capacity)
		return 0;
	if (table->count >= table->limit)
		return error_set(err, -ENOSPC,
				 "the kernel allows %u memory slots a machine and all are in use",
				 table->limit);
	if (capacity > table->limit)
		capacity = table->limit;

	slots = realloc(table->slots, capacity * sizeof(*slots));
	if (!slots)
		return error_set(err, -ENOMEM, "no memory for %u memory slots", capacity);
	table->slots = slots;
	ids = realloc(table->free_ids, BITMAP_WORDS(capacity) * sizeof(*ids));
	if (!ids)
		return error_set(err, -ENOMEM, "no memory for %u memory slots", capacity);
	table->free_ids = ids;
	if (BITMAP_WORDS(capacity) > BITMAP_WORDS(table->capacity))
		memset(ids + BITMAP_WORDS(table->capacity), 0,
		       (BITMAP_WORDS(capacity) - BITMAP_WORDS(table->capacity)) * sizeof(*ids));
	bitmap_set_range(ids, table->capacity, capacity - table->capacity);
	table->capacity = capacity;
	return 0;
}

static int set_region(int vm_fd, const struct kvm_slot *slot, uint64_t size)
{
	struct kvm_userspace_memory_region region = {
		.slot = slot->id,
		.flags = slot->flags,
		.guest_phys_addr = slot->gpa,
		.memory_size = size,
		.userspace_addr = (uint64_t)(uintptr_t)slot->hva,
	};

	return ioctl(vm_fd, KVM_SET_USER_MEMORY_REGION, &region) == 0 ? 0 : -errno;
}

static int check_new(const struct kvm_slots *table, uint64_t gpa, uint64_t size, const void *hva,
		     unsigned int *place, struct error **err)
{
	const struct kvm_slot *other = NULL;
	unsigned int next;

	if (size == 0 || gpa % SLOT_ALIGNMENT || size % SLOT_ALIGNMENT ||
	    (uintptr_t)hva % SLOT_ALIGNMENT)
		return error_set(
			err, -EINVAL,
			"memory slot at 0x%" PRIx64 ", 0x%" PRIx64
			" bytes: address and size must be multiples of 4 KiB and not empty",
			gpa, size);
	if (gpa + size < gpa)
		return error_set(err, -EINVAL,
				 "memory slot at 0x%" PRIx64 ", 0x%" PRIx64
				 " bytes: reaches past the end of the address space",
				 gpa, size);

	next = upper_bound(table, gpa);
	if (next > 0 && gpa - table->slots[next - 1].gpa < table->slots[next - 1].size)
		other = &table->slots[next - 1];
	else if (next < table->count && table->slots[next].gpa - gpa < size)
		other = &table->slots[next];
	if (other)
		return error_set(err, -EEXIST,
				 "memory slot [0x%" PRIx64 ", 0x%" PRIx64
				 ") overlaps the slot [0x%" PRIx64 ", 0x%" PRIx64 ")",
				 gpa, gpa + size, other->gpa, other->gpa + other->size);
	*place = next;
	return 0;
}

static int add_locked(struct kvm_slots *table, uint64_t gpa, uint64_t size, void *hva,
		      uint32_t flags, struct error **err)
{
	struct kvm_slot slot = {.gpa = gpa, .size = size, .hva = hva, .flags = flags};
	unsigned int place = 0;
	size_t id = 0;
	int code;

	code = check_new(table, gpa, size, hva, &place, err);
	if (code == 0)
		code = grow(table, err);
	if (code < 0)
		return code;

	if (bitmap_next_run(table->free_ids, table->capacity, 0, &id) == 0)
		return error_set(err, -ENOSPC, "no free memory slot number");
	slot.id = (uint32_t)id;
	code = set_region(table->vm_fd, &slot, size);
	if (code < 0)
		return error_set_errno(
			err, code, "KVM refuses a memory slot of 0x%" PRIx64 " bytes at 0x%" PRIx64,
			size, gpa);

	bitmap_clear_range(table->free_ids, id, 1);
	memmove(&table->slots[place + 1], &table->slots[place],
		(table->count - place) * sizeof(slot));
	table->slots[place] = slot;
	table->count++;
	return 0;
}

int kvm_slots_add(struct kvm_slots *table, uint64_t gpa, uint64_t size, void *hva, uint32_t flags,
		  struct error **err)
{
	int code;

	pthread_mutex_lock(&table->lock);
	code = add_locked(table, gpa, size, hva, flags, err);
	pthread_mutex_unlock(&table->lock);
	return code;
}

static int remove_locked(struct kvm_slots *table, uint64_t gpa, struct error **err)
{
	struct kvm_slot *slot = kvm_slots_find(table, gpa);
	unsigned int place;
	int code;

	if (!slot || slot->gpa != gpa)
		return error_set(err, -ENOENT, "no memory slot starts at 0x%" PRIx64, gpa);
	code = set_region(table->vm_fd, slot, 0);
	if (code < 0)
		return error_set_errno(err, code,
				       "KVM does not give up the memory slot at 0x%" PRIx64, gpa);

	place = (unsigned int)(slot - table->slots);
	bitmap_set(table->free_ids, slot->id);
	memmove(slot, slot + 1, (table->count - place - 1) * sizeof(*slot));
	table->count--;
	return 0;
}

int kvm_slots_remove(struct kvm_slots *table, uint64_t gpa, struct error **err)
{
	int code;

	pthread_mutex_lock(&table->lock);
	code = remove_locked(table, gpa, err);
	pthread_mutex_unlock(&table->lock);
	return code;
}

int kvm_slots_set_logging(struct kvm_slots *table, struct kvm_slot *slot, bool on,
			  struct error **err)
{
	struct kvm_slot changed;
	int code = 0;

	pthread_mutex_lock(&table->lock);
	changed = *slot;
	if (on)
		changed.flags |= KVM_MEM_LOG_DIRTY_PAGES;
	else
		changed.flags &= ~(uint32_t)KVM_MEM_LOG_DIRTY_PAGES;
	if (changed.flags != slot->flags) {
		code = set_region(table->vm_fd, &changed, changed.size);
		if (code == 0)
			slot->flags = changed.flags;
	}
	pthread_mutex_unlock(&table->lock);
	if (code < 0)
		return error_set_errno(err, code,
				       "KVM cannot switch the dirty log of the slot at 0x%" PRIx64
				       " %s",
				       changed.gpa, on ? "on" : "off");
	return 0;
}
