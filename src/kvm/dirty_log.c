/* SPDX-License-Identifier: Apache-2.0 */
/* The plain dirty log: every KVM has it. */
#include <errno.h>
#include <linux/kvm.h>
#include <sys/ioctl.h>
#include "kvm/dirty.h"

static int enable(struct kvm_dirty *dirty, const struct kvm_system *system, struct error **err)
{
	return 0;
}

static int harvest(struct kvm_dirty *dirty, struct kvm_slot *slot, uint64_t *scratch,
		   kvm_dirty_sink *sink, void *opaque)
{
	struct kvm_dirty_log log = {.slot = slot->id, .dirty_bitmap = scratch};

	if (ioctl(dirty->vm_fd, KVM_GET_DIRTY_LOG, &log) != 0)
		return -errno;
	sink(opaque, 0, scratch, BITMAP_WORDS(kvm_slot_pages(slot)));
	return 0;
}

const struct kvm_dirty_ops kvm_dirty_log_ops = {
	.kind = KVM_DIRTY_BITMAP,
	.enable = enable,
	.harvest = harvest,
};
