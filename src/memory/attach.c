/* SPDX-License-Identifier: Apache-2.0 */
/* The one place where guest RAM meets KVM; the rest of this folder works without a VM. */
#include "memory/ram.h"

int ram_attach(struct ram *ram, struct kvm_slots *slots, struct error **err)
{
	for (unsigned int i = 0; i < ram->count; i++) {
		const struct ram_region *region = &ram->regions[i];
		int result = kvm_slots_add(slots, region->gpa, region->size, region->hva, 0, err);

		if (result < 0) {
			error_prefix(err, "cannot give the guest its memory (%s)", region->name);
			return result;
		}
	}
	return 0;
}
