/* SPDX-License-Identifier: Apache-2.0 */
/* The dirty log with manual protect: reading it and write-protecting again are two calls. */
#include <errno.h>
#include <linux/kvm.h>
#include <sys/ioctl.h>
#include "kvm/dirty.h"

static int enable(struct kvm_dirty *dirty, const struct kvm_system *system, struct error **err)
{
	struct kvm_enable_cap cap = {
		.cap = KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
		.args = {KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE},
	};

	if (!system->manual_dirty_protect)
		return error_set(err, -EOPNOTSUPP,
				 "this host's KVM has no manual dirty log protection "
				 "(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, Linux 5.2); use --dirty-log "
				 "bitmap");
	if (system->initially_set)
		cap.args[0] |= KVM_DIRTY_LOG_INITIALLY_SET;
	if (ioctl(dirty->vm_fd, KVM_ENABLE_CAP, &cap) != 0)
		return error_set_errno(err, -errno,
				       "KVM offers manual dirty log protection but refuses it");
	dirty->manual = true;
	dirty->initially_set = system->initially_set;
	return 0;
}

static int clear(struct kvm_dirty *dirty, struct kvm_slot *slot, uint64_t first, uint32_t count,
		 const uint64_t *seen)
{
	struct kvm_clear_dirty_log log = {
		.slot = slot->id,
		.first_page = first,
		.num_pages = count,
		.dirty_bitmap = (void *)(uintptr_t)seen,
	};

	return ioctl(dirty->vm_fd, KVM_CLEAR_DIRTY_LOG, &log) == 0 ? 0 : -errno;
}

static int harvest(struct kvm_dirty *dirty, struct kvm_slot *slot, uint64_t *scratch,
		   kvm_dirty_sink *sink, void *opaque)
{
	return kvm_dirty_log_ops.harvest(dirty, slot, scratch, sink, opaque);
}

const struct kvm_dirty_ops kvm_dirty_manual_ops = {
	.kind = KVM_DIRTY_MANUAL,
	.enable = enable,
	.harvest = harvest,
	.clear = clear,
};
