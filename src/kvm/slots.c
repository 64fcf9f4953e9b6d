/* SPDX-License-Identifier: Apache-2.0 */
/* The table of memory slots: adding, removing and telling KVM. The look-ups are in slot_index.c. */
#include "kvm/slots.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/kvm.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include "base/bitmap.h"
#include "kvm/slot_index.h"

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

static void forget_reaped(struct kvm_slot *slot)
{
	if (slot->reaped)
		page_map_free(slot->reaped);
	free(slot->reaped);
	slot->reaped = NULL;
}

void kvm_slots_free(struct kvm_slots *table)
{
	struct kvm_slot *slot;

	kvm_slots_for_each(table, slot) forget_reaped(slot);
	slot_index_free(atomic_load(&table->index));
	for (unsigned int i = 0; i < KVM_SLOT_CHUNKS; i++)
		free(table->chunks[i]);
	free(table->free_ids);
	pthread_mutex_destroy(&table->lock);
	*table = (struct kvm_slots){.vm_fd = -1};
}

/* Chunk 0 has the first 16 ids, each further one as many as all before it. */
static unsigned int chunk_of(uint32_t id, uint32_t *first)
{
	unsigned int chunk = 0;

	if (id >= SLOTS_FIRST_CAPACITY)
		chunk = 32 - (unsigned int)__builtin_clz(id / SLOTS_FIRST_CAPACITY);
	*first = chunk ? SLOTS_FIRST_CAPACITY << (chunk - 1) : 0;
	return chunk;
}

struct kvm_slot *kvm_slots_by_id(const struct kvm_slots *table, uint32_t id)
{
	uint32_t first;
	unsigned int chunk = chunk_of(id, &first);

	return chunk < KVM_SLOT_CHUNKS && table->chunks[chunk] ? &table->chunks[chunk][id - first]
							       : NULL;
}

/* Room for one slot more: doubles, up to the kernel's limit. What was there stays where it is. */
static int grow(struct kvm_slots *table, struct error **err)
{
	struct slot_index *index = atomic_load_explicit(&table->index, memory_order_relaxed);
	unsigned int capacity = table->capacity ? table->capacity * 2 : SLOTS_FIRST_CAPACITY;
	unsigned int count = index ? slot_index_count(index) : 0, chunk;
	uint32_t first;
	uint64_t *ids;

	if (count < table->capacity)
		return 0;
	if (count >= table->limit)
		return error_set(err, -ENOSPC,
				 "the kernel allows %u memory slots a machine and all are in use",
				 table->limit);
	if (capacity > table->limit)
		capacity = table->limit;
	chunk = chunk_of(table->capacity, &first);
	ids = realloc(table->free_ids, BITMAP_WORDS(capacity) * sizeof(*ids));
	if (!ids)
		return error_set(err, -ENOMEM, "no memory for %u memory slots", capacity);
	table->free_ids = ids;
	if (!table->chunks[chunk])
		table->chunks[chunk] = calloc(capacity - first, sizeof(struct kvm_slot));
	index = table->chunks[chunk] ? slot_index_grown(index, capacity) : NULL;
	if (!index)
		return error_set(err, -ENOMEM, "no memory for %u memory slots", capacity);

	if (BITMAP_WORDS(capacity) > BITMAP_WORDS(table->capacity))
		memset(ids + BITMAP_WORDS(table->capacity), 0,
		       (BITMAP_WORDS(capacity) - BITMAP_WORDS(table->capacity)) * sizeof(*ids));
	bitmap_set_range(ids, table->capacity, capacity - table->capacity);
	table->capacity = capacity;
	slots_change_begin(table);
	atomic_store_explicit(&table->index, index, memory_order_relaxed);
	slots_change_end(table);
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
		     struct error **err)
{
	const struct kvm_slot *other;

	if (size == 0 || gpa % SLOT_ALIGNMENT || size % SLOT_ALIGNMENT ||
	    (uintptr_t)hva % SLOT_ALIGNMENT)
		return error_set(
			err, -EINVAL,
			"memory slot at 0x%" PRIx64 ", 0x%" PRIx64
			" bytes: address and size must be multiples of 4 KiB and not empty",
			gpa, size);
	if (gpa + size < gpa || (uintptr_t)hva + size < (uintptr_t)hva)
		return error_set(err, -EINVAL,
				 "memory slot at 0x%" PRIx64 ", 0x%" PRIx64
				 " bytes: reaches past the end of the address space",
				 gpa, size);

	other = kvm_slots_find(table, gpa);
	if (!other) {
		other = kvm_slots_next(table, gpa);
		if (!other || other->gpa - gpa >= size)
			return 0;
	}
	return error_set(err, -EEXIST,
			 "memory slot [0x%" PRIx64 ", 0x%" PRIx64 ") overlaps the slot [0x%" PRIx64
			 ", 0x%" PRIx64 ")",
			 gpa, gpa + size, other->gpa, other->gpa + other->size);
}

static int add_locked(struct kvm_slots *table, uint64_t gpa, uint64_t size, void *hva,
		      uint32_t flags, struct error **err)
{
	struct kvm_slot *slot;
	size_t id = 0;
	int code;

	code = check_new(table, gpa, size, hva, err);
	if (code == 0)
		code = grow(table, err);
	if (code < 0)
		return code;

	if (bitmap_next_run(table->free_ids, table->capacity, 0, &id) == 0)
		return error_set(err, -ENOSPC, "no free memory slot number");
	slot = kvm_slots_by_id(table, (uint32_t)id);
	*slot = (struct kvm_slot){
		.gpa = gpa, .size = size, .hva = hva, .id = (uint32_t)id, .flags = flags};
	code = set_region(table->vm_fd, slot, size);
	if (code < 0)
		return error_set_errno(
			err, code, "KVM refuses a memory slot of 0x%" PRIx64 " bytes at 0x%" PRIx64,
			size, gpa);

	bitmap_clear_range(table->free_ids, id, 1);
	slots_change_begin(table);
	slot_index_insert(atomic_load_explicit(&table->index, memory_order_relaxed), slot);
	slots_change_end(table);
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
	int code;

	if (!slot || slot->gpa != gpa)
		return error_set(err, -ENOENT, "no memory slot starts at 0x%" PRIx64, gpa);
	code = set_region(table->vm_fd, slot, 0);
	if (code < 0)
		return error_set_errno(err, code,
				       "KVM does not give up the memory slot at 0x%" PRIx64, gpa);

	slots_change_begin(table);
	slot_index_remove(atomic_load_explicit(&table->index, memory_order_relaxed), slot);
	slots_change_end(table);
	bitmap_set(table->free_ids, slot->id);
	forget_reaped(slot);
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
