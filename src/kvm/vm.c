/* SPDX-License-Identifier: Apache-2.0 */
#include "kvm/vm.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/kvm.h>
#include <sys/ioctl.h>
#include <unistd.h>

/*
 * Intel hosts keep four pages of their own in the guest's physical address space (api.rst,
 * KVM_SET_IDENTITY_MAP_ADDR, KVM_SET_TSS_ADDR): below the firmware area, outside RAM.
 */
#define IDENTITY_MAP_ADDRESS UINT64_C(0xfeffc000)
#define TSS_ADDRESS          UINT64_C(0xfeffd000)

static int create_vm(int system_fd, struct error **err)
{
	int fd, tries = 0;

	/* A signal that arrives while the kernel sets up its notifiers gives EINTR. */
	do {
		fd = ioctl(system_fd, KVM_CREATE_VM, 0);
	} while (fd < 0 && errno == EINTR && ++tries < 100);
	if (fd < 0)
		return error_set_errno(err, -errno, "KVM cannot create a virtual machine");
	return fd;
}

static int create_platform(struct kvm_vm *vm, struct error **err)
{
	struct kvm_pit_config pit = {.flags = KVM_PIT_SPEAKER_DUMMY};
	uint64_t identity = IDENTITY_MAP_ADDRESS;

	if (kvm_vm_capability(vm, KVM_CAP_SET_IDENTITY_MAP_ADDR) &&
	    ioctl(vm->fd, KVM_SET_IDENTITY_MAP_ADDR, &identity) != 0)
		return error_set_errno(err, -errno, "KVM_SET_IDENTITY_MAP_ADDR fails");
	if (kvm_vm_capability(vm, KVM_CAP_SET_TSS_ADDR) &&
	    ioctl(vm->fd, KVM_SET_TSS_ADDR, TSS_ADDRESS) != 0)
		return error_set_errno(err, -errno, "KVM_SET_TSS_ADDR fails");
	if (ioctl(vm->fd, KVM_CREATE_IRQCHIP, 0) != 0)
		return error_set_errno(err, -errno, "KVM cannot create its interrupt controller");
	if (ioctl(vm->fd, KVM_CREATE_PIT2, &pit) != 0)
		return error_set_errno(err, -errno, "KVM cannot create its interval timer");
	return 0;
}

int kvm_vm_create(struct kvm_vm *vm, const struct kvm_system *system,
		  const struct kvm_dirty_options *dirty, struct error **err)
{
	int code;

	*vm = (struct kvm_vm){.system = system, .fd = -1};
	code = create_vm(system->fd, err);
	if (code < 0)
		return code;
	vm->fd = code;
	code = kvm_slots_init(&vm->slots, vm->fd, system->max_slots, err);
	if (code < 0) {
		close(vm->fd);
		vm->fd = -1;
		return code;
	}
	code = create_platform(vm, err);
	if (code == 0)
		code = kvm_dirty_init(&vm->dirty, vm->fd, &vm->slots, system, dirty, err);
	if (code < 0)
		kvm_vm_destroy(vm);
	return code;
}

void kvm_vm_destroy(struct kvm_vm *vm)
{
	if (vm->fd < 0)
		return;
	kvm_dirty_free(&vm->dirty);
	kvm_slots_free(&vm->slots);
	close(vm->fd);
	vm->fd = -1;
}

int kvm_vm_capability(const struct kvm_vm *vm, int number)
{
	int value = ioctl(vm->fd, KVM_CHECK_EXTENSION, number);

	return value < 0 ? 0 : value;
}

int kvm_vm_irq_line(const struct kvm_vm *vm, unsigned int gsi, bool level)
{
	struct kvm_irq_level line = {.irq = gsi, .level = level};

	return ioctl(vm->fd, KVM_IRQ_LINE, &line) == 0 ? 0 : -errno;
}

int kvm_vm_irq_pulse(const struct kvm_vm *vm, unsigned int gsi)
{
	int code = kvm_vm_irq_line(vm, gsi, true);

	return code < 0 ? code : kvm_vm_irq_line(vm, gsi, false);
}

int kvm_vm_irqfd(const struct kvm_vm *vm, int eventfd, unsigned int gsi, bool assign,
		 struct error **err)
{
	struct kvm_irqfd irqfd = {
		.fd = (uint32_t)eventfd,
		.gsi = gsi,
		.flags = assign ? 0 : KVM_IRQFD_FLAG_DEASSIGN,
	};

	if (ioctl(vm->fd, KVM_IRQFD, &irqfd) != 0)
		return error_set_errno(err, -errno, "cannot %s an event descriptor %s interrupt %u",
				       assign ? "tie" : "untie", assign ? "to" : "from", gsi);
	return 0;
}

int kvm_vm_ioeventfd(const struct kvm_vm *vm, int eventfd, bool pio, uint64_t address,
		     uint32_t length, const uint64_t *match, bool assign, struct error **err)
{
	struct kvm_ioeventfd event = {
		.datamatch = match ? *match : 0,
		.addr = address,
		.len = length,
		.fd = eventfd,
		.flags = (assign ? 0u : (unsigned int)KVM_IOEVENTFD_FLAG_DEASSIGN) |
			 (pio ? (unsigned int)KVM_IOEVENTFD_FLAG_PIO : 0u) |
			 (match ? (unsigned int)KVM_IOEVENTFD_FLAG_DATAMATCH : 0u),
	};

	if (ioctl(vm->fd, KVM_IOEVENTFD, &event) != 0)
		return error_set_errno(err, -errno,
				       "cannot %s an event descriptor %s the %s address 0x%" PRIx64,
				       assign ? "tie" : "untie", assign ? "to" : "from",
				       pio ? "port" : "memory", address);
	return 0;
}
