/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the back end; what all of them have in common. */
#include "kvm/dirty.h"

#include <errno.h>
#include <string.h>

static const char *const names[] = {
	[KVM_DIRTY_AUTO] = "auto",
	[KVM_DIRTY_BITMAP] = "bitmap",
	[KVM_DIRTY_MANUAL] = "manual",
	[KVM_DIRTY_RING] = "ring",
};

const char *kvm_dirty_kind_name(enum kvm_dirty_kind kind)
{
	return names[kind];
}

int kvm_dirty_kind_parse(const char *text, enum kvm_dirty_kind *kind, struct error **err)
{
	for (int i = KVM_DIRTY_AUTO; i <= KVM_DIRTY_MANUAL; i++)
		if (strcmp(text, names[i]) == 0) {
			*kind = (enum kvm_dirty_kind)i;
			return 0;
		}
	return error_set(err, -EINVAL, "'%s' is no kind of dirty log; give auto, bitmap or manual",
			 text);
}

static const struct kvm_dirty_ops *choose(const struct kvm_system *system, enum kvm_dirty_kind kind)
{
	switch (kind) {
	case KVM_DIRTY_BITMAP:
		return &kvm_dirty_log_ops;
	case KVM_DIRTY_MANUAL:
		return &kvm_dirty_manual_ops;
	case KVM_DIRTY_RING:
		return &kvm_dirty_ring_ops;
	default:
		return system->manual_dirty_protect ? &kvm_dirty_manual_ops : &kvm_dirty_log_ops;
	}
}

int kvm_dirty_init(struct kvm_dirty *dirty, int vm_fd, struct kvm_slots *slots,
		   const struct kvm_system *system, const struct kvm_dirty_options *options,
		   struct error **err)
{
	*dirty = (struct kvm_dirty){.vm_fd = vm_fd, .slots = slots};
	dirty->ops = choose(system, options ? options->kind : KVM_DIRTY_AUTO);
	dirty->ring_entries = options ? options->ring_entries : 0;
	pthread_mutex_init(&dirty->ring_lock, NULL);
	return dirty->ops->enable(dirty, system, err);
}

void kvm_dirty_free(struct kvm_dirty *dirty)
{
	if (dirty->ops)
		pthread_mutex_destroy(&dirty->ring_lock);
	dirty->ops = NULL;
}

int kvm_dirty_start(struct kvm_dirty *dirty, struct kvm_slot *slot, struct error **err)
{
	int code = dirty->ops->prepare ? dirty->ops->prepare(dirty, slot) : 0;

	if (code < 0)
		return error_set_errno(err, code, "cannot prepare the dirty log");
	return kvm_slots_set_logging(dirty->slots, slot, true, err);
}

int kvm_dirty_stop(struct kvm_dirty *dirty, struct kvm_slot *slot, struct error **err)
{
	return kvm_slots_set_logging(dirty->slots, slot, false, err);
}

int kvm_dirty_sync(struct kvm_dirty *dirty, bool stopped)
{
	return dirty->ops->sync ? dirty->ops->sync(dirty, stopped) : 0;
}

int kvm_dirty_harvest(struct kvm_dirty *dirty, struct kvm_slot *slot, uint64_t *scratch,
		      kvm_dirty_sink *sink, void *opaque)
{
	return dirty->ops->harvest(dirty, slot, scratch, sink, opaque);
}

int kvm_dirty_clear(struct kvm_dirty *dirty, struct kvm_slot *slot, uint64_t first, uint64_t count,
		    const uint64_t *seen)
{
	uint64_t pages = kvm_slot_pages(slot);

	if (!dirty->ops->clear)
		return 0;
	/* A slot has fewer than 2^31 pages (KVM_MEM_MAX_NR_PAGES), so 32 bits hold any count. */
	if (count > INT32_MAX || first % 64 || first >= pages || count > pages - first ||
	    (count % 64 && first + count != pages))
		return -EINVAL;
	return count ? dirty->ops->clear(dirty, slot, first, (uint32_t)count, seen) : 0;
}
