/* SPDX-License-Identifier: Apache-2.0 */
#include "arch/x86/msr.h"

#include <stddef.h>

static const struct {
	uint32_t first, last;
} left_out[] = {
	{0x10, 0x10},             /* TSC: see enum vcpu_tsc_method */
	{0x34, 0x34},             /* SMI count: the host's */
	{0xce, 0xce},             /* platform information: the host's */
	{0xc1, 0xc8},             /* performance counters: not shown to the guest */
	{0x186, 0x18d},           /* ... their event selectors */
	{0x1d9, 0x1d9},           /* debug control, and the last branch records, of which */
	{0x1db, 0x1de},           /*     only the host's kind of processor knows the format */
	{0x309, 0x30c},           /* fixed-function counters */
	{0x345, 0x345},           /* performance capabilities */
	{0x38d, 0x390},           /* counter control */
	{0x3f1, 0x3f2},           /* PEBS */
	{0x4c1, 0x4c8},           /* full-width counters */
	{0x480, 0x491},           /* VMX: not shown to the guest */
	{0x570, 0x58f},           /* processor trace */
	{0x600, 0x600},           /* debug store area */
	{0xc0000300, 0xc0000302}, /* AMD counter control */
	{0xc0010000, 0xc0010007}, /* AMD counters */
	{0xc0010015, 0xc0010015}, /* AMD hardware configuration: the host's */
	{0xc0010117, 0xc0010117}, /* SVM host save area */
	{0xc0010200, 0xc001020b}, /* AMD counters */
};

bool x86_msr_left_out(uint32_t index)
{
	for (size_t i = 0; i < sizeof(left_out) / sizeof(left_out[0]); i++)
		if (index >= left_out[i].first && index <= left_out[i].last)
			return true;
	return false;
}

/* Intel SDM volume 3A, "Memory type range registers". */
const uint32_t x86_msr_unlisted[] = {
	0x2ff, 0x200, 0x201, 0x202, 0x203, 0x204, 0x205, 0x206, 0x207, 0x208,
	0x209, 0x20a, 0x20b, 0x20c, 0x20d, 0x20e, 0x20f, 0x250, 0x258, 0x259,
	0x268, 0x269, 0x26a, 0x26b, 0x26c, 0x26d, 0x26e, 0x26f,
};
const unsigned int x86_msr_unlisted_count = sizeof(x86_msr_unlisted) / sizeof(x86_msr_unlisted[0]);
