/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KVM's dirty log, a slot at a time, behind one interface. The caller owns the bitmaps (one bit a
 * 4 KiB page of the slot, BITMAP_WORDS(pages) words).
 *
 * With KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2 a harvest only copies: a page that was harvested is
 * reported again until kvm_dirty_clear() has write-protected it, which the sender does just before
 * it reads the page. Without it the harvest itself re-arms the log, and kvm_dirty_clear() does
 * nothing. (Documentation/virt/kvm/api.rst, KVM_GET_DIRTY_LOG, KVM_CLEAR_DIRTY_LOG.)
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "kvm/slots.h"
#include "kvm/system.h"

struct kvm_dirty {
	int vm_fd;
	bool manual;        /* harvest does not clear */
	bool initially_set; /* every bit is set when the log is switched on */
};

/* Enables manual protect on the VM where KVM has it. Before any slot logs. */
int kvm_dirty_init(struct kvm_dirty *dirty, int vm_fd, const struct kvm_system *system,
		   struct error **err);

/* Copies the slot's log into bitmap (overwritten). Returns 0 or a negative errno; window-safe. */
int kvm_dirty_harvest(const struct kvm_dirty *dirty, const struct kvm_slot *slot, uint64_t *bitmap);

/*
 * Clears and write-protects the pages [first, first + count) of the slot where `seen` has them set:
 * bits not seen yet are never lost. `seen` is the whole slot's bitmap as harvested. first must be a
 * multiple of 64; count too, unless it ends at the slot's end. Window-safe.
 */
int kvm_dirty_clear(const struct kvm_dirty *dirty, const struct kvm_slot *slot, uint64_t first,
		    uint64_t count, const uint64_t *seen);
