/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dirty ring: each vCPU has a ring, shared with KVM, in which it lists the pages it has
 * written. An entry goes from empty (0) to DIRTY by KVM, to RESET by whoever reaps it, and back to
 * empty by KVM_RESET_DIRTY_RINGS, which write-protects the page again.
 *
 * What was reaped is in the slots' `reaped` bitmaps until it is harvested. One lock covers reaping,
 * the reset and taking those bitmaps: so nobody gets to read a page between its reaping and its
 * reset, when KVM would not see it being written.
 *
 * A ring that was overrun has lost pages. On processors with hardware virtualization KVM cannot get
 * there; a KVM that emulates a guest's instructions one after the other can (PVM, and code at
 * privilege level 0). It is found out, and every harvest from then on fails: no page is missed
 * silently, and the guest runs on.
 */
#include <errno.h>
#include <linux/kvm.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/bitmap.h"
#include "base/clock.h"
#include "kvm/dirty.h"
#include "kvm/vcpu.h"

/* How long a sync waits for a vCPU to come out. What one does not bring is there at the next sync.
 */
#define CALL_OUT_US 5000u
/* Full so often in a row, and nobody has found an entry in it meanwhile (once is nothing: a sync
 * may have come first). */
#define STUCK 3u
/* Calls of the reset that may come back with nothing done. */
#define RESET_TRIES 50u

static int enable(struct kvm_dirty *dirty, const struct kvm_system *system, struct error **err)
{
	struct kvm_enable_cap cap = {.cap = KVM_CAP_DIRTY_LOG_RING_ACQ_REL};
	uint32_t entries = dirty->ring_entries;
	int most = ioctl(dirty->vm_fd, KVM_CHECK_EXTENSION, KVM_CAP_DIRTY_LOG_RING_ACQ_REL);

	if (most <= 0) {
		cap.cap = KVM_CAP_DIRTY_LOG_RING;
		most = ioctl(dirty->vm_fd, KVM_CHECK_EXTENSION, KVM_CAP_DIRTY_LOG_RING);
	}
	if (most <= 0)
		return error_set(err, -EOPNOTSUPP,
				 "this host's KVM has no dirty ring (KVM_CAP_DIRTY_LOG_RING, Linux "
				 "5.11); leave out --dirty-ring");
	if (entries < KVM_DIRTY_RING_MIN || entries > KVM_DIRTY_RING_MAX ||
	    (entries & (entries - 1)) || entries > (uint32_t)most / sizeof(struct kvm_dirty_gfn))
		return error_set(err, -EINVAL,
				 "a dirty ring of %u entries is not possible; give a power of two "
				 "from %u to %u",
				 entries, KVM_DIRTY_RING_MIN,
				 (uint32_t)most / (uint32_t)sizeof(struct kvm_dirty_gfn));
	cap.args[0] = entries * sizeof(struct kvm_dirty_gfn);
	if (ioctl(dirty->vm_fd, KVM_ENABLE_CAP, &cap) != 0)
		return error_set_errno(err, -errno, "KVM refuses dirty rings of %u entries",
				       entries);
	return 0;
}

int kvm_dirty_ring_open(struct kvm_dirty *dirty, struct kvm_dirty_ring *ring, struct kvm_vcpu *vcpu,
			struct error **err)
{
	size_t size = dirty->ring_entries * sizeof(*ring->entries);
	void *at;

	*ring = (struct kvm_dirty_ring){.vcpu = vcpu};
	if (!dirty->ops || kvm_dirty_kind(dirty) != KVM_DIRTY_RING)
		return 0;
	at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu->fd,
		  (off_t)KVM_DIRTY_LOG_PAGE_OFFSET * sysconf(_SC_PAGESIZE));
	if (at == MAP_FAILED)
		return error_set_errno(err, -errno, "cannot map the dirty ring of vCPU %u",
				       vcpu->index);
	ring->entries = at;
	ring->dirty = dirty;
	pthread_mutex_lock(&dirty->ring_lock);
	ring->following = dirty->rings;
	dirty->rings = ring;
	pthread_mutex_unlock(&dirty->ring_lock);
	return 0;
}

void kvm_dirty_ring_close(struct kvm_dirty_ring *ring)
{
	struct kvm_dirty *dirty = ring->dirty;
	struct kvm_dirty_ring **link;

	if (!dirty)
		return;
	pthread_mutex_lock(&dirty->ring_lock);
	for (link = &dirty->rings; *link != ring; link = &(*link)->following)
		;
	*link = ring->following;
	pthread_mutex_unlock(&dirty->ring_lock);
	munmap(ring->entries, dirty->ring_entries * sizeof(*ring->entries));
	ring->dirty = NULL;
}

static int prepare(struct kvm_dirty *dirty, struct kvm_slot *slot)
{
	struct page_map *map = NULL;
	int code = 0;

	if (!slot->reaped) {
		map = malloc(sizeof(*map));
		code = map ? page_map_init(map, kvm_slot_pages(slot)) : -ENOMEM;
		if (code < 0) {
			free(map);
			return code;
		}
	}
	pthread_mutex_lock(&dirty->ring_lock);
	if (!slot->reaped)
		slot->reaped = map;
	page_map_clear_all(slot->reaped);
	pthread_mutex_unlock(&dirty->ring_lock);
	return 0;
}

/* The ring is shared with KVM alone, but a number is checked before it is an index. */
static void take(struct kvm_dirty *dirty, const struct kvm_dirty_gfn *entry)
{
	/* The upper half of `slot` is the address space: 0 here. */
	struct kvm_slot *slot = kvm_slots_by_id(dirty->slots, entry->slot);

	if (slot && slot->reaped && entry->offset < kvm_slot_pages(slot))
		page_map_set(slot->reaped, entry->offset);
}

static uint32_t reap(struct kvm_dirty *dirty, struct kvm_dirty_ring *ring)
{
	uint32_t count = 0;

	for (; count < dirty->ring_entries; count++) {
		struct kvm_dirty_gfn *entry =
			&ring->entries[ring->next & (dirty->ring_entries - 1)];

		if (!(__atomic_load_n(&entry->flags, __ATOMIC_ACQUIRE) & KVM_DIRTY_GFN_F_DIRTY))
			break;
		take(dirty, entry);
		__atomic_store_n(&entry->flags, KVM_DIRTY_GFN_F_RESET, __ATOMIC_RELEASE);
		ring->next++;
	}
	atomic_fetch_add_explicit(&ring->pages, count, memory_order_relaxed);
	dirty->unreset += count;
	ring->unreset += count;
	if (ring->unreset >= dirty->ring_entries)
		dirty->overrun = true;
	return count;
}

/*
 * The kernel leaves off early when a signal waits for this thread (Linux 6.16), and says how many
 * entries it has reset. A page that was reaped and is not protected again would be written unseen,
 * so this goes on until all are. If it does not get there, entries were overwritten.
 */
static int reset(struct kvm_dirty *dirty)
{
	for (unsigned int tries = 0; dirty->unreset && tries < RESET_TRIES;) {
		int count = ioctl(dirty->vm_fd, KVM_RESET_DIRTY_RINGS, 0);

		if (count < 0 && errno != EINTR)
			return -errno;
		if (count > 0)
			dirty->unreset -=
				(uint64_t)count < dirty->unreset ? (uint64_t)count : dirty->unreset;
		else
			tries++;
	}
	if (dirty->unreset)
		dirty->overrun = true;
	dirty->unreset = 0;
	for (struct kvm_dirty_ring *ring = dirty->rings; ring; ring = ring->following)
		ring->unreset = 0;
	return 0;
}

static bool resets_any(const struct kvm_dirty *dirty)
{
	/* Twice: the first call may have been cut short by a signal. */
	return ioctl(dirty->vm_fd, KVM_RESET_DIRTY_RINGS, 0) > 0 ||
	       ioctl(dirty->vm_fd, KVM_RESET_DIRTY_RINGS, 0) > 0;
}

static void set_flags(struct kvm_dirty *dirty, struct kvm_dirty_ring *ring, uint32_t at,
		      uint32_t flags)
{
	__atomic_store_n(&ring->entries[at & (dirty->ring_entries - 1)].flags, flags,
			 __ATOMIC_RELEASE);
}

/*
 * Full, and nothing in it from `next` on: the kernel has written past its end, and where it looks
 * for entries to reset is not where they are. That place is found by trial, and half of the ring
 * given back from there, so that the vCPU runs on. What KVM says about written pages is of no use
 * any more.
 */
static void give_back(struct kvm_dirty *dirty, struct kvm_dirty_ring *ring)
{
	uint32_t at = ring->next, end = at + dirty->ring_entries;

	dirty->overrun = true;
	while (resets_any(dirty))
		;
	for (; at != end; at++) {
		set_flags(dirty, ring, at, KVM_DIRTY_GFN_F_RESET);
		if (resets_any(dirty))
			break;
		set_flags(dirty, ring, at, 0);
	}
	for (ring->next = at + 1; ring->next != at + dirty->ring_entries / 2; ring->next++)
		set_flags(dirty, ring, ring->next, KVM_DIRTY_GFN_F_RESET);
	while (resets_any(dirty))
		;
}

int kvm_dirty_ring_full(struct kvm_dirty_ring *ring)
{
	struct kvm_dirty *dirty = ring->dirty;
	uint64_t pages;
	int code;

	if (!dirty)
		return -EINVAL;
	pthread_mutex_lock(&dirty->ring_lock);
	atomic_fetch_add_explicit(&ring->full_exits, 1, memory_order_relaxed);
	reap(dirty, ring);
	code = reset(dirty);
	pages = atomic_load(&ring->pages);
	ring->stuck = pages == ring->pages_when_full ? ring->stuck + 1 : 0;
	ring->pages_when_full = pages;
	if (ring->stuck == STUCK) {
		give_back(dirty, ring);
		ring->stuck = 0;
	}
	pthread_mutex_unlock(&dirty->ring_lock);
	return code;
}

/*
 * A processor may have a log of its own (Intel's PML) that reaches the ring when it leaves the
 * guest: so all are called out, together, and then waited for.
 */
static void call_out(struct kvm_dirty *dirty)
{
	uint64_t deadline = clock_us() + CALL_OUT_US;

	for (struct kvm_dirty_ring *ring = dirty->rings; ring; ring = ring->following)
		ring->outs = kvm_vcpu_call_out(ring->vcpu);
	for (struct kvm_dirty_ring *ring = dirty->rings; ring; ring = ring->following)
		kvm_vcpu_wait_out(ring->vcpu, ring->outs, deadline);
}

/* With the vCPUs stopped nothing is reset: the entries wait for the next sync, or for their vCPU to
 * find its ring full. */
static int ring_sync(struct kvm_dirty *dirty, bool stopped)
{
	int code = 0;

	/* The list of rings changes only while the machine is built and taken apart. */
	if (!stopped)
		call_out(dirty);
	pthread_mutex_lock(&dirty->ring_lock);
	for (struct kvm_dirty_ring *ring = dirty->rings; ring; ring = ring->following)
		reap(dirty, ring);
	if (!stopped)
		code = reset(dirty);
	if (dirty->overrun)
		code = -EOVERFLOW;
	pthread_mutex_unlock(&dirty->ring_lock);
	return code;
}

/* What was not reset is kept: should the vCPUs run on after all, they write those pages unseen. */
static int harvest(struct kvm_dirty *dirty, struct kvm_slot *slot, uint64_t *scratch,
		   kvm_dirty_sink *sink, void *opaque)
{
	size_t first, count;

	pthread_mutex_lock(&dirty->ring_lock);
	if (slot->reaped) {
		page_map_for_each_block(slot->reaped, first, count)
			sink(opaque, first, &slot->reaped->words[first], count);
		if (!dirty->unreset)
			page_map_clear_all(slot->reaped);
	}
	pthread_mutex_unlock(&dirty->ring_lock);
	return 0;
}

const struct kvm_dirty_ops kvm_dirty_ring_ops = {
	.kind = KVM_DIRTY_RING,
	.enable = enable,
	.prepare = prepare,
	.sync = ring_sync,
	.harvest = harvest,
};
