/* SPDX-License-Identifier: Apache-2.0 */
#include "arch/x86/vcpu_state.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include "arch/x86/msr.h"
#include "base/cleanup.h"

#define FIELD(member, type, name) STATE_FIELD(struct vcpu_state, member, STATE_##type, name)

#define SEGMENT(register_, name)                                                                   \
	FIELD(sregs.register_.base, U64, name ".base"),                                            \
		FIELD(sregs.register_.limit, U32, name ".limit"),                                  \
		FIELD(sregs.register_.selector, U16, name ".selector"),                            \
		FIELD(sregs.register_.type, U8, name ".type"),                                     \
		FIELD(sregs.register_.present, U8, name ".present"),                               \
		FIELD(sregs.register_.dpl, U8, name ".dpl"),                                       \
		FIELD(sregs.register_.db, U8, name ".db"),                                         \
		FIELD(sregs.register_.s, U8, name ".s"), FIELD(sregs.register_.l, U8, name ".l"),  \
		FIELD(sregs.register_.g, U8, name ".g"),                                           \
		FIELD(sregs.register_.avl, U8, name ".avl"),                                       \
		FIELD(sregs.register_.unusable, U8, name ".unusable")

static const struct state_field fixed_fields[] = {
	FIELD(regs.rax, U64, "rax"),
	FIELD(regs.rbx, U64, "rbx"),
	FIELD(regs.rcx, U64, "rcx"),
	FIELD(regs.rdx, U64, "rdx"),
	FIELD(regs.rsi, U64, "rsi"),
	FIELD(regs.rdi, U64, "rdi"),
	FIELD(regs.rsp, U64, "rsp"),
	FIELD(regs.rbp, U64, "rbp"),
	FIELD(regs.r8, U64, "r8"),
	FIELD(regs.r9, U64, "r9"),
	FIELD(regs.r10, U64, "r10"),
	FIELD(regs.r11, U64, "r11"),
	FIELD(regs.r12, U64, "r12"),
	FIELD(regs.r13, U64, "r13"),
	FIELD(regs.r14, U64, "r14"),
	FIELD(regs.r15, U64, "r15"),
	FIELD(regs.rip, U64, "rip"),
	FIELD(regs.rflags, U64, "rflags"),
	SEGMENT(cs, "cs"),
	SEGMENT(ds, "ds"),
	SEGMENT(es, "es"),
	SEGMENT(fs, "fs"),
	SEGMENT(gs, "gs"),
	SEGMENT(ss, "ss"),
	SEGMENT(tr, "tr"),
	SEGMENT(ldt, "ldt"),
	FIELD(sregs.gdt.base, U64, "gdt.base"),
	FIELD(sregs.gdt.limit, U16, "gdt.limit"),
	FIELD(sregs.idt.base, U64, "idt.base"),
	FIELD(sregs.idt.limit, U16, "idt.limit"),
	FIELD(sregs.cr0, U64, "cr0"),
	FIELD(sregs.cr2, U64, "cr2"),
	FIELD(sregs.cr3, U64, "cr3"),
	FIELD(sregs.cr4, U64, "cr4"),
	FIELD(sregs.cr8, U64, "cr8"),
	FIELD(sregs.efer, U64, "efer"),
	FIELD(sregs.apic_base, U64, "apic_base"),
	FIELD(sregs.flags, U64, "sregs.flags"),
	FIELD(sregs.pdptrs[0], U64, "pdptr0"),
	FIELD(sregs.pdptrs[1], U64, "pdptr1"),
	FIELD(sregs.pdptrs[2], U64, "pdptr2"),
	FIELD(sregs.pdptrs[3], U64, "pdptr3"),
	FIELD(xcr0, U64, "xcr0"),
	FIELD(debugregs.db[0], U64, "dr0"),
	FIELD(debugregs.db[1], U64, "dr1"),
	FIELD(debugregs.db[2], U64, "dr2"),
	FIELD(debugregs.db[3], U64, "dr3"),
	FIELD(debugregs.dr6, U64, "dr6"),
	FIELD(debugregs.dr7, U64, "dr7"),
	FIELD(mp_state, U32, "mp_state"),
	FIELD(events.flags, U32, "events.flags"),
	FIELD(events.exception.injected, U8, "events.exception.injected"),
	FIELD(events.exception.nr, U8, "events.exception.nr"),
	FIELD(events.exception.has_error_code, U8, "events.exception.has_error_code"),
	FIELD(events.exception.pending, U8, "events.exception.pending"),
	FIELD(events.exception.error_code, U32, "events.exception.error_code"),
	FIELD(events.exception_has_payload, U8, "events.exception.has_payload"),
	FIELD(events.exception_payload, U64, "events.exception.payload"),
	FIELD(events.interrupt.injected, U8, "events.interrupt.injected"),
	FIELD(events.interrupt.nr, U8, "events.interrupt.nr"),
	FIELD(events.interrupt.soft, U8, "events.interrupt.soft"),
	FIELD(events.interrupt.shadow, U8, "events.interrupt.shadow"),
	FIELD(events.nmi.injected, U8, "events.nmi.injected"),
	FIELD(events.nmi.pending, U8, "events.nmi.pending"),
	FIELD(events.nmi.masked, U8, "events.nmi.masked"),
	FIELD(events.sipi_vector, U32, "events.sipi_vector"),
	FIELD(events.smi.smm, U8, "events.smi.smm"),
	FIELD(events.smi.pending, U8, "events.smi.pending"),
	FIELD(events.smi.smm_inside_nmi, U8, "events.smi.smm_inside_nmi"),
	FIELD(events.smi.latched_init, U8, "events.smi.latched_init"),
	FIELD(events.triple_fault.pending, U8, "events.triple_fault.pending"),
	FIELD(lapic.regs, BYTES, "lapic.regs"),
	FIELD(tsc_offset, U64, "tsc_offset"),
	FIELD(tsc, U64, "tsc"),
	{.name = "xsave.legacy",
	 .type = STATE_BYTES,
	 .offset = offsetof(struct vcpu_state, xsave),
	 .size = 416, /* x87 and SSE; the rest of the 512 bytes is nobody's */
	 .since = 1},
	{.name = "xsave.xstate_bv",
	 .type = STATE_U64,
	 .offset = offsetof(struct vcpu_state, xsave) + 512,
	 .size = 8,
	 .since = 1},
};
#define FIXED_COUNT (sizeof(fixed_fields) / sizeof(fixed_fields[0]))

#define NAME_SIZE  24
#define XSAVE_LAST 62

/* KVM_GET_MSRS and KVM_SET_MSRS for one: true when both take it. */
static bool msr_probe(int fd, uint32_t index)
{
	struct {
		struct kvm_msrs header;
		struct kvm_msr_entry entry;
	} one = {.header.nmsrs = 1, .entry.index = index};

	return ioctl(fd, KVM_GET_MSRS, &one) == 1 && ioctl(fd, KVM_SET_MSRS, &one) == 1;
}

static void msr_consider(struct vcpu_layout *layout, int fd, uint32_t index)
{
	if (layout->msr_count == VCPU_MSR_MAX || x86_msr_left_out(index))
		return;
	for (unsigned int i = 0; i < layout->msr_count; i++)
		if (layout->msrs[i] == index)
			return;
	if (msr_probe(fd, index))
		layout->msrs[layout->msr_count++] = index;
}

static int find_msrs(struct vcpu_layout *layout, const struct kvm_vm *vm, int fd,
		     struct error **err)
{
	cleanup_free struct kvm_msr_list *list = NULL;

	list = calloc(1, sizeof(*list) + 1024 * sizeof(list->indices[0]));
	if (!list)
		return error_set(err, -ENOMEM, "no memory for the list of MSRs");
	list->nmsrs = 1024;
	if (ioctl(vm->system->fd, KVM_GET_MSR_INDEX_LIST, list) != 0)
		return error_set_errno(err, -errno, "KVM_GET_MSR_INDEX_LIST fails");
	for (uint32_t i = 0; i < list->nmsrs; i++)
		msr_consider(layout, fd, list->indices[i]);
	for (unsigned int i = 0; i < x86_msr_unlisted_count; i++)
		msr_consider(layout, fd, x86_msr_unlisted[i]);
	return 0;
}

static int64_t read_tsc_offset(int fd, int *code)
{
	int64_t offset = 0;
	struct kvm_device_attr attribute = {
		.group = KVM_VCPU_TSC_CTRL,
		.attr = KVM_VCPU_TSC_OFFSET,
		.addr = (uint64_t)(uintptr_t)&offset,
	};

	*code = ioctl(fd, KVM_GET_DEVICE_ATTR, &attribute);
	return offset;
}

/* Tries it: some hosts take the new offset and go on with the old one. */
static enum vcpu_tsc_method find_tsc_method(int fd)
{
	int code;
	int64_t before = read_tsc_offset(fd, &code), changed = before + (1 << 20);
	struct kvm_device_attr attribute = {
		.group = KVM_VCPU_TSC_CTRL,
		.attr = KVM_VCPU_TSC_OFFSET,
		.addr = (uint64_t)(uintptr_t)&changed,
	};
	bool took;

	if (code != 0)
		return VCPU_TSC_VALUE;
	if (ioctl(fd, KVM_SET_DEVICE_ATTR, &attribute) != 0)
		return VCPU_TSC_NONE;
	took = read_tsc_offset(fd, &code) == changed;
	changed = before;
	(void)ioctl(fd, KVM_SET_DEVICE_ATTR, &attribute);
	return took ? VCPU_TSC_OFFSET : VCPU_TSC_NONE;
}

static int build_fields(struct vcpu_layout *layout, const struct x86_cpuid *cpuid,
			struct error **err)
{
	uint64_t xcr0 = x86_cpuid_xcr0(cpuid);
	char *name;

	layout->fields = calloc(FIXED_COUNT + 64 + layout->msr_count, sizeof(*layout->fields));
	layout->names = calloc(64 + layout->msr_count, NAME_SIZE);
	if (!layout->fields || !layout->names)
		return error_set(err, -ENOMEM, "no memory for the table of vCPU registers");
	memcpy(layout->fields, fixed_fields, sizeof(fixed_fields));
	layout->count = FIXED_COUNT;
	name = layout->names;

	for (unsigned int i = 2; i <= XSAVE_LAST; i++) {
		uint32_t size = x86_cpuid_get(cpuid, 0xd, i, 0);
		uint32_t offset = x86_cpuid_get(cpuid, 0xd, i, 1);

		if (!(xcr0 >> i & 1) || size == 0)
			continue;
		if (offset < 576 || size > layout->xsave_size || offset > layout->xsave_size - size)
			return error_set(err, -EPROTO,
					 "cpuid.0xd.%u: XSAVE component at %u, %u bytes, does not "
					 "fit this host's %zu bytes",
					 i, offset, size, layout->xsave_size);
		snprintf(name, NAME_SIZE, "xsave.%u", i);
		layout->fields[layout->count++] = (struct state_field){
			.name = name,
			.type = STATE_BYTES,
			.offset = (uint32_t)offsetof(struct vcpu_state, xsave) + offset,
			.size = size,
			.since = 1,
		};
		name += NAME_SIZE;
	}
	for (unsigned int i = 0; i < layout->msr_count; i++) {
		snprintf(name, NAME_SIZE, "msr.0x%" PRIx32, layout->msrs[i]);
		layout->fields[layout->count++] = (struct state_field){
			.name = name,
			.type = STATE_U64,
			.offset = (uint32_t)(offsetof(struct vcpu_state, msrs) +
					     i * sizeof(uint64_t)),
			.size = sizeof(uint64_t),
			.since = 1,
		};
		name += NAME_SIZE;
	}
	return 0;
}

int vcpu_layout_create(struct vcpu_layout *layout, const struct kvm_vm *vm,
		       const struct x86_cpuid *cpuid, int vcpu_fd, struct error **err)
{
	int xsave = kvm_vm_capability(vm, KVM_CAP_XSAVE2), code;

	*layout = (struct vcpu_layout){
		.xsave_size = sizeof(struct kvm_xsave),
		.xsave2 = xsave > (int)sizeof(struct kvm_xsave),
		.sregs2 = kvm_vm_capability(vm, KVM_CAP_SREGS2) > 0,
		/* Without XSAVE in the guest's CPUID XCR0 is 1 for ever. */
		.xcrs = x86_cpuid_xcr0(cpuid) && kvm_vm_capability(vm, KVM_CAP_XCRS) > 0,
	};
	if (layout->xsave2)
		layout->xsave_size = (size_t)xsave;
	if (layout->xsave_size > VCPU_XSAVE_MAX)
		return error_set(
			err, -ENOTSUP,
			"this host's XSAVE area has %zu bytes, more than the %u known here",
			layout->xsave_size, VCPU_XSAVE_MAX);
	code = find_msrs(layout, vm, vcpu_fd, err);
	if (code == 0)
		code = build_fields(layout, cpuid, err);
	if (code < 0) {
		vcpu_layout_free(layout);
		return code;
	}
	layout->tsc_method = find_tsc_method(vcpu_fd);
	return 0;
}

void vcpu_layout_free(struct vcpu_layout *layout)
{
	free(layout->fields);
	free(layout->names);
	layout->fields = NULL;
	layout->names = NULL;
	layout->count = 0;
}
