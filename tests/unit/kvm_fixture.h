/* SPDX-License-Identifier: Apache-2.0 */
/* A small real VM: 4 MiB of RAM, one vCPU that runs given 32-bit code. For tests that need KVM. */
#pragma once

#include "unit.h"

#include "arch/x86/cpuid.h"
#include "arch/x86/platform.h"
#include "arch/x86/vcpu_state.h"
#include "kvm/system.h"
#include "kvm/vcpu.h"
#include "kvm/vm.h"
#include "memory/ram.h"

#define FIXTURE_CODE 0x100000u /* where the code is put */

struct fixture {
	struct kvm_system system;
	struct kvm_vm vm;
	struct ram *ram;
	struct x86_cpuid cpuid;
	struct vcpu_layout layout;
	struct kvm_vcpu vcpu;
	struct x86_vcpu state;
	_Atomic(unsigned int) exits;
	_Atomic(uint16_t) last_port;
	_Atomic(uint64_t) last_value;
	_Atomic(uint64_t) answer; /* what a read of a port gives */
	_Atomic(int) exit_reason; /* of exited(), -1 before */
};

/* False, with a message, where there is no usable /dev/kvm. */
bool fixture_open(struct fixture *fixture);
struct fixture_options {
	struct kvm_dirty_options dirty;
	enum ram_backing backing;
	uint64_t memory;
	/* RAM gets no slot: the test gives it some. */
	bool no_slots;
};
/* False too, with a message, where the host lacks what the options ask for. */
bool fixture_open_with(struct fixture *fixture, const struct fixture_options *options);
void fixture_close(struct fixture *fixture);

/* Puts code into RAM and has the vCPU begin there, in flat 32-bit mode, at its next run. */
void fixture_start(struct fixture *fixture, const void *code, size_t size);

/*
 * The same in 64-bit mode at privilege level 3, over 1 GiB mapped one to one: where KVM is PVM such
 * code runs by itself and not in the kernel's emulator (which runs past the end of a full dirty
 * ring). It may not touch ports. FIXTURE_CODE + 64 KiB is taken for its tables.
 */
void fixture_start_user(struct fixture *fixture, const void *code, size_t size);

/* A command, waited for. */
int fixture_command(struct fixture *fixture, unsigned int bits);
