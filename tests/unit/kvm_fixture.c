/* SPDX-License-Identifier: Apache-2.0 */
#include "kvm_fixture.h"

#include "arch/x86/pvh.h"

static void pio(void *opaque, uint16_t port, bool write, void *data, unsigned int size)
{
	struct fixture *fixture = opaque;
	uint64_t value = 0;

	if (write) {
		memcpy(&value, data, size);
		fixture->last_value = value;
		fixture->last_port = port;
	} else {
		value = fixture->answer;
		memcpy(data, &value, size);
	}
	fixture->exits++;
}

static void mmio(void *opaque, uint64_t gpa, bool write, void *data, unsigned int size)
{
	pio(opaque, (uint16_t)gpa, write, data, size);
}

static int command(struct kvm_vcpu *vcpu, unsigned int bits)
{
	struct fixture *fixture = vcpu->opaque;
	int code = 0;

	if (bits & KVM_VCPU_RESET)
		code = x86_vcpu_load(&fixture->state, fixture->state.fresh, false);
	if (code == 0 && (bits & KVM_VCPU_LOAD))
		code = x86_vcpu_load(&fixture->state, fixture->state.state, true);
	if (code == 0 && (bits & KVM_VCPU_SAVE))
		code = x86_vcpu_save(&fixture->state, fixture->state.state);
	if (bits & (KVM_VCPU_RESET | KVM_VCPU_SAVE))
		x86_vcpu_ran(&fixture->state);
	return code;
}

static void exited(struct kvm_vcpu *vcpu, enum kvm_vcpu_exit reason)
{
	struct fixture *fixture = vcpu->opaque;

	fixture->exit_reason = (int)reason;
}

static const struct kvm_vcpu_ops ops = {pio, mmio, command, exited};

bool fixture_open(struct fixture *fixture)
{
	struct error *err = NULL;

	*fixture = (struct fixture){.exit_reason = -1};
	if (kvm_system_open(&fixture->system, &err) < 0) {
		print_message("skipped: %s\n", error_text(err));
		error_free(&err);
		return false;
	}
	assert_ok(kvm_vm_create(&fixture->vm, &fixture->system, NULL, &err), err);
	x86_platform_enable(&fixture->vm);
	assert_ok(ram_create(&fixture->ram, 4 << 20, RAM_BACKING_SHARED, &err), err);
	assert_ok(ram_attach(fixture->ram, &fixture->vm.slots, &err), err);
	assert_ok(x86_cpuid_init(&fixture->cpuid, &fixture->system, "host", &err), err);
	assert_ok(kvm_vcpu_create(&fixture->vcpu, &fixture->vm, 0, &ops, fixture, &err), err);
	assert_ok(x86_cpuid_apply(&fixture->cpuid, fixture->vcpu.fd, 0, 1, &err), err);
	assert_ok(vcpu_layout_create(&fixture->layout, &fixture->vm, &fixture->cpuid,
				     fixture->vcpu.fd, &err),
		  err);
	assert_ok(x86_vcpu_create(&fixture->state, &fixture->layout, fixture->vcpu.fd, 0, &err),
		  err);
	assert_ok(kvm_vcpu_start(&fixture->vcpu, &err), err);
	return true;
}

void fixture_close(struct fixture *fixture)
{
	kvm_vcpu_destroy(&fixture->vcpu);
	x86_vcpu_destroy(&fixture->state);
	vcpu_layout_free(&fixture->layout);
	ram_destroy(fixture->ram);
	kvm_vm_destroy(&fixture->vm);
	kvm_system_close(&fixture->system);
}

void fixture_start(struct fixture *fixture, const void *code, size_t size)
{
	const struct pvh_kernel kernel = {.entry = FIXTURE_CODE};

	assert_int_equal(ram_write(fixture->ram, FIXTURE_CODE, code, size), 0);
	pvh_set_entry(&kernel, fixture->state.fresh);
	assert_int_equal(fixture_command(fixture, KVM_VCPU_RESET), 0);
}

int fixture_command(struct fixture *fixture, unsigned int bits)
{
	kvm_vcpus_tell(&fixture->vcpu, 1, bits);
	return kvm_vcpus_wait(&fixture->vcpu, 1, clock_us() + 5000000);
}
