/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory slots: the slots in use, sorted by guest-physical address, in memory proportional to
 * their number. Look-up is a binary search; free ids are used again; the kernel's limit is a number
 * to compare with, never a size.
 *
 * A change is made by one thread at a time (the table's own lock); readers (look-ups) may run on
 * any thread while no change is in progress. All slots that a machine's options imply are set
 * before the guest runs.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"

struct kvm_slot {
	uint64_t gpa;  /* 4 KiB-aligned */
	uint64_t size; /* bytes, 4 KiB-aligned, not 0 */
	uint8_t *hva;
	uint32_t id;    /* KVM's slot number */
	uint32_t flags; /* KVM_MEM_* */
};

struct kvm_slots {
	struct kvm_slot *slots; /* sorted by gpa */
	unsigned int count, capacity, limit;
	uint64_t *free_ids; /* bitmap of ids below capacity that are not in use */
	pthread_mutex_t lock;
	int vm_fd;
};

int kvm_slots_init(struct kvm_slots *table, int vm_fd, unsigned int limit, struct error **err);
void kvm_slots_free(struct kvm_slots *table);

/*
 * Adds a slot and tells KVM. Refuses (nothing half done): overlap with another slot (-EEXIST, names
 * both), wrap past 2^64, misaligned (-EINVAL), the kernel's limit reached (-ENOSPC, names it).
 */
int kvm_slots_add(struct kvm_slots *table, uint64_t gpa, uint64_t size, void *hva, uint32_t flags,
		  struct error **err);
int kvm_slots_remove(struct kvm_slots *table, uint64_t gpa, struct error **err);

/* Changes a slot's KVM_MEM_LOG_DIRTY_PAGES flag. */
int kvm_slots_set_logging(struct kvm_slots *table, struct kvm_slot *slot, bool on,
			  struct error **err);

/* The slot that contains gpa, or NULL. O(log n). */
struct kvm_slot *kvm_slots_find(const struct kvm_slots *table, uint64_t gpa);
