/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two sorted arrays over the slots: by guest-physical and by host address. Read without a lock
 * under the table's version (a sequence lock): a reader that met a change looks again. Between
 * slots_change_begin() and slots_change_end() there is a memmove and nothing that waits. For
 * slots.c only.
 */
#pragma once

#include "kvm/slots.h"

/* A larger copy that keeps the old one; NULL when there is no memory. old may be NULL. */
struct slot_index *slot_index_grown(struct slot_index *old, unsigned int capacity);
/* With all that it has outgrown. */
void slot_index_free(struct slot_index *index);

unsigned int slot_index_count(const struct slot_index *index);

/* With the table's lock held, in a change. There is room, and the slot is not (is) there. */
void slot_index_insert(struct slot_index *index, const struct kvm_slot *slot);
void slot_index_remove(struct slot_index *index, const struct kvm_slot *slot);

static inline void slots_change_begin(struct kvm_slots *table)
{
	uint32_t version = atomic_load_explicit(&table->version, memory_order_relaxed);

	atomic_store_explicit(&table->version, version + 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
}

static inline void slots_change_end(struct kvm_slots *table)
{
	uint32_t version = atomic_load_explicit(&table->version, memory_order_relaxed);

	atomic_store_explicit(&table->version, version + 1, memory_order_release);
}
