/* SPDX-License-Identifier: Apache-2.0 */
/* One incoming migration, on the engine's thread. Internal. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "migration/engine.h"
#include "migration/handshake.h"
#include "migration/ram_receive.h"
#include "migration/state_map.h"

struct destination {
	struct migration *m;
	struct owner_record *owner;
	struct ram_receiver ram;
	struct state_map map;
	uint8_t nonce[ENGINE_NONCE_SIZE];
	uint64_t epoch, timeout_us, load_us;
	unsigned int machine_version;
	bool shared_record;
	bool asked; /* the machine was told to build: there is no second try */
	bool has_ranges, has_early, ready, quiet, has_delta;
	bool voted;         /* said yes: the source may commit */
	bool refused;       /* take_over(): the record was free, but the guest cannot run here */
	uint64_t commit_us; /* when COMMIT came, or was given up */
	uint64_t heard_us, keepalive_us;
	uint64_t messages;
};

/* After PREPARE: checks, votes, takes the guest over. 0: it runs (or is paused, as it was) here. */
int handover_destination(struct destination *d, const struct wire_header *header,
			 struct error **err);
