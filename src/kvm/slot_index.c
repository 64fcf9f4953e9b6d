/* SPDX-License-Identifier: Apache-2.0 */
#include "kvm/slot_index.h"

#include <stdlib.h>
#include "base/clock.h"

/* Relaxed atomics are plain loads and stores to the processor; they make a reader that meets a
 * change well defined. */
struct entry {
	_Atomic(uint64_t) start, last; /* the slot's first and last address */
	/* The highest `last` up to here: where slots share host memory, one that begins earlier may
	 * reach further. */
	_Atomic(uint64_t) reach;
	_Atomic(uint32_t) id;
};

struct order {
	struct entry *entries;
	_Atomic(unsigned int) count;
};

enum { BY_GPA, BY_HVA, ORDERS };

struct slot_index {
	struct slot_index *outgrown;
	unsigned int capacity;
	struct order orders[ORDERS];
	struct entry entries[];
};

#define GET(field)        atomic_load_explicit(&(field), memory_order_relaxed)
#define SET(field, value) atomic_store_explicit(&(field), (value), memory_order_relaxed)

struct slot_index *slot_index_grown(struct slot_index *old, unsigned int capacity)
{
	struct slot_index *index =
		malloc(sizeof(*index) + (size_t)ORDERS * capacity * sizeof(struct entry));

	if (!index)
		return NULL;
	*index = (struct slot_index){.outgrown = old, .capacity = capacity};
	for (int i = 0; i < ORDERS; i++) {
		struct order *order = &index->orders[i];

		order->entries = index->entries + (size_t)i * capacity;
		if (!old)
			continue;
		order->count = GET(old->orders[i].count);
		for (unsigned int at = 0; at < order->count; at++)
			order->entries[at] = old->orders[i].entries[at];
	}
	return index;
}

void slot_index_free(struct slot_index *index)
{
	while (index) {
		struct slot_index *outgrown = index->outgrown;

		free(index);
		index = outgrown;
	}
}

unsigned int slot_index_count(const struct slot_index *index)
{
	return GET(index->orders[BY_GPA].count);
}

/* The number of entries that start at or below the address. */
static unsigned int upper_bound(const struct order *order, uint64_t address)
{
	unsigned int low = 0, high = GET(order->count);

	while (low < high) {
		unsigned int middle = low + (high - low) / 2;

		if (GET(order->entries[middle].start) <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static uint64_t slot_start(const struct kvm_slot *slot, int order)
{
	return order == BY_GPA ? slot->gpa : (uint64_t)(uintptr_t)slot->hva;
}

static void set_reach(struct order *order, unsigned int from)
{
	uint64_t reach = from ? GET(order->entries[from - 1].reach) : 0;

	for (unsigned int at = from, count = GET(order->count); at < count; at++) {
		uint64_t last = GET(order->entries[at].last);

		reach = last > reach ? last : reach;
		SET(order->entries[at].reach, reach);
	}
}

static void copy_entry(struct entry *to, const struct entry *from)
{
	SET(to->start, GET(from->start));
	SET(to->last, GET(from->last));
	SET(to->id, GET(from->id));
}

void slot_index_insert(struct slot_index *index, const struct kvm_slot *slot)
{
	for (int i = 0; i < ORDERS; i++) {
		struct order *order = &index->orders[i];
		uint64_t start = slot_start(slot, i);
		unsigned int place = upper_bound(order, start), count = GET(order->count);

		for (unsigned int at = count; at > place; at--)
			copy_entry(&order->entries[at], &order->entries[at - 1]);
		SET(order->entries[place].start, start);
		SET(order->entries[place].last, start + (slot->size - 1));
		SET(order->entries[place].id, slot->id);
		SET(order->count, count + 1);
		set_reach(order, place);
	}
}

void slot_index_remove(struct slot_index *index, const struct kvm_slot *slot)
{
	for (int i = 0; i < ORDERS; i++) {
		struct order *order = &index->orders[i];
		unsigned int count = GET(order->count);
		unsigned int place = upper_bound(order, slot_start(slot, i)) - 1;

		while (GET(order->entries[place].id) != slot->id)
			place--;
		for (unsigned int at = place; at + 1 < count; at++)
			copy_entry(&order->entries[at], &order->entries[at + 1]);
		SET(order->count, count - 1);
		set_reach(order, place);
	}
}

#define NOBODY UINT32_MAX

typedef uint32_t search_function(const struct slot_index *index, uint64_t address);

static uint32_t search_gpa(const struct slot_index *index, uint64_t gpa)
{
	const struct order *order = &index->orders[BY_GPA];
	unsigned int next = upper_bound(order, gpa);

	if (next == 0 || GET(order->entries[next - 1].last) < gpa)
		return NOBODY;
	return GET(order->entries[next - 1].id);
}

static uint32_t search_hva(const struct slot_index *index, uint64_t hva)
{
	const struct order *order = &index->orders[BY_HVA];

	for (unsigned int at = upper_bound(order, hva); at-- > 0;) {
		if (GET(order->entries[at].reach) < hva)
			break;
		if (GET(order->entries[at].last) >= hva)
			return GET(order->entries[at].id);
	}
	return NOBODY;
}

static uint32_t search_next(const struct slot_index *index, uint64_t gpa)
{
	const struct order *order = &index->orders[BY_GPA];
	unsigned int at = gpa ? upper_bound(order, gpa - 1) : 0;

	return at < GET(order->count) ? GET(order->entries[at].id) : NOBODY;
}

/* Inlined with the search it is given. */
static inline __attribute__((always_inline)) struct kvm_slot *
look_up(const struct kvm_slots *table, search_function *search, uint64_t address)
{
	for (;;) {
		uint32_t version = atomic_load_explicit(&table->version, memory_order_acquire);
		const struct slot_index *index = GET(table->index);
		uint32_t id;

		if (version & 1) {
			clock_relax();
			continue;
		}
		id = index ? search(index, address) : NOBODY;
		atomic_thread_fence(memory_order_acquire);
		if (GET(table->version) == version)
			return id == NOBODY ? NULL : kvm_slots_by_id(table, id);
	}
}

struct kvm_slot *kvm_slots_find(const struct kvm_slots *table, uint64_t gpa)
{
	return look_up(table, search_gpa, gpa);
}

struct kvm_slot *kvm_slots_find_hva(const struct kvm_slots *table, const void *hva)
{
	return look_up(table, search_hva, (uint64_t)(uintptr_t)hva);
}

struct kvm_slot *kvm_slots_next(const struct kvm_slots *table, uint64_t gpa)
{
	return look_up(table, search_next, gpa);
}

unsigned int kvm_slots_count(const struct kvm_slots *table)
{
	const struct slot_index *index = atomic_load(&table->index);

	return index ? slot_index_count(index) : 0;
}
