/* SPDX-License-Identifier: Apache-2.0 */
/* Names of CPU features, the registers that hold them, and the portable baseline. */
#pragma once

#include <stdint.h>

struct x86_feature_register {
	uint32_t function, index;
	unsigned int reg; /* 0 eax, 1 ebx, 2 ecx, 3 edx */
	const char *names[32];
};

/* Registers in which a set bit is a promise to the guest. */
extern const struct x86_feature_register x86_feature_registers[];
extern const unsigned int x86_feature_register_count;

/* "avx512f", or "bit 16" for one without a name here. Static or thread-local text. */
const char *x86_feature_name(const struct x86_feature_register *where, unsigned int bit);

/* Family 6, model 44, stepping 1: the first generation with all of x86-64-v2. */
#define X86_BASELINE_SIGNATURE 0x000206c1u

/* sse3 ssse3 cx16 sse4.1 sse4.2 x2apic popcnt tsc-deadline hypervisor */
#define X86_BASELINE_1_ECX 0x81b82201u
/* fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2
 */
#define X86_BASELINE_1_EDX        0x078bfbffu
#define X86_BASELINE_80000001_ECX 0x00000001u /* lahf */
#define X86_BASELINE_80000001_EDX 0x20100800u /* syscall nx lm */
/* kvmclock, no-io-delay, kvmclock2, stable clock */
#define X86_BASELINE_KVM_EAX 0x0100000bu
