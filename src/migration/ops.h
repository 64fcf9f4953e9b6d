/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All that the migration engine knows of a machine. The engine is a library: these operations can
 * be a virtual machine, a unit test or a fuzzer.
 *
 * Threads: every operation is called on the engine's own thread (source or destination), never on
 * the control thread. Those marked [window] are called between the stop on the source and the run
 * on the destination: they must not allocate, log, open, map or start a thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "base/description.h"
#include "base/error.h"
#include "base/page_map.h"
#include "base/state.h"
#include "memory/ram.h"
#include "migration/owner.h"

struct migration_ops {
	/* Both sides: fills the description of this machine. */
	int (*describe)(void *opaque, struct description *d, struct error **err);

	/*
	 * Destination: compares with what this process was asked for and what this host can do, and
	 * refuses by name ("memory.size: the source has 1 GiB, this machine 512 MiB"). With
	 * check_only nothing is kept; else the machine is built: memory reserved, slots set, vCPUs
	 * created and parked, devices made. Called at most once with check_only false.
	 * It must not write to guest RAM: all of it holds zeros, and a page that the source names
	 * as zero is cleared only if data had arrived for it. The source waits for it as long as
	 * for a stall (30 s), not just for an answer's time: creating 64 vCPUs on two processors
	 * takes over a second.
	 */
	int (*build)(void *opaque, const struct description *d, bool check_only,
		     struct error **err);

	/* Valid once the machine is built. */
	struct ram *(*ram)(void *opaque);

	/* The same list, in the same order, for the machine's life. Valid once it is built. */
	const struct state_object *(*state)(void *opaque, unsigned int *count);

	/* Source: dirty tracking of all RAM. Regions by index into ram()->regions. */
	int (*log_start)(void *opaque, struct error **err);
	void (*log_stop)(void *opaque);
	/* True when the log starts with every page set, and is armed a range at a time by
	 * log_clear. */
	bool (*log_initially_set)(void *opaque);
	/* [window] Adds to maps (one a region) the pages written since the last harvest. Writes of
	 * the monitor itself (ram_mark_dirty) are included. */
	int (*log_harvest)(void *opaque, struct page_map *maps);
	/* Re-arms pages [first, first+count) that are set in `seen` (a bitmap of the whole region);
	 * first and count are multiples of 64 (or end at the region's end). */
	int (*log_clear)(void *opaque, unsigned int region, uint64_t first, uint64_t count,
			 const uint64_t *seen);

	/* Source: has all vCPUs sleep for that part of their time, so that they write less; 0, and
	 * log_stop, end it. A stop wakes them at once. May be NULL. */
	void (*throttle)(void *opaque, unsigned int percent);

	/* Source: every vCPU (after one kick) and device saves into its state object; the guest
	 * goes on running. A hint: the values need not be coherent. */
	int (*save_early)(void *opaque, struct error **err);

	/*
	 * Source [window]: stops all vCPUs together, then every vCPU saves itself, in parallel, and
	 * every device; on return all state objects are current. deadline_us bounds the wait
	 * (CLOCK_MONOTONIC microseconds); on failure nothing is left stopped by this call.
	 * *stopped_us is when the last vCPU had stopped.
	 * A guest that was paused already stays paused; *was_running says so, now or for resume().
	 */
	int (*stop)(void *opaque, uint64_t deadline_us, bool *was_running, uint64_t *stopped_us,
		    struct error **err);
	/* Source: the move did not happen; go on as before the stop (run, or stay paused). */
	void (*resume)(void *opaque);
	/* Source: the guest runs elsewhere now; this machine may never run again (postmigrate). */
	void (*moved)(void *opaque);
	/* Source: nobody knows who owns the guest: paused until resume() or moved(). */
	void (*in_doubt)(void *opaque);

	/* Destination: applies the state objects; parallel on the vCPU threads. Called once early
	 * (a rehearsal that warms everything up) and once in the window [window]. */
	int (*load)(void *opaque, struct error **err);
	/* Destination [window]: this process owns the guest: sets clocks, enters KVM_RUN (or stays
	 * paused). Returns when all vCPU threads were told, with the time of the first entry. */
	void (*run)(void *opaque, bool running, uint64_t *running_us);
	/* Destination: after run(), out of the window: announce on the network, STATUS, events. */
	void (*arrived)(void *opaque);

	/* The machine's owner record: locked on the side that owns the guest, closed (fd -1) on a
	 * destination until the engine opens it. Never NULL. */
	struct owner_record *(*owner)(void *opaque);

	/*
	 * The owner's locks beyond the owner record (disk images). release is called before COMMIT
	 * is sent, acquire by the side that will run. May be NULL (nothing to hold). A destination
	 * whose acquire keeps failing while the source is gone is told to run() paused without
	 * them: `cont` must acquire them first.
	 */
	void (*locks_release)(void *opaque);
	int (*locks_acquire)(void *opaque, struct error **err);
};
