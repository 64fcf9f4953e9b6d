/* SPDX-License-Identifier: Apache-2.0 */
#include "kvm_fixture.h"

#include <linux/kvm.h>
#include <sys/ioctl.h>
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
	return fixture_open_with(fixture, &(struct fixture_options){
						  .backing = RAM_BACKING_SHARED,
						  .memory = 4 << 20,
					  });
}

static bool skipped(struct error *err)
{
	print_message("skipped: %s\n", error_text(err));
	error_free(&err);
	return false;
}

bool fixture_open_with(struct fixture *fixture, const struct fixture_options *options)
{
	struct error *err = NULL;

	*fixture = (struct fixture){.exit_reason = -1};
	if (kvm_system_open(&fixture->system, &err) < 0)
		return skipped(err);
	if (ram_create(&fixture->ram, options->memory, options->backing, &err) < 0) {
		kvm_system_close(&fixture->system);
		return skipped(err);
	}
	if (kvm_vm_create(&fixture->vm, &fixture->system, &options->dirty, &err) < 0) {
		ram_destroy(fixture->ram);
		kvm_system_close(&fixture->system);
		return skipped(err);
	}
	x86_platform_enable(&fixture->vm);
	if (!options->no_slots)
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

static void write_tables(struct ram *ram, uint64_t at)
{
	uint64_t entry = (at + 0x1000) | 7;

	assert_int_equal(ram_write(ram, at, &entry, 8), 0);
	entry = (at + 0x2000) | 7;
	assert_int_equal(ram_write(ram, at + 0x1000, &entry, 8), 0);
	for (uint64_t i = 0; i < 512; i++) {
		entry = i << 21 | 0x87; /* present, writable, user, 2 MiB */
		assert_int_equal(ram_write(ram, at + 0x2000 + i * 8, &entry, 8), 0);
	}
}

void fixture_start_user(struct fixture *fixture, const void *code, size_t size)
{
	const struct kvm_segment data = {.limit = 0xffffffff,
					 .selector = 0x2b,
					 .type = 3,
					 .s = 1,
					 .dpl = 3,
					 .present = 1,
					 .db = 1,
					 .g = 1};
	struct kvm_segment text = data;
	struct kvm_regs regs = {.rip = FIXTURE_CODE, .rflags = 2};
	struct kvm_sregs sregs;

	fixture_start(fixture, code, size);
	write_tables(fixture->ram, FIXTURE_CODE + 0x10000);
	text.selector = 0x33;
	text.type = 11;
	text.l = 1;
	text.db = 0;
	assert_int_equal(ioctl(fixture->vcpu.fd, KVM_GET_SREGS, &sregs), 0);
	sregs.cr0 = 0x80010033;
	sregs.cr3 = FIXTURE_CODE + 0x10000;
	sregs.cr4 = 0x620;
	sregs.efer = 0x500;
	sregs.cs = text;
	sregs.ds = sregs.es = sregs.fs = sregs.gs = sregs.ss = data;
	assert_int_equal(ioctl(fixture->vcpu.fd, KVM_SET_SREGS, &sregs), 0);
	assert_int_equal(ioctl(fixture->vcpu.fd, KVM_SET_REGS, &regs), 0);
}

int fixture_command(struct fixture *fixture, unsigned int bits)
{
	kvm_vcpus_tell(&fixture->vcpu, 1, bits);
	return kvm_vcpus_wait(&fixture->vcpu, 1, clock_us() + 5000000);
}
