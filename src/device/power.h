/* SPDX-License-Identifier: Apache-2.0 */
/* Power-off, reset and the power button (ports: device/ports.h). */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"
#include "base/state.h"
#include "device/bus.h"
#include "kvm/vm.h"

enum power_request { POWER_OFF, POWER_RESET };

/* Called on a vCPU thread, with no lock held. */
typedef void power_listener(void *opaque, enum power_request request);

struct power_state {
	uint8_t button;
};

struct power {
	const struct kvm_vm *vm;
	power_listener *listener;
	void *opaque;
	pthread_mutex_t lock;
	struct power_state now, state;
};

int power_attach(struct power *power, const struct kvm_vm *vm, struct bus *ports,
		 power_listener *listener, void *opaque, struct error **err);
struct state_object power_object(struct power *power);

/* Any thread. */
void power_press_button(struct power *power);
void power_reset(struct power *power);

/* Window-safe. */
void power_save(struct power *power);
void power_load(struct power *power);
