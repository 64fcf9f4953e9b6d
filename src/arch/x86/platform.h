/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The platform's state that KVM keeps: interrupt controllers, interval timer, paravirtual clock;
 * and the arithmetic of time across a move.
 */
#pragma once

#include <linux/kvm.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"
#include "base/state.h"
#include "kvm/vm.h"

/*
 * The guest's clock with the host's time at the same moment. A destination lets the guest's clocks
 * go on by the time that has really passed: by the monotonic clock when it is the same host (same
 * boot), else by CLOCK_REALTIME, which two hosts are expected to keep in step.
 */
struct x86_clock {
	uint64_t kvmclock;     /* ns, KVM_GET_CLOCK */
	uint64_t realtime_ns;  /* CLOCK_REALTIME */
	uint64_t monotonic_ns; /* CLOCK_MONOTONIC */
	uint64_t host_tsc;
	uint32_t tsc_khz;
	uint8_t boot_id[16];
	uint8_t running; /* the guest ran: its time goes on; 0: it stands still */
};

struct x86_platform {
	int vm_fd;
	struct kvm_pic_state pic[2];
	struct kvm_ioapic_state ioapic;
	struct kvm_pit_state2 pit;
	struct x86_clock clock;
	struct {
		struct kvm_pic_state pic[2];
		struct kvm_ioapic_state ioapic;
		struct kvm_pit_state2 pit;
	} fresh;
	uint8_t boot_id[16]; /* this host's */
	uint32_t tsc_khz;    /* what KVM gives a vCPU here; 0: not told */
	const char *failed;
};

#define X86_PLATFORM_OBJECTS 5

/* Switches on what lets pending exceptions be told apart and moved, where KVM has it. */
void x86_platform_enable(const struct kvm_vm *vm);

/* The VM has its irqchip and PIT; reads their fresh state. */
int x86_platform_init(struct x86_platform *platform, const struct kvm_vm *vm, int vcpu_fd,
		      struct error **err);

/* The platform's state objects, X86_PLATFORM_OBJECTS of them. */
void x86_platform_objects(struct x86_platform *platform, struct state_object *objects);

/* KVM to struct and back, and to the fresh state. Window-safe; 0 or a negative errno (`failed`
 * says what at). The clock is not loaded here but by x86_clock_start(). */
int x86_platform_save(struct x86_platform *platform);
int x86_platform_load(struct x86_platform *platform);
int x86_platform_reset(struct x86_platform *platform);

/* Takes the clock pair. Window-safe. */
int x86_clock_read(struct x86_platform *platform, bool running);

/* How far a vCPU's TSC offset (guest minus host) must change for the clock pair in `clock`, which
 * was taken on its host, to be continued on this one. */
int64_t x86_clock_tsc_adjust(const struct x86_platform *platform);

/* Sets the paravirtual clock before the vCPUs run: moved on by the time passed since the pair was
 * taken (advance), or exactly to it. Window-safe. */
int x86_clock_start(struct x86_platform *platform, bool advance);
