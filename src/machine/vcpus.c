/* SPDX-License-Identifier: Apache-2.0 */
/* What a vCPU's thread asks of the machine. */
#include <errno.h>
#include "machine/internal.h"

static void pio(void *opaque, uint16_t port, bool write, void *data, unsigned int size)
{
	struct machine *machine = opaque;

	bus_access(&machine->ports, port, write, data, size);
}

static void mmio(void *opaque, uint64_t gpa, bool write, void *data, unsigned int size)
{
	struct machine *machine = opaque;

	bus_access(&machine->mmio, gpa, write, data, size);
}

static int command(struct kvm_vcpu *vcpu, unsigned int bits)
{
	struct machine *machine = vcpu->opaque;
	struct x86_vcpu *state = &machine->states[vcpu->index];
	int code = 0;

	if (bits & KVM_VCPU_RESET)
		code = x86_vcpu_load(state, state->fresh, false);
	if (code == 0 && (bits & KVM_VCPU_LOAD))
		code = x86_vcpu_load(state, state->state, true);
	if (code == 0 && (bits & KVM_VCPU_SAVE))
		code = x86_vcpu_save(state, state->state);
	/* It may go on to run, without another word to this function. */
	if (bits & (KVM_VCPU_RESET | KVM_VCPU_SAVE))
		x86_vcpu_ran(state);
	return code;
}

static void exited(struct kvm_vcpu *vcpu, enum kvm_vcpu_exit reason)
{
	struct machine *machine = vcpu->opaque;

	switch (reason) {
	case KVM_VCPU_EXIT_RESET:
		machine_request(machine, REQUEST_RESET);
		break;
	case KVM_VCPU_EXIT_SHUTDOWN:
		machine_request(machine, REQUEST_SHUTDOWN);
		break;
	case KVM_VCPU_EXIT_ERROR:
		machine->failed_vcpu = vcpu;
		machine_request(machine, REQUEST_ERROR);
		break;
	}
}

const struct kvm_vcpu_ops machine_vcpu_ops = {
	.pio = pio,
	.mmio = mmio,
	.command = command,
	.exited = exited,
};

int machine_vcpus_error(struct machine *machine, int code, struct error **err)
{
	if (code == -ETIMEDOUT)
		return error_set(err, code, "a vCPU does not stop within its time");
	for (unsigned int i = 0; i < machine->vcpu_count; i++)
		if (machine->vcpus[i].result < 0)
			return x86_vcpu_error(&machine->states[i], i, machine->vcpus[i].result,
					      err);
	return error_set_errno(err, code, "the vCPUs cannot be told to stop or go on");
}
