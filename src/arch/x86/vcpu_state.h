/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All that a vCPU is, as one plain struct, and the table that names each value in it. The table is
 * built once a machine, since which MSRs and which XSAVE components there are depends on the
 * processor shown to the guest.
 */
#pragma once

#include <linux/kvm.h>
#include <stdbool.h>
#include <stdint.h>
#include "arch/x86/cpuid.h"
#include "base/error.h"
#include "base/state.h"
#include "kvm/vm.h"

#define VCPU_MSR_MAX   256
#define VCPU_XSAVE_MAX 16384 /* bytes; every component known today, AMX too */

struct vcpu_state {
	struct kvm_regs regs;
	struct kvm_sregs2 sregs;
	struct kvm_vcpu_events events;
	struct kvm_debugregs debugregs;
	struct kvm_lapic_state lapic;
	uint64_t xcr0;
	uint64_t tsc_offset; /* guest TSC minus host TSC; where the host tells it */
	uint64_t tsc;        /* the guest's TSC as it was when saved */
	uint32_t mp_state;
	uint64_t msrs[VCPU_MSR_MAX]; /* in the order of vcpu_layout.msrs */
	uint8_t xsave[VCPU_XSAVE_MAX] __attribute__((aligned(64)));
};

/* How this host lets a guest's TSC be set. */
enum vcpu_tsc_method {
	VCPU_TSC_NONE,   /* it cannot: the guest sees the host's */
	VCPU_TSC_OFFSET, /* KVM_VCPU_TSC_OFFSET */
	VCPU_TSC_VALUE,  /* by writing the MSR */
};

struct vcpu_layout {
	struct state_field *fields; /* names owned by `names` */
	unsigned int count;
	char *names;
	uint32_t msrs[VCPU_MSR_MAX];
	unsigned int msr_count;
	size_t xsave_size; /* bytes KVM copies */
	bool xsave2, sregs2, xcrs;
	enum vcpu_tsc_method tsc_method;
};

/*
 * Finds out on one vCPU, whose CPUID is set and which has never run, what there is to carry.
 */
int vcpu_layout_create(struct vcpu_layout *layout, const struct kvm_vm *vm,
		       const struct x86_cpuid *cpuid, int vcpu_fd, struct error **err);
void vcpu_layout_free(struct vcpu_layout *layout);

/* One vCPU's state and what saving and loading it need; allocated before the guest runs. */
struct x86_vcpu {
	const struct vcpu_layout *layout;
	int fd;
	struct vcpu_state *state;  /* what a move carries */
	struct vcpu_state *fresh;  /* as it was created; a reset goes back to it */
	struct vcpu_state *loaded; /* what the vCPU was given last, while it has not run since */
	bool loaded_valid;
	struct kvm_msrs *msrs;   /* scratch for the batched ioctls */
	int64_t tsc_adjust;      /* added to a loaded TSC offset; from the clock, see platform.h */
	uint64_t saved_host_tsc; /* the host's TSC when `state` was saved; from the clock too */
	const char *failed;      /* which part the last failing save or load was at; static text */
	uint32_t failed_msr;     /* when failed is "msr" */
};

int x86_vcpu_create(struct x86_vcpu *vcpu, const struct vcpu_layout *layout, int vcpu_fd,
		    unsigned int index, struct error **err);
void x86_vcpu_destroy(struct x86_vcpu *vcpu);

/*
 * Between the vCPU and `state` (the vCPU's thread; window-safe). Values of a stream are not
 * trusted: KVM checks them, and what it refuses is named by x86_vcpu_error(). Load may be done
 * again and again; what it would set to the value it has already (from a rehearsal) is left out,
 * unless x86_vcpu_ran() was called meanwhile. Return 0 or a negative errno.
 */
int x86_vcpu_save(struct x86_vcpu *vcpu, struct vcpu_state *state);
int x86_vcpu_load(struct x86_vcpu *vcpu, const struct vcpu_state *state, bool with_tsc);

/* The vCPU enters the guest: what was loaded is no longer what it has. */
void x86_vcpu_ran(struct x86_vcpu *vcpu);

/* "vCPU 1: KVM refuses the value of msr.0x277" for a failure of the two above. */
int x86_vcpu_error(const struct x86_vcpu *vcpu, unsigned int index, int code, struct error **err);
