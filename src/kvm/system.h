/* SPDX-License-Identifier: Apache-2.0 */
/* /dev/kvm: opened once, its capabilities read once. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"

struct kvm_system {
	int fd;
	size_t run_size; /* bytes of a vCPU's shared kvm_run mapping */
	unsigned int max_vcpus;
	unsigned int max_slots;
	bool manual_dirty_protect; /* KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2 */
	bool initially_set;        /* ... with KVM_DIRTY_LOG_INITIALLY_SET */
	bool immediate_exit;
};

/*
 * Opens /dev/kvm and reads the capabilities. Says plainly what is wrong: no such device (module,
 * nested virtualisation), no right to it (names the group that owns it), a kernel too old.
 */
int kvm_system_open(struct kvm_system *system, struct error **err);
void kvm_system_close(struct kvm_system *system);
