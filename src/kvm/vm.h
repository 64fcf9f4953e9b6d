/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A KVM virtual machine without its vCPUs: descriptor, memory slots, dirty log, the in-kernel
 * interrupt controller and timer, and the event descriptors that reach them.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"
#include "kvm/dirty.h"
#include "kvm/slots.h"
#include "kvm/system.h"

struct kvm_vm {
	const struct kvm_system *system;
	int fd;
	struct kvm_slots slots;
	struct kvm_dirty dirty;
};

/* Makes the VM with PIC, IOAPIC, PIT and local APICs in the kernel. The system outlives it.
 * dirty NULL: kvm_dirty_init() chooses how writes are tracked. */
int kvm_vm_create(struct kvm_vm *vm, const struct kvm_system *system,
		  const struct kvm_dirty_options *dirty, struct error **err);
void kvm_vm_destroy(struct kvm_vm *vm);

/* KVM_CHECK_EXTENSION on the VM; 0 when it is absent. */
int kvm_vm_capability(const struct kvm_vm *vm, int number);

/* Sets the level of an interrupt line (GSI). Any thread. Returns 0 or a negative errno. */
int kvm_vm_irq_line(const struct kvm_vm *vm, unsigned int gsi, bool level);

/* A low-high-low pulse: one edge. */
int kvm_vm_irq_pulse(const struct kvm_vm *vm, unsigned int gsi);

/* Writing to eventfd raises an edge on gsi, without a call into this process's main path. */
int kvm_vm_irqfd(const struct kvm_vm *vm, int eventfd, unsigned int gsi, bool assign,
		 struct error **err);

/*
 * A guest write of `length` bytes (0: any) at address signals eventfd instead of leaving KVM_RUN;
 * only writes of `match` when it is not NULL. The same arguments undo it with assign false.
 */
int kvm_vm_ioeventfd(const struct kvm_vm *vm, int eventfd, bool pio, uint64_t address,
		     uint32_t length, const uint64_t *match, bool assign, struct error **err);
