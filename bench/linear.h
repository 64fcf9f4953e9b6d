/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The yardstick, and no part of the program: a slot table of the size of the kernel's limit, in the
 * order in which slots came, that every look-up walks from end to end; and three bitmaps a page
 * goes through on a sync.
 */
#pragma once

#include <stdint.h>
#include "kvm/slots.h"

struct linear;

/* The same slots as in `table`; what is left up to `limit` is empty. */
struct linear *linear_create(const struct kvm_slots *table, unsigned int limit, uint64_t pages);
void linear_destroy(struct linear *linear);

/* One look-up. */
const void *linear_find(const struct linear *linear, uint64_t gpa);
/* One sync of all slots by KVM_GET_DIRTY_LOG: 0 or a negative errno. */
int linear_sync(struct linear *linear, int vm_fd);
