/* SPDX-License-Identifier: Apache-2.0 */
#include "kvm/dirty.h"

#include <errno.h>
#include <linux/kvm.h>
#include <sys/ioctl.h>

int kvm_dirty_init(struct kvm_dirty *dirty, int vm_fd, const struct kvm_system *system,
		   struct error **err)
{
	struct kvm_enable_cap cap = {
		.cap = KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
		.args = {KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE},
	};

	*dirty = (struct kvm_dirty){.vm_fd = vm_fd};
	if (!system->manual_dirty_protect)
		return 0;
	if (system->initially_set)
		cap.args[0] |= KVM_DIRTY_LOG_INITIALLY_SET;
	if (ioctl(vm_fd, KVM_ENABLE_CAP, &cap) != 0)
		return error_set_errno(err, -errno,
				       "KVM offers manual dirty log protection but refuses it");
	dirty->manual = true;
	dirty->initially_set = system->initially_set;
	return 0;
}

int kvm_dirty_harvest(const struct kvm_dirty *dirty, const struct kvm_slot *slot, uint64_t *bitmap)
{
	struct kvm_dirty_log log = {.slot = slot->id, .dirty_bitmap = bitmap};

	return ioctl(dirty->vm_fd, KVM_GET_DIRTY_LOG, &log) == 0 ? 0 : -errno;
}

int kvm_dirty_clear(const struct kvm_dirty *dirty, const struct kvm_slot *slot, uint64_t first,
		    uint64_t count, const uint64_t *seen)
{
	struct kvm_clear_dirty_log log = {
		.slot = slot->id,
		.first_page = first,
		.dirty_bitmap = (void *)(uintptr_t)(seen + first / 64),
	};

	if (!dirty->manual)
		return 0;
	/* A slot has fewer than 2^31 pages (KVM_MEM_MAX_NR_PAGES), so num_pages holds any count. */
	if (count > INT32_MAX || first % 64 || first >= slot->size >> 12 ||
	    count > (slot->size >> 12) - first || (count % 64 && first + count != slot->size >> 12))
		return -EINVAL;

	log.num_pages = (uint32_t)count;
	return ioctl(dirty->vm_fd, KVM_CLEAR_DIRTY_LOG, &log) == 0 ? 0 : -errno;
}
