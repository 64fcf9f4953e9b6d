/* SPDX-License-Identifier: Apache-2.0 */
#include "kvm/system.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/kvm.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/cleanup.h"

#define KVM_PATH "/dev/kvm"

static int capability(int fd, int number)
{
	int value = ioctl(fd, KVM_CHECK_EXTENSION, number);

	return value < 0 ? 0 : value;
}

static int open_failed(int code, struct error **err)
{
	struct stat status;
	struct group *group;

	switch (code) {
	case ENOENT:
	case ENXIO:
	case ENODEV:
		return error_set(err, -code,
				 "there is no " KVM_PATH
				 ": load the kvm_intel or kvm_amd module; inside a virtual machine "
				 "its host must allow nested virtualisation");
	case EACCES:
	case EPERM:
		if (stat(KVM_PATH, &status) != 0)
			break;
		group = getgrgid(status.st_gid);
		if (!(status.st_mode & S_IWGRP) || !(status.st_mode & S_IRGRP))
			return error_set(err, -code,
					 "no right to open " KVM_PATH
					 ": only its owner may; give it to a group and join "
					 "that. As root: chgrp kvm " KVM_PATH
					 " && chmod 660 " KVM_PATH
					 " && usermod -aG kvm USER, then log in again");
		return error_set(err, -code,
				 "no right to open " KVM_PATH
				 ": it belongs to the group \"%s\"; join it (as root: usermod -aG "
				 "%s USER, then log in again)",
				 group ? group->gr_name : "?", group ? group->gr_name : "GROUP");
	default:
		break;
	}
	return error_set_errno(err, -code, "cannot open " KVM_PATH);
}

int kvm_system_open(struct kvm_system *system, struct error **err)
{
	cleanup_close int fd = -1;
	int version, size, manual;

	*system = (struct kvm_system){.fd = -1};
	fd = open(KVM_PATH, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return open_failed(errno, err);

	version = ioctl(fd, KVM_GET_API_VERSION, 0);
	if (version < 0)
		return error_set_errno(err, -errno, KVM_PATH " does not answer as KVM does");
	if (version != KVM_API_VERSION)
		return error_set(err, -ENOTSUP,
				 "the kernel's KVM speaks API version %d, version %d is needed",
				 version, KVM_API_VERSION);
	if (!capability(fd, KVM_CAP_IMMEDIATE_EXIT))
		return error_set(err, -ENOTSUP,
				 "this kernel's KVM has no KVM_CAP_IMMEDIATE_EXIT: Linux 4.13 or "
				 "later is needed");

	size = ioctl(fd, KVM_GET_VCPU_MMAP_SIZE, 0);
	if (size < (int)sizeof(struct kvm_run))
		return error_set(err, -ENOTSUP, "KVM_GET_VCPU_MMAP_SIZE says %d bytes, too few",
				 size);

	system->immediate_exit = true;
	system->run_size = (size_t)size;
	system->max_vcpus = (unsigned int)capability(fd, KVM_CAP_MAX_VCPUS);
	if (system->max_vcpus == 0)
		system->max_vcpus = 4; /* api.rst, KVM_CREATE_VCPU: what to assume */
	system->max_slots = (unsigned int)capability(fd, KVM_CAP_NR_MEMSLOTS);
	if (system->max_slots == 0)
		system->max_slots = 32;
	manual = capability(fd, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2);
	system->manual_dirty_protect = manual & KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE;
	system->initially_set =
		system->manual_dirty_protect && (manual & KVM_DIRTY_LOG_INITIALLY_SET);
	system->fd = steal_fd(&fd);
	return 0;
}

void kvm_system_close(struct kvm_system *system)
{
	if (system->fd >= 0)
		close(system->fd);
	system->fd = -1;
}
