/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the guest's CPUID instruction says. A guest keeps for life what it saw first: the machine's
 * description carries the whole table, and a destination takes that table over after it has found
 * every feature in it among those its own host can give. (Intel SDM volume 2A, CPUID; AMD APM
 * volume 3, appendix E; Documentation/virt/kvm/x86/cpuid.rst.)
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "base/description.h"
#include "base/error.h"
#include "kvm/vm.h"

#define X86_CPUID_MAX 128

struct x86_cpuid_leaf {
	uint32_t function, index;
	uint32_t reg[4]; /* eax ebx ecx edx */
};

/* The table without what differs from vCPU to vCPU. All-zero leaves are left out. */
struct x86_cpuid {
	struct x86_cpuid_leaf leaves[X86_CPUID_MAX];
	unsigned int count;
};

/*
 * model "host": all that KVM offers on this host and that can move (no nested virtualisation, no
 * performance counters, no SGX, no processor trace). model "baseline": the part of it that every
 * x86-64-v2 processor has, without AVX and XSAVE, under one fixed name, so that it moves between
 * unlike hosts.
 */
int x86_cpuid_init(struct x86_cpuid *cpuid, const struct kvm_system *system, const char *model,
		   struct error **err);

/* Tells the guest its TSC's rate in leaf 0x40000010 (ECX, EDX zero; EBX is the APIC timer's). */
void x86_cpuid_set_tsc_khz(struct x86_cpuid *cpuid, uint32_t khz);

/* Gives vCPU `index` of `cpus` its table: the common one, its APIC id, and the topology (one
 * socket, one thread a core). */
int x86_cpuid_apply(const struct x86_cpuid *cpuid, int vcpu_fd, unsigned int index,
		    unsigned int cpus, struct error **err);

/* One entry a register that is not zero: "cpuid.0x7.0.ebx". */
int x86_cpuid_describe(const struct x86_cpuid *cpuid, struct description *d);

/*
 * Reads the table out of a source's description and compares it with `host` (model "host" of this
 * machine). Names the first feature that is missing here (-ENOTSUP).
 */
int x86_cpuid_adopt(struct x86_cpuid *cpuid, const struct x86_cpuid *host,
		    const struct description *d, struct error **err);

/* Zero for a leaf that is not in the table. */
uint32_t x86_cpuid_get(const struct x86_cpuid *cpuid, uint32_t function, uint32_t index,
		       unsigned int reg);

/* XCR0 bits the guest may set; 0 without XSAVE. */
uint64_t x86_cpuid_xcr0(const struct x86_cpuid *cpuid);
