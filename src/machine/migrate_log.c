/* SPDX-License-Identifier: Apache-2.0 */
/* The migration engine's view of the dirty log: one subscriber of the machine's tracker. */
#include "machine/internal.h"

void machine_log_stop(void *opaque)
{
	struct machine *machine = opaque;

	throttle_set_all(machine, 0);
	dirty_tracker_unsubscribe(&machine->tracker, &machine->migration_dirty);
}

int machine_log_start(void *opaque, struct error **err)
{
	struct machine *machine = opaque;

	machine->move_stopped = false;
	return dirty_tracker_subscribe(&machine->tracker, &machine->migration_dirty, err);
}

bool machine_log_initially_set(void *opaque)
{
	struct machine *machine = opaque;

	return machine->migration_dirty.all_set;
}

int machine_log_harvest(void *opaque, struct page_map *maps)
{
	struct machine *machine = opaque;

	return dirty_tracker_harvest(&machine->tracker, &machine->migration_dirty, maps,
				     machine->move_stopped);
}

int machine_log_clear(void *opaque, unsigned int region, uint64_t first, uint64_t count,
		      const uint64_t *seen)
{
	struct machine *machine = opaque;

	return dirty_tracker_clear(&machine->tracker, &machine->migration_dirty, region, first,
				   count, seen);
}

void machine_throttle(void *opaque, unsigned int percent)
{
	throttle_set_all(opaque, percent);
}
