/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the guest is started from: a kernel file, or the built-in guest, with initrd and command
 * line. The files are read once and kept, since a reset, also one on a destination, loads them
 * again.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include "arch/x86/pvh.h"
#include "base/error.h"
#include "machine/machine.h"

struct boot {
	uint8_t *kernel_file, *initrd; /* owned; kernel_file NULL for the built-in guest */
	size_t initrd_size;
	uint32_t kernel_crc, initrd_crc;
	struct pvh_kernel kernel; /* size 0: there is none */
	char *cmdline;            /* owned, never NULL once read */
	bool builtin;
};

/* Reads what the options name. Neither --kernel nor --guest: an empty one, which an incoming
 * machine may have. */
int boot_read(struct boot *boot, const struct machine_config *config, struct error **err);
/* Another command line (NULL: empty). */
int boot_set_cmdline(struct boot *boot, const char *text, struct error **err);
void boot_free(struct boot *boot);
