/* SPDX-License-Identifier: Apache-2.0 */
/* Puts the machine together: VM, memory, vCPUs, devices, in this order; and takes it apart. */
#include <errno.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include "arch/x86/probe.h"
#include "base/log.h"
#include "machine/internal.h"

static int build_memory(struct machine *machine, struct error **err)
{
	int code;

	code = ram_create(&machine->ram, machine->config.memory, machine->config.backing, err);
	if (code == 0)
		code = ram_attach(machine->ram, &machine->vm.slots, err);
	if (code == 0)
		code = dirty_tracker_init(&machine->tracker, machine->ram, &machine->vm.dirty,
					  &machine->vm.slots, err);
	return code;
}

/* A guest that came from a host with another TSC rate keeps its rate, if this host can give it. */
static int set_tsc_rate(struct machine *machine, int vcpu_fd, struct error **err)
{
	uint32_t khz = x86_cpuid_get(&machine->cpuid, 0x40000010, 0, 0);
	int here = ioctl(vcpu_fd, KVM_GET_TSC_KHZ, 0);

	if (khz == 0 && !machine->config.incoming) {
		x86_cpuid_set_tsc_khz(&machine->cpuid, here > 0 ? (uint32_t)here : 0);
		return 0;
	}
	if (here <= 0 || khz == 0 || x86_tsc_rates_agree(khz, (uint32_t)here))
		return 0;
	if (ioctl(vcpu_fd, KVM_SET_TSC_KHZ, khz) != 0)
		return error_set_errno(
			err, -errno,
			"tsc.khz: the guest's time stamp counter runs at %u kHz, this "
			"host's at %d, and KVM cannot scale it",
			khz, here);
	return 0;
}

static int build_vcpu(struct machine *machine, unsigned int index, struct error **err)
{
	struct kvm_vcpu *vcpu = &machine->vcpus[index];
	int code;

	code = kvm_vcpu_create(vcpu, &machine->vm, index, &machine_vcpu_ops, machine, err);
	if (code < 0)
		return code;
	machine->vcpu_count++;
	code = set_tsc_rate(machine, vcpu->fd, err);
	if (code == 0)
		code = x86_cpuid_apply(&machine->cpuid, vcpu->fd, index, machine->config.cpus, err);
	if (code == 0 && index == 0)
		code = vcpu_layout_create(&machine->layout, &machine->vm, &machine->cpuid, vcpu->fd,
					  err);
	if (code == 0)
		code = x86_vcpu_create(&machine->states[index], &machine->layout, vcpu->fd, index,
				       err);
	return code;
}

static int build_vcpus(struct machine *machine, struct error **err)
{
	unsigned int cpus = machine->config.cpus;
	int code = 0;

	if (cpus > machine->system.max_vcpus)
		return error_set(err, -EINVAL,
				 "%u vCPUs are not possible: this host's KVM allows %u", cpus,
				 machine->system.max_vcpus);
	machine->vcpus = calloc(cpus, sizeof(*machine->vcpus));
	machine->states = calloc(cpus, sizeof(*machine->states));
	if (!machine->vcpus || !machine->states)
		return error_set(err, -ENOMEM, "no memory for %u vCPUs", cpus);
	for (unsigned int i = 0; code == 0 && i < cpus; i++)
		code = build_vcpu(machine, i, err);
	if (code == 0 && machine->boot.kernel.size)
		pvh_set_entry(&machine->boot.kernel, machine->states[0].fresh);
	if (code == 0)
		code = x86_platform_init(&machine->platform, &machine->vm, machine->vcpus[0].fd,
					 err);
	for (unsigned int i = 0; code == 0 && i < cpus; i++)
		code = kvm_vcpu_start(&machine->vcpus[i], err);
	return code;
}

static void power_requested(void *opaque, enum power_request request)
{
	machine_request(opaque, request == POWER_OFF ? REQUEST_SHUTDOWN : REQUEST_RESET);
}

static int build_devices(struct machine *machine, struct error **err)
{
	int code;

	code = power_attach(&machine->power, &machine->vm, &machine->ports, power_requested,
			    machine, err);
	if (code == 0)
		code = cmos_attach(&machine->cmos, &machine->ports, err);
	if (code == 0)
		code = movegen_attach(&machine->movegen, &machine->ports, err);
	return code;
}

int machine_attach_serial(struct machine *machine, struct error **err)
{
	const char *where = machine->config.serial ? machine->config.serial : "none";

	machine->serial_attached = true;
	return serial_attach(&machine->serial, &machine->vm, &machine->ports, where, err);
}

static void list_objects(struct machine *machine)
{
	unsigned int n = 0;

	for (unsigned int i = 0; i < machine->vcpu_count; i++)
		machine->objects[n++] = (struct state_object){
			.name = "vcpu",
			.instance = i,
			.fields = machine->layout.fields,
			.count = machine->layout.count,
			.data = machine->states[i].state,
		};
	x86_platform_objects(&machine->platform, &machine->objects[n]);
	n += X86_PLATFORM_OBJECTS;
	machine->objects[n++] = serial_object(&machine->serial);
	machine->objects[n++] = power_object(&machine->power);
	machine->objects[n++] = cmos_object(&machine->cmos);
	machine->objects[n++] = movegen_object(&machine->movegen);
	machine->object_count = n;
}

int machine_build(struct machine *machine, struct error **err)
{
	int code;

	code = kvm_vm_create(&machine->vm, &machine->system, &machine->config.dirty, err);
	if (code < 0)
		return code;
	x86_platform_enable(&machine->vm);
	code = build_memory(machine, err);
	if (code == 0 && machine->boot.kernel.size)
		code = pvh_check(&machine->boot.kernel, machine->ram, machine->boot.initrd_size,
				 machine->boot.cmdline, err);
	if (code == 0)
		code = build_devices(machine, err);
	if (code == 0)
		code = build_vcpus(machine, err);
	if (code == 0)
		code = x86_clock_read(&machine->platform, false);
	if (code < 0) {
		machine_unbuild(machine);
		return code;
	}
	list_objects(machine);
	machine->built = true;
	log_debug("machine built: %u vCPUs, %llu bytes of memory, %u state objects",
		  machine->vcpu_count, (unsigned long long)machine->config.memory,
		  machine->object_count);
	return 0;
}

void machine_unbuild(struct machine *machine)
{
	machine->built = false;
	for (unsigned int i = 0; i < machine->vcpu_count; i++) {
		kvm_vcpu_destroy(&machine->vcpus[i]);
		x86_vcpu_destroy(&machine->states[i]);
	}
	machine->vcpu_count = 0;
	free(machine->vcpus);
	free(machine->states);
	machine->vcpus = NULL;
	machine->states = NULL;
	vcpu_layout_free(&machine->layout);
	bus_free(&machine->mmio);
	dirty_tracker_free(&machine->tracker);
	ram_destroy(machine->ram);
	machine->ram = NULL;
	kvm_vm_destroy(&machine->vm);
}
