/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real-time clock of an MC146818 at ports 0x70 and 0x71: UTC, BCD, 24 hours, read from the
 * host's clock; 128 bytes of which the guest may use those past the clock. No interrupts.
 */
#pragma once

#include <pthread.h>
#include <stdint.h>
#include "base/error.h"
#include "base/state.h"
#include "device/bus.h"

#define CMOS_SIZE 128

struct cmos_state {
	uint8_t index;
	uint8_t bytes[CMOS_SIZE];
};

struct cmos {
	pthread_mutex_t lock;
	struct cmos_state now, state;
};

int cmos_attach(struct cmos *cmos, struct bus *ports, struct error **err);
struct state_object cmos_object(struct cmos *cmos);
void cmos_reset(struct cmos *cmos);

/* Window-safe. */
void cmos_save(struct cmos *cmos);
void cmos_load(struct cmos *cmos);
