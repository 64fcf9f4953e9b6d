/* SPDX-License-Identifier: Apache-2.0 */
#include "arch/x86/cpu_features.h"

#include <stdio.h>

/* Intel SDM volume 2A, CPUID, tables 3-8 to 3-17; AMD APM volume 3, appendix E. */
const struct x86_feature_register x86_feature_registers[] = {
	{1, 0, 2, {[0] = "sse3", [1] = "pclmulqdq", [9] = "ssse3", [12] = "fma", [13] = "cx16",
		   [17] = "pcid", [19] = "sse4.1", [20] = "sse4.2", [21] = "x2apic", [22] = "movbe",
		   [23] = "popcnt", [24] = "tsc-deadline", [25] = "aes", [26] = "xsave",
		   [28] = "avx", [29] = "f16c", [30] = "rdrand", [31] = "hypervisor"}},
	{1, 0, 3, {[0] = "fpu", [1] = "vme", [2] = "de", [3] = "pse", [4] = "tsc", [5] = "msr",
		   [6] = "pae", [7] = "mce", [8] = "cx8", [9] = "apic", [11] = "sep", [12] = "mtrr",
		   [13] = "pge", [14] = "mca", [15] = "cmov", [16] = "pat", [17] = "pse36",
		   [19] = "clflush", [23] = "mmx", [24] = "fxsr", [25] = "sse", [26] = "sse2",
		   [27] = "ss"}},
	{6, 0, 0, {[2] = "arat"}},
	{7, 0, 1, {[0] = "fsgsbase", [1] = "tsc-adjust", [3] = "bmi1", [4] = "hle", [5] = "avx2",
		   [7] = "smep", [8] = "bmi2", [9] = "erms", [10] = "invpcid", [11] = "rtm",
		   [14] = "mpx", [16] = "avx512f", [17] = "avx512dq", [18] = "rdseed",
		   [19] = "adx", [20] = "smap", [21] = "avx512ifma", [23] = "clflushopt",
		   [24] = "clwb", [26] = "avx512pf", [27] = "avx512er", [28] = "avx512cd",
		   [29] = "sha-ni", [30] = "avx512bw", [31] = "avx512vl"}},
	{7, 0, 2, {[1] = "avx512vbmi", [2] = "umip", [3] = "pku", [5] = "waitpkg",
		   [6] = "avx512vbmi2", [7] = "shstk", [8] = "gfni", [9] = "vaes",
		   [10] = "vpclmulqdq", [11] = "avx512vnni", [12] = "avx512bitalg",
		   [14] = "avx512vpopcntdq", [16] = "la57", [22] = "rdpid", [24] = "bus-lock-detect",
		   [25] = "cldemote", [27] = "movdiri", [28] = "movdir64b"}},
	{7, 0, 3, {[4] = "fsrm", [8] = "avx512vp2intersect", [10] = "md-clear", [14] = "serialize",
		   [16] = "tsxldtrk", [20] = "ibt", [22] = "amx-bf16", [23] = "avx512fp16",
		   [24] = "amx-tile", [25] = "amx-int8", [26] = "spec-ctrl", [27] = "stibp",
		   [28] = "flush-l1d", [29] = "arch-capabilities", [31] = "ssbd"}},
	{7, 1, 0, {[4] = "avx-vnni", [5] = "avx512bf16", [10] = "fzrm", [11] = "fsrs",
		   [12] = "fsrc", [21] = "amx-fp16", [23] = "avx-ifma", [26] = "lam"}},
	{7, 1, 3, {[4] = "avx-vnni-int8", [5] = "avx-ne-convert", [14] = "prefetchiti"}},
	{7, 2, 3, {[0] = "psfd", [1] = "ipred-ctrl", [2] = "rrsba-ctrl", [3] = "ddpd-u",
		   [4] = "bhi-ctrl", [5] = "mcdt-no"}},
	{0xd, 0, 0, {[0] = "x87 state", [1] = "sse state", [2] = "avx state", [3] = "bndregs state",
		     [4] = "bndcsr state", [5] = "avx512 opmask state",
		     [6] = "avx512 zmm-hi256 state", [7] = "avx512 hi16-zmm state",
		     [9] = "pkru state", [17] = "amx tilecfg state", [18] = "amx tiledata state"}},
	{0xd, 0, 3, {0}},
	{0xd, 1, 0, {[0] = "xsaveopt", [1] = "xsavec", [2] = "xgetbv1", [3] = "xsaves",
		     [4] = "xfd"}},
	{0x40000001, 0, 0, {[0] = "kvmclock", [1] = "kvm-no-io-delay", [3] = "kvmclock2",
			    [4] = "kvm-async-pf", [5] = "kvm-steal-time", [6] = "kvm-pv-eoi",
			    [7] = "kvm-pv-unhalt", [9] = "kvm-pv-tlb-flush",
			    [10] = "kvm-async-pf-vmexit", [11] = "kvm-pv-ipi",
			    [12] = "kvm-poll-control", [13] = "kvm-pv-sched-yield",
			    [14] = "kvm-async-pf-int", [15] = "kvm-msi-ext-dest-id",
			    [24] = "kvmclock-stable"}},
	{0x80000001, 0, 2, {[0] = "lahf", [4] = "cr8-legacy", [5] = "lzcnt", [6] = "sse4a",
			    [7] = "misalignsse", [8] = "prefetchw", [11] = "xop", [16] = "fma4",
			    [21] = "tbm", [22] = "topoext", [23] = "perfctr-core"}},
	{0x80000001, 0, 3, {[11] = "syscall", [20] = "nx", [22] = "mmxext", [25] = "fxsr-opt",
			    [26] = "1-gbyte-pages", [27] = "rdtscp", [29] = "lm"}},
	{0x80000007, 0, 3, {[8] = "invariant-tsc"}},
	{0x80000008, 0, 1, {[0] = "clzero", [2] = "xsaveerptr", [9] = "wbnoinvd", [12] = "ibpb",
			    [14] = "ibrs", [15] = "amd-stibp", [24] = "amd-ssbd",
			    [25] = "virt-ssbd"}},
	{0x80000021, 0, 0, {[0] = "no-nested-data-bp", [2] = "lfence-always-serializing",
			    [6] = "null-sel-clr-base", [8] = "auto-ibrs"}},
};
const unsigned int x86_feature_register_count =
	sizeof(x86_feature_registers) / sizeof(x86_feature_registers[0]);

const char *x86_feature_name(const struct x86_feature_register *where, unsigned int bit)
{
	static _Thread_local char text[16];

	if (bit < 32 && where->names[bit])
		return where->names[bit];
	snprintf(text, sizeof(text), "bit %u", bit);
	return text;
}
