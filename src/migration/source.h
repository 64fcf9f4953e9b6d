/* SPDX-License-Identifier: Apache-2.0 */
/* One outgoing migration, on the engine's thread. Internal. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "base/buffer.h"
#include "base/bytes.h"
#include "migration/convergence.h"
#include "migration/engine.h"
#include "migration/handshake.h"
#include "migration/ram_send.h"
#include "migration/state_map.h"

struct source {
	struct migration *m;
	struct owner_record *owner;
	struct migration_parameters parameters;
	struct ram_sender ram;
	struct state_map map;
	struct buffer state; /* reserved before the window */
	struct convergence convergence;
	struct switchover_account account;
	uint8_t nonce[ENGINE_NONCE_SIZE];
	uint32_t features;
	uint64_t epoch;
	uint64_t round_trip_us, heard_us;
	uint64_t rounds, rounds_done, intent_bytes;
	bool shared_record; /* the destination has the same owner record open */
	bool logging, ready, continued;
	bool decided; /* COMMIT was sent: no ABORT any more */
};

/*
 * From the stop to the answer to COMMIT. 0: the guest runs on the destination. Negative: it runs
 * (or stays paused, as it was) here again.
 */
int handover_source(struct source *s, struct error **err);
