/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Move generation: tells the guest how often it has been moved, so that it can tell the gap of a
 * move from any other, and takes the guest's own measurement of the pause.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>
#include "base/error.h"
#include "base/state.h"
#include "device/bus.h"

struct movegen_state {
	uint32_t generation;
	uint32_t pause_us;
};

struct movegen {
	_Atomic(uint32_t) generation;
	_Atomic(uint32_t) pause_us; /* as the guest reported it; 0: none */
	struct movegen_state state;
};

int movegen_attach(struct movegen *movegen, struct bus *ports, struct error **err);
struct state_object movegen_object(struct movegen *movegen);

/* Window-safe. */
void movegen_save(struct movegen *movegen);
void movegen_load(struct movegen *movegen);
void movegen_arrived(struct movegen *movegen); /* one move more */
