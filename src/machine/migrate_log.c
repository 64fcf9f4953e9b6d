/* SPDX-License-Identifier: Apache-2.0 */
/* The migration engine's view of the dirty log: KVM's, and what this process wrote itself. */
#include <errno.h>
#include "base/bitmap.h"
#include "machine/internal.h"

static void forget_written(struct ram *ram)
{
	for (unsigned int i = 0; i < ram->count; i++)
		for (size_t word = 0; word < BITMAP_WORDS(ram_region_pages(&ram->regions[i]));
		     word++)
			atomic_store_explicit(&ram->regions[i].written[word], 0,
					      memory_order_relaxed);
}

void machine_log_stop(void *opaque)
{
	struct machine *machine = opaque;

	for (unsigned int i = 0; i < machine->vm.slots.count; i++)
		(void)kvm_slots_set_logging(&machine->vm.slots, &machine->vm.slots.slots[i], false,
					    NULL);
	atomic_store(&machine->ram->logging, false);
	forget_written(machine->ram);
}

int machine_log_start(void *opaque, struct error **err)
{
	struct machine *machine = opaque;
	int code = 0;

	forget_written(machine->ram);
	atomic_store(&machine->ram->logging, true);
	for (unsigned int i = 0; code == 0 && i < machine->vm.slots.count; i++)
		code = kvm_slots_set_logging(&machine->vm.slots, &machine->vm.slots.slots[i], true,
					     err);
	if (code < 0)
		machine_log_stop(machine);
	return code;
}

bool machine_log_initially_set(void *opaque)
{
	struct machine *machine = opaque;

	return machine->vm.dirty.initially_set;
}

/* The slot that backs a region: ram_attach() gives each region one. */
static const struct kvm_slot *region_slot(struct machine *machine, unsigned int region)
{
	return kvm_slots_find(&machine->vm.slots, machine->ram->regions[region].gpa);
}

int machine_log_harvest(void *opaque, unsigned int region, uint64_t *bitmap)
{
	struct machine *machine = opaque;
	struct ram_region *ram = &machine->ram->regions[region];
	bool keep = machine->vm.dirty.manual;
	int code = kvm_dirty_harvest(&machine->vm.dirty, region_slot(machine, region), bitmap);

	/* What the monitor wrote is treated as KVM treats the rest: with manual protect reported
	 * until it is cleared. */
	for (size_t word = 0; code == 0 && word < BITMAP_WORDS(ram_region_pages(ram)); word++) {
		uint64_t written = atomic_load_explicit(&ram->written[word], memory_order_relaxed);

		if (written && !keep)
			written = atomic_exchange(&ram->written[word], 0);
		if (written)
			bitmap[word] |= written;
	}
	return code;
}

int machine_log_clear(void *opaque, unsigned int region, uint64_t first, uint64_t count,
		      const uint64_t *seen)
{
	struct machine *machine = opaque;
	struct ram_region *ram = &machine->ram->regions[region];

	if (first % 64 || first >= ram_region_pages(ram) || count > ram_region_pages(ram) - first)
		return -EINVAL;
	if (machine->vm.dirty.manual)
		for (size_t word = first / 64; word < BITMAP_WORDS(first + count); word++)
			if (seen[word] &&
			    atomic_load_explicit(&ram->written[word], memory_order_relaxed))
				atomic_fetch_and(&ram->written[word], ~seen[word]);
	return kvm_dirty_clear(&machine->vm.dirty, region_slot(machine, region), first, count,
			       seen);
}
