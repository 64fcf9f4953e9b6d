/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who wrote what, for several at once: one harvest of KVM's dirty log, and of what the monitor
 * itself wrote (ram_mark_dirty), is handed to all subscribers (a migration, a measurement of the
 * dirty rate). Each has a bitmap of its own a region, with a summary, so that one's taking and
 * clearing takes nothing from another: no page that was written is missed by anybody.
 *
 * A subscriber asks for a harvest into maps of its own; what others harvested meanwhile waits in
 * its inbox and is added. With manual protect a page is reported again until it was cleared, so
 * whoever is about to read pages clears them first; what one clears goes to the inboxes of the
 * others, since it may have been written after they last looked.
 *
 * The log of all slots (but read-only ones, which no vCPU can write) is on while there is a
 * subscriber. One lock, held for a harvest or a clear; nothing is allocated but in subscribe.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"
#include "base/page_map.h"
#include "kvm/dirty.h"
#include "memory/ram.h"

#define DIRTY_SUBSCRIBERS 4

struct dirty_subscriber {
	bool active;
	bool all_set; /* the log began with every page set, for this subscriber */
	struct page_map inbox[RAM_MAX_REGIONS];
};

/* A slot that is logged, as a part of a region. */
struct dirty_area {
	struct kvm_slot *slot;
	unsigned int region;
	uint64_t first; /* page of the region where the slot begins */
};

struct dirty_tracker {
	struct ram *ram;
	struct kvm_dirty *dirty;
	struct kvm_slots *slots;
	pthread_mutex_t lock; /* the rest */
	struct dirty_subscriber *subscribers[DIRTY_SUBSCRIBERS];
	unsigned int subscriber_count;
	struct dirty_area *areas;
	unsigned int area_count;
	uint64_t *scratch; /* the bitmap of the largest slot */
};

int dirty_tracker_init(struct dirty_tracker *tracker, struct ram *ram, struct kvm_dirty *dirty,
		       struct kvm_slots *slots, struct error **err);
/* Nobody is subscribed any more. */
void dirty_tracker_free(struct dirty_tracker *tracker);

/* From here on nothing written is missed. Switches the log on for the first subscriber. */
int dirty_tracker_subscribe(struct dirty_tracker *tracker, struct dirty_subscriber *subscriber,
			    struct error **err);
/* Switches the log off after the last one. Not in the window. */
void dirty_tracker_unsubscribe(struct dirty_tracker *tracker, struct dirty_subscriber *subscriber);

/*
 * Adds to maps (one a region) all that was written since the subscriber's last harvest. stopped:
 * the vCPUs are parked, see kvm_dirty_sync(). 0 or a negative errno; what was found up to a failure
 * is not lost. [window] with stopped.
 */
int dirty_tracker_harvest(struct dirty_tracker *tracker, struct dirty_subscriber *subscriber,
			  struct page_map *maps, bool stopped);

/*
 * Before pages are read: clears and write-protects those of [first, first + count) of a region that
 * are set in `seen` (a bitmap of the whole region). Any first and count; nothing else is
 * cleared, however slots lie in the region. Does nothing where a harvest clears.
 */
int dirty_tracker_clear(struct dirty_tracker *tracker, struct dirty_subscriber *subscriber,
			unsigned int region, uint64_t first, uint64_t count, const uint64_t *seen);
