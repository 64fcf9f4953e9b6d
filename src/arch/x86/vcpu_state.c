/* SPDX-License-Identifier: Apache-2.0 */
#include "arch/x86/vcpu_state.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <x86intrin.h>

#define MSR_TSC 0x10u

int x86_vcpu_create(struct x86_vcpu *vcpu, const struct vcpu_layout *layout, int vcpu_fd,
		    unsigned int index, struct error **err)
{
	int code;

	*vcpu = (struct x86_vcpu){.layout = layout, .fd = vcpu_fd};
	vcpu->state = aligned_alloc(64, sizeof(*vcpu->state));
	vcpu->fresh = aligned_alloc(64, sizeof(*vcpu->fresh));
	vcpu->loaded = aligned_alloc(64, sizeof(*vcpu->loaded));
	vcpu->msrs =
		calloc(1, sizeof(*vcpu->msrs) + layout->msr_count * sizeof(vcpu->msrs->entries[0]));
	if (!vcpu->state || !vcpu->fresh || !vcpu->loaded || !vcpu->msrs) {
		x86_vcpu_destroy(vcpu);
		return error_set(err, -ENOMEM, "no memory for the state of vCPU %u", index);
	}
	memset(vcpu->fresh, 0, sizeof(*vcpu->fresh));
	memset(vcpu->loaded, 0, sizeof(*vcpu->loaded));
	code = x86_vcpu_save(vcpu, vcpu->fresh);
	if (code < 0) {
		x86_vcpu_error(vcpu, index, code, err);
		x86_vcpu_destroy(vcpu);
		return code;
	}
	memcpy(vcpu->state, vcpu->fresh, sizeof(*vcpu->state));
	return 0;
}

void x86_vcpu_destroy(struct x86_vcpu *vcpu)
{
	free(vcpu->state);
	free(vcpu->fresh);
	free(vcpu->loaded);
	free(vcpu->msrs);
	*vcpu = (struct x86_vcpu){.fd = -1};
}

static int part(struct x86_vcpu *vcpu, const char *name, int result)
{
	if (result >= 0)
		return 0;
	vcpu->failed = name;
	return errno ? -errno : -EIO;
}

static int save_sregs(struct x86_vcpu *vcpu, struct vcpu_state *state)
{
	struct kvm_sregs old;
	int code;

	if (vcpu->layout->sregs2)
		return part(vcpu, "segment and control registers",
			    ioctl(vcpu->fd, KVM_GET_SREGS2, &state->sregs));
	code = part(vcpu, "segment and control registers", ioctl(vcpu->fd, KVM_GET_SREGS, &old));
	/* The two begin alike, up to apic_base. */
	if (code == 0) {
		memcpy(&state->sregs, &old, offsetof(struct kvm_sregs2, flags));
		state->sregs.flags = 0;
	}
	return code;
}

static int load_sregs(struct x86_vcpu *vcpu, const struct vcpu_state *state)
{
	struct kvm_sregs old = {0};

	if (vcpu->layout->sregs2)
		return part(vcpu, "segment and control registers",
			    ioctl(vcpu->fd, KVM_SET_SREGS2, &state->sregs));
	memcpy(&old, &state->sregs, offsetof(struct kvm_sregs2, flags));
	if (state->events.interrupt.injected && !state->events.interrupt.soft)
		old.interrupt_bitmap[state->events.interrupt.nr / 64] |=
			UINT64_C(1) << (state->events.interrupt.nr % 64);
	return part(vcpu, "segment and control registers", ioctl(vcpu->fd, KVM_SET_SREGS, &old));
}

static int save_xcr0(struct x86_vcpu *vcpu, struct vcpu_state *state)
{
	struct kvm_xcrs xcrs;
	int code;

	state->xcr0 = 1;
	if (!vcpu->layout->xcrs)
		return 0;
	code = part(vcpu, "xcr0", ioctl(vcpu->fd, KVM_GET_XCRS, &xcrs));
	for (uint32_t i = 0; code == 0 && i < xcrs.nr_xcrs && i < KVM_MAX_XCRS; i++)
		if (xcrs.xcrs[i].xcr == 0)
			state->xcr0 = xcrs.xcrs[i].value;
	return code;
}

static int load_xcr0(struct x86_vcpu *vcpu, const struct vcpu_state *state)
{
	struct kvm_xcrs xcrs = {.nr_xcrs = 1, .xcrs = {{.xcr = 0, .value = state->xcr0}}};

	if (!vcpu->layout->xcrs)
		return 0;
	return part(vcpu, "xcr0", ioctl(vcpu->fd, KVM_SET_XCRS, &xcrs));
}

static void fill_msr_indices(struct x86_vcpu *vcpu)
{
	vcpu->msrs->nmsrs = vcpu->layout->msr_count;
	for (unsigned int i = 0; i < vcpu->layout->msr_count; i++)
		vcpu->msrs->entries[i].index = vcpu->layout->msrs[i];
}

static int msr_result(struct x86_vcpu *vcpu, int result)
{
	if (result < 0)
		return part(vcpu, "MSRs", result);
	if ((unsigned int)result == vcpu->layout->msr_count)
		return 0;
	vcpu->failed = "msr";
	vcpu->failed_msr = vcpu->layout->msrs[result];
	return -EINVAL;
}

static int save_msrs(struct x86_vcpu *vcpu, struct vcpu_state *state)
{
	int code;

	fill_msr_indices(vcpu);
	code = msr_result(vcpu, ioctl(vcpu->fd, KVM_GET_MSRS, vcpu->msrs));
	for (unsigned int i = 0; code == 0 && i < vcpu->layout->msr_count; i++)
		state->msrs[i] = vcpu->msrs->entries[i].data;
	return code;
}

static int load_msrs(struct x86_vcpu *vcpu, const struct vcpu_state *state)
{
	fill_msr_indices(vcpu);
	for (unsigned int i = 0; i < vcpu->layout->msr_count; i++)
		vcpu->msrs->entries[i].data = state->msrs[i];
	return msr_result(vcpu, ioctl(vcpu->fd, KVM_SET_MSRS, vcpu->msrs));
}

static int transfer_tsc_offset(struct x86_vcpu *vcpu, unsigned long request, uint64_t *offset)
{
	struct kvm_device_attr attribute = {
		.group = KVM_VCPU_TSC_CTRL,
		.attr = KVM_VCPU_TSC_OFFSET,
		.addr = (uint64_t)(uintptr_t)offset,
	};

	return part(vcpu, "tsc_offset", ioctl(vcpu->fd, request, &attribute));
}

static int transfer_tsc(struct x86_vcpu *vcpu, unsigned long request, uint64_t *value)
{
	struct {
		struct kvm_msrs header;
		struct kvm_msr_entry entry;
	} one = {.header.nmsrs = 1, .entry = {.index = MSR_TSC, .data = *value}};
	int result = ioctl(vcpu->fd, request, &one);

	if (result != 1)
		return part(vcpu, "tsc", -1);
	*value = one.entry.data;
	return 0;
}

static int load_tsc(struct x86_vcpu *vcpu, const struct vcpu_state *state)
{
	uint64_t value;

	switch (vcpu->layout->tsc_method) {
	case VCPU_TSC_OFFSET:
		value = state->tsc_offset + (uint64_t)vcpu->tsc_adjust;
		return transfer_tsc_offset(vcpu, KVM_SET_DEVICE_ATTR, &value);
	case VCPU_TSC_VALUE:
		value = state->tsc - vcpu->saved_host_tsc + (uint64_t)vcpu->tsc_adjust + __rdtsc();
		return transfer_tsc(vcpu, KVM_SET_MSRS, &value);
	case VCPU_TSC_NONE:
		break;
	}
	return 0;
}

int x86_vcpu_save(struct x86_vcpu *vcpu, struct vcpu_state *state)
{
	struct kvm_mp_state mp_state;
	int code;

	errno = 0;
	/* First, since reading it may take a pending INIT or SIPI, which changes the others. */
	code = part(vcpu, "mp_state", ioctl(vcpu->fd, KVM_GET_MP_STATE, &mp_state));
	if (code < 0)
		return code;
	state->mp_state = mp_state.mp_state;
	code = part(vcpu, "registers", ioctl(vcpu->fd, KVM_GET_REGS, &state->regs));
	if (code == 0)
		code = save_sregs(vcpu, state);
	if (code == 0)
		code = part(vcpu, "xsave",
			    ioctl(vcpu->fd, vcpu->layout->xsave2 ? KVM_GET_XSAVE2 : KVM_GET_XSAVE,
				  state->xsave));
	if (code == 0)
		code = save_xcr0(vcpu, state);
	if (code == 0)
		code = save_msrs(vcpu, state);
	if (code == 0)
		code = part(vcpu, "lapic", ioctl(vcpu->fd, KVM_GET_LAPIC, &state->lapic));
	if (code == 0)
		code = part(vcpu, "events", ioctl(vcpu->fd, KVM_GET_VCPU_EVENTS, &state->events));
	if (code == 0)
		code = part(vcpu, "debug registers",
			    ioctl(vcpu->fd, KVM_GET_DEBUGREGS, &state->debugregs));
	if (code == 0 && vcpu->layout->tsc_method == VCPU_TSC_OFFSET)
		code = transfer_tsc_offset(vcpu, KVM_GET_DEVICE_ATTR, &state->tsc_offset);
	if (code == 0)
		code = transfer_tsc(vcpu, KVM_GET_MSRS, &state->tsc);
	return code;
}

void x86_vcpu_ran(struct x86_vcpu *vcpu)
{
	vcpu->loaded_valid = false;
}

/* A part of the state is as it was loaded last: an ioctl saved. */
#define SAME(vcpu, state, member)                                                                  \
	((vcpu)->loaded_valid &&                                                                   \
	 memcmp(&(state)->member, &(vcpu)->loaded->member, sizeof((state)->member)) == 0)

/*
 * The order matters: control registers before XCR0 (CR4.OSXSAVE), the APIC (which apic_base
 * enables) before the MSRs (TSC deadline), the registers before the events (setting them takes a
 * pending exception away).
 */
static int load_parts(struct x86_vcpu *vcpu, const struct vcpu_state *state, bool with_tsc)
{
	struct kvm_mp_state mp_state = {.mp_state = state->mp_state};
	int code = 0;

	if (!SAME(vcpu, state, sregs))
		code = load_sregs(vcpu, state);
	if (code == 0 && !SAME(vcpu, state, xcr0))
		code = load_xcr0(vcpu, state);
	if (code == 0 && !SAME(vcpu, state, xsave))
		code = part(vcpu, "xsave", ioctl(vcpu->fd, KVM_SET_XSAVE, state->xsave));
	if (code == 0 && with_tsc)
		code = load_tsc(vcpu, state);
	if (code == 0)
		code = part(vcpu, "lapic", ioctl(vcpu->fd, KVM_SET_LAPIC, &state->lapic));
	if (code == 0)
		code = load_msrs(vcpu, state);
	if (code == 0 && !SAME(vcpu, state, debugregs))
		code = part(vcpu, "debug registers",
			    ioctl(vcpu->fd, KVM_SET_DEBUGREGS, &state->debugregs));
	if (code == 0 && !SAME(vcpu, state, mp_state))
		code = part(vcpu, "mp_state", ioctl(vcpu->fd, KVM_SET_MP_STATE, &mp_state));
	if (code == 0)
		code = part(vcpu, "registers", ioctl(vcpu->fd, KVM_SET_REGS, &state->regs));
	if (code == 0)
		code = part(vcpu, "events", ioctl(vcpu->fd, KVM_SET_VCPU_EVENTS, &state->events));
	return code;
}

int x86_vcpu_load(struct x86_vcpu *vcpu, const struct vcpu_state *state, bool with_tsc)
{
	int code;

	errno = 0;
	code = load_parts(vcpu, state, with_tsc);
	vcpu->loaded_valid = code == 0;
	if (code == 0)
		memcpy(vcpu->loaded, state, sizeof(*state));
	return code;
}

int x86_vcpu_error(const struct x86_vcpu *vcpu, unsigned int index, int code, struct error **err)
{
	if (vcpu->failed && strcmp(vcpu->failed, "msr") == 0)
		return error_set(err, code, "vCPU %u: KVM refuses the value of msr.0x%" PRIx32,
				 index, vcpu->failed_msr);
	return error_set_errno(err, code, "vCPU %u: KVM refuses the %s", index,
			       vcpu->failed ? vcpu->failed : "state");
}
