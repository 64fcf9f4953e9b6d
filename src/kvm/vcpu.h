/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A vCPU and its thread.
 *
 * The thread either is in KVM_RUN or sleeps on its command word. A command is one word: what to do
 * once (save, load, reset) and where to be afterwards (in the guest, or parked). A newer command
 * replaces one that the thread has not seen yet. Ioctls on the vCPU are made by its own thread, or
 * by another while it is parked: while it runs a foreign one would wait behind KVM_RUN.
 *
 * Giving a command, obeying it and waiting for it neither allocate nor log: they may be used in
 * the switchover window.
 */
#pragma once

#include <linux/kvm.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/error.h"
#include "kvm/vm.h"

#define KVM_VCPU_RUN   0x01u /* enter the guest afterwards; without it: park */
#define KVM_VCPU_SAVE  0x02u
#define KVM_VCPU_LOAD  0x04u
#define KVM_VCPU_RESET 0x08u
#define KVM_VCPU_QUIT  0x10u /* the thread ends */

enum kvm_vcpu_exit {
	KVM_VCPU_EXIT_RESET, /* triple fault, or the kernel reports that the guest wants a reset */
	KVM_VCPU_EXIT_SHUTDOWN, /* the kernel reports that the guest wants to be off */
	KVM_VCPU_EXIT_ERROR,    /* KVM cannot go on; vcpu->failure says why */
};

struct kvm_vcpu;

/* All are called on the vCPU's thread. */
struct kvm_vcpu_ops {
	void (*pio)(void *opaque, uint16_t port, bool write, void *data, unsigned int size);
	void (*mmio)(void *opaque, uint64_t gpa, bool write, void *data, unsigned int size);
	/* Carries out KVM_VCPU_SAVE, _LOAD or _RESET: 0 or a negative errno. No allocation, no log.
	 */
	int (*command)(struct kvm_vcpu *vcpu, unsigned int bits);
	/* The vCPU is halted until it is reset or loaded. */
	void (*exited)(struct kvm_vcpu *vcpu, enum kvm_vcpu_exit reason);
};

struct kvm_vcpu {
	unsigned int index;
	int fd;
	struct kvm_run *run;
	size_t run_size;
	const struct kvm_vcpu_ops *ops;
	void *opaque;
	pthread_t thread;
	bool thread_started;
	_Atomic(uint32_t) tid;     /* 0 until the thread runs; a futex */
	_Atomic(uint32_t) command; /* sequence << 8 | bits; a futex */
	_Atomic(uint32_t) done;    /* the last command obeyed; a futex */
	_Atomic(bool) in_guest;    /* a kick needs a signal */
	_Atomic(bool) waited_for;  /* somebody sleeps on done */
	_Atomic(uint32_t) outs;    /* how often it came out of the guest */
	struct kvm_dirty_ring ring;
	_Atomic(uint64_t) sleep_us; /* it is to sleep so long before it enters the guest again */
	_Atomic(uint64_t) slept_us; /* in all */
	bool pending_io;            /* an exit that KVM completes at the next KVM_RUN */
	bool halted;                /* does not enter the guest until reset or loaded; own thread */
	int result;                 /* of the last command; read after done */
	uint64_t stopped_us;        /* when the last command found the guest stopped */
	uint64_t entered_us;        /* when the guest was entered first after the last command */
	char failure[192];          /* set before exited(KVM_VCPU_EXIT_ERROR) */
};

/* Creates the vCPU (its descriptor); ioctls on it may be made until the thread is started. */
int kvm_vcpu_create(struct kvm_vcpu *vcpu, struct kvm_vm *vm, unsigned int index,
		    const struct kvm_vcpu_ops *ops, void *opaque, struct error **err);

/* Starts the thread, parked. It is named "vcpu N". */
int kvm_vcpu_start(struct kvm_vcpu *vcpu, struct error **err);

/* Ends the thread, closes the vCPU. */
void kvm_vcpu_destroy(struct kvm_vcpu *vcpu);

/* Gives all vCPUs a command at once; does not wait. One caller at a time. */
void kvm_vcpus_tell(struct kvm_vcpu *vcpus, unsigned int count, unsigned int bits);

/*
 * Waits until all have obeyed their last command: 0, -ETIMEDOUT past deadline_us (CLOCK_MONOTONIC;
 * 0: no bound), or the first negative result.
 */
int kvm_vcpus_wait(struct kvm_vcpu *vcpus, unsigned int count, uint64_t deadline_us);

/*
 * Has parked vCPUs carry out KVM_VCPU_SAVE, _LOAD or _RESET and stay parked; returns when all have:
 * on their own threads in parallel, or here where waking the threads would take longer than the
 * work. As kvm_vcpus_wait() otherwise.
 */
int kvm_vcpus_do(struct kvm_vcpu *vcpus, unsigned int count, unsigned int bits,
		 uint64_t deadline_us);

/* On a vCPU's own thread (in a pio or mmio handler): it does not enter the guest again until it is
 * reset or loaded. Elsewhere it does nothing. */
void kvm_vcpu_halt_current(void);

/*
 * Has a vCPU come out of the guest for a moment, without a command: it goes on by itself. Returns
 * what kvm_vcpu_wait_out() waits to change, until deadline_us; a vCPU that is not in the guest is
 * out. Any thread.
 */
uint32_t kvm_vcpu_call_out(struct kvm_vcpu *vcpu);
void kvm_vcpu_wait_out(struct kvm_vcpu *vcpu, uint32_t outs, uint64_t deadline_us);

/* Sends a vCPU that runs to sleep, once, for that long; a command wakes it at once. Any thread. */
void kvm_vcpu_sleep(struct kvm_vcpu *vcpu, uint64_t us);
