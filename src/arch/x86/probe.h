/* SPDX-License-Identifier: Apache-2.0 */
/* What this host could give a guest with a certain CPUID table: found out on a VM made for it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "arch/x86/cpuid.h"
#include "arch/x86/vcpu_state.h"
#include "base/error.h"
#include "kvm/system.h"
#include "kvm/vcpu.h"
#include "kvm/vm.h"

struct x86_host {
	uint32_t tsc_khz; /* 0: not told */
	bool tsc_scales;  /* a guest may have another rate */
	uint32_t msrs[VCPU_MSR_MAX];
	unsigned int msr_count;
};

/* A VM with one vCPU that never runs. It takes long to take down, so a destination makes it before
 * a source comes and closes it when the guest has arrived. */
struct x86_probe {
	struct kvm_vm vm; /* fd -1: closed */
	struct kvm_vcpu vcpu;
};

int x86_probe_open(struct x86_probe *probe, const struct kvm_system *system, struct error **err);
void x86_probe_close(struct x86_probe *probe);

int x86_host_probe(struct x86_host *host, const struct x86_probe *probe,
		   const struct x86_cpuid *cpuid, struct error **err);

bool x86_host_has_msr(const struct x86_host *host, uint32_t index);

/* Within 250 parts per million, what guests' own clock correction copes with. */
bool x86_tsc_rates_agree(uint32_t a_khz, uint32_t b_khz);
