/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory slots: the slots in use, found by guest-physical or by host address by binary search, in
 * memory proportional to their number (16 at first, doubled). Free ids are used again; the kernel's
 * limit is a number to compare with, never a size.
 *
 * Threads. Changes (add, remove, logging) take the table's lock, for that change only. Look-ups
 * take no lock and write nothing: they may run on any thread at any time, also during a change, and
 * see the table as it was before or after it. Growth moves nothing that a reader may hold: slots
 * stay where they are, and outgrown indexes are kept until the table is freed (all of them together
 * are no larger than the present one).
 *
 * A slot that was found is valid until it is removed; its flags belong to those who change the
 * table. Whoever removes a slot knows that nobody uses it. All slots that a machine's options imply
 * are set before the guest runs, and none is added or removed in the window.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"
#include "base/page_map.h"

struct kvm_slot {
	uint64_t gpa;  /* 4 KiB-aligned */
	uint64_t size; /* bytes, 4 KiB-aligned, not 0 */
	uint8_t *hva;
	uint32_t id;    /* KVM's slot number */
	uint32_t flags; /* KVM_MEM_* */
	/* Of the dirty ring (kvm/dirty_ring.c): pages reaped and not harvested yet; else NULL. */
	struct page_map *reaped;
};

static inline uint64_t kvm_slot_pages(const struct kvm_slot *slot)
{
	return slot->size >> 12;
}

#define KVM_SLOT_CHUNKS 16 /* the last one begins at 2^18: more than a slot number can say */

struct slot_index;

struct kvm_slots {
	_Atomic(uint32_t) version;                /* odd while the index is being changed */
	_Atomic(struct slot_index *) index;       /* NULL before the first slot */
	struct kvm_slot *chunks[KVM_SLOT_CHUNKS]; /* the slots by id; never moved */

	pthread_mutex_t lock; /* the rest */
	unsigned int capacity, limit;
	uint64_t *free_ids; /* bitmap of ids below capacity that are not in use */
	int vm_fd;
};

int kvm_slots_init(struct kvm_slots *table, int vm_fd, unsigned int limit, struct error **err);
void kvm_slots_free(struct kvm_slots *table);

/*
 * Adds a slot and tells KVM. Refuses (nothing half done): overlap with another slot (-EEXIST, names
 * both), wrap past 2^64, misaligned (-EINVAL), the kernel's limit reached (-ENOSPC, names it).
 * Several slots may show the same host memory.
 */
int kvm_slots_add(struct kvm_slots *table, uint64_t gpa, uint64_t size, void *hva, uint32_t flags,
		  struct error **err);
int kvm_slots_remove(struct kvm_slots *table, uint64_t gpa, struct error **err);

/* Changes a slot's KVM_MEM_LOG_DIRTY_PAGES flag. */
int kvm_slots_set_logging(struct kvm_slots *table, struct kvm_slot *slot, bool on,
			  struct error **err);

/* How many there are. */
unsigned int kvm_slots_count(const struct kvm_slots *table);

/* The slot that contains gpa, or NULL. O(log n). */
struct kvm_slot *kvm_slots_find(const struct kvm_slots *table, uint64_t gpa);

/* A slot that shows this byte of this process's memory, or NULL. O(log n), and more only where
 * slots share host memory. */
struct kvm_slot *kvm_slots_find_hva(const struct kvm_slots *table, const void *hva);

/* The first slot that begins at gpa or above, or NULL. */
struct kvm_slot *kvm_slots_next(const struct kvm_slots *table, uint64_t gpa);

/* All slots in the order of their addresses; those that come and go meanwhile may be missed. */
#define kvm_slots_for_each(table, slot)                                                            \
	for ((slot) = kvm_slots_next((table), 0); (slot);                                          \
	     (slot) = kvm_slots_next((table), (slot)->gpa + (slot)->size))

/* The slot with this id. Only for an id that KVM has just named, of a slot that is in use. */
struct kvm_slot *kvm_slots_by_id(const struct kvm_slots *table, uint32_t id);
