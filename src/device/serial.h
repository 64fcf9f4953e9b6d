/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A 16550A UART at 0x3f8, IRQ 4 (National Semiconductor PC16550D data sheet): FIFOs of 16 bytes,
 * interrupts for data, transmitter and line errors, loopback. Sending takes no time, so the
 * transmitter is always empty.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"
#include "base/state.h"
#include "device/bus.h"
#include "device/chardev.h"
#include "kvm/vm.h"

#define SERIAL_FIFO 16

struct serial_state {
	uint8_t ier, lcr, mcr, scr, fcr, dll, dlm;
	uint8_t lsr_errors;  /* overrun, parity, framing, break; cleared by a read of LSR */
	uint8_t thr_pending; /* the transmitter-empty interrupt is due */
	uint8_t rx_count;    /* bytes in the receiver FIFO */
	uint8_t rx[SERIAL_FIFO];
};

struct serial {
	const struct kvm_vm *vm; /* NULL: no interrupt line (tests) */
	struct chardev *chardev;
	pthread_mutex_t lock;
	struct serial_state now, state;
	bool line; /* level of the interrupt line */
	bool held; /* takes no input */
};

/* where: see chardev_open(). Held until serial_hold(false); vm may be created later, before that.
 */
int serial_attach(struct serial *serial, const struct kvm_vm *vm, struct bus *ports,
		  const char *where, struct error **err);
void serial_detach(struct serial *serial);
struct state_object serial_object(struct serial *serial);
void serial_reset(struct serial *serial);

/*
 * While held the line takes no input: its state stays as saved, and what the host's end sends waits
 * there. Window-safe.
 */
void serial_hold(struct serial *serial, bool held);

/* Window-safe. Load comes after the interrupt controller's. */
void serial_save(struct serial *serial);
void serial_load(struct serial *serial);

/* The chardev's side; also for tests. */
size_t serial_room(void *opaque);
void serial_receive(void *opaque, const uint8_t *data, size_t size);
