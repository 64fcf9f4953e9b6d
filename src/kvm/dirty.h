/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KVM's dirty tracking, a slot at a time, behind one interface with three back ends, one file each:
 *
 * - "bitmap" (dirty_log.c), the plain log: a harvest copies the slot's log and write-protects again
 * what it reports, all in one go. There is nothing to clear.
 * - "manual" (dirty_manual.c), KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2: a harvest only copies; a page is
 *   reported again until kvm_dirty_clear() has write-protected it, which the sender does a stretch
 *   at a time, just before it reads the pages. With KVM_DIRTY_LOG_INITIALLY_SET switching the log
 * on protects nothing either: every bit is set then.
 * - "ring" (dirty_ring.c), KVM_CAP_DIRTY_LOG_RING: each vCPU lists the pages it has written in a
 *   ring; reaping moves them to a bitmap a slot and write-protects them again. There is nothing to
 *   clear.
 *
 * Which one, and why: docs/dirty-tracking.md. (Documentation/virt/kvm/api.rst, KVM_GET_DIRTY_LOG,
 * KVM_CLEAR_DIRTY_LOG, KVM_CAP_DIRTY_LOG_RING.)
 *
 * The order that loses nothing: sync, harvest, publish, clear, and only then read the pages.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "kvm/slots.h"
#include "kvm/system.h"

enum kvm_dirty_kind {
	KVM_DIRTY_AUTO, /* manual, where KVM has it; else bitmap. The ring only when asked for. */
	KVM_DIRTY_BITMAP,
	KVM_DIRTY_MANUAL,
	KVM_DIRTY_RING,
};
const char *kvm_dirty_kind_name(enum kvm_dirty_kind kind);
/* Of auto, bitmap and manual: the ring is asked for by its size. */
int kvm_dirty_kind_parse(const char *text, enum kvm_dirty_kind *kind, struct error **err);

struct kvm_dirty_options {
	enum kvm_dirty_kind kind;
	uint32_t ring_entries; /* KVM_DIRTY_RING: a power of two, KVM_DIRTY_RING_MIN to _MAX */
};

/* The kernel keeps some entries of a ring for itself, more where the processor has a log of its own
 * (64 + 512), and maps no larger ring. */
#define KVM_DIRTY_RING_MIN 1024u
#define KVM_DIRTY_RING_MAX 65536u

struct kvm_dirty;
struct kvm_vcpu;

/* A vCPU's ring; part of its struct kvm_vcpu. */
struct kvm_dirty_ring {
	struct kvm_dirty *dirty; /* NULL: no ring */
	struct kvm_dirty_gfn *entries;
	uint32_t next; /* under dirty->ring_lock: the entry to be reaped next */
	struct kvm_vcpu *vcpu;
	uint64_t unreset; /* under dirty->ring_lock: its part of the entries reaped and not reset */
	uint32_t outs;    /* of a sync: how often it had come out of the guest before */
	struct kvm_dirty_ring *following;
	_Atomic(uint64_t) pages;  /* reaped so far: what this vCPU has written */
	uint64_t pages_when_full; /* under dirty->ring_lock, as `stuck` */
	unsigned int stuck;
	_Atomic(uint64_t) full_exits; /* how often it had to come out because the ring was full */
};

/* Takes `count` words of a slot's log, from word `first` on. Called once or several times a
 * harvest, in order; stretches that are clean may be left out. Must be quick, and window-safe. */
typedef void kvm_dirty_sink(void *opaque, size_t first, const uint64_t *words, size_t count);

struct kvm_dirty_ops {
	enum kvm_dirty_kind kind;
	int (*enable)(struct kvm_dirty *dirty, const struct kvm_system *system, struct error **err);
	/* NULL: nothing to do. */
	int (*prepare)(struct kvm_dirty *dirty, struct kvm_slot *slot);
	int (*sync)(struct kvm_dirty *dirty, bool stopped);
	int (*harvest)(struct kvm_dirty *dirty, struct kvm_slot *slot, uint64_t *scratch,
		       kvm_dirty_sink *sink, void *opaque);
	int (*clear)(struct kvm_dirty *dirty, struct kvm_slot *slot, uint64_t first, uint32_t count,
		     const uint64_t *seen);
};

struct kvm_dirty {
	const struct kvm_dirty_ops *ops;
	struct kvm_slots *slots;
	int vm_fd;
	bool manual;        /* a harvest does not clear */
	bool initially_set; /* every bit is set when the log is switched on */

	/* Of the ring. */
	pthread_mutex_t ring_lock; /* reaping, resetting and what was reaped */
	uint32_t ring_entries;
	uint64_t unreset; /* entries reaped and not reset yet */
	bool overrun; /* the kernel has written past the end of a ring: nothing is sure any more */
	struct kvm_dirty_ring *rings;
};

/* Chooses the back end and enables it on the VM: before any vCPU, and before any slot logs. A kind
 * that KVM does not have is refused by name. options NULL: auto. */
int kvm_dirty_init(struct kvm_dirty *dirty, int vm_fd, struct kvm_slots *slots,
		   const struct kvm_system *system, const struct kvm_dirty_options *options,
		   struct error **err);
void kvm_dirty_free(struct kvm_dirty *dirty);

static inline enum kvm_dirty_kind kvm_dirty_kind(const struct kvm_dirty *dirty)
{
	return dirty->ops->kind;
}

/* Gives a vCPU just created its ring, if the VM has rings; and takes it away again. */
int kvm_dirty_ring_open(struct kvm_dirty *dirty, struct kvm_dirty_ring *ring, struct kvm_vcpu *vcpu,
			struct error **err);
void kvm_dirty_ring_close(struct kvm_dirty_ring *ring);
/* On the vCPU's thread, after KVM_EXIT_DIRTY_RING_FULL: makes room. 0 or a negative errno. */
int kvm_dirty_ring_full(struct kvm_dirty_ring *ring);

/* Switches a slot's log on or off. On: everything harvested before is forgotten. */
int kvm_dirty_start(struct kvm_dirty *dirty, struct kvm_slot *slot, struct error **err);
int kvm_dirty_stop(struct kvm_dirty *dirty, struct kvm_slot *slot, struct error **err);

/*
 * Once before the slots are harvested, by one thread at a time: collects what the vCPUs have in
 * their rings. stopped: they are all parked. Nothing is write-protected again then, and what is
 * harvested is reported once more by the first harvest after they ran on. Otherwise vCPUs in the
 * guest are called out for a moment, which waits for them a few milliseconds at most. -EOVERFLOW:
 * the kernel has overrun a ring, and pages are missing. [window] with stopped.
 */
int kvm_dirty_sync(struct kvm_dirty *dirty, bool stopped);

/* Gives the slot's log to the sink. scratch has BITMAP_WORDS(pages) words. [window] */
int kvm_dirty_harvest(struct kvm_dirty *dirty, struct kvm_slot *slot, uint64_t *scratch,
		      kvm_dirty_sink *sink, void *opaque);

/*
 * Clears and write-protects the pages [first, first + count) of the slot where `seen` has them set:
 * bits not seen yet are never lost. Bit 0 of seen is page `first`. first must be a multiple of 64;
 * count too, unless it ends at the slot's end. Does nothing where a harvest clears.
 */
int kvm_dirty_clear(struct kvm_dirty *dirty, struct kvm_slot *slot, uint64_t first, uint64_t count,
		    const uint64_t *seen);

/* Of the back ends, for dirty.c only. */
extern const struct kvm_dirty_ops kvm_dirty_log_ops, kvm_dirty_manual_ops, kvm_dirty_ring_ops;
