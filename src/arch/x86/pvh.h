/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Booting a PVH ELF: a kernel with the note XEN_ELFNOTE_PHYS32_ENTRY is entered in 32-bit
 * protected mode without paging, with EBX pointing to hvm_start_info (Xen's
 * docs/misc/pvh.pandoc and public/arch-x86/hvm/start_info.h).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include "arch/x86/vcpu_state.h"
#include "base/error.h"
#include "memory/ram.h"

/* Where the monitor puts what it hands to the guest; a kernel may not be loaded there. */
#define PVH_INFO_START    0x6000u /* start info, module list, memory map */
#define PVH_CMDLINE_START 0x10000u
#define PVH_CMDLINE_MAX   0x10000u /* bytes, with the final zero */
#define PVH_INFO_END      (PVH_CMDLINE_START + PVH_CMDLINE_MAX)
#define PVH_LOW_END       0x9fc00u /* end of usable memory below 640 KiB */
#define PVH_HIGH_START    0x100000u

#define PVH_MAX_SEGMENTS 64

struct pvh_segment {
	uint64_t offset, file_size, memory_size; /* bytes */
	uint64_t gpa;
};

struct pvh_kernel {
	const uint8_t *image; /* the whole file; not owned */
	size_t size;
	uint32_t entry;
	struct pvh_segment segments[PVH_MAX_SEGMENTS];
	unsigned int count;
};

/* Reads the headers; every field is checked against the file. Names in errors: "kernel". */
int pvh_parse(struct pvh_kernel *kernel, const void *image, size_t size, struct error **err);

/* All segments lie in RAM, outside the monitor's area; the initrd fits (0: none) and the command
 * line is not too long. Touches no guest memory. */
int pvh_check(const struct pvh_kernel *kernel, struct ram *ram, size_t initrd_size,
	      const char *cmdline, struct error **err);

/* Writes kernel, initrd, command line and start info. */
int pvh_load(const struct pvh_kernel *kernel, struct ram *ram, const void *initrd,
	     size_t initrd_size, const char *cmdline, struct error **err);

/* Changes a fresh vCPU's state to that of the kernel's entry. */
void pvh_set_entry(const struct pvh_kernel *kernel, struct vcpu_state *state);
